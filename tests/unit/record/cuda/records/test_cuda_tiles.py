"""Blocks, clusters and tiles."""

import itertools

import numpy as np
import pytest

from tileprof.record.cuda.records.tiles import Geometry


@pytest.mark.parametrize(
    ("grid", "cluster"),
    [((5, 3, 2), (1, 1, 1)), ((4, 6, 2), (2, 1, 1)), ((4, 6, 2), (2, 3, 2)), ((8, 12, 1), (1, 4, 1))],
)
def test_each_cluster_is_one_tile_and_x_runs_fastest(grid, cluster):
    geometry = Geometry(grid, (32, 1, 1), cluster)
    places = [tuple(p) for p in geometry.places().tolist()]
    assert len(places) == geometry.tiles
    assert places == sorted(places, key=lambda p: p[::-1])
    blocks = itertools.product(range(grid[2]), range(grid[1]), range(grid[0]))
    for number, (z, y, x) in enumerate(blocks):
        first = tuple(c // w * w for c, w in zip((x, y, z), cluster, strict=True))
        assert places[int(geometry.tile_of(np.array([number]))[0])] == first
