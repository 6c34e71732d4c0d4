"""Kernels that read through a map of indices along an axis: upsampling, reflecting and replicating pads.

Source: PyTorch's UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu, UpSample.cuh; ReflectionPad.cu and
ReplicationPadding.cu from memory. Images with channels last (four channels or more) have a thread per element. In
others, a thread takes a place of the image, for all images and channels (linear, cubic) or for four of them (nearest in
two dimensions), or for all images (nearest in one or three dimensions, and gradients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.convolutions.pool import split
from tileprof.record.model.tiles.elementwise.pointwise import contiguous, elementwise, short
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
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
    scratch,
)  # fmt: skip

_NEAREST_THREADS, _THREADS, _PAD_THREADS = 512, 1024, 256
_PLANES_PER_THREAD = 4
"""Images and channels of a thread that upsamples two dimensions by the nearest neighbour."""
_FEWEST_CHANNELS_LAST = 4
"""Images of fewer channels are not treated as channels last."""
_PLANE_NS, _PLANE_NS_OF_BLOCK, _CUBIC_PLANE_NS = 170.0, 55.0, 560.0
"""What a plane costs a thread that takes one place of all planes, by linear interpolation; what a full block of such
threads adds; and the same by cubic. From seven launches of 42 to 2,048 planes in programs on an H200 (2026-11-28),
which it gives within 9%, and one of cubic interpolation.
"""
_COPY, _OUT = 0, 1
"""Scratch slots of a dense copy of the input, and of the output before it is copied to where it belongs."""


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


def _source(size: int, outputs: int, scale: float | None, *, align_corners: bool) -> NDArray[np.float32]:
    """``area_pixel_compute_source_index`` before it is cut off at the border: where each output lies in the input."""
    at = np.arange(outputs, dtype=np.float32)
    if align_corners:
        return at * np.float32((size - 1) / (outputs - 1) if outputs > 1 else 0)
    ratio = np.float32(1 / scale if scale else size / outputs)
    return ratio * (at + np.float32(0.5)) - np.float32(0.5)


def linear_map(size: int, outputs: int, scale: float | None, *, align_corners: bool) -> Map:
    """The element below and the neighbour above it, where there is one."""
    source = np.maximum(_source(size, outputs, scale, align_corners=align_corners), np.float32(0))
    low = np.minimum(source.astype(np.int64), size - 1)
    return Map(low, np.minimum(low + 2, size))


def cubic_map(size: int, outputs: int, scale: float | None, *, align_corners: bool) -> Map:
    """The neighbour below, the element, and two above it; outside the image the border stands for them."""
    low = np.floor(_source(size, outputs, scale, align_corners=align_corners)).astype(np.int64)
    return Map(np.clip(low - 1, 0, size - 1), np.clip(low + 2, 0, size - 1) + 1)


@models(*(f"aten::{kind}{d}d" for kind in _NEAREST for d in (1, 2, 3)))
def nearest(call: Call, _device: Device) -> list[Kernel]:
    """One input element per output element; an image that keeps its size is copied."""
    source, out = call["self"], call.outputs[0]
    if len(out.shape) == 4 and source.shape == out.shape:
        return elementwise("copy_", [source], [out], flops_each=0)
    maps, name = _nearest_maps(call, source, out), short(call.op)
    if _channels_last(source, out):
        return _mapping_kernels(name, source, READ, out, WRITE, maps, _each(out, _THREADS))
    if len(out.shape) != 4:
        return _mapping_kernels(name, source, READ, out, WRITE, maps, _images(out, _NEAREST_THREADS))
    kernels, source = contiguous(source, _COPY)
    dense = out if is_contiguous(out) else replace(scratch(_OUT, *out.shape, itemsize=out.itemsize), dtype=out.dtype)
    planes = [part(o, *_as_planes(o)) for o in (source, dense)]
    kernels += _mapping_kernels(name, planes[0], READ, planes[1], WRITE, maps, _some_planes(planes[1]))
    return kernels + ([] if dense is out else elementwise("copy_", [dense], [out], flops_each=0))


@models(*(f"aten::{kind}{d}d_backward" for kind in _NEAREST for d in (1, 2, 3)))
def nearest_backward(call: Call, _device: Device) -> list[Kernel]:
    """One input element per thread, adding up the outputs that it became."""
    gradient, out = call["grad_output"], call.outputs[0]
    maps = [
        Map(np.searchsorted(m.low, np.arange(n)), np.searchsorted(m.low, np.arange(n), side="right"))
        for m, n in zip(_nearest_maps(call, out, gradient), out.shape[2:], strict=True)
    ]
    walk = _each(out, _THREADS) if _channels_last(gradient, out) else _images(out, _NEAREST_THREADS)
    return _mapping_kernels(short(call.op), gradient, READ, out, WRITE, maps, walk)


@models("aten::upsample_bilinear2d", "aten::upsample_linear1d", "aten::upsample_trilinear3d")
def bilinear(call: Call, _device: Device) -> list[Kernel]:
    """Two input elements per axis, weighted; an image that keeps its size is copied."""
    source, out = call["self"], call.outputs[0]
    if len(out.shape) == 4 and source.shape == out.shape:
        return elementwise("copy_", [source], [out], flops_each=0)
    maps = _linear_maps(call, source, out)
    if _channels_last(source, out):
        return _mapping_kernels(short(call.op), source, READ, out, WRITE, maps, _each(out, _THREADS))
    kernels = _mapping_kernels(short(call.op), source, READ, out, WRITE, maps, _places(out, _THREADS))
    plane_ns = _PLANE_NS + _PLANE_NS_OF_BLOCK * min(1.0, int(np.prod(out.shape[2:])) / _THREADS)
    return [replace(kernel, chain_ns=plane_ns * out.shape[0] * out.shape[1]) for kernel in kernels]


@models("aten::upsample_bilinear2d_backward", "aten::upsample_linear1d_backward", "aten::upsample_trilinear3d_backward")
def bilinear_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then a thread adds an output element's gradient to the inputs it came from, atomically."""
    gradient, out = call["grad_output"], call.outputs[0]
    zeros = elementwise("zero_", [], [out], flops_each=0)
    walk = _each(gradient, _THREADS) if len(out.shape) == 4 else _places(gradient, _THREADS)
    return zeros + _mapping_kernels(
        short(call.op), out, ATOMIC, gradient, READ, _linear_maps(call, out, gradient), walk
    )


@models("aten::upsample_bicubic2d")
def bicubic(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then four input elements per axis, weighted."""
    source, out = call["self"], call.outputs[0]
    zeros = elementwise("zero_", [], [out], flops_each=0)
    maps = _cubic_maps(call, source, out)
    kernels = _mapping_kernels(short(call.op), source, READ, out, WRITE, maps, _places(out, _THREADS))
    return zeros + [replace(kernel, chain_ns=_CUBIC_PLANE_NS * out.shape[0] * out.shape[1]) for kernel in kernels]


@models("aten::upsample_bicubic2d_backward")
def bicubic_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then a thread adds an output element's gradient to the inputs it came from, atomically."""
    gradient, out = call["grad_output"], call.outputs[0]
    zeros = elementwise("zero_", [], [out], flops_each=0)
    maps = _cubic_maps(call, out, gradient)
    return zeros + _mapping_kernels(short(call.op), out, ATOMIC, gradient, READ, maps, _places(gradient, _THREADS))


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


@dataclass(frozen=True, slots=True)
class Walk:
    """Which rectangles ``start <= index < stop`` of a tensor the tiles of a grid take; ``threads`` per block."""

    grid: tuple[int, ...]
    threads: tuple[int, int, int]
    tile: I64
    start: I64
    stop: I64


def _each(out: Operand, threads: int) -> Walk:
    """One element per thread, as they lie in memory."""
    order = memory_order([out])
    tile, lo, hi = ranges(out.numel, threads)
    which, start, stop = regions.linear([out.shape[d] for d in order], lo, hi)
    back = np.argsort(order)
    return Walk((blocks(out.numel, threads),), (threads, 1, 1), tile[which], start[:, back], stop[:, back])


def _places(out: Operand, threads: int, first: int = 2) -> Walk:
    """One place of the dimensions from ``first`` on per thread, for all indices of those before."""
    shape = out.shape[first:]
    total = int(np.prod(shape, dtype=np.int64))
    tile, lo, hi = ranges(total, threads)
    which, start, stop = regions.linear(shape, lo, hi)
    before = np.broadcast_to(np.array(out.shape[:first]), (len(which), first))
    start, stop = np.concatenate([0 * before, start], axis=1), np.concatenate([before, stop], axis=1)
    return Walk((blocks(total, threads),), (threads, 1, 1), tile[which], start, stop)


def _images(out: Operand, threads: int) -> Walk:
    """One element of an image per thread, for all images."""
    return _places(out, threads, first=1)


def _some_planes(out: Operand) -> Walk:
    """One place per thread of up to four of the planes ``[images and channels, height, width]``, in a grid of three
    dimensions.
    """
    planes, height, width = out.shape
    x = min(_power_of_two(width), _NEAREST_THREADS)
    y = min(_power_of_two(height), _NEAREST_THREADS // x)
    z = min(planes, _NEAREST_THREADS // x // y, 64)
    grid = blocks(width, x), blocks(height, y), min(blocks(planes, z * _PLANES_PER_THREAD), 65535)
    at = grid_blocks(grid).astype(np.int64)
    turns = blocks(planes, z * grid[2])
    tile = np.repeat(np.arange(len(at)), turns)
    plane = at[tile, 2] * z + np.tile(np.arange(turns), len(at)) * z * grid[2]
    start = np.stack([plane, at[tile, 1] * y, at[tile, 0] * x], axis=1)
    stop = np.minimum(start + np.array([z, y, x]), out.shape)
    touches = (start < stop).all(axis=1)
    return Walk(grid, (x, y, z), tile[touches], start[touches], stop[touches])


def _power_of_two(size: int) -> int:
    return 1 << (size.bit_length() - 1)


def _as_planes(operand: Operand) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides of dense images with images and channels as one dimension."""
    images, channels, height, width = operand.shape
    return (images * channels, height, width), (height * width, width, 1)


def _channels_last(source: Operand, out: Operand) -> bool:
    """Return whether images lie with their channels innermost, and have enough of them."""
    if len(out.shape) != 4 or out.shape[1] < _FEWEST_CHANNELS_LAST:
        return False
    return all(is_contiguous(regions.permute(o, (0, 2, 3, 1))) and not is_contiguous(o) for o in (source, out))


def _mapping_kernels(
    name: str, source: Operand, source_mode: int, out: Operand, out_mode: int, maps: Sequence[Map], walk: Walk
) -> list[Kernel]:
    """Tiles walk ``out``; ``source`` has the same leading dimensions and is touched through ``maps``."""
    if out.numel == 0 or source.numel == 0:
        return []
    sketch = Sketch(*walk.grid)
    which, start, stop = np.arange(len(walk.tile)), walk.start, walk.stop
    first = len(out.shape) - len(maps)
    for d, each in enumerate(maps, first):
        if each.gaps:
            which, start, stop = split(which, start, stop, d)
    low, high = start.copy(), stop.copy()
    for d, each in enumerate(maps, first):
        low[:, d], high[:, d] = each.low[start[:, d]], each.high[stop[:, d] - 1]
    sketch.region(source, source_mode, walk.tile[which], low, high)
    sketch.region(out, out_mode, walk.tile, walk.start, walk.stop)
    flops = out.numel * 2 ** len(maps)
    return [sketch.kernel(name, threads=walk.threads, flops=flops, rate=rate_of(source))]


def _nearest_maps(call: Call, source: Operand, out: Operand) -> list[Map]:
    exact = "exact" in call.op
    return [nearest_map(*sizes, exact=exact) for sizes in _axes(call, source, out)]


def _linear_maps(call: Call, source: Operand, out: Operand) -> list[Map]:
    return [linear_map(*sizes, align_corners=call["align_corners"]) for sizes in _axes(call, source, out)]


def _cubic_maps(call: Call, source: Operand, out: Operand) -> list[Map]:
    return [cubic_map(*sizes, align_corners=call["align_corners"]) for sizes in _axes(call, source, out)]


def _axes(call: Call, source: Operand, out: Operand) -> list[tuple[int, int, float | None]]:
    count = len(out.shape) - 2
    if call.arguments.get("scale_factors"):
        scales: list[float | None] = list(call["scale_factors"])
    else:
        names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[count]
        scales = [call.arguments.get(n) for n in names]
    return list(zip(source.shape[2:], out.shape[2:], scales, strict=True))
