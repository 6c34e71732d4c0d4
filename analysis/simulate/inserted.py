"""Bloom filters that thread blocks filled while they ran, held against the exact dependencies of the same run.

Kuper, Pati and Sinclair's proposal gives a waiting block's address ranges to a filter as hints. Here the hints are what
the block was recorded to touch, and the filters are what earlier blocks inserted on the device
(`tileprof.record.source`), so that every false or missed dependency is the filters' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.simulate.bloom import Bits, Filters, conflicts, count, marks, numbered, pair_bits, touched
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.trace import Recording

ELEMENT = 4
"""Bytes within which two accesses conflict: exact for elements of four bytes and more."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Pairs of an earlier and a later block of different launches, by what filters and exact footprints say."""

    pairs: int
    dependent: int
    """They touch the same bytes, and one of them writes."""
    answered: int
    """The filters say that they may."""
    missed: int
    """Dependent, and the filters deny it: must be 0."""
    granular: int
    """False answers that share a granule, which no filter of this granule tells apart."""
    unequal: int
    """Filters whose bits differ from those that the recorded accesses stand for: must be 0."""

    @property
    def false(self) -> int:
        """Pairs that would wait for nothing."""
        return self.answered - (self.dependent - self.missed)


def answers(
    trace: Recording, words: Mapping[int, NDArray[np.uint32]], filters: Filters, granule: int, window: int
) -> Answers:
    """Ask the filters of each launch about all blocks of the next ``window`` launches.

    ``words`` ``[blocks, 2, words of 32 bits]`` per launch, reads first. Raises UserError where they are not of this
    trace.
    """
    launches = sorted(words)
    for launch in launches:
        tiles = trace.footprint(int(trace.launches["footprint"].iloc[launch])).tiles
        if words[launch].shape != (tiles, 2, filters.bits // 32):
            raise UserError(
                f"launch {launch} has {tiles} tiles and filters of {filters.bits} bits, but words of shape "
                f"{words[launch].shape}"
            )
    hints = [touched(trace, launch, granule) for launch in launches]
    exact = pair_bits(*numbered([touched(trace, launch, ELEMENT) for launch in launches]))
    shared = pair_bits(*numbered(hints))
    pairs = dependent = answered = missed = granular = unequal = 0
    for p, before in enumerate(hints):
        table = tuple(_rows(words[launches[p]][:, side]) for side in (0, 1))
        expected = [marks(side, filters, slice(None)) for side in (before.read, before.written)]
        unequal += sum(int((a != b).any()) for a, b in zip(table, expected, strict=True))
        for c in range(p + 1, min(p + 1 + window, len(launches))):
            answer = conflicts((table[0], table[1]), hints[c], filters)
            true = exact.get((p, c), np.zeros_like(answer))
            pairs += before.read.tiles * hints[c].read.tiles
            dependent, answered = dependent + count(true), answered + count(answer)
            missed += count(true & ~answer)
            granular += count(answer & ~true & shared.get((p, c), np.zeros_like(answer)))
    return Answers(pairs, dependent, answered, missed, granular, unequal)


def _rows(words: NDArray[np.uint32]) -> Bits:
    """Return ``[bits, words of 64 tiles]`` of filters ``[tiles, words of 32 bits]``, as `marks` has them."""
    tiles = len(words)
    flags = np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), axis=1, bitorder="little")
    padded = np.zeros((flags.shape[1], -(-tiles // 64) * 64), np.uint8)
    padded[:, :tiles] = flags.T
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)
