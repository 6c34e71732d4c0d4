"""The discrete-event engine, compiled; the tests hold it to the same in plain Python
(`tests/unit/analysis/simulate/engine/plain_engine.py`).

Tiles that work stop by their clock (`tileprof.analysis.simulate.engine.clocks`), before any other event of the same
time; other events are ordered by time, then by kind, then by number
(`tileprof.analysis.simulate.engine.state.LAUNCH_OPENS` and those beside it). All events of one instant happen before
servers take tiles, and these before tiles are dispatched. A block goes to the SM with the most free block slots among
those that it fits; ties go to the lowest number. The blocks of a cluster are placed one by one, all or none.
"""

from __future__ import annotations

import numpy as np

from tileprof.analysis.bounds.by_reference import by_reference
from tileprof.analysis.bounds.compiled import apart, in_cache, inlined, internal, without_allocation
from tileprof.analysis.bounds.problem import Problem, Successors
from tileprof.analysis.heaps import pop, pop_tile, push, push_tile
from tileprof.analysis.simulate.engine.clocks import UPCOMING, Sharing, alone, clock_of, first, settle, start, stop
from tileprof.analysis.simulate.engine.needs import first_need, known_end, rest_of
from tileprof.analysis.simulate.engine.placing import free, place
from tileprof.analysis.simulate.engine.plan import FREE, GRID, INSIDE, READY, Plan
from tileprof.analysis.simulate.engine.queues import goes_on, has_ended, map_first, map_next, may_start, swap
from tileprof.analysis.simulate.engine.state import (
    ASKED,
    DECIDED,
    DECISION_ARRIVES,
    DISPATCHABLE,
    ENDED,
    ENTERED,
    EVENTS,
    FOR_LANE,
    HELD_BACK,
    KIND_SHIFT,
    KNOWN,
    LANE_FREE,
    LANES,
    LAUNCH_OPENS,
    LEFT,
    OPENED,
    PENDING,
    QUANTUM_ENDS,
    RESIDENT,
    ROWS,
    SERVER_FREE,
    SPILLED,
    TILE_KNOWS,
    UNDER_WAY,
    WAIT_IS_OVER,
    Outcome,
    Room,
    State,
    initial_state,
)

__all__ = ["Outcome", "Room", "run"]


def run(p: Problem, s: Successors, plan: Plan, room: Room, sharing: Sharing | None = None) -> Outcome:
    """Run a plan to its end or until nothing can happen any more (``ended`` is then less than the tiles)."""
    shared = sharing or alone(len(p.launch))
    z = initial_state(p, s, plan, room, shared)
    _loop(
        by_reference(p),
        by_reference(s),
        by_reference(plan),
        by_reference(room),
        by_reference(shared),
        by_reference(z),
    )
    return Outcome(
        z.begin,
        z.end,
        z.sm,
        z.open_ns,
        int(z.n[ENDED]),
        float(z.deciding[0]),
        int(z.n[SPILLED]),
        int(z.mapping.n[-1]),
        float(z.working[0]),
        float(z.launcher[1]),
    )


def is_compiled() -> bool:
    """Return whether the engine is in numba's cache; if not, the first simulation compiles it, which takes about a
    minute.
    """
    return in_cache(_loop)


@without_allocation
def _loop(p: Problem, s: Successors, plan: Plan, room: Room, sharing: Sharing, z: State) -> None:
    tiles = p.tile_base[-1]
    now = 0.0
    map_first(z.mapping, plan)
    if goes_on(z.mapping, plan):
        _next_quantum(plan, z, now)
    while True:
        if z.n[OPENED] > 0 or plan.window > 0 or plan.nodes.resident > 0:
            _enter_and_open(p, plan, z, now, tiles)
        settle(z.clocks, sharing, now)
        if not _more_now(z, now):  # tiles are dispatched when this instant's events are over
            if plan.deciding.servers > 0:
                _serve(plan, z, now)
                if _more_now(z, now):
                    continue
            if z.n[DISPATCHABLE] > 0:
                _dispatch(p, plan, room, sharing, z, now)
                if z.n[OPENED] > 0:
                    continue
                settle(z.clocks, sharing, now)
        clock = first(z.clocks)
        if z.clocks.size[clock] > 0 and not (z.n[EVENTS] > 0 and z.keys[0] < z.clocks.state[clock, UPCOMING]):
            now, item = z.clocks.state[clock, UPCOMING], z.clocks.items[clock, 0]
            stop(z.clocks, clock)
            _tile_stops(p, s, plan, room, sharing, z, now, item)
            continue
        if z.n[EVENTS] == 0:
            return
        now, item = z.keys[0], z.items[0]
        pop(z.keys, z.items, z.n[EVENTS])
        z.n[EVENTS] -= 1
        kind, number = item >> KIND_SHIFT, item & ((1 << KIND_SHIFT) - 1)
        if kind == WAIT_IS_OVER:
            _work(room, sharing, z, now, z.known_ns[number], int(np.int64(z.launch_of[number])), number)
        elif kind == QUANTUM_ENDS:
            _quantum_ends(plan, z, now)
        elif kind == LANE_FREE:
            _lane_is_free(z, now)
        elif kind == DECISION_ARRIVES:
            _decision_arrives(p, plan, z, now, number)
        elif kind == TILE_KNOWS:
            _tile_knows(p, plan, z, number)
        elif kind == LAUNCH_OPENS and _has_its_turn(plan, z, now, number):
            _launch_opens(p, plan, room, sharing, z, now, number)
        # A server that is free (SERVER_FREE) looks at the queue when this instant's events are over.


@internal
def _more_now(z: State, now: float) -> bool:
    if z.n[EVENTS] > 0 and z.keys[0] == now:
        return True
    clock = first(z.clocks)
    return bool(z.clocks.size[clock] > 0 and z.clocks.state[clock, UPCOMING] == now)


@internal
def _schedule(z: State, when: float, kind: int, number: int) -> None:
    push(z.keys, z.items, z.n[EVENTS], when, kind << KIND_SHIFT | number)
    z.n[EVENTS] += 1


@internal
def _make_ready(p: Problem, z: State, tile: int) -> None:
    i = int(np.int64(z.launch_of[tile]))  # numba compiles a version for each type
    push_tile(z.ready, z.n[DISPATCHABLE], z.first_key[i] + tile - p.tile_base[i])
    z.n[DISPATCHABLE] += 1


@apart
def _activate(p: Problem, plan: Plan, z: State, now: float, tile: int) -> None:
    """The launch is open, and the scheduler knows of the tile."""
    i = int(np.int64(z.launch_of[tile]))
    if plan.gate[i] != READY:
        _make_ready(p, z, tile)
        return
    if plan.deciding.ahead and plan.deciding.servers > 0 and not z.alone[tile]:
        _ask(z, tile)
    if z.waits[tile] == 0:
        _waits_are_over(p, plan, z, now, tile)


@apart
def _waits_are_over(p: Problem, plan: Plan, z: State, now: float, tile: int) -> None:
    undecided = plan.deciding.servers > 0 and not plan.deciding.ahead and not z.alone[tile]
    if z.known_ns[tile] <= now and not undecided:
        _make_ready(p, z, tile)
    else:
        _schedule(z, max(z.known_ns[tile], now), TILE_KNOWS, tile)


@internal
def _tile_knows(p: Problem, plan: Plan, z: State, tile: int) -> None:
    if plan.deciding.servers > 0 and not plan.deciding.ahead and not z.alone[tile]:
        _ask(z, tile)
    else:
        _make_ready(p, z, tile)


@internal
def _ask(z: State, tile: int) -> None:
    z.queue[z.n[ASKED]] = tile
    z.n[ASKED] += 1


@apart
def _serve(plan: Plan, z: State, now: float) -> None:
    """Servers that are free take tiles from the queue."""
    d = plan.deciding
    for k in range(d.servers):
        while z.n[DECIDED] < z.n[ASKED] and z.server_free[k] <= now:
            batch = min(d.batch, z.n[ASKED] - z.n[DECIDED])
            end = now + batch * d.decide_ns + d.commit_ns
            for _ in range(batch):
                _schedule(z, end + d.deliver_ns, DECISION_ARRIVES, z.queue[z.n[DECIDED]])
                z.n[DECIDED] += 1
            z.server_free[k] = end
            z.deciding[0] += end - now
            if end > now:
                _schedule(z, end, SERVER_FREE, k)


@apart
def _decision_arrives(p: Problem, plan: Plan, z: State, now: float, tile: int) -> None:
    if not plan.deciding.ahead:
        _make_ready(p, z, tile)
        return
    z.waits[tile] -= 1
    if z.waits[tile] == 0:
        _waits_are_over(p, plan, z, now, tile)


@internal
def _pass_gate(z: State, launch: int) -> None:
    z.gates[launch] -= 1
    if z.gates[launch] == 0:
        z.opened[z.n[OPENED]] = launch
        z.n[OPENED] += 1


@apart
def _enter_and_open(p: Problem, plan: Plan, z: State, now: float, tiles: int) -> None:
    while z.n[KNOWN] < tiles and z.n[RESIDENT] < plan.nodes.resident:
        t = z.n[KNOWN]
        z.n[KNOWN] += 1
        z.n[RESIDENT] += 1
        if z.noted[t] == 1:
            z.n[PENDING] -= 1
        if z.open_ns[z.launch_of[t]] < np.inf:
            _activate(p, plan, z, now, t)
    while plan.window > 0 and z.n[ENTERED] < len(z.gates) and z.n[UNDER_WAY] < plan.window:
        _pass_gate(z, z.n[ENTERED])
        z.n[ENTERED] += 1
        z.n[UNDER_WAY] += 1
    while z.n[OPENED] > 0:
        z.n[OPENED] -= 1
        i = z.opened[z.n[OPENED]]
        if may_start(z.mapping, plan, i):
            may_open = max(now, z.held_ns[i]) + plan.gap_ns[i]
            z.launcher[1] += max(0.0, plan.issue_ns[i] - may_open)
            _schedule(z, max(may_open, plan.issue_ns[i]), LAUNCH_OPENS, i)


@apart
def _has_its_turn(plan: Plan, z: State, now: float, launch: int) -> bool:
    """Return whether a launch may open now: it has a lane, and the launcher is free. Else it comes again."""
    if z.launched[launch] == 2:
        return True
    if plan.lanes > 0:
        if z.n[LANES] == plan.lanes:
            push_tile(z.for_lane, z.n[FOR_LANE], launch)
            z.n[FOR_LANE] += 1
            return False
        z.n[LANES] += 1
    z.launched[launch] = 2
    if plan.period_ns > 0:
        turn = max(now, z.launcher[0])
        z.launcher[0] = turn + plan.period_ns
        z.launcher[1] += turn - now
        if turn > now:
            _schedule(z, turn, LAUNCH_OPENS, launch)
            return False
    return True


@internal
def _lane_is_free(z: State, now: float) -> None:
    z.n[LANES] -= 1
    if z.n[FOR_LANE] > 0:
        _schedule(z, now, LAUNCH_OPENS, z.for_lane[0])
        pop_tile(z.for_lane, z.n[FOR_LANE])
        z.n[FOR_LANE] -= 1


@internal
def _unpark(z: State, launch: int) -> None:
    if launch >= 0:
        z.opened[z.n[OPENED]] = launch
        z.n[OPENED] += 1


@apart
def _quantum_ends(plan: Plan, z: State, now: float) -> None:
    nothing_else = z.n[EVENTS] == 0 and z.clocks.size.sum() == 0
    _unpark(z, swap(z.mapping, plan, nothing_else))
    if goes_on(z.mapping, plan):
        _next_quantum(plan, z, now)


@internal
def _next_quantum(plan: Plan, z: State, now: float) -> None:
    _schedule(z, now + plan.queues.quantum_ns, QUANTUM_ENDS, 0)


@internal
def _life(p: Problem, plan: Plan, launch: int, tile: int) -> float:
    life: float = p.ns[p.ns_at[launch] + tile - p.tile_base[launch]] + plan.overhead_ns[launch]
    return life


@inlined
def _dispatch(p: Problem, plan: Plan, room: Room, sharing: Sharing, z: State, now: float) -> None:
    while z.n[DISPATCHABLE] > 0:
        i = int(np.int64(z.launch_of_key[z.ready[0]]))
        if z.running[i] >= room.at_most[i] or z.is_held_back[i]:
            _park(z, i)
            continue
        t = p.tile_base[i] + z.ready[0] - z.first_key[i]
        row = z.rows[max(z.n[ROWS] - 1, 0)]
        if z.n[ROWS] == 0 or not place(z, i, room.demand[i], room.cluster[i], z.places[row]):
            if z.n[ROWS] == 0 or not plan.greedy:
                return
            z.is_held_back[i] = True
            z.held_back[z.n[HELD_BACK]] = i
            z.n[HELD_BACK] += 1
            continue
        pop_tile(z.ready, z.n[DISPATCHABLE])
        z.n[DISPATCHABLE] -= 1
        z.n[ROWS] -= 1
        z.row[t] = row
        z.sm[t] = z.places[row, 0]
        z.begin[t] = now
        z.running[i] += 1
        if plan.greedy:
            _bring_back(z, i)
        if plan.gate[i] == GRID and plan.waits_for[i] >= 0:
            if z.grid_end[plan.waits_for[i]] == np.inf:
                z.waits[t] = 1
            else:
                life = _life(p, plan, i, t)
                z.known_ns[t] = z.grid_end[plan.waits_for[i]] + plan.signal_ns[i] + (1.0 - plan.prologue[i]) * life
        if sharing.clocks > 0 and (z.waits[t] > 0 or _will_wait(p, plan, z, now, i, t)):
            _work_before_waiting(p, plan, room, sharing, z, now, i, t)
        if z.waits[t] == 0:
            _end_is_known(p, plan, room, sharing, z, now, i, t)
        if plan.trigger[i] == 0:
            _triggers(plan, z, now, i)


@internal
def _park(z: State, launch: int) -> None:
    """The first ready tile continues when another of its launch has ended."""
    push_tile(z.parked[z.first_key[launch] :], z.parked_count[launch], z.ready[0])
    z.parked_count[launch] += 1
    pop_tile(z.ready, z.n[DISPATCHABLE])
    z.n[DISPATCHABLE] -= 1


@internal
def _unparked(z: State, launch: int) -> None:
    """A tile of a launch has ended: one that was parked is ready again, and one of each launch that found no room."""
    z.running[launch] -= 1
    while z.n[HELD_BACK] > 0:
        z.n[HELD_BACK] -= 1
        other = z.held_back[z.n[HELD_BACK]]
        z.is_held_back[other] = False
        if other != launch:
            _bring_back(z, other)
    _bring_back(z, launch)


@internal
def _bring_back(z: State, launch: int) -> None:
    """The first parked tile of a launch is ready again."""
    if z.parked_count[launch] > 0:
        tiles_back = z.parked[z.first_key[launch] :]
        push_tile(z.ready, z.n[DISPATCHABLE], tiles_back[0])
        z.n[DISPATCHABLE] += 1
        pop_tile(tiles_back, z.parked_count[launch])
        z.parked_count[launch] -= 1


@internal
def _will_wait(p: Problem, plan: Plan, z: State, now: float, launch: int, tile: int) -> bool:
    """Return whether a tile that begins still has to wait for the signal of what has ended."""
    inside = plan.gate[launch] == INSIDE or plan.gate[launch] == GRID
    return bool(inside and z.known_ns[tile] > now + _life(p, plan, launch, tile))


@internal
def _triggers(plan: Plan, z: State, when: float, launch: int) -> None:
    """A tile lets those start that wait for all tiles of its launch to have initial_state."""
    z.to_start[launch] -= 1
    for k in range(plan.started_at[launch], plan.started_at[launch + 1]):
        z.held_ns[plan.started[k]] = max(z.held_ns[plan.started[k]], when)
        if z.to_start[launch] == 0:
            _pass_gate(z, plan.started[k])


@internal
def _end_is_known(
    p: Problem, plan: Plan, room: Room, sharing: Sharing, z: State, now: float, launch: int, tile: int
) -> None:
    """A running tile waits for nothing any more."""
    if sharing.clocks > 0 and z.part[tile]:
        return  # looked at again when this part of it ends
    life = _life(p, plan, launch, tile)
    end = z.begin[tile] + z.late[tile] + life
    waits = (plan.gate[launch] == INSIDE or plan.gate[launch] == GRID) and z.known_ns[tile] > end
    if waits:
        end = z.known_ns[tile]
    if plan.trigger[launch] > 0:
        _triggers(plan, z, end - (1.0 - plan.trigger[launch]) * life, launch)
    if sharing.clocks == 0:
        start(z.clocks, 0, now, end, tile)
        return
    goes_on = now
    if waits:
        rest = (1.0 - plan.prologue[launch]) * life if plan.gate[launch] == GRID else z.rest[tile]
        goes_on = max(now, end - rest)
    z.working[0] += max(0.0, life - z.done[tile] - (end - goes_on))
    if goes_on > now:  # no work and no load on others until then
        z.known_ns[tile] = end
        _schedule(z, goes_on, WAIT_IS_OVER, tile)
    else:
        _work(room, sharing, z, now, end, launch, tile)


@apart
def _work_before_waiting(
    p: Problem, plan: Plan, room: Room, sharing: Sharing, z: State, now: float, launch: int, tile: int
) -> None:
    share = plan.prologue[launch] if plan.gate[launch] == GRID else first_need(p, launch, tile)
    if share > 0:
        z.part[tile] = True
        z.done[tile] = share * _life(p, plan, launch, tile)
        z.late[tile] = now + z.done[tile]
        _work(room, sharing, z, now, z.late[tile], launch, tile)


@internal
def _work(room: Room, sharing: Sharing, z: State, now: float, until: float, launch: int, tile: int) -> None:
    _add_load(room, sharing, z, launch, tile, 1)
    z.working[0] -= now
    start(z.clocks, clock_of(sharing, launch, z.sm[tile]), now, until, tile)


@internal
def _add_load(room: Room, sharing: Sharing, z: State, launch: int, tile: int, times: int) -> None:
    if sharing.by_sm:
        for b in range(room.cluster[launch]):
            z.clocks.load[z.places[z.row[tile], b]] += times * sharing.loads[launch, 0]
    else:
        for r in range(sharing.loads.shape[1]):
            z.clocks.load[r] += times * sharing.loads[launch, r]


@apart
def _launch_opens(p: Problem, plan: Plan, room: Room, sharing: Sharing, z: State, now: float, launch: int) -> None:
    z.open_ns[launch] = now
    for t in range(p.tile_base[launch], min(p.tile_base[launch + 1], z.n[KNOWN])):
        _activate(p, plan, z, now, t)
    if z.to_end[launch] == 0:
        _launch_ends(p, plan, room, sharing, z, now, launch)


@apart
def _launch_ends(p: Problem, plan: Plan, room: Room, sharing: Sharing, z: State, now: float, launch: int) -> None:
    z.grid_end[launch] = now
    if plan.lanes > 0:
        _schedule(z, now + plan.lane_ns, LANE_FREE, launch)
    if plan.queues.mapped > 0 and has_ended(z.mapping, plan, launch):
        _unpark(z, map_next(z.mapping, plan))
    if plan.in_order:
        while z.n[LEFT] < len(z.gates) and z.grid_end[z.n[LEFT]] < np.inf:
            z.n[LEFT] += 1
            z.n[UNDER_WAY] -= 1
    else:
        z.n[UNDER_WAY] -= 1
    for k in range(plan.after_at[launch], plan.after_at[launch + 1]):
        _pass_gate(z, plan.after[k])
    for c in range(len(z.gates)):
        if plan.gate[c] == GRID and plan.waits_for[c] == launch:
            for t in range(p.tile_base[c], p.tile_base[c + 1]):
                if z.waits[t] > 0:
                    z.waits[t] = 0
                    z.known_ns[t] = now + plan.signal_ns[c] + (1.0 - plan.prologue[c]) * _life(p, plan, c, t)
                    _end_is_known(p, plan, room, sharing, z, now, c, t)


@inlined
def _tile_stops(
    p: Problem, s: Successors, plan: Plan, room: Room, sharing: Sharing, z: State, now: float, tile: int
) -> None:
    i = int(np.int64(z.launch_of[tile]))
    if sharing.clocks > 0:
        _add_load(room, sharing, z, i, tile, -1)
        z.working[0] += now
        if z.part[tile]:
            z.part[tile] = False
            z.late[tile] = max(0.0, now - z.late[tile])
            if z.waits[tile] == 0:
                _end_is_known(p, plan, room, sharing, z, now, i, tile)
            return
    z.end[tile] = now
    _tile_ends(p, s, plan, room, sharing, z, now, tile)


@internal
def _tile_ends(
    p: Problem, s: Successors, plan: Plan, room: Room, sharing: Sharing, z: State, now: float, tile: int
) -> None:
    i = int(np.int64(z.launch_of[tile]))
    z.n[ENDED] += 1
    for b in range(room.cluster[i]):
        free(z, z.places[z.row[tile], b], room.demand[i])
    z.rows[z.n[ROWS]] = z.row[tile]
    z.n[ROWS] += 1
    _unparked(z, i)
    z.to_end[i] -= 1
    if z.to_end[i] == 0:
        _launch_ends(p, plan, room, sharing, z, now, i)
    if plan.nodes.resident > 0:
        z.n[RESIDENT] -= 1
        children = _note_children(p, s, plan, z, tile, i, 0, 3)
        if children > 0:
            fits = z.n[PENDING] + children <= plan.nodes.pending
            _note_children(p, s, plan, z, tile, i, 3, 1 if fits else 2)
            z.n[PENDING if fits else SPILLED] += children
    for o in range(s.out_at[i], s.out_at[i + 1]):
        link = s.out[o]
        r, gate = p.relation[link], plan.gate[p.consumer[link]]
        at = s.parent_at[r] + tile - p.tile_base[i]
        if gate in (FREE, GRID):
            continue
        for e in range(s.parent_indptr[at], s.parent_indptr[at + 1]):
            k = s.parent_set[p.entry_at[r] + e]
            z.parents[s.state_at[link] + k] -= 1
            if z.parents[s.state_at[link] + k] == 0:
                _set_ends(p, s, plan, room, sharing, z, now, link, k)


@apart
def _note_children(p: Problem, s: Successors, plan: Plan, z: State, tile: int, launch: int, old: int, new: int) -> int:
    """Change what is noted about the children outside of a tile that has just ended; how many changed.

    Only sets of which no other parent has ended: of the others all children have been looked at.
    """
    change_count = 0
    for o in range(s.out_at[launch], s.out_at[launch + 1]):
        link = s.out[o]
        r, c = p.relation[link], p.consumer[link]
        at = s.parent_at[r] + tile - p.tile_base[launch]
        if plan.gate[c] in (FREE, GRID):
            continue
        for e in range(s.parent_indptr[at], s.parent_indptr[at + 1]):
            k = s.parent_set[p.entry_at[r] + e]
            if z.parents[s.state_at[link] + k] == p.indptr[p.set_at[r] + k + 1] - p.indptr[p.set_at[r] + k]:
                for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
                    child = p.tile_base[c] + s.member[s.member_at[r] + m]
                    if child >= z.n[KNOWN] and z.noted[child] == old:
                        z.noted[child] = new
                        change_count += 1
    return change_count


@inlined
def _set_ends(
    p: Problem, s: Successors, plan: Plan, room: Room, sharing: Sharing, z: State, now: float, link: int, k: int
) -> None:
    """All parents of one set have ended: its tiles wait for one thing less."""
    r, c = p.relation[link], p.consumer[link]
    last_life, last_known, last_rest = -1.0, 0.0, 0.0
    for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
        tile = p.tile_base[c] + s.member[s.member_at[r] + m]
        z.waits[tile] -= 1
        if plan.gate[c] == READY:
            later = plan.deciding.bypass_ns if z.alone[tile] else plan.signal_ns[c]
            if z.noted[tile] == 2:
                later += plan.nodes.spill_ns
            z.known_ns[tile] = max(z.known_ns[tile], now + later)
            if z.waits[tile] == 0 and z.open_ns[c] < np.inf and tile < z.n[KNOWN]:
                _waits_are_over(p, plan, z, now, tile)
            continue
        life = _life(p, plan, c, tile)
        if life != last_life:
            last_life, last_known = life, known_end(p, link, k, life, z.end, plan.signal_ns[c])
            if sharing.clocks > 0:
                last_rest = rest_of(p, link, k, life, z.end, plan.signal_ns[c], last_known)
        if sharing.clocks > 0 and last_known >= z.known_ns[tile]:
            z.rest[tile] = last_rest if last_known > z.known_ns[tile] else max(z.rest[tile], last_rest)
        z.known_ns[tile] = max(z.known_ns[tile], last_known)
        if z.waits[tile] == 0 and z.begin[tile] < np.inf:
            _end_is_known(p, plan, room, sharing, z, now, c, tile)
