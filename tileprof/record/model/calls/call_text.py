"""The arguments of an operator call, as the trace keeps them: ``launches.call`` of `tileprof.trace.schema`."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from tileprof.record.model.tile_model import Operand, Scratch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tileprof.record.model.tile_model import Call, Kernel

_MOST_OPERANDS: Final = 32
"""Slots that are described: a kernel over the tensors of a whole optimiser step has thousands."""


IN_PARTS: Final = frozenset({"aten::mm", "aten::addmm"})
"""Operators whose launches are described together where there are several: a policy has them as one stage."""


def call_description(call: Call, kernel: Kernel) -> str:
    """Return the JSON text for one kernel of the call; empty for lists of tensors and where there are too many
    operands.
    """
    if len(kernel.operands) > _MOST_OPERANDS or call.op.startswith("aten::_foreach_"):
        return ""
    names = _names(call)
    operands = [
        None if isinstance(o, Scratch) else _layout(call.tensors[o.ref], names.get(o.ref, "")) for o in kernel.operands
    ]
    arguments = {name: value for name, value in call.arguments.items() if _plain(value)}
    return json.dumps({"operands": operands, "arguments": arguments}, separators=(",", ":"))


def numbered(
    text: str, number: int, call: Call | None = None, places: Mapping[int, tuple[int, int]] | None = None
) -> str:
    """Return the description of one of several launches of a call: with the ``number`` that they share; the last one
    also with all tensors of ``call``, whose buffers and offsets are ``places`` by ``ref`` (others: no memory).
    """
    more: dict[str, Any] = {"number": number, "tensors": [], "places": {}}
    if call is not None and places is not None:
        names = _names(call)
        output_refs = {o.ref for o in call.outputs}
        for operand in call.tensors:
            buffer, offset = places.get(operand.ref, (-1, 0))
            layout = _layout(operand, names.get(operand.ref, ""))
            more["tensors"].append(layout | {"buffer": buffer, "offset": offset, "written": operand.ref in output_refs})
        for name, value in call.arguments.items():
            if isinstance(value, Operand):
                more["places"][name] = {"tensor": value.ref}
    return json.dumps(json.loads(text) | more, separators=(",", ":"))


def _names(call: Call) -> dict[int, str]:
    """Return the argument that each tensor is, by its place in the call; results are ``out``, ``out1`` and so on."""
    names: dict[int, str] = {}
    for name, value in call.arguments.items():
        for operand in value if isinstance(value, list) else [value]:
            if isinstance(operand, Operand):
                names[operand.ref] = name
    for number, operand in enumerate(call.outputs):
        names.setdefault(operand.ref, f"out{number or ''}")
    return names


def _layout(operand: Operand, argument: str) -> dict[str, Any]:
    return {
        "argument": argument, "shape": list(operand.shape), "strides": list(operand.strides), "dtype": operand.dtype,
    }  # fmt: skip


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_plain(v) and not isinstance(v, list) for v in value)
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value))
