"""RMS norm as PyTorch dispatches it on a GPU: one fused operator, forward and backward.

A CPU composes `rms_norm` of many operators, which autograd then goes through one by one. In a session it has kernels of
the fused ones, which are computed here, so that autograd takes them as it does on a GPU.

Source: `layer_norm.cpp` and `layer_norm_kernel.cu` of PyTorch 2.11.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Give the CPU kernels of the fused RMS norm; with one, autograd no longer composes it of other operators."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in (("_fused_rms_norm", _rms_norm), ("_fused_rms_norm_backward", _rms_norm_backward)):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU"):  # noqa: SLF001 - as below
            library.impl(name, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()  # noqa: SLF001 - the only way to take kernels back


def _rms_norm(
    source: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm and the reciprocal root of each row's mean square, in the type of the arithmetic."""
    dims = tuple(range(-len(normalized_shape), 0))
    wide = _wide(source)
    epsilon = torch.finfo(source.dtype).eps if eps is None else eps
    scale = torch.rsqrt(wide.square().mean(dims, keepdim=True) + epsilon)
    out = wide * scale if weight is None else wide * scale * weight
    return out.to(source.dtype).contiguous(), scale


def _rms_norm_backward(
    grad: torch.Tensor, source: torch.Tensor, normalized_shape: Sequence[int], scale: torch.Tensor,
    weight: torch.Tensor | None, output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    dims = tuple(range(-len(normalized_shape), 0))
    wide = _wide(grad)
    normalised = _wide(source) * scale
    of_source = of_weight = None
    if output_mask[0]:
        of_rows = wide if weight is None else wide * weight
        of_source = scale * (of_rows - normalised * (of_rows * normalised).mean(dims, keepdim=True))
        of_source = of_source.to(source.dtype).contiguous()
    if output_mask[1] and weight is not None:
        of_weight = (wide * normalised).sum(tuple(range(source.dim() - len(normalized_shape)))).to(weight.dtype)
    return of_source, of_weight


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()
