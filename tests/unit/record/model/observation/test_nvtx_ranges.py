"""NVTX ranges limit what the model recorder keeps, on machines whose PyTorch has no NVTX."""

import threading
from types import ModuleType

import pytest
import torch
from torch.cuda import nvtx

import tileprof
from tileprof.record.model.observation.nvtx import Ranges


def ops(trace):
    return [op.removeprefix("aten::") for op in trace.launches.op]


def program():
    x = torch.ones(10).cos()
    with nvtx.range("step {}", 1):
        y = x.sin()
        with nvtx.range("inner"):
            y = y.exp()
        nvtx.mark("here")
    with tileprof.capture():
        y = y.tan()
    range_handle = nvtx.range_start("step 2")
    y = y.sqrt()
    thread = threading.Thread(target=nvtx.range_end, args=(range_handle,))
    thread.start()
    thread.join()
    y.neg()


@pytest.mark.parametrize(
    ("pattern", "records"),
    [
        ("step", ["sin", "exp", "sqrt"]),
        ("^step 1$", ["sin", "exp"]),
        ("inner|2", ["exp", "sqrt"]),
        ("", ["sin", "exp", "sqrt"]),
    ],
)
def test_launches_inside_matching_ranges_are_kept_and_captured_regions_do_not_count(trace_of, pattern, records):
    trace = trace_of(program, nvtx=pattern)
    assert ops(trace) == records
    assert any("outside the NVTX ranges that --nvtx asks for were left out" in note for note in trace.manifest["notes"])


def test_without_the_option_pytorch_is_left_as_it_is(trace_of):
    before = nvtx._nvtx
    trace_of(lambda: torch.ones(2) + 1, nvtx="x")
    assert nvtx._nvtx is before
    trace = trace_of(lambda: [torch.ones(2) + 1, isinstance(nvtx._nvtx, Ranges)][1] and pytest.fail("replaced"))
    assert len(trace.launches)


def test_skip_and_count_are_of_what_the_ranges_keep(trace_of):
    assert ops(trace_of(program, nvtx="step", skip=1, count=1)) == ["exp"]


@pytest.fixture
def ranges_of_a():
    events = []
    ranges = Ranges("a", lambda: events.append(1), lambda: events.append(-1))
    ranges.edges = events
    return ranges


def test_each_thread_has_its_own_stack(ranges_of_a):
    restore = ranges_of_a.install()
    nvtx.range_push("a")
    thread = threading.Thread(target=nvtx.range_pop)
    thread.start()
    thread.join()
    assert ranges_of_a.edges == [1]
    nvtx.range_push("b")
    nvtx.range_pop()
    nvtx.range_pop()
    nvtx.range_pop()
    restore()
    assert ranges_of_a.edges == [1, -1]
    assert (ranges_of_a.matched, dict(ranges_of_a.names)) == (1, {"a": 1, "b": 1})


def test_where_pytorch_has_nvtx_its_functions_are_called_too(ranges_of_a, monkeypatch):
    real, calls = ModuleType("_nvtx"), []
    answers = {
        "rangePushA": 4,
        "rangePop": 4,
        "rangeStartA": 77,
        "rangeEnd": None,
        "markA": None,
        "deviceRangeStart": "h",
    }
    for name, answer in answers.items():
        setattr(real, name, lambda *arguments, name=name, answer=answer: calls.append((name, *arguments)) or answer)
    monkeypatch.setattr(nvtx, "_nvtx", real)
    restore = ranges_of_a.install()
    assert nvtx.range_push("a") == 4
    assert nvtx.range_pop() == 4
    assert nvtx.range_start("a") == 77
    nvtx.range_end(77)
    nvtx.mark("m")
    assert nvtx._device_range_start("a", 5) == "h"
    restore()
    assert nvtx._nvtx is real
    assert [call[0] for call in calls] == list(answers)
    assert ranges_of_a.edges == [1, -1, 1, -1]
