"""Consumer tiles run inline by the worker that made them ready, or spawned into a queue: SPAWN's question on any tile
graph.

A persistent kernel: ``workers`` each run one tile at a time. When a tile ends, those of its consumers that wait for
nothing else are ready, and its worker decides about one after the other, in issue order::

    inline    onto the worker's own list, which it works off next: no other is told, the inputs are still in its SM
    spawned   into the queue of all workers, where it arrives ``spawn_ns`` later; a worker that is free takes the
    earliest, for ``fetch_ns``

A tile that waits for nothing is in the queue from the beginning. The rule is that of Tang et al. (HPCA 2017, see
`tileprof.analysis.simulate.spawning`) with a list in place of a thread's items: spawn where ``spawn_ns + fetch_ns +
tiles ahead in the queue / throughput + own time < time of the worker's list + own time inline``, the throughput being
that of spawned tiles so far. Other than there, tiles for which a worker is free are not ahead: a tile graph is not
always as wide as the GPU, and where it was narrow little was spawned, which says nothing about how fast the queue would
be worked off.

The tests hold it to the same in plain Python.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.by_reference import by_reference
from tileprof.analysis.bounds.compiled import internal, without_allocation
from tileprof.analysis.bounds.list_schedule import completed, initial_counters
from tileprof.analysis.bounds.problem import Problem, Successors
from tileprof.analysis.heaps import pop, pop_tile, push, push_tile

RULE, SPAWN, INLINE, PRINTED = range(4)
"""PRINTED: the rule with all tiles of the queue ahead, those among them for which a worker is free."""


class Inlining(NamedTuple):
    """Times in nanoseconds. ``policy``: RULE, PRINTED, or all SPAWN or INLINE."""

    workers: int
    policy: int = RULE
    spawn_ns: float = 0.0
    """Time from the end of the last parent to a spawned tile's arrival in the queue."""
    fetch_ns: float = 0.0
    """A worker's time to take a tile from the queue."""
    reload_ns: float = 0.0
    """Time that an inline tile spares, at most its life."""


class Ran(NamedTuple):
    """``[tiles]``: when each tile began (after it was fetched) and ended, the worker that ran it, and whether
    inline.
    """

    begin_ns: NDArray[np.float64]
    end_ns: NDArray[np.float64]
    worker: NDArray[np.int32]
    inline: NDArray[np.bool_]


def run(p: Problem, s: Successors, costs: Inlining) -> Ran:
    """Return the compiled simulation of all tiles of a problem."""
    tiles = p.tiles
    parents, waits = initial_counters(by_reference(p), by_reference(s))
    z = _State(
        np.zeros(6, np.int64), np.zeros(2), np.full(tiles, np.inf), np.full(tiles, np.inf), np.full(tiles, -1,
        np.int32),
        np.zeros(tiles, np.bool_), parents, waits, np.repeat(np.arange(len(p.launch), dtype=np.int32),
        np.diff(p.tile_base)),
        np.empty(tiles + costs.workers + 1), np.empty(tiles + costs.workers + 1, np.int64), np.empty(tiles + 1),
        np.empty(tiles + 1, np.int64), np.empty(tiles + 1, np.int64), np.arange(costs.workers)[::-1].copy(),
        np.full(costs.workers, -1), np.full(costs.workers, -1), np.zeros(costs.workers), np.full(tiles, -1),
    )  # fmt: skip
    z.n[_FREE] = costs.workers
    _loop(by_reference(p), by_reference(s), by_reference(costs), by_reference(z))
    return Ran(z.begin, z.end, z.worker, z.inline)


_EVENTS, _QUEUE, _FREE, _WAITING, _RUNNING, _ENDED = range(6)
"""Counters: events, tiles in the queue, free workers, tiles spawned and not begun, spawned tiles that run and that have
ended.
"""
_BUSY, _SINCE = range(2)
"""Times: in which some spawned tile ran, since when one does."""


class _State(NamedTuple):
    n: NDArray[np.int64]
    ns: NDArray[np.float64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    worker: NDArray[np.int32]
    inline: NDArray[np.bool_]
    parents: NDArray[np.int32]
    waits: NDArray[np.int32]
    launch_of: NDArray[np.int32]
    keys: NDArray[np.float64]
    items: NDArray[np.int64]
    arrival: NDArray[np.float64]
    queue: NDArray[np.int64]
    """A heap of tiles, by ``arrival`` and number."""
    ready: NDArray[np.int64]
    """A heap of the tiles that the tile has made ready that has just ended."""
    free: NDArray[np.int64]
    """Free workers, a stack."""
    head: NDArray[np.int64]
    tail: NDArray[np.int64]
    """``[workers]`` lists of inline tiles, linked by ``after``."""
    listed_ns: NDArray[np.float64]
    """``[workers]`` lives of the tiles on the list."""
    after: NDArray[np.int64]


@without_allocation
def _loop(p: Problem, s: Successors, o: Inlining, z: _State) -> None:
    """Events: tile t ends (t), spawned tile t arrives (tiles + t). All of an instant happen before free workers take
    tiles.
    """
    tiles = p.tile_base[-1]
    now = 0.0
    for t in range(tiles):
        if z.waits[t] == 0:
            z.n[_WAITING] += 1
            push(z.arrival, z.queue, z.n[_QUEUE], 0.0, t)
            z.n[_QUEUE] += 1
    while True:
        while z.n[_FREE] > 0 and z.n[_QUEUE] > 0:
            t = z.queue[0]
            pop(z.arrival, z.queue, z.n[_QUEUE])
            z.n[_QUEUE] -= 1
            z.n[_FREE] -= 1
            z.n[_WAITING] -= 1
            if z.n[_RUNNING] == 0:
                z.ns[_SINCE] = now
            z.n[_RUNNING] += 1
            _begin(z, now + o.fetch_ns, t, z.free[z.n[_FREE]], _life(p, z, t))
        if z.n[_EVENTS] == 0:
            return
        now = z.keys[0]
        while z.n[_EVENTS] > 0 and z.keys[0] == now:
            item = z.items[0]
            pop(z.keys, z.items, z.n[_EVENTS])
            z.n[_EVENTS] -= 1
            if item >= tiles:
                push(z.arrival, z.queue, z.n[_QUEUE], now, item - tiles)
                z.n[_QUEUE] += 1
            else:
                _ends(p, s, o, z, now, item)


@internal
def _life(p: Problem, z: _State, tile: int) -> float:
    i = z.launch_of[tile]
    life: float = p.ns[p.ns_at[i] + tile - p.tile_base[i]]
    return life


@internal
def _begin(z: _State, when: float, tile: int, worker: int, life: float) -> None:
    z.begin[tile], z.end[tile], z.worker[tile] = when, when + life, worker
    push(z.keys, z.items, z.n[_EVENTS], when + life, tile)
    z.n[_EVENTS] += 1


@internal
def _ends(p: Problem, s: Successors, o: Inlining, z: _State, now: float, tile: int) -> None:
    worker = z.worker[tile]
    if not z.inline[tile]:
        z.n[_ENDED] += 1
        z.n[_RUNNING] -= 1
        if z.n[_RUNNING] == 0:
            z.ns[_BUSY] += now - z.ns[_SINCE]
    ready = _made_ready(p, s, z, tile)
    while ready > 0:
        child = z.ready[0]
        pop_tile(z.ready, ready)
        ready -= 1
        life = _life(p, z, child)
        spared = max(life - o.reload_ns, 0.0)
        by_rule = o.policy in (RULE, PRINTED)
        if o.policy == SPAWN or (by_rule and _expected(o, z, now, life) < z.listed_ns[worker] + spared):
            z.n[_WAITING] += 1
            push(z.keys, z.items, z.n[_EVENTS], now + o.spawn_ns, len(z.begin) + child)
            z.n[_EVENTS] += 1
            continue
        z.inline[child] = True
        z.listed_ns[worker] += spared
        if z.head[worker] < 0:
            z.head[worker] = child
        else:
            z.after[z.tail[worker]] = child
        z.tail[worker] = child
    following = z.head[worker]
    if following < 0:
        z.free[z.n[_FREE]] = worker
        z.n[_FREE] += 1
        return
    z.head[worker] = z.after[following]
    spared = max(_life(p, z, following) - o.reload_ns, 0.0)
    z.listed_ns[worker] = z.listed_ns[worker] - spared if z.head[worker] >= 0 else 0.0
    _begin(z, now, following, worker, spared)


@internal
def _expected(o: Inlining, z: _State, now: float, life: float) -> float:
    """Time until a spawned tile has ended, as far as its worker can tell."""
    each = life / o.workers  # one over the throughput
    if z.n[_ENDED] > 0:
        each = (z.ns[_BUSY] + (now - z.ns[_SINCE] if z.n[_RUNNING] > 0 else 0.0)) / z.n[_ENDED]
    ahead = z.n[_WAITING] if o.policy == PRINTED else max(z.n[_WAITING] - z.n[_FREE], 0)
    expected: float = o.spawn_ns + o.fetch_ns + ahead * each + life
    return expected


@internal
def _made_ready(p: Problem, s: Successors, z: _State, tile: int) -> int:
    """Put the tiles that waited for nothing but this one into ``ready``. Return how many they are."""
    ready_count = completed(p, s, z.launch_of[tile], tile, z.parents, z.waits, z.ready)
    for x in range(ready_count):
        push_tile(z.ready, x, z.ready[x])
    return ready_count
