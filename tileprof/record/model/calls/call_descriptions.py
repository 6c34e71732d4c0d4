"""Checks a trace's descriptions of operator calls, whose text comes from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import torch

from tileprof.errors import TraceError, UserError
from tileprof.nesting import parse_json

if TYPE_CHECKING:
    from tileprof.devices import Device
    from tileprof.record.model.calls.overload_facts import Operator
    from tileprof.record.model.tile_model import Call, Kernel
    from tileprof.trace import Recording

_MOST_ELEMENTS: Final = 1 << 32
"""The most elements of a tensor whose operator is cut into tiles: 8 GiB of float16."""

_MOST_DIMENSIONS: Final = 25
"""The most dimensions of a tensor that PyTorch's kernels index."""


def described_calls(trace: Recording) -> dict[int, list[tuple[int, dict[str, Any]]]]:
    """Return the launches and texts of each operator call that is described in full, by the number of the call.

    Raises `TraceError` where a description is no JSON of the recorder's form, or a tensor leaves its buffer.
    """
    sizes = trace.buffers["bytes"].to_numpy()
    calls: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for launch, text in enumerate(trace.launches["call"].astype(str)):
        try:
            call = parse_json(text) if text else {}
        except ValueError as error:
            raise _damaged_call_error(launch, str(error)) from None
        if not isinstance(call, dict):
            raise _damaged_call_error(launch, "no object")
        if "number" in call:
            _check(launch, call, sizes.tolist())
            calls.setdefault(call["number"], []).append((launch, call))
    return calls


def refusing(operator: Operator, launch: int) -> Operator:
    """Return the operator with a tile model that raises `TraceError` for arguments that it cannot take."""
    entry = operator.entry
    if entry is None:
        return operator
    model = entry.model

    def refused(call: Call, device: Device) -> list[Kernel]:
        try:
            return model(call, device)
        except UserError:
            raise
        except Exception as error:  # the arguments are data, and a model takes them for a call that PyTorch took
            raise _damaged_call_error(launch, f"{call.op} takes no such arguments ({type(error).__name__})") from error

    return replace(operator, entry=replace(entry, model=refused))


def _check(launch: int, call: dict[str, Any], sizes: list[int]) -> None:
    tensors, places = call.get("tensors"), call.get("places")
    if type(call["number"]) is not int or not isinstance(call.get("arguments"), dict) or not isinstance(places, dict):
        raise _damaged_call_error(launch, "number, arguments or places are of another form")
    if not isinstance(tensors, list):
        raise _damaged_call_error(launch, "tensors are no list")
    for number, tensor in enumerate(tensors):
        wrong = _wrong_tensor(tensor, sizes)
        if wrong:
            raise _damaged_call_error(launch, f"tensor {number} {wrong}")
    if not all(_refers(value, len(tensors)) for value in places.values()):
        raise _damaged_call_error(launch, "places name a tensor that is not there")


def _wrong_tensor(tensor: Any, sizes: list[int]) -> str:
    """Return what is wrong with the description of a tensor; empty where nothing is."""
    if not isinstance(tensor, dict) or not isinstance(tensor.get("argument"), str):
        return "has no argument"
    shape, strides = tensor.get("shape"), tensor.get("strides")
    if not _whole_numbers(shape) or not _whole_numbers(strides) or len(shape) != len(strides):
        return "has no shape and strides of whole numbers"
    dtype = getattr(torch, tensor["dtype"], None) if isinstance(tensor.get("dtype"), str) else None
    if not isinstance(dtype, torch.dtype):
        return "has a type that PyTorch does not know"
    buffer, offset = tensor.get("buffer"), tensor.get("offset")
    if type(buffer) is not int or type(offset) is not int or not -1 <= buffer < len(sizes) or offset < 0:
        return "lies in no buffer"
    elements = 1
    for size in shape:
        elements *= size
    if elements > _MOST_ELEMENTS:
        return f"has {elements:,} elements; at most {_MOST_ELEMENTS:,} are cut into tiles"
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if elements else -1
    if buffer >= 0 and offset + (last + 1) * dtype.itemsize > sizes[buffer]:
        return "does not fit into its buffer"
    return ""


def _whole_numbers(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_DIMENSIONS
        and all(type(n) is int and 0 <= n < 1 << 62 for n in value)
    )


def _refers(value: Any, tensors: int) -> bool:
    """Return whether a value is a list, at any level, of tensors of the call and of plain values."""
    if isinstance(value, list):
        return all(_refers(one, tensors) for one in value)
    if isinstance(value, dict):
        return set(value) == {"tensor"} and type(value["tensor"]) is int and 0 <= value["tensor"] < tensors
    return True


def _damaged_call_error(launch: int, why: str) -> TraceError:
    return TraceError(f"launch {launch}: the recorded call of its operator is damaged: {why:.200}; record it again")
