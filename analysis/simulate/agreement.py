"""Stream order as simulated against what was recorded: launch by launch, and for the time between launches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.analysis.bounds.durations import MEASURED, SPREAD
from tileprof.analysis.simulate.simulator import Schedule, covered_ns

if TYPE_CHECKING:
    from tileprof.analysis.bounds.durations import Durations
    from tileprof.analysis.dependencies.graph import TileGraph

CLOSE = 0.05
"""A launch is reproduced when its simulated time is this close to its recorded one."""

_TICK_NS = 64
"""Two steps of the clock that blocks are timed with: shorter times cannot be distinguished."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A simulation in stream order compared with the recording; times in ns.

    - ``off``: number of launches whose simulated time is further than `CLOSE` from the recorded one
    - ``worst``, ``worst_off``: the launch that is furthest from it, and its error as a share of its recorded time
    - ``by_construction``: number of launches whose tiles' durations were scaled or spread so that each launch alone
      takes its recorded time: that they are reproduced says nothing about the simulator
    - ``*_running_ns``, ``*_between_ns``: time in which a kernel ran, and in which none did, from the first begin to the
      last end; 0 if no begins were recorded
    """

    launches: int
    off: int
    worst: int
    worst_off: float
    recorded_running_ns: float
    simulated_running_ns: float
    recorded_between_ns: float
    simulated_between_ns: float
    by_construction: int = 0

    @property
    def reproduced(self) -> bool:
        """Whether every launch takes as long as recorded, to within `CLOSE`."""
        return self.off == 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"reproduced": self.reproduced}


def agreement(graph: TileGraph, stream: Schedule, recorded: Durations) -> Agreement:
    """Return how well the schedule of ``stream`` on the recorded device reproduces the recording; ``recorded``: the
    lives it was simulated from.
    """
    launches = graph.launches
    begin, took = launches["begin_ns"].to_numpy(np.float64), launches["duration_ns"].to_numpy(np.float64)
    base = graph.tile_base
    full = np.flatnonzero((np.diff(base) > 0) & (took > 0))
    if not len(full):
        return Agreement(0, 0, -1, 0.0, 0.0, 0.0, 0.0, 0.0)
    first = np.array([stream.begin_ns[base[i] : base[i + 1]].min() for i in full.tolist()])
    last = np.array([stream.end_ns[base[i] : base[i + 1]].max() for i in full.tolist()])
    off = np.abs(last - first - took[full])
    share = np.where(off > _TICK_NS, off / np.maximum(took[full], 1.0), 0.0)
    worst = int(share.argmax())
    placed = bool(begin.any())
    recorded_span = float((begin + took).max() - begin.min()) if placed else float(took.sum())
    recorded_running = covered_ns(begin, begin + took) if placed else float(took.sum())
    running = covered_ns(first, last)
    return Agreement(
        len(full), int((share > CLOSE).sum()), int(full[worst]), float(share[worst]), recorded_running, running,
        recorded_span - recorded_running, float(last.max() - first.min()) - running,
        sum(recorded.source[i] in (MEASURED, SPREAD) for i in full.tolist()),
    )  # fmt: skip
