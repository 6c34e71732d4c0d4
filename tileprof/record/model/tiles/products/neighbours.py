"""Entries of the table of products that are like a problem which was not measured.

Only entries of the same operation, type and layouts are neighbours, first those of the same alignment: libraries choose
among other kernels for others.

*Kernels* are those of the nearest entry. The distance sums factors of two of m, n, k and the batch, and how many waves
tiles of several shapes fill and how full the last one is, which decides between tiles. *Times* are those of the four
nearest measured entries, in units of a roofline, weighed by 1 / distance squared; another tile is a distance, too.
`tests/benchmarks/model_recorder/bench_products_held_out.py --leave-one-out` tests both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.arrays.ragged import spans
from tileprof.record.model.tables.product_entries import KINDS, RECIPE, Recipe, time_ns
from tileprof.record.model.tiles.products import problem as problems

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table
    from tileprof.record.model.tiles.products.problem import Problem

_ALIGNED: Final = {problems.FP32: 4, problems.TF32: 4, problems.FP16: 8, problems.BF16: 8, problems.FP8: 16}
"""Elements of 16 bytes, which kernels copy at once."""
_BATCH, _M, _N, _K = 4, 5, 6, 7
_SIZES, _M_AND_N = 4, slice(1, 3)
"""Features that are sizes come first; m and n among them."""
_CELL, _CELLS = 0.5, 64
"""Sides of cells that entries lie in, in factors of two of m and of n, and how many."""
_RADIUS, _FARTHEST = 1.0, 1000.0
"""How far away is looked at first, and where nothing lies any more."""
_SIZE_WEIGHTS: Final = np.array([1.0, 1.0, 1.0, 0.5])
"""Weights of the batch, m, n, k."""
_SIDES: Final = (8, 16, 32, 64, 128, 256)
_TILES: Final = ((64, 64), (128, 128), (128, 256), (256, 128), (64, 128), (128, 64))
_SIDE_WEIGHT, _WAVE_WEIGHT, _OTHER_ALIGNMENT = 0.3, 0.5, 4.0
_SMS: Final = 132
"""SMs of the GPU on which the weights were tried."""
_TIMED, _NEAR, _OTHER_TILE, _OTHER_KIND = 4, 0.05, 1.0, 2.0
"""How many entries give a time; what keeps weights finite; how far away another tile is, and another library's
kernel.
"""
_DEPTH: Final = 4.0
"""The weight of k where a vector's blocks are told."""
_KIND: Final = RECIPE.index("kind")
_TILE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]
_ITEMSIZE: Final = (4, 4, 2, 2, 1)
_FLOPS_PER_NS: Final = (50e3, 350e3, 750e3, 750e3, 1400e3)
_BYTES_PER_NS, _START_NS = 3.5e3, 3000.0
"""By type (fp32, tf32, fp16, bf16, fp8). Only differences between near problems count."""


@dataclass(frozen=True, slots=True)
class _Likes:
    """Entries of one operation, type and layouts: their rows, sizes ``[4, entries]``, other features ``[entries,
    features]``, and ``cell``, the cell of alignment, m and n that each lies in, in rising order; ``alignments
    [alignments, 3]`` are those of m, n and k that there are.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.float32]
    features: NDArray[np.float32]
    cell: NDArray[np.int64]
    alignments: NDArray[np.int64]

    def within(
        self, sizes: NDArray[np.float32], alignments: NDArray[np.int64], radius: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return entries, all of those among them that are at most ``radius`` away, and lower bounds of their
        distances: sizes and alignments alone.
        """
        other = _OTHER_ALIGNMENT * (self.alignments != alignments).sum(axis=1)
        kinds = np.flatnonzero(other <= radius)
        apart = (radius - other[kinds])[:, None]
        (low_m, high_m), (low_n, high_n) = (_cells(size + np.stack([-apart, apart])) for size in sizes[_M_AND_N])
        m = np.arange(int(low_m.min(initial=_CELLS)), int(high_m.max(initial=0)) + 1)
        first = (kinds[:, None] * _CELLS + m) * _CELLS
        looked_at = (m >= low_m) & (m <= high_m)
        ends = np.searchsorted(self.cell, np.stack([(first + low_n)[looked_at], (first + high_n + 1)[looked_at]]))
        lengths = ends[1] - ends[0]
        some = spans(ends[0], lengths)
        apart = np.repeat(np.broadcast_to(other[kinds, None], looked_at.shape)[looked_at], lengths).astype(np.float32)
        for own, size in zip(self.sizes, sizes, strict=True):
            apart += np.abs(own[some] - size)
        return some, apart


@dataclass(frozen=True, slots=True)
class _Timed:
    """Measured entries of one operation, type and layouts: rows, sizes as powers of two ``[4, entries]``, alignments
    ``[3, entries]``, words for tiles with clusters and slices (`_word`), kinds of kernels, and logarithms of times in
    units of a roofline.
    """

    rows: NDArray[np.int64]
    sizes: NDArray[np.float32]
    aligned: NDArray[np.int8]
    tiles: NDArray[np.int64]
    kinds: NDArray[np.int32]
    ratio: NDArray[np.float64]


def nearest(
    problem: Problem, table: Table, count: int, *, without: int | NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ``count`` entries most like a problem, the nearest first, and their distances; none where no entry is
    like it. ``without`` are left out.
    """
    likes = _likes(problem, table)
    own, alignments = _features(_key(problem))[0], _own_alignment(problem)[0]

    def near(radius: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        some, apart = likes.within(own[:_SIZES], alignments, radius)
        inside = np.flatnonzero(apart <= radius)
        if without is not None:
            inside = inside[~np.isin(likes.rows[some[inside]], without)]
        return some[inside], apart[inside]

    def whole(some: NDArray[np.int64], apart: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(apart + np.abs(likes.features[some] - own[_SIZES:]).sum(axis=1), np.float32)

    radius = _RADIUS
    while len((some := near(radius))[0]) < count and radius < _FARTHEST:
        radius *= 2
    if len(some[0]) >= count:  # beyond the distance of any ``count`` entries are none of the nearest
        close = np.argpartition(some[1], count - 1)[:count]
        some = near(float(whole(some[0][close], some[1][close]).max()))
    rows, apart = likes.rows[some[0]], whole(*some)
    if len(rows) > count:  # of entries as far away as the last one the first of the table are taken
        inside = apart <= np.partition(apart, count - 1)[count - 1]
        rows, apart = rows[inside], apart[inside]
    order = np.lexsort((rows, apart))[:count]
    return rows[order], apart[order].astype(np.float64)


def times(problem: Problem, table: Table, recipe: Recipe, *, without: int | None = None) -> float:
    """Return the time in ns of all launches of a product with this recipe; 0 where nothing like it was measured."""
    timed = _timed_entries(problem, table)
    if not len(timed.rows):
        return 0.0
    key = _key(problem)
    apart = np.zeros(len(timed.rows), np.float32)
    for own, size in zip(timed.sizes, _sizes(key)[0].astype(np.float32), strict=True):
        apart += np.abs(own - size)
    for own, unit in zip(timed.aligned, _own_alignment(problem)[0], strict=True):
        apart += own != unit
    apart += _OTHER_TILE * (timed.tiles != _word(recipe.m, recipe.n, *recipe.cluster, recipe.split))
    apart += _OTHER_KIND * (timed.kinds != KINDS.index(recipe.kind))
    if without is not None:
        apart[timed.rows == without] = np.inf
    nearest = np.argpartition(apart, min(_TIMED, len(apart)) - 1)[:_TIMED]
    nearest = nearest[np.isfinite(apart[nearest])]
    if not len(nearest):
        return 0.0
    weight = (apart[nearest].astype(np.float64) + _NEAR) ** -2.0
    return float(_roofline_ns(key)[0] * np.exp((timed.ratio[nearest] * weight).sum() / weight.sum()))


def of_vector(problem: Problem, table: Table, kind: str, *, without: int | None = None) -> Recipe | None:
    """Return the recipe of a product with a vector whose kernel is of ``kind``: that of the entry nearest in k, and in
    rows of all batches, which has several blocks. (One that takes all rows might have taken more.) None without any.

    Left out one by one, 334 of 361 entries of an H200 are told right, 300 by the distance of `times`.
    """
    rows = table.members(_group(problem))
    recipes = table.columns["recipes"][table.columns["recipe"][rows]]
    keys = table.keys[rows]
    same = (keys[:, _N] == 1) & (recipes[:, _KIND] == KINDS.index(kind)) & (keys[:, _M] > recipes[:, RECIPE.index("m")])
    some = np.flatnonzero(same if without is None else same & (rows != without))
    if not len(some):
        return None
    apart = _sizes(keys[some]) - _sizes(_key(problem))
    return Recipe.of(recipes[some[int((_DEPTH * np.abs(apart[:, 3]) + np.abs(apart[:, :3].sum(axis=1))).argmin())]])


def _likes(problem: Problem, table: Table) -> _Likes:
    group = _group(problem)
    key = ("likes", *group.values())
    if key not in table.derived:
        rows = table.members(group)
        features = _features(table.keys[rows])
        aligned = alignment(table.keys[rows, _M:], _ALIGNED[problem.dtype])
        alignments, kind = np.unique(aligned, axis=0, return_inverse=True)
        m, n = (_cells(sizes) for sizes in features[:, _M_AND_N].T)
        cell = (kind.reshape(-1) * _CELLS + m) * _CELLS + n
        order = np.argsort(cell, kind="stable")
        rows, features = rows[order], features[order]
        sizes, others = np.ascontiguousarray(features[:, :_SIZES].T), np.ascontiguousarray(features[:, _SIZES:])
        table.derived[key] = _Likes(rows, sizes, others, cell[order], alignments)
    likes: _Likes = table.derived[key]
    return likes


def _cells(sizes: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the cells of m or n, which are given as powers of two."""
    return np.asarray(np.clip(np.floor(sizes / _CELL), 0, _CELLS - 2), np.int64)


def _timed_entries(problem: Problem, table: Table) -> _Timed:
    group = _group(problem)
    key = ("timed", *group.values())
    if key not in table.derived:
        rows, columns = table.members(group), table.columns
        rows = rows[columns["main_time"][rows] > 0]
        keys = table.keys[rows]
        ns = sum(
            np.array([time_ns(code) for code in columns[name][rows].tolist()]) for name in ("main_time", "rest_time")
        )
        recipes, aligned = columns["recipes"][columns["recipe"][rows]], alignment(keys[:, _M:], _ALIGNED[problem.dtype])
        ratio = np.log(ns / _roofline_ns(keys))
        sizes = np.ascontiguousarray(_sizes(keys).T, np.float32)
        tiles = _word(*recipes[:, _TILE].T.astype(np.int64))
        table.derived[key] = _Timed(
            rows, sizes, np.ascontiguousarray(aligned.T, np.int8), tiles, recipes[:, _KIND], ratio
        )
    timed: _Timed = table.derived[key]
    return timed


def _word(m: Any, n: Any, cluster_m: Any, cluster_n: Any, split: Any) -> Any:
    """Return a number for a tile, its cluster and slices: numbers or arrays of them."""
    return (((m << 16 | n) << 5 | cluster_m) << 5 | cluster_n) << 16 | split


def _group(problem: Problem) -> dict[int, int]:
    return {0: problem.op, 1: problem.dtype, 2: problem.column_a, 3: problem.column_b}


def _key(problem: Problem) -> NDArray[np.int64]:
    return np.array([problem.key], np.int64)


def _sizes(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return m, n, k and the batch as powers of two."""
    return np.log2(keys[:, _BATCH:].astype(np.float64))


def _features(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return where problems lie, ``[problems, features]``: the distance sums differences."""
    batch, m, n, _ = (keys[:, i].astype(np.float64) for i in (_BATCH, _M, _N, _K))
    columns = [*(_sizes(keys) * _SIZE_WEIGHTS).T]
    for size in _SIDES:
        columns += [_SIDE_WEIGHT * np.log2(np.ceil(side / size)) for side in (m, n)]
    for rows, across in _TILES:
        waves = np.ceil(m / rows) * np.ceil(n / across) * batch / _SMS
        columns += [_WAVE_WEIGHT * np.log2(np.ceil(waves)), waves / np.ceil(waves)]
    return np.column_stack(columns).astype(np.float32)


def _own_alignment(problem: Problem) -> NDArray[np.int64]:
    return alignment(_key(problem)[:, _M:], _ALIGNED[problem.dtype])


def _roofline_ns(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what entries would take by arithmetic or memory, and a start: the unit in which times are compared."""
    op, dtype = keys[:, 0], keys[:, 1]
    batch, m, n, k = (keys[:, i].astype(np.float64) for i in (_BATCH, _M, _N, _K))
    products = np.where(op == problems.GROUPED, 1.0, batch)
    flops = 2.0 * products * m * n * k
    moved_bytes = np.array(_ITEMSIZE)[dtype] * (products * m * (k + n) + batch * k * n)
    return np.asarray(np.maximum(flops / np.array(_FLOPS_PER_NS)[dtype], moved_bytes / _BYTES_PER_NS) + _START_NS)


def alignment(sizes: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    """Return the largest power of two up to ``unit`` that divides each size."""
    return np.asarray(np.minimum(sizes & -sizes, unit))


def menu(problem: Problem, table: Table) -> dict[tuple[int, ...], Recipe]:
    """Return the nvjet kernels that were seen for products with or without a bias, by tile and cluster: for fp8, or
    for both 16-bit types together, which have the same kernels.
    """
    kinds = (problems.FP8,) if problem.dtype == problems.FP8 else (problems.FP16, problems.BF16)
    biased = problem.op == problems.BIAS
    key = (kinds, biased)
    if key not in table.derived:
        recipes, keys = table.columns["recipes"], table.keys
        rows = np.isin(keys[:, 1], kinds) & ((keys[:, 0] == problems.BIAS) == biased)
        recipe_by_tile: dict[tuple[int, ...], Recipe] = {}
        for number in np.unique(table.columns["recipe"][rows]).tolist():
            if recipes[number][0] == KINDS.index("nvjet"):
                recipe = Recipe.of(recipes[number])
                recipe_by_tile.setdefault((recipe.m, recipe.n, *recipe.cluster), recipe)
        table.derived[key] = recipe_by_tile
    return dict(table.derived[key])
