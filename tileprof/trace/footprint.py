"""The bytes that a launch touches, relative to its operands: the unit that recorders hand to the trace writer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

READ, WRITE, ATOMIC = range(3)
"""Codes of ``Boxes.mode``, in the order of ``schema.MODES``."""


_TYPES = {
    "tile": np.int32, "operand": np.int32, "mode": np.int8, "offset": np.int64, "length": np.int64,
    "count_0": np.int32, "stride_0": np.int64, "count_1": np.int32, "stride_1": np.int64,
    "first": np.float32, "last": np.float32,
}  # fmt: skip


@dataclass(slots=True)
class Boxes:
    """Strided boxes as columns of equal length; see ``schema`` for what a box stands for.

    ``first`` and ``last`` are fractions of the tile's life, NaN where unknown.
    """

    tile: NDArray[np.int32]
    operand: NDArray[np.int32]
    mode: NDArray[np.int8]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    count_0: NDArray[np.int32]
    stride_0: NDArray[np.int64]
    count_1: NDArray[np.int32]
    stride_1: NDArray[np.int64]
    first: NDArray[np.float32]
    last: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tile)

    def take(self, rows: ArrayLike | slice) -> Boxes:
        """Return the boxes at these rows (an index array, a mask or a slice), in that order."""
        return Boxes(*(getattr(self, name)[rows] for name in _TYPES))

    @classmethod
    def of(
        cls,
        *,
        tile: ArrayLike,
        operand: ArrayLike,
        mode: ArrayLike,
        offset: ArrayLike,
        length: ArrayLike,
        count_0: ArrayLike = 1,
        stride_0: ArrayLike = 0,
        count_1: ArrayLike = 1,
        stride_1: ArrayLike = 0,
        first: ArrayLike = np.nan,
        last: ArrayLike = np.nan,
    ) -> Boxes:
        """Return boxes from columns that broadcast against each other (one dimension, or scalars)."""
        arrays = (tile, operand, mode, offset, length, count_0, stride_0, count_1, stride_1, first, last)
        columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c)) for c in arrays))
        return cls(*(np.ascontiguousarray(c, dtype=t) for c, t in zip(columns, _TYPES.values(), strict=True)))

    @classmethod
    def concat(cls, parts: Iterable[Boxes]) -> Boxes:
        """Return all boxes of ``parts``, in order; no boxes for no parts."""
        parts = list(parts)
        return cls(
            *(
                np.concatenate([getattr(p, name) for p in parts]) if parts else np.empty(0, type_)
                for name, type_ in _TYPES.items()
            )
        )

    def normalised(self) -> Boxes:
        """Return the same bytes, row by row, in few and ordered levels.

        Strides are positive, repetitions of the same bytes are gone, ``stride_0 <= stride_1``, and a level that
        continues the one below it is merged into it: a contiguous box has both counts 1. Unused levels have
        count 1 and stride 0. Two boxes of different form may still hold the same bytes.
        """
        offset, length = self.offset.copy(), self.length.copy()
        counts = [self.count_0.astype(np.int64), self.count_1.astype(np.int64)]
        strides = [self.stride_0.copy(), self.stride_1.copy()]
        for count, stride in zip(counts, strides, strict=True):
            offset += np.where(stride < 0, (count - 1) * stride, 0)
            np.abs(stride, out=stride)
            count[stride == 0] = 1
        _order(counts, strides)
        _merge_runs(length, counts, strides)
        _merge_levels(counts, strides)
        return replace(
            self, offset=offset, length=length,
            count_0=counts[0].astype(np.int32), stride_0=strides[0],
            count_1=counts[1].astype(np.int32), stride_1=strides[1],
        )  # fmt: skip


_Level = list[NDArray[np.int64]]


def _order(counts: _Level, strides: _Level) -> None:
    """Smaller stride inside, unused levels outside."""
    for count, stride in zip(counts, strides, strict=True):
        stride[count == 1] = 0
    swap = (counts[1] > 1) & ((counts[0] == 1) | (strides[1] < strides[0]))
    for level in (counts, strides):
        level[0][swap], level[1][swap] = level[1][swap], level[0][swap]


def _merge_runs(length: NDArray[np.int64], counts: _Level, strides: _Level) -> None:
    """Repetitions that touch or overlap become longer runs; then the outer level moves inside."""
    for _ in range(2):
        touching = (counts[0] > 1) & (strides[0] <= length)
        length += np.where(touching, (counts[0] - 1) * strides[0], 0)
        for level, unused in ((counts, 1), (strides, 0)):
            level[0] = np.where(touching, level[1], level[0])
            level[1] = np.where(touching, unused, level[1])


def _merge_levels(counts: _Level, strides: _Level) -> None:
    """An outer level whose repetitions continue the inner lattice becomes part of it."""
    step = np.where(strides[0] > 0, strides[0], 1)
    merged = counts[0] + (counts[1] - 1) * (strides[1] // step)
    fits = (counts[1] > 1) & (strides[1] % step == 0) & (strides[1] <= counts[0] * strides[0])
    fits &= merged <= np.iinfo(np.int32).max
    counts[0] = np.where(fits, merged, counts[0])
    counts[1] = np.where(fits, 1, counts[1])
    strides[1] = np.where(fits, 0, strides[1])


@dataclass(slots=True)
class Footprint:
    """The tiles of a launch and their accesses.

    Shapes: ``block`` is ``[tiles, 3]`` int32 (grid coordinates x, y, z of a tile's first block, tiles in
    hardware dispatch order); ``duration_ns`` is ``[tiles]`` float64 (modelled life of a tile) or None.
    """

    block: NDArray[np.int32]
    boxes: Boxes
    duration_ns: NDArray[np.float64] | None = None

    @property
    def tiles(self) -> int:
        return len(self.block)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch as a recorder saw it; fields as in ``schema.LAUNCHES``.

    ``operands`` binds each operand slot of the footprint to ``(buffer, offset in bytes)``.
    """

    footprint: int
    operands: tuple[tuple[int, int], ...]
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    duration_ns: int
    timing: str
    coverage: str
    fingerprint: str = ""
    op: str = ""
    module: str = ""
    stream: int = 0
    graph: int = -1
    cluster: tuple[int, int, int] = (1, 1, 1)
    registers: int = 0
    shared_bytes: int = 0
    blocks_per_sm: int = 1
    begin_ns: int = 0
    flops: int = 0
    note: str = field(default="")
    call: str = ""
    device: str = ""
    shape_source: str = ""
    time_source: str = ""
