"""Finds equal lists among many short lists of rows: tiles that touch the same bytes become one class."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.ragged import group_starts, ragged

_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93)
"""Odd 64-bit constants (golden ratio; xxHash's second prime; Evensen's mixer) that spread bits when multiplied."""


_FEW_ROWS = 512


def _mix(values: NDArray[np.uint64], by: int) -> NDArray[np.uint64]:
    mixed = (values ^ (values >> np.uint64(32))) * np.uint64(by)
    return mixed ^ (mixed >> np.uint64(29))


def _bits(column: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return bits that are equal for equal values, NaN included."""
    if column.dtype == np.float32:
        return column.view(np.uint32).astype(np.uint64)
    return column.astype(np.int64, copy=False).view(np.uint64)


def equal_lists(
    indptr: NDArray[np.int64], columns: tuple[NDArray[np.generic], ...]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return group lists of rows that are equal row by row.

    List ``i`` is rows ``indptr[i]:indptr[i+1]`` of ``columns``. Returns ``group`` ``[lists]`` int32 and
    ``representative`` ``[groups]`` int64, the first list of each group; groups are numbered in order of their first
    list. Lists are grouped by a 128-bit hash and then compared with their representative, so a collision cannot go
    unnoticed.
    """
    lists = len(indptr) - 1
    if lists == 0:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    rows = [_bits(c) for c in columns]
    if len(rows[0]) <= _FEW_ROWS and lists <= _FEW_ROWS:
        return _equal_few(indptr, rows)
    counts = np.diff(indptr)
    owner, place = ragged(counts)
    keys = [_hash_lists(indptr, counts, place, rows, seed) for seed in (0, 1)]
    order = np.lexsort((np.arange(lists), counts, *keys))
    starts = group_starts(*(key[order] for key in (*keys, counts)))
    first = order[starts]
    by_first = np.argsort(first, kind="stable")
    rank = np.empty(len(first), np.int32)
    rank[by_first] = np.arange(len(first), dtype=np.int32)
    group = np.empty(lists, np.int32)
    group[order] = np.repeat(rank, np.diff(np.append(starts, lists)))
    representative = first[by_first]
    twin = indptr[representative[group[owner]]] + place
    if not all(np.array_equal(row, row[twin]) for row in rows):
        raise AssertionError("two different lists have one 128-bit hash")
    return group, representative


def _equal_few(
    indptr: NDArray[np.int64], rows: list[NDArray[np.uint64]]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Find equal lists as `equal_lists` does, by the bytes of each list: for few rows that is faster than calls of
    numpy.
    """
    text, width = np.stack(rows, axis=1).tobytes(), 8 * len(rows)
    ends = [width * at for at in indptr.tolist()]
    first: dict[bytes, int] = {}
    group = [first.setdefault(text[begin:end], len(first)) for begin, end in pairwise(ends)]
    representative = [0] * len(first)
    for number in range(len(group) - 1, -1, -1):
        representative[group[number]] = number
    return np.array(group, np.int32), np.array(representative, np.int64)


def _hash_lists(
    indptr: NDArray[np.int64],
    counts: NDArray[np.int64],
    place: NDArray[np.int64],
    rows: list[NDArray[np.uint64]],
    seed: int,
) -> NDArray[np.uint64]:
    total = _mix(place.view(np.uint64) + np.uint64(seed + 1), _ODD[seed])
    for number, row in enumerate(rows):
        total = _mix(total + row * np.uint64(_ODD[(seed + number) % 3]), _ODD[(seed + 1) % 3])
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(total, dtype=np.uint64)])
    hashed: NDArray[np.uint64] = sums[indptr[1:]] - sums[indptr[:-1]]
    return np.where(counts > 0, hashed, np.uint64(0))
