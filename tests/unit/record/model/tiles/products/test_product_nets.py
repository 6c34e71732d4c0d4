"""The kernel that nets choose among those that a library chose for other problems of the category."""

import math
from dataclasses import replace
from operator import mul

import numpy as np
import pytest

from tileprof.devices import get
from tileprof.record.model import tables
from tileprof.record.model.tables.product_entries import RECIPE, Recipe
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products import product_nets, weighing
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.problem import Problem

H200 = get("H200")
UNSEEN = [
    Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 1111, 4160, 4168),
    Problem(problems.BIAS, problems.FP16, 0, 1, 1, 100, 1540, 768),
    Problem(problems.BATCHES, problems.FP16, 0, 0, 96, 77, 64, 76),
    Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 1, 777, 1024),
    Problem(problems.MATRIX, problems.FP16, 1, 0, 1, 640, 1288, 3000),
]


def nets():
    return tables.table("product-nets", H200)


def group_of(problem):
    product_nets.choose(problem, nets(), H200.sms)
    return nets().derived[int(product_nets.groups(np.array([problem.twin.key]))[0])]


def eligible(problem):
    return group_of(problem).categories[int(product_nets.categories(np.array([problem.twin.key]))[0])]


def layer(net, name, values):
    return np.asarray(values, np.float64) @ net[name] + net[f"{name}_bias"]


def likeliest_candidates(problem):
    """Return the likeliest candidates and the logarithms of their likelihoods, with one matrix product per layer."""
    group, some = group_of(problem), eligible(problem)
    net, keys = group.net, np.array([problem.twin.key], np.float32)
    inputs = (weighing.problem_features(np, keys)[0] - net["problem_mean"]) / net["problem_width"]
    hidden = layer(net, "shortlist0", inputs)
    for name in ("shortlist1", "shortlist2"):
        hidden = layer(net, name, np.maximum(hidden, 0))
    likely = layer(net, "shortlist", hidden)[some]
    likely -= math.log(sum(math.exp(value) for value in likely))
    order = np.sort(np.argsort(-likely, kind="stable")[: product_nets.SHORTLISTED])
    return some[order], np.maximum(likely[order], product_nets.UNLIKELIEST), inputs


def shared(problem, m, n, cluster_m, cluster_n, split):
    """What all SMs load and store together, in steps of blocks of 128 x 128 on each."""
    down, across = -(-problem.m // m), -(-problem.n // n)
    loads = (down / cluster_m * problem.n + across / cluster_n * problem.m) * problem.k
    once = problem.m * problem.k + problem.n * problem.k + problem.m * problem.n
    sums = split * problem.m * problem.n if split > 1 else 0
    return [problem.batch * elements / (256 * 64 * 132) for elements in (loads, once, sums)]


def ranking_values(problem):
    """Return the ranking net's values of the shortlisted candidates, one candidate and one number at a time."""
    group, net = group_of(problem), group_of(problem).net
    some, likely, whole = likeliest_candidates(problem)
    keys, rows = np.array([problem.twin.key], np.float32), []
    for candidate in some.tolist():
        shapes = group.shapes.take([candidate])
        if group.nameless[candidate]:
            own = fitted(Recipe.of(group.recipes[candidate]), problem, H200.sms)
            shapes = shapes._replace(m=np.array([own.m], np.float32), n=np.array([own.n], np.float32))
        rows.append((weighing.tile_features(np, keys, shapes)[0, 0], weighing.work(np, keys, shapes)[0, 0], shapes))
    times = []
    for candidate, (_, work, shapes) in zip(some.tolist(), rows, strict=True):
        prices = np.exp(net["cost"][group.kernel[candidate]]).reshape(product_nets.COST_WAYS, weighing.PRICES).tolist()
        *repeats, steps = work.tolist()
        also = shared(problem, *(float(values[0]) for values in shapes[:5]))
        times.append(
            [
                math.log(repeat * (steps * step + 4 * start) + sum(map(mul, also, others)))
                for step, start, *others in prices
                for repeat in repeats
            ]
        )
    trunk = np.maximum(layer(net, "trunk1", np.maximum(layer(net, "trunk0", whole), 0)), 0)
    worths = []
    for candidate, (features, *_), time, prior in zip(some.tolist(), rows, times, likely.tolist(), strict=True):
        inputs = ((features - net["tile_mean"]) / net["tile_width"]).tolist()
        inputs += [
            min(features[i] - min(other[i] for other, *_ in rows), product_nets.FARTHEST) for i in weighing.COSTS
        ]
        above = [min(value - min(o[i] for o in times), product_nets.FARTHEST) for i, value in enumerate(time)]
        inputs += [*above, *(math.sqrt(value + product_nets.NEAREST) for value in above)]
        inputs += [prior / product_nets.PRIOR_UNIT, (prior - max(likely)) / product_nets.PRIOR_UNIT]
        kernel = net["of_kernel"][group.kernel[candidate]]
        first = layer(net, "tile", inputs) * (1 + layer(net, "scale", kernel)) + layer(net, "shift", kernel)
        second = np.maximum(layer(net, "second", np.maximum(first + layer(net, "problem", trunk), 0)), 0)
        own = net["worth"][candidate] + kernel @ layer(net, "cross", trunk) + net["prior"][0] * prior
        worths.append(float(layer(net, "last", second)[0] + own))
    return some, worths


@pytest.mark.parametrize("problem", UNSEEN)
def test_the_shortlisted_candidate_of_the_largest_worth_is_chosen(problem):
    some, worths = ranking_values(problem)
    recipes = group_of(problem).recipes
    close = [i for i, value in zip(some.tolist(), worths, strict=True) if value > max(worths) - 0.01]
    chosen, lead, deficits = product_nets.choose(problem, nets(), H200.sms)
    shapes = [tuple(row) for row in recipes[some][:, product_nets._SHAPE].tolist()]
    for one in shapes:
        best = max(value for value, other in zip(worths, shapes, strict=True) if other == one)
        assert deficits[one] == pytest.approx(max(worths) - best, abs=0.01)
    assert lead == pytest.approx(np.diff(np.sort(worths)[-2:])[0], abs=0.01)
    assert chosen in [fitted(Recipe.of(recipes[i]), problem, H200.sms) for i in close]


def test_products_of_16_bits_with_odd_rows_have_nets_of_their_own():
    even = Problem(problems.PLAIN, problems.BF16, 0, 1, 1, 77, 64, 512)
    odd = [replace(even, n=65), replace(even, k=516), replace(even, column_a=1), replace(even, column_b=0, n=63)]
    keys = np.array([even.key, *(one.key for one in odd)])
    assert product_nets.groups(keys).tolist() == [2, *[product_nets.ODD] * 4]
    for dtype, group in ((problems.FP32, 0), (problems.TF32, 1), (problems.FP16, product_nets.ODD), (problems.FP8, -1)):
        assert product_nets.groups(np.array([replace(odd[0], dtype=dtype).key])).tolist() == [group]
    kinds = {group: {Recipe.of(row).kind for row in nets().columns["recipes"][nets().members({0: group})]}
             for group in (2, product_nets.ODD)}  # fmt: skip
    assert ("nvjet" in kinds[2], "cutlass" in kinds[product_nets.ODD]) == (True, True)
    categories = [nets().columns[f"category{group}"] % (product_nets.EVEN + 1) for group in (2, product_nets.ODD)]
    assert set(categories[0]) == {product_nets.EVEN}
    assert product_nets.EVEN not in categories[1]


@pytest.mark.parametrize("problem", UNSEEN)
def test_the_chosen_kernel_is_the_launched_one(problem):
    chosen = product_nets.choose(problem, nets(), H200.sms).recipe
    assert chosen == fitted(chosen, problem, H200.sms)


def test_a_matrix_to_add_changes_no_kernel():
    plain = replace(UNSEEN[-1], op=problems.PLAIN)
    assert UNSEEN[-1].twin == plain == plain.twin
    assert product_nets.choose(UNSEEN[-1], nets(), H200.sms) == product_nets.choose(plain, nets(), H200.sms)
    batches = Problem(problems.BATCHES_AND_MATRIX, problems.FP16, 0, 0, 96, 77, 64, 76)
    assert batches.twin == UNSEEN[2]


def test_types_and_categories_without_nets_are_not_decided():
    assert product_nets.choose(Problem(0, problems.FP8, 0, 1, 1, 64, 64, 64), nets(), H200.sms) is None
    both_columns = Problem(problems.BATCHES, problems.FP32, 1, 1, 3, 63, 65, 67)
    assert product_nets.choose(both_columns, nets(), H200.sms) is None


def test_an_sm_holds_as_many_blocks_as_threads_registers_and_shared_memory_allow():
    rows = np.zeros((3, len(RECIPE)), np.int32)
    rows[:, -3:] = [(256, 128, 1000), (384, 168, 200_000), (64, 32, 6000)]
    assert product_nets.shapes_of(rows, 0).resident.tolist() == [2, 1, 32]


def test_blocks_and_waves_are_those_of_counting():
    keys = np.array([[0, 3, 0, 1, 2, 1000, 4000, 512]], np.float32)
    columns = ((128, 64), (256, 64), (2, 1), (1, 1), (1, 3), (1, 4), (0, 1), (4, 4))
    shapes = weighing.Shapes(*(np.array([values], np.float32) for values in columns))
    blocks = [
        len(range(0, 1000, 128)) * len(range(0, 4000, 256)) * 2,
        len(range(0, 1000, 64)) * len(range(0, 4000, 64)) * 6,
    ]
    features = weighing.tile_features(np, keys, shapes)[0]
    assert (2.0 ** features[:, 14] * 132).tolist() == pytest.approx(blocks, rel=1e-5)
    rounds, waves, most, slot_count, steps = weighing.work(np, keys, shapes)[0].T.tolist()
    assert rounds == [math.ceil(4 * 16 * 2 / 66), math.ceil(blocks[1] / 132)]
    assert waves == pytest.approx([4 * 16 * 2 / 66, blocks[1] / 132])
    assert most == [math.ceil(b / 132) for b in blocks]
    assert slot_count == [math.ceil(blocks[0] / 132), 4 * math.ceil(blocks[1] / 132 / 4)]
    assert steps == [8, 3]


def test_partial_sums_that_do_not_fit_into_the_workspace_are_marked():
    keys = np.array([[op, 0, 0, 1, 1, 1024, 1024, 512] for op in (problems.PLAIN, problems.BIAS)], np.float32)
    columns = (64, 64, 1, 1, 2, 1, 1, 4)
    shapes = weighing.Shapes(*(np.full((2, 1), value, np.float32) for value in columns))
    assert weighing.tile_features(np, keys, shapes)[:, 0, -2].tolist() == [0, 1], "8 MiB of 32 MiB, and of 1 MiB"


def test_categories_part_layouts_alignments_and_operations_but_not_the_16_bit_types():
    keys = np.array([
        # rows of a that begin alike
        [0, 3, 0, 1, 1, 64, 64, 64], [0, 2, 0, 1, 1, 128, 8, 72], [0, 3, 0, 1, 1, 63, 64, 64],
        [0, 3, 0, 1, 1, 64, 64, 63], [0, 3, 1, 0, 1, 63, 64, 64], [1, 3, 0, 1, 1, 64, 64, 64],
    ])  # fmt: skip
    words = product_nets.categories(keys).tolist()
    assert words[0] == words[1] == words[2]
    assert len({words[0], *words[3:]}) == 4
