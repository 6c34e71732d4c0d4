"""The kernels of a convolution's gradients that are reductions over pixels: of its weight and of its bias.

The weight's gradient is a matrix product per group: rows are the weight's first dimension, columns the flattened
rest (channels, taps), and the depth is all pixels of all images. Slices and chunks of the depth are whole images.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.record.model.call import Kernel, Operand, Scratch
from tileprof.record.model.tiles import gemm_tiles, regions
from tileprof.record.model.tiles.main_loop import Loop, chunks_for, flops, main_loop, raster
from tileprof.record.model.tiles.split_k import one_slice, partial_sums, reduce_kernel, row_of_blocks, workspace
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tiles.windows import Axis, Ints

BIAS_THREADS = 512
WARP = 32


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """``weight[i, j, taps...] = sum over images, p of small[n, i, p...] * large[n, group's j, h...]``, h tied to p by `Axis`.

    A convolution's ``small`` is the output's gradient and ``large`` its input; a transposed one's the other way round.
    """

    weight: Operand
    small: Operand
    large: Operand
    axes: tuple[Axis, ...]
    groups: int

    @property
    def rows(self) -> int:
        return self.weight.shape[0] // self.groups

    @property
    def columns(self) -> tuple[int, ...]:
        return self.weight.shape[1:]


def kernels(problem: WeightGradient, device: Device) -> list[Kernel]:
    """One kernel, or two with split-k."""
    if problem.weight.numel == 0:
        return []
    images = problem.small.shape[0]
    pixels = int(np.prod(problem.small.shape[2:]))
    rate = gemm_tiles.rate_of(problem.small.dtype, device, tf32=True)
    sizes = (problem.rows, int(np.prod(problem.columns)), images * pixels)
    tile = gemm_tiles.choose(
        "conv", sizes, problem.groups, itemsize=problem.small.itemsize, out_itemsize=problem.weight.itemsize,
        rate=rate, device=device,
    )  # fmt: skip
    tile = replace(tile, split=max(1, min(tile.split, images)))
    grid = (-(-sizes[0] // tile.m), -(-sizes[1] // tile.n), tile.split * problem.groups)
    block = raster(*grid)
    by_image = replace(tile, k=1)
    loop = main_loop(
        images, by_image, problem.small.itemsize * pixels, problem.weight.itemsize, chunks=chunks_for(4 * len(block))
    )
    target = one_slice(problem.weight) if tile.split == 1 else partial_sums(problem.weight, tile.split)
    parts = [
        _small_reads(problem, tile, loop, block),
        _large_reads(problem, tile, loop, block),
        _writes(problem, target, tile, block, loop.epilogue),
    ]
    main = Kernel(
        f"implicit_gemm_wgrad_{rate}_{tile.m}x{tile.n}x{tile.k}_{tile.stages}" + (f"_splitk{tile.split}" if tile.split > 1 else ""),
        Footprint(block, Boxes.concat(parts)), (problem.small, problem.large, problem.weight if tile.split == 1 else workspace(target)),
        grid, (tile.threads, 1, 1), registers=tile.registers, shared_bytes=tile.shared_bytes,
        flops=flops(problem.small.dtype, problem.weight.numel * images * pixels), rate=rate,
    )  # fmt: skip
    return [main] if tile.split == 1 else [main, reduce_kernel(problem.weight, tile.split)]


def bias_kernel(gradient: Operand, bias: Operand) -> Kernel:
    """Sums of a gradient over images and pixels; a block has a channel, or a warp's width of neighbours in memory."""
    channels = gradient.shape[1]
    width = WARP if gradient.strides[1] == 1 else 1
    lo = np.arange(0, channels, width)
    hi = np.minimum(lo + width, channels)
    tiles = np.arange(len(lo))
    start, stop = np.zeros((len(lo), len(gradient.shape)), np.int64), np.tile(gradient.shape, (len(lo), 1))
    start[:, 1], stop[:, 1] = lo, hi
    parts = [
        regions.boxes(gradient, 0, READ, tiles, start, stop, first=0, last=1),
        regions.boxes(bias, 1, WRITE, tiles, lo[:, None], hi[:, None], first=1, last=1),
    ]
    footprint = Footprint(row_of_blocks(len(lo)), Boxes.concat(parts))
    operands: tuple[Operand | Scratch, ...] = (gradient, bias)
    return Kernel(
        "reduce_bias_gradient", footprint, operands, (len(lo), 1, 1), (BIAS_THREADS, 1, 1), flops=gradient.numel
    )


def _small_reads(problem: WeightGradient, tile: gemm_tiles.Tile, loop: Loop, block: NDArray[np.int32]) -> Boxes:
    """Rows of the product: channels of ``small`` with all their pixels."""
    row_tiles = -(-problem.rows // tile.m)
    splits, chunks = loop.start.shape
    z, at, chunk = (i.ravel() for i in np.indices((splits * problem.groups, row_tiles, chunks)))
    s, base = z // problem.groups, z % problem.groups * problem.rows
    pixels = np.broadcast_to(problem.small.shape[2:], (len(z), len(problem.axes)))
    start = np.column_stack([loop.start[s, chunk], base + at * tile.m, 0 * pixels])
    stop = np.column_stack([loop.stop[s, chunk], base + np.minimum(at * tile.m + tile.m, problem.rows), pixels])
    unique = regions.boxes(
        problem.small, 0, READ, z * row_tiles + at, start, stop, first=loop.first[s, chunk], last=loop.last[s, chunk]
    )
    return regions.repeat(unique, block[:, 2].astype(np.int64) * row_tiles + block[:, 0], np.arange(len(block)))


def _large_reads(problem: WeightGradient, tile: gemm_tiles.Tile, loop: Loop, block: NDArray[np.int32]) -> Boxes:
    """Columns of the product: channels of ``large``, at the positions that the columns' taps touch."""
    total = int(np.prod(problem.columns))
    column_tiles = -(-total // tile.n)
    splits, chunks = loop.start.shape
    lo = np.arange(column_tiles) * tile.n
    part, begin, end = regions.linear(problem.columns, lo, np.minimum(lo + tile.n, total))
    z, chunk, row = (i.ravel() for i in np.indices((splits * problem.groups, chunks, len(part))))
    s, base = z // problem.groups, z % problem.groups * problem.columns[0]
    axes = [
        _tap_ranges(axis, size, begin[:, 1 + i], end[:, 1 + i])
        for i, (axis, size) in enumerate(zip(problem.axes, problem.small.shape[2:], strict=True))
    ]
    parts = []
    for combination in itertools.product(*(list(pieces) for pieces in axes)):
        chosen = np.logical_and.reduce([used for used, _, _, _ in combination])[row]
        image, channel = (loop.start[s, chunk], loop.stop[s, chunk]), (base + begin[row, 0], base + end[row, 0])
        start = np.column_stack([image[0], channel[0], *(np.full(len(row), low) for _, low, _, _ in combination)])
        stop = np.column_stack([image[1], channel[1], *(np.full(len(row), high) for _, _, high, _ in combination)])
        step = (1, 1, *(step for _, _, _, step in combination))
        key = (z * column_tiles + part[row])[chosen]
        life = {"first": loop.first[s, chunk][chosen], "last": loop.last[s, chunk][chosen]}
        parts.append(regions.boxes(problem.large, 1, READ, key, start[chosen], stop[chosen], step=step, **life))
    unique = regions.by_tile(Boxes.concat(parts))
    return regions.repeat(unique, block[:, 2].astype(np.int64) * column_tiles + block[:, 1], np.arange(len(block)))


def _tap_ranges(axis: Axis, size: int, begin: Ints, end: Ints) -> Iterator[tuple[NDArray[np.bool_], int, int, int]]:
    """Which rectangles use a piece of ``large``, and its start, stop and step, for all ``size`` results together.

    Rectangles with all taps share merged pieces, the others take each of their taps.
    """
    everything = (begin == 0) & (end == axis.taps)
    lo, hi = np.int64(0), np.int64(size)
    if everything.any():
        for start, stop, step in axis.sources(np.array([lo]), np.array([hi])):
            yield everything, int(start[0]), int(stop[0]), step
    for tap in range(axis.taps):
        used = ~everything & (begin <= tap) & (tap < end)
        if used.any():
            start, stop, step = axis.tap(np.array([lo]), np.array([hi]), tap)
            yield used, int(start[0]), int(stop[0]), step


def _writes(
    problem: WeightGradient, target: Operand, tile: gemm_tiles.Tile, block: NDArray[np.int32], first: float
) -> Boxes:
    total = int(np.prod(problem.columns))
    lo = block[:, 1] * np.int64(tile.n)
    row, begin, end = regions.linear(problem.columns, lo, np.minimum(lo + tile.n, total))
    split, group = np.divmod(block[row, 2], problem.groups)
    at = group * problem.rows + block[row, 0] * tile.m
    start = np.column_stack([split, at, begin])
    stop = np.column_stack([split + 1, np.minimum(at + tile.m, (group + 1) * problem.rows), end])
    return regions.boxes(target, 2, WRITE, row, start, stop, first=first, last=1.0)
