"""Attention as one kernel: scores, softmax and values of a block of rows, without the matrix of scores in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import torch
from torch.nn import functional

from tileprof.errors import UserError
from tileprof.runtime.stages.operator import Grid, Operator, Region, cut, write_region
from tileprof.runtime.stages.tiling import Span
from tileprof.runtime.stages.view import View


@dataclass(frozen=True, slots=True)
class Attention(Operator):
    """``out = softmax(scale * q @ k^T) @ v``, head by head.

    Shapes: q and out [heads, m, d], k and v [groups, n, d]; ``groups`` divides ``heads``, and as many neighbouring
    heads share a group (grouped-query attention). ``causal``: row i sees the first i + 1 keys, as PyTorch's
    ``is_causal``. ``scale`` 0 is 1 / sqrt(d). Tiles: ``rows`` rows along y, a head along z.
    """

    NAME: ClassVar[str] = "attention"
    rows_along: ClassVar[str] = "y"

    q: View
    k: View
    v: View
    out: View
    rows: int = 64
    causal: bool = False
    scale: float = 0.0

    def __post_init__(self) -> None:
        q, k = self.q.shape, self.k.shape
        if len(q) != 3 or len(k) != 3 or k != self.v.shape or self.out.shape != q or k[2] != q[2] or q[0] % k[0]:
            raise UserError(
                f"attention: q is {q}, k {k}, v {self.v.shape}, out {self.out.shape}; q and out are [heads, m, d], k "
                "and v [groups, n, d], "
                "with groups a divisor of heads"
            )
        if self.rows < 1 or not isfinite(self.scale):
            raise UserError(
                f"attention: {self.rows} rows per tile, scale {self.scale}; at least one row, a finite scale"
            )

    @property
    def factor(self) -> float:
        """The factor that scores are multiplied by."""
        return self.scale or self.q.shape[2] ** -0.5

    @property
    def key_rows(self) -> int:
        """Keys that any query sees."""
        return min(self.q.shape[1], self.k.shape[1]) if self.causal else self.k.shape[1]

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile of a head."""
        return self.rows, self.q.shape[2]

    @property
    def grid(self) -> Grid:
        return 1, -(-self.q.shape[1] // self.rows), self.q.shape[0]

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:  # noqa: ARG002 - x is 0
        query_part, keys = self._parts(y, z)
        yield Region("q", query_part)
        yield Region("k", keys)
        yield Region("v", keys)
        yield write_region(query_part)

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:  # noqa: ARG002 - x is 0
        query_part, keys = self._parts(y, z)
        q, k, v = (cut(tensors[role], part).float()[0] for role, part in (("q", query_part), ("k", keys), ("v", keys)))
        scores = self.factor * q @ k.T
        if self.causal:
            row = torch.arange(*query_part[1])[:, None]
            scores = scores.masked_fill(torch.arange(*keys[1])[None, :] > row, float("-inf"))
        cut(tensors["out"], query_part).copy_((torch.softmax(scores, dim=1) @ v)[None])

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        q, k, v = (tensors[role][None] for role in "qkv")  # one batch: PyTorch's fused kernels take four dimensions
        factor, grouped = self.scale or q.shape[-1] ** -0.5, q.shape[1] != k.shape[1]
        value = functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, scale=factor, enable_gqa=grouped
        )
        return value[0]

    def _parts(self, y: int, z: int) -> tuple[tuple[Span, Span, Span], tuple[Span, Span, Span]]:
        """Return a tile's rows of q and out, and the keys that it needs."""
        _, m, d = self.q.shape
        last = min(m, (y + 1) * self.rows)
        group = z // (self.q.shape[0] // self.k.shape[0])
        key_end = min(last, self.k.shape[1]) if self.causal else self.k.shape[1]
        return ((z, z + 1), (y * self.rows, last), (0, d)), ((group, group + 1), (0, key_end), (0, d))
