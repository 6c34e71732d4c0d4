"""A program with a region, on a GPU (PyTorch stands for its kernel), is raced, captured, called on several streams, and
follows its weights.
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[4]))
from tests.gpu.measuring.models.model_cases import decoding, of_transformers, tokens
from tests.support.runtime.cached_layer import CachedLayer
from tests.support.runtime.region_builders import Played, between, played
from tileprof.cli.running.timeline_trace import write_trace
from tileprof.devices import of_driver
from tileprof.runtime.compile import entry
from tileprof.runtime.compile.racing import race
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.programs.timeline import observing
from tileprof.trace import load, validate

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # Inductor imports it
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]


@pytest.fixture(autouse=True)
def one_compile_thread(monkeypatch):
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)


def attention(graph):
    nodes = between(graph, aten.ATEN.gelu.default, aten.ATEN.copy_.default)
    cache = next(n for n in nodes if aten.calls(n, aten.ATEN.copy_.default) and aten.shape(n.args[0]) == (64, 64))
    out = {n for n in nodes if aten.calls(n, aten.ATEN.add.Tensor, aten.ATEN.addmm.default, aten.ATEN.copy_.default)}
    region = played([*(n for n in nodes if n not in out), cache], "an attention")

    def build(_):
        return Updating(region)

    object.__setattr__(region, "build", build)
    yield region


class Updating(Played):
    """Like the package's kernels: no two calls of a runner may overlap, and its memory is its own."""

    def __init__(self, region) -> None:
        super().__init__(region)
        self.count = torch.zeros(1, device="cuda")

    def __call__(self, *inputs):
        self.count.add_(1)
        return super().__call__(*inputs)


@pytest.fixture
def models(monkeypatch, caplog):
    torch._dynamo.reset()
    torch.manual_seed(0)
    caplog.set_level(logging.INFO, "tileprof.runtime.compile")
    monkeypatch.setattr(entry, "FINDERS", (attention,))
    monkeypatch.setattr(race, "WORTH", 100.0)  # keep the program with the region, whatever the times
    model, other = CachedLayer(64).cuda().half().eval(), CachedLayer(64).cuda().half().eval()
    other.load_state_dict(model.state_dict())
    return torch.compile(model, backend="tileprof"), model, other


def same(compiled, model, other, x) -> bool:
    actual, expected = compiled(x), other(x)
    return close(actual, expected) and close(model.cache, other.cache) and bool(model.calls == other.calls)


def close(a, b) -> bool:
    return bool((a.double() - b.double()).norm() <= 1e-2 * b.double().norm())


def rows() -> torch.Tensor:
    return torch.randn(8, 64, device="cuda", dtype=torch.float16)


def test_a_race_leaves_caches_as_one_call_does(models, caplog) -> None:
    with torch.no_grad():
        assert all(same(*models, rows()) for _ in range(4))
    assert caplog.text.count("kept tileprof's (an attention)") == 1
    assert "against Inductor's" in caplog.text


def test_captures_have_runners_of_their_own_and_replay(models, caplog) -> None:
    compiled, model, other = models
    graphs = []
    with torch.no_grad():
        assert same(*models, rows())
        for _ in range(2):
            x = rows()
            assert same(compiled, model, other, x)  # makes a runner ready for the next capture
            saved = model.cache.clone(), model.calls.clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = compiled(x)
            model.cache.copy_(saved[0])
            model.calls.copy_(saved[1])
            graphs.append((graph, x, out))
        for number in range(6):
            graph, x, out = graphs[number % 2]
            x.copy_(rows())
            graph.replay()
            assert close(out, other(x))
            assert close(model.cache, other.cache)
    assert "Inductor's program runs in this call" not in caplog.text


def test_a_capture_for_which_no_runner_is_ready_is_inductors(models, caplog) -> None:
    compiled, _, other = models
    with torch.no_grad():
        x = rows()
        compiled(x)
        other(x)
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = compiled(x)
            graph.replay()
            assert close(out, other(x))
    assert caplog.text.count("Inductor's program runs in this call") == 1


def test_threads_on_streams_of_their_own_do_not_share_runners(monkeypatch) -> None:
    torch._dynamo.reset()

    def find(graph):
        yield played(between(graph, aten.ATEN.gelu.default, aten.ATEN.gelu.default))

    monkeypatch.setattr(entry, "FINDERS", (find,))
    monkeypatch.setattr(race, "WORTH", 100.0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda().half()
    compiled, wrong = torch.compile(model, backend="tileprof"), []
    with torch.no_grad():
        compiled(rows())

    def work() -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                x = rows()
                if not close(compiled(x), model(x)):
                    wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("export", [False, True])
def test_inference_mode_and_exported_programs(models, export) -> None:
    _, model, other = models
    x = rows()
    with torch.inference_mode() if not export else torch.no_grad():
        module = torch.export.export(model, (x,)).module() if export else model
        compiled = torch.compile(module, backend="tileprof")
        for _ in range(3):
            assert close(compiled(x), other(x))


SMALL = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "head_dim": 64,
}
TIMED = {
    "a decoder": lambda: decoding(
        of_transformers("LlamaForCausalLM", "LlamaConfig", "cuda", None, **SMALL), torch.bfloat16, 1, 100, 256, "cuda"
    ),
    "transformer blocks": lambda: tokens(
        of_transformers("GPT2Model", "GPT2Config", "cuda", None, n_layer=2), torch.float16, 128, "cuda", use_cache=False
    ),
}


@pytest.mark.parametrize("name", TIMED)
def test_a_run_with_clocks_has_times_of_every_tile_and_is_a_trace(name, tmp_path) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    torch._dynamo.reset()
    case, actual = TIMED[name](), []

    def watch(region, device, inputs):
        saved = [inputs[n].clone() for n in region.mutated]
        actual.append(region.timed(device, inputs))
        for n, before in zip(region.mutated, saved, strict=True):
            inputs[n].copy_(before)

    compiled = torch.compile(case.model, backend="tileprof", dynamic=False, options={"use": "always"})
    with torch.no_grad():
        case.call(compiled)
        with observing(watch):
            case.call(compiled)
    (timeline,) = actual
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    ends = [int(stage.end_ns.max()) for stage in timeline.stages]
    for stage in timeline.stages:
        assert (stage.end_ns >= stage.begin_ns).all()
        assert stage.begin_ns.min() >= 0
        assert set(stage.block) <= set(range(sms))
    assert 5_000 < timeline.span_ns < 5_000_000
    assert ends[-1] == max(ends)
    trace = load(
        write_trace(timeline, tmp_path / "run.tileprof", of_driver(torch.cuda.get_device_name()), ["infer.py"])
    )
    assert not validate(trace)
    sys.stdout.write(f"{name}: {timeline.span_ns / 1e3:.1f} us with clocks, {len(timeline.stages)} stages\n")


def test_a_capture_takes_over_a_runner_whose_last_call_is_still_running() -> None:
    """The capture's stream and the caller's are not synchronised, and calls continue beside the replays."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    torch._dynamo.reset()
    case = TIMED["transformer blocks"]()
    compiled = torch.compile(case.model, backend="tileprof", dynamic=False, options={"use": "always"})
    calling, replaying = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.no_grad():
        expected = case.call(compiled).clone()
        for same_stream in (True, False):
            torch.cuda.synchronize()
            with torch.cuda.stream(calling):
                torch.cuda._sleep(20_000_000)
                early = [case.call(compiled) for _ in range(20)]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(calling if same_stream else replaying):
                graph.capture_begin(capture_error_mode="thread_local")
                out = case.call(compiled)
                graph.capture_end()
            wrong = torch.zeros((), dtype=torch.int64, device="cuda")
            for _ in range(300):
                with torch.cuda.stream(replaying):
                    graph.replay()
                    wrong += (out != expected).any()
                with torch.cuda.stream(calling):
                    late = case.call(compiled)
            torch.cuda.synchronize()
            assert int(wrong) == 0
            assert all(torch.equal(each, expected) for each in (*early, late))
