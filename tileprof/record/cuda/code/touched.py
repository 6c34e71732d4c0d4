"""Collects the bytes that blocks touch, access by access, as disjoint runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.record.cuda.footprints.runs import Runs

ADDRESS_BITS: Final = 49
"""Bits of an address; the others of a key of 64 bits count blocks."""
MOST_BLOCKS: Final = 1 << (63 - ADDRESS_BITS)
MOST_PENDING: Final = 2_000_000
"""Runs that are collected before they are united."""


class UnplacedError(ValueError):
    """An address that is none, or more blocks than can be told apart."""


@dataclass(slots=True)
class Touched:
    """What blocks touch. Blocks are taken chunk by chunk, and numbered within each.

    ``pending``: by mode, beginnings and ends of runs as keys: the block's number, then the address. ``finished``: runs
    of the chunks before.
    """

    first_block: int = 0
    pending: dict[int, list[tuple[I64, I64]]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    finished: dict[int, list[tuple[I64, I64, I64]]] = field(default_factory=dict)

    def begin(self, first_block: int) -> None:
        """Begin a chunk whose blocks count from ``first_block`` on."""
        self.first_block = first_block

    def add(self, mode: int, size: int, keys: I64, address: int | NDArray[Any]) -> None:
        """Add ``size`` bytes at an address, or at one per thread, of threads of blocks with ascending ``keys``.

        Raises `UnplacedError`.
        """
        if not len(keys):
            return
        if isinstance(address, int):
            begin = keys[np.concatenate([[True], keys[1:] != keys[:-1]])] + address
            highest, end = address, begin + size
        else:
            places = keys + address.view(np.int64)
            step = places[1:] - places[:-1]
            breaks = np.flatnonzero((step != size) & (step != 0))
            last = np.concatenate([breaks, [len(places) - 1]])
            highest = int(address[last].max())
            begin, end = places[np.concatenate([[0], breaks + 1])], places[last] + size
        if highest >= (1 << ADDRESS_BITS) - size:
            raise UnplacedError(hex(highest))
        self.pending.setdefault(mode, []).append((begin, end))
        self.counts[mode] = self.counts.get(mode, 0) + len(begin)
        if self.counts[mode] > MOST_PENDING:
            self._unite(mode)

    def end(self) -> None:
        """End a chunk."""
        for mode in self.pending:
            self._unite(mode)
            ((begin, end),) = self.pending[mode]
            low = (1 << ADDRESS_BITS) - 1
            tile = (begin >> ADDRESS_BITS) + self.first_block
            self.finished.setdefault(mode, []).append((tile, begin & low, (end - 1 & low) + 1))
        self.pending.clear()
        self.counts.clear()

    def runs(self) -> dict[int, Runs]:
        """Return what was touched, by mode, in all chunks."""
        out = {}
        for mode, parts in sorted(self.finished.items()):
            tile, start, end = (np.concatenate([part[i] for part in parts]) for i in range(3))
            out[mode] = Runs(tile, start, end, np.full(len(tile), -1))
        return out

    def _unite(self, mode: int) -> None:
        parts = self.pending[mode]
        begin, end = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        # A piece of the union begins where as many runs have ended before as have begun: the order of the ends does
        # not matter, so that both are sorted on their own.
        begin.sort()
        end.sort()
        first = np.flatnonzero(np.concatenate([[True], begin[1:] > end[:-1]]))
        self.pending[mode] = [(begin[first], end[np.concatenate([first[1:] - 1, [len(end) - 1]])])]
        # Runs that stay apart are not to be sorted over and over: the next time there are as many again.
        self.counts[mode] = min(0, MOST_PENDING - 2 * len(first))


def keys_of(blocks: I64) -> I64:
    """Return the keys of blocks, by their numbers in a chunk. Raises `UnplacedError`."""
    if int(blocks.max()) >= MOST_BLOCKS:
        raise UnplacedError("too many blocks")
    return blocks << ADDRESS_BITS
