"""The discrete-event engine, compiled; `tileprof.analysis.simulate.reference` is the same in plain Python.

Events are ordered by time, then by number: ends of tiles (the tile), launches that open (tiles + launch), tiles that learn that
they are ready (tiles + launches + tile), decisions that arrive (2 tiles + launches + tile), servers that become free (3 tiles +
launches + server). All events of one instant happen before servers take tiles, and these before tiles are dispatched. A block goes to the
SM with the most free block slots among those that it fits; ties go to the lowest number. The blocks of a cluster are
placed one by one, all or none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled, internal, without_allocation
from tileprof.analysis.bounds.listing import _counters, _pop, _pop_tile, _push, _push_tile
from tileprof.analysis.bounds.problem import Problem, Successors
from tileprof.analysis.simulate.plan import FREE, GRID, INSIDE, READY, Plan

F = TypeVar("F", bound=Callable[..., object])


def _apart(function: F) -> F:
    """As `internal`, for larger functions: compiled once rather than into each caller, which halves the time to compile the loop."""
    return cast("F", njit(cache=True, nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


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
    ``[launches]``; how many tiles ended; time that servers worked; tiles that no buffer could note.
    """

    begin_ns: Floats
    end_ns: Floats
    sm: NDArray[np.int32]
    open_ns: Floats
    ended: int
    deciding_ns: float
    spilled: int


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
    alone: NDArray[np.bool_]
    """``[tiles]`` never decided about: few parents."""
    noted: NDArray[np.int8]
    """``[tiles]`` outside the nodes: 0 nothing of it is known, 1 noted, 2 spilled, 3 being looked at."""
    queue: Ints
    """Tiles that wait for a decision, in order of arrival."""
    server_free: Floats
    deciding: Floats
    """``[1]``"""


_EVENTS, _READY, _OPENED, _ROWS, _ENTERED, _UNDER_WAY, _ENDED, _BLOCKED, _FREED = range(9)
_LEFT, _KNOWN, _RESIDENT, _PENDING, _SPILLED, _ASKED, _DECIDED = range(9, 16)
_SCALARS = 16


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


@_apart
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
    return Outcome(z.begin, z.end, z.sm, z.open_ns, int(z.n[_ENDED]), float(z.deciding[0]), int(z.n[_SPILLED]))


@without_allocation
def _loop(p: Problem, s: Successors, plan: Plan, room: Room, z: _State) -> None:
    tiles, launches = p.tile_base[-1], len(p.launch)
    now = 0.0
    while True:
        _enter_and_open(p, plan, z, now, tiles)
        if not (z.n[_EVENTS] > 0 and z.keys[0] == now):  # tiles are dispatched when this instant's events are over
            _serve(plan, z, now)
            if z.n[_EVENTS] > 0 and z.keys[0] == now:
                continue
            _dispatch(p, plan, room, z, now)
            if z.n[_OPENED] > 0:
                continue
        if z.n[_EVENTS] == 0:
            return
        now, item = z.keys[0], z.items[0]
        _pop(z.keys, z.items, z.n[_EVENTS])
        z.n[_EVENTS] -= 1
        if item >= 3 * tiles + launches:
            pass  # a server is free: it looks at the queue when this instant's events are over
        elif item >= 2 * tiles + launches:
            _decision_arrives(p, plan, z, now, item - 2 * tiles - launches)
        elif item >= tiles + launches:
            _tile_knows(p, plan, z, item - tiles - launches)
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
    n = np.zeros(_SCALARS, np.int64)
    n[_KNOWN] = tiles if plan.nodes.resident == 0 else 0
    alone = _few_parents(p, plan, tiles)
    if plan.deciding.servers > 0 and plan.deciding.ahead:
        for i in range(launches):
            for t in range(p.tile_base[i], p.tile_base[i + 1]):
                if plan.gate[i] == READY and not alone[t]:
                    waits[t] += 1  # for the decision
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
        np.empty(2 * tiles + launches + 1 + plan.deciding.servers), np.empty(2 * tiles + launches + 1 + plan.deciding.servers, np.int64),
        np.empty(tiles + 1, np.int64), opened, alone, np.zeros(tiles, np.int8), np.empty(tiles + 1, np.int64),
        np.zeros(plan.deciding.servers), np.zeros(1),
    )  # fmt: skip


@internal
def _few_parents(p: Problem, plan: Plan, tiles: int) -> NDArray[np.bool_]:
    parents = np.zeros(tiles, np.int64)
    for link in range(len(p.producer)):
        r, c = p.relation[link], p.consumer[link]
        for t in range(p.tile_base[c + 1] - p.tile_base[c]):
            k = p.set_of[p.tile_at[r] + t]
            if k >= 0:
                parents[p.tile_base[c] + t] += p.indptr[p.set_at[r] + k + 1] - p.indptr[p.set_at[r] + k]
    return (parents > 0) & (parents <= plan.deciding.bypass)


@internal
def _schedule(z: _State, when: float, item: int) -> None:
    _push(z.keys, z.items, z.n[_EVENTS], when, item)
    z.n[_EVENTS] += 1


@internal
def _make_ready(p: Problem, z: _State, tile: int) -> None:
    i = z.launch_of[tile]
    _push_tile(z.ready, z.n[_READY], z.first_key[i] + tile - p.tile_base[i])
    z.n[_READY] += 1


@_apart
def _activate(p: Problem, plan: Plan, z: _State, now: float, tile: int) -> None:
    """The launch is open, and the scheduler knows of the tile."""
    i = z.launch_of[tile]
    if plan.gate[i] != READY:
        _make_ready(p, z, tile)
        return
    if plan.deciding.ahead and plan.deciding.servers > 0 and not z.alone[tile]:
        _ask(z, tile)
    if z.waits[tile] == 0:
        _waits_are_over(p, plan, z, now, tile)


@_apart
def _waits_are_over(p: Problem, plan: Plan, z: _State, now: float, tile: int) -> None:
    undecided = plan.deciding.servers > 0 and not plan.deciding.ahead and not z.alone[tile]
    if z.known[tile] <= now and not undecided:
        _make_ready(p, z, tile)
    else:
        _schedule(z, max(z.known[tile], now), len(z.begin) + len(z.gates) + tile)


@internal
def _tile_knows(p: Problem, plan: Plan, z: _State, tile: int) -> None:
    if plan.deciding.servers > 0 and not plan.deciding.ahead and not z.alone[tile]:
        _ask(z, tile)
    else:
        _make_ready(p, z, tile)


@internal
def _ask(z: _State, tile: int) -> None:
    z.queue[z.n[_ASKED]] = tile
    z.n[_ASKED] += 1


@_apart
def _serve(plan: Plan, z: _State, now: float) -> None:
    """Servers that are free take tiles from the queue."""
    d, tiles, launches = plan.deciding, len(z.begin), len(z.gates)
    for k in range(d.servers):
        while z.n[_DECIDED] < z.n[_ASKED] and z.server_free[k] <= now:
            taken = min(d.batch, z.n[_ASKED] - z.n[_DECIDED])
            done = now + taken * d.decide_ns + d.commit_ns
            for _ in range(taken):
                _schedule(z, done + d.deliver_ns, 2 * tiles + launches + z.queue[z.n[_DECIDED]])
                z.n[_DECIDED] += 1
            z.server_free[k] = done
            z.deciding[0] += done - now
            if done > now:
                _schedule(z, done, 3 * tiles + launches + k)


@_apart
def _decision_arrives(p: Problem, plan: Plan, z: _State, now: float, tile: int) -> None:
    if not plan.deciding.ahead:
        _make_ready(p, z, tile)
        return
    z.waits[tile] -= 1
    if z.waits[tile] == 0:
        _waits_are_over(p, plan, z, now, tile)


@internal
def _pass_gate(z: _State, launch: int) -> None:
    z.gates[launch] -= 1
    if z.gates[launch] == 0:
        z.opened[z.n[_OPENED]] = launch
        z.n[_OPENED] += 1


@_apart
def _enter_and_open(p: Problem, plan: Plan, z: _State, now: float, tiles: int) -> None:
    while z.n[_KNOWN] < tiles and z.n[_RESIDENT] < plan.nodes.resident:
        t = z.n[_KNOWN]
        z.n[_KNOWN] += 1
        z.n[_RESIDENT] += 1
        if z.noted[t] == 1:
            z.n[_PENDING] -= 1
        if z.open_ns[z.launch_of[t]] < np.inf:
            _activate(p, plan, z, now, t)
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


@_apart
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
                z.known[t] = z.grid_end[plan.waits_for[i]] + plan.signal_ns[i] + (1.0 - plan.prologue[i]) * life
        if z.waits[t] == 0:
            _end_is_known(p, plan, z, i, t)
        z.to_start[i] -= 1
        if z.to_start[i] == 0:
            for k in range(plan.started_at[i], plan.started_at[i + 1]):
                _pass_gate(z, plan.started[k])


@_apart
def _end_is_known(p: Problem, plan: Plan, z: _State, launch: int, tile: int) -> None:
    """A running tile waits for nothing any more."""
    z.end[tile] = z.begin[tile] + _life(p, plan, launch, tile)
    if plan.gate[launch] == INSIDE or plan.gate[launch] == GRID:
        z.end[tile] = max(z.end[tile], z.known[tile])
    _schedule(z, z.end[tile], tile)


@_apart
def _launch_opens(p: Problem, plan: Plan, z: _State, now: float, launch: int) -> None:
    z.open_ns[launch] = now
    for t in range(p.tile_base[launch], min(p.tile_base[launch + 1], z.n[_KNOWN])):
        _activate(p, plan, z, now, t)
    if z.to_end[launch] == 0:
        _launch_ends(p, plan, z, now, launch)


@_apart
def _launch_ends(p: Problem, plan: Plan, z: _State, now: float, launch: int) -> None:
    z.grid_end[launch] = now
    if plan.in_order:
        while z.n[_LEFT] < len(z.gates) and z.grid_end[z.n[_LEFT]] < np.inf:
            z.n[_LEFT] += 1
            z.n[_UNDER_WAY] -= 1
    else:
        z.n[_UNDER_WAY] -= 1
    for k in range(plan.after_at[launch], plan.after_at[launch + 1]):
        _pass_gate(z, plan.after[k])
    for c in range(len(z.gates)):
        if plan.gate[c] == GRID and plan.waits_for[c] == launch:
            for t in range(p.tile_base[c], p.tile_base[c + 1]):
                if z.waits[t] > 0:
                    z.waits[t] = 0
                    z.known[t] = now + plan.signal_ns[c] + (1.0 - plan.prologue[c]) * _life(p, plan, c, t)
                    _end_is_known(p, plan, z, c, t)


@_apart
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
    if plan.nodes.resident > 0:
        z.n[_RESIDENT] -= 1
        found = _note_children(p, s, plan, z, tile, i, 0, 3)
        if found > 0:
            fits = z.n[_PENDING] + found <= plan.nodes.pending
            _note_children(p, s, plan, z, tile, i, 3, 1 if fits else 2)
            z.n[_PENDING if fits else _SPILLED] += found
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


@_apart
def _note_children(p: Problem, s: Successors, plan: Plan, z: _State, tile: int, launch: int, old: int, new: int) -> int:
    """Change what is noted about the children outside of a tile that has just ended; how many changed.

    Only sets of which no other parent has ended: of the others all children have been looked at.
    """
    changed = 0
    for o in range(s.out_at[launch], s.out_at[launch + 1]):
        link = s.out[o]
        r, c = p.relation[link], p.consumer[link]
        at = s.parent_at[r] + tile - p.tile_base[launch]
        stop = s.parent_at[r + 1] if r + 1 < len(s.parent_at) else len(s.parent_indptr)
        if plan.gate[c] in (FREE, GRID) or at + 1 >= stop:
            continue
        for e in range(s.parent_indptr[at], s.parent_indptr[at + 1]):
            k = s.parent_set[p.entry_at[r] + e]
            if z.parents[s.state_at[link] + k] == p.indptr[p.set_at[r] + k + 1] - p.indptr[p.set_at[r] + k]:
                for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
                    child = p.tile_base[c] + s.member[s.member_at[r] + m]
                    if child >= z.n[_KNOWN] and z.noted[child] == old:
                        z.noted[child] = new
                        changed += 1
    return changed


@_apart
def _set_ends(p: Problem, s: Successors, plan: Plan, z: _State, now: float, link: int, k: int) -> None:
    """All parents of one set have ended: its tiles wait for one thing less."""
    r, c = p.relation[link], p.consumer[link]
    last_life, last_known = -1.0, 0.0
    for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
        tile = p.tile_base[c] + s.member[s.member_at[r] + m]
        z.waits[tile] -= 1
        if plan.gate[c] == READY:
            later = plan.deciding.bypass_ns if z.alone[tile] else plan.signal_ns[c]
            if z.noted[tile] == 2:
                later += plan.nodes.spill_ns
            z.known[tile] = max(z.known[tile], now + later)
            if z.waits[tile] == 0 and z.open_ns[c] < np.inf and tile < z.n[_KNOWN]:
                _waits_are_over(p, plan, z, now, tile)
            continue
        life = _life(p, plan, c, tile)
        if life != last_life:
            last_life, last_known = life, _known_end(p, link, k, life, z.end, plan.signal_ns[c])
        z.known[tile] = max(z.known[tile], last_known)
        if z.waits[tile] == 0 and z.begin[tile] < np.inf:
            _end_is_known(p, plan, z, c, tile)
