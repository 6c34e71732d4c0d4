"""Lanes on which the tiles of a trace's launches ran, or would run: measured lanes, and modelled ones where nothing was
measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds import MODELLED, ROOFLINE, Durations, Machine
from tileprof.analysis.bounds.durations import tile_durations
from tileprof.analysis.bounds.list_schedule import alone
from tileprof.analysis.bounds.machine import product
from tileprof.analysis.timeline import Lanes, dispatch, recorded_lanes

if TYPE_CHECKING:
    from tileprof.trace import Recording


class LaneSource:
    """Lanes on which the tiles of each launch ran, or would run; ``lives``: how long they last."""

    def __init__(self, trace: Recording, launches: pd.DataFrame) -> None:
        self._sms = trace.device.sms
        self._measured = _times_by_launch(trace)
        machine = Machine(trace.device)
        self._occupancy = machine.blocks(launches)
        self._cluster = product(launches, "cluster")
        self._tiles = launches["tiles"].to_numpy(np.int64)
        self._slots = machine.slots(launches)
        self.units, self.capacity = machine.units(launches)
        self.lives: Durations = tile_durations(trace, machine.slots(trace.launches))
        self._launch_ns = launches["duration_ns"].to_numpy(np.float64)

    def timed(self, launches: pd.DataFrame) -> pd.DataFrame:
        """Return the same launches with durations where the trace has none, as modelled (timing says so), and with
        begins, one after another, where no launch has one.
        """
        unknown = np.flatnonzero([word == ROOFLINE for word in self.lives.source[: len(launches)]])
        took = launches["duration_ns"].to_numpy(np.int64, copy=True)
        took[unknown] = [int(self.spans(i)[1].max(initial=0.0)) for i in unknown.tolist()]
        timing = launches["timing"].astype(str).to_numpy(dtype=object, copy=True)
        timing[unknown] = MODELLED
        begin = launches["begin_ns"].to_numpy(np.int64)
        begin = begin if begin.any() else np.cumsum(took) - took
        return launches.assign(begin_ns=begin, duration_ns=took, timing=timing)

    def of(self, launch: int) -> Lanes:
        """Return lanes of a launch's tiles, tile t in row t (but see `placed`)."""
        times = self._measured.get(launch)
        if times is None:
            return dispatch(
                self.lives.of(launch, int(self._tiles[launch])),
                sms=self._sms,
                blocks_per_sm=int(self._occupancy[launch]),
                cluster=int(self._cluster[launch]),
                most=self.slots(launch),
            )
        sm = np.zeros(int(self._tiles[launch]), np.int64)
        sm[times["tile"].to_numpy()] = times["sm"]
        return recorded_lanes(sm, *self.spans(launch))

    def placed(self, launch: int) -> NDArray[np.bool_]:
        """Return ``[tiles]`` whether a tile has a place: not where others were measured and it was not."""
        times = self._measured.get(launch)
        has_place = np.full(int(self._tiles[launch]), times is None)
        if times is not None:
            has_place[times["tile"].to_numpy()] = True
        return has_place

    def slots(self, launch: int) -> int:
        """Return tiles of a launch that the GPU holds at a time."""
        return int(self._slots[launch])

    def spans(self, launch: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Begin and end of every tile in ns from the launch's begin; 0 for one not measured where others were."""
        lives = self.lives.of(launch, int(self._tiles[launch]))
        times = self._measured.get(launch)
        if times is None:
            ends = alone(lives, self.slots(launch))
            return ends - lives, ends
        # Tiles without a time of their own stay in the table, so that tile t is row t: they begin and end at 0.
        begin, end = np.zeros(len(lives)), np.zeros(len(lives))
        begin[times["tile"].to_numpy()], end[times["tile"].to_numpy()] = times["begin_ns"], times["end_ns"]
        scale = self.scale(launch)
        return begin * scale, end * scale

    def scale(self, launch: int) -> float:
        """Return the factor from the block times of a launch as measured to those drawn, at most 1: blocks are timed in
        a pass of their own, slower than the launch, which they must not outlast.
        """
        times = self._measured.get(launch)
        last_ns = float(times["end_ns"].max()) if times is not None else 0.0
        return min(1.0, float(self._launch_ns[launch]) / last_ns) if min(last_ns, self._launch_ns[launch]) > 0 else 1.0

    def shared(self) -> tuple[list[int], list[int]]:
        """Return the first launch of each distinct timeline, and each launch's place among them.

        Launches that share tile durations and occupancy share their lanes; measured ones have durations of their own.
        """
        place: dict[tuple[int, ...], int] = {}
        first: list[int] = []
        lane_of: list[int] = []
        for launch in range(len(self._tiles)):
            shape = (self._tiles, self._occupancy, self._cluster, self._slots)
            key = (int(self.lives.begins[launch]), *(int(column[launch]) for column in shape))
            if key not in place:
                place[key] = len(first)
                first.append(launch)
            lane_of.append(place[key])
        return first, lane_of


def _times_by_launch(trace: Recording) -> dict[int, pd.DataFrame]:
    return {int(str(launch)): rows for launch, rows in trace.times.groupby("launch")} if len(trace.times) else {}
