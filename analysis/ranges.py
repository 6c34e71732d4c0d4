"""Interval algebra on sorted numpy columns: the arithmetic under byte-exact dependencies.

An interval is half open, ``lo < hi``; a set of intervals is two int64 columns, sorted by ``lo``. Intervals of one
set may overlap unless a function asks for disjoint ones. Everything is O(n log n + results).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


def ragged(counts: NDArray[np.integer]) -> tuple[I64, I64]:
    """For row ``i`` repeated ``counts[i]`` times: the row of each element, and its place within the row."""
    counts = counts.astype(np.int64, copy=False)
    owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(len(owner), dtype=np.int64) - starts[owner]


def overlaps(a_lo: I64, a_hi: I64, b_lo: I64, b_hi: I64) -> tuple[I64, I64]:
    """Index pairs of all intervals of ``a`` and ``b`` that share at least one point, each pair once.

    Two intervals overlap exactly if one begins inside the other: pairs in which ``b`` begins inside ``a`` are found by
    binary search among ``b``'s beginnings, the others among ``a``'s.
    """
    first = np.searchsorted(b_lo, a_lo, "left")
    a_owner, place = ragged(np.searchsorted(b_lo, a_hi, "left") - first)
    b_inside = first[a_owner] + place
    first = np.searchsorted(a_lo, b_lo, "right")
    b_owner, place = ragged(np.searchsorted(a_lo, b_hi, "left") - first)
    return np.concatenate([a_owner, first[b_owner] + place]), np.concatenate([b_inside, b_owner])


def union(lo: I64, hi: I64) -> tuple[I64, I64]:
    """The same points as disjoint intervals with gaps between them; input sorted by ``lo``."""
    if len(lo) == 0:
        return lo, hi
    reach = np.maximum.accumulate(hi)
    begins = np.concatenate([[True], lo[1:] > reach[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return lo[begins], reach[ends]


def subtract(lo: I64, hi: I64, hole_lo: I64, hole_hi: I64) -> tuple[I64, I64, I64]:
    """Pieces ``(lo, hi, row)`` of the intervals outside disjoint sorted holes; sorted by ``lo`` within no order of rows.

    ``row`` says which interval a piece comes from; the result is sorted by ``lo``.
    """
    if len(lo) == 0 or len(hole_lo) == 0:
        return lo, hi, np.arange(len(lo), dtype=np.int64)
    edge = np.iinfo(np.int64)
    gap_lo = np.concatenate([[edge.min], hole_hi])
    gap_hi = np.concatenate([hole_lo, [edge.max]])
    row, gap = overlaps(lo, hi, gap_lo, gap_hi)
    piece_lo, piece_hi = np.maximum(lo[row], gap_lo[gap]), np.minimum(hi[row], gap_hi[gap])
    real = piece_lo < piece_hi
    piece_lo, piece_hi, row = piece_lo[real], piece_hi[real], row[real]
    order = np.argsort(piece_lo, kind="stable")
    return piece_lo[order], piece_hi[order], row[order]


def group_starts(*keys: NDArray[np.generic]) -> NDArray[np.int64]:
    """Where each run of equal rows begins, for rows already sorted by ``keys``."""
    if len(keys[0]) == 0:
        return np.empty(0, np.int64)
    changed = np.zeros(len(keys[0]) - 1, bool)
    for key in keys:
        changed |= key[1:] != key[:-1]
    return np.concatenate([[0], np.flatnonzero(changed) + 1])
