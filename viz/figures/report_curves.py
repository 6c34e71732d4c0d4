"""Curves for a line of text: how full the GPU is over a program's time, and how soon a consumer's tiles are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.lanes import LaneSource
from tileprof.analysis.timeline import Lanes, busy_share

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

_STEPS = 200
"""Steps in which a launch's own curve is kept: a program's has fewer."""


class Curves:
    """Curves of one graph, as recorded: tiles as measured, or handed out in dispatch order; launches where they were
    recorded to begin.
    """

    def __init__(self, graph: TileGraph) -> None:
        self._graph = graph
        self._source = LaneSource(graph.recording, graph.launches)

    def busy(self, bins: int) -> NDArray[np.float64]:
        """Return ``[bins]`` share of the GPU's slots that hold a tile (as `Schedule.busy`: in slots of the tile's
        launch), from the first launch's begin to the last one's end; empty without launches.
        """
        launches = self._source.timed(self._graph.launches)
        if not len(launches):
            return np.zeros(0)
        begin, took = launches["begin_ns"].to_numpy(np.float64), launches["duration_ns"].to_numpy(np.float64)
        begin = begin - begin.min()
        edges = np.linspace(0.0, max(float((begin + took).max()), 1.0), bins + 1)
        slot_time = np.zeros(bins + 1)
        first, place = self._source.shared()
        curves = [self._use_curve(launch) for launch in first]
        for launch, at in enumerate(place):
            steps, level = curves[at]
            slot_time += np.interp(edges - begin[launch], steps, level)
        return np.clip(np.diff(slot_time) / np.diff(edges), 0.0, 1.0)

    def _use_curve(self, launch: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return times from a launch's begin, and the GPU-time in use up to each."""
        begin, end = self._source.spans(launch)
        one = np.zeros(len(end), np.int32)
        source = self._source
        share = busy_share(
            Lanes(one, one, begin, end, source.capacity), sms=1, bins=_STEPS, weight=float(source.units[launch])
        )[0]
        span = float(end.max(initial=0.0))
        return np.linspace(0.0, span, _STEPS + 1), np.concatenate(([0.0], np.cumsum(share))) * span / _STEPS

    def ready(self, producer: int, consumer: int, bins: int) -> NDArray[np.float64]:
        """Return ``[bins]`` share of the consumer's tiles whose parents in the producer have ended, at the end of each
        part of the producer's time; hazards of recycled memory aside.
        """
        ends = self._source.spans(producer)[1]
        links = self._graph.links
        rows = links[(links["producer"] == producer) & (links["consumer"] == consumer) & ~links["reuse"]]
        waits = np.zeros(int(np.diff(self._graph.tile_base)[consumer]))
        for number in rows["block"].tolist():
            block = self._graph.blocks[number]
            if len(block.parent):
                of_set = np.maximum.reduceat(ends[block.parent], block.indptr[:-1])
                some = block.set_of >= 0
                waits[some] = np.maximum(waits[some], of_set[block.set_of[some]])
        last = max(float(ends.max(initial=0.0)), 1e-9)
        ready_counts = np.searchsorted(np.sort(waits), last * np.arange(1, bins + 1) / bins * (1 + 1e-9), side="right")
        return np.asarray(ready_counts / max(len(waits), 1), dtype=np.float64)
