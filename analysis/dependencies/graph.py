"""The inter-kernel tile graph: which tiles of which launches depend on each other, byte for byte."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.dependencies.access import Accesses
from tileprof.analysis.dependencies.blocks import EdgeBlock, Joins, merge_blocks
from tileprof.analysis.dependencies.memory_reuse import Inheritance, inheritances
from tileprof.analysis.dependencies.pairs import pair_frame
from tileprof.analysis.dependencies.shadow import EMPTY, Relation, Shadow, Step, inherit, step
from tileprof.errors import UserError

if TYPE_CHECKING:
    import networkx as nx

    from tileprof.devices import Device
    from tileprof.trace import Footprint, Recording

HAZARDS = ("RAW", "WAR", "WAW")
_HAZARD = pd.CategoricalDtype(list(HAZARDS))
MOST_EDGES = 50_000_000
"""Largest edge list that `TileGraph.edges` expands: about 2 GB."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class TileGraph:
    """Dependencies between the launches of a program, at tile granularity.

    ``launches``: a frame as `tileprof.trace.schema` has it. ``footprint``: the footprint of a number in it.
    ``tile_base`` int64 ``[launches + 1]``: tile ``t`` of launch ``l`` is node ``tile_base[l] + t``. ``links``: one row
    per (producer, consumer, hazard, reuse) with ``block`` (an index into ``blocks``), ``edges``, ``bytes``, ``parents``
    and ``children``. Repeated layers share blocks, so memory follows what is distinct in the program, not its length.
    ``source``: the recording that the graph was built from; None for a graph of grids and relations alone. ``basis``:
    what dependencies were taken from, if not from accesses, for people.
    """

    launches: pd.DataFrame
    footprint: Callable[[int], Footprint] = field(repr=False)
    tile_base: NDArray[np.int64]
    links: pd.DataFrame
    blocks: list[EdgeBlock] = field(repr=False)
    source: Recording | None = None
    basis: str = ""

    def __repr__(self) -> str:
        edges = int(self.links["edges"].sum())
        return (
            f"<TileGraph: {len(self.launches):,} launches, {int(self.tile_base[-1]):,} tiles, {edges:,} dependencies>"
        )

    @property
    def recording(self) -> Recording:
        """The tables behind the graph: operands, buffers, times. Raises ValueError for a graph without a source."""
        if self.source is None:
            raise ValueError("this graph was made from grids and relations; it has no recording and no device")
        return self.source

    @property
    def device(self) -> Device:
        """The GPU that was recorded. Raises ValueError for a graph without a source."""
        return self.recording.device

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """One row per ordered pair of dependent launches: see `tileprof.analysis.dependencies.pairs`."""
        return pair_frame(self)

    @cached_property
    def edges(self) -> pd.DataFrame:
        """One row per edge: producer_launch, producer_tile, consumer_launch, consumer_tile, hazard, reuse, bytes, last,
        first.

        Raises `UserError` above `MOST_EDGES`: use ``links`` and ``blocks``, which are never expanded.
        """
        total = int(self.links["edges"].sum())
        if total > MOST_EDGES:
            raise UserError(
                f"the graph has {total:,} edges, more than the {MOST_EDGES:,} that .edges expands; use .links and "
                ".blocks, which hold the same edges as parent sets"
            )
        links = self.links
        expanded = {i: self.blocks[i].edges() for i in links["block"].unique()}
        counts = links["edges"].to_numpy()
        blocks = links["block"].tolist()
        pieces = [expanded[b] for b in blocks]

        def column(values: list[NDArray[np.generic]], type_: type[np.generic]) -> NDArray[np.generic]:
            return np.concatenate(values) if values else np.empty(0, type_)

        return pd.DataFrame(
            {
                "producer_launch": np.repeat(links["producer"].to_numpy(), counts),
                "producer_tile": column([p[0] for p in pieces], np.int32),
                "consumer_launch": np.repeat(links["consumer"].to_numpy(), counts),
                "consumer_tile": column([p[1] for p in pieces], np.int32),
                "hazard": pd.Categorical.from_codes(
                    np.repeat(links["hazard"].cat.codes.to_numpy(), counts), dtype=_HAZARD
                ),
                "reuse": np.repeat(links["reuse"].to_numpy(), counts),
                "bytes": column([self.blocks[b].bytes[p[2]] for b, p in zip(blocks, pieces, strict=True)], np.int64),
                "last": column([self.blocks[b].last[p[2]] for b, p in zip(blocks, pieces, strict=True)], np.float32),
                "first": column([self.blocks[b].first[p[2]] for b, p in zip(blocks, pieces, strict=True)], np.float32),
            }
        )

    def to_networkx(self) -> nx.DiGraph:
        """Return the graph of launches: nodes carry kernel, op, module, tiles, duration_ns; edges the columns of
        ``pairs``.
        """
        import networkx as nx  # noqa: PLC0415 (0.2 s that only this call needs)

        graph = nx.DiGraph()
        columns = ["kernel", "op", "module", "tiles", "duration_ns"]
        for row in self.launches[["launch", *columns]].itertuples(index=False):
            graph.add_node(row.launch, **{name: getattr(row, name) for name in columns})
        for pair in self.pairs.to_dict("records"):
            graph.add_edge(pair["producer"], pair["consumer"], **{str(k): v for k, v in pair.items()})
        return graph


def build_graph(trace: Recording, progress: Progress | None = None, *, granule: int = 1) -> TileGraph:
    """Return the tile graph of a recording; ``progress(done, launches)`` is called now and then.

    Dependencies are exact on the bytes of the trace's accesses: where the recorder wrote a superset (its ``granule``
    above 1, ``coverage`` other than exact), so is the graph. With the argument ``granule`` this many bytes count as one
    address: a byte-exact trace can then be compared with one that was recorded in such pieces. Raises `TraceError`
    where the trace is not consistent.
    """
    tiles = trace.launches["tiles"].to_numpy()
    base = np.concatenate([np.zeros(1, np.int64), np.cumsum(tiles, dtype=np.int64)])
    builder = _Builder(trace, granule)
    launches = len(tiles)
    for launch in range(launches):
        builder.add(launch)
        if progress is not None and launch % 64 == 0:
            progress(launch, launches)
    links = builder.links()
    return TileGraph(trace.launches, trace.footprint, base, links, builder.blocks, trace)


@dataclass(frozen=True, slots=True)
class _Memory:
    """A shadow and the launches behind its slots."""

    shadow: Shadow
    launches: tuple[int, ...]


class _Builder:
    """Walks the launches in order; every step and every merge of blocks is computed once and looked up after."""

    def __init__(self, trace: Recording, granule: int) -> None:
        self.blocks: list[EdgeBlock] = []
        self._accesses = Accesses(trace, granule)
        self._inheritances: dict[int, list[Inheritance]] = inheritances(trace.buffers)
        self._memories: dict[int, _Memory] = {}
        self._allocated_at = trace.buffers["allocated_at"].to_numpy()
        self._born = 0
        self._join = Joins().block
        self._steps: dict[tuple[int, int], Step] = {}
        self._inherited: dict[tuple[object, ...], tuple[Shadow, tuple[int, ...]]] = {}
        self._shadows: dict[bytes, Shadow] = {}
        self._touches: dict[int, int] = {}
        self._block_numbers: dict[int, int] = {}
        self._merged: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, int, str, bool, int]] = []

    def add(self, launch: int) -> None:
        # Heirs are made when they are allocated: by then everyone who had the address is done with it.
        while self._born < len(self._allocated_at) and self._allocated_at[self._born] <= launch:
            self._memories[self._born] = self._heir(self._inheritances.get(self._born, []))
            self._born += 1
        blocks_of: dict[tuple[int, str, bool], list[int]] = defaultdict(list)
        for buffer, access in self._accesses.of(launch):
            memory = self._memories[buffer]
            key = (id(memory.shadow), access.number)
            effect = self._steps.get(key)
            if effect is None:
                effect = step(memory.shadow, access, self._join)
                effect = Step(effect.relations, self._intern(effect.shadow), effect.old_slots)
                self._steps[key] = effect
            for relation in effect.relations:
                producer = memory.launches[relation.slot]
                blocks_of[producer, relation.hazard, relation.reuse].append(self._number(relation))
            survivors = tuple(launch if slot < 0 else memory.launches[slot] for slot in effect.old_slots)
            self._memories[buffer] = _Memory(effect.shadow, survivors)
        for (producer, hazard, reuse), blocks in blocks_of.items():
            self._rows.append((producer, launch, hazard, reuse, self._merge(tuple(sorted(blocks)))))

    def links(self) -> pd.DataFrame:
        producer, consumer, hazard, reuse, block = zip(*sorted(self._rows), strict=True) if self._rows else [()] * 5
        blocks, which = np.unique(np.array(block, np.int64), return_inverse=True)
        self.blocks = [self.blocks[number] for number in blocks]
        edges = np.array([b.count for b in self.blocks], np.int64)
        size = np.array([b.total_bytes for b in self.blocks], np.int64)
        parents = np.array([b.parents for b in self.blocks], np.int64)
        children = np.array([b.children for b in self.blocks], np.int64)
        return pd.DataFrame(
            {
                "producer": np.array(producer, np.int64),
                "consumer": np.array(consumer, np.int64),
                "hazard": pd.Categorical(list(hazard), dtype=_HAZARD),
                "reuse": np.array(reuse, bool),
                "block": which,
                "edges": edges[which],
                "bytes": size[which],
                "parents": parents[which],
                "children": children[which],
            }
        )

    def _heir(self, parts: list[Inheritance]) -> _Memory:
        """Return what a buffer starts with: the last events at its addresses, in buffers freed before it came."""
        pairs = [(part, self._memories[part.buffer]) for part in parts]
        pairs = [(part, memory) for part, memory in pairs if memory.shadow.events]
        if not pairs:
            return _Memory(EMPTY, ())
        launches = tuple(sorted({launch for _, memory in pairs for launch in memory.launches}))
        slot = {launch: number for number, launch in enumerate(launches)}
        renumber = [tuple(slot[launch] for launch in memory.launches) for _, memory in pairs]
        key = tuple(
            (id(memory.shadow), part.begin, part.end, part.shift, slots)
            for (part, memory), slots in zip(pairs, renumber, strict=True)
        )
        inherited = self._inherited.get(key)
        if inherited is None:
            shadow, survivors = inherit(
                (memory.shadow, -part.shift, part.begin, part.end, slots)
                for (part, memory), slots in zip(pairs, renumber, strict=True)
            )
            inherited = self._inherited[key] = (self._intern(shadow), survivors)
        shadow, survivors = inherited
        return _Memory(shadow, tuple(launches[slot] for slot in survivors))

    def _intern(self, shadow: Shadow) -> Shadow:
        return self._shadows.setdefault(shadow.digest(self._touches), shadow)

    def _number(self, relation: Relation) -> int:
        number = self._block_numbers.get(id(relation.block))
        if number is None:
            number = len(self.blocks)
            self.blocks.append(relation.block)
            self._block_numbers[id(relation.block)] = number
        return number

    def _merge(self, numbers: tuple[int, ...]) -> int:
        if len(numbers) == 1:
            return numbers[0]
        merged = self._merged.get(numbers)
        if merged is None:
            merged = len(self.blocks)
            self.blocks.append(merge_blocks([self.blocks[n] for n in numbers]))
            self._merged[numbers] = merged
        return merged
