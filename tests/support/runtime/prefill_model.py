"""A random decoder over several tokens on the CPU: the inputs of the kernel, and the results of PyTorch in float32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from tests.support.runtime.model_tensors import aligned, rotated_half
from tileprof.runtime.prefill.shape import PrefillShape


class HostModel:
    """Return weights for a shape, on a device; the caches of a launch are filled with NaN first."""

    def __init__(self, shape: PrefillShape, device: str = "cpu") -> None:
        self.shape, self.device = shape, device
        self._generator = torch.Generator(device).manual_seed(0)
        self.layers = [self._layer() for _ in range(shape.layers)]
        angles = torch.arange(shape.length, device=device)[:, None] / 10000 ** (
            torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim
        )
        angles = torch.cat((angles, angles), -1)[None]
        embedding = self._random(shape.vocabulary, shape.hidden, scale=1.0)
        self.tensors: dict[str, Any] = {
            "embedding": embedding,
            "norm": 1 + self._random(shape.hidden, scale=0.1),
            "head": self._random(shape.vocabulary, shape.hidden),
            "tokens": torch.randint(0, shape.vocabulary, (shape.rows,), device=device, generator=self._generator),
            "cosine": aligned(angles.cos().to(embedding.dtype)),
            "sine": aligned(angles.sin().to(embedding.dtype)),
        }

    def logits(self) -> torch.Tensor:
        """Allocate the results of a launch, poisoned; caches are poisoned too."""
        for layer in self.layers:
            for role in ("keys", "values"):
                if role in layer:
                    layer[role].fill_(torch.nan)
        like = self.tensors["embedding"]
        return aligned(
            torch.full((self.shape.rows, self.shape.vocabulary), torch.nan, dtype=like.dtype, device=self.device)
        )

    def expected(self) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return logits, and keys and values of each layer, in float32."""
        shape = self.shape
        tensors = {name: t.float() if t.is_floating_point() else t for name, t in self.tensors.items()}
        x = F.embedding(tensors["tokens"], tensors["embedding"]).view(shape.batch, shape.length, shape.hidden)
        records = []
        for inputs in self.layers:
            layer = {role: t.float() for role, t in inputs.items()}
            h = self._rms(x, layer["norm"])
            q, k, v = (
                F.linear(h, layer[r]).view(shape.batch, shape.length, -1, shape.head_dim).transpose(1, 2)
                for r in ("query", "key", "value")
            )
            q, k = (t * tensors["cosine"] + rotated_half(t) * tensors["sine"] for t in (q, k))
            records.append((k, v))
            keys, values = (t.repeat_interleave(shape.heads // shape.kv_heads, 1) for t in (k, v))
            attention_out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, scale=shape.scale)
            x = x + F.linear(attention_out.transpose(1, 2).reshape(shape.batch, shape.length, -1), layer["output"])
            h = self._rms(x, layer["middle_norm"])
            x = x + F.linear(F.silu(F.linear(h, layer["gate"])) * F.linear(h, layer["up"]), layer["down"])
        return F.linear(self._rms(x, tensors["norm"]), tensors["head"]).view(shape.rows, -1), records

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)

    def _random(self, *sizes: int, scale: float = 0.0) -> torch.Tensor:
        values = torch.randn(*sizes, generator=self._generator, device=self.device) * (scale or sizes[-1] ** -0.5)
        return aligned(values.to(getattr(torch, self.shape.dtype)))

    def _layer(self) -> dict[str, torch.Tensor]:
        shape, random = self.shape, self._random
        hidden, wide, keys = shape.hidden, shape.intermediate, shape.kv_heads * shape.head_dim
        layer = {
            "norm": 1 + random(hidden, scale=0.1),
            "middle_norm": 1 + random(hidden, scale=0.1),
            "query": random(shape.query, hidden),
            "key": random(keys, hidden),
            "value": random(keys, hidden),
            "output": random(hidden, shape.query),
            "gate": random(wide, hidden),
            "up": random(wide, hidden),
            "down": random(hidden, wide),
        }
        if shape.cache:
            size = (shape.batch, shape.kv_heads, shape.cache, shape.head_dim)
            layer |= {role: random(*size) for role in ("keys", "values")}
        return layer
