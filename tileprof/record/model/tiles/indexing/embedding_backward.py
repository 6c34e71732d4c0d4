"""The gradient of an embedding table: rows of the output's gradient added to rows of the table.

Source: PyTorch's Embedding.cu and EmbeddingBackwardKernel.cu (from memory, not checked against a version), simplified
for many indices: ATen adds up sorted segments in three passes, here a block adds ten sorted indices and updates their
rows atomically.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise
from tileprof.record.model.tiles.foundations.index_values import recorded_values, without_values
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Part,
    Sketch,
    Span,
    blocks,
    part,
    ranges,
    scratch,
)


@models("aten::embedding_dense_backward", data_dependent=True)
def embedding_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then rows of the gradient added to the rows of the table.

    Up to 3072 indices: a block owns 32 columns of the table and goes through all indices. More: the indices are sorted,
    and a block adds ten of them in a row, 128 columns wide; a row that two blocks share is updated atomically.
    """
    gradient, indices, out = call["grad_output"], call["indices"], call.outputs[0]
    kernels = elementwise("zero_", [], [out], flops_each=0)
    count, width = indices.numel, out.shape[1]
    if count == 0 or out.numel == 0:
        return kernels
    values = recorded_values(call, indices)
    rows = None if values is None else values.ravel()
    flat = part(gradient, (*indices.shape, width), gradient.strides)
    if count <= 3072:
        return [*kernels, _by_columns(flat, indices, out, rows, call["padding_idx"])]
    kernels += sort_keys([indices], count)
    return [*kernels, _by_sorted_rows(flat, indices, out, rows, call["padding_idx"])]


def _by_columns(gradient: Operand, indices: Operand, out: Operand, rows: Any, padding: int) -> Kernel:
    width = out.shape[1]
    sketch = Sketch(blocks(width, 32))
    tile, lo, hi = ranges(width, 32)
    sketch.whole(indices, READ)
    last = len(gradient.shape) - 1
    selected = None if rows is None else np.flatnonzero(rows != padding)
    touched = np.arange(out.shape[0]) if selected is None else np.unique(rows[selected])
    which = np.arange(indices.numel) if selected is None else selected
    _product(sketch, gradient, READ, tile, (tuple(range(last)), which), (last, lo, hi))
    for mode in (READ, WRITE):
        _product(sketch, out, mode, tile, ((0,), touched), (1, lo, hi))
    confession = {} if selected is not None else without_values("every tile updates all rows of its columns")
    flops = indices.numel * width
    return sketch.kernel("embedding_backward<columns>", threads=(32, 32, 1), flops=flops, **confession)


def _by_sorted_rows(gradient: Operand, indices: Operand, out: Operand, rows: Any, padding: int) -> Kernel:
    count, width = indices.numel, out.shape[1]
    strips = blocks(width, 128)
    sketch = Sketch(blocks(count, 10), strips)
    order = np.arange(count) if rows is None else np.argsort(rows, kind="stable")
    place = np.arange(count)
    selected = order >= 0 if rows is None else rows[order] != padding
    place, order = place[selected], order[selected]
    tile = (place[:, None] // 10 + np.arange(strips) * sketch.grid[0]).ravel()
    strip = np.tile(np.arange(strips), len(place))
    low, high = strip * 128, np.minimum(strip * 128 + 128, width)
    keys = sorted_keys(count)
    key_places = np.repeat(place, strips)
    sketch.span(keys, READ, tile, Span((0,), key_places, key_places + 1))
    last = len(gradient.shape) - 1
    source = np.repeat(order, strips)
    sketch.span(gradient, READ, tile, Span(tuple(range(last)), source, source + 1), Span((last,), low, high))
    if rows is None:
        every = np.arange(sketch.tiles)
        sketch.whole(out, ATOMIC, every)
        confession = without_values("every tile updates the whole table, and gradient rows are not in sorted order")
    else:
        row = rows[source]
        sketch.span(out, ATOMIC, tile, Span((0,), row, row + 1), Span((1,), low, high))
        confession = {}
    return sketch.kernel("embedding_backward<sorted>", threads=128, flops=count * width, **confession)


def sorted_keys(count: int) -> Part:
    """Return the workspace that holds sorted indices."""
    return scratch(20, count, itemsize=8)


def sort_keys(keys: Sequence[Operand], count: int) -> list[Kernel]:
    """Sorting indices before rows are added: each block writes a part of the order, which depends on all keys.

    Stands for the passes of a radix sort.
    """
    sketch = Sketch(blocks(count, 4096))
    tile, lo, hi = ranges(count, 4096)
    for operand in keys:
        sketch.whole(operand, READ)
    sketch.span(sorted_keys(count), WRITE, tile, Span((0,), lo, hi))
    return [sketch.kernel("sort_indices", threads=256, note="stands for the passes of a radix sort")]


def _product(
    sketch: Sketch,
    operand: Operand,
    mode: int,
    tile: I64,
    rows: tuple[tuple[int, ...], I64],
    columns: tuple[int, I64, I64],
) -> None:
    """Every tile touches its range of columns in each of ``rows``, consecutive rows at once."""
    dims, row_numbers = rows
    dim, lo, hi = columns
    if not len(row_numbers):
        return
    begins = np.flatnonzero(np.diff(row_numbers, prepend=row_numbers[0] - 2) != 1)
    first, last = row_numbers[begins], row_numbers[np.append(begins[1:], len(row_numbers)) - 1] + 1
    n = len(first)
    sketch.span(
        operand, mode, np.repeat(tile, n),
        Span(dims, np.tile(first, len(tile)), np.tile(last, len(tile))),
        Span((dim,), np.repeat(lo, n), np.repeat(hi, n)),
    )  # fmt: skip
