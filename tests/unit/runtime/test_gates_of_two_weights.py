"""Gates whose two weights are kept as one: which chains, and that no copy is ever older than its weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from tileprof.runtime.compile.find import chains
from tileprof.runtime.compile.gates import Pair, joined
from tileprof.runtime.compile.replace import ChainModule, Options, _plain, _suited, replace_chains
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
    """A graph that takes its weights as inputs, as torch.compile hands it over; their values."""
    values = dict(model.named_parameters())

    def plain(x, *weights):
        return torch.func.functional_call(model, dict(zip(values, weights, strict=True)), (x,))

    with torch.no_grad():
        return make_fx(plain)(x, *values.values()), [p.detach() for p in values.values()]


def found_in(model):
    torch.manual_seed(0)
    (found,) = chains(traced(model, torch.randn(20, 64))[0].graph)
    return found


@pytest.mark.parametrize("bias", [False, True])
def test_three_stages_become_one_product_that_computes_the_same(bias) -> None:
    model = Gated(bias=bias)
    found = found_in(model)
    chain, pairs = joined(found.chain)
    assert [getattr(o, "epilogue", "") for o in found.chain.operators] == ["none", "none", "", "none"]
    assert [o.epilogue for o in chain.operators] == [GATE, "none"]
    assert pairs == {"w0_w1": ("w0", "w1")} | ({"b0_b1": ("b0", "b1")} if bias else {})
    assert chain.operators[0].b.strides == (1, 64)
    pipeline = Pipeline(chain.policy())
    x = torch.randn(20, 64)
    with torch.no_grad():
        parts = {"w0_w1": Pair().of(model.gate.weight.t(), model.up.weight.t()), "w2": model.down.weight.t()}
        if bias:
            parts |= {"b0_b1": Pair().of(model.gate.bias, model.up.bias), "b2": model.down.bias}
        assert torch.allclose(pipeline(x=x, **parts), model(x), atol=1e-5)


def test_what_is_no_gate_of_two_linear_layers_stays_as_it_is() -> None:
    found = found_in(Gated(bias=False, up_bias=True))
    assert joined(found.chain) == (found.chain, {})

    def products(x, g, u, d):
        return (functional.silu(x @ g) * (x @ u)) @ d  # weights with rows of unit stride

    with torch.no_grad():
        graph = make_fx(products)(torch.randn(20, 64), torch.randn(64, 48), torch.randn(64, 48), torch.randn(48, 64))
    (found,) = chains(graph.graph)
    assert joined(found.chain) == (found.chain, {})
    two = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 64))
    found = found_in(two)
    assert joined(found.chain) == (found.chain, {})


def test_a_copy_is_kept_until_a_weight_changes_or_is_another() -> None:
    model, pair = Gated(), Pair()

    def whole():
        with torch.no_grad():
            made = pair.of(model.gate.weight.t(), model.up.weight.t())
            assert torch.equal(made, torch.cat([model.gate.weight, model.up.weight]).t())
        return made

    first = whole()
    assert whole() is first
    with torch.no_grad():
        model.up.weight.mul_(2)
    second = whole()
    assert second is not first
    model.load_state_dict(Gated().state_dict())
    third = whole()
    assert third is not second
    model.gate.weight = nn.Parameter(torch.randn(48, 64))
    assert whole() is not third
    for _ in range(20):  # a weight that is gone leaves its address to another
        model.gate.weight = None
        model.gate.weight = nn.Parameter(torch.randn(48, 64))
        whole()


def test_tensors_that_count_no_changes_are_not_copied() -> None:
    with torch.inference_mode():
        weight = torch.randn(48, 64)
        assert Pair().of(weight.t(), weight.t()) is None


def test_nothing_is_copied_into_a_graph_and_what_it_reads_outlives_the_weights(monkeypatch) -> None:
    class Weight(torch.Tensor):
        is_cuda = True

    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    gate, up = (torch.randn(48, 64).as_subclass(Weight) for _ in range(2))
    pair = Pair()
    assert pair.of(gate, up) is None
    capturing[0] = False
    made = pair.of(gate, up)
    capturing[0] = True
    assert pair.of(gate, up) is made
    assert pair.of(gate, up) is made
    gate.add_(1)
    assert pair.of(gate, up) is None
    capturing[0] = False
    assert pair.of(gate, up) is not made
    assert len(pair._captured) == 1
    assert pair._captured[0] is made


def test_the_promise_is_asked_for_and_then_gates_are_for_the_persistent_kernel(monkeypatch) -> None:
    halves = traced(Gated().half(), torch.randn(20, 64).half())[0]
    (found,) = chains(halves.graph)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr("tileprof.runtime.compile.replace.nvcc", lambda: "nvcc")
    last = SimpleNamespace(meta={"val": SimpleNamespace(device=torch.device("cuda"))})
    on_gpu = SimpleNamespace(chain=found.chain, stages=found.stages, last=last)
    for options, stages, way in (
        (Options(frozen=True), 2, "persistent"), (Options(), 4, "cusync"), (Options(frozen=True, scheduler="graph"), 4, "graph"),
    ):  # fmt: skip
        chain, name, pairs = _suited(on_gpu, options)
        assert (len(chain.operators), name, bool(pairs)) == (stages, way, stages == 2)


def test_a_module_with_a_joined_gate_follows_its_weights() -> None:
    model, x = Gated(bias=True), torch.randn(20, 64)
    graph, weights = traced(model, x)
    (found,) = chains(graph.graph)
    chain, pairs = joined(found.chain)
    module = ChainModule(chain.policy(), _plain(graph, found), tuple(found.inputs), Options(use="always"), pairs)
    names = ("w0", "b0", "w1", "b1", "w2", "b2")
    by_name = {name: w.t() if w.dim() > 1 else w for name, w in zip(names, weights, strict=True)}
    given = [(by_name | {"x": x})[name] for name in found.inputs]
    with torch.no_grad():
        assert torch.allclose(module(*given), model(x), atol=1e-5)
        weights[2].mul_(3)
        assert torch.allclose(module(*given), model(x), atol=1e-5)


def test_a_policy_for_two_weights_is_used_as_it_is(monkeypatch) -> None:
    graph, weights = traced(Gated(), torch.randn(20, 64))
    (found,) = chains(graph.graph)
    policy = found.chain.policy()
    monkeypatch.setattr(
        "tileprof.runtime.compile.replace._suited",
        lambda found, _: (joined(found.chain)[0], "auto", joined(found.chain)[1]),
    )
    assert replace_chains(graph, Options(use="always", frozen=True), [policy]) == 1
    (module,) = [m for m in graph.modules() if isinstance(m, ChainModule)]
    assert (module.cpu.policy, module._pairs) == (policy, [])
    with torch.no_grad():
        assert graph(torch.randn(20, 64), *weights).shape == (20, 64)
