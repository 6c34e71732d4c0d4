"""Launches of the decoder on torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tileprof.runtime.decode.decoder_build import KERNEL
from tileprof.runtime.decode.shape import DecoderShape
from tileprof.runtime.persistent.model_kernel import ABSENT, ModelLauncher, holder


class Decoder(ModelLauncher[DecoderShape]):
    """The kernel of a decoder that takes one token per sequence; see `ModelLauncher`."""

    frozen = False
    kernel = KERNEL
    threads = 288
    stages = ("qkv", "attention", "output", "gate", "down", "head")
    layer_roles = (
        "norm", "query", "key", "value", "query_bias", "key_bias", "value_bias", "query_norm", "key_norm",
        "output", "middle_norm", "gate", "up", "down", "keys", "values", "counter",
    )  # fmt: skip
    model_roles = ("tokens", "embedding", "cosine", "sine", "last", "mask", "norm", "head")

    def _allocate(self, *, profile: bool) -> None:
        super()._allocate(profile=profile)
        words = 2 * self.shape.set_words(self.blocks)
        self._sets = torch.full((words,), ABSENT, dtype=torch.int32, device=self.device)

    def launch(self, layers: Sequence[dict[str, Any]], model: dict[str, Any], logits: Any) -> None:
        """Compute one token of each sequence: logits [batch, vocabulary], caches and counters are updated. May be
        captured into a graph.

        ``layers`` and ``model``: tensors by role; a role that the shape has not may be missing. The rotary tables are
        [1 or batch, head_dim], a mask [1 or batch, cache] of bytes. Without tokens, "embedding" holds the activations
        [batch, hidden] that enter the first layer.
        """
        mask = model.get("mask")
        rotary_step = self.shape.head_dim if model["cosine"].shape[0] > 1 else 0
        mask_step = mask.stride(0) if mask is not None and mask.shape[0] > 1 else 0
        self._start(layers, model, (logits, self._sets), rotary_step, mask_step)

    def _forget(self) -> None:
        self._sets.fill_(ABSENT)

    def _awaited(self, place: int) -> str:
        """Return the words for a word of a layer's memory; negative ones are those of the layer before."""
        of_layer = place % (self.shape.set_words(self.blocks) // self.shape.layers)
        return f"word {place} of '{holder(self.shape.handed_words(self.blocks), of_layer)[1]}'"
