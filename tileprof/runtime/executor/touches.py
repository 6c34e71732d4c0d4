"""The bytes that the tiles of a stage read and write, as columns of strided boxes in buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64, grids
from tileprof.errors import UserError

READ, WRITE, ATOMIC = range(3)
"""Modes, numbered as in a trace."""


@dataclass(frozen=True, slots=True)
class Touches:
    """Boxes of one stage: row ``r`` says that ``tile[r]`` touches, in ``mode[r]``, bytes of ``buffer[r]``.

    The bytes are ``offset + i*stride_0 + j*stride_1 + [0, length)`` for ``i < count_0`` and ``j < count_1``; ``tile``
    holds policy numbers. All columns are int64 of one length.
    """

    tile: I64
    buffer: I64
    mode: I64
    offset: I64
    length: I64
    count_0: I64
    stride_0: I64
    count_1: I64
    stride_1: I64

    @classmethod
    def of(cls, rows: list[tuple[int, ...]]) -> Touches:
        """Return touches from rows in the order of the columns."""
        columns = np.array(rows, np.int64).reshape(-1, 9).T
        return cls(*(np.ascontiguousarray(c) for c in columns))

    def take(self, rows: NDArray[Any]) -> Touches:
        return Touches(*(getattr(self, name)[rows] for name in Touches.__slots__))


class _Boxes(Protocol):
    """The columns of a footprint's boxes."""

    tile: Any
    operand: Any
    mode: Any
    offset: Any
    length: Any
    count_0: Any
    stride_0: Any
    count_1: Any
    stride_1: Any


class _Footprint(Protocol):
    """A launch's tiles, ``block`` ``[tiles, 3]``, and their boxes relative to operand slots."""

    @property
    def block(self) -> Any: ...
    @property
    def boxes(self) -> Any: ...


def recorded_touches(footprint: _Footprint, operands: tuple[I64, I64], grid: tuple[int, int, int]) -> Touches:
    """Return touches of a recorded launch; ``operands`` are the buffer and the offset of each operand slot.

    ``grid`` is the stage's; raises `UserError` where the launch's tiles do not fill it.
    """
    # Tiles are counted: a tile that is a cluster stands at its first block.
    x, y, z = (np.unique(axis, return_inverse=True)[1].astype(np.int64) for axis in np.asarray(footprint.block).T)
    number = grids.number(grid, x, y, z)
    if not np.array_equal(np.sort(number), np.arange(grids.size(grid))):
        raise UserError(f"the launch has {len(number)} tiles, which do not fill the stage's grid of {grid}")
    boxes: _Boxes = footprint.boxes
    buffer, offset = operands
    slot = np.asarray(boxes.operand, np.int64)
    columns = {name: np.asarray(getattr(boxes, name), np.int64) for name in Touches.__slots__ if hasattr(boxes, name)}
    columns |= {"tile": number[columns["tile"]], "buffer": buffer[slot], "offset": columns["offset"] + offset[slot]}
    return Touches(**columns)


def recycled(touches: Touches, base: I64, size: I64) -> Touches:
    """Return touches by address: buffers that ever had an address in common become one; ``base`` and ``size`` of every
    buffer, in bytes.

    For policies whose stages use the memory that was recorded. A read of what an earlier buffer left at an address then
    counts as a read.
    """
    order = np.argsort(base, kind="stable")
    apart = np.ones(len(base), bool)
    apart[1:] = base[order][1:] >= np.maximum.accumulate(base[order] + size[order])[:-1]
    owner = np.empty(len(base), np.int64)
    owner[order] = order[np.flatnonzero(apart)][np.cumsum(apart) - 1]
    shared = owner[touches.buffer]
    return replace(touches, buffer=shared, offset=touches.offset + base[touches.buffer] - base[shared])
