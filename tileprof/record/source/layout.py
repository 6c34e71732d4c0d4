"""The structs of ``native/log.h``, which a recorded kernel leaves behind, in Python, field by field."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.record.filter_settings import FilterSettings

ENTRY: Final = np.dtype(
    [
        ("address", "<u8"),
        ("stride_0", "<i8"),
        ("stride_1", "<i8"),
        ("length", "<u8"),
        ("count_0", "<u4"),
        ("count_1", "<u4"),
        ("block", "<u4"),
        ("mode", "<u4"),
        ("clock", "<u4"),
        ("unused", "<u4"),
    ]
)
"""One strided box of one thread block; ``mode`` as in `tileprof.trace.footprint`, ``clock`` the SM clock's low word."""

BLOCK: Final = np.dtype(
    [
        ("begin_ns", "<u8"),
        ("end_ns", "<u8"),
        ("begin_clock", "<u8"),
        ("end_clock", "<u8"),
        ("sm", "<u4"),
        ("unused", "<u4"),
    ]
)
"""The life of one thread block; begins are all ones where it said nothing, ends are 0."""

LOG: Final = np.dtype(
    [
        ("entries", "<u8"),
        ("blocks", "<u8"),
        ("count", "<u8"),
        ("capacity", "<u8"),
        ("filters", "<u8"),
        ("filter_bits", "<u4"),
        ("hashes", "<u4"),
        ("granule", "<u4"),
        ("unused", "<u4"),
    ]
)
"""Addresses, a number of entries, and how filters hash: what the symbol `SYMBOL` holds while a kernel is recorded."""

SYMBOL: Final = "tileprof_log"

Entries = NDArray[np.void]
Blocks = NDArray[np.void]


def fresh_blocks(count: int) -> Blocks:
    """Return records of blocks that have not begun."""
    blocks = np.zeros(count, BLOCK)
    blocks["begin_ns"] = blocks["begin_clock"] = np.iinfo(np.uint64).max
    return blocks


def log(
    entries: int, blocks: int, count: int, capacity: int, filters: int = 0, how: FilterSettings | None = None
) -> bytes:
    """Return the bytes of `SYMBOL` for a log, and perhaps filters, at these addresses."""
    hashing = (how.bits, how.hashes, how.granule) if how and filters else (0, 0, 0)
    return np.array([(entries, blocks, count, capacity, filters, *hashing, 0)], LOG).tobytes()
