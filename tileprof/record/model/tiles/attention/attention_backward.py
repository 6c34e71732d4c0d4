"""Scaled dot product attention, backward, as FlashAttention-2 does it (Dao 2023, algorithm 2), for every type.

Launches::

1  dots          one tile per block of queries: row sums of grad_out * out, and zeros for the sum of grad_query
   cuDNN: a memset comes first, and blocks of launch 2 take their work from what it cleared
2  gradients     one tile per block of keys: walks queries, adds to the sum of grad_query with atomics,
                 writes its rows of grad_key and grad_value at its end
3  convert       one tile per block of queries (cuDNN: of 32): the sum of grad_query, in fp32, becomes grad_query
4  group sums    where query heads share keys: their gradients are added, one launch each for keys and values
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch, models
from tileprof.record.model.tiles.attention.attention_tiles import (
    EFFICIENT_ORDER,
    THREADS,
    Attention,
    Blocks,
    Grid,
    Walk,
    attention_of,
    blocks_of,
    dispatched,
    is_cudnn,
    is_efficient,
    loaded_mask,
    own_rows,
    read_by_all,
    scratch_rows,
    take_from,
    walk,
    walked_rows,
    walked_scores,
)
from tileprof.record.model.tiles.elementwise.pointwise import contiguous, elementwise
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import Part, Sketch, binding, scratch
from tileprof.record.model.tiles.products.split_k import row_of_blocks
from tileprof.record.model.tiles.reductions.reduce import reduction
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from tileprof.devices import Device

SUM_ELEMENTS = 512
"""A block of a group sum: 128 threads with four results each."""
REGISTERS = 255
CUDNN_DOT_ROWS = 16
"""Rows of a block of cuDNN's first kernel (T5 on an H200: 32 blocks for 16 heads of 32 queries)."""
CUDNN_CONVERT_ROWS = 32
"""Rows of a block of its last kernel (128 queries of 2 x 4 heads: 4 x 2 x 4 blocks)."""
CUDNN_REGISTERS = 168
_DENSE_GRADIENT = 4
"""The workspace of a copy of the gradient."""
_LOCK_BYTES, _SUM_COLUMNS = 16, 64
"""Sizes in xFormers' workspace for a block of queries: bytes of its lock and counter, and columns of its sums."""
_COUNTER = 4
"""The workspace from which blocks of cuDNN's kernel take their work."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients asked for; None where not."""

    query: Operand | None
    key: Operand | None
    value: Operand | None
    mask: Operand | None


@models(
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
)
def attention_backward(call: Call, device: Device) -> list[Kernel]:
    """Gradients of query, key and value, and of the mask where the operator returns one."""
    problem = attention_of(call)
    if problem.q.numel == 0 or problem.k.numel == 0:
        return []
    gradient_mask = call.arguments.get("grad_input_mask") or [True, True, True, len(call.outputs) > 3]
    returned = iter(call.outputs)
    gradients = Gradients(
        *(next(returned, None) if is_needed else None for is_needed in (*gradient_mask, False, False)[:4])
    )
    gradient = call.arguments.get("grad_out") or call.arguments.get("grad_out_")
    assert gradient is not None
    if is_efficient(call.op, problem) and problem.group == 1:
        blocks = blocks_of(problem, device, backward=True, efficient=True)
        blocks = replace(blocks, threads=THREADS * blocks.queries // 64, registers=REGISTERS)
        problem = replace(problem, mask=loaded_mask(problem.mask))
        return _efficient(problem, blocks, call, gradient, gradients, device)
    blocks = replace(blocks_of(problem, device, backward=True), threads=2 * THREADS, registers=REGISTERS)
    if not is_cudnn(call.op, problem, device):
        return _launches(problem, blocks, call, gradient, gradients, (blocks.queries, blocks.queries))
    launched = _launches(
        problem,
        replace(blocks, threads=3 * THREADS, registers=CUDNN_REGISTERS),
        call,
        gradient,
        gradients,
        (CUDNN_DOT_ROWS, CUDNN_CONVERT_ROWS),
    )
    counter, clear = scratch(_COUNTER, 1), Sketch(1)
    clear.whole(counter, WRITE)
    take_from(counter, launched[1])
    return [clear.kernel("memset", threads=1), *launched]


def _launches(
    problem: Attention, blocks: Blocks, call: Call, gradient: Operand, gradients: Gradients, rows: tuple[int, int]
) -> list[Kernel]:
    """Return launches 1 to 4; ``rows``: queries of a block of the first and of the third."""
    batch, heads, queries = problem.q.shape[:3]
    dots = scratch_rows(0, batch, heads, queries)
    sums = scratch_rows(1, batch, heads, queries, problem.width)
    of_dots, of_sums = (Grid(-(-queries // size), batch, heads) for size in rows)
    # Where heads share keys, each head's gradients go to a workspace first.
    shared = problem.group > 1
    expanded_key = scratch_rows(2, batch, heads, problem.keys, problem.width)
    expanded_value = scratch_rows(3, batch, heads, problem.keys, problem.value_width)
    results: list[tuple[Operand, Operand | Scratch]] = []
    for output, expanded in ((gradients.key, expanded_key), (gradients.value, expanded_value)):
        if output is not None:
            results.append(expanded if shared else (output, output))
    launched = [
        _dots_kernel(gradient, call["out"], dots, sums, of_dots, rows[0]),
        _gradients_kernel(problem, blocks, gradient, call["logsumexp"], dots, sums, results, gradients.mask),
    ]
    if call.arguments.get("dropout_p"):
        read_by_all(launched[1], [call[name] for name in ("philox_seed", "philox_offset")])
    if gradients.query is not None:
        launched.append(_convert_kernel(sums, gradients.query, of_sums, rows[1]))
    if shared:
        targets = [o for o in (gradients.key, gradients.value) if o is not None]
        launched += [
            _group_sum_kernel(*result, target, problem.group) for result, target in zip(results, targets, strict=True)
        ]
    return launched


def _efficient(
    problem: Attention, blocks: Blocks, call: Call, gradient: Operand, gradients: Gradients, device: Device
) -> list[Kernel]:
    """XFormers' kernels: a copy of a gradient that is not dense, in float32 the products' sums by ATen (other types add
    them up themselves), then blocks of keys that add to the gradient of the queries in a workspace of zeros, behind a
    lock and a counter for each block of queries.

    Source: ``_efficient_attention_backward``, ``AttentionBackwardKernel::GradQTempStorage``.
    """
    batch, heads, queries, width = problem.q.shape
    launched, dense = contiguous(regions.permute(gradient, (0, 2, 1, 3)), _DENSE_GRADIENT)
    gradient = regions.permute(dense, (0, 2, 1, 3))
    dots: tuple[Operand, Operand | Scratch] = (call["out"], call["out"])
    if problem.q.dtype == "float32":
        sums_of_rows, dots = _sums_by_aten(problem, dense, call["out"], device)
        launched = [*launched, *sums_of_rows]
    key_blocks, query_blocks = -(-problem.keys // blocks.keys), -(-queries // blocks.queries)
    tile_bytes = _LOCK_BYTES + 4 * blocks.queries * _SUM_COLUMNS
    place = Scratch(1, batch * heads * query_blocks * -(-width // _SUM_COLUMNS) * tile_bytes)
    results: list[tuple[Operand, Operand | Scratch]] = [
        (o, o) for o in (gradients.key, gradients.value) if o is not None
    ]
    # The block that comes last writes a gradient of queries: it may be any of those that add to it.
    sums = scratch_rows(1, batch, heads, queries, width)[0]
    direct = gradients.query if gradients.query is not None else sums
    statistics = call["logsumexp"]
    if key_blocks > 1:
        room = scratch(1, place.bytes // 4)
        launched += elementwise("zero_", [], [_as_bytes(room, place.bytes)], flops_each=0)
    main = _gradients_kernel(
        problem, blocks, gradient, statistics, dots, (sums, place), results, gradients.mask,
    )  # fmt: skip
    if gradients.query is not None:
        main = _written_by_all(problem, blocks, main, direct)
    if call.arguments.get("dropout_p"):
        read_by_all(main, [call[name] for name in ("philox_seed", "philox_offset")])
    return [*launched, dispatched(main, EFFICIENT_ORDER)]


def _sums_by_aten(
    problem: Attention, gradient: Operand, out: Operand, device: Device
) -> tuple[list[Kernel], tuple[Operand, Scratch]]:
    """Return launches that add up products of a dense gradient with the result, and where the sums are then."""
    batch, heads, queries = problem.q.shape[:3]
    both = [gradient, regions.permute(out, (0, 2, 1, 3))]
    products, dots = scratch(0, *gradient.shape), scratch(2, batch, queries, heads)
    delta = scratch(3, batch, heads, queries)
    launched = elementwise("mul", both, [products])
    launched += reduction("sum", products, [dots], [3], device)
    launched += elementwise("contiguous", [regions.permute(dots, (0, 2, 1))], [delta], flops_each=0)
    rows = replace(delta, shape=(batch, heads, queries, 1), strides=(heads * queries, queries, 1, 1))
    return launched, (rows, Scratch(3, 4 * delta.numel))


def _as_bytes(room: Part, size: int) -> Part:
    return replace(room, shape=(size,), strides=(1,), dtype="uint8", itemsize=1)


def _written_by_all(problem: Attention, blocks: Blocks, kernel: Kernel, target: Operand) -> Kernel:
    """Return a kernel whose tiles also write the rows of queries that they walk."""
    begin, end = _query_blocks(problem, blocks)
    grid = Grid(len(begin), problem.batch, problem.heads)
    loop = walk(begin, end, blocks.queries, np.ones(len(begin)))
    written = walked_rows(target, len(kernel.operands), grid, loop, mode=WRITE)
    footprint = Footprint(kernel.footprint.block, Boxes.concat([kernel.footprint.boxes, written]))
    why = "the block of keys that comes last writes the gradient of the queries: each may be the last"
    return replace(kernel, footprint=footprint, operands=(*kernel.operands, target), coverage="inferred", note=why)


def _dots_kernel(
    gradient: Operand,
    out: Operand,
    dots: tuple[Operand, Scratch],
    sums: tuple[Operand, Scratch],
    grid: Grid,
    size: int,
) -> Kernel:
    parts = [
        own_rows(gradient, 0, READ, grid, size, first=0, last=1),
        own_rows(out, 1, READ, grid, size, first=0, last=1),
        own_rows(dots[0], 2, WRITE, grid, size, first=0, last=1),
        own_rows(sums[0], 3, WRITE, grid, size, first=0, last=1),
    ]
    return Kernel(
        "attention_backward_dots", Footprint(grid.block, Boxes.concat(parts)), (gradient, out, dots[1], sums[1]),
        grid.size, (THREADS, 1, 1), flops=2 * out.numel,
    )  # fmt: skip


def _gradients_kernel(
    problem: Attention,
    blocks: Blocks,
    gradient: Operand,
    statistics: Operand,
    dots: tuple[Operand, Operand | Scratch],
    sums: tuple[Operand, Scratch],
    results: list[tuple[Operand, Operand | Scratch]],
    mask_gradient: Operand | None,
) -> Kernel:
    begin, end = _query_blocks(problem, blocks)
    grid = Grid(len(begin), problem.batch, problem.heads)
    rows = np.minimum(end * blocks.queries, problem.queries) - np.minimum(begin * blocks.queries, problem.queries)
    width = problem.width + problem.value_width
    share = rows * width / (rows * width + blocks.keys * width)
    loop = walk(begin, end, blocks.queries, share, backwards=True)
    statistics = replace(statistics, shape=(*statistics.shape[:2], problem.queries, *statistics.shape[3:]))
    parts = [
        own_rows(problem.k, 0, READ, grid, blocks.keys, group=problem.group, first=0, last=0),
        own_rows(problem.v, 1, READ, grid, blocks.keys, group=problem.group, first=0, last=0),
        *(
            walked_rows(o, slot, grid, loop)
            for slot, o in enumerate((problem.q, gradient, statistics, dots[0]), start=2)
        ),
        walked_rows(sums[0], 6, grid, loop, mode=ATOMIC),
    ]
    slots: list[Operand | Scratch] = [problem.k, problem.v, problem.q, binding(gradient), statistics, dots[1], sums[1]]
    block = grid.block
    for operand, bound in results:
        parts.append(own_rows(operand, len(slots), WRITE, grid, blocks.keys, first=share[block[:, 0]], last=1.0))
        slots.append(bound)
    parts += _mask_parts(problem, blocks, grid, loop, slots, mask_gradient)
    own = np.minimum(blocks.keys, problem.keys - block[:, 0] * blocks.keys)
    flops = 2.0 * own * rows[block[:, 0]] * (3 * problem.width + 2 * problem.value_width)
    return Kernel(
        f"attention_backward_{blocks.rate}_{blocks.queries}x{blocks.keys}"
        + "_causal" * problem.causal
        + "_masked" * (problem.mask is not None),
        Footprint(block, Boxes.concat(parts)), tuple(slots), grid.size, (blocks.threads, 1, 1),
        registers=blocks.registers, shared_bytes=blocks.shared_bytes, flops=int(flops.sum()), rate=blocks.rate,
        tile_flops=flops,
    )  # fmt: skip


def _mask_parts(
    problem: Attention, blocks: Blocks, grid: Grid, loop: Walk, slots: list[Operand | Scratch], gradient: Operand | None
) -> list[Boxes]:
    """Reads of the mask and updates of its gradient: atomic where it is broadcast, so that tiles share elements."""
    parts = []
    if problem.mask is not None:
        parts.append(walked_scores(problem.mask, len(slots), READ, grid, loop, blocks.keys, over_keys=False))
        slots.append(problem.mask)
    if gradient is not None and gradient.numel:
        scores = regions.expand(gradient, (*problem.q.shape[:3], problem.keys))
        shared = any(stride == 0 and size > 1 for size, stride in zip(scores.shape, scores.strides, strict=True))
        mode = ATOMIC if shared else WRITE
        parts.append(walked_scores(scores, len(slots), mode, grid, loop, blocks.keys, over_keys=False))
        slots.append(gradient)
    return parts


def _query_blocks(problem: Attention, blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last block of queries that each block of keys meets; causal: query i >= key j."""
    total = -(-problem.queries // blocks.queries)
    first_key = np.arange(-(-problem.keys // blocks.keys)) * blocks.keys
    begin = np.minimum(first_key // blocks.queries, total) if problem.causal else 0 * first_key
    return begin, np.full(len(begin), total)


def _convert_kernel(sums: tuple[Operand, Scratch], target: Operand, grid: Grid, rows: int) -> Kernel:
    parts = [
        own_rows(sums[0], 0, READ, grid, rows, first=0, last=1),
        own_rows(target, 1, WRITE, grid, rows, first=0, last=1),
    ]
    footprint = Footprint(grid.block, Boxes.concat(parts))
    return Kernel(
        "attention_backward_convert", footprint, (sums[1], target), grid.size, (THREADS, 1, 1), flops=target.numel
    )


def _group_sum_kernel(expanded: Operand, room: Operand | Scratch, target: Operand, group: int) -> Kernel:
    """``target[b, h, ...] = sum of expanded[b, h * group + g, ...] over g``."""
    lo = np.arange(0, target.numel, SUM_ELEMENTS)
    tile, start, stop = regions.linear(target.shape, lo, np.minimum(lo + SUM_ELEMENTS, target.numel))
    many = np.array((1, group, 1, 1))
    parts = [
        regions.boxes(expanded, 0, READ, tile, start * many, stop * many, first=0, last=1),
        regions.boxes(target, 1, WRITE, tile, start, stop, first=0, last=1),
    ]
    footprint = Footprint(row_of_blocks(len(lo)), Boxes.concat(parts))
    return Kernel(
        "attention_backward_group_sum",
        footprint,
        (room, target),
        (len(lo), 1, 1),
        (THREADS, 1, 1),
        flops=expanded.numel,
    )
