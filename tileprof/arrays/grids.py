"""Tiles of a grid ``(gx, gy, gz)`` by number: x runs fastest."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from tileprof.arrays import I64

Grid = tuple[int, int, int]
Index = TypeVar("Index", int, I64)


def number(grid: Grid, x: Index, y: Index, z: Index) -> Index:
    """Return ``x + gx*(y + gy*z)``, the number of tile ``(x, y, z)``; also of arrays of them."""
    return x + grid[0] * (y + grid[1] * z)


def place(grid: Grid, number: Index) -> tuple[Index, Index, Index]:
    """Return ``x, y, z`` of the tile with a number; also of arrays of them."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


def size(grid: Grid) -> int:
    """Return tiles of a grid."""
    return grid[0] * grid[1] * grid[2]


def places(grid: Grid) -> I64:
    """Return ``[tiles, 3]``: x, y, z of every tile of a grid, by number."""
    return np.stack(place(grid, np.arange(size(grid), dtype=np.int64)), axis=1)
