"""``torch.compile(..., options={"policies": ...})`` finds a file's stages in a graph, whatever their tiles and names,
computes them by its pipeline, and warns of a file that fits nowhere.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from tests.support.runtime import chains
from tests.support.runtime.region_builders import replaced
from tileprof.policy.format.expression import parse
from tileprof.policy.format.symbolic import Symbol, text_of
from tileprof.runtime.chain import Chain
from tileprof.runtime.compile.regions.policy_files import finder, load_policies
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.view import View
from tileprof.runtime.symbolic import for_sizes

FILE = Path("policy.json")
matrix, weight = (partial(make, dtype="float32") for make in (chains.matrix, chains.weight))


def products(rows: int = 40) -> Chain:
    """Rename tiles and stages as a recording might have them, unlike any that the backend itself finds."""
    up = Gemm(
        matrix("t4", rows, 64), weight("0.weight", 64, 96), matrix("t8", rows, 96), matrix("0.bias", 96), tile=(16, 48),
        epilogue="gelu", rows_along="x",
    )  # fmt: skip
    down = Gemm(matrix("t8", rows, 96), weight("2.weight", 96, 64), matrix("t9", rows, 64), tile=(24, 32))
    return Chain(("up", "down"), (up, down))


def two(x, a, bias, b):
    return functional.linear(functional.gelu(functional.linear(x, a, bias)), b)


def gated() -> Chain:
    """SiLU in the first product, the multiplication in the second."""
    gate = Gemm(matrix("x", 40, 64), weight("g", 64, 96), matrix("s", 40, 96), tile=(16, 48), epilogue="silu")
    up = Gemm(
        matrix("x", 40, 64), weight("u", 64, 96), matrix("h", 40, 96), residual=matrix("s", 40, 96), tile=(16, 32),
        combine="multiply",
    )  # fmt: skip
    down = Gemm(matrix("h", 40, 96), weight("d", 96, 64), matrix("y", 40, 64), tile=(16, 64))
    return Chain(("gate", "up", "down"), (gate, up, down))


def gated_mlp(x, g, u, d):
    return functional.linear(functional.silu(functional.linear(x, g)) * functional.linear(x, u), d)


def convolutions() -> Chain:
    x, h, y = (View.contiguous(name, (2, 6, 6, 8), "float32") for name in "xhy")
    weights = [View.contiguous(name, (8, 3, 3, 8), "float32") for name in ("w1", "w2")]
    norm = {role: matrix(role, 8) for role in ("mean", "var", "scale", "shift")}
    first = Conv2d(x, weights[0], h, tile=(24, 8), padding=1, epilogue="relu", epsilon=1e-5, **norm)
    return Chain(("first", "second"), (first, Conv2d(h, weights[1], y, matrix("b", 8), tile=(16, 8), padding=1)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.second(functional.relu(self.norm(self.first(x))))


def traced(function, *inputs):
    with torch.no_grad():
        return make_fx(function)(*inputs)


def weights(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator) / shape[-1] ** 0.5 for shape in shapes]


def close(value, expected) -> bool:
    return bool((value.double() - expected.double()).norm() <= 1e-4 * expected.double().norm())


def replaced_by(policy, graph):
    return replaced(graph, finder({FILE: policy}, "auto"))


def test_products_run_by_the_file_and_make_no_policy_of_their_own(monkeypatch) -> None:
    policy = products().policy()
    inputs = weights((2, 20, 64), (96, 64), (96,), (64, 96))
    count, run = replaced_by(policy, traced(two, *inputs))
    assert count == 1
    monkeypatch.setattr("tileprof.runtime.chain.Chain.policy", None)
    out = run(*inputs)
    assert out.shape == (2, 20, 64)
    assert close(out, two(*inputs))


def test_a_gate_in_epilogues_is_found() -> None:
    inputs = weights((40, 64), (96, 64), (96, 64), (64, 96))
    count, run = replaced_by(gated().policy(), traced(gated_mlp, *inputs))
    assert count == 1
    assert close(run(*inputs), gated_mlp(*inputs))


def test_convolutions_with_batch_norm_are_found() -> None:
    torch.manual_seed(2)
    model = Convolutions().eval().to(memory_format=torch.channels_last)
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    del state["norm.num_batches_tracked"]
    tensors = list(state.values())

    def call(x, *tensors):
        return torch.func.functional_call(model, dict(zip(state, tensors, strict=True)), (x,))

    graph = traced(call, x, *tensors)
    graph.graph.eliminate_dead_code()  # the statistics that the norm returns
    count, run = replaced_by(convolutions().policy(), graph)
    assert count == 1
    out = run(x, *tensors)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert close(out, model(x))


def test_one_file_for_a_range_serves_the_size_of_the_graph() -> None:
    proof, _ = for_sizes(products(64).policy(), Symbol.parse("tokens=1..128"))
    for rows in (17, 100):
        inputs = weights((rows, 64), (96, 64), (96,), (64, 96))
        count, run = replaced_by(proof.policy, traced(two, *inputs))
        assert count == 1
        assert close(run(*inputs), two(*inputs))
    count, _ = replaced_by(proof.policy, traced(two, *weights((200, 64), (96, 64), (96,), (64, 96))))
    assert count == 0


def test_files_are_read_whether_for_a_size_or_for_a_range(tmp_path) -> None:
    policy = products().policy()
    policy.save(tmp_path / "one.json")
    assert load_policies(tmp_path / "one.json") == policy
    proof, _ = for_sizes(policy, Symbol.parse("tokens=1..128"))
    (tmp_path / "range.json").write_text(text_of(proof.policy))
    assert load_policies(tmp_path / "range.json").at(7) == proof.policy.at(7)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a, bias, b: functional.linear(functional.relu(functional.linear(x, a, bias)), b),
        lambda x, a, bias, b: functional.linear(functional.gelu(functional.linear(x, a, bias), approximate="tanh"), b),
        lambda x, a, bias, b: functional.linear(functional.gelu(functional.linear(x, a)), b) + bias.sum(),
        lambda x, a, bias, b: functional.linear(functional.gelu(functional.linear(x[:39], a, bias)), b),
        lambda x, a, bias, b: (h := functional.gelu(functional.linear(x, a, bias)), functional.linear(h, b)),
    ],
)  # fmt: skip
def test_another_program_is_left_to_inductor_with_a_warning(function, caplog) -> None:
    inputs = weights((40, 64), (96, 64), (96,), (64, 96))
    count, _ = replaced_by(products().policy(), traced(function, *inputs))
    assert count == 0
    assert "the policy is not used" in caplog.text or "is left to Inductor" in caplog.text


def test_a_policy_that_waits_for_too_little_is_refused() -> None:
    policy = products().policy()
    weak = replace(policy, edges=tuple(replace(e, value=parse("0", ("x", "y", "z"))) for e in policy.edges))
    inputs = weights((40, 64), (96, 64), (96,), (64, 96))
    _, run = replaced_by(weak, traced(two, *inputs))
    with pytest.warns(match="leaves .* dependencies uncovered"):
        assert close(run(*inputs), two(*inputs))
