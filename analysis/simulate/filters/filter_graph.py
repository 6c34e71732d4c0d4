"""The tile graph that Bloom filters alone give, which thread blocks filled while they ran.

A scheduler that knows what every block inserted in an earlier step of a loop can hold back blocks of the next one,
without an access having been logged. Two blocks may depend on each other if their filters may share a granule that one
of them writes: a granule sets ``hashes`` bits, which filters of both then have in common. Filters hold all that a block
touches, so that the graph is a superset of the exact one; `against` proves it for a recording that has both.

Bits of a granule alternate between even and odd ones (`tileprof.arrays.filter_bits` steps by an odd number), so that
filters which have only even or only odd bits in common share nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.graph import HAZARDS, TileGraph
from tileprof.analysis.simulate.filters.bloom import (
    Bits,
    Filters,
    checked,
    count,
    filter_words,
    numbered,
    pair_bits,
    touched,
)
from tileprof.errors import TraceError, UserError
from tileprof.trace.filters import StoredFilters, read

if TYPE_CHECKING:
    from tileprof.trace import Recording

BASIS = "dependencies by Bloom filters, a superset of those by accesses"
_ELEMENT = 4
"""Bytes within which two accesses conflict: exact for elements of four bytes and more."""
_READS, _WRITES = 0, 1
_SIDES = {"RAW": (_WRITES, _READS), "WAR": (_READS, _WRITES), "WAW": (_WRITES, _WRITES)}
"""Filters of the earlier and of the later block, by hazard."""


class _Side(NamedTuple):
    """Filters of one mode of a launch's tiles: those that differ, and what all have together."""

    rows: Bits
    """``[bits, words of 64 tiles]``."""
    class_of: NDArray[np.int64]
    """``[tiles]`` one of the filters that differ."""
    at: NDArray[np.int64]
    """``[classes + 1]``: where the bits of a class begin in ``bit``."""
    bit: NDArray[np.int64]
    every: NDArray[np.uint32]
    """The disjunction of all."""
    digest: bytes


@dataclass(frozen=True, slots=True)
class Agreement:
    """Pairs of tiles of different launches that depend on each other, by filters and by accesses of the same run."""

    by_filters: int
    exact: int
    lacking: int
    """Number of exact pairs that the filters lack: must be 0."""
    conflicting: int
    """Pairs by filters that touch the same bytes: `exact` and those that launches in between order too."""

    @property
    def false(self) -> int:
        """Pairs that share no byte that either writes."""
        return self.by_filters - self.conflicting


def filter_graph(trace: Recording, stored: StoredFilters | None = None) -> TileGraph:
    """Return the dependencies that filters cannot exclude, between all pairs of launches: those of the trace, if
    no others are given.

    An edge lasts from the end of the earlier tile to the begin of the later one, and stands for one granule: filters do
    not say when a tile touches what, nor how many bytes. Hazards of recycled memory are not told apart. Copies and
    fills, whose ranges the driver's call names, have the filters of these ranges; other launches without filters may
    touch anything. Raises UserError for a trace without filters, TraceError for filters of another trace.
    """
    stored = stored or read(trace.path)
    if stored is None:
        raise UserError(f"{trace.path} has no filters: record it with --filters 8192,2,512")
    if stored.launches and stored.launches[-1].launch >= len(trace.launches):
        raise TraceError(f"{trace.path}: its filters are of a launch that is not there: record it again")
    words = [_words(trace, stored, launch) for launch in range(len(trace.launches))]
    sides = [tuple(_side(filters[:, side]) for side in (_READS, _WRITES)) for filters in words]
    blocks: list[EdgeBlock] = []
    numbers: dict[tuple[bytes, bytes], int] = {}
    rows: list[tuple[int, int, str, int]] = []
    for consumer in range(len(words)):
        for producer in range(consumer):
            for hazard in HAZARDS:
                before, after = sides[producer][_SIDES[hazard][0]], sides[consumer][_SIDES[hazard][1]]
                if not _may_share(before.every, after.every, stored.hashes):
                    continue
                key = before.digest, after.digest
                if key not in numbers:
                    checked(len(after.class_of), before.rows.shape[1])
                    numbers[key] = len(blocks)
                    blocks.append(_block(_shared(before, after, stored.hashes), after.class_of, stored.granule))
                if blocks[numbers[key]].sets:
                    rows.append((producer, consumer, hazard, numbers[key]))
    tiles = trace.launches["tiles"].to_numpy(np.int64)
    base = np.concatenate([np.zeros(1, np.int64), np.cumsum(tiles)])
    return TileGraph(trace.launches, trace.footprint, base, _links(sorted(rows), blocks), blocks, trace, BASIS)


def against(graph: TileGraph, exact: TileGraph) -> Agreement:
    """Return how the graph of filters compares with the exact one of the same recording."""
    trace = exact.recording
    launches = [touched(trace, launch, _ELEMENT) for launch in range(len(trace.launches))]
    own, true = _pairs(graph), _pairs(exact)
    conflicts = pair_bits(*numbered(launches)) if launches else {}
    lacking = sum(count(bits & ~own[pair]) if pair in own else count(bits) for pair, bits in true.items())
    either = {pair: conflicts[pair] if pair in conflicts else np.zeros_like(bits) for pair, bits in own.items()}
    conflicting = sum(count(bits & (either[pair] | true.get(pair, either[pair]))) for pair, bits in own.items())
    return Agreement(sum(map(count, own.values())), sum(map(count, true.values())), lacking, conflicting)


def _words(trace: Recording, stored: StoredFilters, launch: int) -> NDArray[np.uint32]:
    """Return ``[tiles, 2, words of 32 bits]``."""
    row = trace.launches.iloc[launch]
    mine = next((f.words for f in stored.launches if f.launch == launch), None)
    if mine is not None:
        if len(mine) != row["tiles"]:
            raise TraceError(f"{trace.path}: launch {launch} has {row['tiles']} tiles, but filters of {len(mine)}")
        return mine
    if row["registers"] > 0 or row["coverage"] == "conservative":
        return np.full((int(row["tiles"]), 2, stored.bits // 32), 0xFFFFFFFF, np.uint32)
    return filter_words(touched(trace, launch, stored.granule), Filters(stored.bits, stored.hashes))


def _side(words: NDArray[np.uint32]) -> _Side:
    distinct, class_of = np.unique(words, axis=0, return_inverse=True)
    flags = _flags(words)
    tiles, bits = flags.shape
    padded = np.zeros((bits, -(-tiles // 64) * 64), np.uint8)
    padded[:, :tiles] = flags.T
    rows = np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)
    owner, bit = np.nonzero(_flags(distinct))
    at = np.searchsorted(owner, np.arange(len(distinct) + 1))
    digest = blake2b(np.ascontiguousarray(words).data, digest_size=16).digest()
    return _Side(rows, class_of.ravel(), at, bit, np.bitwise_or.reduce(words, axis=0), digest)


def _flags(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return ``[tiles, bits]``."""
    return np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), axis=1, bitorder="little")


def _may_share(before: NDArray[np.uint32], after: NDArray[np.uint32], hashes: int) -> bool:
    """Return whether two filters may have a granule in common."""
    common = before & after
    even, odd = (int(np.bitwise_count(common & np.uint32(mask)).sum()) for mask in (0x55555555, 0xAAAAAAAA))
    return even + odd >= hashes and (hashes == 1 or bool(even and odd))


def _shared(before: _Side, after: _Side, hashes: int) -> Bits:
    """Return ``[classes after, words before]``: the earlier tiles with which a filter may share a granule."""
    shared = np.zeros((len(after.at) - 1, before.rows.shape[1]), np.uint64)
    _common(before.rows, after.at, after.bit, hashes, shared)
    return shared


@compiled
def _common(rows: Bits, at: NDArray[np.int64], bit: NDArray[np.int64], hashes: int, shared: Bits) -> None:
    width = rows.shape[1]
    common_bits = np.zeros((hashes, width), np.uint64)  # row j: tiles with more than j bits in common
    parity = np.zeros((2, width), np.uint64)
    for own in range(len(at) - 1):
        common_bits[:] = 0
        parity[:] = 0
        for place in range(at[own], at[own + 1]):
            row = bit[place]
            for w in range(width):
                tiles = rows[row, w]
                for j in range(hashes - 1, 0, -1):
                    common_bits[j, w] |= common_bits[j - 1, w] & tiles
                common_bits[0, w] |= tiles
                parity[row % 2, w] |= tiles
        for w in range(width):
            shared[own, w] = common_bits[hashes - 1, w]
            if hashes > 1:
                shared[own, w] &= parity[0, w] & parity[1, w]


def _block(shared: Bits, class_of: NDArray[np.int64], granule: int) -> EdgeBlock:
    rows, of = np.unique(shared, axis=0, return_inverse=True)
    flags = np.unpackbits(np.ascontiguousarray(rows, "<u8").view(np.uint8), axis=1, bitorder="little")
    some = flags.any(axis=1)
    number = np.where(some, np.cumsum(some) - 1, -1)
    which, parent = np.nonzero(flags[some])
    indptr = np.searchsorted(which, np.arange(int(some.sum()) + 1))
    whole, none = np.ones(len(parent), np.float32), np.zeros(len(parent), np.float32)
    size = np.full(len(parent), granule, np.int64)
    set_of = number[of.ravel()][class_of].astype(np.int32)
    return EdgeBlock(set_of, indptr.astype(np.int64), parent.astype(np.int32), size, whole, none)


def _links(rows: list[tuple[int, int, str, int]], blocks: list[EdgeBlock]) -> pd.DataFrame:
    producer, consumer, hazard, which = zip(*rows, strict=True) if rows else [()] * 4
    of = np.array(which, np.int64)
    columns = {
        name: np.array([int(getattr(block, name)) for block in blocks], np.int64)[of]
        for name in ("count", "total_bytes", "parents", "children")
    }
    return pd.DataFrame(
        {
            "producer": np.array(producer, np.int64),
            "consumer": np.array(consumer, np.int64),
            "hazard": pd.Categorical(list(hazard), categories=list(HAZARDS)),
            "reuse": np.zeros(len(rows), bool),
            "block": of,
            "edges": columns["count"],
            "bytes": columns["total_bytes"],
            "parents": columns["parents"],
            "children": columns["children"],
        }
    )


def _pairs(graph: TileGraph) -> dict[tuple[int, int], Bits]:
    """Return ``[consumer tiles, words]`` bits of producer tiles, by pair of launches, whatever the hazard."""
    tiles = np.diff(graph.tile_base).tolist()
    pairs: dict[tuple[int, int], Bits] = {}
    for producer, consumer, number in graph.links[["producer", "consumer", "block"]].itertuples(index=False):
        words = -(-tiles[producer] // 64)
        bits = pairs.setdefault((producer, consumer), np.zeros((tiles[consumer], words), np.uint64))
        block = graph.blocks[number]
        sets = np.zeros((block.sets, words), np.uint64)
        for own, (begin, end) in enumerate(pairwise(block.indptr.tolist())):
            parent = block.parent[begin:end].astype(np.int64)
            np.bitwise_or.at(sets[own], parent // 64, np.uint64(1) << (parent % 64).astype(np.uint64))
        touching = block.set_of >= 0
        bits[touching] |= sets[block.set_of[touching]]
    return pairs
