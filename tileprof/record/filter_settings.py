"""The size and hashing of the Bloom filters that thread blocks fill while they are recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from tileprof.errors import UserError

WORD_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """Bloom filters that each thread block fills while it runs: ``bits`` of one (a block has two), ``hashes`` bits set
    per granule of ``granule`` bytes. Raises UserError for what the device code cannot do.
    """

    bits: int = 2048
    hashes: int = 2
    granule: int = 512

    def __post_init__(self) -> None:
        if self.bits < WORD_BITS or self.bits & (self.bits - 1):
            raise UserError(f"filter bits are {self.bits:,}, expected a power of two of at least {WORD_BITS}")
        if self.hashes < 1 or self.granule < 1:
            raise UserError(f"filters have {self.hashes} hashes of {self.granule} bytes, expected at least 1 of each")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the settings that ``BITS[,HASHES[,GRANULE]]`` stands for. Raises UserError for other text."""
        words = text.split(",")
        if len(words) > 3 or not all(word.strip().isdecimal() for word in words):
            raise UserError(f"--filters takes BITS[,HASHES[,GRANULE]], such as 8192,2,512, not {text}")
        return cls(*map(int, words))

    def shape(self, blocks: int) -> tuple[int, int, int]:
        """Return ``[blocks, 2, words]``: a filter of reads and one of writes and updates for each block."""
        return blocks, 2, self.bits // WORD_BITS
