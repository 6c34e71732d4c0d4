"""Strided boxes as runs of bytes, and runs as boxes.

Box ``b`` is ``offset + i*stride_0 + j*stride_1 + [0, length)`` for ``i < count_0`` and ``j < count_1``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged

_Column = NDArray[np.integer]


def runs(offset: I64, count_0: _Column, stride_0: I64, count_1: _Column, stride_1: I64) -> tuple[I64, I64]:
    """Return every run of every box, inner level first: ``[runs]`` the number of its box, and its first byte.

    All arguments are ``[boxes]``; offsets and strides in bytes.
    """
    inner = count_0.astype(np.int64, copy=False)
    box, place = ragged(inner * count_1)
    inner = inner[box]
    return box, offset[box] + place % inner * stride_0[box] + place // inner * stride_1[box]


def fold(begin: I64, *alike: NDArray[np.integer]) -> tuple[I64, I64, I64]:
    """Split rows greedily into progressions: the first row of each, its number of rows, and its step (0 for one row).

    Rows of a progression are consecutive, equal in every column of ``alike``, and their ``begin`` lies at a constant
    distance.
    """
    rows = len(begin)
    if rows < 2:
        return np.arange(rows), np.ones(rows, np.int64), np.zeros(rows, np.int64)
    joins = np.ones(rows - 1, bool)
    for column in alike:
        joins &= column[1:] == column[:-1]
    step = np.diff(begin)
    # A stretch is a run of joins with one step. Its first join is lost where the progression before it ends in that
    # row, which it does unless it was a stretch of a single join that was lost in turn: such stretches alternate.
    opens = np.concatenate([[True], (step[1:] != step[:-1]) | ~joins[1:] | ~joins[:-1]])
    stretch = np.flatnonzero(opens & joins)
    length = np.diff(np.flatnonzero(np.append(opens, True)))[np.cumsum(opens)[stretch] - 1]
    follows = np.concatenate([[False], stretch[1:] == (stretch + length)[:-1]])[: len(stretch)]
    certain = ~follows | np.concatenate([[True], length[:-1] > 1])[: len(stretch)]
    number = np.arange(len(stretch))
    latest = np.maximum.accumulate(np.where(certain, number, 0))
    loses = follows[latest] ^ ((number - latest) % 2 == 1)
    first, joined = stretch + loses, length - loses
    first, joined = first[joined > 0], joined[joined > 0]
    consumed_upto = np.zeros(rows + 1, np.int64)
    np.add.at(consumed_upto, first + 1, 1)
    np.add.at(consumed_upto, first + joined + 1, -1)
    head = np.flatnonzero(np.cumsum(consumed_upto)[:rows] == 0)
    count = np.diff(head, append=rows)
    return head, count, np.where(count > 1, step[np.minimum(head, rows - 2)], 0)
