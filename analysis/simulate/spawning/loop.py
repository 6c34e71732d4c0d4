"""The simulation event by event."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled, internal
from tileprof.analysis.heaps import pop
from tileprof.analysis.simulate.spawning.rules import count_end, tick, tiles_of
from tileprof.analysis.simulate.spawning.state import (
    ACTIVE,
    ARRIVED,
    BEGUN,
    BUSY,
    CHILDREN,
    CURRENT,
    ENDED,
    ENTERED,
    FRONT,
    HELD,
    KEEPING,
    LIVED,
    OWN_ITEMS,
    OWN_NS,
    PARENT,
    QUEUED,
    REACHES,
    ROOM,
    RUNNING,
    SINCE,
    SIZE,
    Costs,
    State,
    Work,
)
from tileprof.analysis.simulate.spawning.tiles import (
    begins_keeping,
    comes_to_site,
    ends_keeping,
    next_end,
    schedule,
    warp_decides,
)


@compiled
def run_events(round_at: NDArray[np.int64], w: Work, o: Costs, z: State) -> float:
    """Run event by event. Of n threads, in the order in which events of one instant happen: the tile of slot s ends
    (s); the threads of the warp that begins with thread t have done the items without sites that they keep (slots + t);
    grid g arrives (slots + n + g); the next round or parent tile may begin (slots + 2 n); the warp of thread t decides
    (slots + 2 n + 1 + t); thread t comes to a site among its items, or to their end (slots + 3 n + 1 + t); the warp of
    thread t begins with the items that it keeps (slots + 4 n + 1 + t).
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
            _begin_warps(w, z, o, _start(z, -1, o.parent, now), first, last, now)
            if o.stagger_ns > 0 and c[PARENT] < stop:
                z.ns[REACHES] = now + o.stagger_ns
                schedule(z, z.ns[REACHES], o.slots + 2 * n)
        while c[HELD] > 0 and c[PARENT] == stop and c[FRONT] < c[ENTERED] and c[ROOM] >= o.child:
            _start_child(z, o, w, now)
        if c[RUNNING] == 0 and c[QUEUED] == 0 and c[PARENT] == stop:
            c[CURRENT] += 1
            if c[CURRENT] + 1 < len(round_at):
                schedule(z, now + o.gap_ns, o.slots + 2 * n)
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


@internal
def _happens(z: State, o: Costs, w: Work, now: float) -> None:
    item, n = z.events[0], len(w.items)
    pop(z.keys, z.events, z.c[SIZE])
    z.c[SIZE] -= 1
    if item < o.slots:
        _tile_ends(z, o, item, now)
        return
    item -= o.slots
    if item < n:
        z.ns[OWN_ITEMS] += z.own_items[item]
        z.ns[OWN_NS] += z.own_ns[item]
        _part_ends(z, o, item, now)
    elif item < 2 * n:
        z.arrived[z.c[ARRIVED]] = item - n
        z.c[ARRIVED] += 1
    elif 2 * n < item <= 3 * n:
        warp_decides(w, o, z, now, item - 2 * n - 1)
    elif item > 4 * n:
        begins_keeping(z, o, now, item - 4 * n - 1)
    elif item > 3 * n and not comes_to_site(w, o, z, now, item - 3 * n - 1):
        z.deep[z.warp[item - 3 * n - 1]] -= 1
        _part_ends(z, o, z.warp[item - 3 * n - 1], now)


@internal
def _part_ends(z: State, o: Costs, first: int, now: float) -> None:
    z.parts[first] -= 1
    if z.parts[first] == 0:
        slot = z.slot[first]
        z.warps[slot] -= 1
        if z.warps[slot] == 0:
            _tile_ends(z, o, slot, now)


@internal
def _tile_ends(z: State, o: Costs, slot: int, now: float) -> None:
    z.free[z.c[HELD]] = slot
    z.c[HELD] += 1
    grid = z.runs[slot]
    if grid < 0:
        z.c[RUNNING] -= 1
        z.c[ROOM] += o.parent
        return
    z.c[ROOM] += o.child
    z.c[QUEUED] -= 1
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


@internal
def _start(z: State, what: int, threads: int, now: float) -> int:
    """Give a tile a slot. Return the slot."""
    z.c[HELD] -= 1
    z.c[ROOM] -= threads
    slot = int(z.free[z.c[HELD]])
    z.runs[slot] = what
    z.began[slot] = now
    return slot


@internal
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
        schedule(z, begin + (to_site if to_site > 0 else longest), o.slots + 2 * len(w.items) + 1 + t)


@internal
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
    if w.first_child[grid] >= 0:
        first, last = tile * o.child, min((tile + 1) * o.child, w.items[grid])
        _begin_warps(w, z, o, slot, w.first_child[grid] + first, w.first_child[grid] + last, now + w.child_ns)
    else:
        schedule(z, now + w.child_ns + w.longest_ns[grid], slot)
