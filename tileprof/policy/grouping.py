"""Which producer tiles may share a semaphore: the candidates from grid to tile, and what consumers then await."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.affine import fit
from tileprof.analysis.blocks import EdgeBlock
from tileprof.analysis.ranges import ragged
from tileprof.policy.expression import parse
from tileprof.policy.format import Edge, Range, Semaphores, WaitTable

I64 = NDArray[np.int64]
Grid = tuple[int, int, int]
_AXES = ("x", "y", "z")


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
        """Semaphore coordinates ``[rows, 3]`` of tile coordinates ``[rows, 3]``."""
        scope = {axis: at[:, n] for n, axis in enumerate(_AXES)}
        return np.stack([parse(text, _AXES)(scope) for text in self.texts], axis=1)


def groupings(grid: Grid, parents: I64, sets: I64) -> Iterator[Grouping]:
    """Candidates from coarse to fine; ``parents`` ``[rows, 3]`` are coordinates of all parents, ``sets`` ``[rows]`` their set."""
    wide = [n for n in range(3) if grid[n] > 1]
    for count in range(len(wide) + 1):
        for axes in combinations(wide, count):
            x, y, z = (_AXES[n] if n in axes else "0" for n in range(3))
            u, v, w = (grid[n] if n in axes else 1 for n in range(3))
            yield Grouping(_name(axes, wide), (u, v, w), (x, y, z))
    for axis in wide:
        for divisor in _divisors(grid[axis], parents[:, axis], sets):
            yield _one_axis("interval", grid, axis, f"{_AXES[axis]} // {divisor}", -(-grid[axis] // divisor))
        stride = _stride(parents[:, axis], sets)
        if stride > 1:
            yield _one_axis("strided", grid, axis, f"{_AXES[axis]} % {stride}", stride)


def _name(axes: tuple[int, ...], wide: list[int]) -> str:
    if not axes:
        return "grid"
    return "tile" if len(axes) == len(wide) else "row"


def _one_axis(name: str, grid: Grid, axis: int, text: str, size: int) -> Grouping:
    texts = [_AXES[n] if grid[n] > 1 else "0" for n in range(3)]
    sizes = list(grid)
    texts[axis], sizes[axis] = text, size
    return Grouping(name, (sizes[0], sizes[1], sizes[2]), (texts[0], texts[1], texts[2]))


def _divisors(size: int, at: I64, sets: I64) -> list[int]:
    """Block sizes along one axis of which every parent set holds whole blocks."""
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


def edge_for(
    block: EdgeBlock,
    grouping: Grouping,
    producer: I64,
    consumer: I64,
    stages: tuple[int, int],
    hazards: tuple[str, ...],
) -> tuple[Semaphores, Edge]:
    """Semaphores and waits under a grouping; every consumer tile awaits each semaphore that a parent posts, in full.

    ``producer`` and ``consumer`` ``[tiles, 3]`` are grid coordinates by trace tile. Waits are boxes of semaphores where these fit
    exactly, else a table.
    """
    gu, gv, _ = grouping.grid
    where = grouping.of(producer)
    number = where[:, 0] + gu * (where[:, 1] + gv * where[:, 2])
    posts = np.bincount(number, minlength=grouping.grid[0] * gv * grouping.grid[2]).astype(np.int64)
    owner, _ = ragged(np.diff(block.indptr))
    rows = np.unique(owner * len(posts) + number[block.parent])
    owner, awaited = rows // len(posts), rows % len(posts)
    indptr = np.searchsorted(owner, np.arange(block.sets + 1)).astype(np.int64)
    texts = tuple(parse(text, _AXES) for text in grouping.texts)
    semaphores = Semaphores(stages[0], grouping.grid, (texts[0], texts[1], texts[2]))
    ranges = _boxes(block, indptr, awaited, grouping.grid, consumer)
    value = _value(posts, grouping.grid)
    if ranges is not None and value is not None:
        expression = parse(value, ("x", "y", "z", "u", "v", "w"))
        points = all(r.low == r.high for r in ranges)
        kind = grouping.name if points or grouping.name in {"grid", "row"} else "interval"
        return semaphores, Edge(*stages, hazards, kind, 0, ranges, expression)
    table, values = _table(block, indptr, awaited, posts, consumer)
    return semaphores, Edge(*stages, hazards, "table", 0, table, values)


def _boxes(block: EdgeBlock, indptr: I64, awaited: I64, grid: Grid, consumer: I64) -> tuple[Range, Range, Range] | None:
    """Ranges along each axis that are exactly the awaited semaphores, as expressions of the consumer's coordinates."""
    tiles = np.flatnonzero(block.set_of >= 0)
    if len(tiles) < len(consumer) and len(tiles) > 0:
        return None  # tiles that await nothing need a table: a range always names something
    at = np.stack([awaited % grid[0], awaited // grid[0] % grid[1], awaited // (grid[0] * grid[1])], axis=1)
    low, high = np.minimum.reduceat(at, indptr[:-1]), np.maximum.reduceat(at, indptr[:-1])
    sets = block.set_of[tiles]
    ranges = []
    count = np.ones(block.sets, np.int64)
    for axis in range(3):
        step = _step(at[:, axis], indptr)
        count *= (high[:, axis] - low[:, axis]) // step + 1
        texts = [fit(bound[sets, axis], consumer[tiles], _AXES, grid[axis] - 1) for bound in (low, high)]
        if texts[0] is None or texts[1] is None:
            return None
        ranges.append(Range(parse(texts[0], _AXES), parse(texts[1], _AXES), step))
    return (ranges[0], ranges[1], ranges[2]) if (count == np.diff(indptr)).all() else None


def _step(at: I64, indptr: I64) -> int:
    owner, _ = ragged(np.diff(indptr))
    order = np.lexsort((at, owner))
    steps = np.diff(at[order])[owner[order][1:] == owner[order][:-1]]
    steps = steps[steps > 0]
    return int(steps[0]) if len(steps) and (steps == steps[0]).all() else 1


def _value(posts: I64, grid: Grid) -> str | None:
    used = np.flatnonzero(posts)
    at = np.stack([used % grid[0], used // grid[0] % grid[1], used // (grid[0] * grid[1])], axis=1)
    return fit(posts[used], at, ("u", "v", "w"), int(posts.max()))


def _table(block: EdgeBlock, indptr: I64, awaited: I64, posts: I64, consumer: I64) -> tuple[WaitTable, tuple[int, ...]]:
    """Waits tile by tile, in the order of the policy's tile numbers."""
    gx, gy, _ = consumer.max(axis=0) + 1
    by_number = np.argsort(consumer[:, 0] + gx * (consumer[:, 1] + gy * consumer[:, 2]), kind="stable")
    sets = block.set_of[by_number]
    sizes = np.where(sets >= 0, np.diff(indptr)[sets], 0)
    owner, place = ragged(sizes)
    semaphore = awaited[indptr[sets[owner]] + place]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return WaitTable(tuple(ends.tolist()), tuple(semaphore.tolist())), tuple(posts[semaphore].tolist())
