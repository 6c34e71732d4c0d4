"""Decoders in ATen graphs, as regions for the backend."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.decode.decoder_launch import Decoder
from tileprof.runtime.decode.match import Matched, Mismatch, matched
from tileprof.runtime.decode.shape import DecoderShape
from tileprof.runtime.persistent.model_kernel import LaunchOptions
from tileprof.runtime.persistent.source import SHARED_BYTES
from tileprof.runtime.programs.timeline import Timeline, of_decoder

LOG: Final = logging.getLogger("tileprof.runtime.compile")


def decoders(graph: fx.Graph) -> Iterator[Region]:
    """Yield the decoder that ends in a result of the graph, if there is one that the kernel takes.

    A graph with a cache that is not taken is logged with the reason.
    """
    if not any(aten.calls(node, aten.ATEN.index_copy.default) for node in graph.nodes):
        return
    output = next(node for node in graph.nodes if node.op == "output")
    for node in output.all_input_nodes:
        value = aten.tensor(node)
        if value is None or value.dim() != 3:
            continue
        try:
            yield region_of(matched(node))
        except (Mismatch, UserError) as reason:
            LOG.info("no decoder ends in %s: %s", node, reason)


def shape_of(decoder: Matched) -> DecoderShape:
    """Return the sizes of a decoder. Raises `UserError` where the kernel does not take them."""
    dtype: Literal["float16", "bfloat16"] = "float16" if decoder.dtype is torch.float16 else "bfloat16"
    names = ("batch", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocabulary", "cache")
    optional = [sum(role in layer for layer in decoder.layers) for role in ("query_bias", "query_norm")]
    biases = [sum(f"{role}_bias" in layer for layer in decoder.layers) for role in ("query", "key", "value")]
    if any(count not in {0, len(decoder.layers)} for count in (*optional, *biases)) or len(set(biases)) != 1:
        raise UserError("the decoder has biases or norms of heads in some of its layers or products only")
    assert decoder.epsilon is not None
    assert decoder.scale is not None
    shape = DecoderShape(
        dtype=dtype,
        layers=len(decoder.layers),
        epsilon=decoder.epsilon,
        scale=decoder.scale,
        biased=optional[0] > 0,
        head_norms=optional[1] > 0,
        masked=decoder.masked,
        **{name: decoder.sizes[name] for name in names},
    )
    shape.check()
    return shape


def region_of(decoder: Matched) -> Region:
    """Return the region of a decoder. Raises `UserError` where the kernel does not take it."""
    shape = shape_of(decoder)
    if shape.masked is not None:
        raise UserError(
            "the decoder has a mask besides its positions, with which the kernel has not been run on a device"
        )
    nodes = _nodes_without_other_readers(decoder)
    inputs = aten.inputs_of(nodes)
    place = {node: number for number, node in enumerate(inputs)}
    tensors = [node for layer in decoder.layers for node in layer.values()] + list(decoder.model.values())
    if missing := [node for node in tensors if node not in place]:
        raise UserError(f"the decoder computes {missing[0]}, which it should read")
    layers = tuple({role: place[node] for role, node in layer.items()} for layer in decoder.layers)
    model = {role: place[node] for role, node in decoder.model.items()}
    mutated = tuple(layer[role] for layer in layers for role in ("keys", "values", "counter"))
    roles = _Roles(shape, layers, model)
    return Region(
        f"decoder, {shape.layers} layers, {shape.batch} sequences of {shape.dtype}",
        nodes,
        inputs,
        (decoder.logits,),
        tuple(sorted(mutated)),
        roles.build,
        what=shape,
        timed=roles.timed,
    )


def _nodes_without_other_readers(decoder: Matched) -> tuple[fx.Node, ...]:
    """Return the nodes whose results have no other reader: ranges and masks with another reader are left to the
    graph.
    """
    nodes = set(decoder.nodes)
    while spare := {
        node for node in nodes if node is not decoder.logits and any(user not in nodes for user in node.users)
    }:
        nodes -= spare
    return tuple(sorted(nodes))


@dataclass(frozen=True, slots=True)
class _Roles:
    """Positions of a region's inputs, by layer and role."""

    shape: DecoderShape
    layers: tuple[dict[str, int], ...]
    model: dict[str, int]

    def build(self, device: torch.device) -> _Runner:
        return _Runner(self, device)

    def timed(self, device: torch.device, inputs: Sequence[Any]) -> Timeline:
        """Return what each block did in a launch that is not the first, by a kernel with clocks.

        Counters are put back between launches.
        """
        decoder = Decoder(self.shape, device, LaunchOptions(profile=True))
        updated = [
            inputs[at] for layer in self.layers for role, at in layer.items() if role in ("keys", "values", "counter")
        ]
        before = [tensor.clone() for tensor in updated]
        cached = int(inputs[self.layers[0]["counter"]])
        for _ in range(3):
            for tensor, saved in zip(updated, before, strict=True):
                tensor.copy_(saved)
            _Runner(self, device, decoder)(*inputs)
        decoder.check()
        clocks = decoder.clocks.cpu().numpy()
        return of_decoder(self.shape, decoder.blocks, cached, clocks, Decoder.threads, SHARED_BYTES)


class _Runner:
    """A decoder as the backend calls it."""

    frozen = False

    def __init__(self, roles: _Roles, device: torch.device, decoder: Decoder | None = None) -> None:
        self._roles = roles
        self._decoder = decoder or Decoder(roles.shape, device)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        shape, roles = self._roles.shape, self._roles
        dtype = getattr(torch, shape.dtype)
        logits = torch.empty((shape.batch, 1, shape.vocabulary), dtype=dtype, device=self._decoder.device)
        layers = [{role: inputs[at] for role, at in layer.items()} for layer in roles.layers]
        self._decoder.launch(layers, {role: inputs[at] for role, at in roles.model.items()}, logits)
        return (logits,)

    def check(self) -> None:
        self._decoder.check()
