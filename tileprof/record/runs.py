"""Addresses of an access as contiguous runs, and runs as strided boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.boxes import fold
from tileprof.arrays.intervals import union


def runs(addresses: NDArray[np.uint64], active: NDArray[np.bool_] | None, itemsize: int) -> tuple[I64, I64]:
    """Return begin and end, ``[runs]`` each, of the contiguous bytes that the active lanes of one access touch;
    ascending, disjoint. ``itemsize``: bytes per lane.
    """
    if active is None or bool(active.all()):
        rows = _rows(addresses, itemsize)
        if rows is not None:
            return rows
    lanes = addresses if active is None else addresses[np.broadcast_to(active, addresses.shape)]
    begin = np.unique(lanes.reshape(-1)).astype(np.int64)
    return union(begin, begin + itemsize)


def _rows(addresses: NDArray[np.uint64], itemsize: int) -> tuple[I64, I64] | None:
    """Return the runs of a block of contiguous rows or columns, as nearly all accesses are, without sorting its
    lanes.
    """
    block = addresses.astype(np.int64).reshape(-1, addresses.shape[-1] if addresses.ndim else 1)
    for lines in (block, block.T):
        if bool((np.diff(lines, axis=1) == itemsize).all()):
            begin = np.sort(lines[:, 0])
            return union(begin, begin + lines.shape[1] * itemsize)
    return None


def boxes(begin: I64, end: I64) -> tuple[I64, I64, I64, I64, I64, I64]:
    """Return runs as boxes ``(offset, length, count_0, stride_0, count_1, stride_1)`` that cover the same bytes.

    Runs of equal length at a constant distance become one box; then equal boxes at a constant distance become one.
    """
    length = end - begin
    first, count, stride = fold(begin, length)
    begin, length = begin[first], length[first]
    outer, count_1, stride_1 = fold(begin, length, count, stride)
    return begin[outer], length[outer], count[outer], stride[outer], count_1, stride_1
