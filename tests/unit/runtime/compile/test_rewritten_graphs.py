"""Outer products become multiplications in the backend's program; results and strides stay the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.outer_products import outer_products_as_multiplications
from tileprof.runtime.compile.tracing import inference_graphs

ATEN = aten.ATEN


class Angles(nn.Module):
    """Return angles of rotary embeddings, as transformers computes them."""

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
