"""Nets or NVIDIA's library: who is believed where they differ."""

from dataclasses import replace

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tables.product_entries import Recipe
from tileprof.record.model.tiles.products import arbiter
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.problem import Problem
from tileprof.record.model.tiles.products.product_nets import Expected

SMALL = Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 512, 4096, 1024)
NVJET = Recipe(
    "nvjet", 128, 128, 64, 4, (2, 1), 1, cleared=False, post="none", threads=384, registers=168, shared_bytes=1
)
PROPOSED = (64, 256, 1, 2, 1)


def believes(problem, lead, deficit, split=1):
    expected = Expected(replace(NVJET, split=split), lead, {PROPOSED: deficit})
    return arbiter.believes_library(problem, expected, PROPOSED, tables.table("product-arbiter", get("H200")))


def test_the_library_decides_between_candidates_that_are_close():
    assert believes(SMALL, 0.2, 0.2)


@pytest.mark.parametrize("lead", [20.0, 1e3])
def test_the_nets_decide_where_they_are_sure_and_k_is_long(lead):
    assert not believes(replace(SMALL, m=6, n=1024, k=150_272), lead, 1e3, split=16)


def test_a_kernel_that_the_nets_did_not_consider_is_as_far_away_as_any_is_told_apart():
    expected = Expected(NVJET, 3.0, {})
    seen = arbiter.features(SMALL, expected, PROPOSED)
    assert seen[:2].tolist() == [3.0, 60.0]
    farther = expected._replace(lead=1e3, deficits={PROPOSED: 1e3})
    assert arbiter.features(SMALL, farther, PROPOSED)[:2].tolist() == [60.0, 60.0]


def test_a_matrix_to_add_does_not_count():
    expected = Expected(NVJET, 3.0, {PROPOSED: 4.0})
    with_matrix = replace(SMALL, op=problems.MATRIX)
    same = [arbiter.features(problem, expected, PROPOSED) for problem in (SMALL, with_matrix)]
    np.testing.assert_array_equal(*same)
