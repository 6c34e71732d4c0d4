"""Builds tile graphs and policies for tests from plain lists."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd

from tileprof.analysis import EdgeBlock
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.devices import get, occupancy
from tileprof.trace.footprint import Boxes, Footprint
from tileprof.trace.schema import BUFFERS, OPERANDS, TIMES

Relation = dict[tuple[int, int], set[tuple[int, int]]]


def block_of(edges: set[tuple[int, int]], tiles: int) -> EdgeBlock:
    """Return edges (producer tile, consumer tile) as parent sets, with 4 bytes per edge."""
    parents = [sorted(p for p, c in edges if c == tile) for tile in range(tiles)]
    set_of = np.full(tiles, -1, np.int32)
    some = [t for t in range(tiles) if parents[t]]
    set_of[some] = np.arange(len(some))
    parent = np.array([p for t in some for p in parents[t]], np.int32)
    lag = np.full(len(parent), np.nan, np.float32)
    indptr = np.cumsum([0] + [len(parents[t]) for t in some]).astype(np.int64)
    return EdgeBlock(set_of, indptr, parent, np.full(len(parent), 4, np.int64), lag, lag)


Kernel = tuple[int, int, int]
"""Threads of a block, registers of a thread, bytes of shared memory of a block."""

EMPTY = {table.name: pd.DataFrame({c.name: [] for c in table.columns}) for table in (TIMES, OPERANDS, BUFFERS)}

FILLS_AN_SM: Kernel = (1024, 64, 0)


def graph_of(
    grids: list[tuple[int, int, int]],
    relation: Relation,
    *,
    hazard: str = "RAW",
    sms: int = 4,
    kernels: list[Kernel] | None = None,
    device: str = "H200",
) -> TileGraph:
    """Return a graph with one launch per grid.

    ``relation[producer, consumer]`` holds edges by tile number. Each block fills an SM, unless ``kernels`` gives other
    sizes.
    """
    gpu = replace(get(device), sms=sms)
    resources = kernels or [FILLS_AN_SM] * len(grids)
    footprints = []
    for gx, gy, gz in grids:
        z, y, x = np.meshgrid(np.arange(gz), np.arange(gy), np.arange(gx), indexing="ij")
        block = np.stack([x.ravel(), y.ravel(), z.ravel()], axis=1).astype(np.int32)
        footprints.append(Footprint(block, Boxes.concat([]), np.full(len(block), 20_000.0)))
    tiles = [f.tiles for f in footprints]
    columns: dict[str, object] = {"launch": range(len(grids)), "footprint": range(len(grids)), "tiles": tiles}
    for axis, sizes in zip("xyz", zip(*grids, strict=True), strict=True):
        columns[f"grid_{axis}"] = sizes
        columns[f"cluster_{axis}"] = 1
        columns[f"block_{axis}"] = [threads for threads, _, _ in resources] if axis == "x" else 1
    columns["registers"] = [registers for _, registers, _ in resources]
    columns["shared_bytes"] = [shared for _, _, shared in resources]
    columns["blocks_per_sm"] = [occupancy(gpu, *kernel).blocks_per_sm for kernel in resources]
    constant = {
        "kernel": "k", "op": "o", "module": "m", "duration_ns": 1000, "begin_ns": 0, "timing": "modelled", "stream": 0,
        "coverage": "exact", "flops": 0,
    }  # fmt: skip
    launches = pd.DataFrame({**columns, **constant})
    recording = SimpleNamespace(launches=launches, footprint=footprints.__getitem__, device=gpu, manifest={}, **EMPTY)
    blocks = [block_of(edges, tiles[consumer]) for (_, consumer), edges in relation.items()]
    keys = list(relation)
    links = pd.DataFrame({
        "producer": np.array([p for p, _ in keys], np.int64), "consumer": np.array([c for _, c in keys], np.int64),
        "hazard": pd.Categorical([hazard] * len(keys), categories=["RAW", "WAR", "WAW"]), "reuse": False,
        "block": np.arange(len(keys)), "edges": [len(e) for e in relation.values()],
        "bytes": [4 * len(e) for e in relation.values()],
    })  # fmt: skip
    base = np.concatenate([[0], np.cumsum(tiles)]).astype(np.int64)
    return TileGraph(
        launches, footprints.__getitem__, base, links[links["edges"] > 0].reset_index(drop=True), blocks, recording
    )
