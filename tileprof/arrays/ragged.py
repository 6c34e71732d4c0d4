"""Rows of different lengths in one column: CSR pointers, owners, and places."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tileprof.arrays import I64


def ragged(counts: NDArray[np.integer]) -> tuple[I64, I64]:
    """Return the row of each element, and its place within the row, where row ``i`` has ``counts[i]`` elements."""
    counts = counts.astype(np.int64, copy=False)
    owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(len(owner), dtype=np.int64) - starts[owner]


def spans(first: NDArray[np.integer], sizes: NDArray[np.integer]) -> I64:
    """Return ``first[0], first[0] + 1, ...`` (``sizes[0]`` of them), then ``first[1], ...``: one array."""
    before = np.cumsum(sizes) - sizes
    return np.asarray(np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(first - before, sizes))


def owners(pointers: NDArray[np.integer]) -> I64:
    """Return the row of each element of a CSR table whose row ``i`` holds elements ``pointers[i]`` to ``pointers[i +
    1]``.
    """
    return np.repeat(np.arange(len(pointers) - 1, dtype=np.int64), np.diff(pointers))


def pointers(counts: ArrayLike) -> I64:
    """Return CSR pointers ``[rows + 1]`` of rows that hold ``counts`` elements each."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def group_starts(*keys: NDArray[np.generic]) -> I64:
    """Return where each run of equal rows begins, for rows already sorted by ``keys``."""
    if len(keys[0]) == 0:
        return np.empty(0, np.int64)
    differs = np.zeros(len(keys[0]) - 1, bool)
    for key in keys:
        differs |= key[1:] != key[:-1]
    return np.concatenate([[0], np.flatnonzero(differs) + 1])
