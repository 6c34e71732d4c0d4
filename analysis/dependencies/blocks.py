"""Edges between the tiles of two launches, stored as parent sets.

Consumer tiles with the same parents share a *set*: the 224 tiles of a GEMM's row wait for the same 64 producers, and
are stored as one set of 64. All sizes are exact; nothing is expanded until someone asks for `EdgeBlock.edges`.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.analysis.dependencies.touched_bytes import Touch
from tileprof.arrays.intervals import overlaps
from tileprof.arrays.ragged import group_starts, ragged
from tileprof.errors import TraceError

MOST_DEPENDENCIES = 1 << 27
"""Most dependencies between different tiles of two launches: 4 GB."""
_MOST_PAIRS = 20_000_000
"""Overlaps held at a time: bounds the working memory of a join to about 1 GB."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeBlock:
    """Parent sets as CSR.

    ``set_of`` ``[consumer tiles]`` int32, -1 for a tile without parents. Set ``s`` has the producer tiles
    ``parent[indptr[s]:indptr[s+1]]`` (int32, ascending), and beside each the ``bytes`` (int64) of the dependency, when
    in the producer tile's life they are ``last`` touched and when in the consumer tile's they are ``first`` needed
    (float32, fractions, NaN unknown).
    """

    set_of: NDArray[np.int32]
    indptr: NDArray[np.int64]
    parent: NDArray[np.int32]
    bytes: NDArray[np.int64]
    last: NDArray[np.float32]
    first: NDArray[np.float32]

    @property
    def sets(self) -> int:
        return len(self.indptr) - 1

    @property
    def children(self) -> int:
        """Consumer tiles that have a parent."""
        return int(np.count_nonzero(self.set_of >= 0))

    @property
    def parents(self) -> int:
        """Distinct producer tiles that have a child."""
        return len(np.unique(self.parent))

    def uses(self) -> NDArray[np.int64]:
        """Return consumer tiles of each set."""
        return np.bincount(self.set_of[self.set_of >= 0], minlength=self.sets).astype(np.int64)

    @property
    def count(self) -> int:
        """Edges, one per pair of tiles."""
        return int((self.uses() * np.diff(self.indptr)).sum())

    @property
    def total_bytes(self) -> int:
        """Bytes summed over edges."""
        sums = np.add.reduceat(self.bytes, self.indptr[:-1]) if self.sets else np.empty(0, np.int64)
        return int((self.uses() * sums).sum())

    def edges(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Return every edge as ``(producer tile, consumer tile, row)``; ``row`` indexes ``bytes``, ``last`` and
        ``first``.
        """
        consumer = np.flatnonzero(self.set_of >= 0)
        sets = self.set_of[consumer]
        owner, place = ragged(np.diff(self.indptr)[sets])
        row = self.indptr[sets[owner]] + place
        return self.parent[row], consumer[owner].astype(np.int32), row


class Source(Protocol):
    """The producer side of a join: an `Event` of a shadow."""

    @property
    def lo(self) -> NDArray[np.int64]: ...
    @property
    def hi(self) -> NDArray[np.int64]: ...
    @property
    def cls(self) -> NDArray[np.int32]: ...
    @property
    def last(self) -> NDArray[np.float32]: ...
    @property
    def touch(self) -> Touch: ...


def edge_block(source: Source, touch: Touch, tiles: int) -> EdgeBlock | None:
    """Return edges from the tiles behind ``source`` to the ``tiles`` of a launch behind ``touch``; None where nothing
    overlaps.
    """
    rows = _join(source, touch)
    if len(rows[0]) == 0:
        return None
    consumer, producer, size, last, first = rows
    starts = group_starts(consumer)
    group, representative = equal_lists(np.append(starts, len(consumer)), (producer, size, last, first))
    stops = np.append(starts[1:], len(consumer))
    owner, place = ragged((stops - starts)[representative])
    row = starts[representative[owner]] + place
    members, member = ragged(np.diff(source.touch.indptr)[producer[row]])
    row, owner = row[members], owner[members]
    parent = source.touch.tiles[source.touch.indptr[producer[row]] + member]
    order = np.lexsort((parent, owner))
    row, owner = row[order], owner[order]
    indptr = np.searchsorted(owner, np.arange(len(representative) + 1))
    set_of_class = np.full(touch.classes, -1, np.int32)
    set_of_class[consumer[starts]] = group
    set_of = np.full(tiles, -1, np.int32)
    touching = touch.class_of >= 0
    set_of[touching] = set_of_class[touch.class_of[touching]]
    return EdgeBlock(set_of, indptr.astype(np.int64), parent[order].astype(np.int32), size[row], last[row], first[row])


class Joins:
    """`edge_block`, computed once for equal bytes and tiles wherever in their buffers they lie."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[bytes, bytes, bytes, int], EdgeBlock | None] = {}
        self._touches: dict[int, tuple[Touch, bytes, bytes]] = {}

    def block(self, source: Source, touch: Touch, tiles: int) -> EdgeBlock | None:
        """Return the same as `edge_block`."""
        base = touch.lo[0]
        events = _digest(source.lo - base, source.hi - base, source.cls, source.last)
        key = (events, self._digests(source.touch)[0], self._digests(touch)[1], tiles)
        if key not in self._blocks:
            self._blocks[key] = edge_block(source, touch, tiles)
        return self._blocks[key]

    def _digests(self, touch: Touch) -> tuple[bytes, bytes]:
        """Return digests of what a join reads of a touch as its source, and of the other one."""
        digests = self._touches.get(id(touch))
        if digests is None:
            base = touch.lo[0]
            tiles = _digest(touch.indptr, touch.tiles)
            digests = touch, tiles, _digest(touch.lo - base, touch.hi - base, touch.cls, touch.first, touch.class_of)
            self._touches[id(touch)] = digests
        return digests[1:]


def _digest(*columns: NDArray[np.generic]) -> bytes:
    total = blake2b(digest_size=16)
    for column in columns:
        total.update(len(column).to_bytes(8, "little"))
        total.update(np.ascontiguousarray(column).data)
    return total.digest()


_Rows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]


def _join(source: Source, touch: Touch) -> _Rows:
    """Return overlaps summed by consumer class and producer class: ``(consumer, producer, bytes, last, first)``,
    sorted.
    """
    width = source.touch.classes
    parts = []
    begin = pairs_count = 0
    reach = np.maximum.accumulate(source.hi)
    while begin < len(touch.lo):
        stop = min(len(touch.lo), begin + _chunk(source, touch, begin))
        lo, hi = touch.lo[begin:stop], touch.hi[begin:stop]
        left = np.searchsorted(reach, lo[0], "right")
        right = np.searchsorted(source.lo, hi.max(), "left")
        a, b = overlaps(lo, hi, source.lo[left:right], source.hi[left:right])
        a, b = a + begin, b + left
        size = np.minimum(touch.hi[a], source.hi[b]) - np.maximum(touch.lo[a], source.lo[b])
        key = touch.cls[a].astype(np.int64) * width + source.cls[b]
        parts.append(_sum(key, size, source.last[b], touch.first[a]))
        begin = stop
        pairs_count += len(parts[-1][0])
        if pairs_count > MOST_DEPENDENCIES:
            raise TraceError(
                f"two launches have more than {MOST_DEPENDENCIES:,} dependencies of different tiles, which are not "
                "worked out: record with larger tiles, or fewer launches"
            )
    merged = parts[0] if len(parts) == 1 else _sum(*(np.concatenate(c) for c in zip(*parts, strict=True)))
    key, size, last, first = merged
    return key // width, key % width, size, last, first


def _chunk(source: Source, touch: Touch, begin: int) -> int:
    """Return segments of ``touch`` to join at once, guessed from how many of ``source`` begin within the next ones."""
    stop = min(len(touch.lo), begin + 65536)
    ends = np.searchsorted(source.lo, touch.hi[begin:stop], "left")
    starts = np.searchsorted(source.lo, touch.lo[begin:stop], "left")
    pairs_count = int((ends - starts).sum()) + (stop - begin)
    return max(1, int((stop - begin) * min(1024.0, _MOST_PAIRS / pairs_count)))


def _sum(
    key: NDArray[np.int64], size: NDArray[np.int64], last: NDArray[np.float32], first: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = group_starts(key)
    if len(starts) == 0:
        return key, size, last, first
    return (
        key[starts],
        np.add.reduceat(size[order], starts),
        np.maximum.reduceat(last[order], starts),
        np.minimum.reduceat(first[order], starts),
    )


def merge_blocks(blocks: list[EdgeBlock]) -> EdgeBlock:
    """Return one block with the edges of all: bytes add up, the earliest ``first`` and the latest ``last`` hold."""
    if len(blocks) == 1:
        return blocks[0]
    tiles = np.stack([b.set_of for b in blocks], axis=1)
    touching = np.flatnonzero((tiles >= 0).any(axis=1))
    indptr = np.arange(len(touching) + 1, dtype=np.int64) * len(blocks)
    group, representative = equal_lists(indptr, (tiles[touching].reshape(-1),))
    chosen = tiles[touching[representative]]
    owners, rows = [], []
    for number, block in enumerate(blocks):
        sets = np.flatnonzero(chosen[:, number] >= 0)
        old = chosen[sets, number]
        owner, place = ragged(np.diff(block.indptr)[old])
        owners.append(sets[owner])
        rows.append(block.indptr[old[owner]] + place)
    columns = [
        np.concatenate([getattr(b, name)[row] for b, row in zip(blocks, rows, strict=True)])
        for name in ("parent", "bytes", "last", "first")
    ]
    owner = np.concatenate(owners)
    width = int(columns[0].max()) + 1
    key, size, last, first = _sum(owner * width + columns[0], *columns[1:])
    set_of = np.full(len(tiles), -1, np.int32)
    set_of[touching] = group
    ends = np.searchsorted(key // width, np.arange(len(representative) + 1))
    return EdgeBlock(set_of, ends.astype(np.int64), (key % width).astype(np.int32), size, last, first)
