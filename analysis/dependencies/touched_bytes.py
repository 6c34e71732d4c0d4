"""The bytes of one buffer that the tiles of a launch touch: classes of tiles, and the bytes of each class.

Tiles that touch exactly the same boxes at the same times form a *class* (all tiles of a GEMM's row read one strip of
A). Joins run on classes, so their cost follows the distinct boxes, not tiles times tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.arrays.ragged import group_starts, ragged
from tileprof.errors import TraceError
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes, Footprint

MOST_RUNS = 1 << 26
"""Most runs of the boxes of one launch in one buffer: each takes some 60 bytes while they are sorted."""

_BOX = ("offset", "length", "count_0", "stride_0", "count_1", "stride_1", "first", "last")


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """The bytes that the tiles of one launch touch in one way.

    Segments, sorted by ``lo``: bytes ``[lo, hi)`` of the buffer, the class that touches them, and when in a tile's life
    they are first and last touched (NaN unknown). Segments of one class are disjoint. ``class_of`` ``[tiles]`` int32 is
    -1 for a tile that touches nothing; the tiles of class ``k`` are ``tiles[indptr[k]:indptr[k+1]]``, ascending.
    """

    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    cls: NDArray[np.int32]
    first: NDArray[np.float32]
    last: NDArray[np.float32]
    class_of: NDArray[np.int32]
    indptr: NDArray[np.int64]
    tiles: NDArray[np.int32]

    @property
    def classes(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One launch's use of one buffer; ``number`` identifies it for memoisation."""

    number: int
    tiles: int
    read: Touch | None
    write: Touch | None
    atomic: Touch | None


def too_many_runs(runs: int) -> TraceError:
    """Return the error for a launch whose tiles touch more separate runs of bytes than are told apart."""
    return TraceError(
        f"the tiles of a launch touch {runs:,} separate runs of bytes; at most {MOST_RUNS:,} are told apart: "
        "record it again at a coarser granule"
    )


def access(number: int, footprint: Footprint, bindings: tuple[tuple[int, int], ...], granule: int = 1) -> Access:
    """Return the access of a footprint whose operand slots are bound to one buffer: ``(slot, offset)`` pairs; of each
    ``granule`` bytes that a tile touches in part it touches all.
    """
    slots = np.array([slot for slot, _ in bindings], np.int32)
    boxes = footprint.boxes
    shift = np.zeros(max(int(boxes.operand.max(initial=0)), int(slots.max())) + 1, np.int64)
    shift[slots] = [offset for _, offset in bindings]
    bound = np.zeros(len(shift), bool)
    bound[slots] = True
    here = bound[boxes.operand]
    read, write, atomic = (
        _touch(boxes, np.flatnonzero(here & (boxes.mode == mode)), shift, footprint.tiles, granule)
        for mode in (READ, WRITE, ATOMIC)
    )
    return Access(number, footprint.tiles, read, write, atomic)


def _touch(boxes: Boxes, rows: NDArray[np.int64], shift: NDArray[np.int64], tiles: int, granule: int) -> Touch | None:
    if len(rows) == 0:
        return None
    tile = boxes.tile[rows]
    offset = boxes.offset[rows] + shift[boxes.operand[rows]]
    order = np.lexsort((boxes.stride_0[rows], boxes.length[rows], offset, tile))
    rows, tile, offset = rows[order], tile[order], offset[order]
    columns = [offset, *(getattr(boxes, name)[rows] for name in _BOX[1:])]
    starts = group_starts(tile)
    indptr = np.append(starts, len(rows))
    group, representative = equal_lists(indptr, tuple(columns))
    owner, place = ragged(indptr[representative + 1] - indptr[representative])
    chosen = indptr[representative[owner]] + place
    lo, hi, cls, first, last = _flatten(owner, *(c[chosen] for c in columns), granule=granule)
    touching = tile[starts]
    class_of = np.full(tiles, -1, np.int32)
    class_of[touching] = group
    by_class = np.argsort(group, kind="stable")
    members = np.zeros(len(representative) + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=len(representative)), out=members[1:])
    return Touch(lo, hi, cls, first, last, class_of, members, touching[by_class].astype(np.int32))


def _flatten(
    cls: NDArray[np.int64],
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
    count_0: NDArray[np.int32],
    stride_0: NDArray[np.int64],
    count_1: NDArray[np.int32],
    stride_1: NDArray[np.int64],
    first: NDArray[np.float32],
    last: NDArray[np.float32],
    *,
    granule: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Return boxes as segments that are disjoint within a class, sorted by ``lo``."""
    seamless = (count_0 > 1) & (stride_0 == length)
    length = np.where(seamless, length * count_0, length)
    inner = np.where(seamless | (stride_0 == 0), 1, count_0).astype(np.int64)
    count_1 = np.where(stride_1 == 0, 1, count_1)  # the same bytes again
    runs = int((inner.astype(np.float64) * count_1).sum())
    if runs > MOST_RUNS:
        raise too_many_runs(runs)
    owner, place = ragged(inner * count_1)
    lo = offset[owner] + (place % inner[owner]) * stride_0[owner] + (place // inner[owner]) * stride_1[owner]
    hi = lo + length[owner]
    if granule > 1:
        lo, hi = lo // granule * granule, -(-hi // granule) * granule
    return _disjoint(lo, hi, cls[owner].astype(np.int32), first[owner], last[owner])


def _disjoint(
    lo: NDArray[np.int64],
    hi: NDArray[np.int64],
    cls: NDArray[np.int32],
    first: NDArray[np.float32],
    last: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Join what touches or overlaps within a class; where lags differ, the earliest first and the latest last hold."""
    # Classes are laid end to end on one line, so that one sweep serves all of them.
    floor, span = int(lo.min()), int(hi.max() - lo.min()) + 1
    if (int(cls.max()) + 1) * span >= 2**62:
        raise TraceError(
            "the tiles of a launch touch too large a buffer in too many ways to tell apart: record it again"
        )
    base = cls.astype(np.int64) * span - floor
    begin, end = lo + base, hi + base
    order = np.argsort(begin, kind="stable")
    begin, end, first, last = begin[order], end[order], first[order], last[order]
    if len(begin) > 1 and bool((begin[1:] < np.maximum.accumulate(end)[:-1]).any()):
        begin, end, first, last = _elementary(begin, end, first, last)
    seam = (
        (begin[1:] == end[:-1])
        & (first.view(np.int32)[1:] == first.view(np.int32)[:-1])
        & (last.view(np.int32)[1:] == last.view(np.int32)[:-1])
    )
    starts = np.flatnonzero(np.concatenate([[True], ~seam]))
    stops = np.append(starts[1:], len(begin)) - 1
    begin, end, first, last = begin[starts], end[stops], first[starts], last[starts]
    cls = (begin // span).astype(np.int32)
    base = cls.astype(np.int64) * span - floor
    lo, hi = begin - base, end - base
    order = np.argsort(lo, kind="stable")
    return lo[order], hi[order], cls[order], first[order], last[order]


def _elementary(
    begin: NDArray[np.int64], end: NDArray[np.int64], first: NDArray[np.float32], last: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    cuts = np.unique(np.concatenate([begin, end]))
    piece = np.searchsorted(cuts, begin)
    owner, place = ragged(np.searchsorted(cuts, end) - piece)
    piece = piece[owner] + place
    order = np.argsort(piece, kind="stable")
    piece, owner = piece[order], owner[order]
    starts = group_starts(piece)
    cut = piece[starts]
    earliest = np.minimum.reduceat(first[owner], starts)
    latest = np.maximum.reduceat(last[owner], starts)
    return cuts[cut], cuts[cut + 1], earliest, latest
