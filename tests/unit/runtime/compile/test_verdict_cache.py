"""Verdicts of races that a later process reads: nothing is timed again, results are still compared, and any relevant
change starts a new race.
"""

from __future__ import annotations

import logging
import shutil
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.runtime.region_builders import Played, between, played
from tileprof.errors import UserError
from tileprof.runtime.compile import entry
from tileprof.runtime.compile.inductor import inductor, own_copy
from tileprof.runtime.compile.options import Options
from tileprof.runtime.compile.racing import race, verdict_cache
from tileprof.runtime.compile.racing.ahead import Ahead
from tileprof.runtime.compile.racing.runners import Lane, RegionError
from tileprof.runtime.compile.racing.verdict_cache import Verdict
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.masks import write_out_masks

ATEN = aten.ATEN
CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Layer(nn.Module):
    def __init__(self, width: int = 32, slope: float = 0.1) -> None:
        super().__init__()
        self.first, self.last, self.slope = nn.Linear(32, width), nn.Linear(width, 32), slope

    def forward(self, x):
        return self.last(functional.leaky_relu(self.first(x), self.slope))


def activation(graph):
    yield played(between(graph, ATEN.leaky_relu.default, ATEN.leaky_relu.default), "an activation")


class Process:
    """Provide the state of a new process as far as verdicts can tell: the backend on a CPU as if it were a GPU, with
    verdicts in ``folder``.
    """

    def __init__(self, monkeypatch, folder, times=(1.0, 2.0), **options) -> None:
        torch._dynamo.reset()
        self.timed, self.compiled, self.traced = 0, 0, 0
        monkeypatch.setenv("TILEPROF_CACHE", str(folder))
        monkeypatch.setattr(entry, "FINDERS", (self._finder,))
        monkeypatch.setattr(entry, "left_to_inductor", lambda *_: None)
        monkeypatch.setattr(entry.products, "finder", lambda *_: lambda graph: iter(()))
        monkeypatch.setattr(entry, "inductor", self._inductor)
        monkeypatch.setattr(race, "times_in_turn", lambda *_: self._times(times))
        monkeypatch.setattr(verdict_cache, "_surroundings", lambda device: ["an H200"])
        plain = verdict_cache.question
        monkeypatch.setattr(verdict_cache, "question", lambda m, i, o, d: plain(m, i, o, torch.device("cuda")))
        self.options = options

    def _finder(self, graph):
        self.traced += 1
        yield from activation(graph)

    def _inductor(self, module, _):
        self.compiled += 1
        return module

    def _times(self, times):
        self.timed += 1
        return list(times)

    def run(self, model, x):
        with torch.no_grad():
            return torch.compile(model, backend="tileprof", options=self.options)(x)


def test_a_second_process_runs_ours_without_inductors_program_and_without_a_race(monkeypatch, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "tileprof.runtime.compile")
    model, x = Layer().eval(), torch.randn(4, 32)
    first = Process(monkeypatch, tmp_path)
    first.run(model, x)
    assert (first.timed, first.compiled) == (1, 1)
    second = Process(monkeypatch, tmp_path)
    assert torch.allclose(second.run(model, x), model(x), atol=1e-5)
    assert (second.timed, second.compiled) == (0, 0)
    assert "measured before: 1.0 us against Inductor's 2.0 us" in caplog.text


def test_a_second_process_does_not_even_look_for_regions_where_inductor_won(monkeypatch, tmp_path) -> None:
    model, x = Layer().eval(), torch.randn(4, 32)
    Process(monkeypatch, tmp_path, (2.0, 1.0)).run(model, x)
    second = Process(monkeypatch, tmp_path)
    assert torch.allclose(second.run(model, x), model(x), atol=1e-5)
    assert (second.timed, second.compiled, second.traced) == (0, 1, 0)


@pytest.mark.parametrize(
    ("model", "x", "options"),
    [
        (Layer(48), torch.randn(4, 32), {}),
        (Layer(slope=0.2), torch.randn(4, 32), {}),
        (Layer(), torch.randn(5, 32), {}),
        (Layer(), torch.randn(32, 4).t(), {}),
        (Layer(), torch.randn(4, 32), {"frozen": True}),
        (Layer(), torch.randn(4, 32), {"remeasure": True}),
    ],
)
def test_another_graph_shape_or_option_is_measured(monkeypatch, tmp_path, model, x, options) -> None:
    Process(monkeypatch, tmp_path).run(Layer().eval(), torch.randn(4, 32))
    other = Process(monkeypatch, tmp_path, **options)
    other.run(model.eval(), x)
    assert other.timed == 1


def test_wrong_results_are_seen_whatever_the_verdict_says(monkeypatch, tmp_path, caplog) -> None:
    model, x = Layer().eval(), torch.randn(4, 32)
    Process(monkeypatch, tmp_path).run(model, x)
    second = Process(monkeypatch, tmp_path)

    def with_shift(graph):
        yield played(between(graph, ATEN.leaky_relu.default, ATEN.leaky_relu.default), "an activation", shift=0.5)

    monkeypatch.setattr(entry, "FINDERS", (with_shift,))
    assert torch.allclose(second.run(model, x), model(x), atol=1e-5)
    assert "results of an activation differ" in caplog.text


def test_a_file_that_holds_no_verdict_is_measured_and_mended(monkeypatch, tmp_path) -> None:
    model, x = Layer().eval(), torch.randn(4, 32)
    Process(monkeypatch, tmp_path).run(model, x)
    (file,) = (tmp_path / "verdicts").iterdir()
    file.write_text('{"kept": 3')
    again = Process(monkeypatch, tmp_path)
    again.run(model, x)
    assert again.timed == 1
    assert verdict_cache.recall(file.stem) == Verdict(
        "an activation", 1.0, 2.0, verdict_cache.recall(file.stem).measured
    )


def test_there_is_no_question_where_processes_may_mean_different_things() -> None:
    module = torch.fx.symbolic_trace(Layer())
    assert verdict_cache.question(module, [], Options(), CPU) is None
    assert verdict_cache.question(module, [], Options(use="always"), torch.device("cuda")) is None


def test_runners_are_built_by_a_thread_and_handed_out_once() -> None:
    graph = torch.fx.symbolic_trace(Layer()).graph
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    begin_event, go = threading.Event(), threading.Event()
    region = played(nodes, "slow")

    def build(_):
        begin_event.set()
        go.wait(200)
        return Played(region)

    slow = type(region)(region.name, region.nodes, region.inputs, region.outputs, (), build)
    ahead = Ahead([slow], CPU)
    assert begin_event.wait(200)
    go.set()
    assert isinstance(ahead.take(slow), Played)
    assert ahead.take(slow) is None


def test_a_build_that_fails_in_a_thread_says_so_where_the_runner_is_needed() -> None:
    graph = torch.fx.symbolic_trace(Layer()).graph
    region = played([n for n in graph.nodes if n.op == "call_function"], "broken")

    def build(_):
        raise UserError("nvcc says no")

    broken_region = type(region)(region.name, region.nodes, region.inputs, region.outputs, (), build)
    with pytest.raises(RegionError, match="broken: nvcc says no"):
        Lane.built({"0": broken_region}, CPU, None, Ahead([broken_region], CPU))


class Masked(nn.Module):
    """Two layers of attention under one mask, which is broadcast along the keys."""

    def forward(self, x, keep):
        mask = (keep >= 0)[None, None, :, None].expand(1, 1, 8, 8)
        for _ in range(2):
            x = functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        return x


def test_masks_that_fused_attention_does_not_take_are_written_out_once() -> None:
    x, keep = torch.randn(1, 2, 8, 16), torch.arange(8)
    records = []

    def look(module, _):
        changed_module = own_copy(module)
        records.append((write_out_masks(changed_module), write_out_masks(own_copy(changed_module))))
        assert sum(n.target == "contiguous" for n in changed_module.graph.nodes) == 1
        return changed_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        result = torch.compile(Masked(), backend=look)(x, keep)
    assert records == [(1, 0)]
    assert torch.allclose(result, Masked()(x, keep), atol=1e-6)


def test_a_race_put_off_lets_ours_run_first_and_is_run_by_the_second_call(monkeypatch, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "tileprof.runtime.compile")
    model, x = Layer().eval(), torch.randn(4, 32)
    process = Process(monkeypatch, tmp_path, (2.0, 1.0), later=True)
    compiled = torch.compile(model, backend="tileprof", options=process.options)
    with torch.no_grad():
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
        assert (process.timed, process.compiled) == (0, 0)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
        assert (process.timed, process.compiled) == (1, 1)
        compiled(x)
    assert process.timed == 1
    assert "kept Inductor's" in caplog.text
    again = Process(monkeypatch, tmp_path, later=True)
    again.run(model, x)
    assert (again.timed, again.compiled, again.traced) == (0, 1, 0)


def test_a_wrong_way_whose_race_is_put_off_is_inductors_at_once(monkeypatch, tmp_path) -> None:
    model, x = Layer().eval(), torch.randn(4, 32)
    process = Process(monkeypatch, tmp_path, later=True)

    def with_shift(graph):
        yield played(between(graph, ATEN.leaky_relu.default, ATEN.leaky_relu.default), "an activation", shift=0.5)

    monkeypatch.setattr(entry, "FINDERS", (with_shift,))
    assert torch.allclose(process.run(model, x), model(x), atol=1e-5)
    assert (process.timed, process.compiled) == (0, 1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ here")
def test_inductors_program_can_be_compiled_after_the_first_call(monkeypatch, tmp_path) -> None:
    model, x = Layer().eval(), torch.randn(4, 32)
    process = Process(monkeypatch, tmp_path, (2.0, 1.0), later=True)
    monkeypatch.setattr(entry, "inductor", inductor)
    compiled = torch.compile(model, backend="tileprof", options=process.options)
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert process.timed == 1
