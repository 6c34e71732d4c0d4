"""Grouped products (``aten::_grouped_mm``): rows of one matrix, group by group, times the matrix of each group.

The kernel loads and stores through maps that it changes from group to group. Those of its loads are known
(`contents`); those of its stores are not, and cannot be replayed. An item (a cluster's work
between two falls of the depth, or two groups) loads rows of the first operand and columns of the second, and writes
these rows by these columns of the result. This is believed only if all items together write every element of whole
rows once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.record.cuda.calls import OperatorCall, Tensor
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.records.tiles import Geometry
from tileprof.record.cuda.tensor_maps.items import Items, Walk, covers_once
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap

OPERATOR = "aten::_grouped_mm"


@dataclass(frozen=True, slots=True)
class _Side:
    """The reading of the maps of one operand: the dimension that is an edge of the result and the one along the depth.

    ``edge`` has ``extent`` elements in the whole operand, or in each group (``group_bytes`` apart) of the second.
    """

    tensor: Tensor
    edge: int
    extent: int
    edge_bytes: int
    group_bytes: int

    def begins(self, map_: TensorMap) -> int | None:
        """Return the number of a map's first row or column in the operand, None where it is another tensor's."""
        offset = map_.base - self.tensor.address
        if len(map_.sizes) < 2 or map_.im2col or not 0 <= offset < _bytes(self.tensor):
            return None
        if self.group_bytes:
            return 0 if offset % self.group_bytes == 0 and map_.sizes[self.edge] == self.extent else None
        within = offset % self.edge_bytes == 0 and map_.strides[1] == self.edge_bytes
        return offset // self.edge_bytes if within else None


def product(
    call: OperatorCall | None, walk: Walk | None, maps: dict[int, TensorMap], geometry: Geometry
) -> tuple[Items, Strided] | None:
    """Return the work items of a grouped product and what they write, tiles being items; None where it is none or the
    loads do not say.
    """
    if call is None or call.op != OPERATOR or walk is None or not len(walk):
        return None
    tensors = {t.argument: t for t in call.tensors}
    sides = _sides(tensors)
    if sides is None or any(m not in maps for m in np.unique(walk.map).tolist()):
        return None
    side, begin, depth, high = (np.full(len(walk), -1) for _ in range(4))
    low = begin.copy()
    for key in np.unique(walk.map).tolist():
        of_map, map_ = walk.map == key, maps[key]
        matches = [(n, first) for n, s in enumerate(sides) if (first := s.begins(map_)) is not None]
        if len(matches) != 1:
            return None
        [(number, first)] = matches
        edge = sides[number].edge
        at = walk.coordinates[of_map, edge]
        side[of_map], depth[of_map] = number, walk.coordinates[of_map, 1 - edge]
        low[of_map], high[of_map] = first + at, first + np.minimum(at + map_.box[edge], map_.sizes[edge])
    items = _items(walk, side, depth, geometry)
    if items is None:
        return None
    spans = [_span(items, side == n, low, high) for n in (0, 1)]
    if spans[0] is None or spans[1] is None:
        return None
    return _written_rectangles(items, tensors["out"], spans[0], spans[1])


def _sides(tensors: dict[str, Tensor]) -> tuple[_Side, _Side] | None:
    """Return how rows and groups of columns are laid out, None where they are not as a grouped product needs them."""
    if not {"self", "mat2", "out"} <= set(tensors):
        return None
    first, second, out = (tensors[name] for name in ("self", "mat2", "out"))
    if (len(first.shape), len(second.shape), len(out.shape)) != (2, 3, 2) or first.strides[1] != 1:
        return None
    if out.strides[1] != 1 or 1 not in second.strides[1:]:
        return None
    across = 0 if second.strides[2] == 1 else 1
    rows = _Side(first, 1, first.shape[0], first.strides[0] * first.itemsize, 0)
    return rows, _Side(second, across, second.shape[2], 0, second.strides[0] * second.itemsize)


def _bytes(tensor: Tensor) -> int:
    return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True)) * tensor.itemsize + 1


def _items(walk: Walk, side: I64, depth: I64, geometry: Geometry) -> Items | None:
    """Return the loads as work items: each block's next one begins where the depth falls or a side's map changes."""
    order = np.lexsort((walk.block, side))  # stable: each block's loads of a side stay in their order
    of_side, block, map_ = side[order], walk.block[order], walk.map[order]
    new = np.append(True, (of_side[1:] != of_side[:-1]) | (block[1:] != block[:-1]))
    fell = np.append(False, (np.diff(depth[order]) < 0) | (np.diff(map_) != 0)) & ~new
    number = fell.cumsum()
    number -= number[new][new.cumsum() - 1]
    of_load = np.empty_like(number)
    of_load[order] = number
    tile = geometry.tile_of(walk.block)
    last = np.append(new[1:], True)
    owner, ends = geometry.tile_of(block[last]), number[last] + 1
    count = np.zeros(geometry.tiles, np.int64)
    np.maximum.at(count, owner, ends)
    if (count[owner] != ends).any():
        return None
    return Items(np.maximum(count, 1), of_load, tile, {})


def _span(items: Items, rows: NDArray[np.bool_], low: I64, high: I64) -> tuple[I64, I64] | None:
    """``[low, high)`` of each item's loads of one side; None where that is not one piece."""
    inside = rows & (low < high)
    item = items.number_of_load[inside]
    pieces = np.unique(np.column_stack([item, low[inside], high[inside]]), axis=0)
    begin, end = np.full(items.total, np.iinfo(np.int64).max), np.zeros(items.total, np.int64)
    np.minimum.at(begin, pieces[:, 0], pieces[:, 1])
    np.maximum.at(end, pieces[:, 0], pieces[:, 2])
    covered = np.bincount(pieces[:, 0], pieces[:, 2] - pieces[:, 1], items.total).astype(np.int64)
    without_loads = end == 0
    begin[without_loads] = 0
    return None if (covered < end - begin).any() else (begin, end)


def _written_rectangles(
    items: Items, out: Tensor, rows: tuple[I64, I64], columns: tuple[I64, I64]
) -> tuple[Items, Strided] | None:
    """Return the rectangles of the result; None unless they hold whole rows, each element once."""
    (low, high), (left, right) = rows, columns
    some = (high > low) & (right > left)
    tall = np.zeros(out.shape[0], bool)
    for a, b in zip(low[some].tolist(), high[some].tolist(), strict=True):
        tall[a:b] = True
    spans = [(low[some], high[some]), (left[some], right[some])]
    if not some.any() or high[some].max() > out.shape[0] or right[some].max() != out.shape[1]:
        return None
    if not covers_once(int(tall.sum()), out.shape[1], spans):
        return None
    stride = out.strides[0] * out.itemsize
    number = np.flatnonzero(some)
    counts, strides = np.ones((len(number), 2), np.int64), np.zeros((len(number), 2), np.int64)
    counts[:, 0] = (high - low)[some]
    strides[:, 0] = np.where(counts[:, 0] > 1, stride, 0)
    address = out.address + low[some] * stride + left[some] * out.itemsize
    length = (right - left)[some] * out.itemsize
    return items, Strided(number, address, length, counts, strides, np.full(len(number), -1, np.int64))
