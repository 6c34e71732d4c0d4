"""Tile-to-tile relations of dependent launches, shared by repeated layers, packed for the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.arrays.ragged import owners, spans
from tileprof.viz.tables.page_values import Packed, pack, packed_bytes

if TYPE_CHECKING:
    from tileprof.analysis import EdgeBlock, TileGraph

HAZARDS = ("RAW", "WAR", "WAW")

COARSE = 256
"""Rows and columns of an aggregated relation."""

_COARSE_BYTES = 30_000
"""Bytes of a page that an aggregated relation takes, about; kept free for each relation still to come."""

_SMALL_BYTES = 4_000
"""A whole relation of so little is kept whatever is still to come: aggregated it would take no less."""
_TOO_MANY = 4_000_000
"""Stored edges of one relation that are not even tried to pack whole."""

_UNKNOWN_SHARE = 255
_CELLS_AT_ONCE = 2_000_000


def relation_tables(graph: TileGraph, pairs: pd.DataFrame, *, budget: int, notes: list[str]) -> dict[str, Any]:
    """Return ``links`` of the given pairs, and ``blocks``: the relations that they share, at most ``budget`` bytes;
    ``block_numbers``: their places in the graph.

    Small relations are kept whole first; the rest become counts on a coarse grid.
    """
    shown_pairs = pd.MultiIndex.from_frame(pairs[["producer", "consumer"]])
    links = graph.links[pd.MultiIndex.from_frame(graph.links[["producer", "consumer"]]).isin(shown_pairs)]
    first = links.drop_duplicates("block")
    producer_of = dict(zip(first["block"].tolist(), first["producer"].tolist(), strict=True))
    block_order = sorted(producer_of, key=lambda b: len(graph.blocks[b].parent) + len(graph.blocks[b].set_of))
    tiles = np.diff(graph.tile_base)
    blocks: dict[int, dict[str, Any]] = {}
    coarse = missing = 0
    for behind, block in zip(range(len(block_order) - 1, -1, -1), block_order, strict=True):
        producers = int(tiles[producer_of[block]])
        value, size = fitted(graph.blocks[block], producers, budget, reserved=behind * _COARSE_BYTES)
        coarse, missing = coarse + ("counts" in value), missing + ("left_out" in value)
        budget -= size
        blocks[block] = value
    if coarse:
        notes.append(
            f"{coarse:,} of {len(block_order):,} tile relations are too large for one page; they are aggregated to "
            f"{COARSE} by {COARSE} cells."
        )
    if missing:
        notes.append(f"{missing:,} of {len(block_order):,} tile relations did not fit in this page and are left out.")
    renumbered = {block: i for i, block in enumerate(blocks)}
    return {"links": _links(links, renumbered), "blocks": list(blocks.values()), "block_numbers": pack(list(blocks))}


def fitted(block: EdgeBlock, producers: int, budget: int, *, reserved: int = 0) -> tuple[dict[str, Any], int]:
    """Return one relation for the browser and its bytes: whole within ``budget - reserved``, counted on a grid within
    ``budget``, else ``{"left_out": True}``.
    """
    if len(block.parent) <= _TOO_MANY:
        value = whole(block)
        if _bytes(value) <= max(budget - reserved, min(budget, _SMALL_BYTES)):
            return value, _bytes(value)
    value = _aggregated(block, producers)
    if _bytes(value) > budget:
        value = {"left_out": True}
    return value, _bytes(value)


def _links(links: pd.DataFrame, renumbered: dict[int, int]) -> dict[str, Packed]:
    names = ("producer", "consumer", "edges", "bytes", "parents", "children")
    table = {name: pack(links[name].to_numpy(), delta=name in {"producer", "consumer"}) for name in names}
    table["hazard"] = pack([HAZARDS.index(str(h)) for h in links["hazard"]])
    table["reuse"] = pack(links["reuse"].to_numpy(np.int64))
    table["block"] = pack([renumbered[int(b)] for b in links["block"]])
    return table


def _bytes(value: dict[str, Any]) -> int:
    return sum(packed_bytes(v) for v in value.values() if isinstance(v, dict)) + 40


def whole(block: EdgeBlock) -> dict[str, Any]:
    """Return a relation with every edge."""
    return {
        "set_of": pack(block.set_of, delta=True),
        "indptr": pack(block.indptr, delta=True),
        "parent": pack(block.parent, delta=True),
        "bytes": pack(block.bytes),
        "last": pack(_shares(block.last)),
        "first": pack(_shares(block.first)),
    }


def _shares(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return fractions of a tile's life in steps of 1/254; unknown as 255."""
    numbers = np.nan_to_num(np.asarray(values, np.float64), nan=0.0)
    return np.where(np.isnan(values), _UNKNOWN_SHARE, np.rint(numbers * 254)).astype(np.int64)


def _aggregated(block: EdgeBlock, producers: int) -> dict[str, Any]:
    """Return edges counted on a grid of at most ``COARSE`` by ``COARSE`` cells of equal tiles."""
    consumers = len(block.set_of)
    rows, columns = min(COARSE, max(producers, 1)), min(COARSE, max(consumers, 1))
    linked = np.flatnonzero(block.set_of >= 0)
    set_of_parent = owners(block.indptr)
    row_of_parent = block.parent.astype(np.int64) * rows // max(producers, 1)
    cells, edges = np.unique(set_of_parent * rows + row_of_parent, return_counts=True)
    column = linked * columns // max(consumers, 1)
    distinct_cells, users = np.unique(block.set_of[linked].astype(np.int64) * columns + column, return_counts=True)
    # Rows of each set by columns of the same set; in parts, for a set may have all of both.
    first = np.searchsorted(distinct_cells // columns, cells // rows, side="left")
    count = np.searchsorted(distinct_cells // columns, cells // rows, side="right") - first
    counts = np.zeros(rows * columns)
    part = np.cumsum(count) // _CELLS_AT_ONCE
    for here in np.split(np.arange(len(cells)), np.flatnonzero(np.diff(part)) + 1):
        at, times = spans(first[here], count[here]), count[here]
        cell = np.repeat(cells[here] % rows, times) * columns + distinct_cells[at] % columns
        counts += np.bincount(cell, np.repeat(edges[here], times) * users[at], rows * columns)
    return {"rows": rows, "columns": columns, "producers": producers, "counts": pack(np.rint(counts).astype(np.int64))}
