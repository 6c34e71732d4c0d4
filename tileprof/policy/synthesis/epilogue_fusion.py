"""Launches between two stages taken as part of the first: what the stages need of each other through them.

cuSync's kernels, like most hand-written ones, apply an activation in the epilogue of the product that makes its input;
the recorded program launched it on its own. A consumer tile then needs a producer tile if some tile in between reads
what the one wrote and writes what the other reads. That is exact where the tiles in between are no larger than those of
the producer (pointwise kernels on channels-last images), and else a superset.

What else a launch in between needs, the stage that it becomes part of needs then: the sum at the end of a residual
block makes the last convolution wait for the block's input too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.dependencies.blocks import EdgeBlock, merge_blocks
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.analysis.dependencies.relations import link_frame, relation
from tileprof.arrays import I64
from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.policy.verification.overtaken import overtaken_launches

_Reached = dict[int, NDArray[np.int64]]
"""Bytes through which a launch's tiles depend on those of a stage, ``[tiles, tiles of the stage]``, by stage launch."""


def fuse(graph: TileGraph, launches: Sequence[int]) -> TileGraph:
    """Return the graph of ``launches`` with all `overtaken_launches` folded into the dependencies; other launches keep
    their numbers.

    Memory is n x m numbers for stages of n and m tiles: meant for pairs and short chains. Raises `UserError` where a
    launch in between overwrites what a stage after its own still needs.
    """
    stages, folded = sorted(set(launches)), overtaken_launches(graph, launches)
    parents = _true_blocks(graph, {*stages, *folded})
    sources_of: dict[int, _Reached] = {}
    needs: dict[int, _Reached] = {launch: {} for launch in stages}
    hosts = {launch: launch for launch in stages}
    for launch in sorted({*stages, *folded}):
        tiles = int(graph.tile_base[launch + 1] - graph.tile_base[launch])
        sources = needs[launch] if launch in stages else sources_of.setdefault(launch, {})
        for producer, block in parents.get(launch, {}).items():
            if producer in stages:
                _add(sources, producer, _dense(block, int(graph.tile_base[producer + 1] - graph.tile_base[producer])))
            else:
                for stage, through in sources_of[producer].items():
                    _add(sources, stage, _compose(block, through, tiles))
        if launch not in stages:
            hosts[launch] = _host(graph, launch, hosts, sources)
            _hand_over(needs[hosts[launch]], hosts[launch], sources)
    keys, blocks = [], []
    for launch, sources in needs.items():
        for stage, tiles_read in sources.items():
            child, parent = np.nonzero(tiles_read)
            keys.append((stage, launch))
            blocks.append(relation(parent, child, len(tiles_read), tiles_read[child, parent]))
    return replace(graph, links=_links(graph, keys, blocks, stages), blocks=[*graph.blocks, *blocks])


def fused_for(policy: Policy, graph: TileGraph) -> TileGraph:
    """Return the graph as the policy's own launches see it: fused where the guard names all launches between them as
    epilogues, else as it is.
    """
    epilogues = policy.guard.get("epilogues", ())
    launches = [stage.launch for stage in policy.stages if stage.launch is not None]
    if not epilogues or len(launches) < len(policy.stages) or not all(0 <= n < len(graph.launches) for n in launches):
        return graph
    return fuse(graph, launches) if set(overtaken_launches(graph, launches)) <= set(epilogues) else graph


def _host(graph: TileGraph, launch: int, hosts: dict[int, int], sources: _Reached) -> int:
    """Return the stage that a launch in between becomes part of: the last one whose result it takes."""
    links = graph.links[(graph.links["consumer"] == launch) & ~graph.links["reuse"]]
    read = [hosts[p] for p in links["producer"][links["hazard"] == "RAW"].tolist() if p in hosts]
    host = max(read or sources)
    later = [stage for stage in sources if stage > host]
    if later:
        raise UserError(
            f"launch {launch} cannot be taken as part of launch {host}: it overwrites what launch {max(later)} uses, "
            "which comes after "
            "that one; leave --fuse out"
        )
    return host


def _hand_over(needs: _Reached, host: int, sources: _Reached) -> None:
    """Give the needs of a launch in between to the tiles of its stage that take something from it."""
    own = sources[host] > 0
    for stage, through in sources.items():
        if stage != host:
            _add(needs, stage, np.array([through[tiles].sum(axis=0) for tiles in own.T], np.int64))


def _true_blocks(graph: TileGraph, launches: set[int]) -> dict[int, dict[int, EdgeBlock]]:
    """Return, by consumer and by producer, the dependencies among ``launches`` that are not recycled memory."""
    links = graph.links[~graph.links["reuse"]]
    links = links[links["producer"].isin(launches) & links["consumer"].isin(launches)]
    by_consumer: dict[int, dict[int, list[EdgeBlock]]] = {}
    for p, c, b in zip(links["producer"].tolist(), links["consumer"].tolist(), links["block"].tolist(), strict=True):
        by_consumer.setdefault(c, {}).setdefault(p, []).append(graph.blocks[b])
    return {c: {p: merge_blocks(blocks) for p, blocks in of.items()} for c, of in by_consumer.items()}


def _add(sources: _Reached, stage: int, tiles_read: I64) -> None:
    sources[stage] = sources[stage] + tiles_read if stage in sources else tiles_read


def _dense(block: EdgeBlock, producers: int) -> I64:
    parent, child, row = block.edges()
    dense = np.zeros((len(block.set_of), producers), np.int64)
    np.add.at(dense, (child, parent), block.bytes[row])
    return dense


def _compose(block: EdgeBlock, through: I64, tiles: int) -> I64:
    """Return bytes that a tile reads of tiles in between, counted for every tile that those depend on."""
    depends = through > 0
    rows = np.zeros((block.sets, through.shape[1]), np.int64)
    for number in range(block.sets):
        part = slice(block.indptr[number], block.indptr[number + 1])
        rows[number] = block.bytes[part] @ depends[block.parent[part]]
    dense = np.zeros((tiles, through.shape[1]), np.int64)
    some = block.set_of >= 0
    dense[some] = rows[block.set_of[some]]
    return dense


def _links(graph: TileGraph, keys: list[tuple[int, int]], blocks: list[EdgeBlock], chosen: list[int]) -> pd.DataFrame:
    """Return true dependencies as composed, recycled memory between the stages as it was."""
    links = graph.links
    reuse_links = links[links["reuse"] & links["producer"].isin(chosen) & links["consumer"].isin(chosen)]
    new_links = link_frame(keys, blocks)
    new_links["block"] += len(graph.blocks)
    return pd.concat([reuse_links, new_links[reuse_links.columns]], ignore_index=True).sort_values(
        ["producer", "consumer"], ignore_index=True
    )
