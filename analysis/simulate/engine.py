"""The discrete-event engine, compiled; `tileprof.analysis.simulate.reference` is the same in plain Python.

Events are ordered by time, then by number: ends of tiles (the tile), launches that open (tiles + launch), tiles that learn that
they are ready (tiles + launches + tile). All events of one instant happen before tiles are dispatched. A block goes to the
SM with the most free block slots among those that it fits; ties go to the lowest number. The blocks of a cluster are
placed one by one, all or none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled, internal, without_allocation
from tileprof.analysis.bounds.listing import _counters, _pop, _pop_tile, _push, _push_tile
from tileprof.analysis.bounds.problem import Problem, Successors
from tileprof.analysis.simulate.plan import FREE, GRID, INSIDE, READY, Plan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Room(NamedTuple):
    """What tiles need and SMs have."""

    sms: int
    demand: Ints
    """``[launches, resources]`` of a block."""
    cluster: Ints
    """``[launches]`` blocks a tile."""
    capacity: Ints
    """``[resources]`` of an SM."""


class Outcome(NamedTuple):
    """``[tiles]`` begin, end (ns; infinite where never) and SM of the first block (-1 where never); ``open_ns``
    ``[launches]``; how many tiles ended.
    """

    begin_ns: Floats
    end_ns: Floats
    sm: NDArray[np.int32]
    open_ns: Floats
    ended: int


@internal
def _take(free: Ints, sm: int, demand: Ints, times: int) -> None:
    for r in range(len(demand)):
        free[sm, r] -= times * demand[r]


@internal
def _best_sm(free: Ints, demand: Ints) -> int:
    best, most = -1, -1
    for sm in range(free.shape[0]):
        if free[sm, 0] > most:
            fits = True
            for r in range(free.shape[1]):
                if free[sm, r] < demand[r]:
                    fits = False
                    break
            if fits:
                best, most = sm, free[sm, 0]
    return best


@internal
def _place_anywhere(free: Ints, demand: Ints, blocks: int, places: NDArray[np.int32]) -> bool:
    """Take room for all blocks of a tile, or none."""
    for b in range(blocks):
        sm = _best_sm(free, demand)
        if sm < 0:
            for done in range(b):
                _take(free, places[done], demand, -1)
            return False
        _take(free, sm, demand, 1)
        places[b] = sm
    return True


@internal
def _known_end(p: Problem, link: int, s: int, life: float, ends: Floats, signal_ns: float) -> float:
    """How early a consumer's tile can end for the parents in one set, all of which have ended."""
    r = p.relation[link]
    base = p.tile_base[p.producer[link]]
    earliest = 0.0
    for e in range(p.indptr[p.set_at[r] + s], p.indptr[p.set_at[r] + s + 1]):
        entry = p.entry_at[r] + e
        written = ends[base + p.parent[entry]] + signal_ns
        earliest = max(earliest, written + (1.0 - p.first[entry]) * life)
    return earliest


class _State(NamedTuple):
    """Everything that changes; scalars live in ``n`` (by the constants below) so that compiled functions can change them."""

    n: Ints
    begin: Floats
    end: Floats
    known: Floats
    """Earliest end of a tile by what it waited for (INSIDE, GRID); when it knows that it is ready (READY)."""
    sm: NDArray[np.int32]
    parents: NDArray[np.int32]
    waits: NDArray[np.int32]
    launch_of: NDArray[np.int32]
    first_key: Ints
    """``[launches]`` key of a launch's first tile; keys are numbers of tiles in order of rank."""
    launch_of_key: NDArray[np.int32]
    open_ns: Floats
    grid_end: Floats
    gates: Ints
    to_end: Ints
    to_start: Ints
    free: Ints
    """``[SMs, resources]``"""
    freed: Ints
    """SMs freed since a tile of the launch ``n[_BLOCKED]`` found no room, a stack."""
    row: NDArray[np.int32]
    """``[tiles]`` row of ``places`` while a tile runs."""
    places: NDArray[np.int32]
    rows: Ints
    """Free rows of ``places``, a stack."""
    keys: Floats
    items: Ints
    ready: Ints
    opened: Ints
    """Launches whose last gate has opened, a stack."""


_EVENTS, _READY, _OPENED, _ROWS, _ENTERED, _UNDER_WAY, _ENDED, _BLOCKED, _FREED = range(9)


@internal
def _best_freed_sm(z: _State, demand: Ints) -> int:
    """As `_best_sm`, when no SM but those freed since can have room."""
    best, most = -1, -1
    for k in range(z.n[_FREED]):
        sm = z.freed[k]
        if z.free[sm, 0] > most or (z.free[sm, 0] == most and sm < best):
            fits = True
            for r in range(len(demand)):
                fits = fits and z.free[sm, r] >= demand[r]
            if fits:
                best, most = sm, z.free[sm, 0]
    return best


@internal
def _place(z: _State, launch: int, demand: Ints, blocks: int, places: NDArray[np.int32]) -> bool:
    """Take room for all blocks of a tile, or none.

    After a launch's tile has found no room, the next attempt looks at the SMs that were freed since only.
    """
    if blocks == 1 and z.n[_BLOCKED] == launch:
        sm = _best_freed_sm(z, demand)
        if sm < 0:
            z.n[_FREED] = 0
            return False
        _take(z.free, sm, demand, 1)
        places[0] = sm
        return True
    if _place_anywhere(z.free, demand, blocks, places):
        return True
    z.n[_BLOCKED], z.n[_FREED] = launch, 0
    return False


@internal
def _free(z: _State, sm: int, demand: Ints) -> None:
    _take(z.free, sm, demand, -1)
    if z.n[_FREED] == len(z.freed):
        z.n[_BLOCKED], z.n[_FREED] = -1, 0  # too many to remember: look at all
    z.freed[z.n[_FREED]] = sm
    z.n[_FREED] += 1


def run(p: Problem, s: Successors, plan: Plan, room: Room) -> Outcome:
    """Run a plan to its end or until nothing can happen any more (``ended`` is then less than the tiles)."""
    z = _begun(p, s, plan, room)
    _loop(p, s, plan, room, z)
    return Outcome(z.begin, z.end, z.sm, z.open_ns, int(z.n[_ENDED]))


@without_allocation
def _loop(p: Problem, s: Successors, plan: Plan, room: Room, z: _State) -> None:
    tiles, launches = p.tile_base[-1], len(p.launch)
    now = 0.0
    while True:
        _enter_and_open(plan, z, now, tiles)
        if not (z.n[_EVENTS] > 0 and z.keys[0] == now):  # tiles are dispatched when this instant's events are over
            _dispatch(p, plan, room, z, now)
            if z.n[_OPENED] > 0:
                continue
        if z.n[_EVENTS] == 0:
            return
        now, item = z.keys[0], z.items[0]
        _pop(z.keys, z.items, z.n[_EVENTS])
        z.n[_EVENTS] -= 1
        if item >= tiles + launches:
            _make_ready(p, z, item - tiles - launches)
        elif item >= tiles:
            _launch_opens(p, plan, z, now, item - tiles)
        else:
            _tile_ends(p, s, plan, room, z, now, item)


@compiled
def _begun(p: Problem, s: Successors, plan: Plan, room: Room) -> _State:
    launches, tiles = len(p.launch), p.tile_base[-1]
    parents, waits = _counters(p, s)
    count = p.tile_base[1:] - p.tile_base[:-1]
    launch_of, launch_of_key = np.empty(tiles, np.int32), np.empty(tiles, np.int32)
    first_key = np.zeros(launches, np.int64)
    gates = np.zeros(launches, np.int64)
    key = 0
    for i in np.argsort(plan.rank):
        first_key[i] = key
        launch_of_key[key : key + count[i]] = i
        key += count[i]
    for i in range(launches):
        launch_of[p.tile_base[i] : p.tile_base[i + 1]] = i
        if plan.gate[i] in (FREE, GRID):
            waits[p.tile_base[i] : p.tile_base[i + 1]] = 0
        gates[i] = 1 if plan.window > 0 else 0
    for i in plan.after:
        gates[i] += 1
    for i in plan.started:
        gates[i] += 1
    free = np.empty((room.sms, len(room.capacity)), np.int64)
    free[:] = room.capacity
    running = room.sms * room.capacity[0]
    widest = max(1, room.cluster.max()) if launches else 1
    opened = np.empty(launches + 1, np.int64)
    n = np.zeros(9, np.int64)
    n[_BLOCKED] = -1
    n[_ROWS] = running
    for i in range(launches):
        if gates[i] == 0:
            opened[n[_OPENED]] = i
            n[_OPENED] += 1
    return _State(
        n, np.full(tiles, np.inf), np.full(tiles, np.inf), np.zeros(tiles), np.full(tiles, -1, np.int32), parents, waits,
        launch_of, first_key, launch_of_key, np.full(launches, np.inf), np.full(launches, np.inf), gates, count.copy(),
        count.copy(), free, np.empty(4 * room.sms, np.int64), np.full(tiles, -1, np.int32), np.empty((running, widest), np.int32), np.arange(running),
        np.empty(2 * tiles + launches + 1), np.empty(2 * tiles + launches + 1, np.int64), np.empty(tiles + 1, np.int64), opened,
    )  # fmt: skip


@internal
def _schedule(z: _State, when: float, item: int) -> None:
    _push(z.keys, z.items, z.n[_EVENTS], when, item)
    z.n[_EVENTS] += 1


@internal
def _make_ready(p: Problem, z: _State, tile: int) -> None:
    i = z.launch_of[tile]
    _push_tile(z.ready, z.n[_READY], z.first_key[i] + tile - p.tile_base[i])
    z.n[_READY] += 1


@internal
def _pass_gate(z: _State, launch: int) -> None:
    z.gates[launch] -= 1
    if z.gates[launch] == 0:
        z.opened[z.n[_OPENED]] = launch
        z.n[_OPENED] += 1


@internal
def _enter_and_open(plan: Plan, z: _State, now: float, tiles: int) -> None:
    while plan.window > 0 and z.n[_ENTERED] < len(z.gates) and z.n[_UNDER_WAY] < plan.window:
        _pass_gate(z, z.n[_ENTERED])
        z.n[_ENTERED] += 1
        z.n[_UNDER_WAY] += 1
    while z.n[_OPENED] > 0:
        z.n[_OPENED] -= 1
        i = z.opened[z.n[_OPENED]]
        _schedule(z, max(now + plan.gap_ns[i], plan.issue_ns[i]), tiles + i)


@internal
def _life(p: Problem, plan: Plan, launch: int, tile: int) -> float:
    life: float = p.ns[p.ns_at[launch] + tile - p.tile_base[launch]] + plan.overhead_ns[launch]
    return life


@internal
def _dispatch(p: Problem, plan: Plan, room: Room, z: _State, now: float) -> None:
    while z.n[_READY] > 0:
        i = z.launch_of_key[z.ready[0]]
        t = p.tile_base[i] + z.ready[0] - z.first_key[i]
        row = z.rows[max(z.n[_ROWS] - 1, 0)]
        if z.n[_ROWS] == 0 or not _place(z, i, room.demand[i], room.cluster[i], z.places[row]):
            return
        _pop_tile(z.ready, z.n[_READY])
        z.n[_READY] -= 1
        z.n[_ROWS] -= 1
        z.row[t] = row
        z.sm[t] = z.places[row, 0]
        z.begin[t] = now
        if plan.gate[i] == GRID and plan.waits_for[i] >= 0:
            if z.grid_end[plan.waits_for[i]] == np.inf:
                z.waits[t] = 1
            else:
                life = _life(p, plan, i, t)
                z.known[t] = z.grid_end[plan.waits_for[i]] + plan.signal_ns + (1.0 - plan.prologue[i]) * life
        if z.waits[t] == 0:
            _end_is_known(p, plan, z, i, t)
        z.to_start[i] -= 1
        if z.to_start[i] == 0:
            for k in range(plan.started_at[i], plan.started_at[i + 1]):
                _pass_gate(z, plan.started[k])


@internal
def _end_is_known(p: Problem, plan: Plan, z: _State, launch: int, tile: int) -> None:
    """A running tile waits for nothing any more."""
    z.end[tile] = z.begin[tile] + _life(p, plan, launch, tile)
    if plan.gate[launch] == INSIDE or plan.gate[launch] == GRID:
        z.end[tile] = max(z.end[tile], z.known[tile])
    _schedule(z, z.end[tile], tile)


@internal
def _launch_opens(p: Problem, plan: Plan, z: _State, now: float, launch: int) -> None:
    z.open_ns[launch] = now
    tiles, launches = len(z.begin), len(z.gates)
    for t in range(p.tile_base[launch], p.tile_base[launch + 1]):
        if plan.gate[launch] != READY or (z.waits[t] == 0 and z.known[t] <= now):
            _make_ready(p, z, t)
        elif z.waits[t] == 0:
            _schedule(z, z.known[t], tiles + launches + t)
    if z.to_end[launch] == 0:
        _launch_ends(p, plan, z, now, launch)


@internal
def _launch_ends(p: Problem, plan: Plan, z: _State, now: float, launch: int) -> None:
    z.grid_end[launch] = now
    z.n[_UNDER_WAY] -= 1
    for k in range(plan.after_at[launch], plan.after_at[launch + 1]):
        _pass_gate(z, plan.after[k])
    for c in range(len(z.gates)):
        if plan.gate[c] == GRID and plan.waits_for[c] == launch:
            for t in range(p.tile_base[c], p.tile_base[c + 1]):
                if z.waits[t] > 0:
                    z.waits[t] = 0
                    z.known[t] = now + plan.signal_ns + (1.0 - plan.prologue[c]) * _life(p, plan, c, t)
                    _end_is_known(p, plan, z, c, t)


@internal
def _tile_ends(p: Problem, s: Successors, plan: Plan, room: Room, z: _State, now: float, tile: int) -> None:
    i = z.launch_of[tile]
    z.n[_ENDED] += 1
    for b in range(room.cluster[i]):
        _free(z, z.places[z.row[tile], b], room.demand[i])
    z.rows[z.n[_ROWS]] = z.row[tile]
    z.n[_ROWS] += 1
    z.to_end[i] -= 1
    if z.to_end[i] == 0:
        _launch_ends(p, plan, z, now, i)
    for o in range(s.out_at[i], s.out_at[i + 1]):
        link = s.out[o]
        r, gate = p.relation[link], plan.gate[p.consumer[link]]
        at = s.parent_at[r] + tile - p.tile_base[i]
        stop = s.parent_at[r + 1] if r + 1 < len(s.parent_at) else len(s.parent_indptr)
        if gate in (FREE, GRID) or at + 1 >= stop:
            continue
        for e in range(s.parent_indptr[at], s.parent_indptr[at + 1]):
            k = s.parent_set[p.entry_at[r] + e]
            z.parents[s.state_at[link] + k] -= 1
            if z.parents[s.state_at[link] + k] == 0:
                _set_ends(p, s, plan, z, now, link, k)


@internal
def _set_ends(p: Problem, s: Successors, plan: Plan, z: _State, now: float, link: int, k: int) -> None:
    """All parents of one set have ended: its tiles wait for one thing less."""
    r, c = p.relation[link], p.consumer[link]
    last_life, last_known = -1.0, 0.0
    for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
        tile = p.tile_base[c] + s.member[s.member_at[r] + m]
        z.waits[tile] -= 1
        if plan.gate[c] == READY:
            z.known[tile] = max(z.known[tile], now + plan.signal_ns)
            if z.waits[tile] == 0 and z.open_ns[c] < np.inf:
                _schedule(z, z.known[tile], len(z.begin) + len(z.gates) + tile)
            continue
        life = _life(p, plan, c, tile)
        if life != last_life:
            last_life, last_known = life, _known_end(p, link, k, life, z.end, plan.signal_ns)
        z.known[tile] = max(z.known[tile], last_known)
        if z.waits[tile] == 0 and z.begin[tile] < np.inf:
            _end_is_known(p, plan, z, c, tile)
