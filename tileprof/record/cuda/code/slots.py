"""Words of shared memory that decide something: what was stored in them, by any thread.

A place is the number of the block whose memory it is, and in the low 24 bits the byte there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tileprof.arrays import I64
from tileprof.record.cuda.code.lanes import Array

PLACE_BITS = 24
_WORD = 4


@dataclass(slots=True)
class Slots:
    """Stores to shared memory: known words (place, value), and ranges (places, bytes) of unknown contents.

    ``relied``: words that were loaded as known. ``anywhere``: whether something was stored at a place that is not
    known.
    """

    words: list[I64] = field(default_factory=list)
    ranges: dict[int, list[I64]] = field(default_factory=dict)
    relied: list[I64] = field(default_factory=list)
    anywhere: bool = False

    def store_words(self, place: I64, value: I64) -> None:
        """Note known words at multiples of 4."""
        self.words.append(np.unique(np.stack([place, value], axis=1), axis=0))

    def store_unknown(self, place: I64, size: int) -> None:
        """Note bytes of unknown contents."""
        self.ranges.setdefault(size, []).append(np.unique(place))

    def load(self, place: I64) -> tuple[I64, Array]:
        """Return the words at places, and where they are known; these are relied on."""
        value, known = self._at(place)
        if known.any():
            self.relied.append(np.unique(np.stack([place[known], value[known]], axis=1), axis=0))
        return value, known

    def hold(self) -> bool:
        """Return whether what was relied on holds in view of everything that was stored."""
        for table in self.relied:
            value, known = self._at(table[:, 0])
            if not known.all() or (value != table[:, 1]).any():
                return False
        return True

    def _at(self, place: I64) -> tuple[I64, Array]:
        """Return the number stored at each place, and whether no other one and nothing else was stored there."""
        value, known = np.zeros(len(place), np.int64), np.zeros(len(place), bool)
        if self.anywhere or not self.words:
            return value, known
        table = np.unique(np.concatenate(self.words), axis=0)
        self.words = [table]
        first = np.searchsorted(table[:, 0], place)
        known = np.searchsorted(table[:, 0], place, side="right") - first == 1
        value[known] = table[first[known], 1]
        for size, parts in self.ranges.items():
            places = np.unique(np.concatenate(parts))
            self.ranges[size] = [places]
            # The last of these that begins before the word ends
            at = np.searchsorted(places, place + _WORD) - 1
            known &= ~((at >= 0) & (places[np.maximum(at, 0)] + size > place))
        return value, known
