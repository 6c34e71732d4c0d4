"""Faults around a pipeline's kernels, on a GPU, and that the next run is right."""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import replace
from itertools import cycle

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

# The suite interprets Triton, but these kernels are compiled; imports decide that.
INTERPRET = os.environ.get("TRITON_INTERPRET", "0")
os.environ["TRITON_INTERPRET"] = "0"

from tileprof.errors import UserError  # noqa: E402 - see above
from tileprof.policy.format.expression import parse  # noqa: E402
from tileprof.runtime.errors import WaitTimeoutError  # noqa: E402
from tileprof.runtime.measuring.cases import gelu_mlp  # noqa: E402
from tileprof.runtime.persistent import persistent_launch  # noqa: E402
from tileprof.runtime.persistent.run import PersistentKernel  # noqa: E402
from tileprof.runtime.pipeline import FellBackWarning  # noqa: E402
from tileprof.runtime.policy_on_gpu import GpuPipeline  # noqa: E402

os.environ["TRITON_INTERPRET"] = INTERPRET
pytestmark = pytest.mark.gpu

TIMEOUT_NS = 20_000_000
BOUND_S = 5
"""A run whose waits time out ends by then: every tile waits for at most its own time limit."""
CHAINS = {
    "persistent": gelu_mlp(192, (64, 48), (64, 96), width=1024, inner=512),
    "cusync": gelu_mlp(192, (64, 64), (64, 128), width=1024, inner=512),
}


@pytest.fixture(params=list(CHAINS))
def schedule(request):
    return request.param


def policy_for(schedule):
    return CHAINS[schedule].policy()


def endless(schedule):
    """A policy whose waits never end."""
    policy = policy_for(schedule)
    return replace(policy, edges=tuple(replace(e, value=parse("1000", ("x", "y", "z"))) for e in policy.edges))


def close(value, expected):
    return bool((value.double() - expected.double()).norm() < 3e-3 * expected.double().norm())


def test_a_wait_that_gave_up_is_reported_by_the_next_call(schedule) -> None:
    pipeline = GpuPipeline(endless(schedule), schedule=schedule, timeout_ns=TIMEOUT_NS, unchecked=True)
    inputs = pipeline.example()
    pipeline(**inputs)
    torch.cuda.synchronize()
    with pytest.raises(WaitTimeoutError, match=r"stage 1 \(down\), tile \d+: .* did not reach its value in 0\.02 s"):
        pipeline(**inputs)
    assert not any(counts.any() for counts in pipeline._counts)


def test_replays_of_a_graph_are_reported_by_check_and_replay_on(schedule) -> None:
    pipeline = GpuPipeline(endless(schedule), schedule=schedule, timeout_ns=TIMEOUT_NS, unchecked=True)
    inputs = pipeline.example()
    pipeline(**inputs)
    with pytest.raises(WaitTimeoutError):
        pipeline.check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pipeline(**inputs)
    pipeline.check()
    for _ in range(2):
        graph.replay()
        with pytest.raises(WaitTimeoutError):
            pipeline.check()


def test_a_semaphore_that_somebody_overwrote_is_named_within_the_bound_and_the_next_run_is_right(schedule) -> None:
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule, timeout_ns=TIMEOUT_NS)
    inputs = pipeline.example()
    expected = pipeline(**inputs).clone()
    pipeline.check()
    pipeline._counts[0].fill_(-1_000_000)
    torch.cuda.synchronize()
    start_s = time.monotonic()
    pipeline(**inputs)
    with pytest.raises(WaitTimeoutError, match=r"stage 1 \(down\), tile \d+: semaphore \d+ did not reach its value"):
        pipeline.check()
    assert time.monotonic() - start_s < BOUND_S
    assert torch.equal(pipeline(**inputs), expected)
    pipeline.check()


def test_a_wait_that_never_comes_is_named_within_the_bound_and_the_next_pipeline_is_right(schedule) -> None:
    pipeline = GpuPipeline(endless(schedule), schedule=schedule, timeout_ns=TIMEOUT_NS, unchecked=True)
    inputs = pipeline.example()
    pipeline(**inputs)
    torch.cuda.synchronize()
    start_s = time.monotonic()
    for _ in range(3):
        with pytest.raises(WaitTimeoutError, match=r"stage 1 \(down\), tile \d+: semaphore \d+"):
            pipeline.check()
        pipeline.launch(inputs)
    assert time.monotonic() - start_s < BOUND_S
    right = GpuPipeline(policy_for(schedule), schedule=schedule)
    assert close(right(**inputs), right.reference(inputs)["y"])


def graph_of(pipeline, arguments):
    """Return the pipeline's call as a graph; it has run once before."""
    pipeline(**arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pipeline(**arguments)
    return graph


def test_graphs_of_two_pipelines_replayed_at_once_are_right(schedule) -> None:
    first = GpuPipeline(policy_for(schedule), schedule=schedule)
    pipelines = [first, first.twin()]
    inputs = [first.example(seed) for seed in range(2)]
    expected = [p(**arguments).clone() for p, arguments in zip(pipelines, inputs, strict=True)]
    graphs = [graph_of(p, arguments) for p, arguments in zip(pipelines, inputs, strict=True)]
    streams = [torch.cuda.Stream() for _ in graphs]
    for p in pipelines:
        p.poison()
    torch.cuda.synchronize()
    for _ in range(100):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    for p, right in zip(pipelines, expected, strict=True):
        p.check()
        assert torch.equal(p._own["y"].view(-1), right.view(-1))


def test_two_graphs_of_one_pipeline_replayed_at_once_end_within_the_bound_and_the_next_run_is_right(schedule) -> None:
    """They share semaphores and memory, which is not allowed.

    A hang or a wrong later run would be worse than a wrong result.
    """
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule, timeout_ns=TIMEOUT_NS)
    inputs = pipeline.example()
    expected = pipeline(**inputs).clone()
    graphs = [graph_of(pipeline, inputs) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    start_s, gave_up = time.monotonic(), 0
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        try:
            pipeline.check()
        except WaitTimeoutError as error:
            assert "stage " in str(error)  # noqa: PT017 - either end is allowed
            gave_up += 1
    assert time.monotonic() - start_s < 20 * BOUND_S
    sys.stdout.write(f"{schedule}: {gave_up} of 20 gave up\n")
    assert torch.equal(pipeline(**inputs), expected)
    pipeline.check()


def test_calls_on_streams_in_turn_do_not_overtake_each_other(schedule) -> None:
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule)
    first = pipeline.example()
    inputs = [first | {"x": torch.randn_like(first["x"])} for _ in range(40)]
    expected = [pipeline.reference(arguments)["y"] for arguments in inputs]
    torch.cuda.synchronize()
    outs = []
    for arguments, stream in zip(inputs, cycle([torch.cuda.Stream() for _ in range(3)]), strict=False):
        with torch.cuda.stream(stream):
            outs.append(pipeline(**arguments).clone())
    pipeline.check()
    assert all(close(out, right) for out, right in zip(outs, expected, strict=True))


def test_tensors_of_another_device_are_refused(schedule) -> None:
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule, device="cuda:0")
    inputs = pipeline.example()
    with pytest.raises(UserError, match="input x is on cpu; this pipeline runs on cuda:0"):
        pipeline(**{**inputs, "x": inputs["x"].cpu()})
    assert close(pipeline(**inputs), pipeline.reference(inputs)["y"])


def test_gradients_are_left_to_pytorch(schedule) -> None:
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule)
    inputs = pipeline.example()
    inputs["w1"].requires_grad_()
    with pytest.warns(FellBackWarning, match="w1 records gradients"):
        pipeline(**inputs).float().sum().backward()
    assert inputs["w1"].grad is not None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(pipeline(**inputs), pipeline.reference(inputs)["y"])


def test_a_misaligned_input_is_left_to_pytorch(schedule) -> None:
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule)
    inputs = pipeline.example()
    misaligned = torch.empty(inputs["x"].numel() + 1, dtype=torch.float16, device="cuda")[1:].view_as(inputs["x"])
    misaligned.copy_(inputs["x"])
    with pytest.warns(FellBackWarning, match="input x begins at an address that is not a multiple of 16"):
        assert close(pipeline(**{**inputs, "x": misaligned}), pipeline.reference(inputs)["y"])


def test_exhausted_memory_is_reported_and_the_next_pipeline_runs(schedule) -> None:
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule)
    inputs = pipeline.example()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 20)) / total)
    try:
        large = gelu_mlp(65536, (64, 64), (64, 128), width=1024, inner=512)
        with pytest.raises(UserError, match=r"no memory for tensor h of shape .* out of memory"):
            GpuPipeline(large.policy(), schedule=schedule, unchecked=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert close(pipeline(**inputs), pipeline.reference(inputs)["y"])


def test_more_inputs_than_a_launcher_remembers_are_computed_right() -> None:
    pipeline = GpuPipeline(policy_for("persistent"), schedule="persistent")
    arguments = pipeline.example()
    expected = pipeline(**arguments).clone()
    inputs = [arguments["x"].clone() for _ in range(persistent_launch._MOST_PREPARED + 20)]
    assert all(torch.equal(pipeline(**{**arguments, "x": x}), expected) for x in [*inputs, *inputs[:3]])
    assert all(
        len(result._cached_arguments) <= persistent_launch._MOST_PREPARED for result in pipeline._persistent._launchers
    )


def test_a_kernel_is_loaded_once_for_all_callers() -> None:
    policy = policy_for("persistent")
    result = [GpuPipeline(policy, schedule="persistent")._persistent._launchers[0] for _ in range(2)]
    assert result[0]._function is result[1]._function


def test_a_kernel_that_computes_something_else_is_found_by_its_first_results(monkeypatch) -> None:
    pipeline = GpuPipeline(policy_for("persistent"), schedule="persistent")
    inputs = pipeline.example()
    real = PersistentKernel.launch

    def wrong(self, tensors, *others):
        real(self, tensors, *others)
        tensors[0]["out"].view(-1)[::97].add_(1)

    monkeypatch.setattr(PersistentKernel, "launch", wrong)
    with pytest.warns(FellBackWarning, match=r"stage 0 \(up\) computes .* elements wrong"):
        out = pipeline(**inputs)
    assert torch.equal(out, pipeline.reference(inputs)["y"])
    monkeypatch.undo()
    with pytest.warns(FellBackWarning, match="elements wrong"):  # for the whole process
        pipeline(**inputs)
    again = GpuPipeline(policy_for("persistent"), schedule="persistent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert close(again(**inputs), pipeline.reference(inputs)["y"])


def test_zeros_prove_nothing_and_the_next_inputs_do(monkeypatch, schedule) -> None:
    pipeline = GpuPipeline(policy_for(schedule), schedule=schedule)
    inputs = pipeline.example()
    pipeline(**{name: torch.zeros_like(tensor) for name, tensor in inputs.items()})
    assert not pipeline._proved
    pipeline(**inputs)
    assert pipeline._proved
    monkeypatch.setattr(GpuPipeline, "reference", lambda *_: pytest.fail("looked at again"))
    pipeline(**inputs)
