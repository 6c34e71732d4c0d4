"""Gradients that PyTorch adds up in place, in memory that nothing else holds.

Under a dispatch mode, autograd takes every tensor for one of a subclass, and calls the functional form of an operator
where it otherwise works in place (``can_accumulate_inplace`` of ``input_buffer.cpp``, ``areAnyTensorSubclassLike`` in
the formulas of derivatives). The functional form still runs, so that the program's numbers cannot change, but what it
returns stands for the memory of its first argument, and the launch is that of the form in place.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

_ATEN: Final = torch.ops.aten
_IN_PLACE: Final = {
    _ATEN.add.Tensor: (_ATEN.add_.Tensor, 0),
    _ATEN.index_add.default: (_ATEN.index_add_.default, 0),
    _ATEN.index_put.default: (_ATEN._index_put_impl_.default, 1),
    _ATEN.put.default: (_ATEN.put_.default, 0),
    _ATEN.scatter_add.default: (_ATEN.scatter_add_.default, 0),
}
"""The forms in place, and how many references more than a sum of gradients its formula holds."""

MORE_ARGUMENTS: Final = {_ATEN._index_put_impl_.default: (True,)}
"""What the formula calls a form in place with, beside the arguments of the functional one: indices are not checked."""


def in_place(function: Any, args: Sequence[Any]) -> Any:
    """Return the operator in place that autograd would call without a dispatch mode; None where it calls this one."""
    if function not in _IN_PLACE or torch.is_grad_enabled():
        return None
    node = torch._C._current_autograd_node()  # noqa: SLF001 - as `Modules.here`
    plain = type(args[0]) is torch.Tensor and args[0].layout is torch.strided
    single = single_reference()
    if node is None or single is None or not plain or args[0].storage_offset():
        return None
    stand_in, more = _IN_PLACE[function]
    tensors, *rest = _references(args[0])
    return stand_in if (tensors - more, *rest) == single else None


def fits(result: torch.Tensor, target: torch.Tensor) -> bool:
    """Return whether a result can stand for the memory of the tensor that would have been written."""
    return result.dtype is target.dtype and result.shape == target.shape and result.stride() == target.stride()


def _references(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return how often C++ holds the tensor and its storage, and Python the tensor."""
    with _disable_current_modes():
        storage = tensor.untyped_storage()
    counts: Any = torch._C  # noqa: SLF001 - has no public name
    return tensor._use_count(), counts._storage_Use_Count(storage._cdata), sys.getrefcount(tensor)  # noqa: SLF001 - as above


@cache
def single_reference() -> tuple[int, int, int] | None:
    """Return these counts of a gradient that nothing but autograd holds; None where PyTorch does not tell them."""
    counts: list[tuple[int, int, int]] = []

    class Watch(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not followed
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else PyTorch imports its compiler, which takes a second and needs a folder for caches

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func is _ATEN.add.Tensor and not torch.is_grad_enabled():
                counts.append(_references(args[0]))
            return func(*args, **(kwargs or {}))

    try:
        with _disable_current_modes(), torch.inference_mode(mode=False), torch.enable_grad():
            source = torch.ones(2, requires_grad=True)
            with Watch():
                middle = source.exp()
                torch.autograd.grad((middle.sin() + middle.cos()).sum(), source)
    except AttributeError:
        return None
    return counts[0] if len(counts) == 1 else None
