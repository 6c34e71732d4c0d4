"""Every bound of some launches beside what list scheduling achieves, with what each number assumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.area import head_and_tail, launch_areas
from tileprof.analysis.bounds.assumptions import ANY, OF_LIVES
from tileprof.analysis.bounds.durations import ROOFLINE, Durations, tile_durations
from tileprof.analysis.bounds.list_schedule import list_schedule
from tileprof.analysis.bounds.machine import RESOURCES, Machine
from tileprof.analysis.bounds.paths import paths
from tileprof.analysis.bounds.problem import Links, Problem, problem
from tileprof.analysis.bounds.rates import compute_ns
from tileprof.analysis.bounds.traffic import Traffic
from tileprof.analysis.waves import launch_waves

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph

MOST_LISTED_TILES: Final = 100_000_000
"""Longest program that is list-scheduled whole: half a minute and 4 GB."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on the time of some launches, and schedules that were found, in nanoseconds.

    ``ns`` maps each bound's name (see `ASSUMPTIONS`) to its time; ``resources_ns`` splits the area. ``listed_ns`` and
    ``listed_reuse_ns`` are list schedules without and with hazards of recycled memory; None where the program is too
    long. ``claimed`` names the bounds of which the largest is *the* bound: `ANY`, or `OF_LIVES` where lives were given.
    """

    recorded_ns: float
    ns: dict[str, float]
    resources_ns: dict[str, float]
    dram_bytes: int
    listed_ns: float | None
    listed_reuse_ns: float | None
    claimed: tuple[str, ...] = ANY

    def completed(self, recorded_ns: float, dram_ns: float, dram_bytes: int) -> Bounds:
        """Return the same with the recorded time and the traffic of the launches."""
        return replace(self, recorded_ns=recorded_ns, ns=self.ns | {"DRAM": dram_ns}, dram_bytes=dram_bytes)

    @property
    def binding(self) -> str:
        """The name of the largest bound that holds for any schedule."""
        return max(self.claimed, key=lambda name: self.ns[name])

    @property
    def bound_ns(self) -> float:
        """No schedule is faster, under the assumptions of `binding`."""
        return self.ns[self.binding]

    @property
    def ready_ns(self) -> float:
        """No ready-gated schedule is faster."""
        return max(self.bound_ns, self.ns["ready-gated path"], self.ns["head and tail"])

    @property
    def gain(self) -> float:
        """Largest share of the recorded time that any schedule could save, 0 to 1."""
        return share_saved(self.recorded_ns, self.bound_ns)

    @property
    def achievable_gain(self) -> float | None:
        """Share of the recorded time that the list schedule saves; None where there is none."""
        return None if self.listed_ns is None else share_saved(self.recorded_ns, self.listed_ns)

    def to_json(self) -> dict[str, Any]:
        return {
            "recorded_ns": self.recorded_ns,
            "bounds_ns": dict(self.ns),
            "area_by_resource_ns": dict(self.resources_ns),
            "compulsory_dram_bytes": self.dram_bytes,
            "bound_ns": self.bound_ns,
            "binding": self.binding,
            "ready_gated_bound_ns": self.ready_ns,
            "gain": self.gain,
            "list_schedule_ns": self.listed_ns,
            "list_schedule_with_reuse_ns": self.listed_reuse_ns,
            "achievable_gain": self.achievable_gain,
        }


def share_saved(recorded_ns: float, then_ns: float) -> float:
    """Return ``(recorded - then) / recorded``, never negative: a bound above the record says nothing can be saved."""
    return max(0.0, (recorded_ns - then_ns) / recorded_ns) if recorded_ns > 0 else 0.0


class Bounder:
    """Bounds of any launches of one graph on one machine; what they share is computed once."""

    def __init__(self, graph: TileGraph, machine: Machine | None = None, lives: Durations | None = None) -> None:
        """``lives``: the shortest that tiles may have in a simulation, whose durations need not be those of the trace;
        then only bounds that follow from lives are claimed (`OF_LIVES`).
        """
        self.graph = graph
        self._lives = lives
        self.machine = machine or Machine(graph.device)
        launches = graph.launches
        self.shares: NDArray[np.float64] = self.machine.shares(launches)
        needs = self.shares.reshape(len(launches), self.shares.shape[1] * self.shares.shape[2])
        self.demand: NDArray[np.int64] = np.unique(needs, axis=0, return_inverse=True)[1].ravel()
        self.slots: NDArray[np.int64] = self.machine.slots(launches)
        self.units, self.capacity = self.machine.units(launches)
        self._compute_ns = compute_ns(graph.recording, self.machine.device)
        self._traffic = Traffic(graph.recording)
        self._links = Links.of(graph)

    @cached_property
    def durations(self) -> Durations:
        """Tile durations, as they were on the recorded device, whatever the machine, unless given."""
        trace = self.graph.recording
        if self._lives is not None:
            return self._lives
        return tile_durations(trace, Machine(trace.device).slots(trace.launches))

    @cached_property
    def replayed(self) -> bool:
        """Return whether the machine is another one than the recorded: launch times are then replayed, not recorded."""
        return self.machine != Machine(self.graph.device)

    @cached_property
    def launch_ns(self) -> NDArray[np.float64]:
        """``[launches]`` duration of each launch: recorded, or on another machine, its tiles in dispatch order on its
        slots.
        """
        launches = self.graph.launches
        recorded = launches["duration_ns"].to_numpy(np.float64)
        if not self.replayed and ROOFLINE not in self.durations.source:
            return recorded
        alone_ns = launch_waves(launches, self.slots, self.durations)["alone_ns"].to_numpy(np.float64)
        return alone_ns if self.replayed else np.where(recorded > 0, recorded, alone_ns)

    def of(self, recorded_ns: float, launches: Sequence[int] | None = None) -> Bounds:
        """Return bounds of some launches in isolation (None: of the program)."""
        bounds = self.renamed(launches)
        launch_numbers = (
            np.arange(len(self.graph.launches)) if launches is None else np.asarray(sorted(launches), np.int64)
        )
        listed_reuse = bounds.listed_ns
        if listed_reuse is not None and self._links.between(launch_numbers).reuse.any():
            listed_reuse = self._listed_ns(problem(self.graph, self.durations, launches, reuse=True, links=self._links))
        return replace(bounds, listed_reuse_ns=listed_reuse).completed(recorded_ns, *self.dram(launch_numbers.tolist()))

    def renamed(self, launches: Sequence[int] | None = None) -> Bounds:
        """Return those of `of` that follow from tiles and their dependencies alone, without hazards of recycled memory:
        the rest is 0.
        """
        p = problem(self.graph, self.durations, launches, reuse=False, links=self._links)
        areas = launch_areas(p, self.shares[p.launch], self.machine.sms)
        longest = paths(p)
        resources = dict(zip(RESOURCES, areas.sum(axis=0).max(axis=1).tolist(), strict=True))
        listed = self._listed_ns(p) if p.tiles <= MOST_LISTED_TILES else None
        return Bounds(
            recorded_ns=0.0,
            ns={
                "area": max(resources.values()),
                "wait-inside path": longest.wait_inside_ns,
                "compute": float(self._compute_ns[p.launch].sum()),
                "DRAM": 0.0,
                "ready-gated path": longest.ready_ns,
                "head and tail": head_and_tail(areas, longest.head_ns, longest.tail_ns),
                "host issue": max(len(p.launch) - 1, 0) * self.machine.device.graph_issue_ns,
            },
            resources_ns=resources,
            dram_bytes=0,
            listed_ns=listed,
            listed_reuse_ns=listed,
            claimed=ANY if self._lives is None else OF_LIVES,
        )

    def _listed_ns(self, p: Problem) -> float:
        return float(list_schedule(p, self.units[p.launch], self.capacity).max(initial=0.0))

    def dram(self, launches: Sequence[int]) -> tuple[float, int]:
        """Return least time on the DRAM interface, ns, and bytes that must cross it."""
        device = self.machine.device
        read, write_bytes = self._traffic.compulsory(launches)
        dram_bytes = max(0, read - device.l2_bytes) + max(0, write_bytes - device.l2_bytes)
        return dram_bytes / device.dram_bytes_per_s * 1e9, read + write_bytes
