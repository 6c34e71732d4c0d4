"""Tiles dispatched in a fixed order that hold their slot while they wait: what tile-synchronised kernels do on a GPU.

Blocks are taken launch by launch, within a launch in its tile order, as the hardware does once kernels overlap
(programmatic dependent launch, or several streams behind a wait kernel). A tile takes its slot as soon as the slot is
free, then waits for its parents: at its entry, or at the access that needs them (`wait_inside`). Because parents come
earlier in the order, one pass in dispatch order is an exact simulation.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled, inlined

if TYPE_CHECKING:
    from tileprof.analysis.bounds.problem import Problem


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of synchronisation, in nanoseconds.

    ``post_ns``: fence and atomic at a tile's end. ``wait_ns``: from the last post to the waiting tile going on.
    ``launch_ns``: from the start of a launch to the earliest start of the next (0: all are resident in time). Defaults:
    an L2 round trip each, about
    0.7 us on Volta to Hopper (Jia et al. 2018, arXiv:1804.06826, table 3.1; Luo et al. 2024, arXiv:2402.13499).
    """

    post_ns: float = 350.0
    wait_ns: float = 350.0
    launch_ns: float = 0.0


def in_order(
    p: Problem,
    units: NDArray[np.int64],
    capacity: int,
    costs: Costs,
    *,
    orders: list[NDArray[np.int64] | None] | None = None,
    wait_inside: bool = False,
) -> NDArray[np.float64]:
    """Return ``[tiles]`` end of every tile, ns.

    ``units`` ``[launches]`` and ``capacity`` as `Machine.units` gives them; ``orders`` gives each launch's tiles in
    dispatch order (None: ascending). Tiles of launches without successors pay no post, tiles without parents no wait.
    """
    launches = len(p.launch)
    order = np.concatenate(
        [
            np.arange(p.tile_base[i], p.tile_base[i + 1])
            if orders is None or (launch_order := orders[i]) is None
            else p.tile_base[i] + launch_order
            for i in range(launches)
        ]
        or [np.empty(0, np.int64)]
    ).astype(np.int64)
    posts = np.isin(np.arange(launches), p.producer)
    states = np.concatenate([np.zeros(1, np.int64), np.cumsum(p.sets[p.relation])])
    ends: NDArray[np.float64] = _run(
        p, order, units, capacity, posts, states, costs.post_ns, costs.wait_ns, costs.launch_ns, wait_inside
    )
    return ends


@compiled
def _run(
    p: Problem,
    order: NDArray[np.int64],
    units: NDArray[np.int64],
    capacity: int,
    posts: NDArray[np.bool_],
    states: NDArray[np.int64],
    post_ns: float,
    wait_ns: float,
    launch_ns: float,
    wait_inside: bool,
) -> NDArray[np.float64]:
    ends = np.zeros(p.tile_base[-1])
    # When a set's parents let a consumer begin that needs them at its start; NaN: not asked yet.
    begin_of = np.full(states[-1], np.nan)
    running = [(0.0, 0)]
    free = capacity
    now = 0.0
    floor = 0.0
    previous = -1
    launch = 0
    for tile in order:
        while tile >= p.tile_base[launch + 1]:
            launch += 1
        if launch != previous:
            floor = now + launch_ns if previous >= 0 else 0.0
            previous = launch
        while free < units[launch] or (len(running) > 0 and running[0][0] <= now):
            now = max(now, running[0][0])
            free += heapq.heappop(running)[1]
        begin = max(now, floor)
        local = tile - p.tile_base[launch]
        life = p.ns[p.ns_at[launch] + local]
        end = _end(p, launch, local, begin, life, ends, states, begin_of, wait_ns, wait_inside)
        if posts[launch]:
            end += post_ns
        ends[tile] = end
        free -= units[launch]
        heapq.heappush(running, (end, units[launch]))
    return ends


@inlined
def _end(
    p: Problem,
    launch: int,
    local: int,
    begin: float,
    life: float,
    ends: NDArray[np.float64],
    states: NDArray[np.int64],
    begin_of: NDArray[np.float64],
    wait_ns: float,
    wait_inside: bool,
) -> float:
    """Return the end of a tile that has a slot from ``begin`` on, once its parents have let it work for ``life``."""
    end = begin + life
    for link in range(p.links_at[launch], p.links_at[launch + 1]):
        relation = p.relation[link]
        which = p.set_of[p.tile_at[relation] + local]
        if which < 0:
            continue
        low = p.entry_at[relation] + p.indptr[p.set_at[relation] + which]
        high = p.entry_at[relation] + p.indptr[p.set_at[relation] + which + 1]
        base = p.tile_base[p.producer[link]]
        if wait_inside:
            for entry in range(low, high):
                ready = ends[base + p.parent[entry]] + wait_ns
                end = max(end, ready + (1.0 - p.first[entry]) * life)
        else:
            state = states[link] + which
            if np.isnan(begin_of[state]):
                ready = 0.0
                for entry in range(low, high):
                    ready = max(ready, ends[base + p.parent[entry]])
                begin_of[state] = ready + wait_ns
            end = max(end, begin_of[state] + life)
    return end
