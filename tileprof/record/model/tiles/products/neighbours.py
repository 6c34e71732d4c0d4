"""Entries of the table of products that are like a problem which was not measured.

Only entries of the same operation, type and layouts, and of the same alignment, can be neighbours: libraries choose
among other kernels for others. The distance is in factors of two of m, n, k and the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tables.product_entries import KINDS, Recipe, time_ns
from tileprof.record.model.tiles.products import problem as problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table
    from tileprof.record.model.tiles.products.problem import Problem

_ALIGNED: Final = {problems.FP32: 4, problems.TF32: 4, problems.FP16: 8, problems.BF16: 8, problems.FP8: 16}
"""Elements of 16 bytes, which kernels copy at once."""
_BATCH, _M, _N, _K = 4, 5, 6, 7


def nearest(problem: Problem, table: Table, *, without: int | None = None) -> int | None:
    """Return the nearest entry; None where no entry is like the problem."""
    near = table.nearest(_group(problem), _distance(problem), without=without)
    return None if near is None else near[0]


def _group(problem: Problem) -> dict[int, int]:
    return {0: problem.op, 1: problem.dtype, 2: problem.column_a, 3: problem.column_b}


def _distance(problem: Problem) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    key = np.array(problem.key, np.int64)
    unit = _ALIGNED[problem.dtype]

    def distance(keys: NDArray[np.int64]) -> NDArray[np.float64]:
        sizes = keys[:, _BATCH:].astype(np.float64)
        apart = np.abs(np.log2(sizes / key[_BATCH:].astype(np.float64))).sum(axis=1)
        other = (alignment(keys[:, _M:], unit) != alignment(key[None, _M:], unit)).sum(axis=1)
        return np.asarray(apart + 4.0 * other)

    return distance


def alignment(sizes: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    """Return the largest power of two up to ``unit`` that divides each size."""
    return np.minimum(sizes & -sizes, unit)


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
        seen: dict[tuple[int, ...], Recipe] = {}
        for number in np.unique(table.columns["recipe"][rows]).tolist():
            if recipes[number][0] == KINDS.index("nvjet"):
                recipe = Recipe.of(recipes[number])
                seen.setdefault((recipe.m, recipe.n, *recipe.cluster), recipe)
        table.derived[key] = seen
    return dict(table.derived[key])


def times(problem: Problem, table: Table, recipe: Recipe, *, without: int | None = None) -> tuple[float, float]:
    """Return times of the main kernel and of the rest, from the nearest entries with the same tile; 0 where there is
    none.
    """
    near = nearest(problem, table, without=without)
    if near is None:
        return 0.0, 0.0
    scale = _work(np.array(problem.key)) / _work(table.keys[near])
    return time_ns(int(table.columns["main_time"][near])) * scale, time_ns(int(table.columns["rest_time"][near]))


def _work(key: NDArray[np.int64]) -> float:
    return float(np.prod(key[_BATCH:].astype(np.float64)))
