"""Work items of persistent kernels, from the order in which blocks load through tensor maps.

A block's records keep their order. Along the depth of a product its coordinates rise; where they fall back, the block
has begun another item ::

    map a   (k, row)      0,0  64,0  128,0 | 0,512  64,512  128,512        two items: rows 0 and 512
    map b   (k, column)   0,0  64,0  128,0 | 0,128  64,128  128,128        of columns 0 and 128

Each map's fallbacks are counted by themselves, so it does not matter how far one is fetched ahead of another; all maps
of a block must have as many. Blocks of a cluster share items: the n-th of one is the n-th of all. Which dimension is
the depth is not known: every choice is tried. An item's part of the result is its rows by its columns, which is
believed only if all items together write every element once, and no other choice does so otherwise.

Not seen, and so one item per block: kernels that load without tensor maps (their records are bits without an order),
whose loop has one step, or that share items out along the depth (stream-k).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.tiles import Geometry, Times
from tileprof.record.cuda.tensor_maps import contents
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap

_MOST_MAPS = 4
"""Most maps for which orders are tried: every dimension of every map may be the depth."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Loads through tensor maps, each block's in its own order: map, block, coordinates ``[loads, 5]``, time of each.

    ``map`` is an address, or below 0 for what a map held that changes (`contents.identified`). ``mode`` is the API's
    Sanitizer_LoadMode, ``offsets`` the packed ones of im2col loads.
    """

    map: I64
    block: I64
    coordinates: I64
    first: I64
    mode: I64
    offsets: I64

    @classmethod
    def of(cls, entries: raw.Entries) -> Walk | None:
        """Return the loads among a launch's entries by time; None when some lost their other half.

        Each thread's entries are in its order in the arena, where threads take room for several at once. Times are
        those of a clock of 32 ns that wraps around every 4 s; a load takes longer.
        """
        kind = raw.kinds(entries)
        head, tail = entries[kind == raw.TENSOR], entries[kind == raw.TENSOR_TAIL]
        if len(head) != len(tail):
            return None
        since = tail["payload"][:, 3] - tail["payload"][:1, 3] + np.uint32(1 << 31)
        by_time = np.argsort(since, kind="stable")
        head, tail = head[by_time], tail[by_time]
        both = np.column_stack([head["payload"], tail["payload"][:, :1]]).astype(np.uint32).view(np.int32)
        words = tail["payload"].astype(np.int64)
        mode = words[:, 2] >> raw.LOAD_MODE_SHIFT & 0xFF
        return cls(
            contents.identified(entries, raw.low(head), raw.low(tail)),
            head["block"].astype(np.int64),
            both.astype(np.int64),
            words[:, 3],
            mode,
            words[:, 1] & 0xFFFF,
        )

    def __len__(self) -> int:
        return len(self.map)


@dataclass(frozen=True, slots=True)
class Items:
    """``count[tile]`` items of each block or cluster; ``of_load`` the item of each load of the walk, from 0 in its
    tile.

    ``tile_of_load`` is the block or cluster; ``depth`` the dimension along which each map is walked.
    """

    count: I64
    of_load: I64
    tile_of_load: I64
    depth: dict[int, int]

    @property
    def first(self) -> I64:
        """Number of each tile's first item, when all items are numbered tile by tile."""
        return np.cumsum(self.count) - self.count

    @property
    def total(self) -> int:
        return int(self.count.sum())

    @property
    def number_of_load(self) -> I64:
        """The item of each load, numbered in the launch."""
        return np.asarray(self.first[self.tile_of_load] + self.of_load)

    def everywhere(self, boxes: Strided) -> Strided:
        """Return what a tile touches in an item that is not known: all of its items stand for it."""
        each = self.count[boxes.tile]
        row, item = ragged(each)
        columns = (boxes.address, boxes.length, boxes.count, boxes.stride, boxes.first)
        return Strided(self.first[boxes.tile[row]] + item, *(c[row] for c in columns))

    def places(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return grid coordinates of each item: those of its block or cluster."""
        return np.repeat(places, self.count, axis=0)

    def times(self, walk: Walk, block_times: Times) -> Times:
        """Return when each item ran: from its first load to the first of the next, the last one to the end of
        its block.
        """
        tile = np.repeat(np.arange(len(self.count)), self.count)
        since = np.full(self.total, np.iinfo(np.int64).max)
        begin_low = block_times.begin[self.tile_of_load] & 0xFFFFFFFF
        np.minimum.at(since, self.number_of_load, (walk.first - begin_low) & 0xFFFFFFFF)
        since[self.first] = 0
        span = np.maximum(block_times.end - block_times.begin, 0)[tile]
        begin = block_times.begin[tile] + np.minimum(since, span)
        last = np.append(tile[1:] != tile[:-1], True)
        end = np.where(last, block_times.end[tile], np.append(begin[1:], 0))
        timed = block_times.has_times[tile]
        return Times(
            np.where(timed, begin, -1),
            np.where(timed, np.maximum(end, begin), -1),
            block_times.sm[tile],
            block_times.blocks[tile],
        )


def readings(walk: Walk | None, geometry: Geometry, maps: dict[int, TensorMap]) -> list[Items]:
    """Yield ways to read the loads of a launch as work items, at least one block with several; by the depth of
    each map.
    """
    if walk is None or not len(walk) or (walk.mode != raw.TILED).any():
        return []
    addresses = np.unique(walk.map).tolist()
    if any(a not in maps for a in addresses) or len(addresses) > _MOST_MAPS:
        return []
    wide = [[d for d, size in enumerate(maps[a].sizes) if size > 1] for a in addresses]
    out = []
    for choice in itertools.product(*wide):
        depth = dict(zip(addresses, choice, strict=True))
        if len({maps[a].sizes[d] for a, d in depth.items()}) == 1 and (reading := _reading(walk, geometry, depth)):
            out.append(reading)
    return out


def _reading(walk: Walk, geometry: Geometry, depth: dict[int, int]) -> Items | None:
    order = np.lexsort((walk.block, walk.map))  # stable: each block's loads through a map stay in their order
    map_, block = walk.map[order], walk.block[order]
    places, which = np.unique(map_, return_inverse=True)
    dimension = np.array([depth[int(a)] for a in places])[which]
    at = walk.coordinates[order, dimension]
    new = np.append(True, (map_[1:] != map_[:-1]) | (block[1:] != block[:-1]))
    fell = np.append(0, (np.diff(at) < 0) & ~new[1:]).cumsum()
    group = new.cumsum() - 1
    item = fell - fell[new][group]
    tiles = geometry.tile_of(walk.block)
    ends = item[np.append(np.flatnonzero(new)[1:], len(item)) - 1]
    owner = geometry.tile_of(block[new])
    most, least = np.zeros(geometry.tiles, np.int64), np.full(geometry.tiles, np.iinfo(np.int64).max)
    np.maximum.at(most, owner, ends)
    np.minimum.at(least, owner, ends)
    if (least[owner] != most[owner]).any() or not most.any():
        return None
    of_load = np.empty_like(item)
    of_load[order] = item
    return Items(most + 1, of_load, tiles, depth)


def product(result: TensorMap, walk: Walk, items: Items, maps: dict[int, TensorMap]) -> Strided | None:
    """Return the part of a result that each item writes, its rows by its columns; None unless every element is written
    once.

    ``maps`` are those that the walk loads through. A square result could as well be the transpose: then None.
    """
    outer = {address: _outer(map_, items.depth[address]) for address, map_ in maps.items() if address in items.depth}
    wide = [d for d, size in enumerate(result.sizes) if size > 1]
    if wide != [0, 1] or result.sizes[0] == result.sizes[1] or result.im2col:
        return None
    spans = []
    for size in (result.sizes[1], result.sizes[0]):
        of_size = [a for a, d in outer.items() if d >= 0 and maps[a].sizes[d] == size]
        if len(of_size) != 1 or (span := _span(walk, items, of_size[0], outer[of_size[0]], maps[of_size[0]])) is None:
            return None
        spans.append(span)
    (low, high), (left, right) = spans
    if not covers_once(result.sizes[1], result.sizes[0], spans):
        return None
    element, stride = result.element, result.strides[1]
    rows = high - low
    count, step = np.ones((len(low), 2), np.int64), np.zeros((len(low), 2), np.int64)
    count[:, 0], step[:, 0] = rows, np.where(rows > 1, stride, 0)
    address = result.base + low * stride + left * element
    return Strided(np.arange(len(low)), address, (right - left) * element, count, step, np.full(len(low), -1, np.int64))


def _outer(map_: TensorMap, depth: int) -> int:
    """Return the one other dimension of more than one element; -1 when there are others."""
    others = [d for d, size in enumerate(map_.sizes) if size > 1 and d != depth]
    return others[0] if len(others) == 1 else -1


def _span(walk: Walk, items: Items, address: int, dimension: int, map_: TensorMap) -> tuple[I64, I64] | None:
    """Return ``[low, high)`` of the outer dimension that each item loads; None where that is not one piece, or an item
    has none.
    """
    rows = walk.map == address
    box = map_.box[dimension]
    pairs = np.unique(np.column_stack([items.number_of_load[rows], walk.coordinates[rows, dimension]]), axis=0)
    item, at = pairs[:, 0], pairs[:, 1]
    if not np.array_equal(np.unique(item), np.arange(items.total)) or (at < 0).any():
        return None
    low, high = np.full(items.total, np.iinfo(np.int64).max), np.zeros(items.total, np.int64)
    np.minimum.at(low, item, at)
    np.maximum.at(high, item, at + box)
    if (np.bincount(item) * box < high - low).any():
        return None
    return low, np.minimum(high, map_.sizes[dimension])


def covers_once(rows: int, columns: int, spans: list[tuple[I64, I64]]) -> bool:
    """Return whether rectangles tile the whole: their area is right, and no two share a cell between their edges."""
    (low, high), (left, right) = spans
    if int(((high - low) * (right - left)).sum()) != rows * columns:
        return False
    across, along = np.unique(np.concatenate([low, high])), np.unique(np.concatenate([left, right]))
    cell = np.zeros((len(across), len(along)), np.int32)
    for a, b, c, d in zip(
        *(np.searchsorted(e, v) for e, v in ((across, low), (across, high), (along, left), (along, right))), strict=True
    ):
        cell[a:b, c:d] += 1
    return bool((cell <= 1).all())
