"""Turns addresses of a Triton kernel into boxes: what each program loads, stores and updates.

An access whose address is affine and whose mask cuts a corner out of the lanes is a strided box per program, for all
programs in a few array operations. Others are evaluated lane by lane, where they are not too many; the rest gets the
bytes between the bounds of its addresses, or the operand whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.boxes import fold
from tileprof.record.model.compiled.lanes import Bools, Chunk, Lanes, Mask, Unknowable, elements
from tileprof.trace.footprint import Boxes

_MOST_LANES = 1 << 24
"""Lanes of an access, over all programs, that are evaluated one by one; beyond it the bounds have to do."""
_CHUNK_LANES = 1 << 19
_TIMES = 8
"""Parts of a program's life that are told apart, as in Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Space:
    """The memory behind a pointer argument, in bytes from where the pointer points: ``[low, high)``."""

    operand: int
    low: int
    high: int


@dataclass(slots=True)
class _Rows:
    """Boxes of one access: columns as in `Boxes`; ``when`` is the access's number in the program."""

    tile: I64
    operand: int
    mode: int
    offset: I64
    length: I64
    count: I64
    stride: I64
    when: int


class Accesses:
    """Collects the accesses of the programs ``tiles`` (numbers in the grid), which run together."""

    def __init__(self, tiles: I64) -> None:
        self.tiles = tiles
        self._rows: list[_Rows] = []
        self._accesses = 0
        self.bounded = False
        """True if some access is only known between bounds."""

    def add(self, mode: int, space: Space, offset: Any, itemsize: int, mask: Mask) -> None:
        """Add an access of ``offset`` elements from the pointer, in the lanes of the mask."""
        when, self._accesses = self._accesses, self._accesses + 1
        active = np.broadcast_to(~mask.never, self.tiles.shape)
        if not active.any():
            return
        if not isinstance(offset, Lanes):
            self._between(np.flatnonzero(active), mode, space, None, itemsize, when)
            return
        affine = active & offset.ok & mask.ok
        self._affine(affine, mode, space, offset, itemsize, mask, when)
        rest = np.flatnonzero(active & ~affine)
        if not len(rest):
            return
        if len(rest) * max(1, elements(offset.shape)) <= _MOST_LANES:
            try:
                self._dense(rest, mode, space, offset, itemsize, mask, when)
            except Unknowable:
                pass
            else:
                return
        self._between(rest, mode, space, offset, itemsize, when)

    def _append(
        self, rows: I64, mode: int, space: Space, offset: I64, length: Any, count: Any, stride: Any, when: int
    ) -> None:
        tile = self.tiles[rows]
        at, long, many, step = (
            np.broadcast_to(np.asarray(c, np.int64), tile.shape) for c in (offset, length, count, stride)
        )
        self._rows.append(_Rows(tile, space.operand, mode, at, long, many, step, when))

    def _between(self, rows: I64, mode: int, space: Space, offset: Lanes | None, itemsize: int, when: int) -> None:
        self.bounded = True
        low, high = np.array([space.low]), np.array([space.high])
        if offset is not None:
            low = np.maximum(low, offset.low * itemsize)
            high = np.minimum(high, offset.high * itemsize + itemsize)
        low, high = (np.broadcast_to(end, self.tiles.shape)[rows] for end in (low, high))
        inside = high > low
        self._append(rows[inside], mode, space, low[inside], (high - low)[inside], 1, 0, when)

    # ---- affine

    def _affine(
        self, chosen: Bools, mode: int, space: Space, offset: Lanes, itemsize: int, mask: Mask, when: int
    ) -> None:
        """Add boxes of programs with equal numbers of lanes in each dimension together."""
        rows = np.flatnonzero(chosen)
        if not len(rows):
            return
        base = np.broadcast_to(offset.base, self.tiles.shape)[rows] * itemsize
        shape = tuple(np.broadcast_shapes(offset.shape, mask.shape))
        steps = (0,) * (len(shape) - len(offset.shape)) + offset.coefficients
        extents = np.zeros((len(rows), len(shape)), np.int64)
        for axis, size in enumerate(shape):
            first, last = mask.clip.get(axis - len(shape), (np.zeros(1, np.int64), np.array([size])))
            first, last = (np.broadcast_to(end, self.tiles.shape)[rows] for end in (first, last))
            base = base + first * steps[axis] * itemsize
            extents[:, axis] = last - first
        key = extents @ np.array([_HASH ** (n + 1) % (1 << 61) for n in range(len(shape))], np.int64)
        for _, members in _groups(key):
            sizes = extents[members[0]].tolist()
            if min(sizes, default=1) <= 0:
                continue
            self._lattice(
                rows[members], mode, space, base[members], itemsize, list(zip(steps, sizes, strict=True)), when
            )

    def _lattice(
        self, rows: I64, mode: int, space: Space, base: I64, itemsize: int, axes: list[tuple[int, int]], when: int
    ) -> None:
        """Add one lattice per program: axes are (step in elements, lanes)."""
        levels: list[tuple[int, int]] = []
        for step, size in axes:
            if step and size > 1:
                base = base + min(0, step * (size - 1)) * itemsize
                levels.append((abs(step) * itemsize, size))
        length = itemsize
        strided: list[tuple[int, int]] = []
        for step, size in sorted(levels):
            if not strided and step <= length:
                length += step * (size - 1)
            elif strided and step == strided[-1][0] * strided[-1][1]:
                strided[-1] = strided[-1][0], strided[-1][1] * size
            else:
                strided.append((step, size))
        inner = max(strided, key=lambda level: level[1], default=(0, 1))
        if strided:
            strided.remove(inner)
        for place in product(*(range(size) for _, size in strided)):
            shift = sum(n * step for n, (step, _) in zip(place, strided, strict=True))
            self._append(rows, mode, space, base + shift, length, inner[1], inner[0], when)

    # ---- lane by lane

    def _dense(self, rows: I64, mode: int, space: Space, offset: Lanes, itemsize: int, mask: Mask, when: int) -> None:
        shape = tuple(np.broadcast_shapes(offset.shape, mask.shape))
        size = max(1, elements(shape))
        step = max(1, _CHUNK_LANES // size)
        parts = []
        for begin in range(0, len(rows), step):
            chunk = Chunk(rows[begin : begin + step])
            full = (len(chunk.rows), *shape)
            address = np.broadcast_to(offset.dense(chunk), full).reshape(len(chunk.rows), -1) * itemsize
            lanes = np.broadcast_to(mask.dense(chunk), full).reshape(len(chunk.rows), -1) != 0
            parts.append((chunk.rows, *_runs(address, lanes, itemsize)))
        for chunk_rows, row, begin_at, length in parts:
            first, count, stride = fold(begin_at, length, row)
            self._append(chunk_rows[row[first]], mode, space, begin_at[first], length[first], count, stride, when)

    # ---- all together

    def columns(self) -> list[_Rows]:
        """Return all boxes, as they were added."""
        return self._rows

    @property
    def count(self) -> int:
        """Accesses so far."""
        return self._accesses


_HASH = 1_000_003


def _groups(key: I64) -> list[tuple[int, I64]]:
    """Return the rows of each different key."""
    if bool((key == key[0]).all()):
        return [(int(key[0]), np.arange(len(key)))]
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.concatenate([[True], np.diff(key[order]) != 0]))
    return [(int(key[part[0]]), part) for part in np.split(order, begins[1:])]


def _runs(address: I64, lanes: Bools, itemsize: int) -> tuple[I64, I64, I64]:
    """Return the contiguous runs of active lanes of each row: row, begin and length, ordered."""
    far = np.iinfo(np.int64).max // 2
    ordered = np.sort(np.where(lanes, address, far), axis=1)
    there = ordered < far
    begins = there.copy()
    begins[:, 1:] &= np.diff(ordered, axis=1) > itemsize
    ends = there.copy()
    ends[:, :-1] &= ~there[:, 1:] | (np.diff(ordered, axis=1) > itemsize)
    row = np.nonzero(begins)[0]
    begin = ordered[begins]
    return row, begin, ordered[ends] + itemsize - begin


def boxes(parts: list[Accesses], spaces: list[Space]) -> Boxes:
    """Return the boxes of all programs, those that continue each other joined. Raises ValueError for an address that
    lies in no operand's memory.
    """
    keys, columns = [], []
    for part in parts:
        total = max(1, part.count)
        for rows in part.columns():
            time = rows.when * _TIMES // total
            n = len(rows.tile)
            keys.append(np.full(n, (rows.operand * 4 + rows.mode) * _TIMES + time, np.int64))
            times = np.full(n, rows.when / total), np.full(n, (rows.when + 1) / total)
            columns.append((rows.tile, rows.offset, rows.length, rows.count, rows.stride, *times))
    if not keys:
        return Boxes.concat(())
    key = np.concatenate(keys)
    tile, offset, length, count, stride = (np.concatenate([c[i] for c in columns]).astype(np.int64) for i in range(5))
    first, last = (np.concatenate([c[i] for c in columns]) for i in (5, 6))
    _check(key // _TIMES // 4, offset, length + (count - 1) * stride, spaces)
    for _ in range(2):
        order = np.lexsort((offset, stride, length * (count > 1), tile, key))
        key, tile, offset, length, count, stride, first, last = (
            c[order] for c in (key, tile, offset, length, count, stride, first, last)
        )
        same = (key[1:] == key[:-1]) & (tile[1:] == tile[:-1])
        single = same & (count[1:] == 1) & (count[:-1] == 1)
        end = _running_end(offset, length, single)
        touching = single & (offset[1:] <= end[:-1])
        lattice = same & (count[1:] > 1) & (count[:-1] > 1) & (length[1:] == length[:-1]) & (stride[1:] == stride[:-1])
        lattice &= offset[1:] == offset[:-1] + count[:-1] * stride[:-1]
        repeated = same & (count[1:] > 1) & (offset[1:] == offset[:-1]) & (length[1:] == length[:-1])
        repeated &= (stride[1:] == stride[:-1]) & (count[1:] == count[:-1])
        heads = np.flatnonzero(np.concatenate([[True], ~(touching | lattice | repeated)]))
        repeats = np.concatenate([[False], repeated])
        count = np.where(count[heads] > 1, np.add.reduceat(np.where(repeats, 0, count), heads), 1)
        length = np.where(count > 1, length[heads], np.maximum.reduceat(offset + length, heads) - offset[heads])
        first, last = np.minimum.reduceat(first, heads), np.maximum.reduceat(last, heads)
        key, tile, offset, stride = key[heads], tile[heads], offset[heads], np.where(count > 1, stride[heads], 0)
    heads, count_1, stride_1 = fold(offset, key, tile, length, count, stride)
    order = np.argsort(tile[heads], kind="stable")
    code = (key // _TIMES)[heads]
    latest = np.maximum.reduceat(last, heads)
    return Boxes.of(
        tile=tile[heads][order], operand=(code // 4)[order], mode=(code % 4)[order], offset=offset[heads][order],
        length=length[heads][order], count_0=count[heads][order], stride_0=stride[heads][order],
        count_1=count_1[order], stride_1=stride_1[order], first=first[heads][order], last=latest[order],
    )  # fmt: skip


def _running_end(offset: I64, length: I64, single: Bools) -> I64:
    """Return the furthest end so far in each stretch of contiguous boxes of one tile, operand and mode."""
    end = offset + length
    starts = np.concatenate([[True], ~single])
    group = np.cumsum(starts)
    wide = int(end.max() - offset.min()) + 1  # stretches stay apart
    furthest: I64 = np.maximum.accumulate(end + group * wide) - group * wide
    return furthest


def _check(operand: I64, low: I64, extent: I64, spaces: list[Space]) -> None:
    bounds = {space.operand: space for space in spaces}
    lows = np.array([bounds[n].low if n in bounds else 0 for n in range(max(bounds) + 1)])
    highs = np.array([bounds[n].high if n in bounds else 0 for n in range(max(bounds) + 1)])
    outside = (low < lows[operand]) | (low + extent > highs[operand])
    if outside.any():
        raise ValueError(f"an address of operand {int(operand[outside][0])} lies outside its memory")
