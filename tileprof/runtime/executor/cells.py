"""Cells: bytes that no box of any tile tells apart, found without looking at bytes one by one.

A buffer is laid out in rows of its *pitch*, the stride that most boxes repeat at, and every box becomes rectangles of
rows by columns: one, where it repeats at the pitch, and up to three a run where it does not. The sides of all
rectangles cut the buffer into a grid of cells. Exact for any pitch; with the right one a matrix of a thousand rows has
as many cells as tiles have corners, not as it has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError
from tileprof.runtime.executor.touches import READ, Touches

_MOST_CELLS: Final = 20_000_000
"""Cells of a buffer."""

_MOST_ENTRIES: Final = 200_000_000
"""Cells times the tiles of a stage that touch them: about 5 GB of columns."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """Cuts of one buffer; ``first`` is the number of its first cell."""

    pitch: int
    rows: I64
    columns: I64
    first: int

    @property
    def width(self) -> int:
        return len(self.columns) - 1


@dataclass(frozen=True, slots=True)
class Cells:
    """Columns by cell: ``buffer``, the first byte ``low``, the bytes of its first ``run``, and all its ``bytes``."""

    buffer: I64
    low: I64
    run: I64
    bytes: I64
    grids: dict[int, _Grid]

    @classmethod
    def of(cls, stages: Sequence[Touches]) -> Cells:
        """Return cells of every buffer that a stage writes; nothing else can race."""
        written_buffers = sorted({int(b) for t in stages for b in np.unique(t.buffer[t.mode != READ])})
        grids: dict[int, _Grid] = {}
        columns: list[tuple[I64, ...]] = [(np.empty(0, np.int64),) * 4]
        first = 0
        for buffer in written_buffers:
            in_buffer = [t.take(t.buffer == buffer) for t in stages]
            grid = _grid(in_buffer, first)
            grids[buffer] = grid
            height, width = np.diff(grid.rows), np.diff(grid.columns)
            low = grid.rows[:-1, None] * grid.pitch + grid.columns[None, :-1]
            size = height[:, None] * width[None, :]
            run = np.where(width[None, :] == grid.pitch, size, width[None, :])
            columns.append((np.full(low.size, buffer, np.int64), low.ravel(), run.ravel(), size.ravel()))
            first += low.size
        buffers, low, run, size = (np.concatenate(c) for c in zip(*columns, strict=True))
        return cls(buffers, low, run, size, grids)

    def entries(self, touches: Touches) -> tuple[I64, I64, I64]:
        """Return ``(tile, mode, cell)`` of a stage, each once; raises `UserError` where there are too many to hold."""
        parts = []
        total = 0
        for buffer, grid in self.grids.items():
            in_buffer = touches.take(touches.buffer == buffer)
            row, top, bottom, left, right = _rectangles(in_buffer, grid.pitch)
            top, bottom = np.searchsorted(grid.rows, top), np.searchsorted(grid.rows, bottom)
            left, right = np.searchsorted(grid.columns, left), np.searchsorted(grid.columns, right)
            across = right - left
            total += int(((bottom - top) * across).sum())
            if total > _MOST_ENTRIES:
                raise UserError(
                    f"the tiles of a stage touch more than {_MOST_ENTRIES:,} cells of memory; take fewer stages"
                )
            owner, place = ragged((bottom - top) * across)
            cell = grid.first + (top[owner] + place // across[owner]) * grid.width + left[owner] + place % across[owner]
            parts.append((in_buffer.tile[row[owner]], in_buffer.mode[row[owner]], cell))
        if not parts:
            return (np.empty(0, np.int64),) * 3
        tile, mode, cell = (np.concatenate(c) for c in zip(*parts, strict=True))
        tiles, cells = int(tile.max(initial=0)) + 1, max(1, len(self.low))
        key = np.unique((mode * tiles + tile) * cells + cell)
        return key // cells % tiles, key // cells // tiles, key % cells


def _grid(touches: list[Touches], first: int) -> _Grid:
    """Return the grid of a buffer: at the stride of most runs, or, where that makes too many cells, as one long row;
    raises `UserError`.
    """
    runs = [(np.abs(t.stride_0), t.count_0 * t.count_1 * ((t.count_0 > 1) & (t.stride_0 != 0))) for t in touches]
    stride, count = (np.concatenate(c) for c in zip(*runs, strict=True))
    values, which = np.unique(stride, return_inverse=True)
    common = int(values[np.argmax(np.bincount(which.reshape(-1), weights=count))]) if count.any() else 0
    # Longer than all bytes: every run lies in one row, or in two where offsets are negative.
    reach = [
        np.abs(t.offset) + t.length + np.abs(t.count_0 * t.stride_0) + np.abs(t.count_1 * t.stride_1) for t in touches
    ]
    line = 1 + max(int(r.max(initial=0)) for r in reach)
    for pitch in ([common] if common else []) + [line]:
        sides = [_rectangles(t, pitch)[1:] for t in touches]
        top, bottom, left, right = (np.concatenate(c) for c in zip(*sides, strict=True))
        grid = _Grid(pitch, np.unique(np.concatenate([top, bottom])), np.unique(np.concatenate([left, right])), first)
        if len(grid.rows) * len(grid.columns) <= _MOST_CELLS:
            return grid
    raise UserError(f"the tiles cut a buffer into more than {_MOST_CELLS:,} pieces; take fewer stages")


def _rectangles(touches: Touches, pitch: int) -> tuple[I64, I64, I64, I64, I64]:
    """Return ``(row of touches, top, bottom, left, right)``: each box as rectangles of a buffer laid out in rows of
    ``pitch`` bytes.
    """
    outer, step = ragged(touches.count_1)
    offset = touches.offset[outer] + step * touches.stride_1[outer]
    length, count, stride = touches.length[outer], touches.count_0[outer], touches.stride_0[outer]
    whole = (count > 1) & (stride == pitch) & (offset % pitch + length <= pitch)
    top, left = offset[whole] // pitch, offset[whole] % pitch
    parts: list[tuple[I64, ...]] = [(outer[whole], top, top + count[whole], left, left + length[whole])]
    inner, step = ragged(np.where(whole, 0, count))
    low = offset[inner] + step * stride[inner]
    parts += _runs(outer[inner], low, low + length[inner], pitch)
    row, top, bottom, left, right = (np.concatenate(c) for c in zip(*parts, strict=True))
    return row, top, bottom, left, right


def _runs(row: I64, low: I64, high: I64, pitch: int) -> list[tuple[I64, ...]]:
    """Return runs of bytes as rectangles: what lies in one row, and otherwise head, whole rows and tail."""
    first, last = low // pitch, (high - 1) // pitch
    one = (first == last) & (high - low < pitch)
    head, tail = ~one & (low % pitch > 0), ~one & (high % pitch > 0)
    top, bottom = first + head, last + 1 - tail
    body = ~one & (top < bottom)
    zero = np.zeros(len(row), np.int64)
    full = zero + pitch
    pieces = (
        (one, first, first + 1, low % pitch, low % pitch + high - low),
        (head, first, first + 1, low % pitch, full),
        (tail, last, last + 1, zero, high % pitch),
        (body, top, bottom, zero, full),
    )
    return [tuple(column[some] for column in (row, *sides)) for some, *sides in pieces]
