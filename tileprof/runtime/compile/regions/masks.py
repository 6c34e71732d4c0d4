"""Masks of attention that PyTorch's fused kernels for GPUs take: those whose last dimension lies contiguously.

Where a mask is broadcast along the keys (transformers builds one for BERT that keeps everything), PyTorch decomposes
attention into products in float32, which no finder matches and which is slower (`check_last_dim_stride_equals_1_dense`
in PyTorch's `sdp_utils_cpp.h`). In the graph that our program is made of such masks are written out.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

_ATTENTION: Final = (
    torch.nn.functional.scaled_dot_product_attention,
    torch._C._nn.scaled_dot_product_attention,  # noqa: SLF001 - what Dynamo calls
)
_MASK_AT: Final = 3


def write_out_masks(module: fx.GraphModule) -> int:
    """Make a graph of Dynamo copy masks that are broadcast along their last dimension; return how many."""
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _ATTENTION:
            continue
        mask = node.args[_MASK_AT] if len(node.args) > _MASK_AT else node.kwargs.get("attn_mask")
        if not _broadcast(mask):
            continue
        if mask not in copies:
            with module.graph.inserting_after(mask):
                copies[mask] = module.graph.call_method("contiguous", (mask,))
        if len(node.args) > _MASK_AT:
            node.update_arg(_MASK_AT, copies[mask])
        else:
            node.update_kwarg("attn_mask", copies[mask])
    if copies:
        module.recompile()
    return len(copies)


def _broadcast(mask: Any) -> bool:
    value = mask.meta.get("example_value") if isinstance(mask, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[-1] != 1 and value.stride(-1) != 1
