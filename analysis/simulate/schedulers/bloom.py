"""``dataflow-bloom``: dependencies of tiles found at run time, by Bloom filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.problem import Problem
from tileprof.analysis.simulate.engine.plan import INSIDE, READY, Draft
from tileprof.analysis.simulate.filters.bloom import (
    Bits,
    Filters,
    Touched,
    conflicts,
    count,
    marks,
    numbered,
    pair_bits,
    touched,
)
from tileprof.analysis.simulate.scheduler import Options, Program, option

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph

Pairs = dict[tuple[int, int], Bits]

_ASKED_AT_ONCE = 128
"""Threads of a block that ask, a filter each."""


@dataclass(frozen=True)
class DataflowBloom(Options):
    """The rules of ``dataflow`` for dependencies that are not known beforehand: each tile's addresses go into Bloom
    filters, and a tile waits for all earlier ones whose filters it hits (Kuper, Pati and Sinclair's proposal for
    dynamic dependencies; filters after Bloom, 1970).

    The filters are real, over the recorded addresses, weights included; false edges are simulated and counted. Every
    ``flush`` launches the filters are emptied, and the launches after wait for all before. ``granule`` 128 is a cache
    line, as in Kuper's tool; ``bits`` and ``hashes``, a pair of filters a tile, are assumed. ``insert_ns`` and
    ``look_up_ns`` were measured on an H200 (docs/bloom.md): a block of 128 threads inserts a range of 4 KB, then each
    thread asks the filters of another earlier tile, so that every 128 tiles since the last flush cost a tile one round.
    With ``window`` filters are asked as ``tileprof/bloom.cuh`` does it in software: by a tile that holds its place,
    about as many tiles before it, those of its own launch among them, as far as they may run.

    | rule | source | here | worth |
    |---|---|---|---|
    | filters | cost nothing | as measured | -68.0, -59.8, -65.4% |
    | dependencies | by filters | the same; exact | +229.4, +164.9, +272.1% |
    """

    name: ClassVar[str] = "dataflow-bloom"

    bits: int = option(4096, "bits of a filter; a tile has two", least=8, most=1 << 24)
    hashes: int = option(2, "bits set for a granule", least=1, most=16)
    granule: int = option(128, "bytes that count as one address", least=1)
    flush: int = option(4, "launches between two flushes", least=1)
    window: int = option(0, "tiles before one that it asks about, of its own launch too; 0: of those since a flush")
    signal_ns: float = option(0.0, "ns from the end of a parent to a tile that waits for it")
    insert_ns: float = option(250.0, "ns of a tile's time to fill its filters")
    look_up_ns: float = option(2800.0, "ns of a tile's time to ask the filters of up to 128 earlier tiles")

    def draft(self, program: Program) -> Draft:
        n, tiles = program.count, program.launches["tiles"].tolist()
        if self.window:
            overheads = self._overheads(np.array(tiles), program.sms * program.launches["blocks_per_sm"].to_numpy())
            return Draft(n, gate=[INSIDE] * n, overhead_ns=overheads.tolist(), signal_ns=self.signal_ns)
        earlier = [sum(tiles[launch // self.flush * self.flush : launch]) for launch in range(n)]
        overhead = [self.insert_ns + self.look_up_ns * -(-count // _ASKED_AT_ONCE) for count in earlier]
        draft = Draft(n, gate=[READY] * n, overhead_ns=overhead, signal_ns=self.signal_ns)
        for launch in range(self.flush, n):
            since = launch // self.flush * self.flush
            draft.after[launch] = set(range(since - self.flush, since))
        return draft

    def rewired(self, graph: TileGraph, p: Problem) -> tuple[Problem, list[str]]:
        """Return what the filters find, beside what was recorded (and is among it where the trace has addresses)."""
        if self.window:
            return self._in_a_window(graph, p)
        pairs, collisions = self.conflicts(graph, p.launch.tolist())
        edges = sum(count(bits) for bits in pairs.values())
        sentence = (
            f"Filters of {self.bits:,} bits find {edges:,} pairs of dependent tiles; {collisions:,} of them share no "
            f"{self.granule}-byte "
            "granule that either writes."
        )
        return with_pairs(p, pairs), [sentence]

    def _overheads(self, tiles: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ns of a launch's tiles: they ask those before them that may run, ``slots`` at most."""
        before = np.cumsum(tiles) - tiles + tiles // 2
        query_count = np.minimum(np.minimum(before, self.window), slots)
        return np.asarray(self.insert_ns + self.look_up_ns * np.ceil(query_count / _ASKED_AT_ONCE), np.float64)

    def _in_a_window(self, graph: TileGraph, p: Problem) -> tuple[Problem, list[str]]:
        """Return what the filters of the tiles in a window find; a tile also waits for the one whose filters it takes.

        A tile waits when it has asked: behind its overhead.
        """
        launches = p.launch.tolist()
        part = [touched(graph.recording, launch, self.granule) for launch in launches]
        hashing = Filters(self.bits, self.hashes)
        exact_part, own_bits = numbered(part)
        pairs: Pairs = {}
        false = 0
        for producer in range(len(part)):
            tables, exact = _tables(part[producer], hashing), _tables(exact_part[producer], own_bits)
            for consumer in range(producer, len(part)):
                if p.tile_base[consumer] - p.tile_base[producer + 1] >= self.window:
                    break
                near, near_hits = self._near(p, producer, consumer)
                hits = conflicts(tables, part[consumer], hashing) & near
                false += count(hits & ~conflicts(exact, exact_part[consumer], own_bits))
                if (hits | near_hits).any():
                    pairs[producer, consumer] = hits | near_hits
        tiles = np.diff(p.tile_base)
        slots = graph.device.sms * graph.launches["blocks_per_sm"].to_numpy()[launches]
        lives = np.array([p.ns[at : at + n].mean() for at, n in zip(p.ns_at, tiles, strict=True)])
        overheads = self._overheads(tiles, slots)
        share = overheads / np.maximum(overheads + lives, 1.0)
        edges = sum(count(bits) for bits in pairs.values())
        sentence = (
            f"Filters of {self.bits:,} bits find {edges:,} pairs of dependent tiles in windows of {self.window:,}; "
            f"{false:,} of them share no {self.granule}-byte granule that either writes."
        )
        recorded = list(zip(p.producer.tolist(), p.consumer.tolist(), strict=True))
        relations = [_recorded(p, link) for link in range(len(recorded))] + [_relation(bits) for bits in pairs.values()]
        ends = recorded + list(pairs)
        return with_links(_without_links(p), ends, relations, [float(share[c]) for _, c in ends]), [sentence]

    def _near(self, p: Problem, producer: int, consumer: int) -> tuple[Bits, Bits]:
        """Return ``[consumer tiles, words]``: tiles in the window of each, and the one just before it."""
        after = np.arange(p.tile_base[consumer], p.tile_base[consumer + 1])[:, None]
        before = np.arange(p.tile_base[producer], p.tile_base[producer + 1])[None, :]
        ahead = np.full((len(after), -(-before.shape[1] // 64) * 64), -1, np.int64)
        ahead[:, : before.shape[1]] = after - before
        return _packed((ahead > 0) & (ahead < self.window)), _packed(ahead == self.window)

    def conflicts(self, graph: TileGraph, launches: list[int]) -> tuple[Pairs, int]:
        """Return conflicts between launches of one flush, by place in ``launches``; how many pairs of tiles only
        collide in their hashes.
        """
        every: Pairs = {}
        collisions = 0
        for since in range(0, len(launches), self.flush):
            part = [touched(graph.recording, launch, self.granule) for launch in launches[since : since + self.flush]]
            hashed = pair_bits(part, Filters(self.bits, self.hashes))
            exact = pair_bits(*numbered(part))
            for (p, c), bits in hashed.items():
                every[since + p, since + c] = bits
                collisions += count(bits & ~exact[p, c]) if (p, c) in exact else count(bits)
        return every, collisions


def with_pairs(p: Problem, pairs: Pairs) -> Problem:
    """Return the problem with more links: for each pair of launches (by place), ``[consumer tiles, words]`` bits of
    parents.
    """
    return with_links(p, list(pairs), [_relation(bits) for bits in pairs.values()])


def _recorded(p: Problem, link: int) -> Relation:
    """Return the relation of a link of the problem."""
    r = int(p.relation[link])
    tiles = int(np.diff(p.tile_base)[p.consumer[link]])
    indptr = p.indptr[p.set_at[r] :][: p.sets[r] + 1]
    return p.set_of[p.tile_at[r] :][:tiles], indptr, p.parent[p.entry_at[r] :][: indptr[-1]]


def _without_links(p: Problem) -> Problem:
    """Return the problem with none of its links."""
    none = {name: getattr(p, name)[:0] for name in (
        "producer", "consumer", "relation", "set_at", "entry_at", "tile_at", "sets", "set_of", "indptr", "parent",
        "last", "first",
    )}  # fmt: skip
    return p._replace(links_at=np.zeros_like(p.links_at), **none)


def _tables(launch: Touched, filters: Filters) -> tuple[Bits, Bits]:
    return marks(launch.read, filters, slice(None)), marks(launch.written, filters, slice(None))


def _packed(flags: NDArray[np.bool_]) -> Bits:
    return np.packbits(flags, axis=1, bitorder="little").view("<u8").astype(np.uint64)


Relation = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]
"""``set_of``, ``indptr`` and ``parent``, as in a `Problem`."""


def with_links(
    p: Problem, pairs: Sequence[tuple[int, int]], relations: Sequence[Relation], first: Sequence[float] | None = None
) -> Problem:
    """Return the problem with more links, between pairs of launches (by place). ``first`` of each is the share of a
    consumer's life before it needs its parents, 0 by default.
    """
    ends_of = np.array(pairs, np.int64).reshape(-1, 2)
    producer, consumer = (np.concatenate([old, ends_of[:, k]]) for k, old in ((0, p.producer), (1, p.consumer)))
    relation = np.concatenate([p.relation, len(p.sets) + np.arange(len(relations))])
    order = np.lexsort((relation, producer, consumer))
    set_of, indptr, parent = ([r[k] for r in relations] for k in range(3))

    def ends(at: NDArray[np.int64], total: int, added: list[NDArray[np.integer]]) -> NDArray[np.int64]:
        sizes = np.array([total, *(len(a) for a in added)], np.int64)
        return np.concatenate([at, np.cumsum(sizes)[:-1]]).astype(np.int64)

    new = sum(len(x) for x in parent)
    needs = [np.full(len(x), f) for x, f in zip(parent, first or [0.0] * len(relations), strict=True)]
    return p._replace(
        links_at=np.searchsorted(consumer[order], np.arange(len(p.launch) + 1)).astype(np.int64),
        producer=producer[order],
        consumer=consumer[order],
        relation=relation[order],
        set_at=ends(p.set_at, len(p.indptr), list(indptr)),
        entry_at=ends(p.entry_at, len(p.parent), list(parent)),
        tile_at=ends(p.tile_at, len(p.set_of), list(set_of)),
        sets=np.concatenate([p.sets, np.array([len(x) - 1 for x in indptr], np.int64)]),
        set_of=np.concatenate([p.set_of, *set_of]).astype(np.int32),
        indptr=np.concatenate([p.indptr, *indptr]).astype(np.int64),
        parent=np.concatenate([p.parent, *parent]).astype(np.int32),
        last=np.concatenate([p.last, np.ones(new, np.float32)]),
        first=np.concatenate([p.first, *needs]).astype(np.float32),
    )


def _relation(bits: Bits) -> Relation:
    """Return tiles with the same parents share a set."""
    rows, of = np.unique(bits, axis=0, return_inverse=True)
    flags = np.unpackbits(np.ascontiguousarray(rows, "<u8").view(np.uint8), axis=1, bitorder="little")
    some = flags.any(axis=1)
    number = np.where(some, np.cumsum(some) - 1, -1)
    which, parent = np.nonzero(flags[some])
    indptr = np.searchsorted(which, np.arange(int(some.sum()) + 1))
    return number[of.ravel()].astype(np.int32), indptr.astype(np.int64), parent.astype(np.int32)
