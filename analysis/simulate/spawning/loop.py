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
from tileprof.analysis.simulate.spawning.tiles import schedule, tile_life


@compiled
def run_events(round_at: NDArray[np.int64], w: Work, o: Costs, z: State) -> float:
    """Run event by event: slot s falls free (s), grid g arrives (slots + g), the next round begins (slots + threads of
    all rounds).
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
            last = min(c[PARENT] + o.parent, stop)
            life = tile_life(w, o, z, now, c[PARENT], last, w.base_ns)
            c[PARENT] = last
            _start(z, -1, o.parent, now, life)
            if o.stagger_ns > 0 and c[PARENT] < stop:
                z.ns[REACHES] = now + o.stagger_ns
                schedule(z, z.ns[REACHES], o.slots + n)
        while c[HELD] > 0 and c[PARENT] == stop and c[FRONT] < c[ENTERED] and c[ROOM] >= o.child:
            _start_child(z, o, w, now)
        if c[RUNNING] == 0 and c[QUEUED] == 0 and c[PARENT] == stop:
            c[CURRENT] += 1
            if c[CURRENT] + 1 < len(round_at):
                schedule(z, now + o.gap_ns, o.slots + n)
        if c[SIZE] == 0:
            break
        now = z.keys[0]
        while c[SIZE] > 0 and z.keys[0] == now:
            _happens(z, o, n, now)
    return now


@internal
def _happens(z: State, o: Costs, threads: int, now: float) -> None:
    item = z.events[0]
    pop(z.keys, z.events, z.c[SIZE])
    z.c[SIZE] -= 1
    if item == o.slots + threads:
        return
    if item >= o.slots:
        z.arrived[z.c[ARRIVED]] = item - o.slots
        z.c[ARRIVED] += 1
        return
    z.free[z.c[HELD]] = item
    z.c[HELD] += 1
    z.ns[OWN_ITEMS] += z.own_items[item]
    z.ns[OWN_NS] += z.own_ns[item]
    grid = z.runs[item]
    if grid < 0:
        z.c[RUNNING] -= 1
        z.c[ROOM] += o.parent
        return
    z.c[ROOM] += o.child
    z.c[QUEUED] -= 1
    z.c[ENDED] += 1
    z.ns[LIVED] += z.lives[item]
    if o.ended > 0:
        count_end(z, o, now, z.lives[item])
    tick(z, o, now)
    z.c[CHILDREN] -= 1
    if z.c[CHILDREN] == 0:
        z.ns[BUSY] += now - z.ns[SINCE]
    z.to_end[grid] -= 1
    if z.to_end[grid] == 0:
        z.c[ACTIVE] -= 1
        z.took[grid] = now - z.asked[grid]


@internal
def _start(z: State, what: int, threads: int, now: float, life: float) -> None:
    z.c[HELD] -= 1
    z.c[ROOM] -= threads
    slot = z.free[z.c[HELD]]
    z.runs[slot] = what
    z.lives[slot] = life
    z.own_items[slot], z.own_ns[slot] = z.own_items[-1], z.own_ns[-1]
    z.own_items[-1], z.own_ns[-1] = 0, 0.0
    if what < 0:
        z.c[RUNNING] += 1
    schedule(z, now + life, slot)


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
    life = w.child_ns + w.item_ns[grid]
    if w.first_child[grid] >= 0:
        first, last = tile * o.child, min((tile + 1) * o.child, w.items[grid])
        life = tile_life(w, o, z, now, w.first_child[grid] + first, w.first_child[grid] + last, life)
    _start(z, grid, o.child, now, life)
