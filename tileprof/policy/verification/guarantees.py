"""The tiles that have surely ended when a tile continues: the closure of a policy's waits.

A wait for value ``v`` on a semaphore that ``n`` tiles post guarantees

* all ``n`` tiles if ``v == n``,
* no tile in particular if ``v < n`` (any ``v`` of them may have posted), but what more than ``n - v`` of them awaited,
* and never ends if ``v > n``.

What a tile is guaranteed it inherits: the tiles it awaits had their own guarantees when they ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.policy.format.lowering import Waits

_MOST_LISTED: Final = 50_000_000
"""Elements of lists that are put together; beyond them bits are smaller and faster."""


@dataclass(frozen=True, slots=True)
class DenseGuarantee:
    """Producer tiles that consumer tiles are guaranteed: tile ``c`` has the bits ``bits[row_of[c]]``, one a producer
    tile.
    """

    row_of: I64
    bits: NDArray[np.uint8]

    def holds(self, parent: I64, child: I64) -> NDArray[np.bool_]:
        """Return whether each (producer tile, consumer tile) is guaranteed."""
        byte = self.bits[self.row_of[child], parent >> 3]
        bits: NDArray[np.bool_] = (byte >> (parent & 7).astype(np.uint8) & 1).astype(bool)
        return bits

    def dense(self) -> DenseGuarantee:
        return self

    def __or__(self, other: DenseGuarantee) -> DenseGuarantee:
        rows = np.stack([self.row_of, other.row_of], axis=1)
        group, first = equal_lists(np.arange(len(rows) + 1, dtype=np.int64) * 2, (rows.reshape(-1),))
        own, others = rows[first].T
        return DenseGuarantee(group.astype(np.int64), self.bits[own] | other.bits[others])


@dataclass(frozen=True, slots=True)
class SparseGuarantee:
    """Guarantees as lists: tile ``c`` has the producer tiles ``tile[indptr[r]:indptr[r + 1]]``, ascending, of row ``r =
    row_of[c]``.

    Where every tile waits for few of many this is a thousandth of the bits.
    """

    row_of: I64
    indptr: I64
    tile: I64
    producers: int

    def holds(self, parent: I64, child: I64) -> NDArray[np.bool_]:
        owner, _ = ragged(np.diff(self.indptr))
        keys, asked_keys = owner * self.producers + self.tile, self.row_of[child] * self.producers + parent
        place = np.minimum(np.searchsorted(keys, asked_keys), len(keys) - 1)
        return keys[place] == asked_keys if len(keys) else np.zeros(len(parent), bool)

    def dense(self) -> DenseGuarantee:
        rows = len(self.indptr) - 1
        owner, _ = ragged(np.diff(self.indptr))
        bits = np.zeros((rows, -(-self.producers // 8)), np.uint8)
        np.add.at(bits, (owner, self.tile >> 3), (1 << (self.tile & 7)).astype(np.uint8))
        return DenseGuarantee(self.row_of, bits)

    def smaller_form(self) -> DenseGuarantee | SparseGuarantee:
        """Return the smaller of the two forms."""
        rows = len(self.indptr) - 1
        return self if len(self.tile) * 64 <= rows * self.producers else self.dense()


class Guarantees:
    """Guarantees between pairs of stages, built edge by edge in order of the consumer stage.

    ``pairs`` are those that will be asked for: what no later stage asks about is not carried along.
    """

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._until: dict[int, int] = {}
        for producer, consumer in pairs:
            self._until[producer] = max(consumer, self._until.get(producer, 0))
        self._guarantees: dict[tuple[int, int], DenseGuarantee | SparseGuarantee] = {}
        self._before: dict[int, list[int]] = {}

    def add(self, waits: Waits, stages: tuple[int, int]) -> None:
        """Add an edge from stage ``stages[0]`` to ``stages[1]``; all edges into ``stages[0]`` must have been added."""
        through, stage = stages
        direct = _direct(waits)
        self._merge((through, stage), direct.smaller_form())
        for before in self._before.get(through, []):
            if self._until.get(before, 0) >= stage:
                inherited = self._guarantees[before, through]
                self._merge((before, stage), _inherit(direct, inherited))
                weak = _by_count(waits, inherited)
                if weak is not None:
                    self._merge((before, stage), weak)

    def holds(self, producer: int, consumer: int, parent: I64, child: I64) -> NDArray[np.bool_]:
        """Return whether, for each tile of stage ``producer`` and of ``consumer``, the first has surely ended when the
        second continues.
        """
        guarantee = self._guarantees.get((producer, consumer))
        return np.zeros(len(parent), bool) if guarantee is None else guarantee.holds(parent, child)

    def _merge(self, key: tuple[int, int], guarantee: DenseGuarantee | SparseGuarantee) -> None:
        earlier = self._guarantees.get(key)
        self._guarantees[key] = guarantee if earlier is None else earlier.dense() | guarantee.dense()
        if earlier is None:
            self._before.setdefault(key[1], []).append(key[0])


def _direct(waits: Waits) -> SparseGuarantee:
    full = waits.value == waits.posts[waits.semaphore]
    group, first = equal_lists(waits.indptr, (waits.semaphore, full.astype(np.int8)))
    owner, place = ragged(np.diff(waits.indptr)[first])
    wait = waits.indptr[first[owner]] + place
    by_semaphore = np.argsort(waits.of, kind="stable")
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(waits.posts)])
    semaphore = waits.semaphore[wait]
    pick, member = ragged(np.where(full[wait], waits.posts[semaphore], 0))
    tile = by_semaphore[starts[semaphore[pick]] + member]
    return _sparse(group.astype(np.int64), len(first), owner[pick], tile, len(waits.of))


def _sparse(row_of: I64, rows: int, owner: I64, tile: I64, producers: int) -> SparseGuarantee:
    """Return lists of (row, producer tile), each once."""
    keys = np.unique(owner * producers + tile)
    indptr = np.searchsorted(keys, np.arange(rows + 1) * producers).astype(np.int64)
    return SparseGuarantee(row_of, indptr, keys % producers, producers)


def _inherit(direct: SparseGuarantee, inherited: DenseGuarantee | SparseGuarantee) -> DenseGuarantee | SparseGuarantee:
    """Return everything that the awaited tiles were guaranteed."""
    rows = len(direct.indptr) - 1
    owner, _ = ragged(np.diff(direct.indptr))
    if isinstance(inherited, SparseGuarantee):
        through = np.unique(owner * len(inherited.indptr) + inherited.row_of[direct.tile])
        owner, row = through // len(inherited.indptr), through % len(inherited.indptr)
        sizes = np.diff(inherited.indptr)[row]
        if int(sizes.sum()) <= _MOST_LISTED:
            pick, place = ragged(sizes)
            tile = inherited.tile[inherited.indptr[row[pick]] + place]
            return _sparse(direct.row_of, rows, owner[pick], tile, inherited.producers).smaller_form()
        inherited = inherited.dense()
    result = np.zeros((rows, inherited.bits.shape[1]), np.uint8)
    for number in range(rows):
        tiles = direct.tile[direct.indptr[number] : direct.indptr[number + 1]]
        if len(tiles):
            result[number] = np.bitwise_or.reduce(inherited.bits[np.unique(inherited.row_of[tiles])], axis=0)
    return DenseGuarantee(direct.row_of, result)


def _by_count(waits: Waits, guarantee: DenseGuarantee | SparseGuarantee) -> DenseGuarantee | None:
    """Return what waits below the full count guarantee: a tile if too few of those that post could have run
    without it.
    """
    weak = np.flatnonzero((waits.value < waits.posts[waits.semaphore]) & (waits.value > 0))
    if len(weak) == 0:
        return None
    inherited = guarantee.dense()
    bits = np.zeros((len(waits.indptr) - 1, inherited.bits.shape[1]), np.uint8)
    owner, _ = ragged(np.diff(waits.indptr))
    for semaphore, value in {(int(waits.semaphore[w]), int(waits.value[w])) for w in weak}:
        rows = inherited.bits[inherited.row_of[waits.of == semaphore]]
        depending = np.unpackbits(rows, axis=1, bitorder="little").sum(axis=0)
        sure = np.packbits(depending > waits.posts[semaphore] - value, bitorder="little")
        waiting = owner[weak[(waits.semaphore[weak] == semaphore) & (waits.value[weak] == value)]]
        bits[waiting] |= sure
    return DenseGuarantee(np.arange(len(bits), dtype=np.int64), bits)
