"""Sampling an image at the places that a grid names, and its gradients: one place of the grid per thread.

Source: PyTorch's GridSampler.cu and GridSampler.cuh. A thread reads, for all channels, the elements around its place.
Places are computed here as the kernel does, with a margin for its rounding, so that what is read is a superset. On
fake tensors, and for more than `_MOST_PLACES`, a thread is taken to read its whole image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise
from tileprof.record.model.tiles.foundations.index_values import recorded_values, without_values
from tileprof.record.model.tiles.foundations.sketch import ATOMIC, READ, WRITE, Sketch, Span, blocks, ranges, rate_of

if TYPE_CHECKING:
    from tileprof.arrays import I64
    from tileprof.devices import Device

_THREADS = {2: 256, 3: 512}
"""Threads per block, by dimensions of the image."""
_MOST_PLACES = 1 << 16
_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)
_MARGIN = 1e-6


@models("aten::grid_sampler_2d", "aten::grid_sampler_3d", data_dependent=True)
def grid_sampler(call: Call, _device: Device) -> list[Kernel]:
    """Read the image around each place, write all channels of the place."""
    image, grid, out = call["input"], call["grid"], call.outputs[0]
    return [_sampling("grid_sampler", call, [(image, READ)], [(out, WRITE)], [(grid, READ)])] if out.numel else []


@models("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward", data_dependent=True)
def grid_sampler_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then each place adds its gradient to the elements around it, atomically, and writes its own."""
    of_image, of_grid = call["output_mask"]
    outputs = list(call.outputs)
    gradients = [(outputs[0], ATOMIC)] if of_image else []
    zeros = elementwise("zero_", [], [outputs[0]], flops_each=0) if of_image else []
    images, grids = [(call["input"], READ), *gradients], [(call["grid"], READ)]
    if of_grid:
        grids.append((outputs[-1], WRITE))
    if not call["grad_output"].numel:
        return zeros
    return [*zeros, _sampling("grid_sampler_backward", call, images, [(call["grad_output"], READ)], grids)]


def _sampling(
    name: str,
    call: Call,
    images: list[tuple[Operand, int]],
    samples: list[tuple[Operand, int]],
    grids: list[tuple[Operand, int]],
) -> Kernel:
    """``images`` are touched around the places, ``samples`` at all channels of a place, ``grids`` at its coordinates;
    each with a mode.
    """
    grid = call["grid"]
    rank = len(grid.shape) - 2
    threads = _THREADS[rank]
    total = grid.numel // grid.shape[-1]
    sketch = Sketch(blocks(total, threads))
    tile, lo, hi = ranges(total, threads)
    places = tuple(range(rank + 1))
    for operand, mode in grids:
        sketch.span(operand, mode, tile, Span(places, lo, hi))
    of_samples = (0, *range(2, rank + 2))
    for operand, mode in samples:
        sketch.span(operand, mode, tile, Span(of_samples, lo, hi))
    values = recorded_values(call, grid) if total <= _MOST_PLACES else None
    image = images[0][0]
    which = np.repeat(np.arange(len(tile)), hi - lo)
    number = np.arange(total) // (total // grid.shape[0])
    unknown: dict[str, Any] = {}
    if values is None:
        unknown = without_values("every tile takes the whole images of its places")
        per_tile = np.unique(np.stack([which, number], axis=1), axis=0)
        which, number = per_tile.T
        axes = [(np.zeros_like(which), np.full_like(which, size)) for size in image.shape[2:]]
    else:
        at = values.reshape(total, rank).astype(np.float64)
        axes = [_around(call, at[:, rank - 1 - d], size) for d, size in enumerate(image.shape[2:])]
    start = np.stack([number, 0 * number, *(low for low, _ in axes)], axis=1)
    stop = np.stack([number + 1, 0 * number + image.shape[1], *(high for _, high in axes)], axis=1)
    inside = (start < stop).all(axis=1)
    for operand, mode in images:
        sketch.region(operand, mode, tile[which[inside]], start[inside], stop[inside])
    flops = 8 * samples[0][0].numel
    return sketch.kernel(name, threads=threads, flops=flops, rate=rate_of(image), **unknown)


def _around(call: Call, at: NDArray[np.float64], size: int) -> tuple[I64, I64]:
    """Return which elements of an axis are read for coordinates from -1 to 1: ``low <= i < high``."""
    mode, padding = call["interpolation_mode"], call["padding_mode"]
    is_known = np.isfinite(at) & ((mode, padding) != (_BICUBIC, _REFLECTION))
    at = np.where(is_known, at, 0.0)
    source = (at + 1) / 2 * (size - 1) if call["align_corners"] else ((at + 1) * size - 1) / 2
    margin = _MARGIN * (np.abs(source) + size)
    if padding == _REFLECTION:
        first, last = (0.0, size - 1.0) if call["align_corners"] else (-0.5, size - 0.5)
        period = 2 * (last - first)
        folded = np.abs(source - first) % period if period else 0 * source
        source = first + np.minimum(folded, period - folded)
    if padding != _ZEROS and mode != _BICUBIC:
        source = np.clip(source, 0, size - 1)
    half = 0.5 if mode == _NEAREST else 0.0
    before, after = {_BILINEAR: (0, 2), _NEAREST: (0, 1), _BICUBIC: (-1, 3)}[mode]
    low = np.floor(np.clip(source - margin + half, -4, size + 4)).astype(np.int64) + before
    high = np.floor(np.clip(source + margin + half, -4, size + 4)).astype(np.int64) + after
    if padding != _ZEROS:  # an element outside is one of the border
        low, high = np.minimum(low, size - 1), np.maximum(high, 1)
    low, high = np.maximum(low, 0), np.minimum(high, size)
    return np.where(is_known, low, 0), np.where(is_known, high, size)
