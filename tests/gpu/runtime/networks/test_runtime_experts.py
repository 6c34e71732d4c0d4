"""Experts whose tiles exist only once tokens are routed, on a GPU: PyTorch's result, and the same bits under delays."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

from tests.gpu.measuring.schedulers.measure_experts import RIGHT, by_loops, error, inputs, wrong
from tileprof.runtime.errors import WaitTimeoutError
from tileprof.runtime.experts.layer import SCHEDULES, Experts

pytestmark = pytest.mark.gpu

SHAPE = RIGHT["8 experts, 300 tokens"]


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("uneven", [False, True])
def test_every_schedule_computes_what_pytorch_does(schedule, uneven) -> None:
    weights, x = inputs(SHAPE, uneven=uneven)
    layer = Experts(*weights, tokens=SHAPE.tokens, top=SHAPE.top, schedule=schedule)
    for _ in range(3):
        layer.poison()
        assert error(layer(x), by_loops(weights, x, SHAPE.top, exact=True)) < 2e-2
    layer.check()


@pytest.mark.parametrize("schedule", ["persistent", "persistent-dynamic", "ccks", "ccks-ready"])
def test_a_thousand_replays_with_random_delays_and_other_routings_are_right(schedule) -> None:
    assert wrong(SHAPE, schedule, 1000)["wrong"] == 0


def test_a_copilot_that_has_ended_ends_the_kernel_and_a_new_one_goes_on() -> None:
    weights, x = inputs(SHAPE, uneven=False)
    layer = Experts(*weights, tokens=SHAPE.tokens, top=SHAPE.top, schedule="ccks")
    right = layer(x).clone()
    torch.cuda.synchronize()
    layer._pilot.close()
    layer(x)
    with pytest.raises(WaitTimeoutError, match="gave up a wait"):
        layer.check()
    assert torch.equal(layer(x).view(torch.int16), right.view(torch.int16))
    layer.check()
