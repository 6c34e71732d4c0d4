"""Dependent pairs of launches, one row each."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from tileprof.analysis.dependencies.blocks import EdgeBlock, merge_blocks
from tileprof.analysis.dependencies.patterns import Pattern, classify

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph

MOST_MAPPED: Final = 4096
"""Different relations for which an affine map is looked for, some milliseconds each; others are left without one."""


def pair_frame(graph: TileGraph) -> pd.DataFrame:
    """Return one row per ordered pair of dependent launches.

    Columns: producer, consumer; pattern, map, tightness (as in `patterns`) of the RAW edges, or where there are none of
    the other edges that renaming cannot remove, or of the ``reuse`` edges (then without a map: hundreds of such pairs
    come and go with the allocator); raw, war, waw (edges by hazard, without reuse), reuse (edges that renaming
    removes); edges (all of them); bytes (of the edges the pattern describes); reuse_only (the pair would be independent
    after renaming).
    """
    links = graph.links
    footprint = graph.launches["footprint"].to_numpy()
    keys = links[["producer", "consumer"]].to_numpy()
    first_rows = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    bounds = [0, *first_rows.tolist(), len(keys)] if len(keys) else [0]
    hazard, reuse = links["hazard"].astype(str).tolist(), links["reuse"].tolist()
    block, edges, size = links["block"].tolist(), links["edges"].tolist(), links["bytes"].tolist()
    patterns: dict[_Key, Pattern] = {}
    alike: dict[tuple[bytes, int, int, bool], Pattern] = {}
    rows = []
    for start, stop in pairwise(bounds):
        producer, consumer = (int(k) for k in keys[start])
        count = {"RAW": 0, "WAR": 0, "WAW": 0}
        for row in range(start, stop):
            if not reuse[row]:
                count[hazard[row]] += edges[row]
        described_rows = _describing(range(start, stop), hazard, reuse)
        lasting = not all(reuse[start:stop])
        key = (
            tuple(sorted(block[row] for row in described_rows)),
            int(footprint[producer]),
            int(footprint[consumer]),
            lasting,
        )
        if key not in patterns:
            patterns[key] = _classify(graph, key, alike)
        pattern = patterns[key]
        total = sum(edges[start:stop])
        hazards = list(count.values())
        described = sum(size[row] for row in described_rows)
        shape = (pattern.name, pattern.map, pattern.tightness)
        rows.append((producer, consumer, *shape, total, described, *hazards, total - sum(hazards), not lasting))
    columns = {
        "producer": "int64", "consumer": "int64", "pattern": "str", "map": "str", "tightness": "float64",
        "edges": "int64",
        "bytes": "int64", "raw": "int64", "war": "int64", "waw": "int64", "reuse": "int64", "reuse_only": "bool",
    }  # fmt: skip
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _describing(rows: range, hazard: list[str], reuse: list[bool]) -> list[int]:
    raw = [row for row in rows if hazard[row] == "RAW"]
    return raw or [row for row in rows if not reuse[row]] or list(rows)


_Key = tuple[tuple[int, ...], int, int, bool]
"""Blocks, footprints of producer and consumer, and whether the pair is dependent after renaming."""


def _classify(graph: TileGraph, key: _Key, alike: dict[tuple[bytes, int, int, bool], Pattern]) -> Pattern:
    """Return the pattern of some blocks; found once for all that have the same parents, whatever bytes pass between
    them.
    """
    blocks, producer, consumer, lasting = key
    merged: EdgeBlock = merge_blocks([graph.blocks[b] for b in blocks])
    digest = hashlib.blake2b(digest_size=16)
    for column in (merged.set_of, merged.indptr, merged.parent):
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(column).tobytes())
    same = (digest.digest(), producer, consumer, lasting)
    if same not in alike:
        footprints = graph.footprint(producer), graph.footprint(consumer)
        alike[same] = classify(merged, *footprints, mapped=lasting and len(alike) < MOST_MAPPED)
    return alike[same]
