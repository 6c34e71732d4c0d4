"""cuSync's policies for convolutions omit the halo: if a tile is held back, their results differ from PyTorch's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.policies.recorded_modules import recorded_module
from tileprof.policy.operators import describe
from tileprof.policy.synthesis.cusync_kinds import Shipped, shipped_policy
from tileprof.policy.synthesis.epilogue_fusion import fuse
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.runtime import Pipeline
from tileprof.runtime.executor import delaying, stream
from tileprof.runtime.executor.executable import Program


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two 3 x 3 convolutions of one size with a ReLU between them, which is the first one's epilogue."""
    module, x, whole = recorded_module("convolutions", tmp_path_factory.mktemp("halo") / "t.tileprof")
    launches = [0, 2]
    folded_launches = overtaken_launches(whole, launches)
    graph = fuse(whole, launches)
    return module(x).detach(), x, module, whole, graph, launches, folded_launches


def outputs(pair, policy, order) -> torch.Tensor:
    """Return the result of the policy's tiles in one order; memory that no tile has written yet holds NaN."""
    expected, x, module, *_ = pair
    pipeline = Pipeline(policy)
    reference = dict(module.named_parameters())
    values = {n: reference.get(n, x).detach().as_strided(v.shape, v.strides) for n, v in pipeline.inputs.items()}
    results, _ = pipeline.run(values, order(Program.of(policy)))
    (name,) = pipeline.outputs
    return results[name].as_strided(expected.shape, expected.stride())


def wrong_pixels(pair, policy, order) -> int:
    expected = pair[0]
    right = torch.isclose(outputs(pair, policy, order), expected, rtol=1e-4, atol=1e-5)
    return int((~right).any(dim=1).sum())


@pytest.mark.parametrize("kind", ["conv2dtile", "rowsync", "tilesync"])
def test_a_tile_held_back_makes_the_shipped_policies_wrong(pair, kind) -> None:
    _, _, _, whole, graph, launches, folded_launches = pair
    policy = shipped_policy(Shipped(kind), graph, *launches)
    policy = replace(policy, stages=describe(whole, policy.stages, folded_launches))
    assert wrong_pixels(pair, policy, stream) == 0, "in stream order the omission does not show"
    held_back = policy.stages[0].tiles // 2
    wrong = wrong_pixels(pair, policy, lambda program: delaying(program, held_back))
    assert 0 < wrong < pair[0][:, 0].numel()
    assert outputs(pair, policy, lambda program: delaying(program, held_back)).isnan().any(), (
        "the halo was read before it was written"
    )


def test_the_policy_from_the_trace_is_right_whatever_tile_is_held_back(pair) -> None:
    _, _, _, _, graph, launches, folded_launches = pair
    policy = synthesise(graph, launches, folded=folded_launches)
    for tile in range(policy.stages[0].tiles):
        assert wrong_pixels(pair, policy, lambda program, tile=tile: delaying(program, tile)) == 0
