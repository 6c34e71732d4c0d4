"""Statistics of layer and batch norms as a GPU keeps them between both passes: in float32, whatever the input's type.

A CPU keeps those of 16-bit inputs and weights in 16 bits, so that two rows or channels would share four bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_HALF: Final = (torch.float16, torch.bfloat16)
_ATEN: Final = torch.ops.aten


def _forward(function: Any) -> Callable[..., Any]:
    """Return the operator with its second and third result in float32."""

    def forward(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        out, mean, deviation = function(*args, **kwargs)
        return (out, mean.float(), deviation.float()) if out.dtype in _HALF else (out, mean, deviation)

    return forward


def _backward(function: Any) -> Callable[..., Any]:
    """Return the operator, which gets its statistics as the CPU's kernel needs them: in the type of the input, unless
    the weight has another one.
    """
    names = [a.name for a in function._schema.arguments]  # noqa: SLF001 - has no public name
    source, weight = names.index("input"), names.index("weight")
    statistics = [n for n, name in enumerate(names) if name in {"mean", "rstd", "save_mean", "save_invstd"}]

    def backward(*args: Any) -> Any:
        dtype = args[source].dtype
        if dtype in _HALF and (args[weight] is None or args[weight].dtype is dtype):
            args = tuple(a.to(dtype) if n in statistics and a is not None else a for n, a in enumerate(args))
        return function(*args)

    return backward


ON_GPU: Final = {
    **{o: _forward(o) for o in (_ATEN.native_layer_norm.default, _ATEN.native_batch_norm.default)},
    **{o: _backward(o) for o in (_ATEN.native_layer_norm_backward.default, _ATEN.native_batch_norm_backward.default)},
}
"""What runs instead of an operator."""
