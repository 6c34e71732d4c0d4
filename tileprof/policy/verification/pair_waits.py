"""A policy over the tiles of a trace, pair by pair: what is awaited, and which dependencies no wait covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tileprof.analysis.dependencies.blocks import EdgeBlock, merge_blocks
from tileprof.arrays import I64
from tileprof.arrays.ragged import owners
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import lower
from tileprof.policy.format.tile_numbers import tile_numbers
from tileprof.policy.verification.awaited_tiles import wait_block

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.policy.verification.verifier import Verification


@dataclass(frozen=True, slots=True)
class PairWaits:
    """Tiles of two launches in trace order: those that the policy's waits between them await, and the dependencies that
    neither these nor any other waits guarantee. None for none. A wait below the full count counts as a wait for all
    tiles that post. ``excess``: pairs of tiles that are awaited, but do not depend on each other.
    """

    producer: int
    consumer: int
    awaited: EdgeBlock | None
    missing: EdgeBlock | None
    excess: int


def pair_waits(
    policy: Policy, graph: TileGraph, verdict: Verification, launches: Sequence[int] | None = None
) -> list[PairWaits]:
    """Return one entry per pair of stages that the policy orders or should order; ``launches`` and ``verdict`` as in
    `verify`.
    """
    bound = [int(s.launch or 0) for s in policy.stages] if launches is None else list(launches)
    numbers = [tile_numbers(graph, launch) for launch in bound]
    wait_blocks: dict[tuple[int, int], list[EdgeBlock]] = {}
    for waits in lower(policy):
        key = waits.edge.producer, waits.edge.consumer
        block = wait_block(waits, numbers[key[0]], numbers[key[1]])
        if block is not None:
            wait_blocks.setdefault(key, []).append(block)
    missing = _missing(verdict, numbers)
    renamed = bool(policy.guard.get("renamed", False))
    rows = []
    for i, j in sorted({*wait_blocks, *missing}):
        block = merge_blocks(wait_blocks[i, j]) if (i, j) in wait_blocks else None
        excess = (
            0
            if block is None
            else block.count - _useful(block, _needed_blocks(graph, bound[i], bound[j], renamed=renamed))
        )
        rows.append(PairWaits(bound[i], bound[j], block, missing.get((i, j)), excess))
    return rows


def _needed_blocks(graph: TileGraph, producer: int, consumer: int, *, renamed: bool) -> list[EdgeBlock]:
    links = graph.links
    rows = links[(links["producer"] == producer) & (links["consumer"] == consumer)]
    rows = rows[~rows["reuse"].astype(bool)] if renamed else rows
    return [graph.blocks[number] for number in sorted(set(rows["block"].tolist()))]


def _useful(awaited: EdgeBlock, dependencies: list[EdgeBlock]) -> int:
    """Return how many of the awaited pairs of tiles depend on each other."""
    if not dependencies:
        return 0
    parent, child, _ = merge_blocks(dependencies).edges()
    waits = awaited.set_of[child] >= 0
    width = max(int(awaited.parent.max(initial=0)), int(parent.max(initial=0))) + 1
    of_set = owners(awaited.indptr)
    keys = of_set * width + awaited.parent
    return int(np.isin(awaited.set_of[child[waits]].astype(np.int64) * width + parent[waits], keys).sum())


def _missing(verdict: Verification, numbers: list[I64]) -> dict[tuple[int, int], EdgeBlock]:
    trace_tile = [np.argsort(number, kind="stable") for number in numbers]
    waits = {}
    for key, rows in verdict.missing.groupby(["producer", "consumer"]):
        i, j = (int(str(n)) for n in key)
        parent = trace_tile[i][rows["producer_tile"].to_numpy(np.int64)]
        child = trace_tile[j][rows["consumer_tile"].to_numpy(np.int64)]
        waits[i, j] = _block(parent, child, rows["bytes"].to_numpy(np.int64), len(numbers[j]))
    return waits


def _block(parent: I64, child: I64, size: I64, tiles: int) -> EdgeBlock:
    """Return edges, one parent set per consumer tile; hazards between the same two tiles are one edge."""
    width = int(parent.max(initial=0)) + 1
    key, place = np.unique(child * width + parent, return_inverse=True)
    waiting, at = np.unique(key // width, return_index=True)
    set_of = np.full(tiles, -1, np.int32)
    set_of[waiting] = np.arange(len(waiting))
    unknown = np.full(len(key), np.nan, np.float32)
    total = np.bincount(place, size, len(key)).astype(np.int64)
    indptr = np.append(at, len(key)).astype(np.int64)
    return EdgeBlock(set_of, indptr, (key % width).astype(np.int32), total, unknown, unknown)
