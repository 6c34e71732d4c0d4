"""A tile graph without a recording: grids, and which tiles of one need which of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.graph import HAZARDS, TileGraph
from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.arrays import I64
from tileprof.arrays.grids import places
from tileprof.arrays.ragged import ragged
from tileprof.trace.footprint import Boxes, Footprint

Grid = tuple[int, int, int]


def graph_of_relations(grids: Sequence[Grid], relations: Mapping[tuple[int, int], EdgeBlock]) -> TileGraph:
    """Return a graph of one launch a grid, tiles in order of their numbers; ``relations`` are read after write."""
    footprints = [Footprint(places(grid).astype(np.int32), Boxes.concat([])) for grid in grids]
    tiles = np.array([f.tiles for f in footprints], np.int64)
    launches = pd.DataFrame({"launch": range(len(grids)), "footprint": range(len(grids)), "tiles": tiles})
    keys, blocks = list(relations), list(relations.values())
    base = np.concatenate([np.zeros(1, np.int64), np.cumsum(tiles)])
    return TileGraph(launches, footprints.__getitem__, base, link_frame(keys, blocks), blocks)


def link_frame(keys: Sequence[tuple[int, int]], blocks: Sequence[EdgeBlock]) -> pd.DataFrame:
    """Return ``TileGraph.links`` rows of true dependencies, one per block."""
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
    """Return edges (producer tile, consumer tile), each once, as parent sets over ``tiles`` consumer tiles; ``size`` in
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
