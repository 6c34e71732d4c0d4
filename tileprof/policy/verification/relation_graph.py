"""Tile graphs of stages without a recording: from edges between tiles, or from what a policy awaits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.analysis.dependencies.relations import Grid, graph_of_relations, relation
from tileprof.arrays import I64
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import Waits, lower
from tileprof.policy.verification.awaited_tiles import wait_block


def graph_of_edges(grids: Sequence[Grid], edges: Mapping[tuple[int, int], tuple[I64, I64]]) -> TileGraph:
    """Return a graph of one launch per grid; ``edges[producer, consumer]``: tiles that depend on each other, each pair
    once.
    """
    tiles = [x * y * z for x, y, z in grids]
    relations = {pair: relation(parent, child, tiles[pair[1]]) for pair, (parent, child) in edges.items()}
    return graph_of_relations(grids, relations)


def graph_of_waits(policy: Policy) -> TileGraph:
    """Return the graph that needs exactly what ``policy`` awaits: whatever is sound for it is a superset of the policy.

    A wait below the full count is taken as a wait for all tiles that post.
    """
    waits_of_pair: dict[tuple[int, int], list[Waits]] = {}
    for waits in lower(policy):
        waits_of_pair.setdefault((waits.edge.producer, waits.edge.consumer), []).append(waits)
    relations = {}
    for (producer, consumer), parts in waits_of_pair.items():
        tiles = [np.arange(policy.stages[s].tiles, dtype=np.int64) for s in (producer, consumer)]
        blocks = [b for b in (wait_block(w, *tiles) for w in parts) if b is not None]
        if len(blocks) == 1:
            relations[producer, consumer] = blocks[0]
        elif blocks:
            pairs = [np.stack(b.edges()[:2]).astype(np.int64) for b in blocks]
            parent, child = np.unique(np.concatenate(pairs, axis=1), axis=1)
            relations[producer, consumer] = relation(parent, child, len(tiles[1]))
    return graph_of_relations([s.grid for s in policy.stages], relations)
