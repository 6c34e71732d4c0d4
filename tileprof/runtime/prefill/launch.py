"""Launches of the prefill kernel on torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from tileprof.errors import UserError
from tileprof.runtime.persistent.driver import MAP_WORDS, Arguments
from tileprof.runtime.prefill.build import KERNEL
from tileprof.runtime.prefill.shape import BOX, IN_FLIGHT, K_CHUNK, TILE_ROWS, PrefillShape

WEIGHT_ROLES: Final = ("query", "key", "value", "output", "gate", "up", "down")
"""Weights of a layer, in the order of Map of common.cuh."""

LAYER_ROLES: Final = ("norm", "middle_norm", "keys", "values")
"""Other tensors of a layer, in the order of Layer of common.cuh."""

MODEL_ROLES: Final = ("tokens", "embedding", "cosine", "sine", "norm")
"""Tensors of the model, in the order of Parameters of common.cuh."""

STAGES: Final = ("embedding", "qkv", "attention", "output", "middle", "gate", "down", "next", "head")
"""Stages in the order of Stage of common.cuh."""

_THREADS: Final = 384
_STATE_WORDS: Final = 32
_GAVE_UP, _RECORD = 2, 8  # of State of common.cuh
_ABSENT: Final = -1
_MOST_PREPARED: Final = 8


class Prefill:
    """A prefill's kernel, compiled, with memory of its own: launches of one follow each other on one stream.

    Raises `UserError` where it cannot be.

    ``delay_ns``: for tests, blocks sleep up to so long before they store what others wait for. ``timeout_ns``: a wait
    that lasts longer writes a record and gives up.
    ``profile``: `clocks` holds the times of the last launch, [block, layer, stage, place]. ``blocks``: how many, one
    per SM of the device by default. ``in_flight``: slots of weights that are filled at a time.
    """

    def __init__(
        self,
        shape: PrefillShape,
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
        self._allocate(profile=profile)

    def _allocate(self, *, profile: bool) -> None:
        shape = self.shape
        self._parts = 4 * sum(shape.part_vectors(self.blocks).values())  # in words, as all here
        self._matrices: dict[str, tuple[int, int]] = {}
        at = self._parts
        for name, columns in shape.matrices().items():
            self._matrices[name] = (4 * at, columns)
            at += TILE_ROWS * columns // 2
        self._flags = at
        self._workspace = torch.zeros(at + sum(shape.flags().values()), dtype=torch.int32, device=self.device)
        self._workspace[: self._parts] = _ABSENT
        self._state = torch.zeros(_STATE_WORDS, dtype=torch.int32, device=self.device)
        sizes = (self.blocks, shape.layers + 1, len(STAGES), 4)
        self.clocks = torch.zeros(sizes if profile else (1,), dtype=torch.int64, device=self.device)
        self._arguments = Arguments(len(LAYER_ROLES) * shape.layers + len(MODEL_ROLES) + 6)
        self._maps: dict[tuple[int, ...], Any] = {}

    def launch(self, layers: Sequence[dict[str, Any]], model: dict[str, Any], logits: Any) -> None:
        """Logits [batch * length, vocabulary] of tokens [batch * length]; keys and values go into the layers' caches.

        May be captured into a graph after one launch outside of it.

        ``layers`` and ``model``: tensors by role; caches [batch, kv_heads, cache, head_dim] may be missing. The
        rotary tables are [1 or batch, length, head_dim].
        """
        maps = self._maps_of(layers, model)
        tensors = [layer.get(role) for layer in layers for role in LAYER_ROLES]
        tensors += [*(model[role] for role in MODEL_ROLES), logits, maps, self._workspace, self._state, self.clocks]
        words = self._arguments.words
        words[: len(tensors)] = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        words[len(tensors)] = self.shape.length * self.shape.head_dim if model["cosine"].shape[0] > 1 else 0
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self._function.launch(self.blocks, _THREADS, stream, self._arguments, programmatic=False, cooperative=True)

    def check(self) -> None:
        """Synchronise; raise `RuntimeError` that says which wait gave up, after which the prefill may be used again."""
        state = self._state.tolist()
        if not state[_GAVE_UP]:
            return
        self._workspace.zero_()
        self._workspace[: self._parts] = _ABSENT
        self._state.zero_()
        stage, layer, block, warp, index, launch = state[_RECORD : _RECORD + 6]
        raise RuntimeError(
            f"the prefill gave up a wait: stage {STAGES[stage]} of layer {layer}, block {block}, warp {warp} waited "
            f"for {self._awaited(index)} in launch {launch}"
        )

    def _awaited(self, index: int) -> str:
        if index < 0:
            names, word, what = self.shape.part_vectors(self.blocks), -1 - index, "vector {} of the parts of {}"
        else:
            names, word, what = self.shape.flags(), index, "flag {} of '{}'"
        for name, count in names.items():
            if word < count:
                return what.format(word, name)
            word -= count
        return "nothing"

    def _maps_of(self, layers: Sequence[dict[str, Any]], model: dict[str, Any]) -> Any:
        """The table of tensor maps on the device, made anew where a weight has another address."""
        weights = [layer[role] for layer in layers for role in WEIGHT_ROLES] + [model["head"]]
        key = tuple(weight.data_ptr() for weight in weights)
        if key not in self._maps:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise UserError("the prefill's weights are at new addresses in a capture; run it once before")
            if len(self._maps) >= _MOST_PREPARED:
                del self._maps[next(iter(self._maps))]
            self._maps[key] = self._encoded(weights)
        return self._maps[key]

    def _encoded(self, weights: Sequence[Any]) -> Any:
        names = ("normed", "middle", "attended", "activated")
        maps, dtype = Arguments(MAP_WORDS * (len(weights) + len(names))), self.shape.dtype
        for number, weight in enumerate(weights):
            rows, depth = weight.shape
            maps.put_map(
                MAP_WORDS * number,
                weight.data_ptr(),
                dtype,
                (depth, rows, 1),
                (2 * depth, 2 * depth * rows),
                (K_CHUNK, BOX, 1),
                (1, 1, 1),
            )
        for number, name in enumerate(names, len(weights)):
            at, columns = self._matrices[name]
            size = 2 * columns * TILE_ROWS
            maps.put_map(
                MAP_WORDS * number,
                self._workspace.data_ptr() + at,
                dtype,
                (columns, TILE_ROWS, 1, 1),
                (2 * columns, size, size),
                (K_CHUNK, TILE_ROWS, 1, 1),
                (1, 1, 1, 1),
            )
        return torch.from_numpy(np.array(maps.words, np.uint64).view(np.int64)).to(self.device)
