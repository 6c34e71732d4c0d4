"""The gradient of an embedding table: rows of the output's gradient added to rows of the table.

Source: PyTorch's Embedding.cu and EmbeddingBackwardKernel.cu; launches and grids as harvested on an H200 (PyTorch 2.11,
`tileprof.harvest.operators`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import contiguous, elementwise
from tileprof.record.model.tiles.foundations.index_values import recorded_values, without_values
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    part,
    ranges,
    scratch,
)
from tileprof.record.model.tiles.indexing.radix_sort import sort_indices, sorted_keys, sorted_places

_PART_ROWS = 10
_UNIQUE_CHUNK, _SCAN_CHUNK = 4480, 896
"""Numbers of a block of CUB's ``UniqueByKey`` and ``ExclusiveSum``: the largest that give the harvested grids."""
_FUSED_BLOCKS = 16
"""Blocks per SM up to which adding up the parts is taken to leave the GPU idle."""


@models("aten::embedding_dense_backward", data_dependent=True)
def embedding_backward(call: Call, device: Device) -> list[Kernel]:
    """Zeros, then rows of the gradient added to the rows of the table.

    Up to 3072 indices: a block owns 32 columns of the table and goes through all indices. More: the indices are sorted,
    and rows of equal indices are added up ten at a time.
    """
    gradient, indices, out = call["grad_output"], call["indices"], call.outputs[0]
    zeros = elementwise("zero_", [], [out], flops_each=0)
    count, width = indices.numel, out.shape[1]
    if count == 0 or out.numel == 0:
        return zeros
    values = recorded_values(call, indices)
    rows = None if values is None else values.ravel()
    copies, gradient = contiguous(gradient)
    flat = part(gradient, (*indices.shape, width), gradient.strides)
    if count <= 3072:
        return [*copies, *zeros, _by_columns(flat, indices, out, rows, call["padding_idx"])]
    sort = sort_indices(indices, device, values=rows)
    return [*copies, *sort, *zeros, *_by_segments(flat, indices, out, rows, call["padding_idx"], device)]


def _by_columns(gradient: Operand, indices: Operand, out: Operand, rows: Any, padding: int) -> Kernel:
    width = out.shape[1]
    sketch = Sketch(blocks(width, 32))
    tile, lo, hi = ranges(width, 32)
    sketch.whole(indices, READ)
    last = len(gradient.shape) - 1
    selected = None if rows is None else np.flatnonzero(rows != padding)
    out_rows = np.arange(out.shape[0]) if selected is None else np.unique(rows[selected])
    which = np.arange(indices.numel) if selected is None else selected
    _product(sketch, gradient, READ, tile, (tuple(range(last)), which), (last, lo, hi))
    for mode in (READ, WRITE):
        _product(sketch, out, mode, tile, ((0,), out_rows), (1, lo, hi))
    uncertainty = {} if selected is not None else without_values("every tile updates all rows of its columns")
    flops = indices.numel * width
    return sketch.kernel("embedding_backward<columns>", threads=(32, 32, 1), flops=flops, **uncertainty)


def _by_segments(
    gradient: Operand, indices: Operand, out: Operand, rows: Any, padding: int, device: Device
) -> list[Kernel]:
    """Rows of equal indices are a segment, cut into parts of ten: their counts and places, then the sums of the parts.

    Few segments: parts are added to the table atomically, from the same launch; else another one adds them up.
    """
    count, width = indices.numel, out.shape[1]
    most_segments = min(count, out.shape[0])
    most_parts = min(count // _PART_ROWS + most_segments, count)
    wide = blocks(width, 32) * 32
    threads = min(wide, 1024)
    few = blocks(most_segments * wide, threads)
    fused = few < device.sms * _FUSED_BLOCKS and most_parts > 4 * few
    keys = sorted_keys(count)
    begins, parts, offsets = (scratch(slot, most_segments, itemsize=8) for slot in (50, 51, 52))
    numbers = scratch(53, 2, itemsize=8)
    part_begins, part_segment = (scratch(slot, most_parts, itemsize=8) for slot in (54, 55))
    states = scratch(56, blocks(count, _UNIQUE_CHUNK) + 32, itemsize=8)
    segments, scan = blocks(most_segments, 32), blocks(most_segments, _SCAN_CHUNK)
    kernels = [
        _all("compact_init", 1, 128, [], [states]),
        _range_kernel("unique_by_key", blocks(count, _UNIQUE_CHUNK), 640, count, [keys], [states], [begins, numbers]),
        _range_kernel("partials_per_segment", segments, 32, most_segments, [begins], [numbers], [], [parts]),
        _all("scan_init", 1, 128, [], [scratch(57, scan + 32, itemsize=8)]),
        _range_kernel("scan", scan, 128, most_segments, [parts], [], [], [offsets]),
        _all("count_of_partials", 1, 1, [parts, offsets, numbers], [numbers]),
        _range_kernel(
            "partial_offsets", segments, 32, most_segments, [begins, parts, offsets], [numbers], [part_begins]
        ),
    ]
    if fused:
        kernels.append(
            _range_kernel("partial_segments", segments, 32, most_segments, [parts, offsets], [numbers], [part_segment])
        )
    sums = scratch(58, most_parts, width)
    sketch = Sketch(blocks(most_parts * wide, threads))
    vectors = [part_begins, keys, sorted_places(count), *([part_segment, begins] if fused else [])]
    for vector in (*vectors, numbers):
        sketch.whole(vector, READ)
    target, mode = (out, ATOMIC) if fused else (sums, WRITE)
    uncertainty: dict[str, Any] = {}
    if rows is None:
        sketch.whole(gradient, READ)
        sketch.whole(target, mode)
        uncertainty = without_values("every tile takes all rows")
    else:
        _parts(sketch, gradient, target, mode, rows, padding, (threads, wide))
    kernels.append(sketch.kernel("embedding_backward<parts>", threads=threads, flops=count * width, **uncertainty))
    if not fused:
        kernels.append(_added_up(out, sums, rows, padding, (few, threads, wide), [keys, begins, offsets, numbers]))
    return kernels


def _parts(
    sketch: Sketch,
    gradient: Operand,
    target: Operand,
    mode: int,
    rows: Any,
    padding: int,
    sizes: tuple[int, int],
) -> None:
    """Draw how each part's rows of the gradient are read and added up, into their row of the table (atomically) or
    their own row of the sums. ``sizes``: threads of a block, and columns with those that a warp fills up.
    """
    (threads, wide), count, width, last = sizes, len(rows), target.shape[1], len(gradient.shape) - 1
    order = np.argsort(rows, kind="stable")
    row = rows[order]
    new_segment = np.diff(row, prepend=row[0] - 1) != 0
    segment = np.cumsum(new_segment) - 1
    within = (np.arange(count) - np.flatnonzero(new_segment)[segment]) // _PART_ROWS
    part_of = np.cumsum((np.diff(segment, prepend=-1) != 0) | (np.diff(within, prepend=0) != 0)) - 1
    if mode == ATOMIC:
        is_used = row != padding
        at = row[is_used]
    else:
        is_used = np.diff(part_of, prepend=-1) != 0
        at = part_of[is_used]
    strips = max(wide // threads, 1)
    tile = part_of // max(threads // wide, 1) * strips
    for strip in range(strips):
        low = np.full(count, strip * threads)
        high = np.minimum(low + threads, width) if wide > threads else np.full(count, width)
        sketch.span(gradient, READ, tile + strip, Span(tuple(range(last)), order, order + 1), Span((last,), low, high))
        across = Span((1,), low[is_used], high[is_used])
        sketch.span(target, mode, (tile + strip)[is_used], Span((0,), at, at + 1), across)


def _added_up(
    out: Operand, sums: Operand, rows: Any, padding: int, grid: tuple[int, int, int], vectors: Sequence[Operand]
) -> Kernel:
    """A thread adds the parts of a segment for one column."""
    tiles, threads, wide = grid
    sketch = Sketch(tiles)
    for vector in (*vectors, sums):
        sketch.whole(vector, READ)
    if rows is None:
        sketch.whole(out, WRITE)
        return sketch.kernel(
            "embedding_backward<sums>", threads=threads, **without_values("every tile writes the table")
        )
    present = np.unique(rows)
    segment = np.flatnonzero(present != padding)
    at, width = present[segment], out.shape[1]
    for strip in range(max(wide // threads, 1)):
        low = np.full(len(at), strip * threads)
        high = np.minimum(low + threads, width) if wide > threads else np.full(len(at), width)
        tile = segment // max(threads // wide, 1) * max(wide // threads, 1) + strip
        sketch.span(out, WRITE, tile, Span((0,), at, at + 1), Span((1,), low, high))
    return sketch.kernel("embedding_backward<sums>", threads=threads, flops=sums.numel)


def _all(name: str, tiles: int, threads: int, reads: Sequence[Operand], writes: Sequence[Operand]) -> Kernel:
    """Every block takes everything."""
    sketch = Sketch(tiles)
    for operand, mode in [(r, READ) for r in reads] + [(w, WRITE) for w in writes]:
        sketch.whole(operand, mode)
    return sketch.kernel(name, threads=threads)


def _range_kernel(
    name: str,
    tiles: int,
    threads: int,
    total: int,
    reads: Sequence[Operand],
    whole: Sequence[Operand],
    anywhere: Sequence[Operand],
    writes: Sequence[Operand] = (),
) -> Kernel:
    """Blocks take equal ranges of ``total`` numbers of ``reads`` and ``writes``; ``whole`` is read by all, ``anywhere``
    written by any, where no other block writes.
    """
    sketch = Sketch(tiles)
    tile, lo, hi = ranges(total, -(-total // tiles), tiles)
    for operand, mode in [(r, READ) for r in reads] + [(w, WRITE) for w in writes]:
        sketch.span(operand, mode, tile, Span((0,), lo, hi))
    for operand, mode in [(w, READ) for w in whole] + [(a, ATOMIC) for a in anywhere]:
        sketch.whole(operand, mode)
    return sketch.kernel(name, threads=threads, flops=total)


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
