# ruff: noqa: INP001 - runs inside other programs: a script that imports little, and late
"""The arguments of an operator call of PyTorch: tensors with addresses, and numbers, as one event behind the launches
it made.

    {"e": "called", "op": "aten::addmm", "arguments": {"self": {"tensor": 0}, "beta": 1, ...},
     "tensors": [["self", address, shape, strides, dtype, item bytes, written, "cuda"], ...]}

A tensor argument is a place in ``tensors``, a list of them a list of places; results come last, as ``out``, ``out1``
and so on. Arguments that are neither tensors nor plain numbers and words (types, memory formats, generators) are left
out.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

DEVICES = {"cuda"}
"""Tensors on others than these are no operands of a launch."""

MOST_TENSORS = 64
"""Operators on more are not described: an optimiser step takes all parameters of a model at once."""


def described(torch: Any, function: Any, arguments: tuple[Any, ...], options: dict[str, Any], result: Any) -> Any:
    """Return the event for a call that has returned ``result``; None for what launches nothing or cannot be
    described.
    """
    schema = getattr(function, "_schema", None)
    if schema is None or getattr(function, "is_view", False):
        return None
    call = _Call(torch)
    values = {}
    for number, argument in enumerate(schema.arguments):
        argument_value = (
            arguments[number] if number < len(arguments) else options.get(argument.name, argument.default_value)
        )
        written = argument.alias_info is not None and argument.alias_info.is_write
        value = call.value(argument_value, argument.name, written)
        if value is not _LEFT_OUT:
            values[argument.name] = value
    results = result if isinstance(result, (list, tuple)) else (result,)
    for number, one in enumerate(results):
        if isinstance(one, torch.Tensor):
            call.value(one, f"out{number or ''}", True)
    if call.strange or not call.on_device or len(call.tensors) > MOST_TENSORS:
        return None
    return {"e": "called", "op": function.name(), "arguments": values, "tensors": call.tensors}


_LEFT_OUT = object()


class _Call:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.tensors: list[list[Any]] = []
        self.on_device = False
        self.strange = False
        """A tensor has no plain memory: sparse, nested, or of a subclass without storage."""

    def value(self, argument: Any, name: str, written: bool) -> Any:
        if isinstance(argument, self.torch.Tensor):
            return self.tensor(argument, name, written)
        if isinstance(argument, (list, tuple)):
            values = [self.value(one, name, written) for one in argument]
            return _LEFT_OUT if _LEFT_OUT in values else values
        if isinstance(argument, float):
            return argument if isfinite(argument) else _LEFT_OUT
        return argument if argument is None or isinstance(argument, (bool, int, str)) else _LEFT_OUT

    def tensor(self, tensor: Any, name: str, written: bool) -> Any:
        try:
            plain = tensor.layout is self.torch.strided and not tensor.is_nested
            address = tensor.data_ptr() if plain else 0
        except (RuntimeError, NotImplementedError):
            plain = False
        if not plain:
            self.strange = True
            return _LEFT_OUT
        self.on_device |= tensor.device.type in DEVICES
        dtype = str(tensor.dtype).rpartition(".")[2]
        row = [name, address, list(tensor.shape), list(tensor.stride()), dtype, tensor.element_size(), written]
        self.tensors.append([*row, tensor.device.type])
        return {"tensor": len(self.tensors) - 1}
