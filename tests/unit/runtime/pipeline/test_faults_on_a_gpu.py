"""Faults of a pipeline on a GPU; the operators' own tiles on the CPU stand for the kernel."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton")

from torch._subclasses.fake_tensor import FakeTensorMode

from tileprof.errors import UserError
from tileprof.runtime.errors import WaitTimeoutError
from tileprof.runtime.measuring.measure import gelu_mlp
from tileprof.runtime.pipeline import FellBackWarning, Pipeline
from tileprof.runtime.policy_on_gpu import GpuPipeline

CHAIN = gelu_mlp(70, (64, 48), (64, 96), 192, 320)
STALE = 7


class Launcher:
    """Computes the stages in order; ``wrong`` adds one to their last result."""

    launched = 0
    wrong = False

    def __init__(self, plan, device, *, delay_ns, timeout_ns, options, whole) -> None:
        self.stages = [stage.operator for stage in plan.stages]

    def launch(self, tensors, shared) -> None:
        Launcher.launched += 1
        for operator, inputs in zip(self.stages, tensors, strict=True):
            inputs["out"].copy_(operator.reference({role: t for role, t in inputs.items() if role != "out"}))
        if Launcher.wrong:
            tensors[-1]["out"].add_(1)


class Stream:
    """Records what it waited for."""

    def __init__(self) -> None:
        self.awaited: list[Stream] = []

    def wait_stream(self, other) -> None:
        self.awaited.append(other)


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    """Provide a GPU of compute capability 9.0 that is the CPU, and its current stream."""
    module = ModuleType("tileprof.runtime.persistent.persistent_launch")
    module.Launcher, module.max_clusters = Launcher, lambda split: 132 // split
    monkeypatch.setitem(sys.modules, "tileprof.runtime.persistent.persistent_launch", module)
    monkeypatch.setattr(Launcher, "launched", 0)
    monkeypatch.setattr(Launcher, "wrong", False)
    now = [Stream()]
    for name, value in {
        "is_available": lambda: True,
        "get_device_capability": lambda *_: (9, 0),
        "synchronize": lambda *_: None,
        "device": lambda *_: nullcontext(),
        "is_current_stream_capturing": lambda: False,
        "current_stream": lambda *_: now[0],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return now


@pytest.fixture
def pipeline() -> GpuPipeline:
    return GpuPipeline(CHAIN.policy(), schedule="persistent", device="cpu")


def test_kernels_that_compute_something_else_are_launched_once(pipeline, monkeypatch) -> None:
    inputs = pipeline.example()
    expected = pipeline.reference(inputs)["y"]
    monkeypatch.setattr(Launcher, "wrong", True)
    for _ in range(3):
        with pytest.warns(FellBackWarning, match="elements wrong"):
            assert torch.equal(pipeline(**inputs), expected)
    assert Launcher.launched == 1
    assert "elements wrong" in pipeline.refused


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan")])
def test_constant_inputs_do_not_prove_a_kernel_right(pipeline, monkeypatch, value) -> None:
    inputs = pipeline.example()
    pipeline(**{name: torch.full_like(tensor, value) for name, tensor in inputs.items()})
    monkeypatch.setattr(Launcher, "wrong", True)
    with pytest.warns(FellBackWarning, match="elements wrong"):
        pipeline(**inputs)


def test_after_a_proof_results_are_not_looked_at_again(pipeline, monkeypatch) -> None:
    inputs = pipeline.example()
    first = pipeline(**inputs).clone()
    monkeypatch.setattr(GpuPipeline, "reference", lambda *_: pytest.fail("looked at again"))
    assert torch.equal(pipeline(**inputs), first)


def test_a_wait_that_gave_up_after_the_proof_is_reported_by_the_next_call_and_the_one_after_is_right(pipeline) -> None:
    inputs = pipeline.example()
    snapshot = pipeline(**inputs).clone()
    pipeline._record.copy_(torch.tensor([1, 1, 3, 0, 2, 4, 0, 0], dtype=torch.int32))
    pipeline(**inputs)  # this run's results are wrong, and nothing waits for it
    with pytest.raises(WaitTimeoutError, match=r"stage 1 \(down\), tile 3"):
        pipeline(**inputs)
    assert torch.equal(pipeline(**inputs), snapshot)


def test_an_interrupted_launch_leaves_no_post_behind(monkeypatch) -> None:
    pipeline = GpuPipeline(gelu_mlp(64, (64, 64), (64, 64), 64, 64).policy(), schedule="cusync", device="cpu")

    class Stage:
        def __init__(self, number: int) -> None:
            self.number = number

        def launch(self, tensors, shared, hooks) -> None:
            if self.number:
                raise KeyboardInterrupt
            pipeline._flags.fill_(STALE)

    pipeline._kernels = [Stage(0), Stage(1)]
    with pytest.raises(KeyboardInterrupt):
        pipeline(**pipeline.example())
    assert not any(counts.any() for counts in pipeline._counts)


def test_calls_on_another_stream_come_after_those_on_the_last(pipeline, stream) -> None:
    inputs = pipeline.example()
    first = stream[0]
    pipeline(**inputs)
    pipeline(**inputs)
    assert first.awaited == []
    stream[0] = second = Stream()
    pipeline(**inputs)
    pipeline(**inputs)
    assert second.awaited == [first]


def test_gradients_are_left_to_pytorch(pipeline) -> None:
    inputs = pipeline.example()
    inputs["w1"].requires_grad_()
    with pytest.warns(FellBackWarning, match="w1 records gradients"):
        pipeline(**inputs).float().sum().backward()
    assert inputs["w1"].grad is not None
    with torch.no_grad():
        pipeline(**inputs)
    assert Launcher.launched == 1


def test_a_view_that_is_negated_when_read_is_left_to_pytorch(pipeline) -> None:
    inputs = pipeline.example()
    inputs["x"] = torch._neg_view(inputs["x"])
    with pytest.warns(FellBackWarning, match="x is a view that PyTorch negates"):
        out = pipeline(**inputs)
    assert torch.equal(out, pipeline.reference({**inputs, "x": inputs["x"].clone()})["y"])


def test_tensors_of_another_gpu_are_refused() -> None:
    pipeline = Pipeline(CHAIN.policy())
    with FakeTensorMode():
        tensors = [torch.empty(v.shape, dtype=torch.float16, device="cuda:1") for v in pipeline.inputs.values()]
    assert len(pipeline._bound(tuple(tensors), {}, torch.device("cuda:1"))) == len(tensors)
    with pytest.raises(UserError, match="input x is on cuda:1; this pipeline runs on cuda:0"):
        pipeline._bound(tuple(tensors), {}, torch.device("cuda:0"))
