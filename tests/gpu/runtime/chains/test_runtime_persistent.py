"""The persistent kernel on a GPU is right under delays, has the bits of its stages one after the other, and says so if
it cannot.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

from tests.gpu.runtime.chains import replays
from tests.gpu.runtime.chains.persistent_chains import CHAINS
from tests.support.runtime.chains import matrix, weight
from tileprof.policy.format.expression import parse
from tileprof.runtime.chain import Chain
from tileprof.runtime.errors import WaitTimeoutError
from tileprof.runtime.measuring.cases import convolution_pair, gated_mlp, gelu_mlp
from tileprof.runtime.persistent import run
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.pipeline import FellBackWarning
from tileprof.runtime.policy_on_gpu import GpuPipeline
from tileprof.runtime.stages.gemm import Gemm

pytestmark = pytest.mark.gpu


@pytest.fixture(params=list(CHAINS))
def chain(request):
    return CHAINS[request.param]


wrong_replays = partial(replays.wrong_replays, schedule="persistent", order="persistent-stages")


def test_a_thousand_replays_with_random_delays_are_right(chain) -> None:
    assert wrong_replays(chain.policy(), replays=1000) == 0


@pytest.mark.parametrize("split", [1, 2, 4])
def test_every_split_of_k_is_right_under_delays(monkeypatch, split) -> None:
    monkeypatch.setattr(run, "plan_of", partial(plan_of, split=split))
    for name in (
        "products",
        "gated products",
        "bias and residual",
        "convolutions, rows",
        "convolutions, two images whose halo is 64 pixels",
        "convolutions, taps of a row",
    ):
        assert wrong_replays(CHAINS[name].policy(), replays=200) == 0


ABREAST = {
    "behind parts": (gelu_mlp(200, (128, 48), (128, 192), 1024, 712), 2, (False, True)),
    "before parts, gated": (gated_mlp(64, (64, 192), (64, 48), 1096, 1024), 4, (True, False)),
    "before parts, gated and high": (gated_mlp(300, (128, 160), (128, 96), 1096, 1024), 4, (True, False)),
    "all": (gelu_mlp(200, (128, 96), (128, 192), 1032, 712), 2, (True, True)),
    "one token": (gated_mlp(1, (1, 192), (1, 48), 1096, 1024), 4, (True, False)),
}
"""Chains, blocks per cluster, and the stages in which the blocks of a cluster lie side by side in m."""


@pytest.mark.parametrize("name", list(ABREAST))
def test_blocks_abreast_are_right_under_delays(monkeypatch, name) -> None:
    result, split, abreast = ABREAST[name]
    monkeypatch.setattr(run, "plan_of", partial(plan_of, split=split, abreast=abreast))
    assert wrong_replays(result.policy(), replays=1000) == 0
    pipeline = GpuPipeline(result.policy(), schedule="persistent")
    assert [stage.abreast for stage in pipeline.plan.stages] == [split if wide else 1 for wide in abreast]
    inputs = pipeline.example()
    out, expected = pipeline(**inputs), pipeline.reference(inputs)["y"]
    pipeline.check()
    assert (out.double() - expected.double()).norm() < 3e-3 * expected.double().norm()


def test_stages_under_programmatic_launch_are_right_under_delays(chain) -> None:
    assert wrong_replays(chain.policy(), replays=200, schedule="persistent-pdl") == 0


@pytest.mark.parametrize("schedule", ["persistent", "persistent-stages", "auto"])
def test_the_result_is_that_of_pytorch(chain, schedule) -> None:
    pipeline = GpuPipeline(chain.policy(), schedule=schedule)
    assert pipeline.scheduler.persistent
    inputs = pipeline.example()
    out, expected = pipeline(**inputs), pipeline.reference(inputs)[next(iter(pipeline.outputs))]
    pipeline.check()
    most = 2e-2 if out.dtype == torch.bfloat16 else 3e-3
    assert (out.double() - expected.double()).norm() < most * expected.double().norm()


@pytest.mark.parametrize(
    "result",
    [gelu_mlp(64, (64, 64), (64, 64)), gated_mlp(1024, (64, 64), (64, 64)), convolution_pair(8, 28, 128, (64, 64))],
)
def test_suggested_tiles_compute_what_pytorch_does(result) -> None:
    chain, split = tiled(result, clusters_on(torch.cuda.get_device_properties(0).multi_processor_count))
    pipeline = GpuPipeline(chain.policy(), schedule="persistent")
    assert pipeline.plan is not None
    assert pipeline.plan.split == split
    inputs = pipeline.example()
    out, expected = pipeline(**inputs), pipeline.reference(inputs)["y"]
    pipeline.check()
    assert (out.double() - expected.double()).norm() < 3e-3 * expected.double().norm()


@pytest.mark.parametrize("name", ["products", "pairs", "bias and residual", "convolutions, rows"])
def test_without_its_waits_the_same_test_fails(name) -> None:
    policy = CHAINS[name].policy()
    weak = replace(policy, edges=tuple(replace(e, value=parse("0", ("x", "y", "z"))) for e in policy.edges))
    assert wrong_replays(weak, replays=50) > 0


def test_a_wait_that_cannot_end_is_reported_and_the_next_run_is_right() -> None:
    policy = CHAINS["products"].policy()
    strong = replace(policy, edges=tuple(replace(e, value=parse("1000", ("x", "y", "z"))) for e in policy.edges))
    pipeline = GpuPipeline(strong, schedule="persistent", timeout_ns=20_000_000, unchecked=True)
    pipeline(**pipeline.example())
    with pytest.raises(
        WaitTimeoutError,
        match=r"stage 1 \(down\), tile \d+: semaphore \d+ did not reach its value .* seen \d+, expected 1000",
    ):
        pipeline.check()
    pipeline.check()
    assert wrong_replays(policy, replays=3, delay_ns=0) == 0


def test_twins_on_two_streams_do_not_disturb_each_other() -> None:
    pipeline = GpuPipeline(CHAINS["products"].policy(), schedule="persistent")
    inputs = pipeline.example()
    expected = pipeline(**inputs).clone()
    pipelines = pipeline, pipeline.twin()
    streams = [torch.cuda.Stream() for _ in pipelines]
    torch.cuda.synchronize()
    for _ in range(50):
        for each, stream in zip(pipelines, streams, strict=True):
            with torch.cuda.stream(stream):
                each.launch(inputs)
    for each in pipelines:
        each.check()
        assert torch.equal(each(**inputs), expected)


@pytest.mark.parametrize(("priority", "whole"), [(0, False), (-1, True)])
@pytest.mark.parametrize("splits", [(1, 4), (4, 1)])
def test_kernels_that_compete_for_sms_all_end_at_one_priority_or_if_they_start_as_a_whole(
    monkeypatch, splits, priority, whole
) -> None:
    """Three programs each take the whole GPU.

    The first sleeps here and there, so that the next get SMs one by one. At two priorities and not whole, up to a third
    of these rounds timed out.
    """
    policy = gelu_mlp(64, (64, 48), (64, 96), 4096, 6144).policy()

    def plan_for(split, **more):
        monkeypatch.setattr(run, "plan_of", partial(plan_of, split=split))
        return GpuPipeline(policy, schedule="persistent", unchecked=True, whole=whole, **more)

    pipelines = plan_for(2, delay_ns=200_000), *(plan_for(split, timeout_ns=50_000_000) for split in splits)
    streams = *(torch.cuda.Stream() for _ in splits), torch.cuda.Stream(priority=priority)
    inputs = pipelines[0].example()
    expected = pipelines[0].reference(inputs)["y"].double()
    torch.cuda.synchronize()
    for number in range(100):
        pipelines[0].seed.add_(1)
        torch.cuda.synchronize()
        for pipeline, stream, pause_us in zip(pipelines, streams, (0, 10 * (number % 64), 0), strict=True):
            with torch.cuda.stream(stream):
                pipeline.launch(inputs)
            end = time.perf_counter() + pause_us / 1e6
            while time.perf_counter() < end:
                pass
        for pipeline in pipelines:
            pipeline.check()
    for pipeline in pipelines:
        out = pipeline._own["y"].view_as(expected).double()
        assert (out - expected).norm() < 3e-3 * expected.norm()


def test_what_the_kernel_does_not_take_falls_back_with_a_reason() -> None:
    m, k, n = 64, 256, 128
    first = Gemm(matrix("x", m, k), matrix("w", k, n), matrix("h", m, n), tile=(64, 64))
    last = Gemm(matrix("h", m, n), weight("v", n, k), matrix("y", m, k), tile=(64, 64))
    policy = Chain(("first", "last"), (first, last)).policy()
    with pytest.warns(FellBackWarning, match=r"as nn\.Linear keeps it; the stages run under cusync instead"):
        pipeline = GpuPipeline(policy, schedule="persistent")
    inputs = pipeline.example()
    assert (pipeline(**inputs).double() - pipeline.reference(inputs)["y"].double()).norm() < 1
