"""Launches of the prefill kernel on torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from tileprof.errors import UserError
from tileprof.runtime.persistent.driver import MAP_WORDS, Arguments
from tileprof.runtime.persistent.model_kernel import ABSENT, ModelLauncher, holder
from tileprof.runtime.prefill.prefill_build import KERNEL
from tileprof.runtime.prefill.shape import BOX, K_CHUNK, TILE_ROWS, PrefillShape

WEIGHT_ROLES: Final = ("query", "key", "value", "output", "gate", "up", "down")
"""Weights of a layer, in the order of Map of common.cuh."""

_MOST_PREPARED: Final = 8


class Prefill(ModelLauncher[PrefillShape]):
    """The kernel of a decoder over all tokens of its sequences; see `ModelLauncher`."""

    kernel = KERNEL
    threads = 384
    stages = ("embedding", "qkv", "attention", "output", "middle", "gate", "down", "next", "head")
    layer_roles = ("norm", "middle_norm", "keys", "values")
    model_roles = ("tokens", "embedding", "cosine", "sine", "norm")

    def _allocate(self, *, profile: bool) -> None:
        super()._allocate(profile=profile)
        shape = self.shape
        self._parts = 4 * sum(shape.part_vectors(self.blocks).values())  # in words, as all here
        self._matrices: dict[str, tuple[int, int]] = {}
        at = self._parts
        for name, columns in shape.matrices().items():
            self._matrices[name] = (4 * at, columns)
            at += TILE_ROWS * columns // 2
        self._flags = at
        self._workspace = torch.zeros(at + sum(shape.flags().values()), dtype=torch.int32, device=self.device)
        self._workspace[: self._parts] = ABSENT
        self._maps: dict[tuple[int, ...], Any] = {}

    def launch(self, layers: Sequence[dict[str, Any]], model: dict[str, Any], logits: Any) -> None:
        """Logits [batch * length, vocabulary] of tokens [batch * length]; keys and values go into the layers' caches.

        May be captured into a graph after one launch outside of it.

        ``layers`` and ``model``: tensors by role; caches [batch, kv_heads, cache, head_dim] may be missing. The
        rotary tables are [1 or batch, length, head_dim].
        """
        maps = self._maps_of(layers, model)
        rotary_step = self.shape.length * self.shape.head_dim if model["cosine"].shape[0] > 1 else 0
        self._start(layers, model, (logits, maps, self._workspace), rotary_step)

    def _forget(self) -> None:
        self._workspace.zero_()
        self._workspace[: self._parts] = ABSENT

    def _awaited(self, place: int) -> str:
        if place < 0:
            vector, name = holder(self.shape.part_vectors(self.blocks), -1 - place)
            return f"vector {vector} of the parts of {name}"
        flag, name = holder(self.shape.flags(), place)
        return f"flag {flag} of '{name}'"

    def _maps_of(self, layers: Sequence[dict[str, Any]], model: dict[str, Any]) -> Any:
        """Return the table of tensor maps on the device, made again where a weight has another address."""
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
