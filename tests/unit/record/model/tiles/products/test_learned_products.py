"""The kernel that trees choose among what near entries of the table got."""

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tables.file import Table
from tileprof.record.model.tables.product_entries import recipe_of
from tileprof.record.model.tables.trees import LEAF
from tileprof.record.model.tiles.products import learned, neighbours
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import Problem

H200 = get("H200")
UNSEEN = [
    Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 1111, 4160, 4160),
    Problem(problems.BIAS, problems.FP32, 0, 1, 1, 100, 1536, 768),
    Problem(problems.BATCHES, problems.TF32, 0, 0, 96, 77, 64, 77),
    Problem(problems.PLAIN, problems.FP32, 0, 1, 1, 1, 777, 1024),
]


def offered(problem):
    known = tables.table("products", H200)
    return learned.candidates(problem.key, known, *neighbours.nearest(problem, known, learned.COMPARED))


def walked(columns, root, seen):
    """The value of one tree, walked node by node."""
    node = root
    while columns["feature"][node] != LEAF:
        way = "low" if seen[columns["feature"][node]] <= columns["at"][node] else "high"
        node = root + int(columns[way][node])
    return float(columns["at"][node])


@pytest.mark.parametrize("problem", UNSEEN)
def test_the_candidate_of_the_largest_sum_is_chosen(problem):
    trees, found = tables.table("product-ranker", H200), offered(problem)
    roots = trees.columns["root"][trees.keys[:, 0] == learned.GROUPS[problem.dtype]].tolist()
    sums = [sum(walked(trees.columns, root, seen) for root in roots) for seen in found.seen]
    assert sums[learned.best(problem.key, found, trees)] == pytest.approx(max(sums), abs=1e-9)


@pytest.mark.parametrize("problem", UNSEEN)
def test_candidates_are_what_near_entries_got_as_this_problem_would_be_launched(problem):
    known = tables.table("products", H200)
    near, apart = neighbours.nearest(problem, known, learned.COMPARED)
    found = learned.candidates(problem.key, known, near, apart)
    launched = [fitted(recipe_of(known, row), problem, H200.sms) for row in near.tolist()]
    shapes = [(r.kind, r.m, r.n, *r.cluster, r.split) for r in launched]
    first = list(dict.fromkeys(shapes))
    assert [tuple(shape) for shape in found.shapes.tolist()] == [shape[1:] for shape in first]
    assert found.entries.tolist() == [int(near[shapes.index(shape)]) for shape in first]


def test_ways_of_equal_worth_are_decided_by_nearness():
    found = offered(UNSEEN[0])
    leaf = {"root": [0], "feature": [LEAF], "at": [1.0], "low": [0], "high": [0]}
    flat = Table({}, np.array([[learned.GROUPS[problems.BF16], 0]]), {k: np.array(v) for k, v in leaf.items()})
    assert learned.best(UNSEEN[0].key, found, flat) == 0


def test_types_without_trees_are_not_decided():
    assert (
        learned.best((0, problems.FP8, *UNSEEN[0].key[2:]), offered(UNSEEN[0]), tables.table("products", H200)) is None
    )


def test_waves_and_efficiency_are_those_of_counting():
    shapes = np.array([[[128, 256, 2, 1, 1], [64, 64, 1, 1, 3]]])
    seen = learned.features(np.array([[0, 3, 0, 1, 2, 1000, 4000, 512]]), shapes)[0]
    blocks = [
        len(range(0, 1000, 128)) * len(range(0, 4000, 256)) * 2,
        len(range(0, 1000, 64)) * len(range(0, 4000, 64)) * 6,
    ]
    assert (2.0 ** seen[:, 8] * 132).tolist() == pytest.approx(blocks, rel=1e-5)
    assert (2.0 ** seen[:, 0]).tolist() == pytest.approx([1000 / 1024, 1000 / 1024], rel=1e-5)
