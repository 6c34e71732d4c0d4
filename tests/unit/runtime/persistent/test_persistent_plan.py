"""Plans of the persistent kernel never load data before it is written, never deadlock, and contain the policy's
waits.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.support.runtime.chains import CHAINS, matrix, weight
from tests.unit.runtime.persistent.chain_policies import convolutions, policy_of, products, random_plans
from tests.unit.runtime.persistent.kernel_cases import attending
from tests.unit.runtime.persistent.persistent_machine import Machine, at_random, held_back
from tileprof.errors import UserError
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.cases import attention_block
from tileprof.runtime.measuring.measure import convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent.cost import chain_us, clusters_on, task_us
from tileprof.runtime.persistent.plan import SPLITS, Box, Halo, Plan
from tileprof.runtime.persistent.source import Layout, Options
from tileprof.runtime.persistent.supported import stage_plans
from tileprof.runtime.persistent.task_lists import plan_of, plans_by_stage
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.stages import View
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

SLOW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@SLOW
@given(random_plans(), st.integers(0, 2**32), st.sampled_from([0, 1, 10**6]))
def test_no_order_reads_unwritten_memory_or_gets_stuck(plan, seed, ahead) -> None:
    for choose in (at_random(seed), held_back({seed % plan.clusters}), held_back({0})):
        outcome = Machine(plan, ahead=ahead).run(choose)
        assert outcome.clean
        assert sorted(outcome.done) == sorted(list(range(len(plan.tasks))) * plan.split)


def without(plan: Plan, wait: int) -> Plan:
    """Return the plan with one wait less."""
    wait_ptr = plan.wait_ptr - (plan.wait_ptr > wait)
    return replace(plan, wait_ptr=wait_ptr.astype(np.int32), waits=np.delete(plan.waits, wait, axis=0))


def is_caught(plan: Plan, semaphore: int | None = None) -> bool:
    """Return whether a read or a write comes too early if some cluster is held back, first those that post a
    semaphore.
    """
    posting = np.repeat(np.arange(len(plan.tasks)), np.diff(plan.post_ptr))[plan.posts == semaphore]
    likely = set((np.searchsorted(plan.task_ptr, posting, side="right") - 1).tolist())
    order = sorted(range(plan.clusters), key=lambda c: c not in likely)
    return any(Machine(plan).run(held_back({c})).early for c in order)


@pytest.mark.parametrize("kind", ["tile", "row", "fewest"])
@pytest.mark.parametrize(("split", "every"), [(1, 1), (4, 3), pytest.param(4, 1, marks=pytest.mark.nightly)])
def test_a_product_or_convolution_without_any_one_of_its_waits_is_caught(kind, split, every) -> None:
    """In the gate, every third wait is left out if there are many."""
    mlp = gelu_mlp(96, (64, 64), (64, 96), 256, 256)
    pair = convolution_pair(1, 6, 64, (12, 32))
    for chain in (mlp, pair):
        plan = plan_of(
            policy_of(chain, kind), chain, clusters=64, split=split
        )  # one tile each, so that no order of tasks replaces a wait
        assert len(plan.waits)
        assert not is_caught(plan)
        assert all(is_caught(without(plan, w), plan.waits[w, 2]) for w in range(0, len(plan.waits), every))


@SLOW
@given(random_plans())
def test_a_plan_has_every_tile_once_and_every_wait_and_post_of_the_policy_for_each_block(plan) -> None:
    stages = [stage.operator for stage in plan.stages]
    assert sorted(map(tuple, plan.tasks[:, [0, 3]].tolist())) == [
        (s, t) for s, o in enumerate(stages) for t in range(o.tiles)
    ]
    post_counts = np.bincount(plan.posts, minlength=plan.semaphores) * plan.split
    assert np.array_equal(plan.waits[:, 4], post_counts[plan.waits[:, 2]])
    assert (plan.waits[:, 3] <= plan.waits[:, 4]).all()
    assert (plan.waits[:, 0] < plan.waits[:, 1]).all()
    for task in range(len(plan.tasks)):
        mine = plan.waits[plan.wait_ptr[task] : plan.wait_ptr[task + 1]]
        assert (np.diff(mine[:, 0]) >= 0).all()
        assert (mine[:, 1] <= plan.stages[plan.tasks[task, 0]].k_blocks).all()
    for begin, end in pairwise(plan.task_ptr):
        assert (np.diff(plan.tasks[begin:end, 0]) >= 0).all()
    for number, alone in enumerate(plans_by_stage(plan, 3)):
        assert (sorted(alone.tasks[:, 3]), alone.split) == (list(range(stages[number].tiles)), plan.split)
        assert not len(alone.waits)
        assert not len(alone.posts)
        assert Machine(alone).run(at_random(0)).stuck == []


def test_a_block_awaits_only_the_tiles_that_write_its_part_of_k() -> None:
    """512 columns in tiles of 192: k-blocks 0 to 3, 3 to 6 and 6 to 8."""
    chain = gelu_mlp(64, (64, 192), (64, 128), 256, 512)
    plan = plan_of(policy_of(chain, "tile"), chain, clusters=8, split=4)
    task = int(np.flatnonzero(plan.tasks[:, 0] == 1)[0])
    waits = plan.waits[plan.wait_ptr[task] : plan.wait_ptr[task + 1]]
    assert waits[:, :2].tolist() == [[0, 3], [3, 6], [6, 8]]
    assert waits[:, 3:].tolist() == [[4, 4]] * 3
    reached_rows = [
        [
            n
            for n, (low, high, *_) in enumerate(waits.tolist())
            if low < plan.part(task, r)[1] and high > plan.part(task, r)[0]
        ]
        for r in range(4)
    ]
    assert reached_rows == [[0], [0, 1], [1], [2]]
    rows = plan_of(policy_of(chain, "row"), chain, clusters=8, split=4).waits
    assert {tuple(w) for w in rows[:, :2].tolist()} == {(0, 8)}


@pytest.mark.parametrize("seed", range(2))
def test_where_k_is_cut_late_tasks_find_the_sums_of_early_ones_and_only_they_post(seed) -> None:
    chain = gelu_mlp(200, (256, 96), (256, 128), 2112, 2048)
    plan = plan_of(chain.policy(), chain, clusters=66, split=2)
    assert [stage.cut for stage in plan.stages] == [16, 16]
    tiles = [stage.operator.tiles for stage in plan.stages]
    assert np.bincount(plan.tasks[:, 0]).tolist() == [2 * n for n in tiles]
    assert [int(plan.early[plan.tasks[:, 0] == s].sum()) for s in (0, 1)] == tiles
    assert not np.diff(plan.post_ptr)[plan.early == 1].any()
    for task in np.flatnonzero(plan.early):
        twin = np.flatnonzero((plan.tasks == plan.tasks[task]).all(axis=1) & (plan.early == 0))
        assert len(twin) == 1
        late = plan.part(int(twin[0]), 0)
        assert plan.part(task, 0) == plan.part(task, 1) == (0, late[0])
        assert late == plan.part(int(twin[0]), 1) == (16, 33 if plan.tasks[task, 0] == 0 else 32)
    outcome = Machine(plan, ahead=1 + seed % 2).run(at_random(seed))
    assert outcome.clean, (outcome.early[:5], outcome.stuck[:5])
    assert Machine(plan, ahead=1).run(held_back({0, 1, 2})).clean
    few = plan_of(chain.policy(), chain, clusters=8, split=2)
    assert not any(stage.cut for stage in few.stages)
    for alone in plans_by_stage(plan, 66):
        assert alone.early.sum() * 2 == len(alone.tasks)


def test_blocks_of_a_pair_share_rows_and_each_takes_all_of_k() -> None:
    chain = gelu_mlp(512, (256, 96), (256, 64), 256, 192)
    plan = plan_of(policy_of(chain, "tile"), chain, clusters=8)
    assert (plan.split, plan.paired, plan.stages[0].rows) == (2, True, 128)
    assert plan.part(0, 0) == plan.part(0, 1) == (0, 4)
    assert Machine(plan).run(at_random(1)).clean
    assert {tuple(w) for w in plan.waits[:, :2].tolist()} == {(0, 2), (1, 3)}
    assert is_caught(without(plan, 0)) or is_caught(without(plan, 1))


def test_blocks_abreast_share_columns_and_each_takes_all_of_k() -> None:
    chain = gelu_mlp(64, (64, 96), (64, 512), 512, 384)
    plan = plan_of(policy_of(chain, "tile"), chain, clusters=8, split=4)
    assert [(stage.abreast, stage.columns) for stage in plan.stages] == [(1, 96), (4, 128)]
    up, down = (int(np.flatnonzero(plan.tasks[:, 0] == stage)[0]) for stage in (0, 1))
    assert [plan.part(up, rank) for rank in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert [plan.part(down, rank) for rank in range(4)] == [(0, 6)] * 4
    assert Machine(plan, ahead=1).run(at_random(1)).clean
    assert all(is_caught(without(plan, w), plan.waits[w, 2]) for w in range(len(plan.waits)))


@pytest.mark.parametrize("tokens", [1, 16, 64, 128])
def test_where_a_stage_has_several_rounds_of_tiles_the_model_lets_blocks_stand_abreast(tokens) -> None:
    result = gated_mlp(tokens, (64, 64), (64, 64), 4096, 11008)
    chain, split = tiled(result, clusters_on(132))
    plan = plan_of(chain.policy(), chain, clusters=clusters_on(132))
    assert split == plan.split == 4
    assert [(stage.abreast, stage.operator.tiles) for stage in plan.stages] == [(4, 29), (1, 29)]


def test_a_residual_and_memory_that_is_written_again_are_awaited_before_anything_is_loaded() -> None:
    m = 64
    up = Gemm(matrix("x", m, 128), weight("w0", 128, 256), matrix("h", m, 256), tile=(64, 64))
    middle = Gemm(
        matrix("h", m, 256), weight("w1", 256, 256), matrix("g", m, 256), residual=matrix("h", m, 256), tile=(64, 64)
    )
    again = Gemm(matrix("g", m, 256), weight("w2", 256, 256), matrix("h", m, 256), tile=(64, 64))
    chain = Chain(("up", "middle", "again"), (up, middle, again))
    plan = plan_of(policy_of(chain, "tile"), chain, clusters=4, split=2)
    assert {tuple(w) for w in plan.waits[:, :2].tolist()} == {(0, 4)}


def test_waits_for_a_part_of_the_posts_are_not_tied_to_columns() -> None:
    chain = gelu_mlp(64, (64, 64), (64, 64), 128, 256)
    policy = policy_of(chain, "row")
    lower = replace(policy.edges[0], value=tuple(v - 1 for v in policy.edges[0].value))
    plan = plan_of(replace(policy, edges=(lower,)), chain, clusters=4, split=1)
    assert {tuple(w) for w in plan.waits.tolist()} == {(0, 4, 0, 3, 4)}


def assert_refused(match: str, *operators, **options) -> None:
    chain = Chain(tuple(f"s{n}" for n in range(len(operators))), operators)
    with pytest.raises(UserError, match=match):
        plan_of(chain.policy(), chain, **{"clusters": 32} | options)


def product(**changes) -> Gemm:
    operands = {"a": matrix("x", 64, 128), "b": weight("w", 128, 256), "out": matrix("h", 64, 256), "tile": (64, 64)}
    return Gemm(**operands | changes)


def convolution(**changes) -> Conv2d:
    operands = {
        "x": matrix("x", 1, 8, 8, 64),
        "weight": matrix("w", 64, 3, 3, 64),
        "out": matrix("h", 1, 8, 8, 64),
        "tile": (16, 64),
    }
    return Conv2d(**operands | {"padding": 1} | changes)


def test_what_the_kernel_cannot_take_is_refused_in_a_sentence() -> None:
    assert_refused(r"w has strides \(256, 1\).*nn.Linear", product(b=matrix("w", 128, 256)))
    assert_refused("float16 or bfloat16 throughout", *CHAINS["mlp in float32"].operators)
    assert_refused("s0: it has a batch", CHAINS["attention"].operators[0])
    assert_refused("s0: it is norm", *CHAINS["rows"].operators[:1])
    assert_refused("up to 128, or, in products alone, 256 in all stages", product(tile=(192, 64)))
    assert_refused(
        "tiles of 128, 256 rows",
        product(tile=(256, 64)),
        product(b=weight("v", 128, 256), out=matrix("g", 64, 256), tile=(128, 64)),
    )
    assert_refused(
        "up to 128, or", convolution(out=matrix("h", 4, 8, 8, 64), x=matrix("x", 4, 8, 8, 64), tile=(256, 64))
    )
    assert_refused("tiles of 256 rows take clusters of two blocks, not 4", product(tile=(256, 64)), split=4)
    assert_refused("in tiles of 256 rows it takes multiples of 16", product(tile=(256, 72)))
    assert_refused("tiles have 60 columns; it takes multiples of 8", product(tile=(64, 60)))
    assert_refused("multiplies 264 weight rows", product(tile=(64, 264)))
    assert_refused("multiplies 24 weight rows; in tiles of 64 rows it takes multiples of 16", product(tile=(64, 24)))
    assert_refused(
        "result has 252 columns", product(b=weight("w", 128, 252), out=View("h", (64, 252), (256, 1), "float16"))
    )
    assert_refused("TMA takes multiples of 8", product(a=matrix("x", 64, 100), b=weight("w", 100, 256)))
    assert_refused("TMA takes multiples of 8", product(a=View("x", (64, 128), (128, 1), "float16", 4)))
    assert_refused("a tile has 12 pixels", convolution(tile=(12, 64)))
    wide, few = matrix("x", 1, 1, 384, 64), matrix("w", 64, 1, 1, 64)
    assert_refused(
        "1 x 128 pixels are read at stride 3; TMA takes strides up to 8 and 256 pixels",
        convolution(x=wide, weight=few, out=matrix("h", 1, 1, 128, 64), tile=(128, 64), stride=3, padding=0),
    )
    assert_refused(
        "read at stride 9",
        convolution(
            x=matrix("x", 1, 1, 18, 64), weight=few, out=matrix("h", 1, 1, 2, 64), tile=(1, 64), stride=9, padding=0
        ),
    )
    assert_refused("TMA takes no stride of 0", product(a=View("x", (64, 128), (0, 1), "float16")))
    assert_refused("TMA takes no stride of 0", product(b=View("w", (128, 256), (1, 0), "float16")))
    assert_refused("multiple of 64 channels", convolution(x=matrix("x", 1, 8, 8, 40), weight=matrix("w", 64, 3, 3, 40)))
    assert_refused(
        "at most 8 stages",
        *(
            product(a=matrix(f"h{n}", 64, 256), b=weight("w", 256, 256), out=matrix(f"h{n + 1}", 64, 256))
            for n in range(9)
        ),
    )
    assert_refused("clusters of 3 blocks", product(), split=3)
    assert_refused(
        "the 4 blocks of a cluster cannot take tiles of 272 columns abreast",
        product(a=matrix("x", 128, 256), b=weight("w", 256, 544), out=matrix("h", 128, 544), tile=(128, 272)),
        split=4,
    )
    assert_refused("at most as many as a stage has blocks", product(), split=4)
    assert_refused("only what fits the device", product(), split=2, clusters=0)
    assert_refused("no cluster of the persistent kernel fits", product(), clusters=0)
    assert_refused(
        "s1: it loads h ahead of every wait",
        product(),
        Gemm(matrix("x", 64, 128), View("h", (128, 64), (1, 256), "float16"), matrix("y", 64, 64), tile=(64, 64)),
    )


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.integers(1, 64))
def test_a_box_is_the_run_of_pixels_of_its_tile(images, p, q, pixels) -> None:
    out = matrix("h", images, p, q, 64)
    operator = Conv2d(matrix("x", images, p, q, 64), matrix("w", 64, 1, 1, 64), out, tile=(pixels, 64))
    box = Box.of(operator)
    assume(box is not None)
    for tile in range(operator.grid[1]):
        first = tile * pixels
        n, row, column = first // (p * q), first // q % p, first % q
        run = [
            ((n + i) * p + row + y) * q + column + x
            for i in range(box.images) for y in range(box.rows) for x in range(box.columns) if n + i < images
        ]  # fmt: skip
        assert run == list(range(first, min(first + pixels, images * p * q)))


@pytest.mark.parametrize(
    ("size", "pixels", "halo", "height"),
    [
        (56, 112, Halo(58, 4, 1, 56, 2, 9), 114),
        (224, 112, Halo(114, 3, 1, 112, 1, 9), 112),
        (14, 98, Halo(16, 9, 1, 14, 7, 9), 110),
        (7, 49, Halo(9, 9, 1, 7, 7, 9), 61),
        (7, 98, Halo(9, 9, 2, 7, 7, 9), 125),
        (32, 128, None, 0),  # 4 rows of 34 pixels are 136 rows of a product
        (4, 48, None, 0),  # three images
    ],
)
def test_a_tile_takes_its_input_at_once_where_rows_with_their_neighbours_fit_a_product(
    size, pixels, halo, height
) -> None:
    operator = convolution_pair(4, size, 64, (pixels, 64)).operators[0]
    actual = Halo.of(operator, 64 if pixels <= 64 else 128)
    assert actual == halo
    assert actual is None or actual.height == height


@pytest.mark.parametrize(
    ("size", "tile", "split", "taps"),
    [
        (112, (112, 64), 1, 9),
        (112, (112, 128), 1, 3),
        (112, (112, 128), 2, 3),
        (112, (112, 256), 1, 9),
        (112, (112, 256), 2, 3),
        (56, (112, 128), 1, 9),
        (56, (112, 128), 2, 3),
        (56, (112, 256), 1, 9),
        (14, (98, 128), 2, 9),
    ],
)
def test_where_a_halo_leaves_too_few_slots_of_weights_rows_of_taps_are_loaded_at_once(size, tile, split, taps) -> None:
    stage = stage_plans(convolution_pair(1, size, 256, tile))[0]
    halo = stage.halo(split)
    assert halo is not None
    assert (halo.taps, halo.rows - halo.out_rows) == (taps, taps // 3 - 1)
    assert halo.height == Halo.of(stage.operator, stage.rows).height
    chain = Chain(("one",), (stage.operator,))
    layout = Layout.of(plan_of(policy_of(chain, "tile"), chain, clusters=2, split=split), Options())
    assert layout.b_slots >= (9 if tile[1] < 192 else 3)
    assert layout.a_slots >= (3 if taps == 3 and tile[1] < 192 else 2)


def test_strides_and_single_taps_are_loaded_tap_by_tap() -> None:
    x, y = matrix("x", 4, 28, 28, 64), matrix("y", 4, 14, 14, 64)
    assert Halo.of(Conv2d(x, matrix("w", 64, 1, 1, 64), y, tile=(98, 64), stride=2), 128) is None
    assert Halo.of(Conv2d(x, matrix("w", 64, 3, 3, 64), y, tile=(98, 64), stride=2, padding=1), 128) is None


@pytest.mark.parametrize("tokens", [1, 16, 64, 128, 256, 512, 1024, 2048])
@pytest.mark.parametrize("kind", ["plain", "gated"])
def test_suggested_tiles_fill_the_device_and_are_taken(tokens, kind) -> None:
    result = (
        gelu_mlp(tokens, (64, 64), (64, 64)) if kind == "plain" else gated_mlp(tokens, (64, 64), (64, 64), 8192, 2752)
    )
    fit = clusters_on(132)
    chain, split = tiled(result, fit)
    plan = plan_of(policy_of(chain, "row"), chain, clusters=fit)
    assert plan.split == split
    assert 128 <= plan.clusters * split <= 132
    us = chain_us(plan.stages, split, plan.clusters)
    for height, width in ((64, 64), (128, 96), (128, 128), (256, 128)):
        tile = (min(tokens, height) if height <= 128 else height, width)
        other = replace(chain, operators=tuple(replace(o, tile=tile) for o in chain.operators))
        stages = stage_plans(other)
        if height <= 128 or tokens > 128:
            assert us <= 1.03 * chain_us(stages, 2, fit(2))


@SLOW
@given(st.one_of(products(), convolutions()), st.sampled_from([4, 16, 132]))
def test_suggested_tiles_are_ones_that_the_kernel_takes(chain, sms) -> None:
    assume(all(o.rows_along == "y" for o in chain.operators))
    suggestion, split = tiled(chain, clusters_on(sms))
    plan = plan_of(policy_of(suggestion, "row"), suggestion, clusters=clusters_on(sms))
    assert [o.out for o in suggestion.operators] == [o.out for o in chain.operators]
    assert plan.split in SPLITS
    assert split in SPLITS


def test_attention_that_the_kernel_cannot_take_is_refused_in_a_sentence() -> None:
    first, attention, last = attending(100, 2, 1, 64, (64, 64), 64).operators
    assert_refused(r"its tiles have 32 rows; it takes 64 or 128", first, replace(attention, rows=32), last)
    assert_refused("it takes positive factors", first, replace(attention, scale=-1.0), last)
    assert_refused("its heads have 32 columns; it takes 64 or 128", *attending(100, 2, 1, 32, (64, 64), 64).operators)
    assert_refused("takes attention beside products", attention)
    assert_refused("tiles of attention are not shared", first, attention, last, split=2)
    gate = replace(last, out=matrix("y", 100, 32), bias=None, epilogue="silu_gate", tile=(64, 32))
    assert_refused("a gate beside attention in tiles of more than 64 rows", first, attention, gate)
    narrow = replace(attention, rows=16)
    assert_refused("its tiles have 16 rows", first, narrow, last)
    small = attending(16, 2, 1, 64, (16, 64), 16)
    assert plan_of(small.policy(), small, clusters=8).split == 1  # one tile of 16 rows


@pytest.mark.parametrize("tokens", [1, 64, 300])
def test_a_chain_with_attention_gets_tiles_that_the_kernel_takes(tokens) -> None:
    chain, split = tiled(attention_block(tokens, 256, 4, 2), clusters_on(132))
    plan = plan_of(chain.policy(), chain, clusters=clusters_on(132))
    assert split == plan.split == 1
    assert plan.stages[1].operator.rows in (64, 128)
    heads, rows, _ = plan.stages[1].operator.out.shape
    down = -(-rows // plan.stages[1].operator.rows)
    assert sorted(map(tuple, plan.tasks[plan.tasks[:, 0] == 1, 1:].tolist())) == [
        (row, head, head * down + row) for row in range(down) for head in range(heads)
    ]


def test_later_tiles_of_causal_attention_take_longer_and_read_more_keys() -> None:
    chain = attending(300, 2, 1, 64, (64, 64), 64)
    stage = stage_plans(chain)[1]
    assert [stage.key_blocks(row) for row in range(5)] == [1, 2, 3, 4, 5]
    assert stage.k_blocks == 1 + 2 * 5  # queries, then keys and values of 64 rows each
    lives_us = task_us(stage, 1)
    assert (np.diff(lives_us) >= 0).all()  # two blocks of keys are multiplied at a time
    assert lives_us[-1] > lives_us[0]
    to_all = replace(stage, operator=replace(stage.operator, causal=False))
    assert [to_all.key_blocks(row) for row in range(5)] == [5] * 5
