"""The arrays that the compiled engine works on, and their contents before anything happens."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.by_reference import by_reference
from tileprof.analysis.bounds.list_schedule import initial_counters
from tileprof.analysis.bounds.machine import RESOURCES
from tileprof.analysis.bounds.problem import Problem, Successors
from tileprof.analysis.simulate.engine.clocks import RATE, UPCOMING, Clocks, Sharing
from tileprof.analysis.simulate.engine.plan import FREE, GRID, READY, Plan
from tileprof.analysis.simulate.engine.queues import Mapping, unmapped
from tileprof.arrays import F64, I64


class Room(NamedTuple):
    """Resources that tiles need and SMs have."""

    sms: int
    demand: I64
    """``[launches, resources]`` of a block."""
    cluster: I64
    """``[launches]`` blocks per tile."""
    capacity: I64
    """``[resources]`` of an SM."""
    at_most: I64
    """``[launches]`` tiles at a time: the grid of a persistent launch."""

    def of_one_kernel(self) -> Room:
        """Return the room where all launches are tasks of one persistent kernel.

        A kernel has one configuration: as few workers per SM as blocks reside of the launch of which fewest do, each
        with as many threads as the largest block. A worker runs as many tiles of fewer threads side by side as its
        threads hold, on an SM no more than reside of their launch, and a tile that is a cluster takes a worker for each
        of its blocks.
        """
        if not len(self.demand):
            return self
        resident = (self.capacity // np.maximum(self.demand, 1)).min(axis=1)
        workers = max(int(resident.min()), 1)
        threads = np.maximum(self.demand[:, RESOURCES.index("threads")], 1)
        beside = np.maximum(np.minimum(threads.max() // threads, resident // workers), 1)
        return self._replace(demand=np.maximum(self.capacity // (workers * beside[:, None]), 1))


class Outcome(NamedTuple):
    """``[tiles]`` begin, end (ns; infinite where never) and SM of the first block (-1 where never); ``open_ns``
    ``[launches]``; how many tiles ended; time that servers worked; tiles that no buffer could note; changes of the
    queues mapped; time that tiles worked, summed, where tiles share something (else 0); time that launches waited for
    the host or the launcher, summed.
    """

    begin_ns: F64
    end_ns: F64
    sm: NDArray[np.int32]
    open_ns: F64
    ended: int
    deciding_ns: float
    spilled: int
    swaps: int = 0
    working_ns: float = 0.0
    launching_ns: float = 0.0


class State(NamedTuple):
    """Everything that changes; scalars live in ``n`` (by the constants below) so that compiled functions can change
    them.
    """

    n: I64
    begin: F64
    end: F64
    known_ns: F64
    """Earliest end of a tile by what it waited for (INSIDE, GRID); when it knows that it is ready (READY)."""
    sm: NDArray[np.int32]
    parents: NDArray[np.int32]
    waits: NDArray[np.int32]
    launch_of: NDArray[np.int32]
    first_key: I64
    """``[launches]`` key of a launch's first tile; keys are numbers of tiles in order of rank."""
    launch_of_key: NDArray[np.int32]
    open_ns: F64
    grid_end: F64
    gates: I64
    to_end: I64
    to_start: I64
    held_ns: F64
    """``[launches]`` not before: the latest trigger of tiles of a launch that is waited for."""
    free: I64
    """``[SMs, resources]``"""
    freed: I64
    """SMs freed since a tile of the launch ``n[BLOCKED]`` found no room, a stack."""
    row: NDArray[np.int32]
    """``[tiles]`` row of ``places`` while a tile runs."""
    places: NDArray[np.int32]
    rows: I64
    """Free rows of ``places``, a stack."""
    keys: F64
    items: I64
    ready: I64
    opened: I64
    """Launches whose last gate has opened, a stack."""
    alone: NDArray[np.bool_]
    """``[tiles]`` never decided about: few parents."""
    noted: NDArray[np.int8]
    """``[tiles]`` outside the nodes: 0 nothing of it is known, 1 noted, 2 spilled, 3 being looked at."""
    queue: I64
    """Tiles that wait for a decision, in order of arrival."""
    server_free: F64
    deciding: F64
    """``[1]``"""
    working: F64
    """``[1]``"""
    mapping: Mapping
    clocks: Clocks
    part: NDArray[np.bool_]
    """``[tiles]`` works up to its first wait only."""
    late: F64
    """``[tiles]`` how much longer that part took than at rate 1; while it runs, when it would end at rate 1."""
    done: F64
    """``[tiles]`` work in that part."""
    rest: F64
    """``[tiles]`` of INSIDE launches: work after the wait that ``known_ns`` counts from."""
    running: I64
    """``[launches]`` tiles that run."""
    parked: I64
    """Keys of ready tiles beyond their launch's ``at_most``: a heap of each launch's, from its first key on."""
    parked_count: I64
    held_back: I64
    """Launches of which a tile found no room since one was freed, where the plan is greedy: a stack."""
    is_held_back: NDArray[np.bool_]
    launched: NDArray[np.int8]
    """``[launches]`` 0: still to be launched, 1: waits for a lane, 2: has a lane and its turn."""
    for_lane: I64
    """Launches that wait for a lane: a heap."""
    launcher: F64
    """``[2]`` when the launcher is free, and how long launches waited for it or for the host."""


LAUNCH_OPENS, TILE_KNOWS, DECISION_ARRIVES, SERVER_FREE, LANE_FREE, QUANTUM_ENDS, WAIT_IS_OVER = range(7)
"""Kinds of events, in the order in which those of one instant happen; those of one kind happen by number."""

KIND_SHIFT: Final = 48
"""An event is ``kind << KIND_SHIFT | number``: of a launch, a tile or a server."""

EVENTS, DISPATCHABLE, OPENED, ROWS, ENTERED, UNDER_WAY, ENDED, BLOCKED, FREED = range(9)
LEFT, KNOWN, RESIDENT, PENDING, SPILLED, ASKED, DECIDED = range(9, 16)
LANES, FOR_LANE, HELD_BACK = range(16, 19)
SCALARS = 19


def initial_state(p: Problem, s: Successors, plan: Plan, room: Room, sharing: Sharing) -> State:
    """Return the state in which nothing has happened. Plain NumPy: as a compiled function it took a quarter of the
    engine's compile time.
    """
    launches, tiles = len(p.launch), int(p.tile_base[-1])
    parents, waits = initial_counters(by_reference(p), by_reference(s))
    count = np.diff(p.tile_base)
    order = np.argsort(plan.rank)
    launch_of = np.repeat(np.arange(launches, dtype=np.int32), count)
    launch_of_key = np.repeat(order.astype(np.int32), count[order])
    first_key = np.zeros(launches, np.int64)
    first_key[order] = np.cumsum(count[order]) - count[order]
    waits[np.isin(plan.gate, (FREE, GRID))[launch_of]] = 0
    gates = np.full(launches, 1 if plan.window > 0 else 0, np.int64)
    for sources in (plan.after, plan.started):
        gates += np.bincount(sources, minlength=launches)
    free = np.tile(room.capacity, (room.sms, 1))
    running = min(room.sms * int(room.capacity[0]), tiles)
    widest = max(1, int(room.cluster.max())) if launches else 1
    alone = _few_parents(p, plan, tiles)
    if plan.deciding.servers > 0 and plan.deciding.ahead:
        waits[(plan.gate == READY)[launch_of] & ~alone] += 1  # for the decision
    n = np.zeros(SCALARS, np.int64)
    n[KNOWN] = tiles if plan.nodes.resident == 0 else 0
    n[BLOCKED] = -1
    n[ROWS] = running
    opened = np.empty(launches + 1, np.int64)
    at_once = np.flatnonzero(gates == 0)
    opened[: len(at_once)] = at_once
    n[OPENED] = len(at_once)
    a_clock = min(running, int(room.capacity[0])) if sharing.by_sm and _by_slots(room) else running
    clocks = _stopped_clocks(max(1, sharing.clocks), a_clock, room.sms if sharing.by_sm else sharing.loads.shape[1])
    parts = tiles if sharing.clocks > 0 else 0
    events = 2 * tiles + 2 * launches + 2 + plan.deciding.servers
    return State(
        n, np.full(tiles, np.inf), np.full(tiles, np.inf), np.zeros(tiles), np.full(tiles, -1, np.int32), parents,
        waits,
        launch_of, first_key, launch_of_key, np.full(launches, np.inf), np.full(launches, np.inf), gates, count.copy(),
        count.copy(), np.zeros(launches), free, np.empty(4 * room.sms, np.int64), np.full(tiles, -1, np.int32),
        np.empty((running, widest), np.int32), np.arange(running),
        np.empty(events), np.empty(events, np.int64),
        np.empty(tiles + 1, np.int64), opened, alone, np.zeros(tiles, np.int8), np.empty(tiles + 1, np.int64),
        np.zeros(plan.deciding.servers), np.zeros(1), np.zeros(1), unmapped(plan), clocks, np.zeros(parts, np.bool_),
        np.zeros(tiles),
        np.zeros(parts), np.zeros(parts), np.zeros(launches, np.int64), np.empty(tiles + 1, np.int64),
        np.zeros(launches, np.int64),
        np.empty(launches + 1, np.int64), np.zeros(launches, np.bool_), np.zeros(launches, np.int8),
        np.empty(launches + 1, np.int64),
        np.zeros(2),
    )  # fmt: skip


def _by_slots(room: Room) -> bool:
    """Return whether an SM holds no more blocks than it has of its first resource."""
    return bool(np.minimum(room.demand[:, 0], 1).all())


def _stopped_clocks(count: int, running: int, loads: int) -> Clocks:
    keys, items = np.empty((count, running + 1)), np.empty((count, running + 1), np.int64)
    state = np.zeros((count, 4))
    state[:, RATE] = 1.0
    state[:, UPCOMING] = np.inf
    return Clocks(keys, items, np.zeros(count, np.int64), state, np.zeros(loads, np.int64))


def _few_parents(p: Problem, plan: Plan, tiles: int) -> NDArray[np.bool_]:
    parents = np.zeros(tiles, np.int64)
    if plan.deciding.bypass > 0:
        for relation, consumer in zip(p.relation.tolist(), p.consumer.tolist(), strict=True):
            first, end = int(p.tile_base[consumer]), int(p.tile_base[consumer + 1])
            at, sets = int(p.tile_at[relation]), int(p.set_at[relation])
            chosen = p.set_of[at : at + end - first].astype(np.int64)
            with_parents = np.flatnonzero(chosen >= 0)
            rows = sets + chosen[with_parents]
            parents[first + with_parents] += p.indptr[rows + 1] - p.indptr[rows]
    return (parents > 0) & (parents <= plan.deciding.bypass)
