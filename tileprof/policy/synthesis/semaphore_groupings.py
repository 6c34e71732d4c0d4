"""Groups producer tiles that share a semaphore: the candidates from grid to tile, and the waits of consumers under
each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import gcd
from typing import Final

import numpy as np

from tileprof.analysis.dependencies.affine import fit
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.arrays import I64, grids
from tileprof.arrays.ragged import ragged
from tileprof.policy.format import Edge, Range, Semaphores, WaitTable
from tileprof.policy.format.expression import parse

Grid = tuple[int, int, int]
_AXES = ("x", "y", "z")

MOST_WAITS: Final = 20_000_000
"""Waits of an edge that are worth modelling; coarser semaphores need fewer."""

_VALUE = (*_AXES, "u", "v", "w")


@dataclass(frozen=True, slots=True)
class Grouping:
    """A map from producer tile to semaphore: along each axis ``x``, ``x // d``, ``x % d`` or 0."""

    name: str
    grid: Grid
    texts: tuple[str, str, str]

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def of(self, at: I64) -> I64:
        """Return semaphore coordinates ``[rows, 3]`` of tile coordinates ``[rows, 3]``."""
        scope = {axis: at[:, n] for n, axis in enumerate(_AXES)}
        return np.stack([parse(text, _AXES)(scope) for text in self.texts], axis=1)


def groupings(grid: Grid, parents: I64, sets: I64) -> Iterator[Grouping]:
    """Yield candidates from coarse to fine; ``parents`` ``[rows, 3]`` are coordinates of all parents, ``sets``
    ``[rows]`` their set.
    """
    wide = [n for n in range(3) if grid[n] > 1]
    for count in range(len(wide) + 1):
        for axes in combinations(wide, count):
            x, y, z = (_AXES[n] if n in axes else "0" for n in range(3))
            u, v, w = (grid[n] if n in axes else 1 for n in range(3))
            yield Grouping(_name(axes, wide), (u, v, w), (x, y, z))
    for axis in wide:
        parts = [("interval", f"{_AXES[axis]} // {divisor}", -(-grid[axis] // divisor))
                 for divisor in _divisors(grid[axis], parents[:, axis], sets)]  # fmt: skip
        stride = _stride(parents[:, axis], sets)
        if stride > 1:
            parts.append(("strided", f"{_AXES[axis]} % {stride}", stride))
        others = [n for n in wide if parts and n != axis and not _taken_whole(grid, n, parents, sets)]
        for name, text, size in parts:
            yield _one_axis(name, grid, axis, text, size, others)


def _name(axes: tuple[int, ...], wide: list[int]) -> str:
    if not axes:
        return "grid"
    return "tile" if len(axes) == len(wide) else "row"


def _one_axis(name: str, grid: Grid, axis: int, text: str, size: int, others: list[int]) -> Grouping:
    """Return a grouping by ``text`` along an axis and by each tile of the axes ``others``."""
    texts = [_AXES[n] if n in others else "0" for n in range(3)]
    sizes = [grid[n] if n in others else 1 for n in range(3)]
    texts[axis], sizes[axis] = text, size
    return Grouping(name, (sizes[0], sizes[1], sizes[2]), (texts[0], texts[1], texts[2]))


def _taken_whole(grid: Grid, axis: int, parents: I64, sets: I64) -> bool:
    """Return whether every parent set has all tiles along an axis or none, so that telling them apart gains nothing."""
    if len(parents) % grid[axis]:
        return False
    rest = sets.astype(np.int64)
    for n in range(3):
        if n != axis:
            rest = rest * grid[n] + parents[:, n]
    _, tiles = np.unique(rest, return_counts=True)
    return bool((tiles == grid[axis]).all())


def _divisors(size: int, at: I64, sets: I64) -> list[int]:
    """Return block sizes along one axis of which every parent set holds whole blocks."""
    starts = np.flatnonzero(np.concatenate([[True], sets[1:] != sets[:-1]]))
    low, high = np.minimum.reduceat(at, starts), np.maximum.reduceat(at, starts) + 1
    edges = np.concatenate([low, high[high < size]])
    common = int(np.gcd.reduce(edges)) if len(edges) else 0
    return [common] if 1 < common < size else []


def _stride(at: I64, sets: I64) -> int:
    order = np.lexsort((at, sets))
    steps = np.diff(at[order])[sets[order][1:] == sets[order][:-1]]
    steps = steps[steps > 0]
    return int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Semaphores ``number[indptr[s]:indptr[s + 1]]`` that parent set ``s`` awaits; ``posts`` that each gets."""

    indptr: I64
    number: I64
    posts: I64
    grid: Grid

    @classmethod
    def of(cls, block: EdgeBlock, grouping: Grouping, producer: I64) -> _Awaited:
        gu, gv, gw = grouping.grid
        where = grouping.of(producer)
        number = where[:, 0] + gu * (where[:, 1] + gv * where[:, 2])
        posts = np.bincount(number, minlength=gu * gv * gw).astype(np.int64)
        owner, _ = ragged(np.diff(block.indptr))
        rows = np.unique(owner * len(posts) + number[block.parent])
        indptr = np.searchsorted(rows // len(posts), np.arange(block.sets + 1)).astype(np.int64)
        return cls(indptr, rows % len(posts), posts, grouping.grid)

    def at(self) -> I64:
        """Return coordinates ``[rows, 3]`` of ``number``."""
        gu, gv, _ = self.grid
        return np.stack([self.number % gu, self.number // gu % gv, self.number // (gu * gv)], axis=1)

    def bounds(self) -> tuple[I64, I64]:
        """Return least and greatest coordinates ``[sets, 3]``, both awaited."""
        at = self.at()
        return np.minimum.reduceat(at, self.indptr[:-1]), np.maximum.reduceat(at, self.indptr[:-1])


def waits_of(block: EdgeBlock, grouping: Grouping, producer: I64) -> int:
    """Return how many waits a grouping makes of all dependencies, one for each tile and semaphore."""
    waits = _Awaited.of(block, grouping, producer)
    return int(np.diff(waits.indptr)[block.set_of[block.set_of >= 0]].sum())


def edge_for(
    block: EdgeBlock,
    grouping: Grouping,
    producer: I64,
    consumer: I64,
    stages: tuple[int, int],
    hazards: tuple[str, ...],
) -> tuple[Semaphores, Edge]:
    """Return semaphores and waits under a grouping; every consumer tile awaits each semaphore that a parent posts, in
    full.

    ``producer`` and ``consumer`` ``[tiles, 3]`` are grid coordinates by trace tile. Waits are boxes of semaphores where
    these fit exactly, else a table.
    """
    waits = _Awaited.of(block, grouping, producer)
    semaphores = _semaphores(grouping, stages[0])
    ranges = _boxes(block, waits, consumer)
    value = _value(waits.posts, grouping.grid)
    if ranges is not None and value is not None:
        points = all(r.low == r.high for r in ranges)
        kind = grouping.name if points or grouping.name in {"grid", "row"} else "interval"
        return semaphores, Edge(*stages, hazards, kind, 0, ranges, parse(value, _VALUE))
    table, values = _table(block, waits, consumer)
    return semaphores, Edge(*stages, hazards, "table", 0, table, values)


def hull_for(
    block: EdgeBlock,
    grouping: Grouping,
    producer: I64,
    consumer: I64,
    stages: tuple[int, int],
    hazards: tuple[str, ...],
) -> tuple[Semaphores, Edge] | None:
    """Return waits for more than a parent posts where no expression says just that: a range along each axis that never
    misses one.

    Bounds are ``(p*k) // q + r`` of one consumer coordinate, clipped to the grid: windows that break at the edge of an
    image, or in a ragged last tile, keep the slope of the others. None where not even the posts fit an expression, or
    for more than `MOST_WAITS`.
    """
    waits = _Awaited.of(block, grouping, producer)
    value = _value(waits.posts, grouping.grid)
    if value is None:
        return None
    waiting = np.flatnonzero(block.set_of >= 0)
    low, high = (bound[block.set_of[waiting]] for bound in waits.bounds())
    spans = [envelope(low[:, axis], high[:, axis], waiting, consumer, grouping.grid[axis] - 1) for axis in range(3)]
    ranges = tuple(Range(parse(first, _AXES), parse(last, _AXES)) for first, last in spans)
    scope = {axis: consumer[:, n] for n, axis in enumerate(_AXES)}
    widths = [np.maximum(0, r.high(scope) - r.low(scope) + 1) for r in ranges]
    if int((widths[0] * widths[1] * widths[2]).sum()) > MOST_WAITS:
        return None
    edge = Edge(*stages, hazards, "interval", 0, (ranges[0], ranges[1], ranges[2]), parse(value, _VALUE))
    return _semaphores(grouping, stages[0]), edge


def envelope(low: I64, high: I64, waiting: I64, consumer: I64, top: int) -> tuple[str, str]:
    """Return the narrowest ``first..last`` in one of x, y and z that holds ``low`` to ``high``, within ``[0, top]`` on
    every tile.

    ``low`` and ``high`` are those of the tiles ``waiting``; ``consumer`` ``[tiles, 3]`` are coordinates of all.
    """
    best = int(high.max() - low.min()) * len(low), str(int(low.min())), str(int(high.max()))
    for axis, name in enumerate(_AXES):
        size = int(consumer[:, axis].max()) + 1
        if size == 1:
            continue
        common = gcd(top + 1, size)
        p, q = (top + 1) // common, size // common
        line = p * consumer[:, axis] // q
        own = line[waiting]
        before, behind = int((own - low).max()), int((high - own).max())
        width = int((np.minimum(top, own + behind) - np.maximum(0, own - before)).sum())
        if width < best[0]:
            slope = name if p == q else (f"{p}*{name}" if p > 1 else name) + (f" // {q}" if q > 1 else "")
            best = width, _clipped(slope, line, -before, top), _clipped(slope, line, behind, top)
    return best[1], best[2]


def _clipped(slope: str, line: I64, shift: int, top: int) -> str:
    text = slope if shift == 0 else f"{slope} {'+' if shift > 0 else '-'} {abs(shift)}"
    if int(line.max()) + shift > top:
        text = f"min({top}, {text})"
    return f"max(0, {text})" if int(line.min()) + shift < 0 else text


def _semaphores(grouping: Grouping, producer: int) -> Semaphores:
    x, y, z = (parse(text, _AXES) for text in grouping.texts)
    return Semaphores(producer, grouping.grid, (x, y, z))


def _boxes(block: EdgeBlock, awaited: _Awaited, consumer: I64) -> tuple[Range, Range, Range] | None:
    """Return ranges along each axis that are exactly the awaited semaphores, as expressions of the consumer's
    coordinates.
    """
    tiles = np.flatnonzero(block.set_of >= 0)
    if len(tiles) < len(consumer) and len(tiles) > 0:
        return None  # tiles that await nothing need a table: a range always names something
    at, (low, high) = awaited.at(), awaited.bounds()
    sets = block.set_of[tiles]
    ranges = []
    count = np.ones(block.sets, np.int64)
    for axis in range(3):
        step = _step(at[:, axis], awaited.indptr)
        count *= (high[:, axis] - low[:, axis]) // step + 1
        texts = [fit(bound[sets, axis], consumer[tiles], _AXES, awaited.grid[axis] - 1) for bound in (low, high)]
        if texts[0] is None or texts[1] is None:
            return None
        ranges.append(Range(parse(texts[0], _AXES), parse(texts[1], _AXES), step))
    return (ranges[0], ranges[1], ranges[2]) if (count == np.diff(awaited.indptr)).all() else None


def _step(at: I64, indptr: I64) -> int:
    owner, _ = ragged(np.diff(indptr))
    order = np.lexsort((at, owner))
    steps = np.diff(at[order])[owner[order][1:] == owner[order][:-1]]
    steps = steps[steps > 0]
    return int(steps[0]) if len(steps) and (steps == steps[0]).all() else 1


def _value(posts: I64, grid: Grid) -> str | None:
    posted = np.flatnonzero(posts)
    at = np.stack(grids.place(grid, posted), axis=1)
    return fit(posts[posted], at, _VALUE[3:], int(posts.max()))


def _table(block: EdgeBlock, awaited: _Awaited, consumer: I64) -> tuple[WaitTable, tuple[int, ...]]:
    """Return waits tile by tile, in the order of the policy's tile numbers."""
    gx, gy, _ = consumer.max(axis=0) + 1
    by_number = np.argsort(consumer[:, 0] + gx * (consumer[:, 1] + gy * consumer[:, 2]), kind="stable")
    sets = block.set_of[by_number]
    sizes = np.where(sets >= 0, np.diff(awaited.indptr)[sets], 0)
    owner, place = ragged(sizes)
    semaphore = awaited.number[awaited.indptr[sets[owner]] + place]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return WaitTable(tuple(ends.tolist()), tuple(semaphore.tolist())), tuple(awaited.posts[semaphore].tolist())
