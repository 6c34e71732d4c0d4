"""Interval algebra on sorted columns: the arithmetic under byte-exact dependencies.

An interval is half open, ``lo < hi``; a set of intervals is two columns, sorted by ``lo``. Intervals of one set may
overlap unless a function asks for disjoint ones. Everything is O(n log n + results).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged

Number = TypeVar("Number", np.int64, np.float64)


def overlaps(a_lo: I64, a_hi: I64, b_lo: I64, b_hi: I64) -> tuple[I64, I64]:
    """Return index pairs of all intervals of ``a`` and ``b`` that share at least one point, each pair once.

    Two intervals overlap exactly if one begins inside the other: pairs in which ``b`` begins inside ``a`` are found by
    binary search among ``b``'s beginnings, the others among ``a``'s.
    """
    first = np.searchsorted(b_lo, a_lo, "left")
    a_owner, place = ragged(np.searchsorted(b_lo, a_hi, "left") - first)
    b_inside = first[a_owner] + place
    first = np.searchsorted(a_lo, b_lo, "right")
    b_owner, place = ragged(np.searchsorted(a_lo, b_hi, "left") - first)
    return np.concatenate([a_owner, first[b_owner] + place]), np.concatenate([b_inside, b_owner])


def heads(lo: NDArray[Number], hi: NDArray[Number]) -> I64:
    """Return rows that begin a piece of the union: intervals sorted by ``lo`` that neither touch nor overlap earlier
    ones.
    """
    if len(lo) == 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate([[True], lo[1:] > np.maximum.accumulate(hi)[:-1]]))


def union(lo: NDArray[Number], hi: NDArray[Number]) -> tuple[NDArray[Number], NDArray[Number]]:
    """Return the same points as disjoint intervals with gaps between them; input sorted by ``lo``."""
    begins = heads(lo, hi)
    return (lo[begins], np.maximum.reduceat(hi, begins)) if len(begins) else (lo, hi)


def grouped_union(group: I64, lo: I64, hi: I64) -> tuple[I64, I64, I64]:
    """Return the union within each group: ``(row, lo, hi)`` of its pieces; input sorted by ``group``, then ``lo``.

    ``row`` is the input row that begins the piece; the rows of a piece are consecutive.
    """
    if len(group) == 0:
        return group, lo, hi
    # Lay the groups one after the other on a line, with a gap, so that one pass serves all.
    first = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    low, width = lo[first], np.maximum.reduceat(hi, first) - lo[first] + 1
    shift = np.repeat(np.cumsum(width) - width - low, np.diff(first, append=len(group)))
    row = heads(lo + shift, hi + shift)
    return row, lo[row], np.maximum.reduceat(hi, row)


def subtract(lo: I64, hi: I64, hole_lo: I64, hole_hi: I64) -> tuple[I64, I64, I64]:
    """Return pieces ``(lo, hi, row)`` of the intervals outside disjoint sorted holes; sorted by ``lo``.

    ``row`` says which interval a piece comes from.
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
