"""Curves: schedulers over a range of one of their options, or over the number of SMs, on all cores."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.analysis.simulate.scheduler import close, plain_key
from tileprof.analysis.simulate.schedulers import SCHEDULERS, scheduler
from tileprof.analysis.simulate.simulator import Simulator
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.graph import TileGraph

SMS = "sms"
MOST_POINTS = 10_000

_WORTH_S = 4.0
"""Processes take about two seconds to begin; below twice that one process does all."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """``key`` (an option with its unit, or "sms") at ``values``."""

    key: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a simulation comes from, for processes that must make it themselves; ``device`` "" and ``sms`` 0: as recorded."""

    trace: str
    device: str = ""
    sms: int = 0

    def simulator(self, sms: int = 0, graph: TileGraph | None = None) -> Simulator:
        from tileprof.analysis.bounds import machine_of  # noqa: PLC0415 - processes import this module before they need it
        from tileprof.analysis.graph import build_graph  # noqa: PLC0415 - likewise
        from tileprof.devices import get  # noqa: PLC0415 - likewise
        from tileprof.trace import load  # noqa: PLC0415 - likewise

        graph = graph or build_graph(load(self.trace))
        return Simulator(graph, machine_of(graph.trace, get(self.device) if self.device else None, sms or self.sms))


def sweep_of(text: str) -> Sweep:
    """``key=a:b:n``: n values from a to b, both included; for keys of time a and b may carry a unit (``gap=0us:5us:11``).

    Raises UserError for anything else.
    """
    key, equals, rest = text.partition("=")
    parts = rest.split(":")
    if not equals or len(parts) != 3 or not parts[2].isdecimal() or not 2 <= int(parts[2]) <= MOST_POINTS:
        raise UserError(f"--sweep {text!r} is not key=a:b:n, such as gap_ns=0:5000:11 (n from 2 to {MOST_POINTS:,})")
    known = {name for chosen in SCHEDULERS.values() for name in chosen.options()} | {SMS}
    pairs = [plain_key("--sweep", key, part, known) for part in parts[:2]]
    key = pairs[0][0]
    if key not in known:
        raise UserError(f"--sweep: no scheduler has an option {key!r}{close(key, known)}")
    try:
        low, high = (float(value) for _, value in pairs)
    except ValueError:
        raise UserError(f"--sweep {text!r}: {rest!r} does not begin with two numbers") from None
    return Sweep(key, tuple(np.linspace(low, high, int(parts[2])).tolist()))


def curve(
    source: Source, texts: Sequence[str], sweep: Sweep, graph: TileGraph | None = None
) -> list[list[dict[str, Any]]]:
    """``[values][schedulers]`` schedules as `Schedule.to_json` gives them, in order; ``texts`` as `scheduler` takes them.

    Values of whole-number options are rounded. Raises UserError where a scheduler has no such option, or a value is out of its range.
    """
    jobs = [_job(texts, sweep.key, value) for value in sweep.values]
    simulator = source.simulator(graph=graph)
    begin = time.monotonic()
    done = [_point(simulator, source, jobs[0])]
    left, cores = jobs[1:], os.cpu_count() or 1
    if cores == 1 or (time.monotonic() - begin) * len(left) < _WORTH_S:
        return done + [_point(simulator, source, job) for job in left]
    with ProcessPoolExecutor(min(cores, len(left)), get_context("spawn"), _begin, (source,)) as pool:
        return done + list(pool.map(_in_process, left))


_Job = tuple[tuple[str, ...], int]
"""Schedulers, and SMs (0: as the source says)."""


def _job(texts: Sequence[str], key: str, value: float) -> _Job:
    if key == SMS:
        if value < 1:
            raise UserError(f"--sweep sms: a GPU has at least one SM, not {value:g}")
        return tuple(texts), round(value)
    return tuple(with_value(text, key, value) for text in texts), 0


def with_value(text: str, key: str, value: float) -> str:
    """A scheduler's text with one more option. Raises UserError where it has no such option or the value is out of range."""
    kinds = scheduler(text).options()
    shown = str(round(value)) if kinds.get(key) else repr(value)
    asked = f"{text}{',' if ':' in text else ':'}{key}={shown}"
    scheduler(asked)
    return asked


def _point(simulator: Simulator, source: Source, job: _Job) -> list[dict[str, Any]]:
    texts, sms = job
    chosen = source.simulator(sms, simulator.graph) if sms else simulator
    return [chosen.run(scheduler(text), text).to_json() for text in texts]


_here: dict[Source, Simulator] = {}
"""In a process of the pool: its simulator."""


def _begin(source: Source) -> None:
    _here[source] = source.simulator()


def _in_process(job: _Job) -> list[dict[str, Any]]:
    ((source, simulator),) = _here.items()
    return _point(simulator, source, job)
