"""Figures for notebooks: small plotly pictures of tile graphs, each from a graph alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.viz.charts import areas, dressed

if TYPE_CHECKING:
    from tileprof.analysis import EdgeBlock, TileGraph
    from tileprof.viz.overlay import PairOverlay

MOST_TILES = 4000
"""More nodes than this nobody can tell apart."""
_MATRIX_BINS = 256
# Okabe and Ito's palette: told apart by colour-blind readers.
_EDGE, _TILE, _FREE = "rgba(90,90,90,0.25)", "#0072B2", "#E69F00"


def tile_graph(graph: TileGraph, launches: Sequence[int], *, title: str = "", reuse: bool = False) -> go.Figure:
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
    figure.data[0].update(name="dependency")
    for name, colour in (("needs tiles shown here", _TILE), ("needs none of them", _FREE)):
        figure.add_trace(
            go.Scatter(x=[None], y=[None], mode="markers", name=name, marker={"size": 10, "color": colour})
        )
    names = [_title(graph, launch) for launch in chosen]
    ticks = {"tickmode": "array", "tickvals": list(range(len(chosen))), "ticktext": names, "tickangle": 45}
    figure.update_xaxes(title="launches, in the order of the program", showgrid=False, zeroline=False, **ticks)
    figure.update_yaxes(visible=False, autorange="reversed")
    return dressed(figure, title, height=640, top=40)


def tile_matrix(graph: TileGraph, producer: int, consumer: int, *, title: str = "", reuse: bool = False) -> go.Figure:
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
    bins = [size / n for size, n in zip(sizes, counts.shape, strict=True)]
    places = {"y0": bins[0] / 2 - 0.5, "dy": bins[0], "x0": bins[1] / 2 - 0.5, "dx": bins[1]}
    figure = go.Figure(
        go.Heatmap(
            z=counts,
            **places,
            colorscale="Blues",
            zmin=0,
            colorbar={"title": "edges"},
            showscale=bool(counts.max() > 1),
        )
    )
    figure.update_xaxes(title=f"tiles of {_title(graph, consumer)} ({sizes[1]:,})")
    figure.update_yaxes(title=f"tiles of {_title(graph, producer)} ({sizes[0]:,})", autorange="reversed")
    return dressed(figure, title, height=540)


def wait_matrix(
    graph: TileGraph, pair: PairOverlay, *, title: str, first: slice = slice(0, 48), reuse: bool = False
) -> go.Figure:
    """A policy over one pair of launches, tile by tile: dependencies that it guarantees, those that it misses, and waits without need.

    ``pair`` as for the page, ``awaited`` and ``missing`` in tiles of the trace; of both launches the tiles ``first`` are shown. ``reuse`` draws hazards
    of recycled memory too. Raises `UserError` where the slice holds no tile of either.
    """
    needed = _parents(graph, pair.producer, pair.consumer, reuse=reuse)
    shape = needed.shape
    missing, awaited = (_dense(block, shape) for block in (pair.missing, pair.awaited))
    cells = np.select([missing, needed, awaited], [2, 1, 3], 0)[first, first]
    if cells.size == 0:
        raise UserError(f"no tiles to show: launches of {shape[0]} and {shape[1]} tiles, asked for {first}")
    start = first.indices(max(shape))[0]
    return areas(
        cells,
        ("nothing", "needed and guaranteed", "needed, but nothing waits for it", "awaited without need"),
        ("#f4f4f4", _TILE, "#D55E00", "#999999"),
        title=title,
        x_title=f"tiles of {_title(graph, pair.consumer)}",
        y_title=f"tiles of {_title(graph, pair.producer)}",
        origin=(start, start),
    )


def _parents(graph: TileGraph, producer: int, consumer: int, *, reuse: bool) -> NDArray[np.bool_]:
    """``[producer tiles, consumer tiles]``: which of them depend on each other."""
    tiles = [int(graph.tile_base[i + 1] - graph.tile_base[i]) for i in (producer, consumer)]
    found = np.zeros(tiles, np.bool_)
    links = graph.links
    rows = links[(links["producer"] == producer) & (links["consumer"] == consumer) & (reuse | ~links["reuse"])]
    for block in sorted(set(rows["block"].tolist())):
        found |= _dense(graph.blocks[block], found.shape)
    return found


def _dense(block: EdgeBlock | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    found = np.zeros(shape, np.bool_)
    if block is not None:
        parent, child, _ = block.edges()
        found[parent, child] = True
    return found


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
        showlegend=False,
    )


def _title(graph: TileGraph, launch: int) -> str:
    row = graph.launches.iloc[launch]
    return f"{launch}: {str(row['op']).removeprefix('aten::').split('.', 1)[0]}"
