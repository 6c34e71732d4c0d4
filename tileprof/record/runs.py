"""Addresses of an access as contiguous runs, and runs as strided boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


def runs(addresses: NDArray[np.uint64], active: NDArray[np.bool_] | None, itemsize: int) -> tuple[I64, I64]:
    """Begin and end of the contiguous bytes that the active lanes of one access touch; ascending, disjoint."""
    if active is None or bool(active.all()):
        rows = _rows(addresses, itemsize)
        if rows is not None:
            return rows
    lanes = addresses if active is None else addresses[np.broadcast_to(active, addresses.shape)]
    begin = np.unique(lanes.reshape(-1)).astype(np.int64)
    return joined(begin, begin + itemsize)


def _rows(addresses: NDArray[np.uint64], itemsize: int) -> tuple[I64, I64] | None:
    """The runs of a block of contiguous rows or columns, as nearly all accesses are, without sorting its lanes."""
    block = addresses.astype(np.int64).reshape(-1, addresses.shape[-1] if addresses.ndim else 1)
    for lines in (block, block.T):
        if bool((np.diff(lines, axis=1) == itemsize).all()):
            begin = np.sort(lines[:, 0])
            return joined(begin, begin + lines.shape[1] * itemsize)
    return None


def joined(begin: I64, end: I64) -> tuple[I64, I64]:
    """The same bytes as disjoint runs with gaps between them; input sorted by ``begin``."""
    if len(begin) == 0:
        return begin, end
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], begin[1:] > reach[:-1]])
    return begin[first], reach[np.concatenate([first[1:], [True]])]


def boxes(begin: I64, end: I64) -> tuple[I64, I64, I64, I64, I64, I64]:
    """Runs as boxes ``(offset, length, count_0, stride_0, count_1, stride_1)`` that cover the same bytes.

    Runs of equal length at a constant distance become one box; then equal boxes at a constant distance become one.
    """
    length = end - begin
    first, count, stride = _progressions(begin, (length,))
    begin, length = begin[first], length[first]
    outer, count_1, stride_1 = _progressions(begin, (length, count, stride))
    return begin[outer], length[outer], count[outer], stride[outer], count_1, stride_1


def _progressions(at: I64, alike: tuple[I64, ...]) -> tuple[I64, I64, I64]:
    """Greedy split of positions into arithmetic progressions of rows that are alike: first row, count, stride."""
    rows = len(at)
    same = np.ones(max(0, rows - 1), bool)
    for column in alike:
        same &= column[1:] == column[:-1]
    step = np.diff(at)
    first, count, stride = [], [], []
    row = 0
    # A break is where the step changes or the rows differ; between breaks one progression holds.
    broken = np.flatnonzero(~same[1:] | ~same[:-1] | (step[1:] != step[:-1])) if rows > 2 else np.empty(0, np.int64)
    while row < rows:
        stop = row + 1
        if row < rows - 1 and same[row]:
            after = np.searchsorted(broken, row)
            stop = int(broken[after]) + 2 if after < len(broken) else rows
        first.append(row)
        count.append(stop - row)
        stride.append(int(step[row]) if stop - row > 1 else 0)
        row = stop
    return np.array(first, np.int64), np.array(count, np.int64), np.array(stride, np.int64)
