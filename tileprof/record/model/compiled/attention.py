"""Attention as PyTorch dispatches it on a GPU, where its CPU would take it apart into products: with dropout.

A CPU has a fused kernel without dropout only; the tile models know that one as the GPU's (`tiles.attention`). GPUs have
fused kernels with dropout, too.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_HALF = (torch.float16, torch.bfloat16)
_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - has no public name
_WIDEST = 128
"""The widest head of cuDNN's kernel and of FlashAttention's backward."""


@contextmanager
def on_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Let what is traced meanwhile keep attention with dropout in one piece, as on a GPU of this capability."""
    operator = torch.ops.aten.scaled_dot_product_attention.default

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if not dropout_p or enable_gqa or query.dim() != 4 or query.dtype not in (*_HALF, torch.float32):
            return operator._op_dk(  # noqa: SLF001 - what PyTorch does without us
                _IMPLICIT, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        bias = _bias(attn_mask, query, key)
        if query.dtype in _HALF and query.shape[-1] <= _WIDEST and (capability >= (9, 0)):
            return torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001 - PyTorch's own name
                query,
                key,
                value,
                bias,
                learns,
                dropout_p,
                is_causal,
                False,
                scale=factor,
            )[0]
        if query.dtype in _HALF and bias is None:
            return torch.ops.aten._scaled_dot_product_flash_attention(  # noqa: SLF001 - as above
                query, key, value, dropout_p, is_causal, scale=factor
            )[0]
        return torch.ops.aten._scaled_dot_product_efficient_attention(  # noqa: SLF001 - as above
            query, key, value, bias, learns, dropout_p, is_causal, scale=factor
        )[0]

    with mock.patch.dict(operator.py_kernels, {_IMPLICIT: attention}):
        operator._dispatch_cache.clear()  # noqa: SLF001 - PyTorch looks its kernels up once
        try:
            yield
        finally:
            operator._dispatch_cache.clear()  # noqa: SLF001 - as above


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """Return the mask as numbers to be added, for every head."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=mask.device)
        mask = torch.where(mask, zero, torch.full((), -math.inf, dtype=query.dtype, device=mask.device))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
