"""Gather and scatter: one element of the index, one element moved.

Source: PyTorch's ScatterGatherKernel.cu; grids as harvested on an H200 (PyTorch 2.11, `tileprof.harvest.operators`):
blocks of 128 threads take 1024 elements of the index in a row. Scatters that add, or reduce in another way, update
atomically. A scatter that overwrites writes in an order that nothing fixes where an index repeats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations.index_values import recorded_values, without_values, wrapped
from tileprof.record.model.tiles.foundations.sketch import ATOMIC, READ, WRITE, Sketch, Span, blocks, part, ranges
from tileprof.record.model.tiles.indexing.index import GATHER_CHUNK, along, of_whole_vectors, whole_rows


@models("aten::gather", data_dependent=True)
def gather(call: Call, _device: Device) -> list[Kernel]:
    """``out[i][j] = self[index[i][j]][j]``: 1024 elements per block, or a row where the index is one number per row."""
    source, index, out = call["self"], call["index"], call.outputs[0]
    if index.numel == 0:
        return []
    if (rows := _rows(call, source, index, out)) is not None:
        return rows
    sketch, tile, span = _over(index)
    sketch.span(index, READ, tile, span)
    uncertainty = _cells(call, sketch, source, index, span, READ)
    sketch.span(out, WRITE, tile, span)
    return [sketch.kernel("gather", threads=128, **uncertainty)]


def _rows(call: Call, source: Operand, index: Operand, out: Operand) -> list[Kernel] | None:
    """Return the launch that takes whole rows, if the index is expanded from one number a row
    (``fast_gather_kernel_eligible``).
    """
    if len(index.shape) < 2 or call["dim"] % len(index.shape) or index.shape[1:] != source.shape[1:]:
        return None
    if any(size > 1 and stride for size, stride in zip(index.shape[1:], index.strides[1:], strict=True)):
        return None
    target = along(call, source, 0, index)
    numbers = part(index, index.shape[:1], index.strides[:1])
    if target.offset is not None:
        target = replace(target, offset=target.offset.reshape(index.shape[0], -1)[:, 0])
    return whole_rows("gather", target, numbers, out) if of_whole_vectors(source, out, target) else None


@models(
    "aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",
    "aten::scatter_reduce_", data_dependent=True,
)  # fmt: skip
def scatter(call: Call, _device: Device) -> list[Kernel]:
    """``self[index[i][j]][j] = src[i][j]``, after a copy of self unless in place."""
    index, out = call["index"], call.outputs[0]
    name = short(call.op)
    kernels = [] if name.endswith("_") else elementwise("clone", [call["self"]], [out], flops_each=0)
    if index.numel == 0:
        return kernels
    if call.arguments.get("include_self") is False:  # what is there must not count: it is filled over first
        fill, tile, span = _over(index)
        fill.span(index, READ, tile, span)
        uncertainty = _cells(call, fill, out, index, span, WRITE)
        kernels.append(fill.kernel(f"{name}<fill>", threads=128, **uncertainty))
    sketch, tile, span = _over(index)
    sketch.span(index, READ, tile, span)
    source = call.arguments.get("src")
    if isinstance(source, Operand):
        # The source may be larger than the index; its first elements are taken along every dimension.
        sketch.span(part(source, index.shape, source.strides), READ, tile, span)
    adds = name.rstrip("_") != "scatter" or call.arguments.get("reduce") is not None
    uncertainty = _cells(call, sketch, out, index, span, ATOMIC if adds else WRITE)
    return [*kernels, sketch.kernel(name, threads=128, flops=index.numel if adds else 0, **uncertainty)]


def _over(index: Operand) -> tuple[Sketch, I64, Span]:
    sketch = Sketch(blocks(index.numel, GATHER_CHUNK))
    tile, lo, hi = ranges(index.numel, GATHER_CHUNK)
    return sketch, tile, Span(tuple(range(len(index.shape))), lo, hi)


def _cells(call: Call, sketch: Sketch, operand: Operand, index: Operand, span: Span, mode: int) -> dict[str, Any]:
    """Return the indexed side: element by element, neighbours joined.

    ``span`` holds the index elements of each tile.
    """
    values = recorded_values(call, index)
    if values is None:
        sketch.whole(operand, mode)
        return without_values("every tile takes the whole indexed operand")
    if not operand.shape:
        sketch.whole(operand, mode)
        return {}
    dim = call["dim"] % len(operand.shape)
    at = wrapped(values.reshape(index.shape or (1,)), operand.shape[dim]) * operand.strides[dim]
    for d, size in enumerate(index.shape):
        if d != dim:
            along = [1] * len(index.shape)
            along[d] = size
            at = at + np.arange(size).reshape(along) * operand.strides[d]
    sketch.elements(operand, mode, np.repeat(np.arange(sketch.tiles), span.hi - span.lo), at.ravel())
    return {}
