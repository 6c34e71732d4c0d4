"""Softmax of float16 with a result in float32, which is one kernel on a GPU; a CPU converts first.

Source: `SoftMax.cpp` of PyTorch 2.11.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from tileprof.record.model.observation.composites import replaced, written_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ATEN: Final = torch.ops.aten
_PAIRS: Final = {_ATEN.softmax.int: _ATEN._softmax.default, _ATEN.log_softmax.int: _ATEN._log_softmax.default}  # noqa: SLF001 - PyTorch's own names


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Let ``softmax(x, dim, dtype=torch.float32)`` of float16 be one operator."""
    with ExitStack() as stack:
        for composite, operator in _PAIRS.items():
            stack.enter_context(replaced(composite, _choice(composite, operator)))
        yield


def _choice(composite: Any, operator: Any) -> Callable[..., torch.Tensor]:
    def softmax(source: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if source.dtype is torch.float16 and dtype is torch.float32 and not source.is_sparse:
            result: torch.Tensor = operator(source, dim, True)
            return result
        return written_out(composite, source, dim, dtype)

    return softmax


def _forward(function: Any) -> Callable[..., Any]:
    """Return the operator, which a CPU computes from converted numbers."""

    def forward(source: torch.Tensor, dim: int, half_to_float: bool) -> Any:
        return function(source.float() if half_to_float else source, dim, False)

    return forward


def _backward(function: Any) -> Callable[..., Any]:
    def backward(gradient: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> Any:
        return function(gradient, output, dim, gradient.dtype).to(input_dtype)

    return backward


ON_GPU: Final = {
    **{o: _forward(o) for o in _PAIRS.values()},
    **{o: _backward(o) for o in (_ATEN._softmax_backward_data.default, _ATEN._log_softmax_backward_data.default)},  # noqa: SLF001 - PyTorch's own names
}
"""What runs instead of an operator."""
