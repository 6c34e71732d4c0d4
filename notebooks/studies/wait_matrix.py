"""A policy over one pair of launches, tile by tile."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from studies.charts import areas

from tileprof.analysis import EdgeBlock, TileGraph
from tileprof.errors import UserError
from tileprof.viz.figures.tile_figures import launch_title
from tileprof.viz.tables.policy_overlay import PairOverlay


def wait_matrix(
    graph: TileGraph, pair: PairOverlay, *, title: str, first: slice = slice(0, 48), reuse: bool = False
) -> go.Figure:
    """Return a policy over one pair of launches, tile by tile: dependencies that it guarantees, those that it misses,
    and waits without need.

    ``pair`` as for the page, ``awaited`` and ``missing`` in tiles of the trace; of both launches the tiles ``first``
    are shown. ``reuse`` draws hazards of recycled memory too. Raises `UserError` where the slice holds no tile of
    either.
    """
    dependencies = _parents(graph, pair.producer, pair.consumer, reuse=reuse)
    shape = dependencies.shape
    missing, awaited = (_dense(block, shape) for block in (pair.missing, pair.awaited))
    cells = np.select([missing, dependencies, awaited], [2, 1, 3], 0)[first, first]
    if cells.size == 0:
        raise UserError(f"no tiles to show: launches of {shape[0]} and {shape[1]} tiles, asked for {first}")
    start = first.indices(max(shape))[0]
    return areas(
        cells,
        ("nothing", "needed and guaranteed", "needed, but nothing waits for it", "awaited without need"),
        ("#f4f4f4", "#0072B2", "#D55E00", "#999999"),
        title=title,
        x_title=f"tiles of {launch_title(graph, pair.consumer)}",
        y_title=f"tiles of {launch_title(graph, pair.producer)}",
        origin=(start, start),
    )


def _parents(graph: TileGraph, producer: int, consumer: int, *, reuse: bool) -> NDArray[np.bool_]:
    """Return ``[producer tiles, consumer tiles]``: which of them depend on each other."""
    tiles = [int(graph.tile_base[i + 1] - graph.tile_base[i]) for i in (producer, consumer)]
    dependent = np.zeros(tiles, np.bool_)
    links = graph.links
    rows = links[(links["producer"] == producer) & (links["consumer"] == consumer) & (reuse | ~links["reuse"])]
    for block in sorted(set(rows["block"].tolist())):
        dependent |= _dense(graph.blocks[block], dependent.shape)
    return dependent


def _dense(block: EdgeBlock | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    dependent = np.zeros(shape, np.bool_)
    if block is not None:
        parent, child, _ = block.edges()
        dependent[parent, child] = True
    return dependent
