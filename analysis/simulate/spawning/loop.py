"""The simulation event by event."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import apart, without_allocation
from tileprof.analysis.heaps import pop
from tileprof.analysis.simulate.spawning.launches import completes, ends, later, random_share, schedule
from tileprof.analysis.simulate.spawning.rules import count_end, tick, tiles_of
from tileprof.analysis.simulate.spawning.state import (
    ACTIVE,
    ARRIVED,
    BEGUN,
    BUSY,
    CHILDREN,
    COMES,
    COMPLETED,
    CURRENT,
    DECIDES,
    DONE,
    ENDED,
    ENTERED,
    FRONT,
    GOES_ON,
    GROUPS,
    HELD,
    KEEPING,
    KEEPS,
    LIVED,
    OWN_ITEMS,
    OWN_NS,
    PARENT,
    PENDING,
    QUEUED,
    REACHES,
    READS,
    ROOM,
    RUNNING,
    SAMPLES,
    SHOWS,
    SINCE,
    SIZE,
    SMS,
    STANDING,
    UPDATES,
    VISIBLE,
    Costs,
    State,
    Work,
)
from tileprof.analysis.simulate.spawning.tiles import (
    begins_keeping,
    ends_keeping,
    next_end,
    warp_decides,
)
from tileprof.analysis.simulate.spawning.walks import comes_to_end, comes_to_sites
from tileprof.analysis.simulate.spawning.words import looks, reads, samples, shows, updates


@without_allocation
def run_events(round_at: NDArray[np.int64], w: Work, o: Costs, z: State) -> float:
    """Run event by event. Events of one instant happen in the order of their numbers, for n threads: the tile of slot s
    ends (s); the threads of the warp that begins with thread t have done the items without sites that they keep
    (slots + t); grid g arrives (slots + n + g); the next round or parent tile may begin (slots + 2 n); then the kinds
    of `launches.later`, each with its threads.
    """
    c, n = z.c, len(w.items)
    now = 0.0
    while c[CURRENT] + 1 < len(round_at):
        stop = round_at[c[CURRENT] + 1]
        while c[ACTIVE] < o.queues and c[ENTERED] < c[ARRIVED]:
            c[ACTIVE] += 1
            c[ENTERED] += 1
        while o.children > 0 and c[HELD] > 0 and c[FRONT] < c[ENTERED] and c[ROOM] >= o.child:
            _start_child(z, o, w, now)
        while c[HELD] > 0 and c[PARENT] < stop and c[ROOM] >= o.parent and now >= z.ns[REACHES]:
            first, last = c[PARENT], min(c[PARENT] + o.parent, stop)
            c[PARENT] = last
            c[RUNNING] += 1
            slot = _start(z, -1, o.parent, now)
            begin = round_at[c[CURRENT]]
            z.group[slot] = _group((first - begin) // o.parent, (stop - begin + o.parent - 1) // o.parent)
            _begin_warps(w, z, o, slot, first, last, now)
            if o.stagger_ns > 0 and c[PARENT] < stop:
                z.ns[REACHES] = now + o.stagger_ns
                schedule(z, z.ns[REACHES], o.slots + 2 * n)
        while c[HELD] > 0 and c[PARENT] == stop and c[FRONT] < c[ENTERED] and c[ROOM] >= o.child:
            _start_child(z, o, w, now)
        if c[RUNNING] == 0 and c[PENDING] == 0 and c[PARENT] == stop:
            settled = max(now, z.ns[DONE] + o.settle_ns) if c[COMPLETED] > 0 else now
            c[CURRENT], c[COMPLETED] = c[CURRENT] + 1, 0
            if c[CURRENT] + 1 < len(round_at):
                schedule(z, settled + w.gap_ns[c[CURRENT]], o.slots + 2 * n)
            else:
                now = settled
                break
        if c[SIZE] == 0 and c[KEEPING] == 0:
            break
        if c[KEEPING] > 0 and (c[SIZE] == 0 or next_end(z, o) < z.keys[0]):
            now = next_end(z, o)
            ends_keeping(z, o, now)
            continue
        now = z.keys[0]
        while c[SIZE] > 0 and z.keys[0] == now:
            _happens(z, o, w, now)
    return now


@apart
def _happens(z: State, o: Costs, w: Work, now: float) -> None:
    item, n = z.events[0], len(w.items)
    pop(z.keys, z.events, z.c[SIZE])
    z.c[SIZE] -= 1
    if item < o.slots:
        _tile_ends(z, o, w, item, now)
        return
    item -= o.slots
    if item < n:
        z.ns[OWN_ITEMS] += z.own_items[item]
        z.ns[OWN_NS] += z.own_ns[item]
        _part_ends(z, o, w, item, now)
    elif item < 2 * n:
        z.arrived[z.c[ARRIVED]] = item - n
        z.c[ARRIVED] += 1
    elif item > 2 * n:
        _happens_to(z, o, w, now, (item - 2 * n - 1) // n, (item - 2 * n - 1) % n)


@apart
def _happens_to(z: State, o: Costs, w: Work, now: float, kind: int, t: int) -> None:
    if kind == DECIDES:
        if looks(w, o, z, now, t):
            warp_decides(w, o, z, now, t)
    elif kind == COMES:
        if z.site[t] < 0:
            comes_to_end(z, t)
            _part_ends(z, o, w, t, now)
        elif looks(w, o, z, now, t):
            comes_to_sites(w, o, z, now, t)
    elif kind == KEEPS:
        begins_keeping(z, o, now, t)
    elif kind == READS:
        reads(w, o, z, now, t)
    elif kind == SAMPLES:
        samples(w, o, z, now, t)
    elif kind == UPDATES:
        updates(w, o, z, now, t)
    elif kind == SHOWS:
        shows(z, t)
    elif kind == GOES_ON:
        z.c[STANDING] -= 1
    else:
        completes(w, o, z, t, now)


@apart
def _part_ends(z: State, o: Costs, w: Work, first: int, now: float) -> None:
    z.parts[first] -= 1
    if z.parts[first] == 0:
        slot = z.slot[first]
        z.warps[slot] -= 1
        if z.warps[slot] == 0:
            _tile_ends(z, o, w, slot, now)


@apart
def _tile_ends(z: State, o: Costs, w: Work, slot: int, now: float) -> None:
    z.free[z.c[HELD]] = slot
    z.c[HELD] += 1
    grid = z.runs[slot]
    if grid < 0:
        z.c[RUNNING] -= 1
        z.c[ROOM] += o.parent
        return
    z.c[ROOM] += o.child
    z.c[QUEUED] -= 1
    z.c[VISIBLE] -= 1
    z.c[ENDED] += 1
    life = now - z.began[slot]
    z.ns[LIVED] += life
    if o.ended > 0:
        count_end(z, o, now, life)
    tick(z, o, now)
    z.c[CHILDREN] -= 1
    if z.c[CHILDREN] == 0:
        z.ns[BUSY] += now - z.ns[SINCE]
    z.to_end[grid] -= 1
    if z.to_end[grid] == 0:
        z.c[ACTIVE] -= 1
        z.took[grid] = now - z.asked[grid]
        ends(w, o, z, grid, now)


@apart
def _start(z: State, what: int, threads: int, now: float) -> int:
    """Give a tile a slot. Return the slot."""
    z.c[HELD] -= 1
    z.c[ROOM] -= threads
    slot = int(z.free[z.c[HELD]])
    z.runs[slot] = what
    z.began[slot] = now
    return slot


@apart
def _group(number: int, tiles: int) -> int:
    """Return the GPC that a parent tile of a round goes to, as on an H200: the first eight tiles to the first, the
    others to all, one GPC after the other, in waves of a tile per SM.
    """
    number, wave = number % SMS, min(tiles - number // SMS * SMS, SMS)
    return 0 if number < GROUPS else (number - GROUPS) * GROUPS // (wave - GROUPS)


@apart
def _begin_warps(w: Work, z: State, o: Costs, slot: int, first: int, last: int, begin: float) -> None:
    """Let the warps of a tile's threads decide when the last thread of each that has a site has come to it."""
    z.warps[slot] = (last - first + o.warp - 1) // o.warp
    for t in range(first, last, o.warp):
        z.slot[t], z.stop[t] = slot, min(t + o.warp, last)
        longest = to_site = 0.0
        for u in range(t, z.stop[t]):
            longest = max(longest, w.own_ns[u])
            if w.items[u] > 0:
                to_site = max(to_site, w.own_ns[u])
        z.others_end[t] = begin + longest
        late = random_share(o.seed, t) * o.jitter_ns if o.jitter_ns > 0 else 0.0
        later(w, o, z, DECIDES, t, begin + (to_site if to_site > 0 else longest) + late)


@apart
def _start_child(z: State, o: Costs, w: Work, now: float) -> None:
    grid = z.arrived[z.c[FRONT]]
    tile = tiles_of(o, w.items[grid]) - z.to_start[grid]
    z.to_start[grid] -= 1
    if z.to_start[grid] == 0:
        z.c[FRONT] += 1
    if z.c[CHILDREN] == 0:
        z.ns[SINCE] = now
    if z.c[CHILDREN] == 0 and z.c[ENDED] == 0:
        z.ns[BEGUN] = now
    tick(z, o, now)
    z.c[CHILDREN] += 1
    slot = _start(z, grid, o.child, now)
    z.group[slot] = slot % GROUPS
    if w.first_child[grid] >= 0:
        first, last = tile * o.child, min((tile + 1) * o.child, w.items[grid])
        _begin_warps(w, z, o, slot, w.first_child[grid] + first, w.first_child[grid] + last, now + w.child_ns)
    else:
        schedule(z, now + w.child_ns + w.beside_ns * (z.c[CHILDREN] - 1) + w.longest_ns[grid], slot)
