"""A time that a simple schedule achieves: greedy list scheduling over the tile graph, after Graham (1966, 1969).

Whenever slots are free and a tile that fits them is ready, the first such tile in issue order starts; no slot idles
while a tile that fits is ready. With tiles of one slot each the result is at most ``2 - 1/slots`` times the optimum
(Graham, "Bounds on multiprocessing timing anomalies", theorem 1), which brackets the optimum from above. The slots are
one pool over the GPU: that blocks of different kernels may not fit together on a single SM is left to the simulator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.by_reference import by_reference
from tileprof.analysis.bounds.compiled import compiled, internal, without_allocation
from tileprof.analysis.bounds.problem import Problem, Successors, successors
from tileprof.analysis.heaps import pop, pop_tile, push, push_tile


def list_schedule(p: Problem, units: NDArray[np.int64], capacity: int) -> NDArray[np.float64]:
    """Return ``[tiles]`` end of every tile, ns, ready-gated, without launch costs.

    ``units`` ``[launches]`` and ``capacity`` as `Machine.units` gives them. Tiles that end at the same instant
    free their slots together, before any of them is given away.
    """
    sizes, size_of = np.unique(units, return_inverse=True)
    tiles = np.diff(p.tile_base)
    ends = np.full(p.tiles, np.inf)
    if not p.tiles:
        return ends
    s = successors(p)
    program, inverse = by_reference(p), by_reference(s)
    parents, waits = initial_counters(program, inverse)
    room = np.bincount(size_of, tiles, len(sizes)).astype(np.int64)
    queue = _Ready(
        sizes, size_of.astype(np.int64), np.empty(p.tiles, np.int64), np.concatenate([[0], np.cumsum(room)]),
        np.zeros(len(sizes), np.int64),
    )  # fmt: skip
    launch_of = np.repeat(np.arange(len(tiles), dtype=np.int32), tiles)
    running = min(p.tiles, capacity // int(sizes[0])) + 1
    keys, items, out = np.empty(running), np.empty(running, np.int64), np.empty(p.tiles, np.int64)
    _loop(program, inverse, by_reference(queue), launch_of, parents, waits, keys, items, out, ends, capacity)
    return ends


class _Ready(NamedTuple):
    """Ready tiles: one heap per size, so that small tiles can pass a large one. ``sizes``: slots of a tile, ascending;
    ``size_of`` ``[launches]`` is an index of it. ``heap[heap_at[k]:][:waiting[k]]`` are the ready tiles of size k.
    """

    sizes: NDArray[np.int64]
    size_of: NDArray[np.int64]
    heap: NDArray[np.int64]
    heap_at: NDArray[np.int64]
    waiting: NDArray[np.int64]


@compiled
def alone(ns: NDArray[np.float64], slots: int) -> NDArray[np.float64]:
    """Return ``[tiles]`` end of each tile, ns, when independent tiles take the next free slot in order."""
    free = np.zeros(min(slots, max(len(ns), 1)))  # a heap, least first
    ends = np.empty(len(ns))
    for t in range(len(ns)):
        ends[t] = free[0] + ns[t]
        at, value = 0, ends[t]
        while True:
            child = 2 * at + 1
            if child >= len(free):
                break
            if child + 1 < len(free) and free[child + 1] < free[child]:
                child += 1
            if free[child] >= value:
                break
            free[at] = free[child]
            at = child
        free[at] = value
    return ends


@compiled
def initial_counters(p: Problem, s: Successors) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return unfinished parents of every link's sets ``[sets of all links]``, and unfinished sets of every tile
    ``[tiles]``.
    """
    parents = np.zeros(s.state_at[-1], np.int32)
    waits = np.zeros(p.tile_base[-1], np.int32)
    for link in range(len(p.producer)):
        r, c = p.relation[link], p.consumer[link]
        for k in range(p.sets[r]):
            parents[s.state_at[link] + k] = p.indptr[p.set_at[r] + k + 1] - p.indptr[p.set_at[r] + k]
        for t in range(p.tile_base[c + 1] - p.tile_base[c]):
            k = p.set_of[p.tile_at[r] + t]
            if k >= 0 and parents[s.state_at[link] + k] > 0:
                waits[p.tile_base[c] + t] += 1
    return parents, waits


@without_allocation
def _loop(
    p: Problem,
    s: Successors,
    queue: _Ready,
    launch_of: NDArray[np.int32],
    parents: NDArray[np.int32],
    waits: NDArray[np.int32],
    keys: NDArray[np.float64],
    items: NDArray[np.int64],
    out: NDArray[np.int64],
    ends: NDArray[np.float64],
    capacity: int,
) -> None:
    """Set ``ends``. ``keys`` and ``items``: a heap of the running tiles by their end; ``out``: room for `completed`."""
    busy, free, now = 0, capacity, 0.0
    for t in range(p.tile_base[-1]):
        if waits[t] == 0:
            _put(queue, launch_of[t], t)
    while True:
        while True:  # dispatch
            size = _first_that_fits(queue, free, p.tile_base[-1])
            if size < 0:
                break
            t = queue.heap[queue.heap_at[size]]
            pop_tile(queue.heap[queue.heap_at[size] : queue.heap_at[size + 1]], queue.waiting[size])
            queue.waiting[size] -= 1
            free -= queue.sizes[size]
            i = launch_of[t]
            ends[t] = now + p.ns[p.ns_at[i] + t - p.tile_base[i]]
            push(keys, items, busy, ends[t], t)
            busy += 1
        if busy == 0:
            return
        now = keys[0]
        while busy > 0 and keys[0] == now:
            t = items[0]
            pop(keys, items, busy)
            busy -= 1
            free += queue.sizes[queue.size_of[launch_of[t]]]
            for x in range(completed(p, s, launch_of[t], t, parents, waits, out)):
                _put(queue, launch_of[out[x]], out[x])


@internal
def _put(queue: _Ready, launch: int, tile: int) -> None:
    size = queue.size_of[launch]
    push_tile(queue.heap[queue.heap_at[size] : queue.heap_at[size + 1]], queue.waiting[size], tile)
    queue.waiting[size] += 1


@internal
def _first_that_fits(queue: _Ready, free: int, tiles: int) -> int:
    """Return the size whose first ready tile is the first in issue order that ``free`` slots hold; -1: none."""
    best, size = tiles, -1
    for k in range(len(queue.sizes)):
        if queue.waiting[k] > 0 and queue.sizes[k] <= free and queue.heap[queue.heap_at[k]] < best:
            best, size = queue.heap[queue.heap_at[k]], k
    return size


@internal
def completed(
    p: Problem,
    s: Successors,
    launch: int,
    tile: int,
    parents: NDArray[np.int32],
    waits: NDArray[np.int32],
    out: NDArray[np.int64],
) -> int:
    """Count a tile's end in what `initial_counters` made. Write the tiles that wait for nothing else into ``out``, and
    return their number.
    """
    released = 0
    for x in range(s.out_at[launch], s.out_at[launch + 1]):
        link = s.out[x]
        r, c = p.relation[link], p.consumer[link]
        at = s.parent_at[r] + tile - p.tile_base[launch]
        for e in range(s.parent_indptr[at], s.parent_indptr[at + 1]):
            k = s.parent_set[p.entry_at[r] + e]
            parents[s.state_at[link] + k] -= 1
            if parents[s.state_at[link] + k] > 0:
                continue
            for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
                child = p.tile_base[c] + s.member[s.member_at[r] + m]
                waits[child] -= 1
                if waits[child] == 0:
                    out[released] = child
                    released += 1
    return released
