"""Parts that the attention kernels share: shapes, tile sizes, and the keys that a block of queries meets, with times.

Tiles follow FlashAttention-2 (Dao 2023) for fp16 and bf16 (cuDNN's on Hopper, which PyTorch prefers there), the
memory-efficient kernels of xFormers for wider types:
a tile is a block of query rows of one head of one batch, and its main loop walks blocks of keys. A tile reads keys in
whole blocks, so a causal tile reads up to the end of the block on its diagonal, as the kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.arrays import I64
from tileprof.record.model.tile_model import Kernel, Operand, Scratch
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.overrides import dictated
from tileprof.record.model.tiles.foundations.sketch import binding
from tileprof.record.model.tiles.products.gemm_tile_rule import rate_of
from tileprof.record.model.tiles.products.main_loop import CHUNKS
from tileprof.record.model.tiles.products.split_k import row_of_blocks
from tileprof.trace.footprint import ATOMIC, READ, Boxes, Footprint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tile_model import Call


HALF = ("float16", "bfloat16")
THREADS = 128
CUDNN_ORDER, EFFICIENT_ORDER = (2, 1, 0), (0, 2, 1)
"""Axes of a `Grid` from the fastest (`dispatched`); cuDNN's tiles are dealt by a counter, so that theirs is a guess."""
CUDNN_WIDEST = 128
"""Head width up to which cuDNN's forward kernel is taken."""
MASK_ELEMENTS = 8
"""Elements of a mask that xFormers' kernels load at once."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Tensors ``[batch, heads, rows, width]``; ``mask`` of the shape of the scores, broadcast ones stride 0."""

    q: Operand
    k: Operand
    v: Operand
    causal: bool
    mask: Operand | None

    @property
    def batch(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.heads // max(self.k.shape[1], 1)

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    @property
    def width(self) -> int:
        return self.q.shape[3]

    @property
    def value_width(self) -> int:
        return self.v.shape[3]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tile sizes of a kernel, in query and key rows, and what it asks of an SM."""

    queries: int
    keys: int
    registers: int
    shared_bytes: int
    rate: str
    threads: int = THREADS


def attention_of(call: Call) -> Attention:
    """Return the problem of a call, forward or backward."""
    q, k, v = call["query"], call["key"], call["value"]
    mask = call.arguments.get("attn_mask")
    mask = call.arguments.get("attn_bias") if mask is None else mask
    scores = (*q.shape[:3], k.shape[2])
    mask = regions.expand(mask, scores) if mask is not None and mask.numel else None
    return Attention(q, k, v, bool(call["is_causal"]), mask)


def blocks_of(attention: Attention, device: Device, *, backward: bool = False, efficient: bool = False) -> Blocks:
    """Return tile sizes by head width and type, as dictated or as the libraries' own tables have them.

    ``efficient``: those of xFormers' kernels in PyTorch (``mem_eff_attention/kernels/generate_kernels.py``, GPUs from
    sm_80 on), which take every type.
    """
    width = max(attention.width, attention.value_width)
    half = attention.q.dtype in HALF
    if efficient and not backward:
        queries, keys = (64, 64) if width <= 64 else (64, 128) if width <= 128 else (32, 128)
    elif half and efficient:
        queries, keys = (
            (64, 64) if width <= 64 else (128, 64) if width <= 96 else (128, 128) if width <= 128 else (128, 64)
        )
    elif half and backward:
        queries, keys = (128, 128) if width <= 64 else (64, 128) if width <= 128 else (64, 64)
    elif half:
        queries, keys = (128, 128) if width <= 64 else (128, 64) if width <= 128 else (64, 64)
    else:
        queries, keys = 64, 64
    override = dictated("attention", (attention.queries, attention.keys))
    if override is not None:
        queries, keys = override.tile
    rows = queries + 2 * keys if not backward else 2 * queries + 2 * keys
    shared = min(rows * width * attention.q.itemsize, device.shared_bytes_per_block)
    rate = rate_of(attention.q.dtype, device)
    return Blocks(queries, keys, 255 if half else 168, shared, rate)


def cudnn_blocks(attention: Attention, device: Device) -> Blocks:
    """Return tiles of cuDNN on Hopper: 128 queries of two warpgroups, 128 keys, a third warpgroup that loads.

    Source: recorded on an H200 (PyTorch 2.11, causal, bf16, width 64: ``flash_fprop_wgmma_f16_knob_7_64x128x64``).
    """
    width = max(attention.width, attention.value_width)
    shared = min((128 + 2 * 2 * 128) * width * attention.q.itemsize, device.shared_bytes_per_block)
    return Blocks(128, 128, 168, shared, rate_of(attention.q.dtype, device), threads=384)


def is_cudnn(op: str, problem: Attention, device: Device) -> bool:
    """Return whether PyTorch takes cuDNN's kernel: it prefers it on Hopper for half types; calls that name another take
    that.
    """
    override = dictated("attention", (problem.queries, problem.keys))
    has_cudnn_name = op.removesuffix("_backward").endswith(("_for_cpu", "_cudnn_attention", "_overrideable"))
    fits = problem.q.dtype in HALF and max(problem.width, problem.value_width) <= CUDNN_WIDEST
    whole = problem.width % 8 == 0 and problem.value_width % 8 == 0
    return device.architecture == "sm_90" and has_cudnn_name and fits and whole and override is None


def is_efficient(op: str, problem: Attention) -> bool:
    """Return whether PyTorch takes xFormers' memory-efficient kernels: for float32, or where a call names them."""
    override = dictated("attention", (problem.queries, problem.keys))
    named = op.removesuffix("_backward").endswith("_efficient_attention")
    return override is None and (named or problem.q.dtype == "float32")


def loaded_mask(mask: Operand | None) -> Operand | None:
    """Return a mask as xFormers' kernels load it: rows to the next multiple of eight elements, where they lie apart."""
    if mask is None:
        return None
    keys = -(-mask.shape[3] // MASK_ELEMENTS) * MASK_ELEMENTS
    return replace(mask, shape=(*mask.shape[:3], keys)) if keys <= mask.strides[2] else mask


@dataclass(frozen=True, slots=True)
class Grid:
    """Tiles at ``(row block, batch, slice * heads + head)``, in dispatch order: row blocks first, heads last."""

    across: int
    batch: int
    heads: int
    slices: int = 1

    @property
    def size(self) -> tuple[int, int, int]:
        return self.across, self.batch, self.heads * self.slices

    @property
    def block(self) -> NDArray[np.int32]:
        z, y, x = (i.ravel() for i in np.indices(self.size[::-1], dtype=np.int32))
        return np.column_stack([x, y, z])


@dataclass(frozen=True, slots=True)
class Walk:
    """The main loops of a grid in chunks: rows and life ``[slices * across, CHUNKS]``, all heads alike; chunks may be
    empty.
    """

    start: I64
    stop: I64
    first: NDArray[np.float64]
    last: NDArray[np.float64]


def walk(begin: I64, end: I64, size: int, share: NDArray[np.float64], *, backwards: bool = False) -> Walk:
    """Walk blocks ``begin`` to ``end`` (``[slices * across]``) of ``size`` rows during the first ``share`` of a tile's
    life.

    ``backwards``: from the last block to the first, as FlashAttention does, so that the masked blocks come first.
    """
    count, end_of_loop = (end - begin)[:, None], share[:, None]
    edges = begin[:, None] + np.arange(CHUNKS + 1) * count // CHUNKS
    progress = (edges - begin[:, None]) / np.maximum(count, 1) * end_of_loop
    first, last = progress[:, :-1], progress[:, 1:]
    if backwards:
        first, last = end_of_loop - last, end_of_loop - first
    return Walk(edges[:, :-1] * size, edges[:, 1:] * size, first, last)


def key_blocks(attention: Attention, blocks: Blocks) -> I64:
    """Return how many blocks of keys each block of queries meets, ``[query blocks]``; causal means key j <= query i."""
    total = -(-attention.keys // blocks.keys)
    first = np.arange(-(-attention.queries // blocks.queries)) * blocks.queries
    if not attention.causal:
        return np.full(len(first), total)
    return np.minimum(total, -(-(first + blocks.queries) // blocks.keys))


def rows(
    operand: Operand, slot: int, mode: int, tile: I64, at: tuple[I64, I64], start: I64, stop: I64, **life: Any
) -> Boxes:
    """Return rows of ``[batch, heads, rows, ...]`` for each entry: ``at`` is its batch and head, ``stop`` is
    clipped.
    """
    rest = operand.shape[3:]
    batch, head = at
    stop = np.minimum(stop, operand.shape[2])
    low = [batch, head, np.minimum(start, stop), *(0 * batch for _ in rest)]
    high = [batch + 1, head + 1, stop, *(0 * batch + n for n in rest)]
    return regions.boxes(operand, slot, mode, tile, np.column_stack(low), np.column_stack(high), **life)


def own_rows(
    operand: Operand, slot: int, mode: int, grid: Grid, size: int, *, sliced: bool = False, group: int = 1, **life: Any
) -> Boxes:
    """Return each tile's own block of ``size`` rows; ``sliced`` operands have a copy of all heads a slice, and
    ``group`` heads share a head of the operand.
    """
    block = grid.block.astype(np.int64)
    head = block[:, 2] if sliced else block[:, 2] % grid.heads // group
    start = block[:, 0] * size
    return rows(operand, slot, mode, np.arange(len(block)), (block[:, 1], head), start, start + size, **life)


def walked_rows(operand: Operand, slot: int, grid: Grid, loop: Walk, *, group: int = 1, mode: int = READ) -> Boxes:
    """Return what each tile's walk touches of an operand of which ``group`` heads share a head: each walk computed
    once.
    """
    walks, heads = len(loop.start), operand.shape[1]
    head, batch, at, chunk = (i.ravel() for i in np.indices((heads, grid.batch, walks, CHUNKS)))
    key = (head * grid.batch + batch) * walks + at
    unique = rows(
        operand, slot, mode, key, (batch, head), loop.start[at, chunk], loop.stop[at, chunk],
        first=loop.first[at, chunk], last=loop.last[at, chunk],
    )  # fmt: skip
    block = grid.block.astype(np.int64)
    part, own = np.divmod(block[:, 2], grid.heads)
    pick = (own // group * grid.batch + block[:, 1]) * walks + part * grid.across + block[:, 0]
    return regions.repeat(unique, pick, np.arange(len(block)))


def walked_scores(mask: Operand, slot: int, mode: int, grid: Grid, loop: Walk, size: int, *, over_keys: bool) -> Boxes:
    """Return each tile's part of an operand of the scores' shape: its own ``size`` rows of queries by a walk over keys,
    or its own keys by a walk over queries.
    """
    block = grid.block.astype(np.int64)
    tile, chunk = (i.ravel() for i in np.indices((len(block), CHUNKS)))
    part, head = np.divmod(block[tile, 2], grid.heads)
    at = part * grid.across + block[tile, 0]
    own = block[tile, 0] * size, block[tile, 0] * size + size
    walked = loop.start[at, chunk], loop.stop[at, chunk]
    query, key = (own, walked) if over_keys else (walked, own)
    low = np.column_stack([block[tile, 1], head, query[0], key[0]])
    high = np.column_stack([block[tile, 1] + 1, head + 1, query[1], key[1]])
    life = {"first": loop.first[at, chunk], "last": loop.last[at, chunk]}
    return regions.boxes(mask, slot, mode, tile, np.minimum(low, mask.shape), np.minimum(high, mask.shape), **life)


def scratch_rows(slot: int, batch: int, heads: int, count: int, wide: int = 1) -> tuple[Operand, Scratch]:
    """fp32 workspace ``[heads, batch, rows, wide]``, seen as ``[batch, heads, rows, wide]``."""
    operand = Operand((batch, heads, count, wide), (count * wide, batch * count * wide, wide, 1), "float32", 4)
    return operand, Scratch(slot, 4 * batch * heads * count * wide)


def dispatched(kernel: Kernel, order: tuple[int, int, int], *, flat: bool = False) -> Kernel:
    """Return a kernel of a `Grid` whose blocks come in another ``order``: row blocks (0), batches (1) and heads (2),
    the one that changes fastest first. ``flat``: all along x, as persistent kernels count them.
    """
    cells = kernel.footprint.block
    tiles = np.lexsort([cells[:, axis] for axis in order])
    number = np.empty(len(tiles), np.int32)
    number[tiles] = np.arange(len(tiles))
    boxes = replace(kernel.footprint.boxes, tile=number[kernel.footprint.boxes.tile])
    across, high, deep = (kernel.grid[axis] for axis in order)
    places, grid = cells[tiles][:, list(order)], (across, high, deep)
    if flat:
        places, grid = row_of_blocks(len(tiles)), (len(tiles), 1, 1)
    work = None if kernel.tile_flops is None else kernel.tile_flops[tiles]
    return replace(kernel, footprint=Footprint(places, regions.by_tile(boxes)), grid=grid, tile_flops=work)


def take_from(counter: Operand, kernel: Kernel) -> None:
    """Let every tile of the kernel take its work from a counter in a workspace: each updates it at its begin."""
    slot, tiles = len(kernel.operands), np.arange(kernel.footprint.tiles)
    updates = regions.whole(counter, slot, ATOMIC, tiles, first=0.0, last=0.0)
    kernel.footprint = Footprint(kernel.footprint.block, Boxes.concat([kernel.footprint.boxes, updates]))
    kernel.operands = (*kernel.operands, binding(counter))


def read_by_all(kernel: Kernel, operands: list[Operand]) -> None:
    """Let every tile read small operands whole, at its begin: the random state of dropout."""
    kernel.name += "_dropout"
    parts, tiles = [kernel.footprint.boxes], np.arange(kernel.footprint.tiles)
    parts += [
        regions.whole(one, slot, READ, tiles, first=0.0, last=0.0)
        for slot, one in enumerate(operands, start=len(kernel.operands))
    ]
    kernel.footprint = Footprint(kernel.footprint.block, Boxes.concat(parts))
    kernel.operands = (*kernel.operands, *operands)
