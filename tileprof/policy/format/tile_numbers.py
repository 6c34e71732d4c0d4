"""Tile numbers of a policy, and how they map to the tiles of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64, grids
from tileprof.policy.format import PolicyError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph


def grid_of(graph: TileGraph, launch: int) -> tuple[int, int, int]:
    """Return the grid of tiles of a launch."""
    x, y, z = (int(n) + 1 for n in coordinates(graph, launch).max(axis=0))
    return x, y, z


def tile_numbers(graph: TileGraph, launch: int) -> NDArray[np.int64]:
    """Return the policy's number ``x + gx*(y + gy*z)`` of each tile of a launch, in trace order.

    Raises `PolicyError` where the tiles do not fill a grid, each place once: such a launch cannot be a stage.
    """
    block = coordinates(graph, launch)
    gx, gy, gz = (int(n) + 1 for n in block.max(axis=0))
    numbers: I64 = grids.number((gx, gy, gz), *block.T)
    if len(numbers) != gx * gy * gz or len(np.unique(numbers)) != len(numbers):
        raise PolicyError(
            f"launch {launch} has {len(numbers)} tiles, which do not fill its grid of {gx} x {gy} x {gz}; it cannot be "
            "a stage"
        )
    return numbers


def coordinates(graph: TileGraph, launch: int) -> NDArray[np.int64]:
    """Return grid coordinates ``[tiles, 3]`` of the tiles of a launch, in trace order: tiles are counted, where the
    trace has their first blocks.

    A tile that is a cluster of 2 x 1 blocks lies at x = 0, 2, 4, ... there, and at 0, 1, 2, ... here.
    """
    block = graph.footprint(int(graph.launches["footprint"].to_numpy()[launch])).block
    return np.stack([np.unique(axis, return_inverse=True)[1].astype(np.int64) for axis in block.T], axis=1)
