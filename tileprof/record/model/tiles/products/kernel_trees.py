"""Which kernel cuBLAS chooses for a product of float32 (plain or TF32) that no table has: two decision trees.

A first tree tells the kernel, a second one the slices of k of a kernel that is launched with several. They were grown
from captures (`tileprof.harvest.products.product_trees`) as long as a split told something: the choice among these
kernels has sharp bounds in m, n, k and the number of tiles, which nets smooth (docs/harvest.md). A table of trees has
a row per candidate, ``(group, number)``::

    recipes      [candidates, 13] int32   what is launched; slices of k as they are asked for (`fitting`)
    kernel       [candidates] int16       candidates that differ in slices of k alone are one kernel
    tiles<g>     [tiles, 2] int16         tiles by which the first tree of a group counts blocks
    <tree><g>_feature [nodes] uint8       column of the features; `LEAF` for a leaf
    <tree><g>_bound [4, others] uint8     of each node that is no leaf, bytes of the bound, lowest first: up to it, the
                                          first way is taken
    <tree><g>_answer [leaves] int16       what each leaf tells: a kernel, or the number of a candidate

Nodes are in order of depth, so that both ways from the i-th node that is no leaf lead to 2i + 1 and 2i + 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tileprof.record.model.tables.product_entries import RECIPE, Recipe
from tileprof.record.model.tables.trees import LEAF
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import fitted
from tileprof.record.model.tiles.products.product_nets import GROUPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table
    from tileprof.record.model.tiles.products.problem import Problem

TREES: Final = ("kernels", "slices")
_UNIT: Final = 1 << 10
"""Elements of a result that are counted together: trees are grown in float32, which has whole numbers up to 2**24."""
_ALIGNED, _DEEPLY_ALIGNED = 16, 64
"""The largest powers of two, by which sizes can be divided, that are told apart."""
_FINE: Final = 16
"""Steps that the elements of k per block are counted in."""
_M, _N, _KIND = (RECIPE.index(name) for name in ("m", "n", "kind"))


class _Tree(NamedTuple):
    feature: NDArray[np.uint8]
    value: NDArray[np.int64]
    """The bound, or what a leaf tells."""
    first: NDArray[np.int64]
    """Where the first way leads."""


def choose(problem: Problem, trees: Table, sms: int) -> Recipe | None:
    """Return the kernel that cuBLAS is expected to launch, as it is launched on a GPU of ``sms`` SMs; None for types
    of which the table has no trees, and for columns of both operands, which no captured product has.
    """
    group = GROUPS.get(problem.dtype)
    if group is None or f"tiles{group}" not in trees.columns or (problem.column_a and problem.column_b):
        return None
    row = candidates(np.array([problem.twin.key], np.int64), group, trees)[0]
    return fitted(Recipe.of(trees.columns["recipes"][row]), problem, sms)


def candidates(keys: NDArray[np.int64], group: int, trees: Table) -> NDArray[np.int64]:
    """Return the row of ``recipes`` that is chosen for each problem ``[problems, 8]`` of a group."""
    rows = trees.members({0: group})
    kernels, first, count = np.unique(trees.columns["kernel"][rows], return_index=True, return_counts=True)
    tiles = trees.columns[f"tiles{group}"].astype(np.int64)
    kernel = np.searchsorted(kernels, _answers(kernel_features(keys, tiles), _tree(trees, group, 0)))
    choice = first[kernel]
    several = np.flatnonzero(count[kernel] > 1)
    if len(several):
        recipes = trees.columns["recipes"][rows[choice[several]]].astype(np.int64)
        features = slice_features(keys[several], recipes, kernels[kernel[several]].astype(np.int64))
        choice[several] = _answers(features, _tree(trees, group, 1))
    return np.asarray(rows[choice])


def kernel_features(keys: NDArray[np.int64], tiles: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what the first tree sees, ``[problems, features]``: sizes, blocks of each tile, operation and layouts,
    and what divides the sizes.
    """
    op, _, column_a, column_b, batch, m, n, k = keys.T
    blocks = [-(-m // tile_m) * -(-n // tile_n) * batch for tile_m, tile_n in tiles.tolist()]
    divisors = [np.minimum(size & -size, _ALIGNED) for size in (m, n, k)]
    return np.stack([m, n, k, batch, *blocks, *_call(op), column_a, column_b, *divisors], axis=1)


def slice_features(keys: NDArray[np.int64], recipes: NDArray[np.int64], kernel: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what the second tree sees of problems and their kernels, ``[problems, features]``."""
    op, _, column_a, column_b, batch, m, n, k = keys.T
    blocks = -(-m // recipes[:, _M]) * -(-n // recipes[:, _N]) * batch
    own = [blocks, kernel, recipes[:, _M], recipes[:, _N], recipes[:, _KIND], k * _FINE // blocks]
    whole = [m, n, k, batch, m * n * batch // _UNIT, np.minimum(k & -k, _DEEPLY_ALIGNED)]
    return np.stack([*whole, *own, *_call(op), column_a, column_b], axis=1)


def _call(op: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [(op == number).astype(np.int64) for number in (problems.BIAS, problems.BATCHES)]


def _answers(features: NDArray[np.int64], tree: _Tree) -> NDArray[np.int64]:
    place = np.zeros(len(features), np.int64)
    active = np.arange(len(features))
    while len(active := active[tree.feature[place[active]] != LEAF]):
        node = place[active]
        above = features[active, tree.feature[node]] > tree.value[node]
        place[active] = tree.first[node] + above
    return tree.value[place]


def _tree(trees: Table, group: int, number: int) -> _Tree:
    name = f"{TREES[number]}{group}"
    if name not in trees.derived:
        feature = trees.columns[f"{name}_feature"]
        inner, value = feature != LEAF, np.empty(len(feature), np.int64)
        value[inner] = np.ascontiguousarray(trees.columns[f"{name}_bound"].T).view("<i4")[:, 0]
        value[~inner] = trees.columns[f"{name}_answer"]
        trees.derived[name] = _Tree(feature, value, 2 * np.cumsum(inner) - 1)
    tree: _Tree = trees.derived[name]
    return tree
