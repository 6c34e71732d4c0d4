"""Turns the entries of a launch into what it touched: boxes at absolute addresses, with their modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.intervals import grouped_union
from tileprof.record.cuda.footprints import bind, runs
from tileprof.record.cuda.footprints.lifetimes import Lifetimes
from tileprof.record.cuda.footprints.runs import Runs, Strided
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.tiles import Geometry
from tileprof.record.cuda.tensor_maps import unreported_stores
from tileprof.record.cuda.tensor_maps.items import Items, Walk
from tileprof.record.cuda.tensor_maps.loads import Loads
from tileprof.trace import ATOMIC, READ, WRITE


def touched(entries: raw.Entries, granule: int) -> I64:
    """Return addresses of which one lies in every buffer of 512 bytes and more that a launch touches."""
    kind = raw.kinds(entries)
    accesses, bulk, maps = (entries[kind == k] for k in (raw.ACCESS, raw.RANGE, raw.MAP))
    bits = np.bitwise_or.reduce(accesses["payload"][:, :3], axis=1).astype(np.int64)
    window = raw.low(accesses) * 32 * granule
    first, last = bits & -bits, bits | bits >> 1
    for shift in (2, 4, 8, 16):
        last |= last >> shift
    addresses = [window + np.log2(np.maximum(b, 1)).astype(np.int64) * granule for b in (first, last - (last >> 1))]
    # What may be a map begins with its address.
    heads = maps[(raw.low(maps) % 64 == 0) & (maps["block"] != raw.MAP_NAME)]["payload"].astype(np.int64)
    start = raw.low(bulk)
    return np.concatenate([*addresses, start, start + bulk["payload"][:, 0] - 1, heads[:, 0] | heads[:, 1] << 32])


def plain(entries: raw.Entries, geometry: Geometry, granule: int, lifetimes: Lifetimes) -> list[tuple[int, Strided]]:
    """Return loads, stores, atomics and bulk copies of a launch, with their modes."""
    kind = raw.kinds(entries)
    out: list[tuple[int, Strided]] = []
    accesses, bulk = entries[kind == raw.ACCESS], entries[kind == raw.RANGE]
    window, tile = raw.low(accesses), _tiles(accesses, geometry)
    first = accesses["payload"][:, 3].astype(np.int64)
    for mode in (READ, WRITE, ATOMIC):
        runs_of_mode = [runs.from_masks(tile, window, accesses["payload"][:, mode], first, granule)]
        in_mode = bulk[bulk["payload"][:, 1] == mode]
        if len(in_mode):
            start, size = raw.low(in_mode), in_mode["payload"][:, 0].astype(np.int64)
            runs_of_mode.append(
                united(_tiles(in_mode, geometry), start, start + size, in_mode["payload"][:, 3].astype(np.int64))
            )
        out += [(mode, bind.from_runs(f, lifetimes, granule - 1)) for f in runs_of_mode if len(f)]
    return out


def tensor_loads(
    entries: raw.Entries,
    geometry: Geometry,
    map_uses: unreported_stores.Maps,
    split: Items | None = None,
    *,
    im2col: bool = True,
) -> tuple[list[Loads], bool]:
    """Return the loads through each tensor map, each once per tile, and whether there are some whose map is unknown.

    With ``split`` tiles are its work items. ``im2col``: maps in that mode are laid out as we read them.
    """
    walk = Walk.of(entries)
    if walk is None or not len(walk):
        return [], walk is None
    blocks = np.minimum(geometry.tile_of(walk.block), geometry.tiles - 1)
    tile = blocks if split is None else split.number_of_load
    rows = np.column_stack([walk.map, tile, walk.mode, walk.offsets, walk.coordinates])
    rows, index = np.unique(rows, axis=0, return_index=True)
    first = walk.first[index]
    out, unknown = [], False
    for address, mode in np.unique(rows[:, [0, 2]], axis=0).tolist():
        map_, of_map = map_uses.loaded.get(address), (rows[:, 0] == address) & (rows[:, 2] == mode)
        if map_ is None:
            unknown = True
            continue
        decodable = mode in (raw.TILED, raw.IM2COL)[: 1 + im2col] and map_.im2col == (mode == raw.IM2COL)
        columns = rows[of_map, 1], rows[of_map, 4:], first[of_map], rows[of_map, 3]
        out.append(Loads(map_, *columns, decodable, address))
    return out, unknown


def all_seen(entries: raw.Entries, geometry: Geometry) -> bool:
    """Return whether every block of the launch entered once.

    Code that is not patched leaves no trace of itself; this shows it.
    """
    blocks = np.sort(entries["block"][raw.kinds(entries) == raw.BLOCK])
    return np.array_equal(blocks, np.arange(geometry.grid[0] * geometry.grid[1] * geometry.grid[2]))


def _tiles(entries: raw.Entries, geometry: Geometry) -> I64:
    return np.minimum(geometry.tile_of(entries["block"].astype(np.int64)), geometry.tiles - 1)


def united(tile: I64, start: I64, end: I64, first: I64) -> Runs:
    """Return ranges that may overlap as runs that do not."""
    if not len(tile):
        return Runs(tile, start, end, first)
    order = np.lexsort((start, tile))
    tile, start, end, first = tile[order], start[order], end[order], first[order]
    row, start, end = grouped_union(tile, start, end)
    return Runs(tile[row], start, end, np.minimum.reduceat(first, row))


def union(parts: list[Strided]) -> Runs:
    """Return all bytes of the boxes, of all tiles together, as disjoint runs."""
    each = [bind.expanded(boxes) for boxes in parts if len(boxes)]
    if not each:
        none = np.empty(0, np.int64)
        return Runs(none, none, none, none)
    start, end = np.concatenate([r.start for r in each]), np.concatenate([r.end for r in each])
    return united(np.zeros_like(start), start, end, start)


def outside(ranges: I64, covered: Runs) -> int:
    """Return bytes of ``ranges`` ``[n, 2]`` outside the disjoint, sorted ``covered``."""
    before = np.concatenate([[0], np.cumsum(covered.end - covered.start)])

    def inside(address: I64) -> I64:
        at = np.searchsorted(covered.start, address, side="right")
        into = np.where(
            at > 0, np.minimum(address, covered.end[np.maximum(at - 1, 0)]) - covered.start[np.maximum(at - 1, 0)], 0
        )
        return np.asarray(before[np.maximum(at - 1, 0)] + into)

    total = int((ranges[:, 1] - ranges[:, 0]).sum())
    return total - int((inside(ranges[:, 1]) - inside(ranges[:, 0])).sum()) if len(covered) else total


def rectangle(address: int, event: dict[str, Any], pitch: str, size: int) -> Strided:
    """Return the bytes of one side of a copy of rows: ``size`` bytes in all, rows ``event[pitch]`` bytes apart."""
    width, height, depth = event["width"], max(1, event["height"]), max(1, event["depth"])
    rows = height * depth
    if not width or rows == 1 or event[pitch] == width:
        width, rows = size, 1
    count, stride = np.array([[rows, 1]]), np.array([[event[pitch] if rows > 1 else 0, 0]])
    one = np.ones(1, np.int64)
    return Strided(one * 0, one * address, one * width, count, stride, -one)


def spilled_pages(events: list[dict[str, Any]], live: list[tuple[int, int]]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return live memory whose folded pages are marked, by mode."""
    out = []
    for mode, key in ((READ, "read"), (WRITE, "written")):
        pages = np.array([e["page"] for e in events if e["e"] == "spilled_page" and e[key]], np.int64)
        ranges = []
        for base, end in live:
            page = np.arange(base // raw.SPILL_PAGE_BYTES, -(-end // raw.SPILL_PAGE_BYTES))
            page = page[np.isin(page % raw.SPILL_PAGES, pages)]
            low, high = page * raw.SPILL_PAGE_BYTES, (page + 1) * raw.SPILL_PAGE_BYTES
            ranges += list(zip(np.maximum(low, base).tolist(), np.minimum(high, end).tolist(), strict=True))
        out.append((mode, ranges))
    return out
