"""A layer with state, as a decoder with a key-value cache has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CachedLayer(nn.Module):
    """A layer that keeps one row per call, of at most ``rows``, counts its calls, and reads the rows that it kept."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("cache", torch.zeros(rows, 64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.first(x))
        self.cache.index_copy_(0, self.calls.reshape(1), y[:1])
        self.calls.add_(1)
        scores = functional.softmax(y @ self.cache.t(), -1)
        return self.last(scores @ self.cache) + x
