"""Scaled dot product attention, forward: one kernel, or FlashAttention's split over keys where queries are few; cuDNN's
on Hopper.

::

    grid (x, y, z) = (query block, batch, head)       a tile reads its queries at its begin, walks keys and values
    (splits: z = split * heads + head)                (and the mask), and writes output and log-sum-exp at its end
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.arrays import I64
from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch, models
from tileprof.record.model.tiles.attention.attention_tiles import (
    CUDNN_ORDER,
    EFFICIENT_ORDER,
    HALF,
    THREADS,
    Attention,
    Blocks,
    Grid,
    attention_of,
    blocks_of,
    cudnn_blocks,
    dispatched,
    is_cudnn,
    is_efficient,
    key_blocks,
    loaded_mask,
    own_rows,
    read_by_all,
    rows,
    scratch_rows,
    take_from,
    walk,
    walked_rows,
    walked_scores,
)
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.overrides import dictated
from tileprof.record.model.tiles.foundations.sketch import Sketch, scratch
from tileprof.record.model.tiles.products.split_k import row_of_blocks
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.devices import Device


MAX_SPLITS = 128
FEW = 0.8
"""FlashAttention splits keys when the tiles fill less than this part of the SMs."""
SPLIT_QUERIES = 64
"""Rows of a tile of FlashAttention-2's kernel with slices."""


@models(
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
)
def attention(call: Call, device: Device) -> list[Kernel]:
    """Output and log-sum-exp; small further outputs (random state) are written by the first tile."""
    problem = attention_of(call)
    out, *others = call.outputs
    statistics = (
        others.pop(0) if others and len(others[0].shape) >= 3 else Operand((*out.shape[:2], 0), (0, 0, 1), "float32", 4)
    )
    if out.numel == 0:
        return []
    if is_cudnn(call.op, problem, device):
        extra = [o for o in others if o.numel]
        if call.arguments.get("dropout_p"):
            return _with_seed(_cudnn_kernels(problem, device, (out, statistics), []), extra)
        return _cudnn_kernels(problem, device, (out, statistics), extra)
    efficient = is_efficient(call.op, problem)
    if efficient:
        problem = replace(problem, mask=loaded_mask(problem.mask))
    blocks = blocks_of(problem, device, efficient=efficient)
    slices, blocks = (1, blocks) if efficient else split(problem, blocks, device)
    extra = [o for o in others if o.numel]
    if slices == 1:
        main = _main_kernel(problem, blocks, 1, (out, statistics), (out, statistics), extra)
        return [dispatched(main, EFFICIENT_ORDER) if efficient else main]
    totals, total_room = scratch_rows(0, problem.batch, slices * problem.heads, problem.queries, problem.value_width)
    weights, weight_room = scratch_rows(1, problem.batch, slices * problem.heads, problem.queries)
    return [
        _main_kernel(problem, blocks, slices, (totals, weights), (total_room, weight_room), extra),
        _combine_kernel(problem, slices, (totals, weights), (total_room, weight_room), (out, statistics)),
    ]


@models("aten::_fused_sdp_choice")
def fused_sdp_choice(_call: Call, _device: Device) -> list[Kernel]:
    """The host decides which kernel to launch; nothing runs on the GPU."""
    return []


def _cudnn_kernels(
    problem: Attention, device: Device, results: tuple[Operand, Operand], extra: list[Operand]
) -> list[Kernel]:
    """A counter is cleared, then blocks take their work from it: it may be any tile's, and each updates the counter.

    For one query with a mask cuDNN has a kernel of the generation before, without a counter (a LLaMA's step, H200).
    """
    counter = scratch(0, 1)
    clear, take = Sketch(1), _main_kernel(problem, cudnn_blocks(problem, device), 1, results, results, extra)
    if problem.queries == 1 and problem.mask is not None:
        take.name, take.block = f"cudnn_{take.name}", (128, 1, 1)
        return [take]
    clear.whole(counter, WRITE)
    take = dispatched(take, CUDNN_ORDER, flat=True)
    take_from(counter, take)
    take.name = f"cudnn_{take.name}"
    return [clear.kernel("memset", threads=1), take]


def _with_seed(kernels: list[Kernel], seeds: list[Operand]) -> list[Kernel]:
    """With dropout one thread writes the random state, which every block reads (T5 on an H200)."""
    unpack = Sketch(1)
    for one in seeds:
        unpack.whole(one, WRITE)
    read_by_all(kernels[-1], seeds)
    return [unpack.kernel("unpack_cudnn", threads=1), *kernels]


def split(problem: Attention, blocks: Blocks, device: Device) -> tuple[int, Blocks]:
    """Return into how many slices the keys are cut, and the tiles of the kernel that takes slices.

    The fewest slices that fill waves to 85% of the best, as FlashAttention-2 chooses for its kernel with slices
    (``set_params_splitkv``, ``run_mha_fwd_splitkv_dispatch``).
    """
    override = dictated("attention", (problem.queries, problem.keys))
    if override is not None and override.split is not None:
        return min(override.split, -(-problem.keys // blocks.keys)), blocks
    width = max(problem.width, problem.value_width)
    keys = 256 if width <= 64 else 128 if width <= 128 else 64
    sliced = blocks if override is not None else replace(blocks, queries=SPLIT_QUERIES, keys=keys)
    tiles = -(-problem.queries // sliced.queries) * problem.batch * problem.heads
    total = -(-problem.keys // sliced.keys)
    if problem.q.dtype not in HALF or problem.mask is not None or tiles >= FEW * device.sms:
        return 1, blocks
    full = {}
    for splits in range(1, min(MAX_SPLITS, device.sms, total) + 1):
        if splits == 1 or -(-total // splits) != -(-total // (splits - 1)):
            waves = tiles * splits / device.sms
            full[splits] = waves / np.ceil(waves)
    slices = min(s for s, efficiency in full.items() if efficiency >= 0.85 * max(full.values()))
    return slices, blocks if slices == 1 else sliced


def _main_kernel(
    problem: Attention,
    blocks: Blocks,
    slices: int,
    results: tuple[Operand, Operand],
    bound: tuple[Operand | Scratch, Operand | Scratch],
    extra: list[Operand],
) -> Kernel:
    """``results`` are output and log-sum-exp as the kernel sees them, ``bound`` what they are in the call."""
    begin, end = _slices(key_blocks(problem, blocks), slices)
    grid = Grid(len(begin) // slices, problem.batch, problem.heads, slices)
    met_keys = np.minimum(end * blocks.keys, problem.keys) - np.minimum(begin * blocks.keys, problem.keys)
    loop_bytes = met_keys * (problem.width + problem.value_width)
    share = loop_bytes / (loop_bytes + blocks.queries * problem.value_width)
    loop = walk(begin, end, blocks.keys, share, backwards=problem.q.dtype in HALF)
    block = grid.block
    at = block[:, 2] // grid.heads * np.int64(grid.across) + block[:, 0]
    life = {"first": share[at], "last": 1.0, "sliced": slices > 1}
    parts = [
        own_rows(problem.q, 0, READ, grid, blocks.queries, first=0, last=0),
        walked_rows(problem.k, 1, grid, loop, group=problem.group),
        walked_rows(problem.v, 2, grid, loop, group=problem.group),
        own_rows(results[0], 3, WRITE, grid, blocks.queries, **life),
        own_rows(_unpadded(results[1], problem.queries), 4, WRITE, grid, blocks.queries, **life),
        _padding(problem, results[1], 4, grid),
    ]
    slots: list[Operand | Scratch] = [problem.q, problem.k, problem.v, *bound]
    if problem.mask is not None:
        parts.append(walked_scores(problem.mask, len(slots), READ, grid, loop, blocks.queries, over_keys=True))
        slots.append(problem.mask)
    for operand in extra:
        parts.append(regions.whole(operand, len(slots), WRITE, 0))
        slots.append(operand)
    own = np.minimum(blocks.queries, problem.queries - block[:, 0] * blocks.queries)
    flops = 2.0 * own * met_keys[at] * (problem.width + problem.value_width)
    name = f"attention_{blocks.rate}_{blocks.queries}x{blocks.keys}"
    # the same kernels take 1.7 times as long with a mask
    name += "_causal" * problem.causal + "_masked" * (problem.mask is not None) + "_splitkv" * (slices > 1)
    return Kernel(
        name, Footprint(block, Boxes.concat(parts)), tuple(slots), grid.size, (blocks.threads, 1, 1),
        registers=blocks.registers, shared_bytes=blocks.shared_bytes, flops=int(flops.sum()), rate=blocks.rate,
        tile_flops=flops,
    )  # fmt: skip


def _slices(count: I64, slices: int) -> tuple[I64, I64]:
    """Return the first and last block of keys, ``[slices * query blocks]``: equal slices of all keys, cut off
    where causality ends them.
    """
    per_slice = -(-int(count.max(initial=0)) // slices)
    edges = np.minimum(np.arange(slices + 1)[:, None] * per_slice, count)
    return edges[:-1].ravel(), edges[1:].ravel()


def _unpadded(statistics: Operand, queries: int) -> Operand:
    shape = (*statistics.shape[:2], min(queries, statistics.shape[2]), *statistics.shape[3:])
    return replace(statistics, shape=shape)


def _padding(problem: Attention, statistics: Operand, slot: int, grid: Grid) -> Boxes:
    """Return rows that some kernels keep behind the last query, which the last tile of a head fills."""
    block = grid.block.astype(np.int64)
    tile = np.flatnonzero(block[:, 0] == grid.across - 1)
    start = np.full(len(tile), problem.queries)
    at = block[tile, 1], block[tile, 2]
    return rows(statistics, slot, WRITE, tile, at, start, start + statistics.shape[2], first=1.0, last=1.0)


def _combine_kernel(
    problem: Attention,
    slices: int,
    partial: tuple[Operand, Operand],
    rooms: tuple[Scratch, Scratch],
    results: tuple[Operand, Operand],
) -> Kernel:
    """Weighs the slices of a few rows by their log-sum-exp and adds them."""
    width = problem.value_width
    size = 4 if width % 128 == 0 else 8 if width % 64 == 0 else 16
    total = problem.batch * problem.heads * problem.queries
    lo = np.arange(0, total, size)
    tile, start, stop = regions.linear(problem.q.shape[:3], lo, np.minimum(lo + size, total))
    parts = [_cut(operand, slot, WRITE, tile, start, stop, 0) for slot, operand in enumerate(results, start=2)]
    for s in range(slices):
        parts += [
            _cut(operand, slot, READ, tile, start, stop, s * problem.heads) for slot, operand in enumerate(partial)
        ]
    return Kernel(
        "attention_combine", Footprint(row_of_blocks(len(lo)), Boxes.concat(parts)), (*rooms, *results),
        (len(lo), 1, 1), (THREADS, 1, 1), flops=2 * slices * total * width,
    )  # fmt: skip


def _cut(operand: Operand, slot: int, mode: int, tile: NDArray[np.int64], start: I64, stop: I64, head: int) -> Boxes:
    """Return rectangles ``[batch, head, row]`` of an operand, all of its further dimensions; heads shifted."""
    rest = np.broadcast_to(operand.shape[3:], (len(tile), len(operand.shape) - 3))
    shift = np.array((0, head, 0))
    low, high = np.hstack([start + shift, 0 * rest]), np.hstack([stop + shift, rest])
    return regions.boxes(operand, slot, mode, tile, low, high, first=0, last=1)
