"""Runs a program under a dispatch mode and checks the tile model of every operator it executes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.record.model.tiles import taint
from tests.unit.record.model.tiles.oracle import operand_of
from tileprof.devices import get
from tileprof.record.model.tile_model import Call, Entry, Kernel, Operand, find
from tileprof.record.model.tiles import load_all
from tileprof.trace.footprint import ATOMIC, READ, WRITE
from tileprof.trace.sources import ShapeSource

H200 = get("H200")

OWN_INDICES = frozenset(f"aten::max_pool{d}d_with_indices_backward" for d in (2, 3))
"""Their indices come from a forward pass, each in its own window; another index is not a valid call."""


class Watch(TorchDispatchMode):
    """Counts operators without a model in ``missing``; raises if a model's accesses do not fit the call.

    They fit if all kernels together write every byte of every output (data-dependent updates excepted) and no byte
    outside, and read nothing outside an operand. Calls of equal layout are checked once. With ``taints``, `taint.check`
    runs too.
    """

    def __init__(self, *, taints: bool = False) -> None:
        super().__init__()
        self._random = np.random.default_rng(0) if taints else None
        self.attempts = 0
        self.checked: set[str] = set()
        """Operators of which some input element was perturbed."""
        self._checked_calls: set[Any] = set()
        load_all()
        self.counts: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.conservative: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = describe(func, args, kwargs)
        result = func(*args, **kwargs)
        if call is None or func.is_view:
            return result
        outputs = [t for t in (result if isinstance(result, list | tuple) else [result]) if isinstance(t, torch.Tensor)]
        for tensor in outputs:
            call.tensors += (operand_of(tensor, len(call.tensors)),)
        call.outputs = call.tensors[len(call.tensors) - len(outputs) :]
        self.counts[call.op] += 1
        entry = find(call.op)
        if entry is None:
            self.missing[call.op] += 1
            return result
        layout = (call.op, *((o.shape, o.strides, o.dtype) for o in call.tensors))
        if layout in self._checked_calls:
            return result
        self._checked_calls.add(layout)
        kernels = entry.model(call, H200)
        self.conservative[call.op] += any(k.coverage == "conservative" for k in kernels)
        check(call, kernels)
        if self._random is not None:
            again = None if call.op in OWN_INDICES else partial(_kernels, entry)
            attempts = taint.check(func, args, kwargs, call, kernels, self._random, again)
            self.attempts += attempts
            if attempts:
                self.checked.add(call.op)
        return result


def _kernels(entry: Entry, call: Call) -> list[Kernel]:
    return entry.model(call, H200)


def describe(func: Any, args: Any, kwargs: Any) -> Call | None:
    """Return the call before it ran, without outputs; None if it is not an operator on tensors."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return None
    schema = func._schema
    tensors: list[Operand] = []
    values: list[torch.Tensor] = []

    def operand(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(operand_of(value, len(tensors)))
            values.append(value.detach().clone())
            return tensors[-1]
        return [operand(v) for v in value] if isinstance(value, list | tuple) else value

    arguments = {}
    for position, argument in enumerate(schema.arguments):
        positional = position < len(args) and not argument.kwarg_only
        inputs = args[position] if positional else kwargs.get(argument.name, argument.default_value)
        arguments[argument.name] = operand(inputs)
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    return Call(name, arguments, (), tuple(tensors), lambda o: values[o.ref])


def touch_counts(kernels: list[Kernel], operand: Operand, modes: tuple[int, ...]) -> np.ndarray:
    """Return all bytes of the operand, from its byte 0, that any tile of any kernel touches."""
    touched = np.zeros(0, bool)
    for kernel in kernels:
        b = kernel.footprint.boxes
        slots = [i for i, o in enumerate(kernel.operands) if isinstance(o, Operand) and o.ref == operand.ref]
        _, begin, end = taint.runs(b, np.isin(b.operand, slots) & np.isin(b.mode, modes))
        touched = taint.with_runs(touched, begin, end)
    return np.flatnonzero(touched)


def check(call: Call, kernels: list[Kernel]) -> None:
    """Raise AssertionError if the kernels write too little, or touch bytes outside of an operand."""
    for operand in call.tensors:
        whole = _bytes(operand)
        uses = touch_counts(kernels, operand, (READ, WRITE, ATOMIC))
        assert np.isin(uses, whole).all(), f"{call.op} touches bytes outside {operand}"
    updates = call.op.split(".")[0].endswith(
        ("_put_", "scatter_", "scatter_add_", "index_add_", "index_copy_", "index_fill_")
    )
    for operand in call.outputs:
        written = touch_counts(kernels, operand, (WRITE, ATOMIC))
        if kernels and not updates:
            assert np.array_equal(written, _bytes(operand)), f"{call.op} does not write all of {operand}"
    for kernel in kernels:
        blocks = int(np.prod(kernel.grid))
        # Tiles of measured launches may be clusters, or fewer if all have the same accesses.
        as_seen = kernel.shape_source in {ShapeSource.TABLE, ShapeSource.NEIGHBOUR} or (
            kernel.shape_source == ShapeSource.LEARNED and "convolution" in call.op
        )
        assert kernel.footprint.tiles <= blocks if as_seen else kernel.footprint.tiles == blocks, call.op
        assert kernel.footprint.boxes.tile.max(initial=0) < max(kernel.footprint.tiles, 1), call.op


def _bytes(operand: Operand) -> np.ndarray:
    at = np.zeros(1, np.int64)
    for size, stride in zip(operand.shape, operand.strides, strict=True):
        at = (at[:, None] + np.arange(size) * stride).ravel()
    return np.unique((np.unique(at)[:, None] * operand.itemsize + np.arange(operand.itemsize)).ravel())
