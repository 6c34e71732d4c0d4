"""Results of convolutions whose stores through tensor maps cannot be replayed: pixels by filters.

A block loads pixels in im2col mode, a run of the result's pixels at a time, and filters. It writes these pixels of
these filters, or a part of them: cuDNN's ``segment_k`` kernels give one such rectangle to several blocks, each with
some of the depth, which exchange sums and store a part each. Every block of a rectangle then stands as its writer. This
is believed only if the rectangles that differ cover the result, each element once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tileprof.arrays import I64
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.tensor_maps import im2col
from tileprof.record.cuda.tensor_maps.items import covers_once
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap

if TYPE_CHECKING:
    from tileprof.record.cuda.tensor_maps.loads import Loads


def result(output: TensorMap, loads: list[Loads]) -> tuple[Strided, bool] | None:
    """Return what each tile that loads writes of ``output`` at most, and whether tiles share parts of it; None where it
    is not the result of these loads.
    """
    pixels = [load for load in loads if load.map.im2col and load.decodable]
    filters = [load for load in loads if not load.map.im2col and load.decodable]
    if len(pixels) != 1 or len(filters) != 1 or not _is_dense_result(output, pixels[0].map):
        return None
    total = int(np.prod(output.sizes[1:]))
    begin, end = im2col.pixels(pixels[0].map, pixels[0].coordinates)
    tiles, rows = np.unique(pixels[0].tile), _spans(pixels[0].tile, begin, np.minimum(end, total))
    if rows is None or not np.array_equal(np.unique(filters[0].tile), tiles):
        return None
    outer = len(filters[0].map.sizes) - 1
    of_result = [d for d in (0, outer) if filters[0].map.sizes[d] == output.sizes[0]]
    if len(of_result) > 1:  # as many channels as filters: both operands walk the channels alike
        of_result = [d for d in of_result if not _alike(pixels[0], filters[0], d)]
    if len(of_result) != 1:
        return None
    at = filters[0].coordinates[:, of_result[0]]
    high = np.minimum(at + filters[0].map.box[of_result[0]], output.sizes[0])
    columns = _spans(filters[0].tile, at, high)
    if columns is None:
        return None
    each = np.column_stack([*rows, *columns])
    different = np.unique(each, axis=0)
    spans = [(different[:, 0], different[:, 1]), (different[:, 2], different[:, 3])]
    if not covers_once(total, output.sizes[0], spans):
        return None
    return _boxes(output, tiles, each), len(different) < len(each)


def _alike(pixels: Loads, filters: Loads, dimension: int) -> bool:
    """Return whether each tile loads filters at the places along a dimension at which it loads channels of pixels."""
    first, second = (
        np.unique(np.column_stack([load.tile, load.coordinates[:, d]]), axis=0)
        for load, d in ((pixels, 0), (filters, dimension))
    )
    return np.array_equal(first, second)


def _is_dense_result(output: TensorMap, pixels: TensorMap) -> bool:
    """Return whether a map is of a tensor with one row of channels per pixel that is walked, rows side by side."""
    if len(output.sizes) != len(pixels.sizes) or output.sizes[-1] != pixels.sizes[-1]:
        return False
    if list(output.sizes[1:-1]) != im2col.window(pixels).positions.tolist():
        return False
    stride = output.strides[1]
    for size, own in zip(output.sizes[1:], output.strides[1:], strict=True):
        if size > 1 and own != stride:
            return False
        stride *= size
    return True


def _spans(tile: I64, low: I64, high: I64) -> tuple[I64, I64] | None:
    """``[low, high)`` of each tile that loads, in order; None where one is not in one piece."""
    some = low < high
    pieces = np.unique(np.column_stack([tile[some], low[some], high[some]]), axis=0)
    if not np.array_equal(np.unique(pieces[:, 0]), np.unique(tile)):
        return None
    head = np.flatnonzero(np.append(True, pieces[1:, 0] != pieces[:-1, 0]))
    ends_so_far = np.maximum.accumulate(pieces[:, 2] + pieces[:, 0] * (1 << 40)) - pieces[:, 0] * (1 << 40)
    torn = (pieces[1:, 0] == pieces[:-1, 0]) & (pieces[1:, 1] > ends_so_far[:-1])
    return None if torn.any() else (pieces[head, 1], np.maximum.reduceat(pieces[:, 2], head))


def _boxes(output: TensorMap, tiles: I64, each: I64) -> Strided:
    low, high, left, right = each.T
    count, stride = np.ones((len(each), 2), np.int64), np.zeros((len(each), 2), np.int64)
    row = output.strides[1] if int(np.prod(output.sizes[1:])) > 1 else 0
    count[:, 0], stride[:, 0] = high - low, np.where(high - low > 1, row, 0)
    address = output.base + low * row + left * output.element
    return Strided(tiles, address, (right - left) * output.element, count, stride, np.full(len(each), -1, np.int64))
