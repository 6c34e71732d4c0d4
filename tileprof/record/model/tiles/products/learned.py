"""Which kernel a library chooses for a product that no table has, learnt from millions of its choices.

Candidates are the kernels that near entries of the table got. Of each the trees see how near and how many those entries
are, and what its library weighs: how many blocks the tile makes of the problem, how full they and the last wave are,
what an SM computes and loads. The candidate of the largest sum is chosen. `tileprof.harvest.product_ranker` grows the
trees.

Features are rounded, sums are in float64, and a difference of 1e-9 counts as none, so that every machine chooses alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tables.product_entries import KINDS, RECIPE
from tileprof.record.model.tables.trees import worth
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.fitting import NAMELESS, as_launched, cuts_at_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table

GROUPS: Final = {problems.FP32: 0, problems.TF32: 1, problems.FP16: 2, problems.BF16: 2}
"""Types whose kernels are told apart by the same trees."""
COMPARED: Final = 384
"""How many near entries give candidates."""
_SMS, _DEPTH = 132.0, 64.0
_NEARER: Final = (4, 16, 64, 512)
_NEAR: Final = 0.1
_STEPS: Final = 4096.0
"""Units per 1 of a feature."""
_SAME: Final = 1e-9
_KIND, _POST, _STAGES = (RECIPE.index(name) for name in ("kind", "post", "stages"))
_SHAPE: Final = [RECIPE.index(name) for name in ("m", "n", "cluster_m", "cluster_n", "split")]
_NAMELESS: Final = [KINDS.index(kind) for kind in sorted(NAMELESS)]
_COSTS: Final = [0, 1, 4, 5, 8, 9, 11, 13, 14, 15, 21, 22, 23, 24]
"""Columns of `features` that are compared with the least among the candidates."""
_BATCH, _M, _N, _K = 4, 5, 6, 7


def features(keys: NDArray[np.int64], shapes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return what trees see of candidates, ``[problems, candidates, features]``.

    ``keys`` is ``[problems, 8]``, as tables have them; ``shapes`` is ``[problems, candidates, 5]``: m, n and cluster of
    the tile, and slices of k.
    """
    number = [keys[:, i : i + 1].astype(np.float32) for i in range(keys.shape[1])]
    batch, m, n, k = number[_BATCH:]
    tile_m, tile_n, cluster_m, cluster_n, split = (shapes[..., i].astype(np.float32) for i in range(5))
    log = np.log2
    down, across = np.ceil(m / tile_m), np.ceil(n / tile_n)
    down_all, across_all = np.ceil(down / cluster_m) * cluster_m, np.ceil(across / cluster_n) * cluster_n
    together = cluster_m * cluster_n
    waves = down_all * across_all / together * batch * split / np.floor(_SMS / together)
    rounds = np.ceil(waves)
    blocks = down * across * batch * split / _SMS
    steps = np.ceil(k / _DEPTH)
    own = np.ceil(steps / split)
    computed, loaded = tile_m * tile_n, tile_m + tile_n
    shared = tile_m / cluster_n + tile_n / cluster_m
    sums = split * m * n * batch
    columns = [
        log(m / (down * tile_m)), log(n / (across * tile_n)), log(down / down_all), log(across / across_all),
        log(waves), log(rounds), waves / rounds, np.minimum(waves, 1), log(blocks), log(np.ceil(blocks)),
        blocks / np.ceil(blocks), log(own), log(steps / (own * split)), log(computed * own * rounds),
        log(loaded * own * rounds), log(shared * own * rounds), log(computed), log(tile_m), log(tile_n), log(cluster_m),
        log(cluster_n), log(rounds * (own * np.maximum(computed / 16384, shared / 192) + 4)),
        log(rounds * (own * np.maximum(computed / 16384, loaded / 192) + 8)),
        log((down * n + across * m) * k * batch),
        log((down / cluster_m * n + across / cluster_n * m) * k * batch), log(split),
        np.maximum(log(sums) - 10, 0) * (split > 1), (split > 1) * (sums > (1 << 18)), down == 1, across == 1,
        log(k / split), log(np.ceil(m / 64) * np.ceil(n / 64) * batch * split / _SMS),
    ]  # fmt: skip
    whole = [
        log(m), log(n), log(k), log(batch), log((m * k + n * k + m * n) * batch), log(m * n * batch / _SMS), m == 1,
        n == 1, m <= 16, n <= 16, k % 32 == 0, k % 64 == 0, m % 64 == 0, n % 64 == 0, number[2], number[3],
        number[1] == problems.BF16, *(number[0] == op for op in range(5)),
        *(log(np.minimum(_power_of_two(keys[:, i : i + 1]), 16)) for i in (_M, _N, _K)),
        (keys[:, _N : _N + 1] % 8 == 0) & (keys[:, _M : _M + 1] % 8 == 0) & (keys[:, _K : _K + 1] % 8 == 0),
    ]  # fmt: skip
    wide = np.ones(tile_m.shape, np.float32)
    return np.stack([column.astype(np.float32) * wide for column in (*columns, *whole)], -1)


def _power_of_two(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest power of two that divides each size."""
    return sizes & -sizes


@dataclass(frozen=True, slots=True)
class Candidates:
    """Kernels that near entries of a table got, as they would be launched: the first entry of each, ``entries``, in
    order of distance; ``shapes`` ``[candidates, 5]`` and ``seen`` ``[candidates, features]``.
    """

    entries: NDArray[np.int64]
    shapes: NDArray[np.int64]
    seen: NDArray[np.float32]


def candidates(key: Sequence[int], table: Table, near: NDArray[np.int64], apart: NDArray[np.float64]) -> Candidates:
    """Return what the entries ``near``, so far ``apart``, offer for a problem."""
    numbers = table.columns["recipe"][near].astype(np.int64)
    used, which = np.unique(numbers, return_inverse=True)
    recipes = table.columns["recipes"][used].astype(np.int64)
    kind, post = recipes[:, _KIND], recipes[:, _POST]
    problem = np.array([key], np.int64)
    shapes = as_launched(problem, recipes[None][..., _SHAPE], np.isin(kind, _NAMELESS)[None],
                         cuts_at_lines(kind, post)[None])[0]  # fmt: skip
    # Recipes that differ in what no shape tells are one candidate: the nearest one stands for all.
    _, same, again = np.unique(np.column_stack([kind, shapes]), axis=0, return_index=True, return_inverse=True)
    group = again.reshape(-1)[which.reshape(-1)]
    begins = np.full(len(same), len(near))
    np.minimum.at(begins, group, np.arange(len(near)))
    order = np.argsort(begins)
    begins, back = begins[order], np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    group = back[group]
    chosen = which.reshape(-1)[begins]
    weight = (apart + _NEAR) ** -2.0
    counted = [np.bincount(group[:some], minlength=len(order)) for some in _NEARER]
    between = np.log2(np.maximum(problem[:, _BATCH:], 1)) - np.log2(np.maximum(table.keys[near[begins], _BATCH:], 1))
    own = features(problem, shapes[chosen][None])[0]
    costs = own[:, _COSTS]
    columns = [
        np.log2(begins + 1.0), apart[begins], apart[begins] - apart[0],
        np.bincount(group, weight, len(order)) / weight.sum(), *counted, kind[chosen], post[chosen],
        recipes[chosen, _STAGES], *between.T, np.full(len(order), len(order)),
    ]  # fmt: skip
    seen = np.column_stack([*columns, own, costs - costs.min(axis=0)])
    return Candidates(near[begins], shapes[chosen], (np.round(seen * _STEPS) / _STEPS).astype(np.float32))


def best(key: Sequence[int], found: Candidates, trees: Table) -> int | None:
    """Return which candidate a library launches for a problem; None for types without trees."""
    group = GROUPS.get(key[1])
    if group is None or not len(found.entries):
        return None
    values = worth(found.seen, trees, group)
    return int(np.flatnonzero(values >= values.max() - _SAME)[0])
