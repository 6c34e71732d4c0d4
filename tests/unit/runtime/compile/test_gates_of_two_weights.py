"""Gates whose two weights are kept as one: which chains have them, and that no copy is older than its weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from tileprof.runtime.compile import Options
from tileprof.runtime.compile.regions import policy_files, products
from tileprof.runtime.compile.regions.chain_matcher import chains
from tileprof.runtime.compile.regions.gates import joined
from tileprof.runtime.compile.regions.products import _side_by_side, finder, suited
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.stages.epilogues import GATE


class Gated(nn.Module):
    def __init__(self, *, bias: bool = False, up_bias: bool | None = None) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(64, 48, bias=bias), nn.Linear(64, 48, bias=bias if up_bias is None else up_bias)
        self.down = nn.Linear(48, 64, bias=bias)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def traced(model, x):
    """Return a graph that takes its weights as inputs, as torch.compile passes it, and their values."""
    values = dict(model.named_parameters())

    def plain(x, *weights):
        return torch.func.functional_call(model, dict(zip(values, weights, strict=True)), (x,))

    with torch.no_grad():
        return make_fx(plain)(x, *values.values()), [p.detach() for p in values.values()]


def found_in(model):
    torch.manual_seed(0)
    (matched_chains,) = chains(traced(model, torch.randn(20, 64))[0].graph)
    return matched_chains


@pytest.mark.parametrize("bias", [False, True])
def test_three_stages_become_one_product_that_computes_the_same(bias) -> None:
    model = Gated(bias=bias)
    actual = found_in(model)
    chain, pairs = joined(actual.chain)
    assert [getattr(o, "epilogue", "") for o in actual.chain.operators] == ["none", "none", "", "none"]
    assert [o.epilogue for o in chain.operators] == [GATE, "none"]
    assert pairs == {"w0_w1": ("w0", "w1")} | ({"b0_b1": ("b0", "b1")} if bias else {})
    assert chain.operators[0].b.strides == (1, 64)
    pipeline = Pipeline(chain.policy())
    x = torch.randn(20, 64)
    with torch.no_grad():
        parts = {"w0_w1": _side_by_side(model.gate.weight.t(), model.up.weight.t()), "w2": model.down.weight.t()}
        if bias:
            parts |= {"b0_b1": _side_by_side(model.gate.bias, model.up.bias), "b2": model.down.bias}
        assert torch.allclose(pipeline(x=x, **parts), model(x), atol=1e-5)


def test_what_is_no_gate_of_two_linear_layers_stays_as_it_is() -> None:
    actual = found_in(Gated(bias=False, up_bias=True))
    assert joined(actual.chain) == (actual.chain, {})

    def products(x, g, u, d):
        return (functional.silu(x @ g) * (x @ u)) @ d  # weights with rows of unit stride

    with torch.no_grad():
        graph = make_fx(products)(torch.randn(20, 64), torch.randn(64, 48), torch.randn(64, 48), torch.randn(48, 64))
    (actual,) = chains(graph.graph)
    assert joined(actual.chain) == (actual.chain, {})
    two = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 64))
    actual = found_in(two)
    assert joined(actual.chain) == (actual.chain, {})


def test_the_promise_is_asked_for_and_then_gates_are_for_the_persistent_kernel(monkeypatch) -> None:
    halves = traced(Gated().half(), torch.randn(20, 64).half())[0]
    (matched_chains,) = chains(halves.graph)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr("tileprof.runtime.compile.regions.products.nvcc", lambda: "nvcc")
    last = SimpleNamespace(meta={"val": SimpleNamespace(device=torch.device("cuda"))})
    on_gpu = SimpleNamespace(chain=matched_chains.chain, stages=matched_chains.stages, last=last)
    for options, stages, way in (
        (Options(frozen=True), 2, "persistent"),
        (Options(), 4, "cusync"),
        (Options(frozen=True, scheduler="graph"), 4, "graph"),
    ):
        chain, name, pairs, _ = suited(on_gpu, options)
        assert (len(chain.operators), name, bool(pairs)) == (stages, way, stages == 2)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Join the gates of chains, as for the persistent kernel."""
    result = lambda candidate, _: (joined(candidate.chain)[0], "auto", joined(candidate.chain)[1], None)  # noqa: E731 - a line
    monkeypatch.setattr(products, "suited", result)


def test_a_joined_gate_is_a_region_that_keeps_a_copy_of_both_weights(as_on_a_gpu) -> None:
    model, x = Gated(bias=True), torch.randn(20, 64)
    graph, weights = traced(model, x)
    (region,) = finder(Options())(graph.graph)
    folded_names = {region.inputs[n].name for n in region.folded}
    assert {n.op for n in region.inputs} == {"placeholder"}
    assert len(folded_names) == 4, "two weights and two biases"
    runner = region.build(torch.device("cpu"))
    assert runner.frozen
    by_name = dict(zip([n.name for n in graph.graph.nodes if n.op == "placeholder"], [x, *weights], strict=True))
    inputs = [by_name[n.name] for n in region.inputs]
    with torch.no_grad():
        assert torch.allclose(runner(*inputs)[0], model(x), atol=1e-5)
        weights[2].mul_(3)
        assert not torch.allclose(runner(*inputs)[0], model(x), atol=1e-5), "it keeps what it has copied"
        assert torch.allclose(region.build(torch.device("cpu"))(*inputs)[0], model(x), atol=1e-5)


def test_a_policy_for_two_weights_is_used_as_it_is() -> None:
    graph, _ = traced(Gated(), torch.randn(20, 64))
    (matched_chains,) = chains(graph.graph)
    policy = matched_chains.chain.policy()
    (region,) = policy_files.finder({Path("policy.json"): policy}, "auto")(graph.graph)
    runner = region.build(torch.device("cpu"))
    assert (runner.pipeline.policy, runner.frozen, region.folded) == (policy, False, ())
