"""``torch.compile(backend="tileprof")`` takes the chains that it is able to run, and never changes a result."""

from __future__ import annotations

import logging
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from tests.support.runtime.region_builders import replaced
from tileprof.errors import UserError
from tileprof.runtime.compile import Options
from tileprof.runtime.compile.racing.runners import RegionError
from tileprof.runtime.compile.regions.chain_matcher import chains
from tileprof.runtime.compile.regions.products import finder, suited

ALWAYS = Options(use="always")


def weights(*sizes: int, dtype=torch.float32) -> list[torch.Tensor]:
    """Return matrices as nn.Linear keeps them."""
    torch.manual_seed(0)
    return [(torch.randn(n, k) / k**0.5).to(dtype) for k, n in pairwise(sizes)]


def traced(function, *inputs):
    with torch.no_grad():
        return make_fx(function)(*inputs)


def found_in(function, *inputs) -> list[list[str]]:
    """Return the operators of each chain of a function."""
    matched_chains = chains(traced(function, *inputs).graph)
    return [[getattr(o, "epilogue", getattr(o, "function", "")) for o in f.chain.operators] for f in matched_chains]


def two(x, a, b):
    return functional.linear(functional.gelu(functional.linear(x, a)), b)


def gated(x, g, u, d):
    return functional.linear(functional.silu(functional.linear(x, g)) * functional.linear(x, u), d)


X = torch.randn(2, 20, 64)


@pytest.mark.parametrize(
    ("function", "sizes", "expected"),
    [
        (two, (64, 96, 64), [["gelu", "none"]]),
        (
            lambda x, a, b: functional.linear(functional.gelu(functional.linear(x, a), approximate="tanh"), b),
            (64, 96, 64),
            [["gelu_tanh", "none"]],
        ),
        (lambda x, a, b: x @ a.t() @ b.t() + x, (64, 96, 64), [["none", "none"]]),
        (lambda x, a, b, c: two(two(x, a, b).relu(), c, c.t()), (64, 96, 64, 80), [["gelu", "relu", "gelu", "none"]]),
    ],
)  # fmt: skip
def test_chains_are_found(function, sizes, expected) -> None:
    assert found_in(function, X, *weights(*sizes)) == expected


def test_a_gate_is_four_stages_whichever_factor_comes_first() -> None:
    (g, u), (d,) = [w[0] for w in (weights(64, 96), weights(64, 96))], weights(96, 64)
    assert found_in(gated, X, g, u, d) == [["none", "none", "silu_mul", "none"]]

    def swapped_gate(x, g, u, d):
        up = functional.linear(x, u)
        return functional.linear(up * functional.silu(functional.linear(x, g)), d)

    assert found_in(swapped_gate, X, g, u, d) == [["none", "none", "silu_mul", "none"]]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a, b: (h := functional.linear(x, a), functional.linear(h, b)),  # the intermediate is a result
        lambda x, a, b: functional.linear(h := functional.linear(x, a), b).sum() + h.sum(),  # another node reads it
        lambda x, a, b: functional.linear(functional.linear(x, a).sigmoid(), b),  # there is no such epilogue
        lambda x, a, b: functional.linear(functional.silu(functional.linear(x, a).relu()), b),
        lambda x, a, b: a.t() @ functional.linear(x, a).view(40, 96).t()[:, :40],  # passed on as a second factor
        lambda x, a, b: functional.linear(x, a),
        # another order of rows
        lambda x, a, b: functional.linear(functional.linear(x, a).view(20, 2, 96).transpose(0, 1), b),
        # rows cut in two, as for heads
        lambda x, a, b: functional.linear(functional.linear(x, a).view(2, 40, 48), b[:, :48]),
        # one bias for all columns
        lambda x, a, b: torch.addmm(b[0, :1], functional.linear(x, a).view(40, 96).relu(), b.t()),
    ],
)  # fmt: skip
def test_other_graphs_are_left_to_inductor(function) -> None:
    assert found_in(function, X, *weights(64, 96, 64)) == []


@pytest.mark.parametrize(
    ("rows", "sizes", "dtype"), [(3, (64, 8, 64), torch.float32), (3, (64, 96, 64), torch.float64)]
)
def test_sizes_and_types_that_no_kernel_takes_are_left_alone(rows, sizes, dtype) -> None:
    assert found_in(two, torch.randn(rows, 64, dtype=dtype), *weights(*sizes, dtype=dtype)) == []


def close(value, expected) -> bool:
    return bool((value.double() - expected.double()).norm() <= 1e-2 * expected.double().norm())


LAYERS = st.lists(
    st.tuples(
        st.sampled_from([16, 24, 48]),
        st.sampled_from(["relu", "gelu", "silu", "tanh", "none"]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


class Stack(nn.Module):
    """Linear layers, each with an activation, a bias or none, and a second reader or none."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers, self.linears, width = layers, nn.ModuleList(), 32
        for columns, _, bias, _ in layers:
            self.linears.append(nn.Linear(width, columns, bias=bias))
            width = columns

    def forward(self, x):
        more = 0.0
        for linear, (_, function, _, read) in zip(self.linears, self.layers, strict=True):
            x = linear(x)
            if function != "none":
                x = getattr(functional, function)(x)
            if read:
                more = more + x.sum()
        return x + more


@settings(max_examples=25, deadline=None)
@given(LAYERS, st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_random_stacks_of_layers_compute_the_same(layers, dtype) -> None:
    torch.manual_seed(1)
    model, x = Stack(layers).to(dtype), torch.randn(2, 9, 32, dtype=dtype)
    with torch.no_grad():
        graph = traced(model, x)
        count, run = replaced(graph, finder(ALWAYS))
        out, expected = run(x), model(x)
    runs = "".join("-" if read or function == "tanh" else "x" for _, function, _, read in layers[:-1])
    assert count == sum(1 for run in runs.split("-") if run)
    assert (out.double() - expected.double()).norm() <= 5e-2 * (1e-3 + expected.double().norm())


def test_the_backend_has_a_name_and_leaves_training_to_inductor(caplog, monkeypatch) -> None:
    torch._dynamo.reset()
    records = []
    monkeypatch.setattr("tileprof.runtime.compile.entry.inductor", lambda module, _: records.append(module) or module)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))
    compiled = torch.compile(model, backend="tileprof", options={"use": "always"})
    with caplog.at_level(logging.INFO, "tileprof.runtime.compile"):
        with torch.no_grad():
            assert close(compiled(X), model(X))
        assert not records
        out = compiled(X)
    out.sum().backward()
    assert model[0].weight.grad is not None
    assert len(records) == 1
    assert "gradients are recorded" in caplog.text
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use": "sometimes"}, "measured, always or never"),
        ({"fast": True}, "no option 'fast'"),
        ({"scheduler": "fifo"}, "no scheduler 'fifo'"),
        ({"scheduler": "unsynchronised"}, "wrong results"),
        ({"policies": 3}, "a list of policy files"),
        ({"policies": [3]}, "a list of policy files"),
        ({"frozen": 1}, "frozen is 1; it is True or False"),
    ],
)
def test_options_that_mean_nothing_are_refused(arguments, message) -> None:
    with pytest.raises(UserError, match=message):
        Options.of(arguments)


def test_a_chain_whose_policy_cannot_be_made_is_left_alone_and_says_why(monkeypatch) -> None:
    def fail(self, memory=None):
        raise UserError("too many tiles")

    monkeypatch.setattr("tileprof.runtime.chain.Chain.policy", fail)
    _, run = replaced(traced(two, X, *weights(64, 96, 64)), finder(ALWAYS))
    with pytest.raises(RegionError, match="a chain of 2 products: too many tiles"):
        run(X, *weights(64, 96, 64))


def test_on_a_gpu_that_the_persistent_kernel_runs_on_chains_get_its_tiles(monkeypatch) -> None:
    (matched_chains,) = chains(traced(two, X.half(), *weights(64, 96, 64, dtype=torch.float16)).graph)
    (single,) = chains(traced(two, X, *weights(64, 96, 64)).graph)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr("tileprof.runtime.compile.regions.products.nvcc", lambda: "nvcc")
    for capability, device, name, expected in (
        ((9, 0), "cuda", "auto", "persistent"),
        ((9, 0), "cuda", "persistent", "persistent"),
        ((9, 0), "cuda", "graph", "graph"),
        ((10, 0), "cuda", "auto", "cusync"),
        ((9, 0), "cpu", "auto", "cusync"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, answer=capability: answer)
        last = SimpleNamespace(meta={"val": SimpleNamespace(device=torch.device(device))})
        for each, choice in (
            (matched_chains, expected),
            (single, "cusync" if name == "auto" else name),
        ):  # that kernel does not take float32
            result, way, pairs, _ = suited(
                SimpleNamespace(chain=each.chain, stages=each.stages, last=last), Options(scheduler=name)
            )
            assert pairs == {}
            assert way == choice
            assert [o.out for o in result.operators] == [o.out for o in each.chain.operators]
            assert (result == each.chain) == (way != "persistent" or each is single)


def test_without_nvcc_chains_keep_tiles_that_triton_takes(monkeypatch) -> None:
    (matched_chains,) = chains(traced(two, X.half(), *weights(64, 96, 64, dtype=torch.float16)).graph)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))

    def missing() -> None:
        raise UserError("there is no nvcc")

    monkeypatch.setattr("tileprof.runtime.compile.regions.products.nvcc", missing)
    last = SimpleNamespace(meta={"val": SimpleNamespace(device=torch.device("cuda"))})
    result, way, _, reason = suited(
        SimpleNamespace(chain=matched_chains.chain, stages=matched_chains.stages, last=last), Options()
    )
    assert (result, way) == (matched_chains.chain, "cusync")
    assert reason == "there is no nvcc"


def test_chains_for_triton_alone_are_taken_where_they_are_asked_for(monkeypatch, caplog) -> None:
    graph = traced(two, X, *weights(64, 96, 64)).graph
    monkeypatch.setattr(
        "tileprof.runtime.compile.regions.products.suited",
        lambda candidate, _: (candidate.chain, "cusync", {}, "stage 0 is float32"),
    )
    with caplog.at_level(logging.INFO, "tileprof.runtime.compile"):
        assert list(finder(Options())(graph)) == []
    assert "a chain of 2 stages is not for the persistent kernel: stage 0 is float32" in caplog.text
    assert len(list(finder(ALWAYS)(graph))) == 1
    assert len(list(finder(Options(scheduler="graph"))(graph))) == 1


def test_products_that_another_region_has_are_in_no_chain() -> None:
    graph = traced(two, X, *weights(64, 96, 64)).graph
    (region,) = finder(ALWAYS)(graph)
    assert list(finder(ALWAYS, {region.outputs[0]})(graph)) == []
