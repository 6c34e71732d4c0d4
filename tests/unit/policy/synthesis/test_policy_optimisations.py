"""cuSync's three optimisations and the orders of tiles: chosen with a reason, kept in the file, and emitted only if
they are correct.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policies.graphs import graph_of
from tests.support.policies.recorded_modules import recorded_module
from tileprof.policy.emit.counters import counters
from tileprof.policy.emit.cusync import cusync_files
from tileprof.policy.format import PolicyError, from_dict, to_dict
from tileprof.policy.format.tile_orders import AXES, axes_of, axes_order, choices
from tileprof.policy.synthesis.epilogue_fusion import fuse
from tileprof.policy.synthesis.optimisations import choose_options
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.policy.verification.verifier import verify

grids = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))


def one_to_one(tiles: int, sms: int):
    return graph_of([(tiles, 1, 1), (tiles, 1, 1)], {(0, 1): {(t, t) for t in range(tiles)}}, sms=sms)


@pytest.mark.parametrize(("sms", "custom"), [(80, False), (79, True)])
def test_the_order_is_fixed_where_the_stages_take_more_than_all_but_one_wave(sms: int, custom: bool) -> None:
    options = synthesise(one_to_one(40, sms), [0, 1]).options
    assert options.custom_order is custom
    assert f"2 stages that depend on each other take {80 / sms:.2f} waves" in options.reasons["custom_order"]


def rows_under_columns(sms: int = 36):
    """A consumer needs rows y of a grid whose tiles lie at x + 6*y.

    Ascending order takes it row by row; here rows are x.
    """
    edges = {(x + 6 * y, x + 6 * c) for x in range(6) for y in range(8) for c in range(9)}
    return graph_of([(6, 8, 1), (6, 9, 1)], {(0, 1): edges}, sms=sms)


def test_rows_that_lie_across_the_grid_are_taken_one_after_the_other() -> None:
    graph = rows_under_columns()
    policy = synthesise(graph, [0, 1])
    assert [edge.kind for edge in policy.edges] == ["row"]
    assert policy.stages[0].order == axes_order((6, 8, 1), "yzx")
    assert "the producer's tiles are taken x by x" in policy.edges[0].reason
    assert policy.options.custom_order
    assert policy.options.reasons["custom_order"] == "a stage takes its tiles in an order of its own"
    assert policy.prediction["gain_percent"] > 5
    value = to_dict(policy)
    assert value["stages"][0]["order"] == "yxz", "with one z the same as yzx"
    assert from_dict(value) == policy
    assert verify(policy, graph).sound
    assert "return block.y + grid.y * (block.x + grid.x * block.z);" in cusync_files(policy)[0]["policy.h"]
    assert counters(policy)["stages"][0]["order"] == list(axes_order((6, 8, 1), "yzx"))


@given(grids, st.sampled_from(AXES))
def test_an_order_of_axes_takes_every_tile_once_the_first_axis_fastest(grid, axes) -> None:
    order = axes_order(grid, axes)
    assert sorted(order) == list(range(grid[0] * grid[1] * grid[2]))
    at = {
        "x": np.array(order) % grid[0],
        "y": np.array(order) // grid[0] % grid[1],
        "z": np.array(order) // (grid[0] * grid[1]),
    }
    keys = list(zip(at[axes[2]], at[axes[1]], at[axes[0]], strict=True))
    assert keys == sorted(keys)
    assert axes_order(grid, axes_of(grid, order)) == order
    assert len({axes_order(grid, one) for one in choices(grid)}) == len(choices(grid))


def test_an_order_of_no_axes_is_refused() -> None:
    value = to_dict(synthesise(one_to_one(4, 3), [0, 1]))
    value["stages"][0]["order"] = "xxy"
    with pytest.raises(PolicyError, match="order"):
        from_dict(value)


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    _, _, whole = recorded_module("gpt3_mlp", tmp_path_factory.mktemp("optimisations") / "t.tileprof")
    return whole, fuse(whole, [0, 2]), overtaken_launches(whole, [0, 2])


def test_loads_are_reordered_where_a_waiting_product_also_reads_weights(products) -> None:
    whole, fused, folded_launches = products
    policy = synthesise(fused, [0, 2], folded=folded_launches)
    assert policy.options.reordered_loads
    assert "reads what no launch writes" in policy.options.reasons["reordered_loads"]
    header = cusync_files(policy)[0]["policy.h"]
    assert "cusync::ReorderTileLoads" in header
    plain = synthesise(whole, [0, 1])
    assert not plain.options.reordered_loads
    assert "reads nothing but what launches before it write" in plain.options.reasons["reordered_loads"]


def test_loads_are_in_order_where_every_producer_fills_its_last_wave(products) -> None:
    _, fused, folded_launches = products
    policy = synthesise(fused, [0, 2], folded=folded_launches)
    full = replace(policy, stages=(replace(policy.stages[0], blocks_per_sm=1, grid=(132, 1, 1)), policy.stages[1]))
    options = choose_options(full, fused, [0, 2])
    assert not options.reordered_loads
    assert "fills its last wave" in options.reasons["reordered_loads"]


def test_rows_with_reordered_loads_are_never_emitted_for_sm_80() -> None:
    policy = synthesise(rows_under_columns(), [0, 1])
    for architecture, emitted in (("sm_80", False), ("sm_90", True)):
        request = replace(
            policy,
            options=replace(policy.options, reordered_loads=True),
            guard={**policy.guard, "architecture": architecture},
        )
        assert request.edges[0].kind == "row"
        header = cusync_files(request)[0]["policy.h"]
        assert ("cusync::ReorderTileLoads" in header) is emitted
        assert ("although the policy asks for reordered ones" in header) is not emitted
