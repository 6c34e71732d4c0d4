"""Gradients of strided convolutions, and transposed ones, whose stores through tensor maps cannot be replayed.

cuDNN computes such a result phase by phase: the pixels ``(2i + a, 2j + b)`` of a stride of 2 are one convolution of the
loaded tensor for each ``a`` and ``b``, and tiles of all four are handed out by a counter. A tile loads pixels in im2col
mode, whose bounding box has one position ``(i, j)`` for each pixel of a phase, and filters. Which phase it computes is
not looked at: it is taken to write the pixels of all phases at its positions, of the channels of its filters. This is
believed only if the positions fill the result, and if for each phase, which has a map of its own, the runs of positions
and of channels that tiles load cut it into rectangles that do not overlap, each loaded by some tile. A phase without
taps, as in a 1x1 convolution with a stride of 2, is loaded by no tile, and a tile that loads nothing may write its
zeros: then nothing is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.tensor_maps import im2col
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap

if TYPE_CHECKING:
    from tileprof.record.cuda.tensor_maps.loads import Loads

_MOST_CELLS = 1 << 22
"""Most rectangles of a phase that are examined."""


def result(output: TensorMap, loads: list[Loads]) -> Strided | None:
    """Return what each tile that loads writes of ``output`` at most; None where it is not the result of these loads."""
    pixels = [load for load in loads if load.map.im2col]
    filters = [load for load in loads if not load.map.im2col]
    if not pixels or not filters or not all(load.decodable for load in loads):
        return None
    positions = im2col.window(pixels[0].map).positions
    if not _is_result(output, pixels, positions) or any(load.map.sizes[0] != output.sizes[0] for load in filters):
        return None
    total = int(np.prod(positions)) * output.sizes[-1]
    columns = _pieces([_channels_of(load) for load in filters], output.sizes[0])
    phases = [_pieces([_positions_of(load)], total) for load in pixels if load.identity >= 0]
    if columns is None or len(phases) != int(np.prod(output.steps[1:-1])):
        return None
    if any(phase is None or not _all_loaded(phase, columns) for phase in phases):
        return None
    rows = _pieces([_positions_of(load) for load in pixels], total)
    if rows is None or not np.array_equal(np.unique(rows.tile), np.unique(columns.tile)):
        return None
    return _boxes(output, positions, rows.runs(), columns.runs())


class _Pieces:
    """Runs that cut a whole, and which of them each tile loads: ``starts`` and ``ends`` of the runs, ``tile`` and
    ``piece``.
    """

    def __init__(self, starts: I64, ends: I64, tile: I64, piece: I64) -> None:
        self.starts, self.ends, self.tile, self.piece = starts, ends, tile, piece

    def runs(self) -> tuple[I64, I64, I64]:
        """Tile, begin and end of what each tile loads, runs side by side as one."""
        order = np.lexsort((self.piece, self.tile))
        tile, piece = self.tile[order], self.piece[order]
        head = np.append(True, (tile[1:] != tile[:-1]) | (piece[1:] != piece[:-1] + 1))
        last = np.append(np.flatnonzero(head)[1:], len(tile)) - 1
        return tile[head], self.starts[piece[head]], self.ends[piece[last]]


def _pieces(parts: list[tuple[I64, I64, I64]], whole: int) -> _Pieces | None:
    """Return the runs ``(tile, begin, end)`` as pieces; None unless they cut ``[0, whole)`` without overlap."""
    tile, begin, end = (np.concatenate([part[i] for part in parts]) for i in range(3))
    end = np.minimum(end, whole)
    some = begin < end
    rows = np.unique(np.column_stack([tile[some], begin[some], end[some]]), axis=0)
    runs = np.unique(rows[:, 1:], axis=0)
    cuts = len(runs) and runs[0, 0] == 0 and runs[-1, 1] == whole and np.array_equal(runs[1:, 0], runs[:-1, 1])
    return _Pieces(runs[:, 0], runs[:, 1], rows[:, 0], np.searchsorted(runs[:, 0], rows[:, 1])) if cuts else None


def _positions_of(load: Loads) -> tuple[I64, I64, I64]:
    return load.tile, *im2col.pixels(load.map, load.coordinates)


def _channels_of(load: Loads) -> tuple[I64, I64, I64]:
    low = load.coordinates[:, 0]
    return load.tile, np.maximum(low, 0), low + load.map.box[0]


def _is_result(output: TensorMap, pixels: list[Loads], positions: I64) -> bool:
    """Return whether a map walks a dense tensor in steps that leave one pixel per position and phase."""
    dims = len(output.sizes)
    for load in pixels:
        same = len(load.map.sizes) == dims and load.map.sizes[-1] == output.sizes[-1]
        if not same or not np.array_equal(im2col.window(load.map).positions, positions):
            return False
    steps = np.array(output.steps[1:-1])
    if (
        (steps == 1).all()
        or (steps[2:] != 1).any()
        or not np.array_equal(steps * positions, np.array(output.sizes[1:-1]))
    ):
        return False
    stride = output.strides[1]
    for size, own in zip(output.sizes[1:], output.strides[1:], strict=True):
        if size > 1 and own != stride:
            return False
        stride *= size
    return True


def _all_loaded(rows: _Pieces, columns: _Pieces) -> bool:
    """Return whether every rectangle's pixels and filters are loaded by one tile."""
    if len(rows.starts) * len(columns.starts) > _MOST_CELLS:
        return False
    loaded = np.zeros((len(rows.starts), len(columns.starts)), bool)
    order = np.argsort(columns.tile, kind="stable")
    tile, piece = columns.tile[order], columns.piece[order]
    first, last = np.searchsorted(tile, rows.tile), np.searchsorted(tile, rows.tile, side="right")
    row, at = ragged(last - first)
    loaded[rows.piece[row], piece[first[row] + at]] = True
    return bool(loaded.all())


def _boxes(output: TensorMap, positions: I64, rows: tuple[I64, I64, I64], columns: tuple[I64, I64, I64]) -> Strided:
    """Return each tile's pixels of all phases, a row of positions a box, by each of its runs of channels."""
    width = int(positions[0])
    tile, begin, end = rows
    run, line = ragged((end - 1) // width - begin // width + 1)
    line = begin[run] // width + line
    left, right = np.maximum(begin[run], line * width) - line * width, np.minimum(end[run], (line + 1) * width)
    right -= line * width
    at = output.strides[1] * left * output.steps[1]
    below, stride = line, output.strides[1] * output.sizes[1]
    for size, step in zip(output.sizes[2:], (*output.steps[2:-1], 1), strict=True):
        at = at + below % (size // step) * step * stride
        below, stride = below // (size // step), stride * size
    order = np.argsort(columns[0], kind="stable")
    of_tile, low, high = (c[order] for c in columns)
    first, last = np.searchsorted(of_tile, tile[run]), np.searchsorted(of_tile, tile[run], side="right")
    row, which = ragged(last - first)
    which = first[row] + which
    high_phases = output.steps[2] if len(output.sizes) > 3 else 1
    count, strides = np.ones((len(row), 2), np.int64), np.zeros((len(row), 2), np.int64)
    count[:, 0] = (right - left)[row] * output.steps[1]
    strides[:, 0] = np.where(count[:, 0] > 1, output.strides[1], 0)
    count[:, 1] = high_phases
    strides[:, 1] = output.strides[1] * output.sizes[1] if high_phases > 1 else 0
    address = output.base + at[row] + low[which] * output.element
    length = (high - low)[which] * output.element
    return Strided(tile[run][row], address, length, count, strides, np.full(len(row), -1, np.int64))
