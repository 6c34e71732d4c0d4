"""Soundness by experiment: change one number of an input, run the operator again, and see which outputs change.

Every element that changes must be written by a tile that read the changed number, or read what such a tile wrote. A
tile model that forgets a read is caught without a statement of what the operator needs. A changed index or mask moves
other elements: then tiles of either run, before or after the change, may account for the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tileprof.record.model.tile_model import Call, Kernel, Scratch
from tileprof.trace.footprint import ATOMIC, READ, WRITE

Bytes = dict[Any, np.ndarray]


def reached(kernels: list[Kernel], start: Bytes) -> Bytes:
    """Return all bytes, by operand ref or scratch, that depend on the bytes of ``start`` according to the tiles."""
    tainted = {key: with_runs(np.zeros(0, bool), at, at + 1) for key, at in start.items()}
    for kernel in kernels:
        b = kernel.footprint.boxes
        keys = [("scratch", o.slot) if isinstance(o, Scratch) else o.ref for o in kernel.operands]
        hit = np.zeros(kernel.footprint.tiles, bool)
        for slot, key in enumerate(keys):
            if key in tainted:
                row, begin, end = runs(b, (b.operand == slot) & np.isin(b.mode, (READ, ATOMIC)))
                before = np.concatenate([[0], np.cumsum(tainted[key])])  # number of tainted bytes before each byte
                last = len(tainted[key])
                hit[b.tile[row[before[np.minimum(end, last)] > before[np.minimum(begin, last)]]]] = True
        for slot, key in enumerate(keys):
            _, begin, end = runs(b, (b.operand == slot) & np.isin(b.mode, (WRITE, ATOMIC)) & hit[b.tile])
            if len(begin):
                tainted[key] = with_runs(tainted.get(key, np.zeros(0, bool)), begin, end)
    return {key: np.flatnonzero(mask) for key, mask in tainted.items()}


def check(
    func: Any,
    args: Any,
    kwargs: Any,
    call: Call,
    kernels: list[Kernel],
    random: Any,
    model: Callable[[Call], list[Kernel]] | None = None,
) -> int:
    """Change a random number of every input; returns how many were tried.

    ``model`` makes the kernels of a call; without it only floating-point numbers are changed, since other values may
    decide which bytes are touched. Raises AssertionError where an output changed that no tile could have changed.
    """
    if torch.Tag.nondeterministic_seeded in func.tags or not kernels:
        return 0
    inputs = call.tensors[: len(call.tensors) - len(call.outputs)]
    originals = [call.value(o) for o in inputs]
    attempts = 0
    # Copies may have another layout and round differently, so two runs on copies are compared.
    plain = _run(func, args, kwargs, originals)
    for ref, (tensor, operand) in enumerate(zip(originals, inputs, strict=True)):
        if tensor is None or not tensor.numel() or _overlaps(tensor):
            continue
        floats = tensor.is_floating_point()
        if not floats and model is None:
            continue
        where = tuple(int(random.integers(n)) for n in tensor.shape)
        clones = [t.clone() for t in originals]
        clones[ref][where] = _another(tensor, where, random)
        try:
            again = _run(func, args, kwargs, clones)
        except (RuntimeError, IndexError, ValueError):  # not every value is an index
            continue
        byte = sum(i * s for i, s in zip(where, operand.strides, strict=True)) * operand.itemsize
        start = {ref: byte + np.arange(operand.itemsize)}
        if ref == 0 and func._schema.is_mutable and call.outputs:  # in place: the first argument is the output's memory
            start[call.outputs[0].ref] = start[ref]
        tainted = [reached(kernels, start)]
        shape_changes = [
            (old.shape, new.shape) for old, new in zip(plain, again, strict=True) if old.shape != new.shape
        ]
        if not floats and model is not None and not shape_changes:
            tainted.append(reached(model(replace(call, value=lambda o, v=clones: v[o.ref])), start))
        attempts += 1
        for out, before, after in zip(call.outputs, plain, again, strict=True):
            if before.shape[1:] != after.shape[1:]:
                continue
            # A compaction may have another number of results; what both runs have is compared.
            rows = min(len(before), len(after)) if before.shape else None
            old, new = (t if rows is None else t[:rows] for t in (before, after))
            differs = (old != new) & ~((old != old) & (new != new))  # noqa: PLR0124 (NaN in both is not a change)
            if not differs.any():
                continue
            index = differs.nonzero().numpy()
            at = index @ np.array(out.strides, np.int64) * out.itemsize if len(out.shape) else np.zeros(1, np.int64)
            reachable = np.concatenate([t.get(out.ref, np.empty(0, np.int64)) for t in tainted])
            assert np.isin(at, reachable).all(), (
                f"{call.op}: output changed by {where} of argument {ref}, which no tile read"
            )
    return attempts


def _another(tensor: torch.Tensor, where: tuple[int, ...], random: Any) -> Any:
    """Return NaN, or for types without it another value of the tensor, which is likely to be valid."""
    if tensor.is_floating_point() or tensor.is_complex():
        return float("nan")
    if tensor.dtype is torch.bool:
        return not tensor[where]
    others = tensor[tensor != tensor[where]]
    return others[int(random.integers(len(others)))] if len(others) else tensor[where]


def _run(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that the call returns for copies of ``tensors`` in the arguments."""
    copies = [t.clone() for t in tensors]
    result = func(*_replace(args, iter(copies)), **_replace(kwargs, iter(copies[_count(args) :])))
    return [t for t in (result if isinstance(result, list | tuple) else [result]) if isinstance(t, torch.Tensor)]


def runs(b: Any, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the runs of adjacent bytes of the boxes ``which``: number of the box, first byte, byte after the last."""
    rows = np.flatnonzero(which)
    each = (b.count_0[rows] * b.count_1[rows]).astype(np.int64)
    row = np.repeat(rows, each)
    outer, inner = np.divmod(np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each), b.count_0[row])
    begin = b.offset[row] + outer * b.stride_1[row] + inner * b.stride_0[row]
    assert begin.min(initial=0) >= 0, "a byte before the operand"
    return row, begin, begin + b.length[row]


def with_runs(mask: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return ``mask``, a mask of bytes, also true for the runs, and longer if they end after it."""
    edges = np.zeros(max(len(mask), end.max(initial=0)) + 1, np.int64)
    np.add.at(edges, begin, 1)
    np.add.at(edges, end, -1)
    union = np.cumsum(edges)[:-1] > 0
    union[: len(mask)] |= mask
    return union


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))


def _count(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return 1
    return sum(_count(v) for v in value) if isinstance(value, list | tuple) else 0


def _replace(value: Any, values: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return next(values)
    if isinstance(value, list | tuple):
        return type(value)([_replace(v, values) for v in value])
    if isinstance(value, dict):
        return {k: _replace(v, values) for k, v in value.items()}
    return value
