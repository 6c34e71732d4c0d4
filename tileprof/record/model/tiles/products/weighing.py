"""What nets see of a problem, and of a kernel for it: the numbers that a library weighs.

All functions work on arrays of numpy (``xp`` is numpy: a look-up) and of torch (training). ``keys`` is
``[problems, 8]`` of float32, as tables have them. Candidates are `Shapes` of ``[problems, candidates]``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tileprof.record.model.tiles.products import problem as problems

_SMS: Final = 132
_DEPTH: Final = 64
"""Elements of k that a step of the main loop takes, about."""
_UNITS: Final = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_SIDES: Final = (16.0, 32.0, 48.0, 64.0, 96.0, 128.0, 160.0, 192.0, 256.0)
_DEPTHS: Final = (32.0, 64.0, 128.0)
_TILES: Final = (
    (32.0, 32.0), (32.0, 64.0), (64.0, 32.0), (64.0, 64.0), (32.0, 128.0), (128.0, 32.0), (64.0, 128.0), (128.0, 64.0),
    (128.0, 128.0), (64.0, 256.0), (256.0, 64.0), (128.0, 192.0), (192.0, 128.0), (128.0, 256.0), (256.0, 128.0),
    (256.0, 192.0), (192.0, 256.0), (16.0, 64.0), (64.0, 16.0), (16.0, 128.0), (128.0, 16.0), (8.0, 64.0), (64.0, 8.0),
)  # fmt: skip
WORKSPACE, BIAS_WORKSPACE = 1 << 25, 1 << 20
"""Bytes for partial sums that PyTorch gives cuBLAS, and cuBLASLt, which it calls for products with a bias: no product
of a million captured ones has more."""
_REDUCED, _BY_TILES, _INSIDE = 1, 2, 4
"""Numbers of `tileprof.record.model.tables.product_entries.POSTS`."""
COSTS: Final = (0, 1, 4, 10, 11, 14, 15, 17, 19, 20, 21, 27, 28, 29, 30, 37, 38, 39)
"""Columns of `tile_features` that are compared with the least among the candidates."""
WORKS: Final = 4
"""How many ways `work` counts what an SM does one after another."""
PRICES: Final = 5
"""What a way to estimate times has prices of, see `modelled_times`."""
_UNIT: Final = 256 * 64 * _SMS
"""Elements that all SMs together load for a step of blocks of 128 x 128."""


class Shapes(NamedTuple):
    """Kernels: tile, cluster and slices of k, how many blocks an SM holds, what is launched behind (a number of
    `POSTS`), and bytes of a partial sum.
    """

    m: Any
    n: Any
    cluster_m: Any
    cluster_n: Any
    split: Any
    resident: Any
    post: Any
    sum_bytes: Any

    def take(self, index: Any) -> Shapes:
        """Return some of the kernels."""
        return Shapes(*(values[index] for values in self))


def problem_features(xp: Any, keys: Any) -> Any:
    """Return what is the same for all candidates, ``[problems, features]``: sizes, what divides them, layouts, type
    and operation, and how tiles of many shapes fill the GPU.
    """
    batch, m, n, k = (keys[:, i : i + 1] for i in range(4, 8))
    one, sizes, log = m * 0 + 1, keys[:, 5:8, None], xp.log2

    def constants(values: Any) -> Any:
        return xp.asarray(values, dtype=keys.dtype, device=keys.device)

    sides, depths, tiles = constants(_SIDES), constants(_DEPTHS), constants(_TILES)
    whole = xp.ceil(sizes[:, :2] / sides)
    deep = xp.ceil(k / depths)
    waves = xp.ceil(m / tiles[:, 0]) * xp.ceil(n / tiles[:, 1]) * batch / _SMS
    rounds = xp.ceil(waves)
    parts = [
        log(m), log(n), log(k), log(batch), log((m * k + n * k + m * n) * batch), log(m * n * batch / _SMS),
        log(m * n * batch * k), (m == 1) * one, (n == 1) * one, (m <= 16) * one, (n <= 16) * one,
        log(k / xp.minimum(m, n)), log(m / n), keys[:, 2:4], (keys[:, 1:2] == problems.BF16) * one,
        *((keys[:, 0:1] == op) * one for op in (problems.PLAIN, problems.BIAS, problems.BATCHES)),
        ((sizes % constants(_UNITS) == 0) * one[:, :, None]).reshape(len(keys), -1),
        *(part.reshape(len(keys), -1) for part in (log(whole), sizes[:, :2] / sides / whole, 1 / whole)),
        1 / deep, k / depths / deep, log(waves), waves / rounds, 1 / rounds, xp.minimum(waves, one),
    ]  # fmt: skip
    return xp.concatenate(parts, axis=1)


def work(xp: Any, keys: Any, shapes: Shapes) -> Any:
    """Return what an SM does one after another, ``[problems, candidates, WORKS + 1]``: rounds of clusters, waves of
    them, blocks, rounds of as many blocks as it holds at once; and steps of a block along k.
    """
    batch, m, n, k = (keys[:, i : i + 1] for i in range(4, 8))
    down, across = xp.ceil(m / shapes.m), xp.ceil(n / shapes.n)
    together = shapes.cluster_m * shapes.cluster_n
    clusters = xp.ceil(down / shapes.cluster_m) * xp.ceil(across / shapes.cluster_n) * batch * shapes.split
    waves = clusters / xp.floor(_SMS / together)
    blocks = down * across * batch * shapes.split / _SMS
    own = xp.ceil(xp.ceil(k / _DEPTH) / shapes.split)
    slot_count = xp.ceil(blocks / shapes.resident) * shapes.resident
    return xp.stack([xp.ceil(waves), xp.maximum(waves, waves * 0 + 1), xp.ceil(blocks), slot_count, own], axis=-1)


def modelled_times(xp: Any, keys: Any, shapes: Shapes, prices: Any) -> Any:
    """Return logarithms of modelled times ``[problems, candidates, ways * WORKS]``.

    ``prices`` is ``[problems, candidates, ways, PRICES]``: of a step along k, of the start of a block, of what is
    loaded (multicast once per cluster), of each operand and result once, and of partial sums. The first two are paid as
    often as `work` says, in each of its ways.
    """
    batch, m, n, k = (keys[:, i : i + 1] for i in range(4, 8))
    down, across = xp.ceil(m / shapes.m), xp.ceil(n / shapes.n)
    loads = (down / shapes.cluster_m * n + across / shapes.cluster_n * m) * k * batch
    once = (m * k + n * k + m * n) * batch + 0 * loads
    sums = (shapes.split > 1) * shapes.split * m * n * batch
    done = work(xp, keys, shapes)
    own = done[..., WORKS, None]
    loads, once, sums = (values[..., None] / _UNIT for values in (loads, once, sums))
    alone = own * prices[..., 0] + 4 * prices[..., 1]
    shared = loads * prices[..., 2] + once * prices[..., 3] + sums * prices[..., 4]
    return xp.log(alone[..., None] * done[..., None, :WORKS] + shared[..., None]).reshape(*loads.shape[:2], -1)


def tile_features(xp: Any, keys: Any, shapes: Shapes) -> Any:
    """Return what is seen of each candidate, ``[problems, candidates, features]``: how many blocks its tile makes of
    the problem, how full they and the last wave are, what an SM computes and loads, and partial sums.
    """
    batch, m, n, k = (keys[:, i : i + 1] for i in range(4, 8))
    tile_m, tile_n, cluster_m, cluster_n, split, resident, post, sum_bytes = shapes
    log, none = xp.log2, tile_m * 0 + m * 0
    one = none + 1
    down, across = xp.ceil(m / tile_m), xp.ceil(n / tile_n)
    down_all, across_all = xp.ceil(down / cluster_m) * cluster_m, xp.ceil(across / cluster_n) * cluster_n
    together = cluster_m * cluster_n
    waves = down_all * across_all / together * batch * split / xp.floor(_SMS / together)
    rounds, blocks = xp.ceil(waves), down * across * batch * split / _SMS
    full, fractional_rounds = xp.ceil(blocks), blocks / resident
    turns = xp.ceil(fractional_rounds)
    steps = xp.ceil(k / _DEPTH)
    own = xp.ceil(steps / split)
    computed, loaded = tile_m * tile_n, tile_m + tile_n
    shared = tile_m / cluster_n + tile_n / cluster_m
    step, lone_step = xp.maximum(computed / 16384, shared / 192), xp.maximum(computed / 16384, loaded / 192)
    sums, sliced = split * m * n * batch, (split > 1) * one
    stored = ((post == _REDUCED) | (post == _BY_TILES)) * one
    space = xp.where(keys[:, 0:1] == problems.BIAS, one * BIAS_WORKSPACE, one * WORKSPACE)
    workspace_share = xp.maximum(sums * sum_bytes / space, one / 4096)
    columns = [
        log(fractional_rounds), log(turns), fractional_rounds / turns, xp.minimum(fractional_rounds, one),
        log(turns * resident * own), log(resident),
        log(m / (down * tile_m)), log(n / (across * tile_n)), log(down / down_all), log(across / across_all),
        log(waves), log(rounds), waves / rounds, xp.minimum(waves, one), log(blocks), log(full), blocks / full,
        log(own), log(steps / (own * split)), log(computed * own * rounds), log(loaded * own * rounds),
        log(shared * own * rounds), log(computed), log(tile_m), log(tile_n), log(cluster_m), log(cluster_n),
        log(rounds * (own * step + 4)), log(rounds * (own * lone_step + 8)), log((down * n + across * m) * k * batch),
        log((down / cluster_m * n + across / cluster_n * m) * k * batch), log(split),
        xp.maximum(log(sums) - 10, none) * sliced, sliced * (sums > (1 << 18)), (down == 1) * one,
        (across == 1) * one, log(k / split), log(computed * own * full), log(loaded * own * full),
        log(own * step * rounds + sums * 8 * sliced / (_SMS * 256) + 2), xp.minimum(rounds, one * 8),
        xp.minimum(full, one * 8), (k % (split * _DEPTH) == 0) * one, (k % split == 0) * one,
        k / split % _DEPTH / _DEPTH, (post == _REDUCED) * one, (post == _INSIDE) * one, (post == _BY_TILES) * one,
        stored * log(workspace_share), stored * (workspace_share > 1), stored * (workspace_share > 0.5),
    ]  # fmt: skip
    return xp.stack([column + none for column in columns], axis=-1)
