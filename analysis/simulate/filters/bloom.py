"""Bloom filters over recorded addresses: which tiles a filter takes for dependent.

Every tile has a filter of the granules that it writes and one of those that it reads, ``bits`` wide, ``hashes`` bits a
granule (Bloom, "Space/time trade-offs in hash coding with allowable errors", 1970). A later tile depends on an earlier
one, for all the filters can tell, if a granule that it reads or writes may be among those written, or one that it
writes among those read.

Filters of all tiles of a launch stand side by side, as one row of tiles for each bit: then a granule is looked up in
all of them by the conjunction of a few rows. Boxes that many tiles share are looked up once. ::

    granule --hash--> rows of `marks` --and--> tiles that may have it --or, over a box, over a tile's boxes--> parents
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled
from tileprof.arrays.filter_bits import filter_bits
from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError
from tileprof.trace.footprint import READ, Boxes

if TYPE_CHECKING:
    from tileprof.trace import Recording

Bits = NDArray[np.uint64]

_MOST_BYTES = 1 << 28
"""Most bytes of a table of filters, which is otherwise made in parts, and of the pairs of tiles of two launches."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Size and hashing of a filter; ``hashes`` 0: no hashing, every granule has a bit of its own."""

    bits: int
    hashes: int

    def rows(self, granules: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``[granules, hashes]`` bits that stand for a granule."""
        if self.hashes == 0:
            return granules[:, None]
        return filter_bits(granules, self.bits, self.hashes)


class Side(NamedTuple):
    """Accesses of one mode by the tiles of a launch: distinct boxes, their granules and the tiles that have them."""

    tiles: int
    granule: NDArray[np.int64]
    box: NDArray[np.int64]
    """``[granules]`` ascending."""
    owner: NDArray[np.int64]
    """``[entries]`` a tile and, in ``owned``, a box that it has."""
    owned: NDArray[np.int64]
    boxes: int

    @property
    def words(self) -> int:
        return -(-self.tiles // 64)


class Touched(NamedTuple):
    """Granules of a launch. Atomic updates count as written, so that they wait for each other too."""

    read: Side
    written: Side


def touched(trace: Recording, launch: int, granule: int) -> Touched:
    """Return the granules of ``granule`` bytes that each tile of a launch touches, at the addresses at which its
    buffers lie.
    """
    footprint = trace.footprint(int(trace.launches["footprint"].iloc[launch]))
    buffer, offset = trace.operands_of(launch)
    base = trace.buffers["base"].to_numpy(np.int64)[buffer] + offset
    boxes = footprint.boxes
    return Touched(
        _side(boxes.take(boxes.mode == READ), base, footprint.tiles, granule),
        _side(boxes.take(boxes.mode != READ), base, footprint.tiles, granule),
    )


def _side(boxes: Boxes, base: NDArray[np.int64], tiles: int, granule: int) -> Side:
    boxes = boxes.normalised()
    columns = (boxes.length, boxes.count_0, boxes.stride_0, boxes.count_1, boxes.stride_1)
    shapes = np.stack([base[boxes.operand] + boxes.offset, *columns], axis=1).astype(np.int64)
    distinct, owned = np.unique(shapes, axis=0, return_inverse=True)
    begin, length, count_0, stride_0, count_1, stride_1 = distinct.reshape(-1, 6).T
    box, place = ragged(count_0 * count_1)
    low = begin[box] + place % count_0[box] * stride_0[box] + place // count_0[box] * stride_1[box]
    first, last = low // granule, (low + length[box] - 1) // granule
    run, step = ragged(last - first + 1)
    return Side(tiles, first[run] + step, box[run], boxes.tile.astype(np.int64), owned.ravel(), len(distinct))


def marks(side: Side, filters: Filters, words: slice) -> Bits:
    """Return ``[bits, words]``: bit t of a row is set where the filter of tile t has the row's bit; of some words of
    tiles.
    """
    tiles = np.zeros((side.boxes, side.words), np.uint64)
    _own(tiles, side.owner, side.owned)
    tiles = np.ascontiguousarray(tiles[:, words])
    table = np.zeros((filters.bits, tiles.shape[1]), np.uint64)
    _mark(table, tiles, filters.rows(side.granule), side.box)
    return table


def filter_words(launch: Touched, filters: Filters) -> NDArray[np.uint32]:
    """Return ``[tiles, 2, words of 32 bits]``: the filters of a launch's reads and writes as devices store them."""
    sides = []
    for side in launch:
        table = marks(side, filters, slice(None)).astype("<u8").view(np.uint8)
        tiles = np.unpackbits(table, axis=1, bitorder="little")[:, : side.tiles].T
        sides.append(np.packbits(np.ascontiguousarray(tiles), axis=1, bitorder="little").view("<u4"))
    return np.stack(sides, axis=1)


def probe(table: Bits, side: Side, filters: Filters) -> Bits:
    """Return ``[tiles, words]``: the tiles in whose filter some granule of a tile may be."""
    boxes = np.zeros((side.boxes, table.shape[1]), np.uint64)
    _look_up(table, filters.rows(side.granule), side.box, boxes)
    bits = np.zeros((side.tiles, table.shape[1]), np.uint64)
    np.bitwise_or.at(bits, side.owner, boxes[side.owned])
    return bits


@compiled
def _own(tiles: Bits, owner: NDArray[np.int64], owned: NDArray[np.int64]) -> None:
    for e in range(len(owner)):
        tiles[owned[e], owner[e] // 64] |= np.uint64(1) << np.uint64(owner[e] % 64)


@compiled
def _mark(table: Bits, tiles: Bits, rows: NDArray[np.int64], box: NDArray[np.int64]) -> None:
    for g in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            for w in range(table.shape[1]):
                table[rows[g, j], w] |= tiles[box[g], w]


@compiled
def _look_up(table: Bits, rows: NDArray[np.int64], box: NDArray[np.int64], bits: Bits) -> None:
    for g in range(rows.shape[0]):
        for w in range(table.shape[1]):
            all_set = table[rows[g, 0], w]
            for j in range(1, rows.shape[1]):
                all_set &= table[rows[g, j], w]
            bits[box[g], w] |= all_set


def conflicts(before: tuple[Bits, Bits], after: Touched, filters: Filters) -> Bits:
    """Return ``[tiles after, words before]``: tiles of a launch that each tile of a later one depends on; ``before``:
    marks of the earlier launch's reads and writes.
    """
    read, written = before
    bits = probe(written, after.read, filters)
    bits |= probe(written, after.written, filters)
    bits |= probe(read, after.written, filters)
    return bits


def numbered(launches: list[Touched]) -> tuple[list[Touched], Filters]:
    """Return the same with granules numbered from 0, and filters in which each has its own bit: what no hashing would
    find.

    Granules that no tile writes (weights) carry no dependency and are dropped.
    """
    every = np.unique(np.concatenate([t.written.granule for t in launches]))

    def renamed(side: Side) -> Side:
        at = np.searchsorted(every, side.granule)
        common = at < len(every)
        common[common] = every[at[common]] == side.granule[common]
        return side._replace(granule=at[common].astype(np.int64), box=side.box[common])

    return [Touched(renamed(t.read), renamed(t.written)) for t in launches], Filters(max(1, len(every)), 0)


def pair_bits(launches: list[Touched], filters: Filters) -> dict[tuple[int, int], Bits]:
    """Return `conflicts` of every ordered pair of launches that has any. Raises UserError where two launches have too
    many tiles.
    """
    pairs_of: dict[tuple[int, int], Bits] = {}
    for p, before in enumerate(launches):
        answers = bits_after(before, launches[p + 1 :], filters)
        pairs_of |= {(p, p + 1 + c): bits for c, bits in enumerate(answers) if bits.any()}
    return pairs_of


def bits_after(before: Touched, later: list[Touched], filters: Filters) -> list[Bits]:
    """Return `conflicts` of each later launch with ``before``. Raises UserError where there are too many tiles."""
    words = before.read.words
    answers = [np.zeros((checked(launch.read.tiles, words), words), np.uint64) for launch in later]
    step = max(1, _MOST_BYTES // (filters.bits * 8))
    for first in range(0, words if later else 0, step):
        some = slice(first, first + step)
        tables = marks(before.read, filters, some), marks(before.written, filters, some)
        for launch, bits in zip(later, answers, strict=True):
            bits[:, some] = conflicts(tables, launch, filters)
    return answers


def checked(tiles: int, words: int) -> int:
    """Return ``tiles``. Raises UserError where they have too many pairs with ``words`` of 64 tiles."""
    if tiles * words * 8 > _MOST_BYTES:
        raise UserError(
            f"{tiles:,} tiles against about {64 * words:,} of another launch are too many pairs for filters of "
            "single tiles"
        )
    return tiles


def count(bits: Bits) -> int:
    """Return pairs of tiles."""
    return int(np.bitwise_count(bits).sum())
