"""Fits a recipe to the sizes of a problem: what a library makes of the kernel and the slices that it chose.

Learnt from 44,000 products that were launched on an H200 and that NVIDIA's package was asked about, of which
these rules explain 99.7% with float32 and more with others (`bench_products_held_out.py`):

- CUTLASS's kernels cut k at multiples of 16 bytes, or of 128 bytes where k is such a multiple and rows of a lie along
  k. Cut so, fewer slices may do than were asked for.
- Kernels whose names tell no tile (gemv and the like) share a side among as few blocks as cover it, evenly.
- nvjet clears a counter where its clusters do not all fit on the GPU at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tables.product_entries import KINDS, POSTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tables.product_entries import Recipe
    from tileprof.record.model.tiles.products.problem import Problem

NAMELESS: Final = frozenset({"other", "gemv", "gemmSN", "gemmk1", "dot_kernel"})
"""Kinds whose tile is only known from their grids."""
_ITEMSIZE: Final = (4, 4, 2, 2, 1)
_LINE, _COPY = 128, 16
"""Bytes."""


def fitted(recipe: Recipe, problem: Problem, sms: int) -> Recipe:
    """Return the recipe as it is launched for a problem on a GPU of this many SMs."""
    shape = np.array([[[recipe.m, recipe.n, *recipe.cluster, recipe.split]]], np.int64)
    nameless, kind, post = recipe.kind in NAMELESS, KINDS.index(recipe.kind), POSTS.index(recipe.post)
    cuts = cuts_at_lines(np.array([[kind]]), np.array([[post]]))
    m, n, *_, split = as_launched(np.array([problem.key], np.int64), shape, np.array([[nameless]]), cuts)[0, 0].tolist()
    cleared = recipe.cleared
    if recipe.kind == "nvjet":
        together = recipe.cluster[0] * recipe.cluster[1]
        clusters = -(-problem.m // (m * recipe.cluster[0])) * -(-problem.n // (n * recipe.cluster[1])) * problem.batch
        cleared = split == 1 and clusters > sms // together
    post_of = recipe.post if split > 1 or recipe.split == 1 else "none"
    return replace(recipe, m=m, n=n, split=split, post=post_of, cleared=cleared)


def cuts_at_lines(kind: NDArray[np.int64], post: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which kernels cut k at multiples of 16 or 128 bytes: kinds and posts are numbers as tables have them."""
    return np.asarray((kind == KINDS.index("cutlass")) & (post == POSTS.index("reduce")))


def as_launched(
    keys: NDArray[np.int64], shapes: NDArray[np.int64], nameless: NDArray[np.bool_], cuts: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return tiles, clusters and slices of k as they are launched, ``[problems, candidates, 5]``.

    ``keys`` is ``[problems, 8]``, ``shapes`` what was asked for; ``nameless`` and ``cuts`` ``[problems, candidates]``
    say whose names tell no tile, and which cut k at lines.
    """
    dtype, column_a, m, n, k = (keys[:, i : i + 1] for i in (1, 2, 5, 6, 7))
    fit = shapes.copy()
    for axis, size in ((0, m), (1, n)):
        tile = np.maximum(shapes[..., axis], 1)
        fit[..., axis] = np.where(nameless, -(-size // -(-size // tile)), shapes[..., axis])
    itemsize = np.array(_ITEMSIZE)[dtype]
    unit = np.where((k % (_LINE // itemsize) == 0) & (column_a == 0), _LINE // itemsize, _COPY // itemsize)
    unit = np.where(cuts, unit, 1)
    length = -(-k // shapes[..., 4])
    fit[..., 4] = -(-k // (-(-length // unit) * unit))
    return fit
