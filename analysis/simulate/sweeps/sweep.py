"""Curves: schedulers over a range of one of their options, or over the number of SMs, on all cores or on a Dask
cluster; and fleets of traces.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.analysis.simulate.duration_models import life_model
from tileprof.analysis.simulate.scheduler import close, plain_key
from tileprof.analysis.simulate.schedulers import SCHEDULERS, scheduler
from tileprof.analysis.simulate.simulator import Simulator
from tileprof.analysis.simulate.sweeps.dask_cluster import on_dask
from tileprof.analysis.simulate.sweeps.workers import in_processes
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph

SMS = "sms"
MOST_POINTS = 10_000
MOST_SMS = 100_000
"""Most SMs of a GPU that one may ask for; the largest there are have some hundreds."""

_WORTH_S = 4.0
"""Processes take about two seconds to begin; below twice that one process does all."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """``key`` (an option with its unit, or "sms") at ``values``."""

    key: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a simulation, for processes that must make it themselves; ``device`` "" and ``sms`` 0: as recorded.
    ``durations`` as `life_model` takes them.
    """

    trace: str
    device: str = ""
    sms: int = 0
    durations: str = "recorded"

    def simulator(self, sms: int = 0, graph: TileGraph | None = None) -> Simulator:
        from tileprof.analysis.bounds import machine_of  # noqa: PLC0415 - processes import this module before they need it
        from tileprof.analysis.dependencies.graph import build_graph  # noqa: PLC0415 - as above
        from tileprof.devices import get  # noqa: PLC0415 - as above
        from tileprof.trace import load  # noqa: PLC0415 - as above

        graph = graph or build_graph(load(self.trace))
        machine = machine_of(graph.recording, get(self.device) if self.device else None, sms or self.sms)
        return Simulator(graph, machine, life_model(self.durations))


def sweep_of(text: str) -> Sweep:
    """Parse ``key=a:b:n``: n values from a to b, both included; for keys of time a and b may carry a unit
    (``gap=0us:5us:11``). Values of whole-number options are rounded, and each is there once.

    Raises UserError for anything else.
    """
    key, equals, rest = text.partition("=")
    parts = rest.split(":")
    if not equals or len(parts) != 3 or not parts[2].isdecimal() or not 2 <= int(parts[2]) <= MOST_POINTS:
        raise UserError(f"--sweep {text!r} is not key=a:b:n, such as gap_ns=0:5000:11 (n from 2 to {MOST_POINTS:,})")
    option_types = {
        name: whole for scheduler_class in SCHEDULERS.values() for name, whole in scheduler_class.options().items()
    } | {SMS: True}
    pairs = [plain_key("--sweep", key, part, option_types) for part in parts[:2]]
    key = pairs[0][0]
    if key not in option_types:
        raise UserError(f"--sweep: no scheduler has an option {key!r}{close(key, option_types)}")
    try:
        low, high = (float(value) for _, value in pairs)
    except ValueError:
        raise UserError(f"--sweep {text!r}: {rest!r} does not begin with two numbers") from None
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
        raise UserError(f"--sweep {text!r}: {rest!r} does not begin with two finite numbers")
    values = np.linspace(low, high, int(parts[2])).tolist()
    if key == SMS:
        _check_sms(low, high)
    return Sweep(key, tuple(dict.fromkeys(map(round, values) if option_types[key] else values)))


def _check_sms(*counts: float) -> None:
    for sms in counts:
        if not 1 <= sms <= MOST_SMS:
            raise UserError(f"--sweep sms: a GPU has from 1 to {MOST_SMS:,} SMs, not {sms:g}")


Point = list[dict[str, Any]]
"""Schedules as `Schedule.to_json` gives them, in order of the schedulers; with None for its figures, and the reason as
``refused``, where one cannot run.
"""


def fleet(
    sources: Sequence[Source], texts: Sequence[str], sweep: Sweep | None = None, dask: str | None = None
) -> list[list[Point]]:
    """Return ``[sources][values]`` points: the `curve` of every source (one point each without a sweep), ``texts`` as
    `scheduler` takes them.

    ``dask`` is the address of a Dask scheduler, "" for one on this machine, None for none: then processes of this one
    share the work. On Dask each pair of source and value is a job of its own, and traces must lie under the same path
    everywhere. Raises UserError as `curve` and `on_dask` do, and where nothing of it can run.
    """
    curves = _fleet(sources, texts, sweep, dask)
    _check_any([point for points in curves for point in points])
    return curves


def _fleet(sources: Sequence[Source], texts: Sequence[str], sweep: Sweep | None, dask: str | None) -> list[list[Point]]:
    jobs = [(tuple(texts), 0)] if sweep is None else [_job(texts, sweep.key, value) for value in sweep.values]
    if dask is not None:
        results = iter(on_dask(dask, _anywhere, [(source, job) for source in sources for job in jobs]))
        return [[next(results) for _ in jobs] for _ in sources]
    if len(sources) == 1:
        return [_points(sources[0], jobs, None)]
    cores = os.cpu_count() or 1
    if cores == 1:
        return [_points(source, jobs, None) for source in sources]
    return in_processes(min(cores, len(sources)), _whole, [(source, jobs) for source in sources])


def curve(source: Source, texts: Sequence[str], sweep: Sweep, graph: TileGraph | None = None) -> list[Point]:
    """Return ``[values]`` points of one source, on all cores.

    Values of whole-number options are rounded. Raises UserError where a scheduler has no such option, a value is out of
    its range, or nothing can run at any value.
    """
    points = _points(source, [_job(texts, sweep.key, value) for value in sweep.values], graph)
    _check_any(points)
    return points


def _check_any(points: Sequence[Point]) -> None:
    refusals = [schedule.get("refused") for point in points for schedule in point]
    if refusals and all(refusals):
        raise UserError(str(refusals[0]))


def _points(source: Source, jobs: Sequence[_Job], graph: TileGraph | None) -> list[Point]:
    simulator = source.simulator(graph=graph)
    begin = time.monotonic()
    points = [_point(simulator, source, jobs[0])]
    rest, cores = jobs[1:], os.cpu_count() or 1
    if cores == 1 or (time.monotonic() - begin) * len(rest) < _WORTH_S:
        return points + [_point(simulator, source, job) for job in rest]
    return points + in_processes(min(cores, len(rest)), _in_process, rest, _begin, (source,))


_Job = tuple[tuple[str, ...], int]
"""Schedulers, and SMs (0: as the source says)."""


def _job(texts: Sequence[str], key: str, value: float) -> _Job:
    if key == SMS:
        _check_sms(value)
        return tuple(texts), round(value)
    return tuple(with_value(text, key, value) for text in texts), 0


def with_value(text: str, key: str, value: float) -> str:
    """Return a scheduler's text with an option instead of the one that it may have. Raises UserError where it has no
    such option or the value is out of range.
    """
    kinds = scheduler(text).options()
    value_text = str(round(value)) if kinds.get(key) else repr(value)
    rest = without(text, key)
    spec = f"{rest}{',' if ':' in rest else ':'}{key}={value_text}"
    scheduler(spec)
    return spec


def without(text: str, key: str) -> str:
    """Return a scheduler's text without an option, however its unit is written."""
    name, _, options = text.partition(":")
    others = [
        part for part in options.split(",") if part and part.partition("=")[0] not in (key, key.removesuffix("_ns"))
    ]
    return f"{name}:{','.join(others)}" if others else name


def _point(simulator: Simulator, source: Source, job: _Job) -> Point:
    texts, sms = job
    try:
        point_simulator = source.simulator(sms, simulator.graph) if sms else simulator
    except UserError as refused:  # a launch does not fit on such a GPU
        return [_refusal(text, refused) for text in texts]
    return [_ran(point_simulator, text) for text in texts]


def _ran(simulator: Simulator, text: str) -> dict[str, Any]:
    try:
        return simulator.run(scheduler(text), text).to_json()
    except UserError as refused:
        return _refusal(text, refused)


def _refusal(text: str, refused: UserError) -> dict[str, Any]:
    figures = dict.fromkeys(("time_ns", "waiting_ns", "gap_ns", "busy", "boundary_ns"))
    return {"scheduler": text, **figures, "overheads_ns": {}, "notes": [], "deadlock": "", "refused": str(refused)}


_here: dict[Source, Simulator] = {}
"""The simulators of a process of the pool or of a worker, of which the last is kept."""


def _begin(source: Source) -> None:
    _here[source] = source.simulator()


def _whole(task: tuple[Source, Sequence[_Job]]) -> list[Point]:
    source, jobs = task
    simulator = source.simulator()
    return [_point(simulator, source, job) for job in jobs]


def _anywhere(task: tuple[Source, _Job]) -> Point:
    source, job = task
    if source not in _here:
        simulator = source.simulator()
        _here.clear()
        _here[source] = simulator
    return _point(_here[source], source, job)


def _in_process(job: _Job) -> Point:
    ((source, simulator),) = _here.items()
    return _point(simulator, source, job)
