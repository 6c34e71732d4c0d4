"""Models the times of tiles, stages and chains under the persistent kernel in a few lines: for choosing tiles, not for
claims.

A block loads ``columns`` weight rows, half of them in a pair, and ``height`` rows of activations for each k-block, and
multiplies what it has loaded. While it finishes a tile its loads of weights run on, so that a tile takes the longer of
loading and of multiplying with finishing; and no stage takes less than its weights take to come from memory. The
constants were fitted to 90 times of products of 1 to 2048 tokens on an H200 (2026-11-20; in one launch, and one a
stage): nine in ten are within 10%, the worst within 17%.

Products of at most 128 rows were fitted again later that day, to 66 times of 33 tilings of three models: three in four
are within 5%, 94% within 10%, the worst within 15%. A first fit to two of the models missed the third by 5.6% (root
mean square). Convolutions have a fit of their own, to 62 times of pairs of 3x3 ones, of which 58 are within 10%; their
sums were added up in another way then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np

from tileprof.runtime.persistent.plan import K_BLOCK, StagePlan
from tileprof.runtime.persistent.source import Options, k_blocks_under_way
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

BYTES_PER_US: Final = 74_000.0
"""L2 to one SM while all SMs load."""

DRAM_BYTES_PER_US: Final = 4_100_000.0
FLOP_PER_US: Final = 5_760_000.0
"""wgmma on one SM, at the clock that long products sustain."""

BLOCK_US: Final = 0.21
"""Least time per k-block, however narrow: barriers of both rings and the latency of a product."""

SHARED_BYTES_PER_US: Final = 180_000.0
"""The rate into and out of an SM's shared memory: 128 bytes per clock. It limits pairs whose tiles are less than 256
wide.
"""

CUT_US: Final = 2.5
"""Sums of an early task through memory, where k is cut."""

HANDED_US: Final = 0.3
HANDED_PER_US: Final = 30_000.0
"""Sums that a pair's block hands to the warps that store."""

BEGIN_US: Final = 1.0
"""Time per tile before its first product."""

FINISH_US: Final = 0.65
"""Barriers and latencies between the last product of a tile and its post."""

MEET_US: Final = 0.45
PASS_BYTES: Final = 32 * 1024
SENT_BYTES_PER_US: Final = 16_000.0
"""Barriers and latencies where several blocks add up their sums, and the rate of that: `PASS_BYTES` at a time, by whole
warps of sixteen rows.
"""

SENT_OF_TAPS_BYTES_PER_US: Final = 23_700.0
"""The rate in convolutions, as last measured."""

STORED_BYTES_PER_US: Final = 100_000.0
"""Results of a tile to memory."""

LAG_US: Final = 1.45
"""Time from the last load of a stage to its last product."""

LAUNCH_US: Final = 1.0
"""Time per launch beside the gap before it: barriers are set up, tensor maps fetched, rings filled for the first time.
"""

GRAPH_GAP_US: Final = 0.8
"""The gap between dependent launches of a CUDA graph on sm_90; `tileprof.devices` has it by device."""

SIGNAL_US: Final = 0.7
"""Time from the last store of a tile to a block that polls for it: fences, an atomic and a load in L2."""

ATTENTION_US: Final = 2.0
ATTENTION_FLOP_PER_US: Final = 2_400_000.0
ATTENTION_MEET_US: Final = 1.0
ATTENTION_SHARED_FLOP_PER_US: Final = 2_000_000.0
"""A tile of attention without its keys, and the rate of its two products with a softmax between; and where two
warpgroups share queries: what they take to add up their sums, and their rate. Of twelve times on an H200 (2026-11-28,
128 to 2,048 tokens), ten are within 17% and all within 27%; tiles of the height that is chosen take at most 5% longer
than those of the other.
"""

RING_BYTES: Final = 100 * 1024
"""Weights that a loader fetches ahead of its activations."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """Costs and rates of a tile: the constants above, the least time of a k-block by the rows of its activations, and
    ``latency_us`` of a slot that has been multiplied until it is full again, where that is known to matter.
    """

    begin_us: float = BEGIN_US
    block_us: float = BLOCK_US
    bytes_per_us: float = BYTES_PER_US
    flop_per_us: float = FLOP_PER_US
    dram_bytes_per_us: float = DRAM_BYTES_PER_US
    lag_us: float = LAG_US
    block_us_per_row: float = 0.0
    latency_us: float = 0.0


_SHARED: Final = _Rates()
_STREAMED: Final = _Rates(0.57, 0.28, 62_000.0, FLOP_PER_US, 4_140_000.0, 0.8, 0.0006, 1.85)
"""Rates where several rows of tiles find weights in L2, and where weights come from memory for few rows."""

_ABREAST: Final = replace(_STREAMED, block_us=0.38, dram_bytes_per_us=4_300_000.0)
"""Blocks abreast: no loads stop while sums are added up. Each block takes all of k, so that its loop costs time where
tiles are narrow. Eleven times are within 6%.
"""

_TAPS: Final = _Rates(0.67, 0.25, 97_000.0, 6_200_000.0)
"""A convolution, which draws nothing from memory for most of its time."""

_ATTENTION: Final = replace(_SHARED, lag_us=0.0)
_HALO: Final = replace(_TAPS, block_us=BLOCK_US)

MOST_STREAMED_ROWS: Final = 128
"""Rows of a tile at most."""

_STREAMING: Final = 120
"""Blocks that saturate the memory's bandwidth."""

_LIMIT_NORM: Final = 6
"""Exponent of the norm that combines a tile's limits: a smooth maximum, to which limits of similar size both add."""

_LEFT_OVER: Final = 12
"""SMs that clusters of four and more cannot use, for the odd sizes of a GPC: 30 of four and 15 of eight fit an H200."""


def clusters_on(sms: int) -> Callable[[int], int]:
    """Estimates how many clusters of a number of blocks a GPU with ``sms`` SMs holds at a time."""
    return lambda split: max(1, (sms if split <= 2 else sms - _LEFT_OVER) // split)


def task_us(stage: StagePlan, split: int) -> np.ndarray:
    """Return microseconds of a task by its row of tiles: in attention, later rows may have more keys."""
    operator = stage.operator
    if not isinstance(operator, Attention):
        return np.full(stage.tasks, tile_us(stage, split))
    shared = operator.tile[0] <= K_BLOCK  # by two warpgroups, each with every other block of keys
    groups, rate = (2, ATTENTION_SHARED_FLOP_PER_US) if shared else (1, ATTENTION_FLOP_PER_US)
    step_us = groups * 4 * K_BLOCK * operator.tile[0] * operator.tile[1] / rate
    begin_us = ATTENTION_US + (ATTENTION_MEET_US if shared else 0.0)
    return np.array([begin_us + -(-stage.key_blocks(row) // groups) * step_us for row in range(operator.grid[1])])


def finish_us(stage: StagePlan, split: int) -> float:
    """Return microseconds from the last product of a tile to its post."""
    if isinstance(stage.operator, Attention):
        return 0.0  # part of the tile
    sums = _height(stage) * stage.columns
    if stage.pair:
        return HANDED_US + sums / HANDED_PER_US
    parts = stage.parts(split)
    if parts == 1:
        return FINISH_US + 2 * sums / STORED_BYTES_PER_US
    if isinstance(stage.operator, Conv2d):
        return FINISH_US + 4 * sums * (parts - 1) / parts / SENT_OF_TAPS_BYTES_PER_US
    sent_bytes = 4 * -(-_height(stage) // 16) * 16 * stage.columns * (parts - 1) / parts
    return MEET_US * ceil(sent_bytes / PASS_BYTES) + sent_bytes / SENT_BYTES_PER_US


def tile_us(stage: StagePlan, split: int, under_way: int = 0) -> float:
    """Return a task of a cluster: a tile, or, where k is cut, the longer part of one, that is shared by ``split``
    blocks, among others. ``under_way``: k-blocks that the rings hold, 0 for enough.
    """
    if isinstance(stage.operator, Attention):
        return float(task_us(stage, split).mean())
    return _tile_us(stage, split, stage.columns / 2 if stage.pair else stage.columns, under_way)


def _tile_us(stage: StagePlan, split: int, columns: float, under_way: int = 0) -> float:
    """Return a tile that loads ``columns`` weight rows."""
    part_blocks, rates = -(-stage.longest // stage.parts(split)), _rates(stage, split)
    load = part_blocks * 2 * K_BLOCK * (_loaded_rows(stage, split) + columns) / rates.bytes_per_us
    multiply = part_blocks * 2 * K_BLOCK * stage.rows * stage.columns / rates.flop_per_us + finish_us(stage, split)
    if stage.pair:
        begin = BEGIN_US + (CUT_US if stage.cut else 0.0)
        return begin + max(load, multiply, part_blocks * shared_us(stage) + finish_us(stage, split))
    block = rates.block_us + rates.block_us_per_row * _height(stage)
    if under_way > 1:  # one is being multiplied
        block = max(block, rates.latency_us / (under_way - 1))
    limits = load, multiply, part_blocks * (shared_us(stage) if _tall(stage) else block)
    return rates.begin_us + float(sum(limit**_LIMIT_NORM for limit in limits) ** (1 / _LIMIT_NORM))


def shared_us(stage: StagePlan) -> float:
    """Return a k-block of 128 rows, for what goes through shared memory: each warpgroup reads its 64 rows and all
    weights, and all of that has come from L2 before.
    """
    read = 2 * 2 * K_BLOCK * (stage.rows // 2 + stage.columns)
    return (read + 2 * K_BLOCK * (stage.rows + stage.columns)) / SHARED_BYTES_PER_US


def lone_tile_us(stage: StagePlan, split: int, clusters: int, under_way: int = 0) -> float:
    """Return a tile, if the stage has the device to itself: no faster than memory gives the weights."""
    if isinstance(stage.operator, Attention):
        return tile_us(stage, split)
    weight = stage.operator.b if isinstance(stage.operator, Gemm) else stage.operator.weight
    bytes_, rates = weight.item_bytes, _rates(stage, split)
    for size in weight.shape:
        bytes_ *= size
    rounds = -(-stage.tasks // clusters)
    dram_rate = min(1.0, split * min(clusters, stage.tasks) / _STREAMING) * rates.dram_bytes_per_us
    return max(tile_us(stage, split, under_way), rates.begin_us + bytes_ / dram_rate / rounds)


def stage_us(stage: StagePlan, split: int, clusters: int, under_way: int = 0) -> float:
    """Return a stage alone, without what a launch costs."""
    if isinstance(stage.operator, Attention):
        free = [0.0] * clusters
        for life in np.repeat(task_us(stage, split), stage.operator.grid[2]).tolist():
            heapq.heapreplace(free, free[0] + life)
        return max(free)
    rounds = -(-stage.tasks // clusters)
    after_us = _rates(stage, split).lag_us + finish_us(stage, split)
    return rounds * lone_tile_us(stage, split, clusters, under_way) + after_us


def lag_us(stage: StagePlan, split: int) -> float:
    """Return microseconds from a stage's last load to its last product, by the fit that it belongs to."""
    return _rates(stage, split).lag_us


def waits_for_memory(stage: StagePlan, split: int, clusters: int) -> bool:
    """Return whether a stage alone takes as long as its weights take to come from memory."""
    return lone_tile_us(stage, split, clusters) > tile_us(stage, split)


def _rates(stage: StagePlan, split: int) -> _Rates:
    if isinstance(stage.operator, Attention):
        return _ATTENTION
    if isinstance(stage.operator, Conv2d):
        return _HALO if stage.halo(split) else _TAPS
    if _rows(stage) > MOST_STREAMED_ROWS:
        return _SHARED
    return _ABREAST if stage.abreast > 1 else _STREAMED


def rest_us(stage: StagePlan, split: int, life_us: float, waited_us: float) -> float:
    """Return what is left of a tile's life when its activations are there, after its loader has waited for them with
    what the ring holds of the weights.
    """
    return _rest_of(stage, split)(life_us, waited_us)


def _rest_of(stage: StagePlan, split: int) -> Callable[[float, float], float]:
    """Return `rest_us` of a stage's tiles, as a function of their lives and of what they have waited."""
    if isinstance(stage.operator, Attention):
        return lambda life_us, _waited_us: life_us
    part_bytes = -(-stage.longest // stage.parts(split)) * stage.columns * K_BLOCK * 2
    in_ring, without_weights_us = min(1.0, RING_BYTES / part_bytes), _tile_us(stage, split, 0.0)

    def rest(life_us: float, waited_us: float) -> float:
        return max(life_us - min(waited_us, life_us * in_ring), min(life_us, without_weights_us))

    return rest


def chain_us(stages: Sequence[StagePlan], split: int, clusters: int) -> float:
    """Return all stages in one launch.

    Row by row, each tile goes to the cluster that is free first, and begins after the rows that it reads of an earlier
    stage.
    """
    free = [0.0] * min(clusters, sum(stage.tasks for stage in stages))
    under_way = (
        [0] * len(stages)
        if any(isinstance(stage.operator, Conv2d) or _rows(stage) > MOST_STREAMED_ROWS for stage in stages)
        else k_blocks_under_way(stages, split, Options())
    )
    row_ends: dict[str, tuple[list[float], int]] = {}  # when each row of tiles of a tensor was done, and its height
    for number, stage in enumerate(stages):
        height, matrix = stage.operator.tile[0], _rows(stage)
        life, finish = lone_tile_us(stage, split, clusters, under_way[number]), finish_us(stage, split)
        lives = task_us(stage, split).tolist() if isinstance(stage.operator, Attention) else None
        mean, lag, rest = tile_us(stage, split, under_way[number]), lag_us(stage, split), _rest_of(stage, split)
        down = -(-matrix // height)
        across = stage.tasks // down
        ends: list[float] = []
        for row in range(down):
            ready, life = 0.0, lives[row] if lives else life
            if read := row_ends.get(_activations(stage)):
                ready = (
                    max(_overlapping(*read, *_read(stage, row * height, min(matrix, (row + 1) * height)))) + SIGNAL_US
                )
            for _ in range(across):
                late = ready - free[0]
                end = free[0] + life if late <= 0 else ready + rest(life, late)
                heapq.heapreplace(free, end)
            ends.append(end + finish + (lag if life > mean else 0.0))
        row_ends[stage.operator.out.tensor] = ends, height
    return max(max(ends) for ends, _ in row_ends.values()) + _rates(stages[-1], split).lag_us


def _activations(stage: StagePlan) -> str:
    """Return the tensor that a stage loads beside its weights."""
    match stage.operator:
        case Gemm(a=view) | Conv2d(x=view) | Attention(q=view):
            return view.tensor


def _overlapping(rows: Sequence[float], height: int, low: int, high: int) -> Sequence[float]:
    """Return, of what is known by rows of tiles, those that matrix rows ``low`` to ``high`` meet; the last
    where the reader takes the tensor in another shape, with more rows.
    """
    first = min(low // height, len(rows) - 1)
    return rows[first : max(first + 1, -(-high // height))]


def _read(stage: StagePlan, low: int, high: int) -> tuple[int, int]:
    """Return rows of the stage before that rows of the result are computed from."""
    operator = stage.operator
    if isinstance(operator, Attention):
        return 0, high
    if not isinstance(operator, Conv2d):
        return low, high
    _, height, width, _ = operator.x.shape
    pixels = operator.x.shape[0] * height * width
    ratio, halo = pixels / _rows(stage), operator.padding * width
    return max(0, int(low * ratio) - halo), min(pixels, -int(-high * ratio // 1) + halo)


def _rows(stage: StagePlan) -> int:
    """Return rows of the result as a matrix, those of a head in attention."""
    if isinstance(stage.operator, Attention):
        return stage.operator.q.shape[1]
    total = 1
    for size in stage.operator.out.shape[:-1]:
        total *= size
    return total


def _tall(stage: StagePlan) -> bool:
    """Return whether a product has more rows than a block multiplies."""
    return isinstance(stage.operator, Gemm) and stage.rows < stage.operator.out.shape[0]


def _loaded_rows(stage: StagePlan, split: int) -> float:
    """Return rows of activations that are loaded per k-block."""
    halo = stage.halo(split)
    return halo.pixels / halo.taps if halo else _height(stage)


def _height(stage: StagePlan) -> int:
    """Return rows of a block that hold something."""
    return min(stage.operator.tile[0], stage.rows, _rows(stage))
