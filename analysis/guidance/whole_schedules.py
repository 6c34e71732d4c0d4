"""What a whole program takes as recorded, under schedules that can be had, under a list schedule, and at the bound."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from tileprof.analysis.guidance.values import ScheduleTime
from tileprof.analysis.simulate import scheduler
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.reporting.report import Report
    from tileprof.analysis.simulate import Simulator

MOST_TILES = 4_000_000
"""Longer programs are not simulated for guidance: one schedule takes about a second per million tiles."""

MOST_SPREAD = 20_000
"""Launches; placing one on streams takes 0.1 ms."""

_AT_ONCE = 2
"""Simulations that run side by side: each needs 200 bytes per tile, and most of its time no interpreter."""

APART = "graph:dependencies=1"
SPREAD = "acs-sw:events=1"

_LABELS = {
    "graph": "CUDA graph",
    APART: "graph, independent launches side by side",
    SPREAD: "launches on several streams, out of order",
    "pdl": "graph and programmatic dependent launch",
    "persistent": "one persistent kernel, tiles synchronised",
}


def in_a_graph(simulator: Simulator) -> str:
    """Programmatic dependent launch of captured kernels: the GPU issues them, not the host."""
    return f"pdl:issue_ns={simulator.machine.device.graph_issue_ns:g}"


def simulated_times(simulator: Simulator) -> dict[str, float]:
    """Return scheduler to the program's time in ns, without those that cannot be simulated; empty for very long
    programs.
    """
    launches = simulator.graph.launches
    if not len(launches) or int(launches["tiles"].sum()) > MOST_TILES:
        return {}
    names = [name for name in _LABELS if name != SPREAD or len(launches) <= MOST_SPREAD]
    simulator.prepare()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        times = list(threads.map(partial(_time, simulator), names))
    return {name: ns for name, ns in zip(names, times, strict=True) if ns is not None}


def meaningful(times: dict[str, float], report: Report) -> dict[str, float]:
    """Return those of `simulated_times` that say something of a program: none of one without recorded times, and where
    dependencies are unknown only that of launches in order.
    """
    if report.program.recorded_ns <= 0:
        return {}
    return times if report.dependencies_known else {name: ns for name, ns in times.items() if name == "graph"}


def _time(simulator: Simulator, name: str) -> float | None:
    try:
        schedule = simulator.run(scheduler(in_a_graph(simulator) if name == "pdl" else name), name)
    except UserError:  # a cluster larger than a foreign GPU, say: `simulate` tells why
        return None
    return None if schedule.deadlock else schedule.time_ns


def whole_schedules(report: Report, times: dict[str, float]) -> tuple[ScheduleTime, ...]:
    """Return recorded time first; schedules that gain over the schedule before; the list schedule; the bound last."""
    recorded, bounds = report.program.recorded_ns, report.bounds
    if recorded <= 0:
        return ()

    def against_recorded(name: str, label: str, ns: float) -> ScheduleTime:
        return ScheduleTime(name, label, ns, 1 - ns / recorded)

    rows = [against_recorded("recorded", "as recorded", recorded)]
    for name, label in _LABELS.items():
        if name in times and times[name] < 0.99 * rows[-1].time_ns:
            rows.append(against_recorded(name, label, times[name]))
    if report.dependencies_known:
        if bounds.listed_ns is not None and bounds.listed_ns < rows[-1].time_ns:
            rows.append(against_recorded("list", "list schedule, launches for free", bounds.listed_ns))
        if bounds.bound_ns <= rows[-1].time_ns:
            rows.append(against_recorded("bound", f"bound ({bounds.binding}): no schedule is faster", bounds.bound_ns))
    return tuple(rows)
