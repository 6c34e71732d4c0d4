"""Regions in whole programs: results stay the same, updates in place happen once, the faster correct program is kept,
and the log says why.
"""

from __future__ import annotations

import logging
import shutil
import threading

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from tests.support.runtime.cached_layer import CachedLayer
from tests.support.runtime.region_builders import Played, between, graph_of, played, replaced
from tileprof.errors import UserError
from tileprof.runtime.compile import entry
from tileprof.runtime.compile.inductor import rest_by_inductor
from tileprof.runtime.compile.options import Options
from tileprof.runtime.compile.racing import race
from tileprof.runtime.compile.racing.race import Program, Race
from tileprof.runtime.compile.racing.report import Report, reports
from tileprof.runtime.compile.racing.runners import NotNowError
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.partition import digest, proposed
from tileprof.runtime.compile.regions.region_op import region_call

ATEN = aten.ATEN
CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # Inductor imports it


def attention_part(graph):
    """Return a region from the first activation to the last product, with the update of the cache."""
    nodes = between(graph, ATEN.gelu.default, ATEN.copy_.default)
    cache = next(n for n in nodes if aten.calls(n, ATEN.copy_.default) and aten.shape(n.args[0]) == (4, 64))
    out = {n for n in nodes if aten.calls(n, ATEN.add.Tensor, ATEN.addmm.default, ATEN.copy_.default)}
    yield played([*(n for n in nodes if n not in out), cache], "an attention")


class Harness:
    """Provide ``torch.compile`` with the test's own finders on a CPU, as if it were a GPU."""

    def __init__(self, monkeypatch, *finders, times=(1.0, 2.0), use="measured") -> None:
        torch._dynamo.reset()
        self.times, self.raced, self.inductor = times, 0, 0
        monkeypatch.setattr(entry, "FINDERS", finders)
        monkeypatch.setattr(entry, "left_to_inductor", lambda *_: None)
        monkeypatch.setattr(entry.products, "finder", lambda *_: lambda graph: iter(()))
        monkeypatch.setattr(entry, "inductor", self._inductor)
        monkeypatch.setattr(race, "times_in_turn", self._times)
        self.options = {"use": use}

    def _inductor(self, module, _):
        def run(*args):
            self.inductor += 1
            return module(*args)

        return run

    def _times(self, works, before):
        self.raced += 1
        for work in works:
            before()
            work()
        return list(self.times)

    def compile(self, model):
        return torch.compile(model, backend="tileprof", options=self.options)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "tileprof.runtime.compile")
    return lambda: caplog.text


def two_decoders():
    torch.manual_seed(0)
    model, other = CachedLayer(4).eval(), CachedLayer(4).eval()
    other.load_state_dict(model.state_dict())
    return model, other


def check_three_calls(compiled, model, other) -> None:
    """Check that three calls give the results and caches that another model gives in eager mode."""
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 64)
            assert torch.allclose(compiled(x), other(x), atol=1e-5)
            assert torch.allclose(model.cache, other.cache, atol=1e-5)
            assert model.calls == other.calls


def test_results_and_caches_are_the_same_over_several_calls(monkeypatch, log) -> None:
    harness, (model, other) = Harness(monkeypatch, attention_part), two_decoders()
    compiled = harness.compile(model)
    check_three_calls(compiled, model, other)
    assert harness.raced == 1
    assert "1.0 us against Inductor's 2.0 us; kept tileprof's (an attention)" in log()
    assert "taken: an attention" in log()
    assert "addmm" in log().split("left to Inductor: ")[1]


@pytest.mark.parametrize(("times", "ours"), [((95.0, 100.0), True), ((97.0, 100.0), False), ((120.0, 100.0), False)])
def test_ours_is_kept_only_where_it_is_four_percent_faster(monkeypatch, log, times, ours) -> None:
    harness, (model, _) = Harness(monkeypatch, attention_part, times=times), two_decoders()
    compiled = harness.compile(model)
    with torch.no_grad(), reports() as matches:
        compiled(torch.randn(4, 64))
        before = harness.inductor
        compiled(torch.randn(4, 64))
    assert (harness.inductor == before) == ours
    (report,) = matches
    assert (report.ours_us, report.inductor_us) == times
    assert (report.winner, bool(report.reason)) == (("an attention", False) if ours else ("", True))
    assert report.inductor_operators["addmm"] == 2
    assert report.region_counts == {"an attention": 1}
    assert f"kept {'tileprof' if ours else 'Inductor'}" in log()


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ here")
def test_inductor_hands_a_region_the_cache_itself_and_fuses_what_is_left(monkeypatch, log) -> None:
    records = []

    def find(graph):
        (region,) = attention_part(graph)

        class Watched(Played):
            def __call__(self, *inputs):
                records.append([inputs[n].data_ptr() for n in region.mutated])
                return super().__call__(*inputs)

        object.__setattr__(region, "build", lambda _: Watched(region))
        yield region

    harness, (model, other) = Harness(monkeypatch, find, use="always"), two_decoders()
    monkeypatch.setattr(entry, "rest_by_pytorch", rest_by_inductor)
    compiled = harness.compile(model)
    check_three_calls(compiled, model, other)
    assert set(map(tuple, records)) == {(model.cache.data_ptr(),)}
    assert "Inductor's" not in log()


def test_a_graph_that_is_one_region_does_not_run_inductor(monkeypatch, log) -> None:
    def fail(*_):
        raise AssertionError("Inductor was asked to compile")

    harness = Harness(
        monkeypatch,
        lambda g: iter([played(between(g, ATEN.relu.default, ATEN.tanh.default), "all of it")]),
        use="always",
    )
    monkeypatch.setattr(entry, "rest_by_pytorch", rest_by_inductor)
    monkeypatch.setattr("tileprof.runtime.compile.inductor.inductor", fail)
    model, x = nn.Sequential(nn.ReLU(), nn.Tanh()), torch.randn(4, 8)
    compiled = harness.compile(model)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    assert "taken: all of it" in log()
    assert "Inductor" not in log()


def wrong(graph):
    (region,) = attention_part(graph)
    yield played(region.nodes, "a wrong attention", shift=1.0)


def test_results_that_differ_are_inductors(monkeypatch, log) -> None:
    harness, (model, other) = Harness(monkeypatch, wrong), two_decoders()
    compiled, x = harness.compile(model), torch.randn(4, 64)
    with torch.no_grad():
        assert torch.allclose(compiled(x), other(x), atol=1e-5)
    assert torch.allclose(model.cache, other.cache, atol=1e-5)
    assert harness.raced == 0
    assert "results of a wrong attention differ by" in log()


def test_a_call_with_zeros_decides_no_race_but_the_next_call_does(monkeypatch, log) -> None:
    harness, model = (
        Harness(monkeypatch, lambda g: iter([played(between(g, ATEN.relu.default, ATEN.relu.default))])),
        nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()),
    )
    compiled = harness.compile(model)
    with torch.no_grad():
        compiled(torch.zeros(2, 8))
        assert harness.raced == 0
        assert "cannot be compared" in log()
        compiled(torch.randn(2, 8))
    assert harness.raced == 1


def failing(**how):
    def find(graph):
        (region,) = attention_part(graph)
        yield played(region.nodes, "a failing attention", **how)

    return find


@pytest.mark.parametrize("calls", [0, 2, 3])
def test_a_region_that_fails_leaves_the_call_and_all_later_ones_to_inductor(monkeypatch, log, calls) -> None:
    error = RuntimeError("stage 3 (attention), tile 5: semaphore 7 did not reach its value\nmore")
    harness, (model, other) = Harness(monkeypatch, failing(error=error, calls=calls)), two_decoders()
    compiled = harness.compile(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 64)
            assert torch.allclose(compiled(x), other(x), atol=1e-5)
            assert torch.allclose(model.cache, other.cache, atol=1e-5)
    assert "semaphore 7 did not reach its value" in log()


def test_what_cannot_be_built_says_why_in_a_sentence(monkeypatch, log) -> None:
    def find(graph):
        (region,) = attention_part(graph)

        def build(_):
            raise UserError("16 heads of 80 columns are not for this kernel")

        object.__setattr__(region, "build", build)
        yield region

    harness, (model, other) = Harness(monkeypatch, find), two_decoders()
    x = torch.randn(4, 64)
    with torch.no_grad():
        assert torch.allclose(harness.compile(model)(x), other(x), atol=1e-5)
    assert "an attention: 16 heads of 80 columns are not for this kernel" in log()


def test_a_finder_with_a_bug_does_not_stop_the_program(monkeypatch, log) -> None:
    def find(_):
        raise KeyError("oops")
        yield

    harness, (model, other) = Harness(monkeypatch, find), two_decoders()
    x = torch.randn(4, 64)
    with torch.no_grad():
        assert torch.allclose(harness.compile(model)(x), other(x), atol=1e-5)
    assert "which is a bug of tileprof" in log()
    assert "oops" in log()


def test_threads_have_runners_of_their_own_and_one_of_them_decides(monkeypatch) -> None:
    builds = []

    def find(graph):
        region = played(between(graph, ATEN.relu.default, ATEN.relu.default))

        def build(_):
            builds.append(Played(region))
            return builds[-1]

        object.__setattr__(region, "build", build)
        yield region

    harness, model = Harness(monkeypatch, find), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    compiled = harness.compile(model)
    wrong, barrier = [], threading.Barrier(4)

    def work() -> None:
        with torch.no_grad():
            barrier.wait()
            for _ in range(20):
                x = torch.randn(3, 8)
                if not torch.allclose(compiled(x), model(x), atol=1e-6):
                    wrong.append(x)

    with torch.no_grad():
        compiled(torch.randn(3, 8))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert harness.raced == 1
    assert len(builds) == 5


def test_a_copy_of_a_weight_is_never_older_than_the_weight(monkeypatch, log) -> None:
    def find(graph):
        (relu,) = between(graph, ATEN.relu.default, ATEN.relu.default)
        (product,) = (n for n in graph.nodes if aten.calls(n, ATEN.addmm.default) and relu in n.args)
        weight = product.args[2]
        yield played([product, weight], folded=[weight.args[0]], frozen=True)

    harness, model = Harness(monkeypatch, find), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    compiled, x = harness.compile(model), torch.randn(3, 8)
    with torch.no_grad():
        assert torch.allclose(compiled(x), model(x), atol=1e-6)
        model[2].weight.mul_(2)
        assert torch.allclose(compiled(x), model(x), atol=1e-6)
        model[2].weight = nn.Parameter(torch.randn(8, 8))
        assert torch.allclose(compiled(x), model(x), atol=1e-6)
    assert log().count("is copied again") == 2


def test_many_copies_of_weights_are_not_made_unasked(monkeypatch, log) -> None:
    monkeypatch.setattr(entry, "FOLDED_BYTES", 300)
    graph = make_fx(lambda x, w, v: (x @ w).relu() @ v)(torch.randn(4, 8), torch.randn(8, 8), torch.randn(8, 8)).graph
    nodes = [n for n in graph.nodes if aten.calls(n, ATEN.mm.default)]
    regions = [played([n], name, folded=[n.args[1]]) for n, name in zip(nodes, ("one", "two"), strict=True)]
    assert entry._without_large_copies(regions, Options()) == regions[:1]
    assert entry._without_large_copies(regions, Options(frozen=True)) == regions
    assert "two is left to Inductor" in log()


def test_chains_are_searched_last_without_the_nodes_of_other_regions(monkeypatch) -> None:
    message = []
    harness, model = (
        Harness(monkeypatch, lambda g: iter([played(between(g, ATEN.relu.default, ATEN.relu.default))])),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
    )
    monkeypatch.setattr(entry.products, "finder", lambda *words: message.append(words[-1]) or (lambda _: iter(())))
    with torch.no_grad():
        harness.compile(model)(torch.randn(2, 8))
    (options_given,) = message
    assert [n.target for n in options_given] == [ATEN.relu.default]


def test_nothing_but_inductor_runs_without_regions(monkeypatch, log) -> None:
    harness, model = Harness(monkeypatch), nn.Linear(8, 8)
    with torch.no_grad():
        harness.compile(model)(torch.randn(2, 8))
    assert (harness.inductor, harness.raced) == (1, 0)
    assert "no region of the graph" in log()


def test_random_numbers_are_not_drawn_twice(monkeypatch, log) -> None:
    def find(graph):
        yield played(between(graph, ATEN.relu.default, ATEN.relu.default))

    harness = Harness(monkeypatch, find)
    compiled = harness.compile(lambda x: functional.dropout(x.relu(), 0.5))
    with torch.no_grad():
        compiled(torch.randn(2, 8))
    assert (harness.inductor, harness.raced) == (1, 0)
    assert "it draws random numbers" in log()


@pytest.mark.parametrize(
    ("inputs", "options", "grad", "message"),
    [
        ((torch.randn(2),), Options(use="never"), False, 'use="never"'),
        ((torch.randn(2),), Options(), False, "no tensor is on a GPU"),
        ((torch.randn(2, requires_grad=True),), Options(use="always"), True, "gradients are recorded"),
        ((torch.randn(2),), Options(use="always"), False, None),
    ],
)
def test_the_log_says_in_one_sentence_what_is_left_to_inductor(inputs, options, grad, message) -> None:
    with torch.set_grad_enabled(grad):
        reason = entry.left_to_inductor(inputs, options)
    assert reason == message if message is None else message in reason


def on_gpu():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return (torch.empty(2, device="cuda"),)


def test_other_gpus_and_machines_without_nvcc_are_inductors(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    inputs = on_gpu()
    assert "this GPU has 8.0" in entry.left_to_inductor(inputs, Options())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))

    def missing() -> None:
        raise UserError("there is no nvcc")

    monkeypatch.setattr(entry, "nvcc", missing)
    assert entry.left_to_inductor(inputs, Options()) == "there is no nvcc"
    monkeypatch.setattr(entry, "nvcc", lambda: "nvcc")
    assert entry.left_to_inductor(inputs, Options()) is None


def test_dynamic_shapes_are_inductors(monkeypatch, log) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(entry, "inductor", lambda module, _: module)
    compiled = torch.compile(nn.Linear(8, 8), backend="tileprof", dynamic=True, options={"use": "always"})
    with torch.no_grad():
        compiled(torch.randn(3, 8))
    assert "shapes are dynamic" in log()


def test_a_region_keeps_its_place_among_what_needs_it_and_what_it_needs() -> None:
    def compute(x):
        a = x.relu()
        b = a.sin()  # outside, and needs the region's first result
        c = x.cos()  # outside, needed by the region's last node, and behind b
        return b, (a * c).tanh()

    module, x = graph_of(compute, torch.randn(8)), torch.randn(8)
    expected = module(x)

    def find(graph):
        names = (ATEN.relu.default, ATEN.mul.Tensor, ATEN.tanh.default)
        yield played([n for n in graph.nodes if aten.calls(n, *names)])

    count, run = replaced(module, find)
    assert count == 1
    assert all(torch.equal(a, b) for a, b in zip(run(x), expected, strict=True))


def test_a_region_through_which_a_path_leaves_and_comes_back_is_refused(caplog) -> None:
    module = graph_of(lambda x: x.relu().sin().tanh(), torch.randn(8))

    def find(graph):
        yield played([n for n in graph.nodes if aten.calls(n, ATEN.relu.default, ATEN.tanh.default)], "relu and tanh")

    assert proposed(module.graph, [find]) == []
    assert "relu and tanh is left to Inductor" in caplog.text


def test_an_update_comes_behind_everybody_who_reads_what_was_there(monkeypatch) -> None:
    class Reads(CachedLayer):
        def forward(self, x):
            actual = self.cache.t().sum(0)  # before the update
            return super().forward(x) + actual.sum()

    harness = Harness(monkeypatch, attention_part)
    torch.manual_seed(0)
    model, other = Reads(4).eval(), Reads(4).eval()
    other.load_state_dict(model.state_dict())
    compiled = harness.compile(model)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 64)
            assert torch.allclose(compiled(x), other(x), atol=1e-5)
    assert harness.raced == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": ()}, "no outputs"),
        ({"inputs": ()}, "its inputs are not what its nodes read"),
        ({"mutated": (0,)}, "not those that it says it changes"),
        ({"nodes": ()}, "no nodes"),
    ],
)
def test_regions_that_contradict_the_graph_are_refused(change, message, caplog) -> None:
    module = graph_of(lambda x: x.relu().sin(), torch.randn(8))

    def find(graph):
        region = played(between(graph, ATEN.relu.default, ATEN.relu.default))
        for name, value in change.items():
            object.__setattr__(region, name, value)
        yield region

    assert proposed(module.graph, [find]) == []
    assert message in caplog.text


def test_a_key_is_the_same_for_equal_regions_and_another_for_others() -> None:
    def key(function, *shape):
        graph = graph_of(function, torch.randn(*shape)).graph
        return digest(played([n for n in graph.nodes if n.op == "call_function"]))

    first = key(lambda x: (x * 2).relu(), 8)
    assert key(lambda y: (y * 2).relu(), 8) == first
    assert (
        len(
            {first, key(lambda x: (x * 3).relu(), 8), key(lambda x: (x * 2).relu(), 9), key(lambda x: (x * 2).sin(), 8)}
        )
        == 4
    )


def test_a_region_outside_of_its_program_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="outside of the program"):
        region_call(1, updating=False)("0-nobody's", [torch.randn(2)])


def test_captures_for_which_nothing_is_ready_run_inductors_program(log) -> None:
    class NotReady:
        name = "a decoder"

        def __call__(self, *_):
            raise NotNowError("call the program once outside of a capture before each capture")

    result = Program(None, None, [], lambda x: x + 1, CPU, Report(), Race(None))
    result._decided, result._way = True, NotReady()
    assert result(1) == 2
    assert result(1) == 2
    assert log().count("before each capture") == 1
