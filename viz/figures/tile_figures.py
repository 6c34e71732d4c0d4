"""Plotly pictures of a tile graph: its tiles with their dependencies, and one pair of launches as a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.viz.figures.figure_style import dressed

if TYPE_CHECKING:
    from tileprof.analysis import EdgeBlock, TileGraph

MOST_TILES = 4000
"""More nodes than this cannot be distinguished in a figure."""
_MATRIX_BINS = 256
# Okabe and Ito's palette: told apart by colour-blind readers.
_EDGE, _TILE, _FREE = "#777777", "#0072B2", "#E69F00"
_FAN_COLOUR, _FAR = "rgba(90,90,90,0.4)", ("#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#8C564B")
_FAN = 0.34
"""Columns between a node and where its line meets others."""
_BEND = 0.026
"""The bend of a line over other columns: less than half the distance of 16 nodes in a column."""


def tile_graph(graph: TileGraph, launches: Sequence[int], *, title: str = "", reuse: bool = False) -> go.Figure:
    """Return tiles as nodes, one column per launch, dependencies as lines; tiles without parents here are marked.

    Where several tiles all need the same several tiles, their lines meet in a small square and continue as one to a
    second, from which they part again. Lines that pass over columns are bent, and have a colour for each producer.
    ``reuse`` draws hazards of recycled memory too. Raises `UserError` above `MOST_TILES` tiles.
    """
    launch_numbers = sorted(set(launches))
    tiles = [int(graph.tile_base[i + 1] - graph.tile_base[i]) for i in launch_numbers]
    if sum(tiles) > MOST_TILES:
        raise UserError(f"{sum(tiles):,} tiles; a figure shows at most {MOST_TILES:,}: choose fewer launches")
    place = {launch: column for column, launch in enumerate(launch_numbers)}
    links = graph.links
    inside = links[links["producer"].isin(launch_numbers) & links["consumer"].isin(launch_numbers)]
    if not reuse:
        inside = inside[~inside["reuse"]]
    lines = _Lines()
    has_parent = [np.zeros(n, bool) for n in tiles]
    for producer, consumer, block in (
        inside[["producer", "consumer", "block"]].drop_duplicates().itertuples(index=False)
    ):
        a, b = place[producer], place[consumer]
        has_parent[b] |= graph.blocks[block].set_of >= 0
        lines.add(graph.blocks[block], (a, b), (tiles[a], tiles[b]))
    figure = go.Figure(lines.traces())
    for column, launch in enumerate(launch_numbers):
        figure.add_trace(_nodes(graph, launch, column, has_parent[column]))
    for name, colour in (("needs tiles shown here", _TILE), ("needs none of them", _FREE)):
        figure.add_trace(
            go.Scatter(x=[None], y=[None], mode="markers", name=name, marker={"size": 10, "color": colour})
        )
    names = [launch_title(graph, launch) for launch in launch_numbers]
    ticks = {"tickmode": "array", "tickvals": list(range(len(launch_numbers))), "ticktext": names, "tickangle": 45}
    figure.update_xaxes(title="launches, in the order of the program", showgrid=False, zeroline=False, **ticks)
    figure.update_yaxes(visible=False, autorange="reversed")
    return dressed(figure, title, height=680, top=64)


class _Lines:
    """Lines of a tile graph, by what they look like: x and y with None between two lines, as plotly wants them."""

    def __init__(self) -> None:
        self.single = _Path()
        self.fans = _Path()
        self.far: dict[int, _Path] = {}
        self.squares = _Path()

    def add(self, block: EdgeBlock, columns: tuple[int, int], tiles: tuple[int, int]) -> None:
        """The dependencies of two launches, with their columns and numbers of tiles."""
        a, b = columns
        path = self.single if b == a + 1 else self.far.setdefault(a, _Path())
        alike: dict[tuple[int, ...], list[int]] = {}
        for number in range(len(block.indptr) - 1):
            key = tuple(block.parent[block.indptr[number] : block.indptr[number + 1]].tolist())
            alike.setdefault(key, []).append(number)
        for key, sets in alike.items():
            parents = _heights(np.array(key, np.int64), tiles[0])
            children = _heights(np.flatnonzero(np.isin(block.set_of, sets)), tiles[1])
            if len(parents) > 1 and len(children) > 1:
                self._trunk(path, columns, parents, children)
                continue
            for parent in parents:
                for child in children:
                    path.line((a, parent), (b, child))

    def _trunk(self, path: _Path, columns: tuple[int, int], parents: list[float], children: list[float]) -> None:
        ends = (columns[0] + _FAN, sum(parents) / len(parents)), (columns[1] - _FAN, sum(children) / len(children))
        path.line(*ends)
        for parent in parents:
            self.fans.line((columns[0], parent), ends[0])
        for child in children:
            self.fans.line(ends[1], (columns[1], child))
        for end in ends:
            self.squares.point(end)

    def traces(self) -> list[go.Scatter]:
        """Return faint lines first, so that the others lie above them."""
        far = [
            path.trace(_FAR[n % len(_FAR)], 1.6, "passes over launches (a colour for each producer)", shown=n == 0)
            for n, (_, path) in enumerate(sorted(self.far.items()))
        ]
        squares = go.Scatter(
            x=self.squares.x,
            y=self.squares.y,
            mode="markers",
            name="all before it are needed by all after it",
            marker={"symbol": "square", "size": 6, "color": "#444444"},
            hoverinfo="skip",
            showlegend=bool(self.squares.x),
        )
        return [
            self.fans.trace(_FAN_COLOUR, 0.8, "", shown=False),
            self.single.trace(_EDGE, 1.2, "needed by the next launch", shown=True),
            *far,
            squares,
        ]


class _Path:
    def __init__(self) -> None:
        self.x: list[float | None] = []
        self.y: list[float | None] = []

    def line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Straight to the next column; further on it is bent upwards, so that it passes between nodes of its own
        height.
        """
        (x0, y0), (x1, y1) = start, end
        at = np.array([0.0, 1.0]) if x1 - x0 <= 1 else np.linspace(0, 1, 13)
        self.x += [*(x0 + at * (x1 - x0)).tolist(), None]
        self.y += [*(y0 + at * (y1 - y0) - _BEND * 4 * at * (1 - at)).tolist(), None]

    def point(self, at: tuple[float, float]) -> None:
        self.x.append(at[0])
        self.y.append(at[1])

    def trace(self, colour: str, width: float, name: str, *, shown: bool) -> go.Scatter:
        look = {"line": {"color": colour, "width": width}, "showlegend": shown and bool(self.x)}
        return go.Scatter(x=self.x, y=self.y, mode="lines", name=name, hoverinfo="skip", **look)


def tile_matrix(graph: TileGraph, producer: int, consumer: int, *, title: str = "", reuse: bool = False) -> go.Figure:
    """Return producer tiles by consumer tiles: how many dependencies, summed over at most 256 x 256 bins.

    Raises `UserError` where the consumer does not depend on the producer.
    """
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
    figure.update_xaxes(title=f"tiles of {launch_title(graph, consumer)} ({sizes[1]:,})")
    figure.update_yaxes(title=f"tiles of {launch_title(graph, producer)} ({sizes[0]:,})", autorange="reversed")
    return dressed(figure, title, height=540)


def _binned(block: EdgeBlock, sizes: list[int], shape: tuple[int, ...]) -> NDArray[np.int64]:
    parent, child, _ = block.edges()
    cell = parent.astype(np.int64) * shape[0] // sizes[0] * shape[1] + child.astype(np.int64) * shape[1] // sizes[1]
    return np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape[0], shape[1]).astype(np.int64)


def _heights(tile: NDArray[np.integer], tiles: int) -> list[float]:
    heights: list[float] = ((tile + 0.5) / tiles).tolist()
    return heights


def _nodes(graph: TileGraph, launch: int, column: int, has_parent: NDArray[np.bool_]) -> go.Scatter:
    block = graph.footprint(int(graph.launches["footprint"].iloc[launch])).block
    tiles = len(block)
    text = [f"tile {n} at ({x}, {y}, {z})" for n, (x, y, z) in enumerate(block.tolist())]
    return go.Scatter(
        x=np.full(tiles, column),
        y=_heights(np.arange(tiles), tiles),
        mode="markers",
        marker={"size": 8, "color": np.where(has_parent, _TILE, _FREE)},
        text=text,
        hoverinfo="text",
        showlegend=False,
    )


def launch_title(graph: TileGraph, launch: int) -> str:
    """Return number and operator of a launch."""
    row = graph.launches.iloc[launch]
    return f"{launch}: {str(row['op']).removeprefix('aten::').split('.', 1)[0]}"
