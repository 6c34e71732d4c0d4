"""The kernels of a convolution's weight gradient.

It is a matrix product per group: rows are the weight's first dimension, columns the flattened
rest (channels, taps), and the depth is all pixels of all images. Slices and chunks of the depth are runs of lines: of
an image and a position along the first spatial dimension, all positions along the others.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.arrays import I64
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import binding
from tileprof.record.model.tiles.products import gemm_tile_rule
from tileprof.record.model.tiles.products.main_loop import Loop, chunks_for, flops, main_loop, raster
from tileprof.record.model.tiles.products.split_k import one_slice, partial_sums, reduce_kernel, workspace
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tiles.convolutions.windows import Axis, Piece


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """``weight[i, j, taps...] = sum over images, p of small[n, i, p...] * large[n, group's j, h...]``, h tied to p by
    `Axis`.

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
    """Model one kernel, or two with split-k."""
    if problem.weight.numel == 0:
        return []
    lines, line = problem.small.shape[0] * problem.small.shape[2], int(np.prod(problem.small.shape[3:]))
    rate = gemm_tile_rule.rate_of(problem.small.dtype, device, tf32=True)
    sizes = (problem.rows, int(np.prod(problem.columns)), lines * line)
    tile = gemm_tile_rule.choose(
        "conv", sizes, problem.groups, itemsize=problem.small.itemsize, out_itemsize=problem.weight.itemsize,
        rate=rate, device=device,
    )  # fmt: skip
    tile = replace(tile, split=max(1, min(tile.split, lines)))
    split = f"_splitk{tile.split}" if tile.split > 1 else ""
    name = f"implicit_gemm_wgrad_{rate}_{tile.m}x{tile.n}x{tile.k}_{tile.stages}{split}"
    main = main_kernel(problem, tile, name, rate, partial=tile.split > 1)
    return [main] if tile.split == 1 else [main, reduce_kernel(problem.weight, tile.split)]


def main_kernel(problem: WeightGradient, tile: gemm_tile_rule.Tile, name: str, rate: str, *, partial: bool) -> Kernel:
    """Model the product in tiles of the weight's rows by columns; ``partial``: its slices go to a workspace."""
    lines, line = problem.small.shape[0] * problem.small.shape[2], int(np.prod(problem.small.shape[3:]))
    columns = int(np.prod(problem.columns))
    grid = (-(-problem.rows // tile.m), -(-columns // tile.n), tile.split * problem.groups)
    block = raster(*grid)
    loop = main_loop(
        lines,
        replace(tile, k=1),
        problem.small.itemsize * line,
        problem.weight.itemsize,
        chunks=chunks_for(8 * len(block)),
    )
    target = partial_sums(problem.weight, tile.split) if partial else one_slice(problem.weight)
    parts = [
        _small_reads(problem, tile, loop, block),
        _large_reads(problem, tile, loop, block),
        _writes(problem, target, tile, block, loop.epilogue),
    ]
    return Kernel(
        name, Footprint(block, Boxes.concat(parts)),
        (binding(problem.small), binding(problem.large), workspace(target) if partial else binding(problem.weight)),
        grid, (tile.threads, 1, 1), registers=tile.registers, shared_bytes=tile.shared_bytes,
        flops=flops(problem.small.dtype, problem.weight.numel * lines * line), rate=rate,
    )  # fmt: skip


def _small_reads(problem: WeightGradient, tile: gemm_tile_rule.Tile, loop: Loop, block: NDArray[np.int32]) -> Boxes:
    """Return rows of the product: channels of ``small``, line by line."""
    row_tiles = -(-problem.rows // tile.m)
    depth = _runs_of_lines(problem, loop)
    group, at, run = (i.ravel() for i in np.indices((problem.groups, row_tiles, len(depth.part))))
    z = depth.part[run] // loop.start.shape[1] * problem.groups + group
    base = group * problem.rows
    rest = np.broadcast_to(problem.small.shape[3:], (len(z), len(problem.axes) - 1))
    low, high = depth.start[run], depth.stop[run]
    start = np.column_stack([low[:, 0], base + at * tile.m, low[:, 1], 0 * rest])
    stop = np.column_stack([high[:, 0], base + np.minimum(at * tile.m + tile.m, problem.rows), high[:, 1], rest])
    unique = regions.by_tile(
        regions.boxes(
            problem.small, 0, READ, z * row_tiles + at, start, stop, first=depth.first[run], last=depth.last[run]
        )
    )
    return regions.repeat(unique, block[:, 2].astype(np.int64) * row_tiles + block[:, 0], np.arange(len(block)))


def _large_reads(problem: WeightGradient, tile: gemm_tile_rule.Tile, loop: Loop, block: NDArray[np.int32]) -> Boxes:
    """Return columns of the product: channels of ``large``, at the positions that the columns' taps touch from the
    lines.
    """
    total = int(np.prod(problem.columns))
    column_tiles = -(-total // tile.n)
    lo = np.arange(column_tiles) * tile.n
    part, begin, end = regions.linear(problem.columns, lo, np.minimum(lo + tile.n, total))
    depth = _runs_of_lines(problem, loop)
    group, run, row = (i.ravel() for i in np.indices((problem.groups, len(depth.part), len(part))))
    key = (depth.part[run] // loop.start.shape[1] * problem.groups + group) * column_tiles + part[row]
    base = group * problem.columns[0]
    low, high = depth.start[run], depth.stop[run]
    sizes = problem.small.shape[3:]
    lines = [(low[:, 1], high[:, 1]), *((np.zeros_like(run), np.full_like(run, size)) for size in sizes)]
    pieces = [
        list(_touched_positions(axis, *lines[i], begin[row, 1 + i], end[row, 1 + i]))
        for i, axis in enumerate(problem.axes)
    ]
    parts = []
    for combination in itertools.product(*pieces):
        selection = np.logical_and.reduce([chosen for chosen, _ in combination])
        start = np.column_stack([low[:, 0], base + begin[row, 0], *(piece[0] for _, piece in combination)])
        stop = np.column_stack([high[:, 0], base + end[row, 0], *(piece[1] for _, piece in combination)])
        step = (1, 1, *(piece[2] for _, piece in combination))
        life = {"first": depth.first[run][selection], "last": depth.last[run][selection]}
        parts.append(
            regions.boxes(problem.large, 1, READ, key[selection], start[selection], stop[selection], step=step, **life)
        )
    unique = regions.by_tile(Boxes.concat(parts))
    return regions.repeat(unique, block[:, 2].astype(np.int64) * column_tiles + block[:, 1], np.arange(len(block)))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Rectangles ``[image, line]`` of the loop: ``part`` is slice * chunks + chunk."""

    part: I64
    start: I64
    stop: I64
    first: NDArray[np.float64]
    last: NDArray[np.float64]


def _runs_of_lines(problem: WeightGradient, loop: Loop) -> _Runs:
    shape = (problem.small.shape[0], problem.small.shape[2])
    part, start, stop = regions.linear(shape, loop.start.ravel(), loop.stop.ravel())
    return _Runs(part, start, stop, loop.first.ravel()[part], loop.last.ravel()[part])


def _touched_positions(axis: Axis, lo: I64, hi: I64, begin: I64, end: I64) -> Iterator[tuple[NDArray[np.bool_], Piece]]:
    """Yield positions of ``large`` that results ``lo`` to ``hi`` touch with taps ``begin`` to ``end``, and which
    entries use them.

    Entries with all taps share merged pieces, the others take each of their taps.
    """
    covers_all_taps = (begin == 0) & (end == axis.taps)
    if covers_all_taps.any():
        for piece in axis.sources(lo, hi):
            yield covers_all_taps, piece
    for tap in range(axis.taps):
        selection = ~covers_all_taps & (begin <= tap) & (tap < end)
        if selection.any():
            yield selection, axis.tap(lo, hi, tap)


def _writes(
    problem: WeightGradient, target: Operand, tile: gemm_tile_rule.Tile, block: NDArray[np.int32], first: float
) -> Boxes:
    total = int(np.prod(problem.columns))
    lo = block[:, 1] * np.int64(tile.n)
    row, begin, end = regions.linear(problem.columns, lo, np.minimum(lo + tile.n, total))
    split, group = np.divmod(block[row, 2], problem.groups)
    at = group * problem.rows + block[row, 0] * tile.m
    start = np.column_stack([split, at, begin])
    stop = np.column_stack([split + 1, np.minimum(at + tile.m, (group + 1) * problem.rows), end])
    return regions.boxes(target, 2, WRITE, row, start, stop, first=first, last=1.0)
