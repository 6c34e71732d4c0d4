"""A co-pilot that sends tiles into a ring of each worker: which worker runs which tile when, as the runtime's
``tileprof.runtime.copilot`` deals them.

A thread of the CPU hears of a tile's end ``up_ns`` later. It sends each worker up to ``depth`` tiles that the worker
has not completed, workers with the fewest first; a command arrives ``down_ns`` later, and its tile stays with the
worker. Ready tiles go first, in order of ``place``. With ``ahead`` a tile whose parents have all been sent follows
where nothing is ready: its worker takes it and waits for the parents, of which it knows ``local_ns`` after their end. A
run's first commands are there at its begin.

With ``overwrite``, a ready tile overwrites a command that its worker is not known to have taken, if the tile there is
less urgent (a greater ``grade``) or waits for parents, and if that comes earlier than a new command. A worker takes
what stands in its ring ``lead_ns`` before its tile before has ended, and says so; until that is known, which takes
``up_ns``, neither tile goes elsewhere. The other one is dealt anew. A command is overwritten once, and never where
tiles have been sent ahead that wait for its tile.
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
from tileprof.arrays import F64, I64

PLACES = 16
"""Commands in a ring; a depth is at most 12, as in the runtime."""

_ARRIVES, _OVERWRITES, _ENDS, _TAKES, _CLAIMED, _HEARD = range(6)
"""Events, of a command, of a tile, or of the worker of a tile. Claims of an instant come before ends."""

_EVENTS, _READY, _AHEAD, _TURN, _COMPLETED, _REPLACED, _LATE = range(7)
"""Counters: heaps' sizes, the worker whose turn it is, ends that were heard of, commands overwritten, and too late."""


class Rings(NamedTuple):
    """Times in nanoseconds."""

    workers: int
    depth: int
    ahead: bool = True
    overwrite: bool = False
    up_ns: float = 0.0
    down_ns: float = 0.0
    decide_ns: float = 0.0
    """The CPU's time per command."""
    fetch_ns: float = 0.0
    """A worker's time per tile."""
    local_ns: float = 0.0
    lead_ns: float = 0.0
    """How long before the end of its tile a worker takes its next command."""


class Ran(NamedTuple):
    """``[tiles]``: when each tile began to be fetched and ended, and where; commands that were overwritten,
    and of these those that had been taken before; the CPU's time for decisions.
    """

    begin_ns: F64
    end_ns: F64
    worker: NDArray[np.int32]
    overwritten: int
    too_late: int
    deciding_ns: float


def run(p: Problem, s: Successors, costs: Rings, place: I64, grade: I64) -> Ran:
    """Return the compiled simulation of all tiles of a problem.

    ``place`` ``[tiles]``: a permutation, the order in which tiles are sent; ``grade`` ``[tiles]``: what may replace
    what.
    """
    tiles, slots = p.tiles, costs.workers * PLACES
    parents, waits = initial_counters(by_reference(p), by_reference(s))

    def zeros() -> I64:
        return np.zeros(costs.workers, np.int64)

    z = _State(
        np.zeros(7, np.int64), np.zeros(2), np.full(tiles, np.inf), np.full(tiles, np.inf),
        np.full(tiles, -1, np.int32), np.repeat(np.arange(len(p.launch), dtype=np.int32), np.diff(p.tile_base)),
        parents, waits, parents.copy(), waits.copy(), parents.copy(), waits.copy(),
        place, grade, np.argsort(place), np.zeros(tiles, np.bool_), np.zeros(tiles, np.bool_),
        np.zeros(tiles, np.bool_), np.zeros(tiles, np.bool_), np.zeros(tiles), np.empty(tiles + 1, np.int64),
        np.empty(tiles + 1, np.int64), np.empty(tiles + 1, np.int64), np.empty(6 * slots + 1),
        np.empty(6 * slots + 1, np.int64), np.full(slots, -1), np.full(slots, -1), np.zeros(slots, np.bool_),
        np.zeros(slots, np.bool_),
        issued=zeros(), arrived=zeros(), taken_commands=zeros(), claimed=zeros(), outstanding=zeros(), heard_at=zeros(),
        busy=np.zeros(costs.workers, np.bool_), until=np.zeros(costs.workers),
    )  # fmt: skip
    _loop(by_reference(p), by_reference(s), by_reference(costs), by_reference(z))
    return Ran(z.begin, z.end, z.worker, int(z.n[_REPLACED]), int(z.n[_LATE]), float(z.ns[1]))


class _State(NamedTuple):
    n: I64
    ns: F64
    """The CPU is busy until; its time for decisions."""
    begin: F64
    end: F64
    worker: NDArray[np.int32]
    launch_of: NDArray[np.int32]
    parents: NDArray[np.int32]
    waits: NDArray[np.int32]
    """What has not ended, as workers see it; below: as the CPU knows, and what has not been sent."""
    heard_parents: NDArray[np.int32]
    heard_waits: NDArray[np.int32]
    sent_parents: NDArray[np.int32]
    sent_waits: NDArray[np.int32]
    place: I64
    grade: I64
    tile_at: I64
    sent: NDArray[np.bool_]
    in_ready: NDArray[np.bool_]
    in_ahead: NDArray[np.bool_]
    held: NDArray[np.bool_]
    """``[tiles]`` taken by a worker, which waits for parents."""
    known_ns: F64
    """``[tiles]`` when workers know of the last parent's end."""
    ready: I64
    ahead: I64
    """Heaps of places."""
    out: I64
    """Tiles that wait for nothing since the last count."""
    keys: F64
    items: I64
    tile: I64
    """``[workers * PLACES]`` of a command, as the worker sees it."""
    other: I64
    """What was written over it and is on its way, or what was overwritten; -1."""
    waiting: NDArray[np.bool_]
    """Sent ahead."""
    was_taken: NDArray[np.bool_]
    issued: I64
    arrived: I64
    taken_commands: I64
    claimed: I64
    outstanding: I64
    heard_at: I64
    busy: NDArray[np.bool_]
    """Whether a worker takes no command yet, and until when it works on a tile."""
    until: F64


@without_allocation
def _loop(p: Problem, s: Successors, o: Rings, z: _State) -> None:
    slots = len(z.tile)
    span = max(slots, len(z.begin))
    for t in range(len(z.begin)):
        if z.heard_waits[t] == 0:
            _offer(z.ready, z.in_ready, z, _READY, t)
    _fill(p, s, o, z, True)
    while z.n[_EVENTS] > 0:
        now, kind, at = z.keys[0], z.items[0] // span, z.items[0] % span
        pop(z.keys, z.items, z.n[_EVENTS])
        z.n[_EVENTS] -= 1
        if kind == _ARRIVES:
            z.arrived[at // PLACES] += 1
            _start(p, o, z, at // PLACES, now)
        elif kind == _OVERWRITES:
            if not z.was_taken[at]:
                z.tile[at], z.other[at] = z.other[at], z.tile[at]
                z.waiting[at] = False
        elif kind == _ENDS:
            _event(z, now + o.up_ns, _HEARD, at)
            for x in range(completed(p, s, z.launch_of[at], at, z.parents, z.waits, z.out)):
                child = z.out[x]
                z.known_ns[child] = now + o.local_ns
                if z.held[child]:
                    _begin(p, o, z, child, z.known_ns[child], 0.0)
        elif kind == _TAKES:
            z.busy[z.worker[at]] = False
            _start(p, o, z, z.worker[at], now)
        else:
            z.ns[0] = max(z.ns[0], now)
            if kind == _CLAIMED:
                _settle(p, s, o, z, at)
            else:
                _hear(p, s, z, at)
                while z.n[_EVENTS] > 0 and z.keys[0] <= z.ns[0] and z.items[0] // span == _HEARD:
                    heard = z.items[0] % span
                    pop(z.keys, z.items, z.n[_EVENTS])
                    z.n[_EVENTS] -= 1
                    _hear(p, s, z, heard)
            if o.overwrite:
                _overwrite(p, s, o, z)
            _fill(p, s, o, z, False)
            if o.overwrite:
                _overwrite(p, s, o, z)


@internal
def _event(z: _State, when: float, kind: int, at: int) -> None:
    push(z.keys, z.items, z.n[_EVENTS], when, kind * max(len(z.tile), len(z.begin)) + at)
    z.n[_EVENTS] += 1


@internal
def _offer(heap: I64, inside: NDArray[np.bool_], z: _State, size: int, tile: int) -> None:
    if not inside[tile]:
        inside[tile] = True
        push_tile(heap, z.n[size], z.place[tile])
        z.n[size] += 1


@internal
def _take(heap: I64, inside: NDArray[np.bool_], z: _State, size: int) -> int:
    """Return the first tile of a heap that has not been sent and, of those ahead, whose parents have; -1 for none."""
    while z.n[size] > 0:
        tile = z.tile_at[heap[0]]
        pop_tile(heap, z.n[size])
        z.n[size] -= 1
        inside[tile] = False
        if not z.sent[tile] and (size == _READY or z.sent_waits[tile] == 0):
            return int(tile)
    return -1


@internal
def _start(p: Problem, o: Rings, z: _State, worker: int, now: float) -> None:
    """Let a worker that is free take its next command."""
    if z.busy[worker] or z.taken_commands[worker] == z.arrived[worker]:
        return
    at = worker * PLACES + z.taken_commands[worker] % PLACES
    z.taken_commands[worker] += 1
    z.was_taken[at], z.busy[worker] = True, True
    tile = z.tile[at]
    z.worker[tile] = worker
    if o.overwrite:
        _event(z, now + o.up_ns, _CLAIMED, at)
    if z.waits[tile] > 0:
        z.held[tile] = True
    else:
        ahead_ns = max(0.0, z.until[worker] - now)
        _begin(p, o, z, tile, max(now + ahead_ns, z.known_ns[tile]) if z.waiting[at] else now + ahead_ns, ahead_ns)


@internal
def _begin(p: Problem, o: Rings, z: _State, tile: int, now: float, ahead_ns: float) -> None:
    """Let a worker do a tile whose command it has taken so long ``ahead_ns`` of the end of the one before."""
    i, worker = z.launch_of[tile], z.worker[tile]
    z.begin[tile] = now
    z.end[tile] = now + max(0.0, o.fetch_ns - ahead_ns) + p.ns[p.ns_at[i] + tile - p.tile_base[i]]
    z.until[worker] = z.end[tile]
    _event(z, z.end[tile], _ENDS, tile)
    _event(z, max(now, z.end[tile] - o.lead_ns), _TAKES, tile)


@internal
def _hear(p: Problem, s: Successors, z: _State, tile: int) -> None:
    worker = z.worker[tile]
    z.outstanding[worker] -= 1
    z.n[_COMPLETED] += 1
    z.heard_at[worker] = z.n[_COMPLETED]
    for x in range(completed(p, s, z.launch_of[tile], tile, z.heard_parents, z.heard_waits, z.out)):
        if not z.sent[z.out[x]]:
            _offer(z.ready, z.in_ready, z, _READY, z.out[x])


@internal
def _fill(p: Problem, s: Successors, o: Rings, z: _State, begin: bool) -> None:
    """Workers with the least to do get a tile first, in turn."""
    for level in range(o.depth):
        first = z.n[_TURN]
        for i in range(o.workers):
            worker = (first + i) % o.workers
            if z.outstanding[worker] != level:
                continue
            tile, waits = _take(z.ready, z.in_ready, z, _READY), False
            if tile < 0 and o.ahead:
                tile, waits = _take(z.ahead, z.in_ahead, z, _AHEAD), True
            if tile < 0:
                return
            if not begin:
                _decide(o, z)
            _send(p, s, o, z, worker, tile, waits, 0.0 if begin else z.ns[0] + o.down_ns)
            z.n[_TURN] = (worker + 1) % o.workers


@internal
def _decide(o: Rings, z: _State) -> None:
    z.ns[0] += o.decide_ns
    z.ns[1] += o.decide_ns


@internal
def _send(p: Problem, s: Successors, o: Rings, z: _State, worker: int, tile: int, waits: bool, when: float) -> None:
    at = worker * PLACES + z.issued[worker] % PLACES
    z.sent[tile] = True
    z.tile[at], z.other[at], z.waiting[at], z.was_taken[at] = tile, -1, waits, False
    z.issued[worker] += 1
    z.outstanding[worker] += 1
    _event(z, when, _ARRIVES, at)
    _count_sent(p, s, o, z, tile)


@internal
def _count_sent(p: Problem, s: Successors, o: Rings, z: _State, tile: int) -> None:
    if not o.ahead:
        return
    for x in range(completed(p, s, z.launch_of[tile], tile, z.sent_parents, z.sent_waits, z.out)):
        if not z.sent[z.out[x]]:
            _offer(z.ahead, z.in_ahead, z, _AHEAD, z.out[x])


@internal
def _overwrite(p: Problem, s: Successors, o: Rings, z: _State) -> None:
    """Send ready tiles in place of others where they come earlier than in a new command."""
    while True:
        tile = _take(z.ready, z.in_ready, z, _READY)
        if tile < 0:
            return
        least = z.outstanding[0]
        for worker in range(o.workers):
            least = min(least, z.outstanding[worker])
        if not _replace(p, s, o, z, tile, least - 1 if least < o.depth else PLACES):
            _offer(z.ready, z.in_ready, z, _READY, tile)
            return


@internal
def _replace(p: Problem, s: Successors, o: Rings, z: _State, tile: int, before: int) -> bool:
    """Write a tile over the command that will be taken first of those that it should overwrite, with fewer than
    ``before`` in front of it; of equals, of the worker that has worked on its tile for longest.
    """
    best, nearest = -1, before
    for worker in range(o.workers):
        for number in range(z.claimed[worker], z.issued[worker]):
            behind, at = number - z.claimed[worker], worker * PLACES + number % PLACES
            if behind > nearest or (behind == nearest and best < 0):
                break
            if z.other[at] >= 0 or not _better(z, tile, z.tile[at]) or not _withdrawable(p, s, o, z, z.tile[at]):
                continue
            if behind < nearest or z.heard_at[worker] < z.heard_at[best // PLACES]:
                best, nearest = at, behind
            break
    if best < 0:
        return False
    z.sent[tile] = True
    z.other[best] = tile
    z.n[_REPLACED] += 1
    if o.ahead:
        _uncount(p, s, z, z.tile[best])
    _decide(o, z)
    _event(z, z.ns[0] + o.down_ns, _OVERWRITES, best)
    return True


@internal
def _better(z: _State, tile: int, other: int) -> bool:
    if z.grade[tile] != z.grade[other]:
        return bool(z.grade[tile] < z.grade[other])
    return bool(z.heard_waits[other] > 0)


@internal
def _settle(p: Problem, s: Successors, o: Rings, z: _State, at: int) -> None:
    """Deal the other tile of a command anew: it is known which one its worker took."""
    z.claimed[at // PLACES] += 1
    loser = z.other[at]
    if loser < 0:
        return
    z.other[at] = -1
    # What was overwritten waited for parents, or was less urgent.
    z.n[_LATE] += _better(z, loser, z.tile[at])
    _count_sent(p, s, o, z, z.tile[at])
    z.sent[loser] = False
    if z.heard_waits[loser] == 0:
        _offer(z.ready, z.in_ready, z, _READY, loser)
    elif o.ahead and z.sent_waits[loser] == 0:
        _offer(z.ahead, z.in_ahead, z, _AHEAD, loser)


@internal
def _uncount(p: Problem, s: Successors, z: _State, tile: int) -> None:
    """Undo `completed` of a tile that was sent."""
    i = z.launch_of[tile]
    for x in range(s.out_at[i], s.out_at[i + 1]):
        link = s.out[x]
        r, c = p.relation[link], p.consumer[link]
        at = s.parent_at[r] + tile - p.tile_base[i]
        for e in range(s.parent_indptr[at], s.parent_indptr[at + 1]):
            k = s.parent_set[p.entry_at[r] + e]
            z.sent_parents[s.state_at[link] + k] += 1
            if z.sent_parents[s.state_at[link] + k] > 1:
                continue
            for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
                z.sent_waits[p.tile_base[c] + s.member[s.member_at[r] + m]] += 1


@internal
def _withdrawable(p: Problem, s: Successors, o: Rings, z: _State, tile: int) -> bool:
    """Return whether no tile that waits for this one has been sent."""
    if not o.ahead:
        return True
    i = z.launch_of[tile]
    for x in range(s.out_at[i], s.out_at[i + 1]):
        link = s.out[x]
        r, c = p.relation[link], p.consumer[link]
        at = s.parent_at[r] + tile - p.tile_base[i]
        for e in range(s.parent_indptr[at], s.parent_indptr[at + 1]):
            k = s.parent_set[p.entry_at[r] + e]
            for m in range(s.member_indptr[p.set_at[r] + k], s.member_indptr[p.set_at[r] + k + 1]):
                if z.sent[p.tile_base[c] + s.member[s.member_at[r] + m]]:
                    return False
    return True
