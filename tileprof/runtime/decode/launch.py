"""Launches of the decoder on torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from tileprof.runtime.decode.build import KERNEL
from tileprof.runtime.decode.shape import IN_FLIGHT, DecoderShape
from tileprof.runtime.persistent.driver import Arguments

LAYER_ROLES: Final = (
    "norm", "query", "key", "value", "query_bias", "key_bias", "value_bias", "query_norm", "key_norm",
    "output", "middle_norm", "gate", "up", "down", "keys", "values", "counter",
)  # fmt: skip
"""Tensors of a layer, in the order of Layer of common.cuh."""

MODEL_ROLES: Final = ("tokens", "embedding", "cosine", "sine", "last", "mask", "norm", "head")
"""Tensors of the model, in the order of Parameters of common.cuh."""

STAGES: Final = ("qkv", "attention", "output", "gate", "down", "head")
"""Stages in the order of Stage of common.cuh."""

THREADS: Final = 288
_STATE_WORDS: Final = 32
_GAVE_UP, _RECORD = 2, 8  # of State of common.cuh
_ABSENT: Final = -1


class Decoder:
    """A decoder's kernel, compiled, with memory of its own: launches of one follow each other on one stream. Raises
    `UserError` where it cannot be.

    ``delay_ns``: for tests, blocks sleep up to so long before they hand something over. ``timeout_ns``: a wait that
    lasts longer writes a record and gives up.
    ``profile``: `clocks` holds the times of the last launch. ``blocks``: how many, one per SM of the device by default.
    ``in_flight``: slots of the ring that are filled at a time.
    """

    frozen = False

    def __init__(
        self,
        shape: DecoderShape,
        device: Any,
        *,
        delay_ns: int = 0,
        timeout_ns: int = 1_000_000_000,
        profile: bool = False,
        blocks: int | None = None,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self.shape, self.device = shape, torch.device(device)
        self._function, self.blocks = KERNEL.loaded(
            shape, self.device, blocks, delay_ns=delay_ns, timeout_ns=timeout_ns, profile=profile, in_flight=in_flight
        )
        words = 2 * shape.set_words(self.blocks)
        self._sets = torch.full((words,), _ABSENT, dtype=torch.int32, device=self.device)
        self._state = torch.zeros(_STATE_WORDS, dtype=torch.int32, device=self.device)
        clocks = self.blocks * (shape.layers + 1) * len(STAGES) * 4 if profile else 1
        self.clocks = torch.zeros(clocks, dtype=torch.int64, device=self.device)
        self._arguments = Arguments(len(LAYER_ROLES) * shape.layers + len(MODEL_ROLES) + 6)

    def launch(self, layers: Sequence[dict[str, Any]], model: dict[str, Any], logits: Any) -> None:
        """One token of each sequence: logits [batch, vocabulary], caches and counters are updated. May be captured into
        a graph.

        ``layers`` and ``model``: tensors by role; a role that the shape has not may be missing. The rotary tables are
        [1 or batch, head_dim], a mask [1 or batch, cache] of bytes. Without tokens, "embedding" holds the activations
        [batch, hidden] that enter the first layer.
        """
        tensors = [layer.get(role) for layer in layers for role in LAYER_ROLES]
        tensors += [*(model.get(role) for role in MODEL_ROLES), logits, self._sets, self._state, self.clocks]
        words = self._arguments.words
        words[: len(tensors)] = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        mask = model.get("mask")
        words[len(tensors)] = self.shape.head_dim if model["cosine"].shape[0] > 1 else 0
        words[len(tensors) + 1] = mask.stride(0) if mask is not None and mask.shape[0] > 1 else 0
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self._function.launch(self.blocks, THREADS, stream, self._arguments, programmatic=False, cooperative=True)

    def check(self) -> None:
        """Synchronise; raise `RuntimeError` that says which wait gave up, after which the decoder may be used again."""
        state = self._state.tolist()
        if not state[_GAVE_UP]:
            return
        self._sets.fill_(_ABSENT)
        self._state.zero_()
        stage, layer, block, warp, word, launch = state[_RECORD : _RECORD + 6]
        raise RuntimeError(
            f"the decoder gave up a wait: stage {STAGES[stage]} of layer {layer}, block {block}, warp {warp} waited "
            f"for word {word} "
            f"of {self._holder(word)} in launch {launch}"
        )

    def _holder(self, word: int) -> str:
        """What a word of a layer's memory belongs to; negative words are those of the layer before."""
        names = self.shape.handed_words(self.blocks)
        word %= self.shape.set_words(self.blocks) // self.shape.layers
        for name, count in names.items():
            if word < count:
                return f"'{name}'"
            word -= count
        return "nothing"
