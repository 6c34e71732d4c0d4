"""The kernel and slices of k that a library runs for its choice, compared with counting in a loop."""

import itertools
from dataclasses import replace

import pytest

from tileprof.record.model.tables.product_entries import Recipe
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import Problem

CUTLASS = Recipe("cutlass", 64, 64, 8, 5, (1, 1), 4, cleared=False, post="reduce", threads=128, registers=76,
                 shared_bytes=20480)  # fmt: skip
PRODUCT = Problem(problems.PLAIN, problems.FP32, 0, 0, 1, 80, 256, 3072)
SMS = 132


def counted(k, split, unit):
    """Return how many slices cover k, cut one behind another."""
    length = next(x for x in itertools.count(unit, unit) if x >= k / split)
    return len(range(0, k, length))


@pytest.mark.parametrize("k", [8192, 4736, 3072, 1547, 128, 100, 36])
@pytest.mark.parametrize("split", [2, 3, 7, 16, 35, 55])
@pytest.mark.parametrize(("dtype", "line", "copy"), [(problems.FP32, 32, 4), (problems.BF16, 64, 8)])
@pytest.mark.parametrize("column_a", [0, 1])
def test_cutlass_cuts_k_at_lines_where_rows_of_a_lie_along_it(k, split, dtype, line, copy, column_a):
    problem = replace(PRODUCT, k=k, dtype=dtype, column_a=column_a)
    unit = line if k % line == 0 and not column_a else copy
    assert fitted(replace(CUTLASS, split=split), problem, SMS).split == counted(k, split, unit)


@pytest.mark.parametrize(("k", "asked", "launched"), [(8192, 55, 52), (4736, 16, 15), (3072, 35, 32), (128, 16, 4)])
def test_recorded_slices_of_float32_are_those_that_the_rule_tells(k, asked, launched):
    assert fitted(replace(CUTLASS, split=asked), replace(PRODUCT, k=k), SMS).split == launched


def test_one_slice_has_nothing_to_add_up():
    alone = fitted(replace(CUTLASS, split=3), replace(PRODUCT, k=32), SMS)
    assert (alone.split, alone.post) == (1, "none")


@pytest.mark.parametrize(
    ("size", "tile", "share"), [(464, 32, 31), (42, 32, 21), (104, 32, 26), (8, 32, 8), (16, 14, 8)]
)
def test_kernels_without_a_tile_in_their_name_share_a_side_evenly(size, tile, share):
    recipe = replace(CUTLASS, kind="gemv", n=tile, m=1, split=1, post="none")
    assert fitted(recipe, replace(PRODUCT, m=1, n=size), SMS).n == share


def test_fitting_twice_changes_nothing_more():
    for k, split in itertools.product(range(30, 400, 7), range(2, 20)):
        once = fitted(replace(CUTLASS, split=split), replace(PRODUCT, k=k), SMS)
        assert fitted(once, replace(PRODUCT, k=k), SMS) == once


@pytest.mark.parametrize(("n", "cleared"), [(66 * 128, False), (67 * 128, True)])
def test_nvjet_clears_a_counter_where_its_clusters_are_more_than_fit(n, cleared):
    recipe = replace(CUTLASS, kind="nvjet", m=128, n=64, cluster=(1, 2), split=1, post="none")
    assert fitted(recipe, Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 128, n, 512), SMS).cleared == cleared
