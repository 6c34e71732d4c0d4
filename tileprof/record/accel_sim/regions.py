"""Infers the buffers of a log, which has addresses and copies to the GPU, and no allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.arrays.intervals import union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.arrays import I64

GAP_BYTES: Final = 4096
"""Bytes that no kernel touches, beyond which another buffer begins."""

_MOST_REGIONS: Final = 4096


def buffers(touched: Sequence[tuple[I64, I64]], copies: Sequence[tuple[int, int]]) -> tuple[I64, I64]:
    """Return disjoint ranges ``[low, high)`` in ascending order that hold all that is touched or copied.

    Neighbours are one buffer where at most 4 KiB lie between them (more, where there would be over 4,096 buffers); a
    copy begins another. Dependencies are between bytes: they do not change with the cuts.
    """
    copied = [(address, address + size) for address, size in copies if size]
    low = np.concatenate([np.empty(0, np.int64), *(low for low, _ in touched), [begin for begin, _ in copied]])
    high = np.concatenate([np.empty(0, np.int64), *(high for _, high in touched), [end for _, end in copied]])
    order = np.argsort(low, kind="stable")
    low, high = low[order].astype(np.int64), high[order].astype(np.int64)
    gap = GAP_BYTES
    regions = joined(low, high, gap)
    while len(regions[0]) > _MOST_REGIONS:
        gap *= 2
        regions = joined(low, high, gap)
    return _cut(*regions, np.unique(np.array([begin for begin, _ in copied[:_MOST_REGIONS]], np.int64)))


def joined(low: I64, high: I64, gap: int = GAP_BYTES) -> tuple[I64, I64]:
    """Return the union of ranges sorted by ``low``, those at most ``gap`` apart as one."""
    joined_low, joined_high = union(low, high + gap)
    return joined_low, joined_high - gap


def _cut(low: I64, high: I64, at: I64) -> tuple[I64, I64]:
    """Return the ranges, cut where one of ``at`` lies inside."""
    owner = np.searchsorted(low, at, side="right") - 1
    inside = at[(owner >= 0) & (at > low[owner]) & (at < high[owner])] if len(low) else at[:0]
    begins = np.sort(np.concatenate([low, inside]))
    ends = np.sort(np.concatenate([high, inside]))
    return begins, ends
