"""The kernel that decision trees tell for a product of float32."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tables.product_entries import Recipe
from tileprof.record.model.tables.trees import LEAF
from tileprof.record.model.tiles.products import gemm_kernel_choice, kernel_trees
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import Problem
from tileprof.record.model.tiles.products.product_nets import GROUPS
from tileprof.trace.sources import ShapeSource

H200 = get("H200")
UNSEEN = [
    Problem(op, dtype, *layout, batch, m, n, k)
    for op, batch in ((problems.PLAIN, 1), (problems.BIAS, 1), (problems.BATCHES, 36))
    for dtype in (problems.FP32, problems.TF32)
    for layout in ((0, 0), (0, 1), (1, 0))
    for m, n, k in ((1111, 4164, 4172), (7, 3001, 12345), (100, 68, 71), (129, 6, 1))
]


def trees():
    return tables.table("product-trees", H200)


@cache
def tree_of(name):
    """Return features and answers of a tree's nodes and leaves, and the bounds of its nodes."""
    columns = trees().columns
    bounds = [int.from_bytes(bytes(column.tolist()), "little", signed=True) for column in columns[f"{name}_bound"].T]
    return columns[f"{name}_feature"].tolist(), columns[f"{name}_answer"].tolist(), bounds


def walked(name, features):
    """Return what the leaf of a tree tells, node by node."""
    feature, answer, bound = tree_of(name)
    place = inner = 0
    while feature[place] != LEAF:
        inner = sum(own != LEAF for own in feature[:place])
        place = 2 * inner + (1 if features[feature[place]] <= bound[inner] else 2)
    return answer[sum(own == LEAF for own in feature[:place])]


def ceil_div(size, part):
    return len(range(0, size, part))


def divisor(size, most):
    return max(part for part in (1, 2, 4, 8, 16, 32, 64) if size % part == 0 and part <= most)


@pytest.mark.parametrize("problem", UNSEEN[::5])
def test_both_trees_are_walked_by_what_is_counted_of_the_problem(problem):
    group, table = GROUPS[problem.dtype], trees()
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    call = [int(problem.op == op) for op in (problems.BIAS, problems.BATCHES)]
    call += [problem.column_a, problem.column_b]
    blocks = [ceil_div(m, tile_m) * ceil_div(n, tile_n) * batch for tile_m, tile_n in table.columns[f"tiles{group}"]]
    seen = [m, n, k, batch, *blocks, *call, *(divisor(size, 16) for size in (m, n, k))]
    kernel = walked(f"kernels{group}", seen)
    rows = [row for row in table.members({0: group}) if table.columns["kernel"][row] == kernel]
    recipe = Recipe.of(table.columns["recipes"][rows[0]])
    if len(rows) > 1:
        own = ceil_div(m, recipe.m) * ceil_div(n, recipe.n) * batch
        kind = int(table.columns["recipes"][rows[0]][0])
        seen = [m, n, k, batch, m * n * batch // 1024, divisor(k, 64)]
        seen += [own, kernel, recipe.m, recipe.n, kind, 16 * k // own, *call]
        row = table.members({0: group})[walked(f"slices{group}", seen)]
        assert row in rows, "slices of another kernel"
        recipe = Recipe.of(table.columns["recipes"][row])
    assert kernel_trees.choose(problem, table, H200.sms) == fitted(recipe, problem, H200.sms)


@pytest.mark.parametrize("problem", UNSEEN)
def test_the_slices_that_are_told_are_those_of_the_kernel(problem):
    keys = np.array([problem.key])
    chosen = kernel_trees.candidates(keys, GROUPS[problem.dtype], trees())
    alone = kernel_trees.choose(problem, trees(), H200.sms)
    assert alone == fitted(Recipe.of(trees().columns["recipes"][chosen[0]]), problem, H200.sms)
    many = kernel_trees.candidates(np.repeat(keys, 3, axis=0), GROUPS[problem.dtype], trees())
    assert many.tolist() == chosen.tolist() * 3


def test_types_and_layouts_without_captures_are_not_decided():
    assert kernel_trees.choose(replace(UNSEEN[0], dtype=problems.BF16), trees(), H200.sms) is None
    assert kernel_trees.choose(replace(UNSEEN[0], column_a=1, column_b=1), trees(), H200.sms) is None


def test_a_product_with_a_matrix_to_add_gets_the_kernel_of_one_without():
    plain = kernel_trees.choose(UNSEEN[0], trees(), H200.sms)
    assert kernel_trees.choose(replace(UNSEEN[0], op=problems.MATRIX), trees(), H200.sms) == plain


def test_what_trees_tell_is_called_learned():
    table = tables.table("products", H200)
    choice = gemm_kernel_choice.measured(UNSEEN[0], table, H200)
    assert choice.source == ShapeSource.LEARNED
    recipe = kernel_trees.choose(UNSEEN[0], trees(), H200.sms)
    assert (choice.tile.m, choice.tile.n, choice.tile.cluster, choice.tile.split) == (
        recipe.m, recipe.n, recipe.cluster, recipe.split,
    )  # fmt: skip
