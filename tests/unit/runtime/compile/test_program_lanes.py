"""Lanes, in which the regions of a program run (one per stream and capture, with weights that are followed), and the
comparison of two programs' results.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.support.runtime.region_builders import Played, between, graph_of, played
from tileprof.runtime.compile.racing import runners
from tileprof.runtime.compile.racing.compare_results import difference, in_float32
from tileprof.runtime.compile.racing.runners import Lane, NotNowError
from tileprof.runtime.compile.regions import aten

ATEN = aten.ATEN
CPU = torch.device("cpu")


def test_crooked_inputs_are_copied_and_crooked_updates_refused() -> None:
    module = graph_of(lambda x: x.relu(), torch.randn(8, 8))
    region = played(between(module.graph, ATEN.relu.default, ATEN.relu.default))
    records = []
    lane = Lane({"k": region}, {"k": lambda *inputs: records.extend(inputs) or inputs})
    x = torch.randn(65)[1:].view(8, 8)
    lane.call("k", [x], [])
    assert records[0].data_ptr() % 16 == 0
    assert torch.equal(records[0], x)
    lane_of_k = Lane({"k": region}, {"k": lambda *inputs: records.extend(inputs) or inputs})
    lane_of_k.call("k", [x.clone().t()], [])
    assert records[1].stride() == (8, 1)


def test_a_twin_that_shares_a_copy_of_a_weight_is_made_anew_with_it() -> None:
    module = graph_of(lambda x, w: x @ w, torch.randn(4, 8), torch.randn(8, 8))
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    region = played(nodes, folded=[nodes[0].args[1]], frozen=True)
    Played.twin, weight = copy.copy, torch.randn(8, 8)
    x = torch.randn(4, 8)
    try:
        first = Lane.built({"k": region}, CPU)
        first.follow("k", CPU, [weight])
        first.call("k", [x, weight], [])
        weight.mul_(2)
        second = Lane.built({"k": region}, CPU, first)
        assert not torch.equal(second.call("k", [x, weight], [])[0], x @ weight), "the copy is shared"
        second.follow("k", CPU, [weight])
        assert torch.equal(second.call("k", [x, weight], [])[0], x @ weight)
    finally:
        del Played.twin


@pytest.fixture
def gpu(monkeypatch):
    """Simulates streams and captures.

    ``stream`` and ``capture`` are the current ones, ``waited`` the streams whose last call was waited for.
    """
    now = SimpleNamespace(stream=1, capture=0, waited=[], relaxed=False)

    class Event:
        def record(self, stream) -> None:
            self.stream = stream.cuda_stream

        def synchronize(self) -> None:
            assert now.relaxed, "a plain wait would end the capture"
            now.waited.append(self.stream)

    @contextmanager
    def relaxed_capture():
        now.relaxed = True
        yield
        now.relaxed = False

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=now.stream))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now.capture > 0)
    monkeypatch.setattr(runners, "capture_id", lambda _: now.capture)
    monkeypatch.setattr(runners, "relaxed_capture", relaxed_capture)
    return now


def lane_used(of: runners.Lanes) -> Lane:
    with of.use() as lane:
        return lane


@pytest.fixture
def program_lanes(gpu) -> runners.Lanes:
    module = graph_of(lambda x: x.relu(), torch.randn(8, 8))
    region = played(between(module.graph, ATEN.relu.default, ATEN.relu.default))
    return runners.Lanes({"k": region}, torch.device("cuda", 0))


def test_streams_and_captures_have_lanes_of_their_own(gpu, program_lanes) -> None:
    first = lane_used(program_lanes)
    gpu.stream = 2
    second = lane_used(program_lanes)
    assert second is not first
    gpu.stream = 1
    assert lane_used(program_lanes) is first
    gpu.capture = 7
    assert lane_used(program_lanes) is first
    assert lane_used(program_lanes) is first, "a capture keeps its lane"
    gpu.capture = 0
    third = lane_used(program_lanes)
    assert third not in {first, second}, "a replay may run beside a call"
    assert gpu.waited == [1]


def test_a_capture_takes_over_its_streams_lane_or_the_one_called_last(gpu, program_lanes) -> None:
    by_stream = {}
    for gpu.stream in (1, 2, 3, 2):
        by_stream[gpu.stream] = lane_used(program_lanes)
    gpu.stream, gpu.capture = 1, 7
    assert lane_used(program_lanes) is by_stream[1]
    gpu.stream, gpu.capture = 9, 8
    assert lane_used(program_lanes) is by_stream[2]
    gpu.stream, gpu.capture = 9, 9
    assert lane_used(program_lanes) is by_stream[3]
    assert gpu.waited == [1, 2, 3]


def test_a_capture_takes_no_lane_that_is_in_use(gpu, program_lanes) -> None:
    gpu.capture = 7
    with pytest.raises(NotNowError, match="before each capture"):
        lane_used(program_lanes)
    gpu.capture = 0
    with program_lanes.use() as lane:
        gpu.stream, gpu.capture = 2, 7
        with pytest.raises(NotNowError):
            lane_used(program_lanes)
        gpu.stream, gpu.capture = 1, 0
    gpu.capture = 7
    assert lane_used(program_lanes) is lane
    gpu.capture = 8
    with pytest.raises(NotNowError):
        lane_used(program_lanes)


@pytest.mark.parametrize(
    ("a", "b", "passes"),
    [
        ([torch.ones(4)], [torch.ones(4) + 1e-6], True),
        ([torch.ones(4)], [torch.ones(4) + 1e-3], False),
        ([torch.ones(4).half()], [torch.ones(4).half() + 2e-3], True),
        ([torch.ones(4), torch.tensor([1])], [torch.ones(4), torch.tensor([2])], False),
        ([torch.full((4,), float("nan"))], [torch.ones(4)], False),
        ([torch.tensor([1.0, float("-inf")])], [torch.tensor([1.0, float("-inf")])], True),
        ([torch.tensor([1.0, float("inf")])], [torch.tensor([1.0, float("-inf")])], False),
        ([torch.ones(4), torch.ones(2)], [torch.ones(4), torch.zeros(2)], False),
        ([torch.ones(4), torch.zeros(2)], [torch.ones(4), torch.zeros(2)], True),
        ([torch.zeros(4)], [torch.zeros(4)], False),
    ],
)
def test_results_are_compared_by_the_tensor_that_is_off_most(a, b, passes) -> None:
    assert difference(a, b).passes == passes


def test_float32_is_asked_where_two_programs_of_low_precision_differ() -> None:
    class Half(nn.Module):
        def forward(self, x, w):
            return ((x @ w).to(torch.float16) + 1).to(torch.bfloat16)

    x, w = torch.randn(4, 4).half(), torch.randn(4, 4).half()
    graph = torch.fx.symbolic_trace(Half())
    (exact,) = in_float32(graph, (x, w))
    assert exact.dtype == torch.float32
    assert torch.equal(exact, x.float() @ w.float() + 1)
