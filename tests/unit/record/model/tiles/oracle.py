"""Brute force for tile models: bytes of boxes one by one, and calls made from real tensors.

Nothing here shares code with the models. A test states, per tile, the indices of each operand that the tile's
outputs need, and compares `bytes_of` with `element_bytes` of these indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch, find
from tileprof.record.model.tiles import load_all
from tileprof.trace.footprint import READ, Footprint


def bytes_of(footprint: Footprint, tile: int, slot: int, mode: int = READ) -> set[int]:
    """Return the bytes of operand ``slot``, from its byte 0, that ``tile`` touches in ``mode``."""
    actual: set[int] = set()
    for run in runs_of(footprint, tile, slot, mode):
        actual.update(run)
    return actual


def runs_of(footprint: Footprint, tile: int, slot: int, mode: int = READ) -> list[range]:
    """Return the contiguous runs of all boxes of ``tile``, with repetition."""
    b = footprint.boxes
    rows = np.flatnonzero((b.tile == tile) & (b.operand == slot) & (b.mode == mode))
    runs = []
    for r in rows:
        for j in range(b.count_1[r]):
            for i in range(b.count_0[r]):
                at = int(b.offset[r] + i * b.stride_0[r] + j * b.stride_1[r])
                runs.append(range(at, at + int(b.length[r])))
    return runs


def element_bytes(operand: Operand, indices: Any) -> set[int]:
    """Return the bytes of the elements of ``operand`` at ``indices`` (an iterable of index tuples)."""
    actual: set[int] = set()
    for index in indices:
        at = sum(int(i) * s for i, s in zip(index, operand.strides, strict=True)) * operand.itemsize
        actual.update(range(at, at + operand.itemsize))
    return actual


def all_bytes(operand: Operand) -> set[int]:
    """Return every byte of every element of ``operand``."""
    return element_bytes(operand, np.ndindex(*operand.shape))


def slot_of(kernel: Kernel, operand: Operand) -> int:
    """Return the footprint slot that ``operand`` (a tensor of the call, or a workspace) has in ``kernel``."""
    return next(i for i, o in enumerate(kernel.operands) if is_same(o, operand))


def is_same(arguments: Operand | Scratch, operand: Operand) -> bool:
    """Return whether a kernel's operand is this one. Workspaces have negative references."""
    return arguments.ref == operand.ref if isinstance(arguments, Operand) else -1 - arguments.slot == operand.ref


def assert_each_byte_written_once(kernel: Kernel, slot: int, operand: Operand, mode: int) -> None:
    """Check that all tiles together write exactly the operand's bytes, each of them once."""
    runs = [r for t in range(kernel.footprint.tiles) for r in runs_of(kernel.footprint, t, slot, mode)]
    begins, lengths = (np.array([f(r) for r in runs], np.int64) for f in (lambda r: r.start, len))
    # Runs that ascend are merged quickly. `np.unique` hashes, which takes 15 times as long for ten million bytes.
    written = np.sort(
        np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum()), kind="stable"
    )
    assert (np.diff(written) > 0).all(), "a byte is written twice"
    elements = np.zeros(1, np.int64)
    for size, stride in zip(operand.shape, operand.strides, strict=True):
        elements = np.add.outer(elements, np.arange(size) * stride * operand.itemsize).ravel()
    result_bytes = np.sort(np.add.outer(elements, np.arange(operand.itemsize)).ravel(), kind="stable")
    assert np.array_equal(written, result_bytes[np.diff(result_bytes, prepend=-1) > 0])


def call_of(op: str, *args: Any, **kwargs: Any) -> Call:
    """Run an operator, e.g. ``call_of("aten::add.Tensor", a, b)``, and describe the call as the recorder does.

    Inputs that the operator changes in place are seen by ``Call.value`` as they were before.
    """
    name, _, overload = op.removeprefix("aten::").partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")
    tensors: list[Operand] = []
    values: list[torch.Tensor] = []

    def describe(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(operand_of(value, len(tensors)))
            values.append(value.clone() if value.numel() else value)
            return tensors[-1]
        if isinstance(value, list | tuple):
            return type(value)(describe(v) for v in value)
        return value

    arguments = {}
    for position, argument in enumerate(function._schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            inputs = args[position]
        else:
            inputs = kwargs.get(argument.name, argument.default_value)
        arguments[argument.name] = describe(inputs)
    with torch.no_grad():
        result = function(*args, **kwargs)
    several = result if isinstance(result, list | tuple) else (result,)
    outputs = tuple(describe(r) for r in several if isinstance(r, torch.Tensor))
    return Call(op, arguments, outputs, tuple(tensors), lambda operand: values[operand.ref])


def operand_of(tensor: torch.Tensor, ref: int = 0) -> Operand:
    """Return a tensor's layout as tile models see it."""
    alignment = next((a for a in (16, 8, 4, 2) if tensor.data_ptr() % a == 0), 1)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Operand(tuple(tensor.shape), tuple(tensor.stride()), dtype, tensor.element_size(), alignment, ref)


def run_model(call: Call, device: Any) -> list[Kernel]:
    """Return the kernels that the registered model of the call's operator gives."""
    load_all()
    entry = find(call.op)
    assert entry is not None, f"no tile model for {call.op}"
    return entry.model(call, device)
