"""The kernels of a convolution as implicit matrix product, and of a depthwise one.

::

    results    m = pixels (image, p, q, ...) in row-major order of positions     grid (x, y, z) = (pixel tiles,
               n = output channels of a group                                    channel tiles, splits * groups)
    main loop  k = (input channels, taps), channels outermost, as CUTLASS iterates; chunks are ranges of channels

A tile reads exactly the source pixels that some tap of some of its results touches (`windows`), the weights of its
output channels with all taps, and its bias in the epilogue, as stages of policies compute it (PyTorch adds it by a
launch of its own around cuDNN's kernels). Layout transforms that a library may put around
the kernel, and Winograd or FFT algorithms, are not modelled.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.record.model.tile_model import Kernel, Operand, Scratch
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import binding
from tileprof.record.model.tiles.products import gemm_tile_rule
from tileprof.record.model.tiles.products.main_loop import Loop, chunks_for, flops, main_loop, raster
from tileprof.record.model.tiles.products.split_k import (
    memory_order,
    one_slice,
    partial_sums,
    reduce_kernel,
    row_of_blocks,
    workspace,
)
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tiles.convolutions.windows import Axis

DIRECT_THREADS = 256
"""A block of a depthwise kernel: one result per thread."""
SHARED_CHANNELS = 8
"""Channels of a block of cuDNN's depthwise kernels for channels first that share their inputs (the grids say so)."""
SQUARES_THREADS = 256
"""A block of cuDNN's depthwise kernels for channels last: 2 x 2 results a thread (recorded; the grids say so, too)."""


@dataclass(frozen=True, slots=True)
class Window:
    """``out[n, k, p...] = sum over c, taps of source[n, c, h...] * weight[...]``, in ``groups`` of channels.

    ``transposed`` (also the gradient of a convolution's input): results lie at h and sources at p, and the weight is
    ``[source channels, result channels of a group, taps...]`` instead of ``[result channels, source channels of a
    group, taps...]``.
    """

    out: Operand
    source: Operand
    weight: Operand
    axes: tuple[Axis, ...]
    groups: int = 1
    bias: Operand | None = None
    transposed: bool = False

    @property
    def channels(self) -> tuple[int, int]:
        """Result and source channels of a group."""
        return self.out.shape[1] // self.groups, self.source.shape[1] // self.groups

    @property
    def pixels(self) -> tuple[int, ...]:
        return (self.out.shape[0], *self.out.shape[2:])

    @property
    def taps(self) -> int:
        return int(np.prod(self.weight.shape[2:]))

    @property
    def multiply_adds(self) -> int:
        results = self.source if self.transposed else self.out
        per_result = self.channels[0] if self.transposed else self.channels[1]
        return results.numel * per_result * self.taps


def kernels(window: Window, device: Device, name: str) -> list[Kernel]:
    """Model one kernel, or two with split-k; none without results."""
    if window.out.numel == 0:
        return []
    per_group = window.channels
    if window.groups > 1 and per_group[0 if window.transposed else 1] == 1:
        return [direct_kernel(window, device, f"depthwise_{name}")]
    rate = gemm_tile_rule.rate_of(window.source.dtype, device, tf32=True)
    sizes = (int(np.prod(window.pixels)), per_group[0], per_group[1] * window.taps)
    tile = gemm_tile_rule.choose(
        "conv",
        sizes,
        window.groups,
        itemsize=window.source.itemsize,
        out_itemsize=window.out.itemsize,
        rate=rate,
        device=device,
    )
    tile = replace(tile, split=max(1, min(tile.split, -(-per_group[1] // tile.k))))
    split = f"_splitk{tile.split}" if tile.split > 1 else ""
    name = f"implicit_gemm_{name}_{rate}_{tile.m}x{tile.n}x{tile.k}_{tile.stages}{split}"
    main = main_kernel(window, tile, name, rate, partial=tile.split > 1)
    if tile.split == 1:
        return [main]
    return [main, reduce_kernel(window.out, tile.split, (bias_of(window),) if window.bias else ())]


def main_kernel(
    window: Window,
    tile: gemm_tile_rule.Tile,
    name: str,
    rate: str,
    *,
    partial: bool,
    per_image: bool = False,
    by_residue: bool = False,
) -> Kernel:
    """Model the product in tiles of pixels by channels; ``partial``: its slices go to a workspace, else all slices
    write the results.

    ``per_image``: every image has tiles of its own, as in a batch of products. ``by_residue``: tiles have pixels with
    the same remainders of their positions by the strides, which have the same taps (CUTLASS's strided gradient).
    """
    results, sources = window.channels
    pixels = _by_residue(window, tile.m) if by_residue else _in_line(window, tile.m, per_image=per_image)
    grid = (pixels.tiles, -(-results // tile.n), tile.split * window.groups)
    block = raster(*grid)
    # A loop over channels that takes `taps` iterations per step has the timing of the loop over k.
    loop = main_loop(
        sources, tile, window.source.itemsize * window.taps, window.out.itemsize, chunks=chunks_for(4 * len(block))
    )
    parts = [
        _source_reads(window, pixels, loop, block),
        _weight_reads(window, tile, loop, block),
    ]
    slots: list[Operand | Scratch] = [binding(window.source), binding(window.weight)]
    if not partial:
        parts.append(_results(window, one_slice(window.out), 2, WRITE, tile, pixels, block, loop.epilogue))
        slots.append(binding(window.out))
        if window.bias is not None:
            bias = one_slice(bias_of(window))
            parts.append(_results(window, bias, 3, READ, tile, pixels, block, loop.epilogue))
            slots.append(window.bias)
    else:
        sums = partial_sums(window.out, tile.split)
        parts.append(_results(window, sums, 2, WRITE, tile, pixels, block, loop.epilogue))
        slots.append(workspace(sums))
    return Kernel(
        name, Footprint(block, Boxes.concat(parts)), tuple(slots), grid, (tile.threads, 1, 1),
        registers=tile.registers, shared_bytes=tile.shared_bytes,
        flops=flops(window.source.dtype, window.multiply_adds), rate=rate,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pixels:
    """Tiles of pixels, in rectangles ``[image, positions...]`` of results: ``tile`` ``[rectangles]`` ascends, ``start``
    and ``stop`` are ``[rectangles, dims]``, and every ``step``-th position counts.
    """

    tiles: int
    tile: I64
    start: I64
    stop: I64
    step: tuple[int, ...]


def _in_line(window: Window, rows: int, *, per_image: bool) -> _Pixels:
    """Return runs of this many pixels in row-major order."""
    total = int(np.prod(window.pixels))
    step = (1,) * len(window.pixels)
    if not per_image:
        lo = np.arange(-(-total // rows)) * np.int64(rows)
        return _Pixels(len(lo), *regions.linear(window.pixels, lo, np.minimum(lo + rows, total)), step)
    each = total // window.pixels[0]
    within = np.arange(-(-each // rows)) * np.int64(rows)
    image = np.arange(window.pixels[0])[:, None] * np.int64(each)
    lo, hi = (image + within).ravel(), (image + np.minimum(within + rows, each)).ravel()
    return _Pixels(len(lo), *regions.linear(window.pixels, lo, hi), step)


def _by_residue(window: Window, rows: int) -> _Pixels:
    """Return runs of this many pixels of a residue, the residues one after another."""
    strides = tuple(axis.stride for axis in window.axes)
    tiles, parts = 0, []
    for residue, shape in residues(window.pixels, strides):
        total = int(np.prod(shape))
        lo = np.arange(-(-total // rows)) * np.int64(rows)
        tile, start, stop = regions.linear(shape, lo, np.minimum(lo + rows, total))
        start[:, 1:] = start[:, 1:] * strides + residue
        stop[:, 1:] = (stop[:, 1:] - 1) * strides + residue + 1
        parts.append((tile + tiles, start, stop))
        tiles += len(lo)
    tile, start, stop = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Pixels(tiles, tile, start, stop, (1, *strides))


def residues(pixels: Sequence[int], strides: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the remainders of positions by strides, and images and positions that have them; none without any."""
    images, *sizes = pixels
    combinations = itertools.product(*(range(min(s, n)) for s, n in zip(strides, sizes, strict=True)))
    return [(r, (images, *(-(-(n - a) // s) for a, n, s in zip(r, sizes, strides, strict=True)))) for r in combinations]


def _source_reads(window: Window, pixels: _Pixels, loop: Loop, block: NDArray[np.int32]) -> Boxes:
    """Return the halo of each tile of pixels, computed once for all channel tiles."""
    splits, chunks = loop.start.shape
    sources = window.channels[1]
    z, chunk, row = (i.ravel() for i in np.indices((splits * window.groups, chunks, len(pixels.tile))))
    order = np.argsort(z * pixels.tiles + pixels.tile[row], kind="stable")
    z, chunk, row = z[order], chunk[order], row[order]
    s, group = z // window.groups, z % window.groups
    channels = (group * sources + loop.start[s, chunk], group * sources + loop.stop[s, chunk])
    key = z * pixels.tiles + pixels.tile[row]
    unique = _gather(
        window.source, 0, key, window.axes, pixels.start[row], pixels.stop[row], channels,
        first=loop.first[s, chunk], last=loop.last[s, chunk],
    )  # fmt: skip
    return regions.repeat(unique, block[:, 2].astype(np.int64) * pixels.tiles + block[:, 0], np.arange(len(block)))


def _gather(
    source: Operand, slot: int, tile: NDArray[np.int64], axes: Sequence[Axis], start: NDArray[np.int64],
    stop: NDArray[np.int64],
    channels: tuple[NDArray[np.int64], NDArray[np.int64]], *, first: NDArray[np.float64], last: NDArray[np.float64],
) -> Boxes:  # fmt: skip
    """Return what rectangles ``[image, positions...]`` of results need of ``channels`` of the source; rows sorted by
    tile.
    """
    pieces = [axis.sources(start[:, 1 + i], stop[:, 1 + i]) for i, axis in enumerate(axes)]
    parts = []
    for combination in itertools.product(*pieces):
        low = np.column_stack([start[:, 0], channels[0], *(p[0] for p in combination)])
        high = np.column_stack([stop[:, 0], channels[1], *(p[1] for p in combination)])
        step = (1, 1, *(p[2] for p in combination))
        parts.append(regions.boxes(source, slot, READ, tile, low, high, step=step, first=first, last=last))
    return parts[0] if len(parts) == 1 else regions.by_tile(Boxes.concat(parts))


def _weight_reads(window: Window, tile: gemm_tile_rule.Tile, loop: Loop, block: NDArray[np.int32]) -> Boxes:
    results, sources = window.channels
    channel_tiles = -(-results // tile.n)
    splits, chunks = loop.start.shape
    z, at, chunk = (i.ravel() for i in np.indices((splits * window.groups, channel_tiles, chunks)))
    s, group = z // window.groups, z % window.groups
    own = at * tile.n, np.minimum(at * tile.n + tile.n, results)
    depth = loop.start[s, chunk], loop.stop[s, chunk]
    outer, inner, base = (depth, own, group * sources) if window.transposed else (own, depth, group * results)
    taps = np.broadcast_to(window.weight.shape[2:], (len(z), len(window.axes)))
    start = np.column_stack([base + outer[0], inner[0], 0 * taps])
    stop = np.column_stack([base + outer[1], inner[1], taps])
    unique = regions.boxes(
        window.weight,
        1,
        READ,
        z * channel_tiles + at,
        start,
        stop,
        first=loop.first[s, chunk],
        last=loop.last[s, chunk],
    )
    return regions.repeat(unique, block[:, 2].astype(np.int64) * channel_tiles + block[:, 1], np.arange(len(block)))


def _results(
    window: Window,
    operand: Operand,
    slot: int,
    mode: int,
    tile: gemm_tile_rule.Tile,
    pixels: _Pixels,
    block: NDArray[np.int32],
    first: float,
) -> Boxes:
    """Return each tile's own pixels and channels of an operand ``[slices, images, channels, ...]``."""
    results = window.channels[0]
    at = np.searchsorted(pixels.tile, np.arange(pixels.tiles + 1))
    row, place = ragged(np.diff(at)[block[:, 0]])
    rectangle = at[block[row, 0]] + place
    start, stop = pixels.start[rectangle], pixels.stop[rectangle]
    split, group = np.divmod(block[row, 2], window.groups)
    split = np.minimum(split, operand.shape[0] - 1)
    channel = group * results + block[row, 1] * tile.n
    end = np.minimum(channel + tile.n, (group + 1) * results)
    begin = np.column_stack([split, start[:, 0], channel, start[:, 1:]])
    end = np.column_stack([split + 1, stop[:, 0], end, stop[:, 1:]])
    step = (1, 1, 1, *pixels.step[1:])
    return regions.boxes(operand, slot, mode, row, begin, end, step=step, first=first, last=1.0)


def direct_kernel(window: Window, device: Device, name: str, *, run: int = DIRECT_THREADS) -> Kernel:
    """Depthwise: ``run`` results per block, in memory order of the output; groups of one source (or, transposed,
    result) channel.
    """
    dims = memory_order(window.out)
    out = regions.permute(window.out, dims)
    lo = np.arange(0, out.numel, run)
    row, begin, end = regions.linear(out.shape, lo, np.minimum(lo + run, out.numel))
    back = np.argsort(dims)
    return _direct(window, device, name, (row, begin[:, back], end[:, back]), len(lo))


def squares_kernel(window: Window, device: Device, name: str, *, by_image: bool) -> Kernel:
    """Depthwise, channels innermost: 256 threads, each with a square of 2 x 2 results of a channel; channels first,
    then squares along a row of them. ``by_image``: blocks begin again with each image.
    """
    images, channels, height, width = window.out.shape
    shape = (images, -(-height // 2), -(-width // 2), channels)
    each = int(np.prod(shape[1:])) if by_image else int(np.prod(shape))
    within = np.arange(0, each, SQUARES_THREADS)
    first = np.arange(images if by_image else 1)[:, None] * each
    lo, hi = (first + within).ravel(), (first + np.minimum(within + SQUARES_THREADS, each)).ravel()
    row, begin, end = regions.linear(shape, lo, hi)
    start = np.column_stack([begin[:, 0], begin[:, 3], 2 * begin[:, 1], 2 * begin[:, 2]])
    stop = np.column_stack([
        end[:, 0], end[:, 3], np.minimum(2 * end[:, 1], height), np.minimum(2 * end[:, 2], width)
    ])  # fmt: skip
    kernel = _direct(window, device, name, (row, start, stop), len(lo))
    return replace(kernel, block=(SQUARES_THREADS, 1, 1))


def shared_tiles_kernel(window: Window, device: Device, name: str, rows: int, columns: int) -> Kernel:
    """Depthwise, channels first: a block computes so many rows and columns of results of eight channels of an image.
    Blocks run across an image, down it, then through channels and images.
    """
    images, channels, height, width = window.out.shape
    down, across, groups = -(-height // rows), -(-width // columns), -(-channels // SHARED_CHANNELS)
    image, group, y, x = np.indices((images, groups, down, across)).reshape(4, -1)
    start = np.column_stack([image, group * SHARED_CHANNELS, y * rows, x * columns])
    stop = np.minimum(start + np.array([1, SHARED_CHANNELS, rows, columns]), window.out.shape)
    return _direct(window, device, name, (np.arange(len(image)), start, stop), len(image))


def _direct(window: Window, device: Device, name: str, rectangles: tuple[I64, I64, I64], blocks: int) -> Kernel:
    """Model blocks that compute ``rectangles`` of results: the block of each, its first results and those behind it."""
    row, start, stop = rectangles
    results, sources = window.channels
    group = start[:, 1] // results, (stop[:, 1] - 1) // results + 1
    pixels = np.delete(start, 1, axis=1), np.delete(stop, 1, axis=1)
    channels = group[0] * sources, group[1] * sources
    life = np.zeros(len(row)), np.ones(len(row))
    taps = np.broadcast_to(window.weight.shape[2:], (len(row), len(window.axes)))
    outer = channels if window.transposed else (start[:, 1], stop[:, 1])
    inner = np.full(len(row), window.weight.shape[1])
    parts = [
        _gather(window.source, 0, row, window.axes, *pixels, channels, first=life[0], last=life[1]),
        regions.boxes(
            window.weight, 1, READ, row, np.column_stack([outer[0], 0 * inner, 0 * taps]),
            np.column_stack([outer[1], inner, taps]), first=0, last=1,
        ),
        regions.boxes(window.out, 2, WRITE, row, start, stop, first=1, last=1),
    ]  # fmt: skip
    slots: list[Operand | Scratch] = [binding(window.source), binding(window.weight), binding(window.out)]
    if window.bias is not None:
        parts.append(regions.boxes(window.bias, 3, READ, row, start[:, 1:2], stop[:, 1:2], first=0, last=1))
        slots.append(window.bias)
    rate = gemm_tile_rule.rate_of(window.source.dtype, device)
    return Kernel(
        name, Footprint(row_of_blocks(blocks), Boxes.concat(parts)), tuple(slots), (blocks, 1, 1),
        (DIRECT_THREADS, 1, 1),
        flops=flops(window.source.dtype, window.multiply_adds), rate="fp64" if rate == "fp64" else "fp32",
    )  # fmt: skip


def bias_of(window: Window) -> Operand:
    """Return the bias as an operand of the output's shape."""
    assert window.bias is not None
    ones = (1,) * len(window.axes)
    return regions.expand(
        replace(window.bias, shape=(1, *window.bias.shape, *ones), strides=(0, *window.bias.strides, *ones)),
        window.out.shape,
    )
