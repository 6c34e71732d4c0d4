"""Fits a recipe to the sizes of a problem: what a library makes of the kernel and the slices that it chose.

Learnt from 44,000 products whose algorithm cuBLASLt was asked for and that were launched on an H200: these rules
explain 99.7% of those with float32, and more of others:

- CUTLASS's kernels cut k at multiples of 16 bytes, or of 128 bytes where k is such a multiple and rows of a lie along
  k. Cut so, fewer slices may do than were asked for.
- Kernels whose names tell no tile (gemv and the like) share a side among as few blocks as cover it, evenly.
- nvjet clears a counter where its clusters do not all fit on the GPU at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.record.model.tables.product_entries import KINDS, POSTS
from tileprof.record.model.tiles.products.problem import FP8, FP16

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.record.model.tables.product_entries import Recipe
    from tileprof.record.model.tiles.products.problem import Problem

NAMELESS: Final = frozenset({"other", "gemv", "gemmSN", "gemmk1", "dot_kernel"})
"""Kinds whose tile is only known from their grids."""
_LINE, _COPY = 128, 16
"""Bytes."""


def fitted(recipe: Recipe, problem: Problem, sms: int) -> Recipe:
    """Return the recipe as it is launched for a problem on a GPU of so many SMs."""
    nameless, kind, post = recipe.kind in NAMELESS, KINDS.index(recipe.kind), POSTS.index(recipe.post)
    cuts = cuts_at_lines(np.array([[kind]]), np.array([[post]]))
    shape = [np.array([[float(size)]]) for size in (recipe.m, recipe.n, *recipe.cluster, recipe.split)]
    keys = np.array([problem.key], float)
    m, n, *_, split = (int(size[0, 0]) for size in as_launched(np, keys, shape, np.array([[nameless]]), cuts))
    cleared = recipe.cleared
    if recipe.kind == "nvjet":
        together = recipe.cluster[0] * recipe.cluster[1]
        clusters = -(-problem.m // (m * recipe.cluster[0])) * -(-problem.n // (n * recipe.cluster[1])) * problem.batch
        cleared = split == 1 and clusters > sms // together
    post_of = recipe.post if split > 1 or recipe.split == 1 else "none"
    return replace(recipe, m=m, n=n, split=split, post=post_of, cleared=cleared)


def cuts_at_lines(kind: NDArray[np.integer[Any]], post: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return which kernels cut k at multiples of 16 or 128 bytes: kinds and posts are numbers as tables have them."""
    return np.asarray((kind == KINDS.index("cutlass")) & (post == POSTS.index("reduce")))


def as_launched(xp: Any, keys: Any, shapes: Sequence[Any], nameless: Any, cuts: Any) -> list[Any]:
    """Return tiles, clusters and slices of k as they are launched: m, n, cluster along m and n, slices.

    ``keys`` is ``[problems, 8]`` of floats; ``shapes`` has the same five as the library was asked for; ``nameless`` and
    ``cuts``, which go with ``shapes``, say whose names tell no tile, and which cut k at lines. Of numpy or of torch.
    """
    dtype, column_a, m, n, k = (keys[:, i : i + 1] for i in (1, 2, 5, 6, 7))
    tile_m, tile_n, cluster_m, cluster_n, split = shapes
    one = tile_m * 0 + 1
    down, across = (xp.ceil(size / xp.maximum(tile, one)) for size, tile in ((m, tile_m), (n, tile_n)))
    tile_m = xp.where(nameless, xp.ceil(m / down), tile_m)
    tile_n = xp.where(nameless, xp.ceil(n / across), tile_n)
    itemsize = xp.where(dtype < FP16, dtype * 0 + 4, xp.where(dtype < FP8, dtype * 0 + 2, dtype * 0 + 1))
    line, copy = _LINE / itemsize, _COPY / itemsize
    unit = xp.where((xp.ceil(k / line) * line == k) & (column_a == 0), line, copy)
    unit = xp.where(cuts, unit, unit * 0 + 1)
    split = xp.ceil(k / (xp.ceil(xp.ceil(k / split) / unit) * unit))
    return [tile_m, tile_n, cluster_m + m * 0, cluster_n + m * 0, split]
