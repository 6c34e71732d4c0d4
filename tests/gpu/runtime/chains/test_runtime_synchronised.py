"""Tiles that post and wait, on a GPU, are right under delays, and say so if they cannot be."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

# The suite interprets Triton, but these kernels are compiled; imports decide that.
INTERPRET = os.environ.get("TRITON_INTERPRET", "0")
os.environ["TRITON_INTERPRET"] = "0"

from tests.gpu.runtime.chains import replays  # noqa: E402 - see above
from tests.gpu.runtime.chains.synchronised_chains import CHAINS  # noqa: E402
from tileprof.policy.format.expression import parse  # noqa: E402
from tileprof.runtime.errors import WaitTimeoutError  # noqa: E402
from tileprof.runtime.measuring.measure import copy_pair  # noqa: E402
from tileprof.runtime.measuring.timing import captured  # noqa: E402
from tileprof.runtime.pipeline import FellBackWarning  # noqa: E402
from tileprof.runtime.policy_on_gpu import GpuPipeline  # noqa: E402
from tileprof.runtime.synchroniser import Synchroniser, enter, leave, unsynchronised  # noqa: E402


@triton.jit
def doubled(x, y, sync, run, DELAY_NS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803 - as kernels spell it
    """The kernel of a user, except for the sleep."""
    tile = enter(sync, tl.program_id(0))
    at = tile * BLOCK + tl.arange(0, BLOCK)
    value = 2 * tl.load(x + at)
    start = globaltimer()
    while globaltimer() - start < (tile * 7919 + tl.load(run) * 104729) % 64 * DELAY_NS // 64:
        pass
    tl.store(y + at, value)
    leave(sync, tile)


os.environ["TRITON_INTERPRET"] = INTERPRET
pytestmark = pytest.mark.gpu


@pytest.fixture(params=list(CHAINS))
def chain(request):
    return CHAINS[request.param]


wrong_replays = partial(replays.wrong_replays, order="stream")


@pytest.mark.parametrize("ahead", [False, True])
def test_a_thousand_replays_with_random_delays_are_right(chain, ahead) -> None:
    assert wrong_replays(chain.policy(), replays=1000, schedule="cusync", ahead=ahead) == 0


@pytest.mark.parametrize("schedule", ["pdl", "streams", "cusync-streams", "graph"])
def test_every_other_scheduler_is_right_under_delays(chain, schedule) -> None:
    assert wrong_replays(chain.policy(), replays=1000, schedule=schedule) == 0


def test_the_result_is_that_of_pytorch(chain) -> None:
    pipeline = GpuPipeline(chain.policy())
    inputs = pipeline.example()
    out, expected = pipeline(**inputs), pipeline.reference(inputs)[next(iter(pipeline.outputs))]
    pipeline.check()
    assert (out.double() - expected.double()).norm() < 3e-3 * expected.double().norm()


@pytest.mark.parametrize("name", ["copies", "products", "convolutions", "attention"])
def test_without_its_waits_the_same_test_fails(name) -> None:
    policy = CHAINS[name].policy()
    weak = replace(policy, edges=tuple(replace(e, value=parse("0", ("x", "y", "z"))) for e in policy.edges))
    assert wrong_replays(weak, replays=50, schedule="cusync") > 0


def test_a_wait_that_cannot_end_is_reported_and_the_next_run_is_right() -> None:
    policy = CHAINS["products"].policy()
    strong = replace(policy, edges=tuple(replace(e, value=parse("1000", ("x", "y", "z"))) for e in policy.edges))
    pipeline = GpuPipeline(strong, timeout_ns=20_000_000, unchecked=True)
    pipeline(**pipeline.example())
    with pytest.raises(
        WaitTimeoutError,
        match=r"stage 1 \(down\), tile \d+: semaphore \d+ did not reach its value .* seen \d+, expected 1000",
    ):
        pipeline.check()
    assert wrong_replays(policy, replays=3, schedule="cusync", delay_ns=0) == 0


def test_an_unsound_policy_runs_in_stream_order_and_says_so() -> None:
    policy = replace(CHAINS["products"].policy(), edges=())
    pipeline = GpuPipeline(policy)
    inputs = pipeline.example()
    with pytest.warns(FellBackWarning, match="does not wait for everything"):
        out = pipeline(**inputs)
    assert torch.equal(out, pipeline.reference(inputs)["y"])


@pytest.mark.parametrize("delay_ns", [0, 20_000])
def test_triton_kernels_of_a_user_become_stages(delay_ns) -> None:
    """Two kernels in a row, tile by tile; captured, replayed, with poison between."""
    tiles, block = 500, 2048
    chain = copy_pair(tiles)
    policy = chain.policy()
    assert [stage.tiles for stage in policy.stages] == [tiles, tiles]
    stages = Synchroniser(policy)
    x = torch.randn(tiles * block, device="cuda")
    y, z, run = torch.empty_like(x), torch.empty_like(x), torch.zeros(1, dtype=torch.int64, device="cuda")
    wrong = torch.zeros(1, dtype=torch.int32, device="cuda")

    def once() -> None:
        y.fill_(float("nan"))
        z.fill_(float("nan"))
        run.add_(1)
        doubled[(tiles,)](x, y, stages[0], run, delay_ns, BLOCK=block, **stages.launch(0))
        doubled[(tiles,)](y, z, stages[1], run, delay_ns, BLOCK=block, **stages.launch(1))
        wrong.add_((z != 4 * x).any().int())

    graph = captured(once)
    for _ in range(300):
        graph.replay()
    stages.check()
    assert int(wrong) == 0
    doubled[(tiles,)](x, y, unsynchronised("cuda"), run, 0, BLOCK=block)
    assert torch.equal(y, 2 * x)
