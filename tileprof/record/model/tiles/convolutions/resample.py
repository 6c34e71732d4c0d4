"""Kernels that read through a map of indices along an axis: upsampling, reflecting and replicating pads.

Source: PyTorch's UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSample.cuh, ReflectionPad.cu, ReplicationPadding.cu
(from memory, not checked against a version).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.convolutions.pool import split
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    is_contiguous,
    memory_order,
    ranges,
    rate_of,
)  # fmt: skip

_NEAREST_THREADS, _LINEAR_THREADS, _PAD_THREADS = 256, 1024, 256
_CHANNELS: Final = 16
"""Channels from which on a bilinear image with channels last has a kernel of its own."""


_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")


@dataclass(frozen=True, slots=True)
class Map:
    """Along one axis, output ``o`` reads inputs ``low[o] <= i < high[o]``; both never fall, and so do their ranges."""

    low: I64
    high: I64

    @property
    def gaps(self) -> bool:
        """Neighbouring outputs leave inputs out."""
        return bool((self.low[1:] > self.high[:-1]).any())


def nearest_map(size: int, outputs: int, scale: float | None, *, exact: bool = False) -> Map:
    """``nearest_neighbor_compute_source_index`` (``exact``: from pixel centres), in float32 as the kernel computes
    it.
    """
    ratio = np.float32(1 / scale if scale else size / outputs)
    at = np.arange(outputs, dtype=np.float32) + np.float32(0.5 if exact else 0)
    low = np.minimum(np.floor(at * ratio).astype(np.int64), size - 1)
    return Map(low, low + 1)


def linear_map(size: int, outputs: int, scale: float | None, *, align_corners: bool) -> Map:
    """``area_pixel_compute_source_index`` and the neighbour above it, where there is one."""
    at = np.arange(outputs, dtype=np.float32)
    if align_corners:
        source = at * np.float32((size - 1) / (outputs - 1) if outputs > 1 else 0)
    else:
        ratio = np.float32(1 / scale if scale else size / outputs)
        source = np.maximum(ratio * (at + np.float32(0.5)) - np.float32(0.5), np.float32(0))
    low = np.minimum(source.astype(np.int64), size - 1)
    return Map(low, np.minimum(low + 2, size))


@models(*(f"aten::{kind}{d}d" for kind in _NEAREST for d in (1, 2, 3)))
def nearest(call: Call, _device: Device) -> list[Kernel]:
    """One input element per output element; an image that keeps its size is copied."""
    source, out = call["self"], call.outputs[0]
    if len(out.shape) == 4 and source.shape == out.shape:
        return elementwise("copy_", [source], [out], flops_each=0)
    return _mapping_kernels(
        short(call.op), source, READ, out, WRITE, _nearest_maps(call, source, out), _NEAREST_THREADS
    )


@models(*(f"aten::{kind}{d}d_backward" for kind in _NEAREST for d in (1, 2, 3)))
def nearest_backward(call: Call, _device: Device) -> list[Kernel]:
    """One input element per thread, adding up the outputs that it became."""
    gradient, out = call["grad_output"], call.outputs[0]
    maps = [
        Map(np.searchsorted(m.low, np.arange(n)), np.searchsorted(m.low, np.arange(n), side="right"))
        for m, n in zip(_nearest_maps(call, out, gradient), out.shape[2:], strict=True)
    ]
    return _mapping_kernels(short(call.op), gradient, READ, out, WRITE, maps, _NEAREST_THREADS)


@models("aten::upsample_bilinear2d", "aten::upsample_linear1d", "aten::upsample_trilinear3d")
def bilinear(call: Call, _device: Device) -> list[Kernel]:
    """Two input elements per axis, weighted; an image that keeps its size is copied."""
    source, out = call["self"], call.outputs[0]
    if len(out.shape) == 4 and source.shape == out.shape:
        return elementwise("copy_", [source], [out], flops_each=0)
    maps = _linear_maps(call, source, out)
    planes = is_contiguous(out) or out.shape[1] < _CHANNELS
    return _mapping_kernels(short(call.op), source, READ, out, WRITE, maps, _LINEAR_THREADS, planes=planes)


@models("aten::upsample_bilinear2d_backward", "aten::upsample_linear1d_backward", "aten::upsample_trilinear3d_backward")
def bilinear_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then a thread an output element adds its gradient to the inputs it came from, atomically."""
    gradient, out = call["grad_output"], call.outputs[0]
    zeros = elementwise("zero_", [], [out], flops_each=0)
    maps = _linear_maps(call, out, gradient)
    return zeros + _mapping_kernels(short(call.op), out, ATOMIC, gradient, READ, maps, _LINEAR_THREADS)


@models(
    "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d", "aten::replication_pad1d",
    "aten::replication_pad2d", "aten::replication_pad3d",
)  # fmt: skip
def mirror_pad(call: Call, _device: Device) -> list[Kernel]:
    """One output element per thread; the border reads the inside again."""
    source, out = call["self"], call.outputs[0]
    return _border_kernels(call, source, READ, out, WRITE)


@models(
    "aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::reflection_pad3d_backward",
    "aten::replication_pad1d_backward", "aten::replication_pad2d_backward", "aten::replication_pad3d_backward",
)  # fmt: skip
def mirror_pad_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then every output element's gradient is added where the element came from, atomically."""
    out = call.outputs[0]
    return elementwise("zero_", [], [out], flops_each=0) + _border_kernels(call, out, ATOMIC, call["grad_output"], READ)


def _border_kernels(call: Call, inside: Operand, inside_mode: int, padded: Operand, padded_mode: int) -> list[Kernel]:
    if padded.numel == 0:
        return []
    pad, axes = list(call["padding"]), []
    count = len(pad) // 2
    first = len(padded.shape) - count
    for d, size in enumerate(inside.shape):
        before = pad[2 * (len(padded.shape) - 1 - d)] if d >= first else 0
        at = np.arange(padded.shape[d]) - before
        if short(call.op).startswith("reflection"):
            at = np.abs(at)
            at = np.where(at >= size, 2 * (size - 1) - at, at)
        axes.append(np.clip(at, 0, size - 1) * inside.strides[d])
    source = sum(a.reshape((-1,) + (1,) * (len(axes) - 1 - d)) for d, a in enumerate(axes))
    sketch = Sketch(blocks(padded.numel, _PAD_THREADS))
    tile, lo, hi = ranges(padded.numel, _PAD_THREADS)
    sketch.elements(inside, inside_mode, np.repeat(tile, hi - lo), np.asarray(source).ravel())
    sketch.span(padded, padded_mode, tile, Span(tuple(range(len(padded.shape))), lo, hi))
    return [sketch.kernel(short(call.op), threads=_PAD_THREADS)]


def _mapping_kernels(
    name: str, source: Operand, source_mode: int, out: Operand, out_mode: int, maps: Sequence[Map], threads: int,
    *, planes: bool = False,
) -> list[Kernel]:  # fmt: skip
    """One element of ``out`` per thread, or the same element of all ``planes``; ``source`` has the same leading
    dimensions and is touched through ``maps``.
    """
    if out.numel == 0 or source.numel == 0:
        return []
    first = len(out.shape) - len(maps)
    order = tuple(range(first, len(out.shape))) if planes else memory_order([out])
    total = int(np.prod([out.shape[d] for d in order], dtype=np.int64))
    sketch = Sketch(blocks(total, threads))
    tile, lo, hi = ranges(total, threads)
    which, ordered_start, ordered_stop = regions.linear([out.shape[d] for d in order], lo, hi)
    start = np.zeros((len(which), len(out.shape)), np.int64)
    stop = np.tile(np.array(out.shape, np.int64), (len(which), 1))
    start[:, order], stop[:, order] = ordered_start, ordered_stop
    for d, each in enumerate(maps, first):
        if each.gaps:
            which, start, stop = split(which, start, stop, d)
    low, high = start.copy(), stop.copy()
    for d, each in enumerate(maps, first):
        low[:, d], high[:, d] = each.low[start[:, d]], each.high[stop[:, d] - 1]
    sketch.region(source, source_mode, tile[which], low, high)
    sketch.span(out, out_mode, tile, Span(order, lo, hi))
    flops = out.numel * 2 ** len(maps)
    return [sketch.kernel(name, threads=threads, flops=flops, rate=rate_of(source))]


def _nearest_maps(call: Call, source: Operand, out: Operand) -> list[Map]:
    exact = "exact" in call.op
    return [nearest_map(*sizes, exact=exact) for sizes in _axes(call, source, out)]


def _linear_maps(call: Call, source: Operand, out: Operand) -> list[Map]:
    return [linear_map(*sizes, align_corners=call["align_corners"]) for sizes in _axes(call, source, out)]


def _axes(call: Call, source: Operand, out: Operand) -> list[tuple[int, int, float | None]]:
    count = len(out.shape) - 2
    if call.arguments.get("scale_factors"):
        scales: list[float | None] = list(call["scale_factors"])
    else:
        names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[count]
        scales = [call.arguments.get(n) for n in names]
    return list(zip(source.shape[2:], out.shape[2:], scales, strict=True))
