"""Decoders of transformers are found in their graphs as a whole.

A decoder that differs in a node is left out, with the reason in the log.
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
from tileprof.runtime.compile.regions.finders import FINDERS
from tileprof.runtime.compile.regions.partition import unfit
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.compile.tracing import inference_graphs
from tileprof.runtime.decode import match
from tileprof.runtime.decode.decoder_regions import decoders, shape_of
from tileprof.runtime.decode.match import matched
from tileprof.runtime.decode.positions import is_causal

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "LLaMA": ("Llama", {"num_hidden_layers": 2}, 1),
    "LLaMA, tied, four sequences": ("Llama", {"tie_word_embeddings": True}, 4),
    "LLaMA, a head of keys for each": ("Llama", {"num_key_value_heads": 4}, 1),
    "Qwen2": ("Qwen2", {"num_hidden_layers": 2}, 2),
    "Qwen3": ("Qwen3", {}, 2),
    "Mistral": ("Mistral", {"sliding_window": None}, 1),
}


@cache
def graph_of(name: str, style: str = "plain", **changes: Any) -> fx.Graph:
    """Return the graph of one decoded token."""
    kind, extra, batch = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**(SIZES | extra | changes))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16).eval()
    cached = transformers.StaticCache(config=config, max_cache_len=64)
    inputs: dict[str, Any] = {"past_key_values": cached, "use_cache": True}
    with torch.no_grad():
        model(torch.randint(0, 96, (batch, 5)), **inputs)
        if style == "mask":
            inputs["attention_mask"] = torch.ones(batch, 6, dtype=torch.long)
        (module,) = inference_graphs(model, torch.randint(0, 96, (batch, 1)), **inputs)
    return module.graph


def copied(name: str) -> fx.Graph:
    """Return a graph that a test may change."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph_of(name).nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph


def logits_of(graph: fx.Graph) -> fx.Node:
    (output,) = (node for node in graph.nodes if node.op == "output")
    return output.all_input_nodes[0]


def calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return [node for node in graph.nodes if aten.calls(node, target)]


@pytest.mark.parametrize("name", MODELS)
def test_a_decoder_is_one_region_that_the_backend_takes(name):
    graph = graph_of(name)
    (region,) = decoders(graph)
    assert unfit(graph, region) is None
    assert aten.convex(region.nodes)
    other_targets = [
        node.target for node in graph.nodes if node.op == "call_function" and node not in set(region.nodes)
    ]
    assert not {ATEN.mm.default, ATEN.addmm.default, ATEN.index_copy.default, ATEN.copy_.default} & set(other_targets)
    assert len(region.mutated) == 3 * (SIZES | MODELS[name][1])["num_hidden_layers"]


@pytest.mark.parametrize("name", MODELS)
def test_its_sizes_are_the_models(name):
    _, extra, batch = MODELS[name]
    shape = shape_of(matched(logits_of(graph_of(name))))
    config = SIZES | extra
    assert (shape.batch, shape.layers, shape.cache) == (batch, config["num_hidden_layers"], 64)
    assert (shape.hidden, shape.intermediate, shape.vocabulary) == (128, 192, 96)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (4, config["num_key_value_heads"], 64)
    assert (shape.biased, shape.head_norms) == (name == "Qwen2", name == "Qwen3")
    assert shape.masked is None
    assert shape.scale == pytest.approx(0.125)


def test_a_mask_of_the_users_is_known_and_not_taken(caplog):
    graph = graph_of("LLaMA", "mask", num_hidden_layers=1)
    assert shape_of(matched(logits_of(graph))).masked == float("-inf")
    with caplog.at_level(logging.INFO, logger="tileprof.runtime.compile"):
        assert not list(decoders(graph))
    assert "a mask besides its positions" in caplog.text


def test_equal_masks_are_checked_once_and_a_different_one_is_detected(monkeypatch):
    records = []

    def counting_mask(mask, cache):
        records.append(mask.structure)
        return is_causal(mask, cache)

    counting_mask.__name__ = "is_causal"
    monkeypatch.setattr(match, "is_causal", counting_mask)
    matched(logits_of(graph_of("LLaMA")))
    assert len(calls(graph_of("LLaMA"), ATEN.where.self)) == 2
    assert len(records) == 1
    graph = copied("LLaMA")
    mask = calls(graph, ATEN.where.self)[-1]
    with graph.inserting_before(mask):
        negation = graph.call_function(ATEN.logical_not.default, mask.args[:1])
    negation.meta = dict(mask.args[0].meta)
    mask.update_arg(0, negation)
    with pytest.raises(match.Mismatch, match="layers differ in their masks"):
        matched(logits_of(graph))
    assert len(records) == 3


def test_the_backend_looks_for_decoders():
    graph = graph_of("LLaMA")
    assert any(
        isinstance(region, Region) and "decoder" in region.name for finder in FINDERS for region in finder(graph)
    )


def first(graph: fx.Graph, target: Any) -> fx.Node:
    return calls(graph, target)[0]


def change_argument(node: fx.Node, position: int, value: Any) -> None:
    node.args = (*node.args[:position], value, *node.args[position + 1 :])


def append_two_later(graph: fx.Graph) -> None:
    index = first(graph, ATEN.index_copy.default).args[2]
    assert isinstance(index, fx.Node)
    with graph.inserting_after(index):
        later = graph.call_function(ATEN.add.Tensor, (index, 2))
    later.meta = dict(index.meta)
    for node in calls(graph, ATEN.index_copy.default):
        if node.args[2] is index:
            change_argument(node, 2, later)


def attend_the_future(graph: fx.Graph) -> None:
    first(graph, ATEN.le.Tensor).target = ATEN.ge.Tensor


def read_the_residual_twice(graph: fx.Graph) -> None:
    """Another node reads an inner node, which would have to be a result."""
    inner = calls(graph, ATEN.silu.default)[0]
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = ((*output.args[0], inner),)  # type: ignore[misc]


CHANGES = {
    "another activation": lambda g: setattr(first(g, ATEN.silu.default), "target", ATEN.relu.default),
    "another power in a norm": lambda g: change_argument(first(g, ATEN.pow.Tensor_Scalar), 1, 3),
    "another epsilon in one norm": lambda g: change_argument(
        next(n for n in calls(g, ATEN.add.Tensor) if isinstance(n.args[1], float)), 1, 0.5
    ),
    "halves that are not negated": lambda g: setattr(first(g, ATEN.neg.default), "target", ATEN.abs.default),
    "a counter that advances by two": lambda g: [
        change_argument(n.args[1], 1, 2) for n in calls(g, ATEN.copy_.default)[:1] if isinstance(n.args[1], fx.Node)
    ],
    "another position": append_two_later,
    "a mask of the future": attend_the_future,
    "an inner result that is read elsewhere": read_the_residual_twice,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_graph_that_differs_in_one_node_is_not_taken(change, caplog):
    graph = copied("LLaMA")
    assert len(list(decoders(graph))) == 1
    CHANGES[change](graph)
    with caplog.at_level(logging.INFO, logger="tileprof.runtime.compile"):
        regions = [region for region in decoders(graph) if unfit(graph, region) is None]
    assert not regions


def test_sizes_that_the_kernel_does_not_take_are_logged_with_a_sentence(caplog):
    """`test_decoder_builds` has the other sizes."""
    with caplog.at_level(logging.INFO, logger="tileprof.runtime.compile"):
        assert not list(decoders(graph_of("LLaMA", num_hidden_layers=1, head_dim=32)))
    assert "heads of 32 columns" in caplog.text
