"""A random decoder on the CPU: the inputs of the kernel, and the results of PyTorch in float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from tests.support.runtime.model_tensors import aligned, rotated_half
from tileprof.runtime.decode.shape import DecoderShape

_aligned = partial(aligned, to=16)
"""What the kernel may rely on, and no more."""


class HostModel:
    """Return weights and caches for a shape; caches and counters of a launch are copies."""

    def __init__(self, shape: DecoderShape) -> None:
        self.shape = shape
        self._generator = torch.Generator().manual_seed(0)
        self._layers = [self._layer() for _ in range(shape.layers)]
        self._embedding = self._random(shape.vocabulary, shape.hidden, scale=1.0)
        self._norm, self._head = 1 + self._random(shape.hidden, scale=0.1), self._random(shape.vocabulary, shape.hidden)

    def decode(self, decoder: Any, position: int, seed: int) -> tuple[torch.Tensor, str | None]:
        """Return the logits of a launch and the fault that the machine detected; counters are checked."""
        layers = [layer | {"counter": torch.tensor(position)} for layer in self._layers]
        layers = [layer | {role: _aligned(layer[role]) for role in ("keys", "values")} for layer in layers]
        cosine, sine = self._tables(position)
        model = {
            "tokens": self._tokens(position), "embedding": self._embedding, "cosine": cosine, "sine": sine,
            "last": layers[0]["counter"], "norm": self._norm, "head": self._head,
        }  # fmt: skip
        logits = torch.full((self.shape.batch, self.shape.vocabulary), torch.nan, dtype=self._embedding.dtype)
        actual = decoder.start(layers, model, logits, seed)
        if actual is None and any(int(layer["counter"]) != position + 1 for layer in layers):
            actual = "a counter was not advanced"
        return logits, actual

    def expected(self, position: int) -> torch.Tensor:
        shape = self.shape
        cosine, sine = (t.float() for t in self._tables(position))
        x = F.embedding(self._tokens(position), self._embedding.float())
        for inputs in self._layers:
            layer = {role: t.float() for role, t in inputs.items()}
            h = self._rms(x, layer["norm"])
            q, k, v = (
                F.linear(h, layer[r], layer.get(f"{r}_bias")).view(shape.batch, -1, shape.head_dim)
                for r in ("query", "key", "value")
            )
            if shape.head_norms:
                q, k = self._rms(q, layer["query_norm"]), self._rms(k, layer["key_norm"])
            q, k = (t * cosine + rotated_half(t) * sine for t in (q, k))
            keys, values = (
                torch.cat((layer[r][:, :, :position], new[:, :, None]), 2) for r, new in (("keys", k), ("values", v))
            )
            keys, values = (t.repeat_interleave(shape.sharers, 1) for t in (keys, values))
            attention_out = F.scaled_dot_product_attention(q[:, :, None], keys, values, scale=shape.scale)
            x = x + F.linear(attention_out.reshape(shape.batch, -1), layer["output"])
            h = self._rms(x, layer["middle_norm"])
            x = x + F.linear(F.silu(F.linear(h, layer["gate"])) * F.linear(h, layer["up"]), layer["down"])
        return F.linear(self._rms(x, self._norm.float()), self._head.float())

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)

    def _tokens(self, position: int) -> torch.Tensor:
        return (torch.arange(self.shape.batch) * 7 + position) % self.shape.vocabulary

    def _tables(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.cat(2 * [position / 10000 ** (torch.arange(0, self.shape.head_dim, 2) / self.shape.head_dim)])[
            None
        ]
        return _aligned(angles.cos().to(self._embedding.dtype)), _aligned(angles.sin().to(self._embedding.dtype))

    def _random(self, *sizes: int, scale: float = 0.0) -> torch.Tensor:
        values = torch.randn(*sizes, generator=self._generator) * (scale or sizes[-1] ** -0.5)
        return _aligned(values.to(getattr(torch, self.shape.dtype)))

    def _layer(self) -> dict[str, torch.Tensor]:
        shape, random = self.shape, self._random
        hidden, wide, keys = shape.hidden, shape.intermediate, shape.kv_heads * shape.head_dim
        layer = {
            "norm": random(hidden, scale=1.0),
            "middle_norm": random(hidden, scale=1.0),
            "query": random(shape.query, hidden),
            "key": random(keys, hidden),
            "value": random(keys, hidden),
            "output": random(hidden, shape.query),
            "gate": random(wide, hidden),
            "up": random(wide, hidden),
            "down": random(hidden, wide),
        }
        layer |= {
            r: random(shape.batch, shape.kv_heads, shape.cache, shape.head_dim, scale=1.0) for r in ("keys", "values")
        }
        if shape.biased:
            layer |= {
                f"{r}_bias": random(n, scale=0.3) for r, n in (("query", shape.query), ("key", keys), ("value", keys))
            }
        if shape.head_norms:
            layer |= {role: random(shape.head_dim, scale=1.0) for role in ("query_norm", "key_norm")}
        return layer
