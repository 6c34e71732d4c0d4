"""Parts of all kernels with a main loop over k: the grid in dispatch order, and the times in a tile's life at which it
reads.

The main loop of a tile moves ``(m + n) * k`` elements, then its epilogue ``m * n``; both go through the same pipe, so
the epilogue's share of the life is its share of the bytes. Chunk i of the loop is needed at i/chunks of the loop;
that a pipeline fetches a few iterations ahead is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tileprof.record.model.tiles.foundations.sketch import PRODUCT_BYTES, check_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tiles.products.gemm_tile_rule import Tile

CHUNKS = 8
"""The most steps of the main loop that are distinguished."""
BOXES = 1_000_000
"""Above this many boxes per launch, tiles get fewer chunks."""
SWIZZLE = 8
"""Tile columns that are dispatched together, so that neighbours in time share operands in L2."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The main loop in chunks: ``start``, ``stop`` along k and ``first``, ``last`` in the tile's life, ``[splits,
    chunks]``.
    """

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    epilogue: float
    """The moment in its life at which the tile begins its epilogue."""


def raster(tiles_m: int, tiles_n: int, depth: int) -> NDArray[np.int32]:
    """Return grid coordinates ``[tiles, 3]`` in dispatch order: z slowest, groups of `SWIZZLE` columns, rows,
    columns. Raises `UserError` if they are too many (`check_number`).
    """
    check_number(tiles_m * tiles_n * depth, PRODUCT_BYTES)
    z, x, y = (i.ravel() for i in np.indices((depth, tiles_m, tiles_n), dtype=np.int32))
    order = np.lexsort((y, x, y // SWIZZLE, z))
    return np.column_stack([x, y, z])[order]


def main_loop(depth: int, tile: Tile, itemsize: int, out_itemsize: int, *, chunks: int) -> Loop:
    """Cut a loop of ``depth`` into ``tile.split`` slices of whole iterations, and each slice into at most
    ``chunks``.
    """
    iterations = -(-depth // tile.k)
    chunks = max(1, min(chunks, -(-iterations // tile.split)))
    split = np.arange(tile.split)[:, None]
    low, high = split * iterations // tile.split, (split + 1) * iterations // tile.split
    part = np.arange(chunks + 1)[None, :]
    at = low + part * (high - low) // chunks
    loop_bytes = (tile.m + tile.n) * -(-depth // tile.split) * itemsize
    epilogue = loop_bytes / (loop_bytes + tile.m * tile.n * out_itemsize)
    life = (at - low) / np.maximum(high - low, 1) * epilogue
    edge = np.minimum(at * tile.k, depth)
    return Loop(edge[:, :-1], edge[:, 1:], life[:, :-1], life[:, 1:], epilogue)


def chunks_for(tiles: int) -> int:
    """Chunks of the main loop that a launch of ``tiles`` tiles can afford."""
    return max(1, min(CHUNKS, BOXES // (2 * tiles)))


def flops(dtype: str, multiply_adds: int) -> int:
    """Return two for each multiply-add, four times that for complex numbers."""
    return 2 * multiply_adds * (4 if dtype.startswith("complex") else 1)
