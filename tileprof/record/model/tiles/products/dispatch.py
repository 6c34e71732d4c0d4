"""In which order a library's kernel dispatches the tiles of a product, and in which grid.

**nvjet**, cuBLAS's kernels for Hopper, gives clusters that share a GPC neighbouring tiles. Clusters start in turns, one
per GPC; those of the same GPC have consecutive numbers, and a cluster computes the tile with its number. Numbers run
along n (``h`` in a kernel's name), or along m where clusters are one block high and several wide (``v``). Recorded on
H200s: one GPC holds fewer clusters than the others, and four pairs of SMs take clusters of two first. Eleven of the 13
launches in golden traces whose stores were recorded agree; the other two cut their columns into groups
(`tests/unit/record/model/tiles/products/test_dispatch.py`). Where more clusters are launched than run at once, nothing
was recorded: tiles keep the order of their numbers.

**CUTLASS** lays several columns of tiles side by side along x, so that neighbours in time share operands: 8, 4 or 2
where there are at least 6, 3 or 2 (``GemmIdentityThreadblockSwizzle`` in its ``threadblock_swizzle.h``). Blocks beyond
the last column do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tiles.products.main_loop import raster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.devices import Device

ARCHITECTURE, SMS = "sm_90", 132
_GPCS: Final = (8, 18, 18, 16, 16, 16, 16, 16)
"""SMs that take clusters, by GPC; which two have 18 matters for 65 and 66 clusters of two alone."""
_PAIRS: Final = 4
"""Pairs of SMs beside them, which take clusters of two."""
_PAIR: Final = 2
_ASIDE: Final = ((8, 6), (4, 3), (2, 2))
"""Columns of tiles that CUTLASS lays side by side, and from how many columns on."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The blocks of a launch, in the order in which they start.

    ``cells`` ``[computing, 3]`` is the place of what a block computes: rows, columns, slices; ``tiles`` its number
    among all blocks; ``places`` ``[blocks, 3]`` and ``grid`` are the launch's.
    """

    cells: NDArray[np.int32]
    tiles: NDArray[np.int64]
    places: NDArray[np.int32]
    grid: tuple[int, int, int]


def plain(tiles: tuple[int, int, int]) -> Dispatch:
    """Return a grid of rows, columns and slices of tiles."""
    cells = raster(*tiles)
    return Dispatch(cells, np.arange(len(cells)), cells, tiles)


def swizzled(tiles: tuple[int, int, int]) -> Dispatch:
    """Return CUTLASS's grid."""
    down, across, deep = tiles
    aside = next((size for size, least in _ASIDE if across >= least), 1)
    grid = (down * aside, -(-across // aside), deep)
    z, y, x = (i.ravel() for i in np.indices(grid[::-1], dtype=np.int32))
    cells = np.column_stack([x // aside, y * aside + x % aside, z])
    computing = np.flatnonzero(cells[:, 1] < across)
    return Dispatch(cells[computing], computing, np.column_stack([x, y, z]), grid)


def clusters(tiles: tuple[int, int, int], cluster: tuple[int, int], device: Device) -> Dispatch:
    """Return nvjet's grid: x counts the blocks of a cluster, y the clusters of a slice, each of which is a tile."""
    down, across, deep = tiles
    cells = raster(*tiles)
    if deep == 1 and (device.architecture, device.sms) == (ARCHITECTURE, SMS):
        number = np.array(numbers(down * across, cluster[0] * cluster[1]), np.int32)
        along_m = cluster[0] == 1 and cluster[1] > 1
        m, n = (number % down, number // down) if along_m else (number // across, number % across)
        cells = np.column_stack([m, n, 0 * number])
    of_slice = np.arange(len(cells), dtype=np.int32) % (down * across)
    places = np.column_stack([0 * of_slice, of_slice, cells[:, 2]])
    return Dispatch(cells, np.arange(len(cells)), places, (cluster[0] * cluster[1], down * across, deep))


@cache
def numbers(count: int, blocks: int) -> tuple[int, ...]:
    """Return the numbers of ``count`` clusters of ``blocks`` blocks, in the order in which they start."""
    alone = min(_PAIRS, count) if blocks <= _PAIR else 0
    rooms = [sms // blocks for sms in _GPCS]
    if alone + sum(rooms) < count:
        return tuple(range(count))
    turns = [gpc for turn in range(max(rooms)) for gpc, room in enumerate(rooms) if turn < room]
    gpcs = np.array([-1] * alone + turns[: count - alone], np.int64)
    return tuple(np.argsort(np.argsort(gpcs, kind="stable")).tolist())
