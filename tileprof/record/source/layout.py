"""The structs of ``native/log.h``, which a recorded kernel leaves behind, in Python, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError

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

_WORD_BITS: Final = 32

Entries = NDArray[np.void]
Blocks = NDArray[np.void]


def fresh_blocks(count: int) -> Blocks:
    """Return records of blocks that have not begun."""
    blocks = np.zeros(count, BLOCK)
    blocks["begin_ns"] = blocks["begin_clock"] = np.iinfo(np.uint64).max
    return blocks


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """Bloom filters that each thread block fills while it runs: ``bits`` of one (a block has two), ``hashes`` bits set
    per granule of ``granule`` bytes. Raises UserError for what the device code cannot do.
    """

    bits: int = 2048
    hashes: int = 2
    granule: int = 512

    def __post_init__(self) -> None:
        if self.bits < _WORD_BITS or self.bits & (self.bits - 1):
            raise UserError(f"filter bits are {self.bits:,}, expected a power of two of at least {_WORD_BITS}")
        if self.hashes < 1 or self.granule < 1:
            raise UserError(f"filters have {self.hashes} hashes of {self.granule} bytes, expected at least 1 of each")

    def shape(self, blocks: int) -> tuple[int, int, int]:
        """Return ``[blocks, 2, words]``: a filter of reads and one of writes and updates for each block."""
        return blocks, 2, self.bits // _WORD_BITS


def log(
    entries: int, blocks: int, count: int, capacity: int, filters: int = 0, how: FilterSettings | None = None
) -> bytes:
    """Return the bytes of `SYMBOL` for a log, and perhaps filters, at these addresses."""
    hashing = (how.bits, how.hashes, how.granule) if how and filters else (0, 0, 0)
    return np.array([(entries, blocks, count, capacity, filters, *hashing, 0)], LOG).tobytes()
