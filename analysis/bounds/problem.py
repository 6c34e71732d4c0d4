"""A scheduling problem as flat arrays: some launches, the durations of their tiles, and which tiles wait for which.

Tiles are never expanded into edges. A *relation* is an `EdgeBlock` laid out flat; links of repeated layers
share it. ::

    consumer tile --set_of--> set of parents --indptr--> entries: parent tile, last, first

Local ids: launch ``i`` is the i-th selected launch; its tiles are ``tile_base[i] .. tile_base[i+1]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.bounds.durations import Durations
    from tileprof.analysis.dependencies.graph import TileGraph


class Problem(NamedTuple):
    """Arrays of one scheduling problem; n launches, m links, r relations.

    ``set_at``, ``entry_at`` and ``tile_at`` ``[r]`` tell where a relation's part of ``indptr``, of the entries and
    of ``set_of`` begins; ``indptr`` holds positions within the relation's own entries.
    """

    launch: NDArray[np.int64]
    """``[n]`` ids in the trace, ascending."""
    tile_base: NDArray[np.int64]
    """``[n + 1]``"""
    ns: NDArray[np.float64]
    """Tile durations, shared as in `Durations`."""
    ns_at: NDArray[np.int64]
    """``[n]`` where a launch's durations begin in ``ns``."""
    links_at: NDArray[np.int64]
    """``[n + 1]`` links are sorted by consumer; this is their CSR pointer."""
    producer: NDArray[np.int64]
    """``[m]`` local producer launch."""
    consumer: NDArray[np.int64]
    """``[m]`` local consumer launch."""
    relation: NDArray[np.int64]
    """``[m]``"""
    set_at: NDArray[np.int64]
    entry_at: NDArray[np.int64]
    tile_at: NDArray[np.int64]
    sets: NDArray[np.int64]
    """``[r]`` sets of a relation."""
    set_of: NDArray[np.int32]
    indptr: NDArray[np.int64]
    parent: NDArray[np.int32]
    last: NDArray[np.float32]
    """0 where unknown: the producer may have touched the bytes at its very start."""
    first: NDArray[np.float32]
    """``unknown_first`` of `problem` where unknown."""

    @property
    def tiles(self) -> int:
        """Tiles of all launches."""
        return int(self.tile_base[-1])


_NONE = np.empty(0, np.int64)


class Links(NamedTuple):
    """``graph.links`` as arrays, one entry per link, sorted by producer."""

    producer: NDArray[np.int64]
    consumer: NDArray[np.int64]
    block: NDArray[np.int64]
    reuse: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: TileGraph) -> Links:
        links = graph.links
        producer, consumer, block = (links[name].to_numpy(np.int64) for name in ("producer", "consumer", "block"))
        return cls(producer, consumer, block, links["reuse"].to_numpy(bool)).where(np.argsort(producer, kind="stable"))

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Links:
        return Links(self.producer[rows], self.consumer[rows], self.block[rows], self.reuse[rows])

    def between(self, launches: NDArray[np.int64]) -> Links:
        """Return links of which both ends are among the launches (ascending ids), in local ids."""
        begin, end = (np.searchsorted(self.producer, launches, side) for side in ("left", "right"))
        local_producer, place = ragged(end - begin)
        rows = begin[local_producer] + place
        local_consumer = np.searchsorted(launches, self.consumer[rows])
        inside = local_consumer < len(launches)
        inside[inside] = launches[local_consumer[inside]] == self.consumer[rows[inside]]
        rows = rows[inside]
        return Links(local_producer[inside], local_consumer[inside], self.block[rows], self.reuse[rows])


def problem(
    graph: TileGraph,
    durations: Durations,
    launches: Sequence[int] | None = None,
    *,
    reuse: bool,
    links: Links | None = None,
    unknown_first: float = 1.0,
) -> Problem:
    """Return the problem of some launches of a graph (None: all), with or without hazards of recycled memory.

    ``links`` spares the conversion of ``graph.links`` to frequent callers. ``unknown_first`` is when in its work a
    consumer needs bytes of which that is not known: at its very end for a lower bound, at its begin for a simulation.
    Raises UserError where a launch depends on itself or a later one.
    """
    tiles = np.diff(graph.tile_base)
    launch_numbers = np.arange(len(tiles)) if launches is None else np.asarray(sorted(launches), np.int64)
    inner = (links or Links.of(graph)).between(launch_numbers)
    _check_order(inner, launch_numbers)
    within = inner if reuse else inner.where(~inner.reuse)
    rows = sorted(set(zip(within.consumer.tolist(), within.producer.tolist(), within.block.tolist(), strict=True)))
    consumer, producer, block = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else [_NONE] * 3
    )
    distinct_blocks, relation = np.unique(block, return_inverse=True)
    blocks = [graph.blocks[int(b)] for b in distinct_blocks]
    sets = np.array([len(b.indptr) - 1 for b in blocks], np.int64)
    return Problem(
        launch=launch_numbers,
        tile_base=_offsets(tiles[launch_numbers]),
        ns=durations.ns,
        ns_at=durations.begins[launch_numbers],
        links_at=np.searchsorted(consumer, np.arange(len(launch_numbers) + 1)).astype(np.int64),
        producer=producer,
        consumer=consumer,
        relation=relation.astype(np.int64),
        set_at=_offsets(sets + 1)[:-1],
        entry_at=_offsets(np.array([len(b.parent) for b in blocks], np.int64))[:-1],
        tile_at=_offsets(np.array([len(b.set_of) for b in blocks], np.int64))[:-1],
        sets=sets,
        set_of=_join([b.set_of for b in blocks], np.int32),
        indptr=_join([b.indptr for b in blocks], np.int64),
        parent=_join([b.parent for b in blocks], np.int32),
        last=np.nan_to_num(_join([b.last for b in blocks], np.float32), nan=0.0),
        first=np.nan_to_num(_join([b.first for b in blocks], np.float32), nan=unknown_first),
    )


def _check_order(links: Links, launches: NDArray[np.int64]) -> None:
    backward = np.flatnonzero(links.producer >= links.consumer)
    if not len(backward):
        return
    producer, consumer = int(links.producer[backward[0]]), int(links.consumer[backward[0]])
    import networkx as nx  # noqa: PLC0415 - heavy, and only to name a cycle

    graph = nx.DiGraph(zip(links.producer.tolist(), links.consumer.tolist(), strict=True))
    if nx.has_path(graph, consumer, producer):
        around = [*nx.shortest_path(graph, consumer, producer), consumer]
        cycle = " → ".join(str(launches[i]) for i in around)
        raise UserError(f"the graph has a cycle, so no order of its launches can work: {cycle}")
    raise UserError(
        f"launch {launches[consumer]} depends on launch {launches[producer]}, which is issued after it; number "
        "launches so that producers come first"
    )


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _join(arrays: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.ascontiguousarray(np.concatenate([*arrays, np.empty(0, dtype)]), dtype=dtype)


class Successors(NamedTuple):
    """The relations of a `Problem` read from the other side: which sets a producer tile belongs to, and which
    consumer tiles wait for a set. Positions as in `Problem`.
    """

    out_at: NDArray[np.int64]
    """``[n + 1]`` CSR pointer of ``out`` by producer launch."""
    out: NDArray[np.int64]
    """``[m]`` links ordered by producer."""
    state_at: NDArray[np.int64]
    """``[m + 1]`` where a link's counters of sets begin."""
    parent_at: NDArray[np.int64]
    """``[r]`` where a relation's part of ``parent_indptr`` begins."""
    parent_indptr: NDArray[np.int64]
    """CSR over all tiles of a producer: positions within the relation's own entries."""
    parent_set: NDArray[np.int32]
    member_indptr: NDArray[np.int64]
    """CSR over sets (at ``Problem.set_at``): positions within the relation's own tiles with a parent."""
    member_at: NDArray[np.int64]
    """``[r]`` where a relation's part of ``member`` begins."""
    member: NDArray[np.int32]


def successors(p: Problem) -> Successors:
    """Return both inverse relations; O(entries log entries) once a distinct relation."""
    order = np.argsort(p.producer, kind="stable").astype(np.int64)
    producer_tiles = np.zeros(len(p.sets), np.int64)
    np.maximum.at(producer_tiles, p.relation, np.diff(p.tile_base)[p.producer])
    parent_indptr, parent_set, member_indptr, member = [], [], [], []
    for r in range(len(p.sets)):
        entries = slice(int(p.entry_at[r]), int(p.entry_at[r + 1]) if r + 1 < len(p.sets) else len(p.parent))
        tiles = slice(int(p.tile_at[r]), int(p.tile_at[r + 1]) if r + 1 < len(p.sets) else len(p.set_of))
        at = int(p.set_at[r])
        indptr = p.indptr[at : at + int(p.sets[r]) + 1]
        parent = p.parent[entries]
        set_of_entry = np.repeat(np.arange(p.sets[r], dtype=np.int32), np.diff(indptr))
        by_parent = np.argsort(parent, kind="stable")
        parent_set.append(set_of_entry[by_parent])
        parent_indptr.append(_offsets(np.bincount(parent, minlength=int(producer_tiles[r]))))
        set_of = p.set_of[tiles]
        waiting = np.flatnonzero(set_of >= 0)
        member.append(waiting[np.argsort(set_of[waiting], kind="stable")].astype(np.int32))
        member_indptr.append(_offsets(np.bincount(set_of[waiting], minlength=int(p.sets[r]))))
    return Successors(
        out_at=np.searchsorted(p.producer[order], np.arange(len(p.launch) + 1)).astype(np.int64),
        out=order,
        state_at=_offsets(p.sets[p.relation]),
        parent_at=_offsets(np.array([len(x) for x in parent_indptr], np.int64))[:-1],
        parent_indptr=_join(parent_indptr, np.int64),
        parent_set=_join(parent_set, np.int32),
        member_indptr=_join(member_indptr, np.int64),
        member_at=_offsets(np.array([len(x) for x in member], np.int64))[:-1],
        member=_join(member, np.int32),
    )
