"""The models that a program calls: modules that no other module calls, without gradients, and what they are given."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

CALLS_WITH_INPUTS: Final = 32
"""Models with inputs of a shape that are kept at most: each holds a copy of its inputs."""

_DEEP: Final = 6
"""Levels of objects in which tensors are looked for: a cache holds layers, which hold tensors."""


@dataclass(slots=True)
class Call:
    """One model, called with inputs of one kind. ``args`` and ``kwargs`` are copies, from before the last of its first
    two calls: caches are often made in the first.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    count: int = 1

    @property
    def name(self) -> str:
        """The model's class and the shapes of its inputs."""
        shapes = [
            f"{'x'.join(map(str, t.shape)) or 'scalar'} {str(t.dtype).removeprefix('torch.')}" for t in self.tensors()
        ]
        return f"{type(self.model).__name__}({', '.join(shapes)})"

    def tensors(self) -> list[Any]:
        """Return the arguments that are tensors themselves."""
        return [v for v in (*self.args, *self.kwargs.values()) if isinstance(v, torch.Tensor)]


@contextmanager
def noticed() -> Iterator[list[Call]]:
    """Yield the calls of models meanwhile, in order of appearance; complete once the context is left. What
    `torch.compile` has wrapped counts as what it wraps.
    """
    calls: dict[Any, Call] = {}
    order: list[Call] = []
    inside = threading.local()
    plain = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(inside, "model", None) is not None:
            return plain(self, *args, **kwargs)
        inside.model = self
        try:
            if not torch.is_grad_enabled() and not _capturing():
                _note(getattr(self, "_orig_mod", self), args, kwargs, calls, order)
            return plain(self, *args, **kwargs)
        finally:
            inside.model = None

    nn.Module.__call__ = call
    try:
        yield order
    finally:
        nn.Module.__call__ = plain


def _note(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], calls: dict[Any, Call], order: list[Call]
) -> None:
    tensors = tensors_in((args, kwargs))
    key = id(model), tuple((tuple(t.shape), t.dtype, t.device) for t in tensors)
    call = calls.get(key)
    if call is not None:
        call.count += 1
        if call.count == 2:
            call.args, call.kwargs = _copies_of(args, kwargs) or (call.args, call.kwargs)
        return
    copied = _copies_of(args, kwargs) if len(order) < CALLS_WITH_INPUTS and _on_gpu(model, tensors) else None
    if copied is not None:
        calls[key] = Call(model, *copied)
        order.append(calls[key])


def _on_gpu(model: nn.Module, tensors: list[Any]) -> bool:
    return any(t.is_cuda for t in (*tensors, *model.parameters()))


def _copies_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return copies of inputs that share nothing with them; None where they cannot be copied."""
    try:
        return copy.deepcopy((args, kwargs))
    except (RuntimeError, TypeError, ValueError, copy.Error):
        return None


def _capturing() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def tensors_in(value: Any, deep: int = _DEEP) -> list[Any]:
    """Return the tensors that a value holds, in containers and attributes of objects, each once."""
    tensors: dict[int, Any] = {}
    _collect(value, deep, tensors, set())
    return list(tensors.values())


def _collect(value: Any, deep: int, tensors: dict[int, Any], visited: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        tensors.setdefault(id(value), value)
        return
    if deep == 0 or id(value) in visited or isinstance(value, str | bytes | int | float | type):
        return
    visited.add(id(value))
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set):
        parts = list(value)
    else:
        parts = list(vars(value).values()) if hasattr(value, "__dict__") and not isinstance(value, nn.Module) else []
    for part in parts:
        _collect(part, deep - 1, tensors, visited)
