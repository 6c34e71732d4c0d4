"""Counts the distinct bytes that groups of strided boxes cover: exact unions, for millions of boxes.

Levels that all boxes of a group share are factored out. Tiles of a kernel mostly touch the same pattern at another
place, so each pattern is counted once: groups that are equal up to translation share a signature, and only one of
each is expanded into runs and merged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.boxes import runs
from tileprof.arrays.intervals import grouped_union
from tileprof.arrays.ragged import spans
from tileprof.trace.footprint import READ, Boxes

_RUNS_AT_ONCE = 1 << 22  # about 200 MB of work arrays


def bytes_by_tile(tile: I64, boxes: Boxes, tiles: int) -> tuple[I64, I64]:
    """Return distinct bytes that each tile reads, and that it writes or updates: two ``[tiles]`` arrays.

    ``tile`` is the tile of each box (``boxes.tile`` is not looked at, so that footprints can be counted
    together). Bytes of different operands are different bytes; an atomic update counts as written, not as read.
    """
    slots = int(boxes.operand.max(initial=0)) + 1
    key = (tile.astype(np.int64) * slots + boxes.operand) * 2 + (boxes.mode != READ)
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    covered = distinct_bytes(boxes.take(order), first)
    totals = np.zeros((2, tiles), dtype=np.int64)
    np.add.at(totals, (key[first] % 2, key[first] // (2 * slots)), covered)
    return totals[0], totals[1]


def distinct_bytes(boxes: Boxes, first: I64) -> I64:
    """Return bytes in the union of each group of consecutive boxes; group g begins at row ``first[g]``."""
    if not len(boxes):
        return np.zeros(0, dtype=np.int64)
    boxes = boxes.normalised()
    sizes = np.diff(first, append=len(boxes))
    copies = _factored(boxes, first, sizes)
    covered = boxes.length[first]
    unfinished = (sizes > 1) | (boxes.count_0[first] > 1) | (boxes.count_1[first] > 1)
    groups = np.flatnonzero(unfinished)
    if len(groups):
        signature = _signatures(boxes, first, sizes)[groups]
        _, representative, inverse = np.unique(signature, return_index=True, return_inverse=True)
        chosen = groups[representative]
        covered[groups] = _expanded_unions(boxes, first[chosen], sizes[chosen])[inverse]
    return np.asarray(covered * copies)


def _factored(boxes: Boxes, first: I64, sizes: I64) -> I64:
    """Take out, in place, each level that all boxes of a group share and whose repetitions cannot meet.

    Returns how many copies of what is left a group stands for. The rows of a matrix tile that is read in
    chunks of columns are such a level: what is left to merge is one row.
    """
    copies = np.ones(len(first), dtype=np.int64)
    for level, other in ((1, 0), (0, 1)):
        count, stride = getattr(boxes, f"count_{level}"), getattr(boxes, f"stride_{level}")
        end = boxes.offset + boxes.length + (getattr(boxes, f"count_{other}") - 1) * getattr(boxes, f"stride_{other}")
        extent = np.maximum.reduceat(end, first) - np.minimum.reduceat(boxes.offset, first)
        shared = (extent <= stride[first]) & (count[first] > 1)
        for column in (count, stride):
            shared &= np.maximum.reduceat(column, first) == np.minimum.reduceat(column, first)
        copies[shared] *= count[first][shared]
        rows_taken = np.repeat(shared, sizes)
        count[rows_taken], stride[rows_taken] = 1, 0
    return copies


def _signatures(boxes: Boxes, first: I64, sizes: I64) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each group's boxes, whatever their order, relative to the group's first byte."""
    start = np.repeat(np.minimum.reduceat(boxes.offset, first), sizes)
    mixed = np.full(len(boxes), 0x9E3779B97F4A7C15, dtype=np.uint64)
    columns = (boxes.offset - start, boxes.length, boxes.count_0, boxes.stride_0, boxes.count_1, boxes.stride_1)
    for column in columns:
        mixed = _mix(mixed ^ column.astype(np.uint64))
    summed: NDArray[np.uint64] = np.add.reduceat(mixed, first)
    return summed


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every
    output bit.
    """
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))


def _expanded_unions(boxes: Boxes, first: I64, sizes: I64) -> I64:
    """Return unions of the groups, by writing every run out; in batches that fit in memory."""
    rows = spans(first, sizes)
    boxes = boxes.take(rows)
    group = np.repeat(np.arange(len(first)), sizes)
    runs_before = np.cumsum(np.concatenate([[0], boxes.count_0.astype(np.int64) * boxes.count_1]))
    group_end = np.cumsum(sizes)
    covered = np.zeros(len(first), dtype=np.int64)
    for begin, end in _batches(runs_before[group_end]):
        row = slice(group_end[begin] - sizes[begin], group_end[end - 1])
        covered[begin:end] = _union_of_runs(boxes.take(row), group[row] - begin, end - begin)
    return covered


def _batches(runs_through: I64) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(runs_through):
        first_run = runs_through[begin - 1] if begin else 0
        end = int(np.searchsorted(runs_through, first_run + _RUNS_AT_ONCE, side="right"))
        end = max(end, begin + 1)
        yield begin, end
        begin = end


def _union_of_runs(boxes: Boxes, group: I64, groups: int) -> I64:
    box, start = runs(boxes.offset, boxes.count_0, boxes.stride_0, boxes.count_1, boxes.stride_1)
    owner = group[box]
    order = np.lexsort((start, owner))
    start, owner = start[order], owner[order]
    end = start + boxes.length[box][order]

    row, start, end = grouped_union(owner, start, end)
    owner = owner[row]
    totals = np.zeros(groups, np.int64)
    np.add.at(totals, owner, end - start)
    return totals
