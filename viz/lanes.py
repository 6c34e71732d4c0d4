"""Lanes of SMs over time and tile coordinates, one table a footprint, packed for the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds import MODELLED, ROOFLINE, SPREAD, Durations, Machine
from tileprof.analysis.bounds.durations import tile_durations
from tileprof.analysis.bounds.listing import alone
from tileprof.analysis.bounds.machine import product
from tileprof.analysis.timeline import Lanes, blocks_of, busy_share, dispatch, recorded
from tileprof.viz.pack import pack, packed_bytes
from tileprof.viz.uses import moved_bytes, tile_bytes

if TYPE_CHECKING:
    from tileprof.trace import Trace

TIME_BINS = 200
"""Columns of an aggregated lane."""

_TOO_MANY = 2_000_000
"""Tiles of one launch that are not even tried to pack one by one."""

_COARSE_BYTES = 20_000
"""What aggregated lanes take of a page, at most about; kept free for each table still to come."""

_NO_TABLE = -1


def lane_tables(trace: Trace, launches: pd.DataFrame, *, budget: int, notes: list[str]) -> dict[str, Any]:
    """``lanes``, ``lane_of`` (a launch's place in ``lanes``), ``grids`` and ``grid_of``; at most ``budget`` bytes.

    Launches with the same footprint and occupancy share their modelled lanes; a measured launch has its own. Where tiles are clusters,
    ``cluster`` is how many lanes each holds (see `Lanes`).
    """
    grids, grid_of = _grids(trace, launches, budget // 3, notes)
    budget -= sum(_bytes(g) for g in grids)
    source = LaneSource(trace, launches)
    first, lane_of = source.shared()
    tiles = launches["tiles"].to_numpy(np.int64)
    tables: list[dict[str, Any]] = [{}] * len(first)
    coarse = 0
    for done, at in enumerate(np.argsort(tiles[first], kind="stable").tolist(), start=1):
        launch = first[at]
        lanes = source.of(launch)
        table = _whole(lanes) if len(lanes.sm) <= _TOO_MANY else None
        if table is None or _bytes(table) > budget - (len(first) - done) * _COARSE_BYTES:
            table, coarse = _aggregated(lanes, trace.device.sms), coarse + 1
        table["source"] = source.lives.source[launch]
        budget -= _bytes(table)
        tables[at] = table if budget > 0 else {"tiles": len(lanes.sm), "slots": lanes.slots}
    if coarse:
        notes.append(f"The lanes of {coarse:,} large launches are aggregated: shares of busy slots, not single tiles.")
    if SPREAD in source.lives.source:
        notes.append(
            f"The tiles of {source.lives.source.count(SPREAD):,} launches have no times of their own: "
            "the launch's time is spread evenly over its waves."
        )
    if slower := sum(source.scale(i) < 1 for i in range(len(launches))):
        notes.append(
            f"Block times of {slower:,} launches come from a slower pass, scaled: drawn such that none outlasts its launch."
        )
    return {"lanes": tables, "lane_of": pack(lane_of), "grids": grids, "grid_of": pack(grid_of)}


def _times_by_launch(trace: Trace) -> dict[int, pd.DataFrame]:
    return {int(str(launch)): rows for launch, rows in trace.times.groupby("launch")} if len(trace.times) else {}


class LaneSource:
    """Where the tiles of each launch ran, or would run; ``lives``: how long they last."""

    def __init__(self, trace: Trace, launches: pd.DataFrame) -> None:
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
        """The same launches with durations where the trace has none, as modelled (timing says so), and with begins, one after
        another, where no launch has one.
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
        return recorded(sm, *self.spans(launch))

    def slots(self, launch: int) -> int:
        """Tiles of a launch that the GPU holds at a time."""
        return int(self._slots[launch])

    def spans(self, launch: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Begin and end of every tile, ns from the launch's begin; 0 for one that was not measured where others were."""
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
        """Between the block times of a launch as drawn and as measured, at most 1: blocks are timed in a pass of their own, slower
        than the launch, which they must not outlast.
        """
        times = self._measured.get(launch)
        last_ns = float(times["end_ns"].max()) if times is not None else 0.0
        return min(1.0, float(self._launch_ns[launch]) / last_ns) if min(last_ns, self._launch_ns[launch]) > 0 else 1.0

    def whole(self, launch: int) -> dict[str, Any]:
        """Every tile of a launch for the browser, whatever its size."""
        return _whole(self.of(launch)) | {"source": self.lives.source[launch]}

    def shared(self) -> tuple[list[int], list[int]]:
        """The first launch of each distinct timeline, and each launch's place among them.

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


def _bytes(table: dict[str, Any]) -> int:
    return sum(packed_bytes(v) for v in table.values() if isinstance(v, dict)) + 40


def _whole(lanes: Lanes) -> dict[str, Any]:
    # A tenth of a nanosecond: rounding errors stay below a pixel at any zoom, and equal tiles stay equal.
    begin, life = (np.rint(ns * 10).astype(np.int64) for ns in (lanes.begin_ns, lanes.end_ns - lanes.begin_ns))
    return {
        "tiles": len(lanes.sm),
        "slots": lanes.slots,
        "sm": pack(lanes.sm, delta=True),
        "slot": pack(lanes.slot, delta=True),
        "begin": pack(begin, delta=True),
        "life": pack(life, delta=True),
        **({"cluster": lanes.cluster} if lanes.cluster > 1 else {}),
    }


def _aggregated(lanes: Lanes, sms: int) -> dict[str, Any]:
    share = busy_share(blocks_of(lanes, sms), sms=max(sms, int(lanes.sm.max(initial=0)) + 1), bins=TIME_BINS)
    return {
        "tiles": len(lanes.sm),
        "slots": lanes.slots,
        "rows": len(share),
        "bins": TIME_BINS,
        "end": float(lanes.end_ns.max(initial=0.0)),
        "share": pack(np.rint(share * 100).astype(np.int64).ravel()),
    }


def _grids(
    trace: Trace, launches: pd.DataFrame, budget: int, notes: list[str]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Tiles of each footprint in dispatch order: coordinates ``x``, ``y``, ``z``, and bytes ``read`` and ``written``."""
    tiles = launches.groupby("footprint")["tiles"].first().sort_values(kind="stable")
    grids: list[dict[str, Any]] = []
    place: dict[int, int] = {}
    moved = tile_bytes(trace)
    for footprint in tiles.index.tolist():
        grid = _coordinates(trace, int(footprint)) | moved.get(int(footprint), {})
        if _bytes(grid) > budget:
            continue
        budget -= _bytes(grid)
        place[int(footprint)] = len(grids)
        grids.append(grid)
    if len(place) < len(tiles):
        notes.append(f"Grid coordinates of the tiles of {len(tiles) - len(place):,} large kernels are left out.")
    return grids, [place.get(int(f), _NO_TABLE) for f in launches["footprint"]]


def grid_of(trace: Trace, launch: int) -> dict[str, Any]:
    """Coordinates and bytes of the tiles of one launch, whatever its size."""
    footprint = int(trace.launches["footprint"].iloc[launch])
    rows = trace.tiles[trace.tiles["footprint"] == footprint]
    return _coordinates(trace, footprint) | moved_bytes(rows)


def _coordinates(trace: Trace, footprint: int) -> dict[str, Any]:
    block = trace.footprint(footprint).block
    return {axis: pack(block[:, i], delta=True) for i, axis in enumerate("xyz")}
