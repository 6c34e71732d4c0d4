"""A tile graph without a trace: grids and relations alone, for policies that come from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from tileprof.analysis.blocks import EdgeBlock
from tileprof.analysis.graph import HAZARDS, TileGraph
from tileprof.analysis.grouping import equal_lists
from tileprof.arrays import I64
from tileprof.arrays.grids import places
from tileprof.arrays.ragged import ragged
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import Waits, lower
from tileprof.policy.verification.awaited_tiles import wait_block
from tileprof.trace.footprint import Boxes, Footprint

if TYPE_CHECKING:
    from tileprof.trace import Trace

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Trace:
    """As much of a trace as the verifier asks for; there is no device, so nothing can be said about residency
    (`has_device`).
    """

    footprints: list[Footprint]
    launches: pd.DataFrame
    manifest: dict[str, Any] = field(default_factory=dict)
    operands: None = None
    """A guard has nothing to be compared with."""

    def footprint(self, number: int) -> Footprint:
        return self.footprints[number]


def has_device(graph: TileGraph) -> bool:
    """Whether the graph is of a trace, with a device and launches that need resources of it."""
    return not isinstance(cast("object", graph.trace), _Trace)


def graph_of_relations(grids: Sequence[Grid], relations: Mapping[tuple[int, int], EdgeBlock]) -> TileGraph:
    """A graph of one launch a grid, tiles in order of their numbers; ``relations`` are read after write."""
    footprints = [Footprint(places(grid).astype(np.int32), Boxes.concat([])) for grid in grids]
    tiles = np.array([f.tiles for f in footprints], np.int64)
    launches = pd.DataFrame({"launch": range(len(grids)), "footprint": range(len(grids)), "tiles": tiles})
    trace = cast("Trace", _Trace(footprints, launches))
    keys, blocks = list(relations), list(relations.values())
    return TileGraph(trace, np.concatenate([np.zeros(1, np.int64), np.cumsum(tiles)]), link_frame(keys, blocks), blocks)


def link_frame(keys: Sequence[tuple[int, int]], blocks: Sequence[EdgeBlock]) -> pd.DataFrame:
    """``TileGraph.links`` rows of true dependencies, one a block."""
    return pd.DataFrame(
        {
            "producer": np.array([p for p, _ in keys], np.int64),
            "consumer": np.array([c for _, c in keys], np.int64),
            "hazard": pd.Categorical(["RAW"] * len(keys), categories=list(HAZARDS)),
            "reuse": np.zeros(len(keys), bool),
            "block": np.arange(len(keys), dtype=np.int64),
            "edges": np.array([b.count for b in blocks], np.int64),
            "bytes": np.array([b.total_bytes for b in blocks], np.int64),
            "parents": np.array([b.parents for b in blocks], np.int64),
            "children": np.array([b.children for b in blocks], np.int64),
        }
    )


def relation(parent: I64, child: I64, tiles: int, size: I64 | None = None) -> EdgeBlock:
    """Edges (producer tile, consumer tile), each once, as parent sets over ``tiles`` consumer tiles; ``size`` in
    bytes.
    """
    order = np.lexsort((parent, child))
    parent, child = parent[order], child[order]
    sizes = np.zeros(len(parent), np.int64) if size is None else size[order]
    indptr = np.searchsorted(child, np.arange(tiles + 1)).astype(np.int64)
    some = np.flatnonzero(np.diff(indptr))
    ends = np.append(indptr[some], len(parent))
    group, first = equal_lists(ends, (parent, sizes))
    owner, place = ragged(np.diff(ends)[first])
    row = ends[first[owner]] + place
    set_of = np.full(tiles, -1, np.int32)
    set_of[some] = group
    unknown = np.full(len(row), np.nan, np.float32)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(ends)[first])])
    return EdgeBlock(set_of, starts, parent[row].astype(np.int32), sizes[row], unknown, unknown)


def graph_of_waits(policy: Policy) -> TileGraph:
    """The graph that needs exactly what ``policy`` awaits: whatever is sound for it is a superset of the policy.

    A wait below the full count is taken as a wait for all tiles that post.
    """
    found: dict[tuple[int, int], list[Waits]] = {}
    for waits in lower(policy):
        found.setdefault((waits.edge.producer, waits.edge.consumer), []).append(waits)
    relations = {}
    for (producer, consumer), parts in found.items():
        tiles = [np.arange(policy.stages[s].tiles, dtype=np.int64) for s in (producer, consumer)]
        blocks = [b for b in (wait_block(w, *tiles) for w in parts) if b is not None]
        if len(blocks) == 1:
            relations[producer, consumer] = blocks[0]
        elif blocks:
            pairs = [np.stack(b.edges()[:2]).astype(np.int64) for b in blocks]
            parent, child = np.unique(np.concatenate(pairs, axis=1), axis=1)
            relations[producer, consumer] = relation(parent, child, len(tiles[1]))
    return graph_of_relations([s.grid for s in policy.stages], relations)
