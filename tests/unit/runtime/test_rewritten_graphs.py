"""What our program computes in another way than the model says: patches as products, outer products as multiplications;
results and strides stay.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tileprof.runtime.compile import aten
from tileprof.runtime.compile.outer_products import outer_products_as_multiplications
from tileprof.runtime.compile.patches import patches_as_products
from tileprof.runtime.compile.tracing import inference_graphs

ATEN = aten.ATEN


def traced(model, x):
    (module,) = inference_graphs(model.eval(), x)
    given = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    parameters = {tuple(p.shape): p for p in model.parameters()}
    values = [x if v.shape == x.shape else parameters[tuple(v.shape)].detach() for v in given]
    with torch.no_grad():
        before = module(*values)
        count = patches_as_products(module.graph, ())
        module.graph.lint()
        module.recompile()
        after = module(*values)
    return count, before, after, module.graph


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(8, 8), (4, 8)])
def test_patches_are_products_with_the_same_results_and_strides(layout, bias, size) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 40, size, stride=size, bias=bias).to(torch.bfloat16).to(memory_format=layout)
    x = torch.randn(2, 3, 32, 48).to(torch.bfloat16).to(memory_format=layout)
    count, (before,), (after,), graph = traced(model, x)
    assert count == 1
    assert not any(aten.calls(n, ATEN.convolution.default) for n in graph.nodes)
    assert any(aten.calls(n, ATEN.addmm.default if bias else ATEN.mm.default) for n in graph.nodes)
    assert before.stride() == after.stride()
    assert (before.float() - after.float()).norm() / before.float().norm() < 1e-2


@pytest.mark.parametrize(
    ("convolution", "x"),
    [
        (nn.Conv2d(3, 8, 8, stride=4), torch.randn(1, 3, 32, 32)),
        (nn.Conv2d(3, 8, 8, stride=8, padding=4), torch.randn(1, 3, 32, 32)),
        (nn.Conv2d(3, 8, 8, stride=8), torch.randn(1, 3, 36, 32)),
        (nn.Conv2d(16, 8, 2, stride=2), torch.randn(1, 16, 32, 32)),
        (nn.Conv2d(4, 8, 2, stride=2, groups=4), torch.randn(1, 4, 32, 32)),
        (nn.ConvTranspose2d(3, 8, 2, stride=2), torch.randn(1, 3, 32, 32)),
    ],
)
def test_other_convolutions_stay(convolution, x) -> None:
    count, _, _, graph = traced(convolution.to(torch.bfloat16), x.to(torch.bfloat16))
    assert count == 0
    assert any(aten.calls(n, ATEN.convolution.default) for n in graph.nodes)


def test_a_convolution_of_a_region_stays() -> None:
    (module,) = inference_graphs(
        nn.Conv2d(3, 8, 8, stride=8).to(torch.bfloat16), torch.randn(1, 3, 32, 32).to(torch.bfloat16)
    )
    assert patches_as_products(module.graph, set(module.graph.nodes)) == 0


class Angles(nn.Module):
    """Of rotary embeddings, as transformers computes them."""

    def forward(self, frequencies, positions):
        return (frequencies[None, :, None].expand(2, -1, 1) @ positions[:, None, :].float()).transpose(1, 2).cos()


@pytest.mark.parametrize("columns", [1, 7])
def test_outer_products_are_multiplications_with_the_same_bits(columns) -> None:
    frequencies, positions = torch.rand(16), torch.randint(0, 99, (2, columns))
    (module,) = inference_graphs(Angles(), frequencies, positions)
    before = module(frequencies, positions)
    assert outer_products_as_multiplications(module.graph, ()) == 1
    module.graph.lint()
    module.recompile()
    (after,) = module(frequencies, positions)
    assert not any(aten.calls(n, ATEN.bmm.default) for n in module.graph.nodes)
    assert torch.equal(after, before[0])
    assert after.stride() == before[0].stride()


def test_other_batched_products_stay() -> None:
    (module,) = inference_graphs(nn.Bilinear(4, 4, 4), torch.randn(3, 4), torch.randn(3, 4))
    count = sum(aten.calls(n, ATEN.bmm.default) for n in module.graph.nodes)
    assert outer_products_as_multiplications(module.graph, ()) == 0
    assert sum(aten.calls(n, ATEN.bmm.default) for n in module.graph.nodes) == count
