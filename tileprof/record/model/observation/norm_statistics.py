"""Statistics of layer norms as a GPU keeps them between both passes: in float32, whatever the type of the rows.

A CPU keeps those of 16-bit rows and weights in 16 bits, so that two rows would share four bytes.
"""

from __future__ import annotations

from typing import Any, Final

import torch

_HALF: Final = (torch.float16, torch.bfloat16)
_FORWARD: Final = torch.ops.aten.native_layer_norm.default
_BACKWARD: Final = torch.ops.aten.native_layer_norm_backward.default


def _forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, mean, deviation = _FORWARD(*args, **kwargs)
    if out.dtype in _HALF:
        mean, deviation = mean.float(), deviation.float()
    return out, mean, deviation


def _backward(
    gradient: torch.Tensor, source: torch.Tensor, shape: Any, mean: torch.Tensor, deviation: torch.Tensor,
    weight: torch.Tensor | None, *rest: Any,
) -> Any:  # fmt: skip
    if source.dtype in _HALF and (weight is None or weight.dtype is source.dtype):  # as the CPU's kernel needs them
        mean, deviation = mean.to(source.dtype), deviation.to(source.dtype)
    return _BACKWARD(gradient, source, shape, mean, deviation, weight, *rest)


ON_GPU: Final = {_FORWARD: _forward, _BACKWARD: _backward}
"""What runs instead of an operator."""
