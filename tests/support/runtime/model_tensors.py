"""Tensors of small language models whose layers run as one kernel."""

from __future__ import annotations

import torch


def rotated_half(x: torch.Tensor) -> torch.Tensor:
    """Return the second half of each head, negated, before the first, as rotary embeddings add it."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def aligned(tensor: torch.Tensor, to: int = 128) -> torch.Tensor:
    """Return a copy that begins at a multiple of ``to`` bytes, as allocators of GPU memory return."""
    size = tensor.element_size()
    flat = torch.empty(tensor.numel() + to, dtype=tensor.dtype, device=tensor.device)
    at = -(flat.data_ptr() // size) % (to // size)
    return flat[at : at + tensor.numel()].view(tensor.shape).copy_(tensor)
