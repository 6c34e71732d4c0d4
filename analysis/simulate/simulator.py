"""Schedulers run on a tile graph, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds import Machine
from tileprof.analysis.bounds.area import launch_work
from tileprof.analysis.bounds.durations import Durations, tile_durations
from tileprof.analysis.bounds.machine import product
from tileprof.analysis.bounds.problem import Links, Problem, Successors, problem, successors
from tileprof.analysis.simulate.duration_models import RECORDED, LifeModel
from tileprof.analysis.simulate.engine.deadlock import deadlock
from tileprof.analysis.simulate.engine.event_loop import Outcome, Room, run
from tileprof.analysis.simulate.engine.plan import Draft, Plan
from tileprof.analysis.simulate.scheduler import Chooses, Program, Rewires, RunsAlone, Scheduler, program_of
from tileprof.analysis.times_and_counts import counted
from tileprof.arrays.intervals import union
from tileprof.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from tileprof.analysis.dependencies.graph import TileGraph


@dataclass(frozen=True, slots=True)
class Schedule:
    """One simulated run. ``tile_base`` as in the graph; times in nanoseconds.

    ``waiting_ns``: time that tiles held their slots and waited, summed; ``gap_ns``: time in which no tile ran, from 0
    to the end; ``busy``: mean share of the GPU that running tiles took up (in slots of their launch's occupancy);
    ``boundary_ns``: idle share of the GPU, as time, while all dispatched launches have dispatched all their tiles and
    the next one has not begun; ``overheads_ns``: time of each kind of overhead, summed over launches, tiles or servers
    (they overlap; ``slowed``: what tiles worked longer than recorded); ``notes``: sentences; ``deadlock``: "" or a
    sentence that names which tiles wait for each other, and then ``time_ns`` is infinite.
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
        finished = not self.deadlock
        return {
            "scheduler": self.scheduler,
            "time_ns": self.time_ns if finished else None,
            "waiting_ns": self.waiting_ns if finished else None,
            "gap_ns": self.gap_ns if finished else None,
            "busy": self.busy if finished else None,
            "boundary_ns": self.boundary_ns if finished else None,
            "overheads_ns": dict(self.overheads_ns),
            "notes": list(self.notes),
            "deadlock": self.deadlock,
        }


class Simulator:
    """Runs schedulers on one graph and machine; tile durations follow from those of the trace by a model (see
    `tileprof.analysis.simulate.duration_models`).

    Raises UserError where a block is too large for a foreign machine, or a cluster for one so small.
    """

    def __init__(self, graph: TileGraph, machine: Machine | None = None, lives: LifeModel = RECORDED) -> None:
        trace = graph.recording
        self.graph = graph
        self.machine = machine or Machine(trace.device)
        self.lives = lives
        self._links = Links.of(graph)
        self._whole: dict[bool, Problem] = {}
        self._successors: dict[bool, Successors] = {}
        self.recorded = tile_durations(trace, Machine(trace.device).slots(trace.launches))
        self._durations, self._sharing = lives.shared(trace, self.machine, self.recorded)
        self._recorded_ns = self.recorded.sums(trace.launches["tiles"].to_numpy(np.int64))
        self._demand = self.machine.demands(trace.launches)
        self._cluster = product(trace.launches, "cluster")
        self._at_most = _at_most(trace.launches)
        self._units, self._pool = self.machine.units(trace.launches)
        self._refuse_what_never_fits(np.arange(len(trace.launches)), self.machine.sms)

    def _refuse_what_never_fits(self, launches: NDArray[np.int64], sms: int) -> None:
        """Raises UserError where the SMs do not hold one tile of a launch."""
        if not len(launches):
            return
        resident = (self.machine.capacity // np.maximum(self._demand[launches], 1)).min(axis=1)
        demand_sms = -(-self._cluster[launches] // np.maximum(resident, 1))
        at = int(demand_sms.argmax())
        if demand_sms[at] > sms:
            raise UserError(
                f"a cluster of {self._cluster[launches[at]]} blocks of launch {launches[at]} needs {demand_sms[at]} "
                f"SMs ({resident[at]} of its blocks fit on one); the machine holds {sms}; give it more SMs"
            )

    @cached_property
    def program(self) -> Program:
        """Return what schedulers may look at, of all launches."""
        return program_of(self.graph, machine=self.machine)

    def prepare(self) -> None:
        """Make what runs on all launches share, so that several threads may run schedulers."""
        for reuse in (False, True):
            self._successors_of(self._whole_problem(self._durations, reuse=reuse))
        _ = self.program

    def _problem(self, scheduler: Scheduler, launches: Sequence[int] | None) -> Problem:
        reuse = not scheduler.renames
        lives = self.recorded if isinstance(scheduler, RunsAlone) else self._durations
        if launches is not None:
            return problem(self.graph, lives, launches, reuse=reuse, links=self._links, unknown_first=0.0)
        return self._whole_problem(lives, reuse=reuse)

    def _whole_problem(self, lives: Durations, *, reuse: bool) -> Problem:
        """Return the problem of all launches: made once with and once without hazards of recycled memory."""
        if reuse not in self._whole:
            self._whole[reuse] = problem(self.graph, lives, reuse=reuse, links=self._links, unknown_first=0.0)
        return self._whole[reuse]._replace(ns=lives.ns, ns_at=lives.begins)

    def _successors_of(self, p: Problem) -> Successors:
        """Return the successors of a problem of all launches, unless a scheduler has rewired it, made once."""
        for reuse, whole in self._whole.items():
            if all(getattr(p, name) is getattr(whole, name) for name in Problem._fields if name not in _NOT_WIRING):
                if reuse not in self._successors:
                    self._successors[reuse] = successors(whole)
                return self._successors[reuse]
        return successors(p)

    @property
    def narrow(self) -> float:
        """Share of the launches whose tiles fill less than half of the GPU."""
        launches = self.graph.launches
        tiles = launches["tiles"].to_numpy(np.int64)
        return float((2 * tiles < self.machine.slots(launches)).mean()) if len(tiles) else 0.0

    def run(self, scheduler: Scheduler, name: str = "", launches: Sequence[int] | None = None) -> Schedule:
        """Simulate one scheduler on all launches, or on some (ascending) in isolation; ``name`` is what the
        result is called.
        """
        name = name or scheduler.name
        if isinstance(scheduler, Chooses) and (choices := scheduler.choices()):
            ways = {label: self.run(way, name, launches) for label, way in choices.items()}
            fastest = min(ways, key=lambda label: ways[label].time_ns)
            return replace(
                ways[fastest], notes=(*ways[fastest].notes, f"The fastest of its variants is shown: {fastest}.")
            )
        p = self._problem(scheduler, launches)
        draft = scheduler.draft(self.program if launches is None else program_of(self.graph, launches, self.machine))
        notes = list(draft.notes)
        in_the_loop_ns = 0.0
        if isinstance(scheduler, Rewires):
            as_was = p
            p, remarks = scheduler.rewired(self.graph, p)
            in_the_loop_ns = float((launch_work(p) - launch_work(as_was)).sum())
            notes += remarks
        plan = draft.plan()
        room = self._room(name, draft, p)
        if isinstance(scheduler, RunsAlone):
            if self.lives.name != RECORDED.name:
                raise UserError(
                    f"{name} runs tiles as long as recorded, whatever runs beside them; it does not support "
                    "--durations "
                    f"{self.lives.name}"
                )
            outcome, remarks = scheduler.alone(p, room, plan)
            notes += remarks
        else:
            outcome = run(p, self._successors_of(p), plan, room, self._sharing.of(p.launch))
        if outcome.spilled:
            notes.append(f"{outcome.spilled:,} tiles were noted in memory: the buffer of pending updates was full.")
        if outcome.swaps:
            notes.append(f"{counted(outcome.swaps, 'time')} a queue gave its place in the hardware to another.")
        return self._schedule(name, p, plan, outcome, tuple(notes), in_the_loop_ns)

    def _room(self, name: str, draft: Draft, p: Problem) -> Room:
        """Return the SMs that a scheduler leaves for tiles. Raises `UserError` where a launch does not fit there."""
        sms = self.machine.sms - draft.reserved_sms
        if sms < 1:
            raise UserError(
                f"{name} reserves {draft.reserved_sms} SMs, but the GPU has {self.machine.sms}; reserve fewer"
            )
        self._refuse_what_never_fits(p.launch, sms)
        room = Room(
            sms, self._demand[p.launch], self._cluster[p.launch], self.machine.capacity, self._at_most[p.launch]
        )
        return room.of_one_kernel() if draft.one_kernel else room

    def _schedule(
        self, name: str, p: Problem, plan: Plan, outcome: Outcome, notes: tuple[str, ...], in_the_loop_ns: float
    ) -> Schedule:
        """Return where the time of a run went; ``in_the_loop_ns``: what the scheduler added to tiles' lives."""
        if outcome.ended < p.tiles:
            deadlock_text = deadlock(p, plan, outcome)
            begin, end, never = outcome.begin_ns, outcome.end_ns, np.inf
            return Schedule(name, never, never, never, 0.0, deadlock_text, begin, end, outcome.sm, notes=notes)
        time_ns = float(outcome.end_ns.max(initial=0.0))
        lives = outcome.end_ns - outcome.begin_ns
        counts = np.diff(p.tile_base)
        sums = np.add.reduceat(lives, p.tile_base[:-1]) if p.tiles else np.zeros(0)
        work_ns = float((launch_work(p) + plan.overhead_ns * counts).sum())
        working_ns = outcome.working_ns if self._sharing.clocks else work_ns
        recorded_ns = float((self._recorded_ns[p.launch] + plan.overhead_ns * counts).sum()) + in_the_loop_ns
        slowed_ns = _difference(working_ns, recorded_ns) if self._sharing.clocks else 0.0
        busy = float((sums * self._units[p.launch]).sum() / (self._pool * time_ns)) if time_ns > 0 else 0.0
        return Schedule(
            scheduler=name,
            time_ns=time_ns,
            waiting_ns=_difference(float(sums.sum()), working_ns),
            gap_ns=time_ns - covered_ns(outcome.begin_ns, outcome.end_ns),
            busy=busy,
            deadlock="",
            begin_ns=outcome.begin_ns,
            end_ns=outcome.end_ns,
            sm=outcome.sm,
            boundary_ns=boundary_ns(p.tile_base, outcome, self._units[p.launch], self._pool),
            overheads_ns=_overheads(plan, counts, outcome, in_the_loop_ns, slowed_ns),
            notes=notes,
        )


_NOT_WIRING: Final = {"ns", "ns_at", "last", "first"}
"""Fields of a problem that successors do not depend on."""


def _at_most(launches: pd.DataFrame) -> NDArray[np.int64]:
    """Return ``[launches]`` tiles that a launch runs at a time, however large the GPU: a persistent one (more tiles
    than blocks or clusters) has a grid of its own; others have as many as they have tiles.
    """
    grid = np.maximum(product(launches, "grid") // product(launches, "cluster"), 1)
    return np.asarray(np.minimum(grid, np.maximum(launches["tiles"].to_numpy(np.int64), 1)), dtype=np.int64)


def _difference(held_ns: float, worked_ns: float) -> float:
    """Return what is left, or nothing where that is rounding."""
    return held_ns - worked_ns if held_ns - worked_ns > 1e-9 * held_ns else 0.0


def _overheads(
    plan: Plan, tiles: NDArray[np.int64], outcome: Outcome, looped_ns: float, slowed_ns: float
) -> dict[str, float]:
    """Return, by kind, the overheads that cost anything: gaps before launches, what tiles do besides their work (posts,
    waits in their loops), decisions, what others beside them cost tiles.
    """
    kinds = {
        "gaps": float(plan.gap_ns.sum()),
        "launching": outcome.launching_ns,
        "posts": float((plan.overhead_ns * tiles).sum()),
        "loop waits": looped_ns,
        "decisions": outcome.deciding_ns,
        "slowed": slowed_ns,
    }
    return {kind: ns for kind, ns in kinds.items() if ns > 0}


def boundary_ns(tile_base: NDArray[np.int64], outcome: Outcome, units: NDArray[np.int64], pool: int) -> float:
    """See ``Schedule.boundary_ns``: the integral of the idle share between the last dispatch of the launches so far and
    the first of the next.
    """
    filled = np.flatnonzero(np.diff(tile_base))
    if not len(filled):
        return 0.0
    first = np.minimum.reduceat(outcome.begin_ns, tile_base[filled])
    last = np.maximum.reduceat(outcome.begin_ns, tile_base[filled])
    order = np.argsort(first, kind="stable")
    opens, closes = first[order][1:], np.maximum.accumulate(last[order])[:-1]
    weight = np.repeat(units, np.diff(tile_base))
    when = np.concatenate([outcome.begin_ns, outcome.end_ns])
    change = np.concatenate([weight, -weight])
    at = np.argsort(when, kind="stable")
    when, level = when[at], np.cumsum(change[at])
    # Kernels of which each fills an SM by another resource can fill it together to more than one.
    idle = np.concatenate([[0.0], np.cumsum(np.diff(when) * np.maximum(1.0 - level[:-1] / pool, 0.0))])
    apart = opens > closes
    return float(np.interp(opens[apart], when, idle).sum() - np.interp(closes[apart], when, idle).sum())


def covered_ns(begin_ns: NDArray[np.float64], end_ns: NDArray[np.float64]) -> float:
    """Return length of the union of intervals."""
    order = np.argsort(begin_ns, kind="stable")
    lo, hi = union(begin_ns[order], end_ns[order])
    return float((hi - lo).sum())
