"""Orders in which blocks take the tiles of a grid.

A row of a product is complete when its last tile is: where blocks take tiles column by column, all rows are complete
only at the end, so that a wait for a row is a wait for the whole grid. An order is named by its axes, the one that
runs fastest first: ``yzx`` takes all y and z of one x before the next x. ``xyz``, ascending numbers, is the default.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

Grid = tuple[int, int, int]

ASCENDING: Final = "xyz"
AXES: Final = tuple("".join(p) for p in permutations("xyz"))


@lru_cache(maxsize=256)
def axes_order(grid: Grid, axes: str) -> tuple[int, ...]:
    """Tile numbers of a grid in the order of ``axes``; one object for equal arguments, as repeated layers have."""
    number = np.arange(grid[0] * grid[1] * grid[2], dtype=np.int64).reshape(grid[::-1])
    return tuple(number.transpose([2 - "xyz".index(axis) for axis in reversed(axes)]).ravel().tolist())


def axes_of(grid: Grid, order: tuple[int, ...]) -> str | None:
    """Return the axes of which ``order`` is the order; None for none."""
    return next((axes for axes in AXES if axes_order(grid, axes) == order), None)


def choices(grid: Grid) -> tuple[str, ...]:
    """Return the ascending order, and one order for each other axis along which whole rows could be taken one after the
    other.
    """
    orders = [ASCENDING]
    for slowest in "xy":
        axes = "".join(axis for axis in "xyz" if axis != slowest) + slowest
        wide = [axis for axis in axes if grid["xyz".index(axis)] > 1]
        if grid["xyz".index(slowest)] > 1 and wide != sorted(wide):
            orders.append(axes)
    return tuple(orders)


def places(order: tuple[int, ...]) -> NDArray[np.int64]:
    """Return ``[tiles]``: the place of each tile in an order."""
    place = np.empty(len(order), np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    return place
