"""The kernel that nets choose among what a library chose for other problems of the category."""

import math

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tables.product_entries import RECIPE, Recipe
from tileprof.record.model.tiles.products import learned, weighing
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import Problem

H200 = get("H200")
UNSEEN = [
    Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 1111, 4160, 4168),
    Problem(problems.BIAS, problems.FP32, 0, 1, 1, 100, 1540, 768),
    Problem(problems.BATCHES, problems.TF32, 0, 0, 96, 77, 64, 76),
    Problem(problems.PLAIN, problems.FP32, 0, 1, 1, 1, 777, 1024),
    Problem(problems.MATRIX, problems.FP16, 1, 0, 1, 640, 1288, 3000),
]


def nets():
    return tables.table("product-ranker", H200)


def group_of(problem):
    learned.choose(problem, nets(), H200.sms)
    return nets().derived["group", learned.GROUPS[problem.dtype]]


def eligible(problem):
    return group_of(problem).categories[int(weighing.categories(np, np.array([problem.key]))[0])]


def computed(net, problem, recipes):
    """What a net says, one candidate and one number at a time."""
    keys = np.array([problem.key], np.float32)
    seen, kernels, works = [], [], []
    for recipe, kernel in recipes:
        own = fitted(recipe, problem, H200.sms)
        tile = [np.full((1, 1), size, np.float32) for size in (own.m, own.n, *own.cluster, own.split)]
        seen.append([float(column[0, 0]) for column in weighing.tile_features(np, keys, tile)])
        works.append([float(column[0, 0]) for column in weighing.work(np, keys, tile)])
        kernels.append(kernel)
    whole = [float(column[0, 0]) for column in weighing.problem_features(np, keys)]
    times = []
    for kernel, (*repeats, steps) in zip(kernels, works, strict=True):
        cost = [math.exp(value) for value in net["cost"][kernel].tolist()]
        once = [steps * cost[2 * way] + 4 * (way + 1) * cost[2 * way + 1] for way in range(learned.COST_WAYS)]
        times.append([math.log(one) + math.log(repeat) for one in once for repeat in repeats])
    worths = []
    for row, kernel, time in zip(seen, kernels, times, strict=True):
        known = [(value - m) / w for value, m, w in zip(row, net["mean"].tolist(), net["width"].tolist(), strict=True)]
        known += [min(row[i] - min(other[i] for other in seen), learned.FARTHEST) for i in weighing.COSTS]
        known += [min(value - min(o[i] for o in times), learned.FARTHEST) for i, value in enumerate(time)]
        own = net["kernel"][kernel]
        first = np.array(known) @ net["tile"] * (1 + own @ net["to_scale"]) + own @ net["to_shift"]
        first += (np.array(whole) - net["whole_mean"]) / net["whole_width"] @ net["problem"] + net["bias"]
        second = np.maximum(np.maximum(first, 0) @ net["second"] + net["second_bias"], 0)
        worths.append(float(second @ net["last"] + net["last_bias"][0] + net["worth"][kernel]))
    return worths


def candidates(problem, some):
    group = group_of(problem)
    return [(Recipe.of(group.recipes[i]), int(group.kernel[i])) for i in some.tolist()]


@pytest.mark.parametrize("problem", UNSEEN)
def test_the_candidate_of_the_largest_mean_worth_among_those_that_the_sieve_leaves_is_chosen(problem):
    group, some = group_of(problem), eligible(problem)
    sieved = np.array(computed(group.sieve, problem, candidates(problem, some)))
    left = some[np.sort(np.argsort(-sieved, kind="stable")[: learned.KEPT])]
    worth = np.mean([computed(net, problem, candidates(problem, left)) for net in group.nets], axis=0)
    chosen = learned.choose(problem, nets(), H200.sms)
    close = [i for i, value in zip(left, worth, strict=True) if value > worth.max() - 0.01]
    assert chosen in [fitted(Recipe.of(group.recipes[i]), problem, H200.sms) for i in close]


def test_a_recipe_is_what_is_launched_of_the_slices_that_were_asked_for():
    for problem in UNSEEN:
        chosen = learned.choose(problem, nets(), H200.sms)
        assert chosen == fitted(chosen, problem, H200.sms)


def test_types_and_categories_without_nets_are_not_decided():
    assert learned.choose(Problem(0, problems.FP8, 0, 1, 1, 64, 64, 64), nets(), H200.sms) is None
    both_columns = Problem(problems.BATCHES_AND_MATRIX, problems.FP32, 1, 1, 3, 63, 65, 67)
    assert learned.choose(both_columns, nets(), H200.sms) is None


def test_every_candidate_is_one_of_the_kinds_and_fits_its_number():
    table = nets()
    assert table.columns["recipes"].shape == (len(table), len(RECIPE))
    assert (table.columns["recipes"][:, RECIPE.index("split")] >= 1).all()


def test_blocks_and_efficiency_are_those_of_counting():
    keys = np.array([[0, 3, 0, 1, 2, 1000, 4000, 512]], np.float32)
    tile = [np.array([values], np.float32) for values in ((128, 64), (256, 64), (2, 1), (1, 1), (1, 3))]
    seen = weighing.tile_features(np, keys, tile)
    blocks = [
        len(range(0, 1000, 128)) * len(range(0, 4000, 256)) * 2,
        len(range(0, 1000, 64)) * len(range(0, 4000, 64)) * 6,
    ]
    assert (2.0 ** seen[8][0] * 132).tolist() == pytest.approx(blocks, rel=1e-5)
    assert (2.0 ** seen[0][0]).tolist() == pytest.approx([1000 / 1024, 1000 / 1024], rel=1e-5)
    rounds, waves, most, steps = (column[0].tolist() for column in weighing.work(np, keys, tile))
    assert rounds == [math.ceil(4 * 16 * 2 / 66), math.ceil(blocks[1] / 132)]
    assert waves == pytest.approx([4 * 16 * 2 / 66, blocks[1] / 132])
    assert (most, steps) == ([math.ceil(b / 132) for b in blocks], [8, 3])


def test_categories_part_layouts_alignments_and_operations_but_not_the_16_bit_types():
    keys = np.array([
        [0, 3, 0, 1, 1, 64, 64, 64], [0, 2, 0, 1, 1, 128, 8, 72], [0, 3, 0, 1, 1, 63, 64, 64],  # rows of a begin alike
        [0, 3, 0, 1, 1, 64, 64, 63], [0, 3, 1, 0, 1, 63, 64, 64], [1, 3, 0, 1, 1, 64, 64, 64],
        [0, 0, 0, 1, 1, 64, 64, 64], [0, 1, 0, 1, 1, 64, 64, 64],
    ])  # fmt: skip
    words = weighing.categories(np, keys).tolist()
    assert words[0] == words[1] == words[2]
    assert len({words[0], *words[3:]}) == 6
