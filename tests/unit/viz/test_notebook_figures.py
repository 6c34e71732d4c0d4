"""The notebooks' figures show what the graph holds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.policy.graphs import graph_of
from tileprof.errors import UserError
from tileprof.viz.figures import tile_graph, tile_matrix


def chain(tiles: int = 6):
    return graph_of([(tiles, 1, 1), (tiles, 1, 1)], {(0, 1): {(i, i) for i in range(1, tiles)}})


def test_every_edge_is_a_line_and_tiles_without_parents_are_marked() -> None:
    figure = tile_graph(chain(), [0, 1])
    assert sum(v is None for v in figure.data[0].x) == 5
    colours = [set(np.asarray(d.marker.color).tolist()) for d in figure.data[1:]]
    assert colours[0] == {"#E69F00"}
    assert np.asarray(figure.data[2].marker.color).tolist().count("#E69F00") == 1


def test_the_matrix_counts_each_edge_once_whatever_the_bins() -> None:
    assert np.asarray(tile_matrix(chain(), 0, 1).data[0].z).sum() == 5
    assert np.asarray(tile_matrix(chain(1000), 0, 1).data[0].z).sum() == 999


def test_what_cannot_be_drawn_says_why() -> None:
    with pytest.raises(UserError, match="at most 4,000"):
        tile_graph(chain(3000), [0, 1])
    with pytest.raises(UserError, match="does not depend"):
        tile_matrix(chain(), 1, 0)
