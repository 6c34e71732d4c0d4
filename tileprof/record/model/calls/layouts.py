"""Tensors as layouts: the key under which equal calls share their plan, and the operands that tile models see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tileprof.record.model.memory.storage import parts
from tileprof.record.model.tile_model import Call, Operand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tileprof.record.model.calls.overload_facts import Operator

_ALIGNMENT_BYTES = 16
"""The widest load of a thread; buffers themselves are aligned to 512 bytes."""


_PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of arguments that are surely hashable."""


def _alignment(tensor: torch.Tensor) -> int:
    offset = tensor.storage_offset() * tensor.element_size()
    return min(offset & -offset, _ALIGNMENT_BYTES) or _ALIGNMENT_BYTES


def flatten(value: Any, tensors: list[torch.Tensor], key: list[Any], numbers: list[float] | None = None) -> bool:
    """Append all tensors in ``value`` to ``tensors``, and a hashable description of it to ``key``.

    With ``numbers``, floating-point numbers go there, and the key only says that there is one.
    False where a tensor is not strided: its components stand for it, and tile models do not know it.
    """
    kind = type(value)
    if kind in _PLAIN and (numbers is None or kind is not float):
        key.append(value)
        return True
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_nested:  # `parts` of nearly all tensors
            key.append((value.shape, value.stride(), value.dtype, _alignment(value)))
            tensors.append(value)
            return True
        pieces = parts(value)
        for piece in pieces:
            key.append((piece.shape, piece.stride(), piece.dtype, _alignment(piece)))
            tensors.append(piece)
        return len(pieces) == 1 and pieces[0] is value
    if isinstance(value, list | tuple):
        key.append(len(value))
        strided = True
        for one in value:
            strided = flatten(one, tensors, key, numbers) and strided
        return strided
    if numbers is not None and isinstance(value, float):
        numbers.append(value)
        key.append(float)
        return True
    try:
        hash(value)
        key.append(value)
    except TypeError:
        key.append(repr(value))
    return True


def as_operands(value: Any, operands: list[Operand]) -> Any:
    """Return ``value`` with each tensor replaced by its operand, which is appended to ``operands``; lists for tuples.

    The order is that of `flatten`: an operand's ``ref`` is its tensor's place there.
    """
    if isinstance(value, torch.Tensor):
        new_operands = [_operand(piece, len(operands) + n) for n, piece in enumerate(parts(value))]
        operands += new_operands
        return new_operands[0] if len(new_operands) == 1 else new_operands
    if isinstance(value, list | tuple):
        return [as_operands(v, operands) for v in value]
    return value


def _operand(tensor: torch.Tensor, ref: int) -> Operand:
    return Operand(
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize=tensor.element_size(),
        alignment=_alignment(tensor),
        ref=ref,
    )


def as_call(
    operator: Operator,
    arguments: Sequence[Any],
    result: Any,
    tensors: Sequence[torch.Tensor],
    values: Mapping[int, Any],
    read: set[int] | None = None,
    *,
    tf32: bool,
) -> Call:
    """Return a call as tile models see it. ``values``: by id, what tensors held that the operator wrote to; ``read``
    learns the places of the tensors whose values models ask for; ``tf32``: whether products may use it.
    """
    operands: list[Operand] = []
    by_name = {a.name: as_operands(v, operands) for a, v in zip(operator.arguments, arguments, strict=True)}
    first = len(operands)
    as_operands(result, operands)

    def value(operand: Operand) -> torch.Tensor | None:
        tensor = tensors[operand.ref]
        if read is not None:
            read.add(operand.ref)
        return None if isinstance(tensor, FakeTensor) else values.get(id(tensor), tensor)

    return Call(operator.name, by_name, tuple(operands[first:]), tuple(operands), value, tf32)
