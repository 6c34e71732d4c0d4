"""The write check: every byte that a launch changed must lie in a write that it recorded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.intervals import union
from tileprof.record.source.decode import runs
from tileprof.record.source.layout import Entries
from tileprof.trace.footprint import READ


def unrecorded(before: NDArray[np.uint8], after: NDArray[np.uint8], base: int, entries: Entries) -> int:
    """Return bytes of the memory at ``base`` that changed outside all recorded writes and updates."""
    changed_bytes = np.flatnonzero(before != after) + base
    if not len(changed_bytes):
        return 0
    _, low, high = runs(entries[entries["mode"] != READ])
    order = np.argsort(low)
    low, high = union(low[order], high[order])
    if not len(low):
        return len(changed_bytes)
    at = np.searchsorted(low, changed_bytes, side="right") - 1
    return int(((at < 0) | (changed_bytes >= high[at])).sum())
