"""Lanes of SMs over time and tile coordinates, one table per footprint, packed for the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tileprof.analysis.bounds import SPREAD
from tileprof.analysis.lanes import LaneSource
from tileprof.analysis.timeline import Lanes, blocks_of, busy_share
from tileprof.viz.tables.buffer_uses import moved_bytes, tile_bytes
from tileprof.viz.tables.page_values import pack, packed_bytes

if TYPE_CHECKING:
    from tileprof.trace import Recording

TIME_BINS = 200
"""Columns of an aggregated lane."""

_TOO_MANY = 2_000_000
"""Tiles of one launch that are not even tried to pack one by one."""

_COARSE_BYTES = 20_000
"""Bytes of a page that aggregated lanes take, about; kept free for each table still to come."""

_NO_TABLE = -1


def lane_tables(trace: Recording, launches: pd.DataFrame, *, budget: int, notes: list[str]) -> dict[str, Any]:
    """Return ``lanes``, ``lane_of`` (a launch's place in ``lanes``), ``grids`` and ``grid_of``; at most ``budget``
    bytes.

    Launches with the same footprint and occupancy share their modelled lanes; a measured launch has its own. Where
    tiles are clusters, ``cluster`` is how many lanes each holds (see `Lanes`).
    """
    grids, grid_of = _grids(trace, launches, budget // 3, notes)
    budget -= sum(_bytes(g) for g in grids)
    source = LaneSource(trace, launches)
    first, lane_of = source.shared()
    tiles = launches["tiles"].to_numpy(np.int64)
    tables: list[dict[str, Any]] = [{}] * len(first)
    coarse = 0
    for count, at in enumerate(np.argsort(tiles[first], kind="stable").tolist(), start=1):
        launch = first[at]
        lanes = source.of(launch)
        table = _whole(lanes) if len(lanes.sm) <= _TOO_MANY else None
        if table is None or _bytes(table) > budget - (len(first) - count) * _COARSE_BYTES:
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
            f"Block times of {slower:,} launches come from a slower pass, scaled: drawn such that none outlasts its "
            "launch."
        )
    return {"lanes": tables, "lane_of": pack(lane_of), "grids": grids, "grid_of": pack(grid_of)}


def _bytes(table: dict[str, Any]) -> int:
    return sum(packed_bytes(v) for v in table.values() if isinstance(v, dict)) + 40


def whole_lanes(source: LaneSource, launch: int) -> dict[str, Any]:
    """Return every tile of a launch for the browser, whatever its size."""
    return _whole(source.of(launch)) | {"source": source.lives.source[launch]}


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
    trace: Recording, launches: pd.DataFrame, budget: int, notes: list[str]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return tiles of each footprint in dispatch order: coordinates ``x``, ``y``, ``z``, bytes ``read`` and
    ``written``.
    """
    tiles = launches.groupby("footprint")["tiles"].first().sort_values(kind="stable")
    grids: list[dict[str, Any]] = []
    place: dict[int, int] = {}
    bytes_of = tile_bytes(trace)
    for footprint in tiles.index.tolist():
        grid = _coordinates(trace, int(footprint)) | bytes_of.get(int(footprint), {})
        if _bytes(grid) > budget:
            continue
        budget -= _bytes(grid)
        place[int(footprint)] = len(grids)
        grids.append(grid)
    if len(place) < len(tiles):
        notes.append(f"Grid coordinates of the tiles of {len(tiles) - len(place):,} large kernels are left out.")
    return grids, [place.get(int(f), _NO_TABLE) for f in launches["footprint"]]


def grid_of(trace: Recording, launch: int) -> dict[str, Any]:
    """Return coordinates and bytes of the tiles of one launch, whatever its size."""
    footprint = int(trace.launches["footprint"].iloc[launch])
    rows = trace.tiles[trace.tiles["footprint"] == footprint]
    return _coordinates(trace, footprint) | moved_bytes(rows)


def _coordinates(trace: Recording, footprint: int) -> dict[str, Any]:
    block = trace.footprint(footprint).block
    return {axis: pack(block[:, i], delta=True) for i, axis in enumerate("xyz")}
