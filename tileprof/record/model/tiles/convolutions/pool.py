"""Pooling and other windowed kernels: max, average and adaptive pooling, im2col.

Source: PyTorch's DilatedMaxPool2d.cu, AveragePool2d.cu, AdaptiveAveragePooling.cu, im2col.cuh (from memory, not checked
against a version). A thread computes one element of the result; blocks follow the result as it lies in memory (ATen's
NHWC max pooling tiles channels and rows by shared memory instead; its blocks are not modelled).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    grid_blocks,
    is_contiguous,
    memory_order,
    part,
    ranges,
    rate_of,
    select,
)  # fmt: skip
from tileprof.record.model.tiles.reductions.reduce import reduction

_MAX_THREADS, _AVERAGE_THREADS, _COLUMN_THREADS = 256, 1024, 1024
_ROWS, _FEW_BLOCKS = 8, 16
"""Rows of outputs of a block of adaptive averages; blocks that an image of few channels has at least."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A pooled dimension: output ``o`` sees inputs ``o * stride - padding + tap * dilation`` within ``size``."""

    size: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def gaps(self) -> bool:
        """Windows of neighbouring outputs leave inputs out between them or inside."""
        return self.dilation > 1 or self.stride > self.kernel

    def window(self, start: I64, stop: I64) -> tuple[I64, I64]:
        """Return inputs of outputs ``[start, stop)`` as a range, in steps of the dilation where there is one output."""
        low = start * self.stride - self.padding
        high = (stop - 1) * self.stride - self.padding + (self.kernel - 1) * self.dilation + 1
        return np.where(low < 0, low % self.dilation, low), np.minimum(high, self.size)

    def seen_by(self, start: I64, stop: I64) -> tuple[I64, I64]:
        """Return outputs whose windows span inputs ``[start, stop)``, as the backward kernels scan them."""
        reach = (self.kernel - 1) * self.dilation + 1
        low = np.where(start + self.padding < reach, 0, (start + self.padding - reach) // self.stride + 1)
        return low, np.minimum((stop - 1 + self.padding) // self.stride + 1, self.outputs)


@models("aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices")
def max_pool(call: Call, _device: Device) -> list[Kernel]:
    """The largest value of each window and its place."""
    axes = _axes(call, call["self"], call.outputs[0])
    return windowed(short(call.op), [call["self"]], list(call.outputs), axes, _MAX_THREADS)


@models("aten::avg_pool2d", "aten::avg_pool3d", "aten::avg_pool1d")
def average_pool(call: Call, _device: Device) -> list[Kernel]:
    """The mean of each window."""
    axes = _axes(call, call["self"], call.outputs[0])
    return windowed(short(call.op), [call["self"]], list(call.outputs), axes, _AVERAGE_THREADS)


@models(
    "aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward", "aten::avg_pool2d_backward",
    "aten::avg_pool3d_backward",
)  # fmt: skip
def pool_backward(call: Call, _device: Device) -> list[Kernel]:
    """One thread per input element: it goes through the windows that hold it, and their recorded places. The gradient
    of a maximum is cleared first, by a launch of its own (recorded).
    """
    gradient, out = call["grad_output"], call.outputs[0]
    axes = _axes(call, out, gradient)
    reads = [o for o in (gradient, call.arguments.get("indices")) if o is not None]
    name = short(call.op)
    if name == "max_pool2d_with_indices_backward" and out.numel:
        planes = [_planes_by_threads(name, reads, out, axes)] if is_contiguous(out) else []
        filled = elementwise("fill_", [], [out], flops_each=0)
        return filled + (planes or _element_per_thread(name, reads, out, axes, _MAX_THREADS))
    threads = _AVERAGE_THREADS if name.startswith("avg") else _MAX_THREADS
    return _element_per_thread(name, reads, out, axes, threads)


@models(
    "aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", "aten::adaptive_max_pool2d",
    "aten::adaptive_max_pool3d",
    "aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward", "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
)  # fmt: skip
def adaptive_pool(call: Call, device: Device) -> list[Kernel]:
    """Blocks of one plane (image and channel) each, forward and backward; a mean where a plane has one output.

    The average of images with few channels takes several blocks per plane, eight rows of outputs each.
    """
    name = short(call.op)
    reads = [o for n in ("grad_output", "indices") if isinstance(o := call.arguments.get(n), Operand)]
    reads = reads or [call["self"]]
    writes = list(call.outputs)
    if writes[0].numel == 0 or reads[0].numel == 0:
        return []
    pooled = 3 if "3d" in name else 2
    rank = len(writes[0].shape)
    if "avg" in name and "backward" not in name and writes[0].shape[-pooled:] == (1,) * pooled:
        result = regions.permute(writes[0], range(rank - pooled))
        return reduction("mean", reads[0], [result], range(rank - pooled, rank), device)
    planes = tuple(range(rank - pooled))
    count = int(np.prod([writes[0].shape[d] for d in planes], dtype=np.int64))
    if name == "_adaptive_avg_pool2d":
        return [_rows_of_planes(reads[0], writes[0], count)]
    sketch = Sketch(count)
    tile, lo, hi = ranges(sketch.tiles, 1)
    for operand, mode in [(r, READ) for r in reads] + [(w, WRITE) for w in writes]:
        sketch.span(operand, mode, tile, Span(planes, lo, hi))
    flops = max(reads[0].numel, writes[0].numel)
    return [sketch.kernel(f"planes<{name}>", threads=(32, 8, 1), flops=flops, rate=rate_of(*reads))]


def _rows_of_planes(source: Operand, out: Operand, planes: int) -> Kernel:
    """Blocks of 32 columns and 8 rows of outputs; a plane has at least one, and 16 over the number of channels."""
    channels, rows, inputs = out.shape[-3], out.shape[-2], source.shape[-2]
    high = max(_FEW_BLOCKS // channels, 1)
    sketch = Sketch(planes, high)
    first = np.arange(0, rows, _ROWS)
    last = np.minimum(first + _ROWS, rows)
    plane = np.repeat(np.arange(planes), len(first))
    tile = plane + planes * np.tile(first // _ROWS % high, planes)
    leading = Span(tuple(range(len(out.shape) - 2)), plane, plane + 1)
    for operand, mode, low, up in (
        (source, READ, first * inputs // rows, -(-last * inputs // rows)),
        (out, WRITE, first, last),
    ):
        within = Span((len(out.shape) - 2,), np.tile(low, planes), np.tile(up, planes))
        sketch.span(operand, mode, tile, leading, within)
    flops = max(source.numel, out.numel)
    return sketch.kernel("planes<_adaptive_avg_pool2d>", threads=(32, _ROWS, 1), flops=flops, rate=rate_of(source))


def windowed(
    name: str, reads: Sequence[Operand], writes: Sequence[Operand], axes: Sequence[Axis], threads: int
) -> list[Kernel]:
    """One output element per thread: ``writes`` (…, pooled dimensions) from the windows of ``reads``."""
    out = writes[0]
    if out.numel == 0:
        return []
    sketch, tile, (which, start, stop) = _walk(out, threads, [a.gaps for a in axes])
    for operand in writes:
        sketch.span(operand, WRITE, *_spans(operand, out, threads))
    low, high, steps = _through(start, stop, axes, lambda axis: axis.window)
    for operand in reads:
        sketch.region(operand, READ, tile[which], low, high, step=steps)
    taps = int(np.prod([a.kernel for a in axes]))
    return [sketch.kernel(name, threads=threads, flops=taps * out.numel, rate=rate_of(*reads))]


def _planes_by_threads(name: str, reads: Sequence[Operand], out: Operand, axes: Sequence[Axis]) -> Kernel:
    """One element of ``out`` per thread; blocks begin again with each image (y of the grid) and channel (z)."""
    *leading, high, wide = out.shape
    images, channels = (1, *leading)[-2:]
    plane = blocks(high * wide, _MAX_THREADS)
    sketch = Sketch(plane, images, channels)
    x, image, channel = grid_blocks(sketch.grid).astype(np.int64).T
    _, first, last = ranges(high * wide, _MAX_THREADS)
    piece, start, stop = regions.linear((high, wide), first, last)
    count = np.bincount(piece, minlength=plane)
    tile, turn = ragged(count[x])
    row = (np.cumsum(count) - count)[x[tile]] + turn
    before = np.column_stack([image, channel][-len(leading) :])[tile]
    low, up = np.column_stack([before, start[row]]), np.column_stack([before + 1, stop[row]])
    sketch.region(out, WRITE, tile, low, up)
    low, up, _ = _through(low, up, axes, lambda axis: axis.seen_by)
    for operand in reads:
        sketch.region(operand, READ, tile, low, np.maximum(low, up))
    return sketch.kernel(name, threads=_MAX_THREADS, flops=out.numel, rate=rate_of(*reads))


def _element_per_thread(
    name: str, reads: Sequence[Operand], out: Operand, axes: Sequence[Axis], threads: int
) -> list[Kernel]:
    """One element of ``out`` per thread, each reading the windows that span it."""
    if out.numel == 0:
        return []
    # Inputs between windows see none: only ranges of single elements tell them from ranges that do.
    sketch, tile, (which, start, stop) = _walk(out, threads, [False for a in axes])
    sketch.span(out, WRITE, *_spans(out, out, threads))
    low, high, _ = _through(start, stop, axes, lambda axis: axis.seen_by)
    for operand in reads:
        sketch.region(operand, READ, tile[which], low, np.maximum(low, high))
    return [sketch.kernel(name, threads=threads, flops=out.numel, rate=rate_of(*reads))]


def _walk(out: Operand, chunk: int, units: Sequence[bool]) -> tuple[Sketch, I64, tuple[I64, I64, I64]]:
    """Return blocks of ``chunk`` elements of ``out`` in memory order, as rectangles; ``units``: one index at a time."""
    order = memory_order([out])
    back = np.argsort(order)
    sketch = Sketch(blocks(out.numel, chunk))
    tile, lo, hi = ranges(out.numel, chunk)
    which, start, stop = regions.linear([out.shape[d] for d in order], lo, hi)
    start, stop = start[:, back], stop[:, back]
    first = len(out.shape) - len(units)
    for d, unit in enumerate(units, first):
        if unit:
            which, start, stop = split(which, start, stop, d)
    return sketch, tile, (which, start, stop)


def split(which: I64, start: I64, stop: I64, dim: int) -> tuple[I64, I64, I64]:
    """Return rectangles cut into single indices along ``dim``."""
    count = stop[:, dim] - start[:, dim]
    again, turn = ragged(count)
    start, stop = start[again], stop[again]
    start[:, dim] += turn
    stop[:, dim] = start[:, dim] + 1
    return which[again], start, stop


def _spans(operand: Operand, out: Operand, chunk: int) -> tuple[I64, Span]:
    tile, lo, hi = ranges(operand.numel, chunk)
    return tile, Span(memory_order([out]), lo, hi)


def _through(
    start: I64,
    stop: I64,
    axes: Sequence[Axis],
    direction: Callable[[Axis], Callable[[I64, I64], tuple[I64, I64]]],
) -> tuple[I64, I64, list[int]]:
    low, high = start.copy(), stop.copy()
    first = start.shape[1] - len(axes)
    for d, axis in enumerate(axes, first):
        low[:, d], high[:, d] = direction(axis)(start[:, d], stop[:, d])
    return low, high, [1] * first + [a.dilation for a in axes]


def _axes(call: Call, whole: Operand, pooled: Operand) -> list[Axis]:
    count = int(short(call.op).split("d_")[0].rstrip("d")[-1])
    kernel = _each(call["kernel_size"], count)
    stride = _each(call["stride"], count) if call["stride"] else kernel
    padding = _each(call["padding"], count)
    dilation = _each(call.arguments.get("dilation", 1), count)
    sizes, outputs = whole.shape[-count:], pooled.shape[-count:]
    return [Axis(*numbers) for numbers in zip(sizes, outputs, kernel, stride, padding, dilation, strict=True)]


def _each(value: int | Sequence[int], count: int) -> list[int]:
    sizes: list[int] = [value] if isinstance(value, int) else list(value)
    return sizes * count if len(sizes) == 1 else sizes


@models("aten::im2col")
def im2col(call: Call, _device: Device) -> list[Kernel]:
    """Windows laid out as columns: one launch per image, one thread per window and channel."""
    source, out = call["self"], call.outputs[0]
    if out.numel == 0:
        return []
    images = (
        [(select(source, 0, n), select(out, 0, n)) for n in range(source.shape[0])]
        if len(source.shape) == 4
        else [(source, out)]
    )
    return [_columns(call, image, columns) for image, columns in images]


def _columns(call: Call, image: Operand, columns: Operand) -> Kernel:
    kernel, stride, padding, dilation = (_each(call[n], 2) for n in ("kernel_size", "stride", "padding", "dilation"))
    sizes = image.shape[1:]
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True)
    ]
    axes = [Axis(*a) for a in zip(sizes, counts, kernel, stride, padding, dilation, strict=True)]
    channels, taps, windows = image.shape[0], kernel[0] * kernel[1], counts[0] * counts[1]
    row, column = columns.strides
    total = channels * windows
    sketch = Sketch(blocks(total, _COLUMN_THREADS))
    tile, lo, hi = ranges(total, _COLUMN_THREADS)
    which, start, stop = regions.linear([channels, *counts], lo, hi)
    for d, axis in enumerate(axes, 1):
        if axis.gaps:
            which, start, stop = split(which, start, stop, d)
    low, high, steps = _through(start, stop, axes, lambda axis: axis.window)
    sketch.region(image, READ, tile[which], low, high, step=steps)
    laid = part(columns, (channels, taps, windows), (row * taps, row, column))
    sketch.span(laid, WRITE, tile, Span((0, 2), lo, hi))
    return sketch.kernel("im2col", threads=_COLUMN_THREADS)
