"""Schedulers run on a tile graph, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds import Machine
from tileprof.analysis.bounds.area import lives
from tileprof.analysis.bounds.durations import tile_durations
from tileprof.analysis.bounds.machine import product
from tileprof.analysis.bounds.problem import Links, Problem, problem, successors
from tileprof.analysis.simulate.engine import Outcome, Room, run
from tileprof.analysis.simulate.plan import GRID, INSIDE, READY, Plan
from tileprof.analysis.simulate.scheduler import Rewires, Scheduler, program_of
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.graph import TileGraph


@dataclass(frozen=True, slots=True)
class Schedule:
    """One simulated run. ``tile_base`` as in the graph; times in nanoseconds.

    ``waiting_ns``: time that tiles held their slots and waited, summed; ``gap_ns``: time in which no tile ran, from 0 to the end;
    ``busy``: mean share of the GPU that running tiles took up (in slots of their launch's occupancy); ``boundary_ns``: idle share
    of the GPU, as time, while all dispatched launches have dispatched all their tiles and the next one has not begun; ``overheads_ns``: time
    of each kind of overhead, summed over launches, tiles or servers (they overlap); ``notes``: sentences; ``deadlock``: "" or a
    sentence that names who waits for whom, and then ``time_ns`` is infinite.
    """

    scheduler: str
    time_ns: float
    waiting_ns: float
    gap_ns: float
    busy: float
    deadlock: str
    begin_ns: NDArray[np.float64]
    end_ns: NDArray[np.float64]
    sm: NDArray[np.int32]
    boundary_ns: float = 0.0
    overheads_ns: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        ended = not self.deadlock
        return {
            "scheduler": self.scheduler,
            "time_ns": self.time_ns if ended else None,
            "waiting_ns": self.waiting_ns if ended else None,
            "gap_ns": self.gap_ns if ended else None,
            "busy": self.busy if ended else None,
            "boundary_ns": self.boundary_ns if ended else None,
            "overheads_ns": dict(self.overheads_ns),
            "notes": list(self.notes),
            "deadlock": self.deadlock,
        }


class Simulator:
    """Runs schedulers on one graph and machine; tile durations are those of the trace.

    Raises UserError where a block is too large for a foreign machine.
    """

    def __init__(self, graph: TileGraph, machine: Machine | None = None) -> None:
        trace = graph.trace
        self.graph = graph
        self.machine = machine or Machine(trace.device)
        self._links = Links.of(graph)
        self._durations = tile_durations(trace, Machine(trace.device).slots(trace.launches))
        self._demand = self.machine.demands(trace.launches)
        self._cluster = product(trace.launches, "cluster")
        self._units, self._pool = self.machine.units(trace.launches)

    @property
    def narrow(self) -> float:
        """Share of the launches whose tiles fill less than half of the GPU."""
        launches = self.graph.trace.launches
        tiles = launches["tiles"].to_numpy(np.int64)
        return float((2 * tiles < self.machine.slots(launches)).mean()) if len(tiles) else 0.0

    def run(self, scheduler: Scheduler, name: str = "", launches: Sequence[int] | None = None) -> Schedule:
        """Simulate one scheduler on all launches, or on some (ascending) in isolation; ``name`` is what the result is called."""
        p = problem(
            self.graph,
            self._durations,
            launches,
            reuse=not scheduler.renames,
            links=self._links,
            unknown_first=0.0,
        )
        draft = scheduler.draft(program_of(self.graph, launches, self.machine.sms))
        notes = list(draft.notes)
        if isinstance(scheduler, Rewires):
            p, said = scheduler.rewired(self.graph, p)
            notes += said
        plan = draft.plan()
        sms = self.machine.sms - draft.reserved_sms
        name = name or scheduler.name
        if sms < 1:
            raise UserError(
                f"{name} reserves {draft.reserved_sms} SMs, but the GPU has {self.machine.sms}; reserve fewer"
            )
        found = run(
            p, successors(p), plan, Room(sms, self._demand[p.launch], self._cluster[p.launch], self.machine.capacity)
        )
        if found.spilled:
            notes.append(f"{found.spilled:,} tiles were noted in memory: the buffer of pending updates was full.")
        if found.ended < p.tiles:
            stuck = deadlock(p, plan, found)
            return Schedule(
                name, np.inf, np.inf, np.inf, 0.0, stuck, found.begin_ns, found.end_ns, found.sm, notes=tuple(notes)
            )
        time_ns = float(found.end_ns.max(initial=0.0))
        held = found.end_ns - found.begin_ns
        counts = np.diff(p.tile_base)
        sums = np.add.reduceat(held, p.tile_base[:-1]) if p.tiles else np.zeros(0)
        worked = lives(p) + plan.overhead_ns * counts
        busy = float((sums * self._units[p.launch]).sum() / (self._pool * time_ns)) if time_ns > 0 else 0.0
        return Schedule(
            scheduler=name,
            time_ns=time_ns,
            waiting_ns=_difference(float(sums.sum()), float(worked.sum())),
            gap_ns=time_ns - covered_ns(found.begin_ns, found.end_ns),
            busy=busy,
            deadlock="",
            begin_ns=found.begin_ns,
            end_ns=found.end_ns,
            sm=found.sm,
            boundary_ns=boundary_ns(p.tile_base, found, self._units[p.launch], self._pool),
            overheads_ns=_overheads(plan, counts, found),
            notes=tuple(notes),
        )


def _difference(held_ns: float, worked_ns: float) -> float:
    """What is left, or nothing where that is rounding."""
    return held_ns - worked_ns if held_ns - worked_ns > 1e-9 * held_ns else 0.0


def _overheads(plan: Plan, tiles: NDArray[np.int64], found: Outcome) -> dict[str, float]:
    """By kind, those that cost anything: gaps before launches, what tiles do besides their work, decisions, SMs set apart."""
    kinds = {
        "gaps": float(plan.gap_ns.sum()),
        "host": float(plan.issue_ns.max(initial=0.0)),
        "posts": float((plan.overhead_ns * tiles).sum()),
        "decisions": found.deciding_ns,
    }
    return {kind: ns for kind, ns in kinds.items() if ns > 0}


def boundary_ns(tile_base: NDArray[np.int64], found: Outcome, units: NDArray[np.int64], pool: int) -> float:
    """See ``Schedule.boundary_ns``: the integral of the idle share between the last dispatch of the launches so far and the
    first of the next.
    """
    filled = np.flatnonzero(np.diff(tile_base))
    if not len(filled):
        return 0.0
    first = np.minimum.reduceat(found.begin_ns, tile_base[filled])
    last = np.maximum.reduceat(found.begin_ns, tile_base[filled])
    order = np.argsort(first, kind="stable")
    opens, closes = first[order][1:], np.maximum.accumulate(last[order])[:-1]
    held = np.repeat(units, np.diff(tile_base))
    when = np.concatenate([found.begin_ns, found.end_ns])
    change = np.concatenate([held, -held])
    at = np.argsort(when, kind="stable")
    when, level = when[at], np.cumsum(change[at])
    idle = np.concatenate([[0.0], np.cumsum(np.diff(when) * (1.0 - level[:-1] / pool))])
    apart = opens > closes
    return float(np.interp(opens[apart], when, idle).sum() - np.interp(closes[apart], when, idle).sum())


def covered_ns(begin_ns: NDArray[np.float64], end_ns: NDArray[np.float64]) -> float:
    """Length of the union of intervals."""
    order = np.argsort(begin_ns, kind="stable")
    begin, reach = begin_ns[order], np.maximum.accumulate(end_ns[order])
    if not len(begin):
        return 0.0
    apart = np.maximum(begin[1:] - reach[:-1], 0.0)
    return float(reach[-1] - begin[0] - apart.sum())


def deadlock(p: Problem, plan: Plan, found: Outcome) -> str:
    """Who waits for whom, for a run that did not end: from the first tile or launch that is stuck, back to one that repeats."""
    waiting = np.flatnonzero(np.isfinite(found.begin_ns) & ~np.isfinite(found.end_ns))
    if len(waiting):
        tile = int(waiting[0])
        launch = int(np.searchsorted(p.tile_base, tile, side="right")) - 1
        parent = _unfinished_parent(p, plan, found, launch, tile)
        return (
            f"launch {p.launch[launch]} tile {tile - p.tile_base[launch]} holds its slot and waits for {parent}, which cannot be "
            f"dispatched: {len(waiting):,} tiles wait inside like it"
        )
    closed = np.flatnonzero(~np.isfinite(found.open_ns))
    if len(closed):
        return f"launch {p.launch[closed[0]]} never opens: the launches that it waits for never end or start"
    first = int(np.flatnonzero(~np.isfinite(found.begin_ns))[0])
    launch = int(np.searchsorted(p.tile_base, first, side="right")) - 1
    return f"launch {p.launch[launch]} tile {first - p.tile_base[launch]} is never dispatched: it fits no SM or waits for its parents"


def _unfinished_parent(p: Problem, plan: Plan, found: Outcome, launch: int, tile: int) -> str:
    if plan.gate[launch] == GRID:
        return f"the end of launch {p.launch[plan.waits_for[launch]]}"
    assert plan.gate[launch] in (READY, INSIDE)
    for link in range(p.links_at[launch], p.links_at[launch + 1]):
        r, producer = p.relation[link], p.producer[link]
        k = p.set_of[p.tile_at[r] + tile - p.tile_base[launch]]
        if k >= 0:
            for e in range(p.indptr[p.set_at[r] + k], p.indptr[p.set_at[r] + k + 1]):
                parent = int(p.parent[p.entry_at[r] + e])
                if not np.isfinite(found.end_ns[p.tile_base[producer] + parent]):
                    return f"launch {p.launch[producer]} tile {parent}"
    raise AssertionError("a tile waits inside for nothing")
