"""Split-k: slices of a sum over k leave partial sums in a workspace, a second kernel adds them, as cuBLAS does.

The workspace holds one copy of the results a slice, in fp32 or wider, each dense in the memory order of the
results, so that runs of the reduction are runs of memory on both sides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.record.model.tile_model import Kernel, Operand, Scratch
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import binding
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_COLUMNS, _ROWS, _BLOCKS_PER_SM = 32, 16, 4
REDUCE_THREADS, REDUCE_ELEMENTS = 128, 512
"""A block of the reduction: four results per thread, one 16-byte load of fp32 each."""


def memory_order(operand: Operand) -> tuple[int, ...]:
    """Return dimensions from the outermost in memory to the innermost."""
    return tuple(sorted(range(len(operand.shape)), key=lambda d: (-operand.strides[d], d)))


def one_slice(operand: Operand) -> Operand:
    """Return the operand with a leading dimension of one: results that need no reduction, beside `partial_sums`."""
    return replace(operand, shape=(1, *operand.shape), strides=(0, *operand.strides))


def partial_sums(results: Operand, slices: int) -> Operand:
    """Return the workspace as an operand ``[slices, *results.shape]``."""
    strides, run = [0] * len(results.shape), 1
    for dim in reversed(memory_order(results)):
        strides[dim], run = run, run * results.shape[dim]
    return Operand((slices, *results.shape), (run, *strides), "float32", max(4, results.itemsize))


def workspace(partial: Operand) -> Scratch:
    """Scratch 0 with room for the partial sums."""
    return Scratch(0, partial.numel * partial.itemsize)


def reduce_kernel(
    results: Operand, slices: int, reads: Sequence[Operand] = (), *, elements: int = REDUCE_ELEMENTS
) -> Kernel:
    """Adds the slices in scratch 0, and ``reads`` of the shape of ``results``, for runs of ``elements`` results."""
    order = memory_order(results)
    partial = partial_sums(results, slices)
    flat = replace(partial, shape=(partial.numel,), strides=(1,))
    lo = np.arange(0, results.numel, elements)
    hi = np.minimum(lo + elements, results.numel)
    tiles = np.arange(len(lo))
    parts = [
        regions.linear_boxes(flat, 0, READ, tiles, lo + s * results.numel, hi + s * results.numel, first=0, last=1)
        for s in range(slices)
    ]
    for slot, operand in enumerate((results, *reads), start=1):
        mode = WRITE if slot == 1 else READ
        ordered = regions.permute(operand, order)
        parts.append(regions.linear_boxes(ordered, slot, mode, tiles, lo, hi, first=0, last=1))
    return Kernel(
        "splitk_reduce", Footprint(row_of_blocks(len(lo)), Boxes.concat(parts)),
        (workspace(partial), *map(binding, (results, *reads))),
        (len(lo), 1, 1), (REDUCE_THREADS, 1, 1), flops=slices * results.numel,
    )  # fmt: skip


def reduce_blocks(results: Operand, slices: int, reads: Sequence[Operand], sms: int) -> Kernel:
    """Adds the slices in scratch 0 as cuBLASLt's splitKreduce: blocks of 32 columns by 16 rows, at most four per SM,
    which continue below by steps of the grid.

    The grid is that of 97% of the 7,200 such sums that were harvested on an H200; which rows a block that continues
    takes was not recorded.
    """
    batch, m, n = results.shape
    across, down = -(-n // _COLUMNS), -(-m // _ROWS)
    at_once = max(1, _BLOCKS_PER_SM * sms // across)
    y = -(-down // max(1, down // at_once))
    steps = -(-down // y)
    block = np.array(list(np.ndindex(batch, y, across)), np.int32)[:, ::-1]
    tile = np.repeat(np.arange(len(block)), steps)
    row = (block[tile, 1] + y * np.tile(np.arange(steps), len(block))).astype(np.int64) * _ROWS
    inside = row < m
    tile, row = tile[inside], row[inside]
    column, z = block[tile, 0].astype(np.int64) * _COLUMNS, block[tile, 2].astype(np.int64)
    low = np.column_stack([0 * z, z, row, column])
    high = np.column_stack([0 * z + 1, z + 1, np.minimum(row + _ROWS, m), np.minimum(column + _COLUMNS, n)])
    partial = partial_sums(results, slices)
    whole = high.copy()
    whole[:, 0] = slices
    parts = [regions.boxes(partial, 0, READ, tile, low, whole, first=0.0, last=1.0)]
    for slot, operand in enumerate((results, *reads), start=1):
        mode = WRITE if slot == 1 else READ
        parts.append(regions.boxes(one_slice(operand), slot, mode, tile, low, high, first=0.0, last=1.0))
    return Kernel(
        "splitk_reduce", Footprint(block, Boxes.concat(parts)), (workspace(partial), results, *reads),
        (across, y, batch), (_COLUMNS, _ROWS, 1), flops=slices * results.numel,
    )  # fmt: skip


def row_of_blocks(blocks: int) -> NDArray[np.int32]:
    """Return grid coordinates of a one-dimensional grid."""
    block = np.zeros((blocks, 3), np.int32)
    block[:, 0] = np.arange(blocks)
    return block
