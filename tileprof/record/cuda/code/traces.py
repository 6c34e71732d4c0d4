"""Launches as `traced` follows them, and what it finds that they touch: behind pointers, and at addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.intervals import grouped_union
from tileprof.record.cuda.footprints.runs import Runs
from tileprof.record.cuda.tensor_maps import tensormap
from tileprof.record.cuda.tensor_maps.loads import Loads
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap

Triple = tuple[int, int, int]
POINTER_BITS: Final = 40
"""A pointer among the parameters stands for its number from 1 on, times 2 to this power: nothing that is added to it
reaches another."""
_KEY_BITS: Final = 63
MAP_BYTES: Final = 64
MOST_ROWS: Final = 2_000_000
"""Runs that are collected before they are united."""
LOW_BITS: Final = 8
"""Lowest bits of pointers that decide something. Launches are alike only where these are the same."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch: sizes, constant bank 0 up to the end of the parameters, offsets in it of words that point into memory.

    ``begin``: offset of the first parameter. ``pointers``: of words of 8 bytes, which may have any value.
    """

    grid: Triple
    block: Triple
    cluster: Triple
    bank: bytes
    begin: int
    pointers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TensorAccess:
    """Boxes loaded or stored through the map at an offset in constant bank 0: linear block, coordinates ``[n, 5]``, and
    after how many instructions of the block.
    """

    map: int
    mode: int
    tile: I64
    coordinates: I64
    first: I64


@dataclass(frozen=True, slots=True)
class Trace:
    """What launches touch that differ in nothing but their pointers.

    ``rows``: by mode, (linear block, pointer, begin, end, first) of bytes behind the pointer at that offset in constant
    bank 0, or -1 where begin and end are addresses; first touched after that many instructions of the block.
    ``tensors``: boxes of tensor maps. ``steps``: instructions of each block. ``used``: which words of constant bank 0
    all this depends on, ``[words]``: a launch whose other words differ does the same.
    """

    rows: dict[int, I64]
    tensors: list[TensorAccess]
    steps: I64
    used: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Placed:
    """What one launch touches: runs at addresses by mode, boxes of tensor maps with their modes, tiles being linear
    block ids; and instructions of each block, the unit of ``first``.
    """

    runs: dict[int, Runs]
    boxes: list[tuple[int, Loads]]
    steps: I64


def has_high_pointers(launch: Launch) -> bool:
    """Return whether all pointers of a launch are so high that none is null, whatever is added to it."""
    return all(_word_at(launch.bank, pointer) >> POINTER_BITS for pointer in launch.pointers)


def low_bits(launch: Launch, pointer: int) -> int:
    """Return the bits of a pointer on which the result may depend."""
    return _word_at(launch.bank, pointer) & (1 << LOW_BITS) - 1


def placed(found: Trace, launch: Launch) -> Placed:
    """Return what a launch touches whose pointers are those in its constant bank."""
    out = {}
    for mode, rows in found.rows.items():
        pointers, which = np.unique(rows[:, 1], return_inverse=True)
        base = np.array([_word_at(launch.bank, p) if p >= 0 else 0 for p in pointers.tolist()], np.int64)[which.ravel()]
        out[mode] = _united(rows[:, 0], rows[:, 2] + base, rows[:, 3] + base, rows[:, 4])
    boxes = []
    for tensor in found.tensors:
        map_ = map_at(launch.bank, tensor.map)
        assert map_ is not None
        offsets = np.zeros(len(tensor.tile), np.int64)
        boxes.append((tensor.mode, Loads(map_, tensor.tile, tensor.coordinates, tensor.first, offsets)))
    return Placed(out, boxes, found.steps)


def _united(tile: I64, start: I64, end: I64, first: I64) -> Runs:
    order = np.lexsort((start, tile))
    tile, start, end, first = tile[order], start[order], end[order], first[order]
    row, start, end = grouped_union(tile, start, end)
    return Runs(tile[row], start, end, np.minimum.reduceat(first, row) if len(row) else first)


def _word_at(bank: bytes, at: int) -> int:
    return int.from_bytes(bank[at : at + 8], "little")


def map_at(bank: bytes, at: int) -> TensorMap | None:
    """Return the tensor map at an offset in constant bank 0; None where there can be none."""
    return tensormap.decode(np.frombuffer(bank[at : at + MAP_BYTES], "<u4"), loaded=True)


@dataclass(slots=True)
class Collected:
    """Collects what blocks touch."""

    pointers: int
    pending: dict[int, list[I64]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    tensors: dict[tuple[int, int], list[I64]] = field(default_factory=dict)

    def add(self, mode: int, rows: I64) -> None:
        """Add rows (block, number of the pointer, begin, end, first)."""
        self.pending.setdefault(mode, []).append(rows)
        self.counts[mode] = self.counts.get(mode, 0) + len(rows)
        if self.counts[mode] > MOST_ROWS:
            self.counts[mode] = min(0, MOST_ROWS - 2 * len(self.unite(mode)))

    def unite(self, mode: int) -> I64:
        """Unite the rows of a mode, and return them."""
        rows = np.concatenate(self.pending[mode])
        group = rows[:, 0] * (self.pointers + 1) + rows[:, 1]
        least = int(rows[:, 2].min())
        bits = (int(rows[:, 2].max()) - least).bit_length()
        if bits + int(group.max()).bit_length() < _KEY_BITS:
            order = np.argsort(group << bits | rows[:, 2] - least)
        else:
            order = np.lexsort((rows[:, 2], group))
        rows, group = rows[order], group[order]
        row, begin, end = grouped_union(group, rows[:, 2], rows[:, 3])
        first = np.minimum.reduceat(rows[:, 4], row)
        rows = np.stack([rows[row, 0], rows[row, 1], begin, end, first], axis=1)
        self.pending[mode] = [rows]
        return rows

    def boxes(self) -> list[TensorAccess]:
        """Return the boxes of each map, each once per block, when it was first."""
        out = []
        for (at, mode), parts in sorted(self.tensors.items()):
            table = np.concatenate(parts)
            table = table[np.lexsort(table.T[::-1])]  # by block, coordinates, first
            new = np.concatenate([[True], (table[1:, :-1] != table[:-1, :-1]).any(axis=1)])
            table = table[new]
            out.append(TensorAccess(at, mode, table[:, 0], table[:, 1:-1], table[:, -1]))
        return out
