"""Prefills of LLaMAs of transformers are found in their graphs as a whole.

Others are left out, with the reason in the log.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from torch import fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN
from tileprof.runtime.compile.regions.partition import unfit
from tileprof.runtime.compile.tracing import inference_graphs
from tileprof.runtime.decode.match import matched
from tileprof.runtime.prefill.prefill_regions import prefills, shape_of

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}
CALLS = {"a sequence": (1, 24, False, 1), "two sequences": (2, 7, False, 1), "keys are kept": (2, 7, True, 2)}
"""Sequences, their length, whether keys are kept, and layers."""


@cache
def graph_of(batch: int, length: int, cached: bool, layers: int, kind: str = "Llama") -> fx.Graph:
    """Return the graph of a prefill."""
    config = getattr(transformers, f"{kind}Config")(**SIZES | {"num_hidden_layers": layers})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16).eval()
    (module,) = inference_graphs(model, torch.randint(0, 96, (batch, length)), use_cache=cached)
    return module.graph


def copied(graph: fx.Graph) -> fx.Graph:
    """Return a graph that a test may change."""
    copy = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        copies[node] = copy.node_copy(node, copies.__getitem__)
    return copy


@pytest.mark.parametrize("name", CALLS)
def test_a_prefill_is_one_region_that_the_backend_takes(name):
    batch, length, cached, layers = CALLS[name]
    graph = graph_of(*CALLS[name])
    (region,) = prefills(graph)
    assert unfit(graph, region) is None
    assert aten.convex(region.nodes)
    assert len(region.outputs) == (2 * layers + 1 if cached else 1)
    other_targets = [
        node.target for node in graph.nodes if node.op == "call_function" and node not in set(region.nodes)
    ]
    assert not {ATEN.mm.default, ATEN.index.Tensor, ATEN.where.self, ATEN.mean.dim} & set(other_targets)
    shape = shape_of(matched(region.outputs[-1], prefill=True))
    assert (shape.batch, shape.length, shape.layers, shape.cache) == (batch, length, layers, length if cached else 0)
    assert (shape.hidden, shape.intermediate, shape.heads, shape.kv_heads, shape.vocabulary) == (128, 256, 4, 2, 96)


def causal_flag(graph: fx.Graph) -> None:
    """Attention that sees tokens behind it."""
    for node in graph.nodes:
        if aten.attention(node) is not None:
            node.args = (*node.args[:3], 0.0, False)


def another_order(graph: fx.Graph) -> None:
    """A mask of the tokens behind each."""
    node = next(node for node in graph.nodes if aten.calls(node, ATEN.le.Tensor))
    node.target = ATEN.ge.Tensor


def later_read(graph: fx.Graph) -> None:
    inner = next(node for node in graph.nodes if aten.calls(node, ATEN.silu.default))
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = ((*output.args[0], inner),)  # type: ignore[misc]


def another_activation(graph: fx.Graph) -> None:
    next(node for node in graph.nodes if aten.calls(node, ATEN.silu.default)).target = ATEN.relu.default


CHANGES: dict[str, tuple[str, Any, str]] = {
    "attention looks ahead": ("keys are kept", causal_flag, "attention is not causal"),
    "a mask looks ahead": ("a sequence", another_order, "a mask that is not causal"),
    "something inside is read": ("a sequence", later_read, "which it should read"),
    "another activation": ("a sequence", another_activation, "the gate's activation is not SiLU"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_left_alone(name, caplog):
    call, change, reason = CHANGES[name]
    graph = copied(graph_of(*CALLS[call]))
    change(graph)
    with caplog.at_level(logging.INFO, logger="tileprof.runtime.compile"):
        assert not list(prefills(graph))
    assert reason in caplog.text


def test_norms_of_heads_are_left_alone(caplog):
    with caplog.at_level(logging.INFO, logger="tileprof.runtime.compile"):
        assert not list(prefills(graph_of(1, 24, False, 1, "Qwen3")))
    assert "norms of heads" in caplog.text
