"""What a library weighs of a kernel for a problem: numbers that nets see, of numpy where they are asked, of torch where
they are trained.

``keys`` is ``[problems, 8]`` of floats, as tables have them; a tile is m, n, cluster along m and n, slices of k, each
``[problems, candidates]`` or of a shape that goes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tileprof.record.model.tiles.products import problem as problems

if TYPE_CHECKING:
    from collections.abc import Sequence

_SMS: Final = 132.0
_DEPTH: Final = 64.0
"""Elements of k that a step of the main loop takes, about."""
COSTS: Final = [4, 5, 8, 9, 11, 13, 14, 15, 21, 22, 23, 24, 31, 32, 33]
"""Of `tile_features`: what is compared with the least among the candidates."""


def tile_features(xp: Any, keys: Any, tile: Sequence[Any]) -> list[Any]:
    """Return how many blocks a tile makes of a problem, how full they and the last wave are, and what an SM computes
    and loads.
    """
    batch, m, n, k = (keys[:, i : i + 1] for i in range(4, 8))
    tile_m, tile_n, cluster_m, cluster_n, split = tile
    log, one = xp.log2, tile_m * 0 + 1
    down, across = xp.ceil(m / tile_m), xp.ceil(n / tile_n)
    down_all, across_all = xp.ceil(down / cluster_m) * cluster_m, xp.ceil(across / cluster_n) * cluster_n
    waves, full = _waves(xp, keys, tile)
    rounds, blocks = xp.ceil(waves), down * across * batch * split / _SMS
    steps = xp.ceil(k / _DEPTH)
    own = xp.ceil(steps / split)
    computed, loaded = tile_m * tile_n, tile_m + tile_n
    shared = tile_m / cluster_n + tile_n / cluster_m
    sums = split * m * n * batch
    sliced = (split > 1) * one
    pace, pace_alone = xp.maximum(computed / 16384, shared / 192), xp.maximum(computed / 16384, loaded / 192)
    return [
        log(m / (down * tile_m)), log(n / (across * tile_n)), log(down / down_all), log(across / across_all),
        log(waves), log(rounds), waves / rounds, xp.minimum(waves, one), log(blocks), log(full), blocks / full,
        log(own), log(steps / (own * split)), log(computed * own * rounds), log(loaded * own * rounds),
        log(shared * own * rounds), log(computed), log(tile_m), log(tile_n), log(cluster_m), log(cluster_n),
        log(rounds * (own * pace + 4)), log(rounds * (own * pace_alone + 8)),
        log((down * n + across * m) * k * batch), log((down / cluster_m * n + across / cluster_n * m) * k * batch),
        log(split), xp.maximum(log(sums) - 10, one * 0) * sliced, sliced * (sums > (1 << 18)), (down == 1) * one,
        (across == 1) * one, log(k / split), log(computed * own * full), log(loaded * own * full),
        log(own * pace * rounds + sums * 8 * sliced / (_SMS * 256) + 2), xp.minimum(rounds, one * 8),
        xp.minimum(full, one * 8),
    ]  # fmt: skip


def _waves(xp: Any, keys: Any, tile: Sequence[Any]) -> tuple[Any, Any]:
    """Return how often clusters fill the GPU, and how many blocks an SM gets at most."""
    batch, m, n = (keys[:, i : i + 1] for i in range(4, 7))
    tile_m, tile_n, cluster_m, cluster_n, split = tile
    together = cluster_m * cluster_n
    down, across = xp.ceil(m / tile_m), xp.ceil(n / tile_n)
    clusters = xp.ceil(down / cluster_m) * xp.ceil(across / cluster_n) * batch * split
    return clusters / xp.floor(_SMS / together), xp.ceil(down * across * batch * split / _SMS)


def work(xp: Any, keys: Any, tile: Sequence[Any]) -> list[Any]:
    """Return rounds of clusters, waves of them but at least one, blocks of an SM, and steps of a block along k."""
    waves, blocks = _waves(xp, keys, tile)
    own = xp.ceil(xp.ceil(keys[:, 7:8] / _DEPTH) / tile[4])
    return [xp.ceil(waves), xp.maximum(waves, waves * 0 + 1), blocks, own]


def problem_features(xp: Any, keys: Any) -> list[Any]:
    """Return what is the same for all candidates: sizes, alignments, layouts, type and operation."""
    batch, m, n, k = (keys[:, i : i + 1] for i in range(4, 8))
    log = xp.log2
    aligned = [
        (xp.floor(size / unit) * unit == size) * 1.0
        for size, unit in ((k, 32), (k, 64), (m, 64), (n, 64), (m, 8), (n, 8), (k, 8), (m, 128), (n, 128), (m, 2),
                           (n, 2), (k, 2), (m, 4), (n, 4), (k, 4))
    ]  # fmt: skip
    return [
        log(m), log(n), log(k), log(batch), log((m * k + n * k + m * n) * batch), log(m * n * batch / _SMS),
        (m == 1) * 1.0, (n == 1) * 1.0, (m <= 16) * 1.0, (n <= 16) * 1.0, *aligned, keys[:, 2:3], keys[:, 3:4],
        (keys[:, 1:2] == problems.BF16) * 1.0, *((keys[:, 0:1] == op) * 1.0 for op in range(5)),
        log(xp.ceil(m / 64) * xp.ceil(n / 64) * batch / _SMS), log(k / xp.maximum(xp.minimum(m, n), m * 0 + 1)),
    ]  # fmt: skip


def categories(xp: Any, keys: Any) -> Any:
    """Return a number per problem: kernels that are chosen for one of a category may be for another.

    Operation, types whose kernels are the same, layouts, and whether rows of each operand begin at multiples of 16
    bytes. ``keys`` are of integers.
    """
    op, dtype, column_a, column_b, m, n, k = (keys[:, i] for i in (0, 1, 2, 3, 5, 6, 7))
    unit = xp.where(dtype < problems.FP16, dtype * 0 + 4, dtype * 0 + 8)
    rows = (xp.where(column_a == 1, m, k), xp.where(column_b == 1, k, n), n)
    number = ((op * 3 + xp.where(dtype < problems.FP16, dtype, dtype * 0 + 2)) * 2 + column_a) * 2 + column_b
    for size in rows:
        number = number * 2 + (size % unit == 0) * 1
    return number
