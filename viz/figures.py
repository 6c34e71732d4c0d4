"""Figures for notebooks: small plotly pictures of tile graphs, each from a graph alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis import EdgeBlock, TileGraph

MOST_TILES = 4000
"""More nodes than this nobody can tell apart."""
_MATRIX_BINS = 256
# Okabe and Ito's palette: told apart by colour-blind readers.
_EDGE, _TILE, _FREE = "rgba(90,90,90,0.25)", "#0072B2", "#E69F00"


def tile_graph(graph: TileGraph, launches: Sequence[int], *, reuse: bool = False) -> go.Figure:
    """Tiles as nodes, one column a launch, dependencies as lines; tiles without parents here are marked.

    ``reuse`` draws hazards of recycled memory too. Raises `UserError` above `MOST_TILES` tiles.
    """
    chosen = sorted(set(launches))
    tiles = [int(graph.tile_base[i + 1] - graph.tile_base[i]) for i in chosen]
    if sum(tiles) > MOST_TILES:
        raise UserError(f"{sum(tiles):,} tiles; a figure shows at most {MOST_TILES:,}: choose fewer launches")
    place = {launch: column for column, launch in enumerate(chosen)}
    links = graph.links
    inside = links[links["producer"].isin(chosen) & links["consumer"].isin(chosen)]
    if not reuse:
        inside = inside[~inside["reuse"]]
    x: list[float | None] = []
    y: list[float | None] = []
    has_parent = [np.zeros(n, bool) for n in tiles]
    for producer, consumer, block in zip(
        inside["producer"].tolist(), inside["consumer"].tolist(), inside["block"].tolist(), strict=True
    ):
        parent, child, _ = graph.blocks[block].edges()
        a, b = place[producer], place[consumer]
        has_parent[b][child] = True
        for p, c in zip(_height(parent, tiles[a]), _height(child, tiles[b]), strict=True):
            x += [a, b, None]
            y += [p, c, None]
    figure = go.Figure(go.Scattergl(x=x, y=y, mode="lines", line={"color": _EDGE, "width": 1}, hoverinfo="skip"))
    for column, launch in enumerate(chosen):
        figure.add_trace(_nodes(graph, launch, column, has_parent[column]))
    names = [_title(graph, launch) for launch in chosen]
    figure.update_layout(
        showlegend=False,
        template="plotly_white",
        height=600,
        xaxis={"tickmode": "array", "tickvals": list(range(len(chosen))), "ticktext": names},
        yaxis={"visible": False, "autorange": "reversed"},
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
    )
    return figure


def tile_matrix(graph: TileGraph, producer: int, consumer: int, *, reuse: bool = False) -> go.Figure:
    """Producer tiles by consumer tiles: how many dependencies, summed over at most 256 x 256 bins."""
    links = graph.links
    rows = links[(links["producer"] == producer) & (links["consumer"] == consumer)]
    if not reuse:
        rows = rows[~rows["reuse"]]
    if rows.empty:
        raise UserError(f"launch {consumer} does not depend on launch {producer}")
    sizes = [int(graph.tile_base[i + 1] - graph.tile_base[i]) for i in (producer, consumer)]
    counts = np.zeros([min(n, _MATRIX_BINS) for n in sizes], np.int64)
    for block in sorted(set(rows["block"].tolist())):
        counts += _binned(graph.blocks[block], sizes, counts.shape)
    figure = go.Figure(go.Heatmap(z=counts, colorscale="Blues", zmin=0, colorbar={"title": "edges"}))
    figure.update_layout(
        template="plotly_white",
        height=520,
        xaxis_title=f"tiles of {_title(graph, consumer)} ({sizes[1]})",
        yaxis_title=f"tiles of {_title(graph, producer)} ({sizes[0]})",
        yaxis_autorange="reversed",
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
    )
    return figure


def _binned(block: EdgeBlock, sizes: list[int], shape: tuple[int, ...]) -> NDArray[np.int64]:
    parent, child, _ = block.edges()
    cell = parent.astype(np.int64) * shape[0] // sizes[0] * shape[1] + child.astype(np.int64) * shape[1] // sizes[1]
    return np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape[0], shape[1]).astype(np.int64)


def _height(tile: NDArray[np.int32], tiles: int) -> list[float]:
    heights: list[float] = ((tile + 0.5) / tiles).tolist()
    return heights


def _nodes(graph: TileGraph, launch: int, column: int, has_parent: NDArray[np.bool_]) -> go.Scattergl:
    block = graph.trace.footprint(int(graph.launches["footprint"].iloc[launch])).block
    tiles = len(block)
    text = [f"tile {n} at ({x}, {y}, {z})" for n, (x, y, z) in enumerate(block.tolist())]
    return go.Scattergl(
        x=np.full(tiles, column),
        y=_height(np.arange(tiles, dtype=np.int32), tiles),
        mode="markers",
        marker={"size": 8, "color": np.where(has_parent, _TILE, _FREE)},
        text=text,
        hoverinfo="text",
    )


def _title(graph: TileGraph, launch: int) -> str:
    row = graph.launches.iloc[launch]
    return f"{launch}: {str(row['op']).removeprefix('aten::').split('.', 1)[0]}"
