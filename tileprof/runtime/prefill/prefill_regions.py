"""Prefills of LLaMA-like decoders in ATen graphs, as regions for the backend."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.decode.match import Matched, Mismatch, matched
from tileprof.runtime.prefill.prefill_launch import Prefill
from tileprof.runtime.prefill.shape import TILE_ROWS, PrefillShape

LOG: Final = logging.getLogger("tileprof.runtime.compile")


def prefills(graph: fx.Graph) -> Iterator[Region]:
    """Yield the decoder over several tokens that ends in a result of the graph, if there is one that the kernel takes.

    Others are logged with the reason.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    for node in output.all_input_nodes:
        value = aten.tensor(node)
        if value is None or value.dim() != 3 or not 1 < value.shape[0] * value.shape[1] <= TILE_ROWS:
            continue
        try:
            yield region_of(matched(node, prefill=True))
        except (Mismatch, UserError) as reason:
            LOG.info("no prefill ends in %s: %s", node, reason)


def shape_of(decoder: Matched) -> PrefillShape:
    """Return the sizes of a prefill. Raises `UserError` where the kernel does not take them."""
    dtype: Literal["float16", "bfloat16"] = "float16" if decoder.dtype is torch.float16 else "bfloat16"
    if any(role.endswith(("_bias", "query_norm", "key_norm")) for layer in decoder.layers for role in layer):
        raise UserError("the prefill has biases or norms of heads")
    if len(decoder.cached_pairs) not in {0, len(decoder.layers)}:
        raise UserError("the prefill keeps keys of some of its layers only")
    assert decoder.epsilon is not None
    assert decoder.scale is not None
    sizes = decoder.sizes
    names = ("batch", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary")
    shape = PrefillShape(
        dtype=dtype,
        layers=len(decoder.layers),
        length=sizes["tokens"],
        epsilon=decoder.epsilon,
        scale=decoder.scale,
        cache=sizes["tokens"] if decoder.cached_pairs else 0,
        **{name: sizes[name] for name in names},
    )
    shape.check()
    return shape


def region_of(decoder: Matched) -> Region:
    """Return the region of a prefill. Raises `UserError` where the kernel does not take it."""
    shape = shape_of(decoder)
    results = [decoder.logits, *(node for pair in decoder.cached_pairs for node in pair)]
    nodes = _nodes_without_other_readers(decoder, set(results))
    inputs = aten.inputs_of(nodes)
    outputs = aten.outputs_of(nodes)
    place = {node: number for number, node in enumerate(inputs)}
    tensors = [node for layer in decoder.layers for node in layer.values()] + list(decoder.model.values())
    if missing := [node for node in tensors if node not in place]:
        raise UserError(f"the prefill computes {missing[0]}, which it should read")
    if strange := [node for node in outputs if node not in results or not _plain(node)]:
        raise UserError(f"{strange[0]} of the prefill is read elsewhere, or not contiguous")
    layers = tuple({role: place[node] for role, node in layer.items()} for layer in decoder.layers)
    roles = _Roles(
        shape,
        layers,
        {role: place[node] for role, node in decoder.model.items()},
        tuple(results.index(node) for node in outputs),
    )
    name = f"prefill, {shape.layers} layers, {shape.batch} sequences of {shape.length} tokens, {shape.dtype}"
    return Region(name, nodes, inputs, outputs, (), roles.build, what=shape)


def _plain(node: fx.Node) -> bool:
    value = aten.tensor(node)
    return value is not None and value.is_contiguous()


def _nodes_without_other_readers(decoder: Matched, results: set[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the nodes whose results have no other reader, and the results.

    Constants and masks that something else reads too are left to the graph.
    """
    nodes = set(decoder.nodes)
    while spare := {node for node in nodes - results if any(user not in nodes for user in node.users)}:
        nodes -= spare
    return tuple(sorted(nodes))


@dataclass(frozen=True, slots=True)
class _Roles:
    """Positions of a region's inputs, by layer and role, and which results are its outputs.

    The logits, then keys and values of each layer.
    """

    shape: PrefillShape
    layers: tuple[dict[str, int], ...]
    model: dict[str, int]
    outputs: tuple[int, ...]

    def build(self, device: torch.device) -> _Runner:
        return _Runner(self, device)


class _Runner:
    """A prefill as the backend calls it."""

    frozen = False

    def __init__(self, roles: _Roles, device: torch.device) -> None:
        self._roles = roles
        self._prefill = Prefill(roles.shape, device)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        shape, roles = self._roles.shape, self._roles
        options = {"dtype": getattr(torch, shape.dtype), "device": self._prefill.device}
        results = [torch.empty((shape.batch, shape.length, shape.vocabulary), **options)]
        layers = [{role: inputs[at] for role, at in layer.items()} for layer in roles.layers]
        if shape.cache:
            size = (shape.batch, shape.kv_heads, shape.cache, shape.head_dim)
            for layer in layers:
                results += [torch.empty(size, **options) for _ in range(2)]
                layer["keys"], layer["values"] = results[-2:]
        self._prefill.launch(layers, {role: inputs[at] for role, at in roles.model.items()}, results[0])
        return tuple(results[number] for number in roles.outputs)

    def check(self) -> None:
        self._prefill.check()
