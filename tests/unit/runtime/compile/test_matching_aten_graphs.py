"""The base of the finders: the graph as the backend sees it, and strict matching in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.tracing import inference_graphs

ATEN = aten.ATEN


class Block(nn.Module):
    """One of each operator that Inductor would have decomposed, and a cache that is updated."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
        self.convolution, self.batch = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.register_buffer("cache", torch.zeros(4, 64))

    def forward(self, x, image, at):
        self.cache.index_copy_(0, at, x[:1])
        h = functional.gelu(self.norm(self.linear(x))).view(1, 4, 4, 16).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(h, h, h, is_causal=True)
        return mixed, self.cache.sum(), self.batch(self.convolution(image))


@pytest.fixture(scope="module")
def graph():
    (actual,) = inference_graphs(Block().eval(), torch.randn(4, 64), torch.randn(1, 3, 8, 8), torch.tensor([1]))
    return actual.graph


def node(graph, target):
    (actual,) = [n for n in graph.nodes if aten.calls(n, target)]
    return actual


def test_what_inductor_takes_apart_stays_whole(graph) -> None:
    for target in (
        ATEN.native_layer_norm.default,
        ATEN.gelu.default,
        ATEN.convolution.default,
        ATEN._native_batch_norm_legit_no_training.default,
    ):
        assert len([n for n in graph.nodes if aten.calls(n, target)]) == 1, target


def test_an_updated_input_is_a_copy_at_the_end(graph) -> None:
    ((copy, cache, value),) = aten.copies_into(graph)
    assert aten.parameter(cache)
    assert aten.shape(cache) == (4, 64)
    assert value.target is ATEN.index_copy.default
    assert not copy.users


def test_attention_is_matched_with_its_scale_and_without_unread_outputs(graph) -> None:
    (actual,) = filter(None, map(aten.attention, graph.nodes))
    assert (actual.causal, actual.mask, actual.scale, actual.grouped) == (True, None, 0.25, 1)
    assert actual.out.args == (actual.call, 0)
    assert aten.source(actual.query) is actual.query, "a transposed view is not a reshape"
    assert aten.source(actual.query, aten.VIEWS).target is ATEN.gelu.default


def test_a_set_that_a_path_leaves_and_enters_again_is_not_convex(graph) -> None:
    norm, gelu = node(graph, ATEN.native_layer_norm.default), node(graph, ATEN.gelu.default)
    first_item = aten.item(norm, 0)
    assert aten.convex([norm, first_item, gelu])
    assert not aten.convex([norm, gelu])
    assert aten.outputs_of([norm, first_item, gelu]) == (gelu,)
    assert [aten.shape(n) for n in aten.inputs_of([norm, first_item, gelu])] == [(64,), (64,), (4, 64)]


def test_a_result_without_users_has_no_only_user(graph) -> None:
    (actual,) = filter(None, map(aten.attention, graph.nodes))
    assert aten.only_user(actual.out) is None
    assert aten.only_user(node(graph, ATEN.native_layer_norm.default)) is aten.item(
        node(graph, ATEN.native_layer_norm.default), 0
    )
