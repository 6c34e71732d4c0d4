"""The kernels of a matrix product ``d = a @ b + c``: which tile reads and writes what, and when.

::

    a [batch, m, k]    one tile: rows of a, columns of b      grid (x, y, z) = (m blocks, n blocks, splits * batch)
    b [batch, k, n]    main loop over k in chunks, then the   dispatch: x slowest within groups of 8 columns of tiles,
    d [batch, m, n]    epilogue reads c and writes d          the swizzle that keeps neighbours in L2

A tile is a block, or a cluster of blocks where the kernel is launched in clusters (`nvjet`). With split-k, each slice
of k writes its partial sums in fp32 to a workspace, and a second kernel adds them and c, as cuBLAS does (splitKreduce).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.record.model import tables
from tileprof.record.model.tile_model import Kernel, Operand, Scratch
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import Sketch, binding, scratch
from tileprof.record.model.tiles.products import dispatch, gemm_kernel_choice, gemm_tile_rule
from tileprof.record.model.tiles.products.dispatch import Dispatch
from tileprof.record.model.tiles.products.main_loop import Loop, chunks_for, flops, main_loop, raster
from tileprof.record.model.tiles.products.problem import Problem
from tileprof.record.model.tiles.products.split_k import (
    one_slice,
    partial_sums,
    reduce_blocks,
    reduce_kernel,
    workspace,
)
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.devices import Device

_WARP = 32
THREADS = 256
"""Threads of a block of the launches around a product with an epilogue of its own."""
_COUNTERS = 4
"""The number of counters of four bytes by which a kernel deals its tiles out, or at which its slices wait."""


_SUMS_BEGIN, _VECTOR_BYTES, _ADDED_BYTES = 128, 16, 64
"""Where the partial sums of kernels without tensor cores begin in the workspace, what a thread moves at a time, and
what it adds up in all (in bytes of float32)."""


@dataclass(frozen=True, slots=True)
class Product:
    """``d = a @ b + c`` in batches; every operand has three dimensions, broadcast ones stride 0.

    The epilogue also reads ``scales``, of d's shape (by rows or columns: stride 0), and every tile ``whole`` ones.
    """

    a: Operand
    b: Operand
    d: Operand
    c: Operand | None = None
    scales: tuple[Operand, ...] = ()
    whole: tuple[Operand, ...] = ()

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.d.shape[1], self.d.shape[2], self.a.shape[2]


def as_batch(operand: Operand) -> Operand:
    """Return a matrix as a batch of one."""
    return replace(operand, shape=(1, *operand.shape), strides=(0, *operand.strides))


def kernels(
    product: Product, device: Device, *, op: int | None = None, name: str = "gemm", tf32: bool = False
) -> list[Kernel]:
    """Model one kernel, or several: a counter that is cleared, slices of k that are added up; none where d is empty.

    ``op`` is the operation's number in tables (`tileprof.record.model.tiles.products.problem`); None for what they
    lack.
    """
    m, n, k = product.sizes
    batch = product.d.shape[0]
    if 0 in (m, n, batch):
        return []
    rate = gemm_tile_rule.rate_of(product.a.dtype, device, tf32=tf32)
    problem = None if op is None or k == 0 else Problem.of(op, product.a, product.b, tf32=rate == "tf32")
    choice = gemm_kernel_choice.choose(
        problem, (m, n, k), batch, itemsize=product.a.itemsize, out_itemsize=product.d.itemsize, rate=rate,
        device=device,
    )  # fmt: skip
    tile = replace(choice.tile, split=max(1, min(choice.tile.split, -(-k // choice.tile.k))))
    post = choice.post or ("tiles" if rate in gemm_tile_rule.SIMT else "runs")
    if tile.split == 1 and post != "epilogue":
        post = "none"
    if post == "epilogue":  # of a kernel whose name tells no tile, which has whole warps
        tile = replace(tile, m=-(-tile.m // _WARP) * _WARP, n=-(-tile.n // _WARP) * _WARP)
    inner = replace(product, c=None, scales=()) if post == "epilogue" else product
    main = _main_kernel(
        inner, tile, f"{name}_{rate}_{_label(product, tile)}", rate, post, _dispatch(inner, tile, choice.kind, device)
    )
    launched = [main]
    if post == "tiles":
        launched.append(_reduction_by_tiles(product, tile))
    elif post == "reduce":
        launched.append(reduce_blocks(product.d, tile.split, _epilogue_reads(product), device.sms))
    elif post == "runs":
        launched.append(reduce_kernel(product.d, tile.split, _epilogue_reads(product)))
    elif post == "epilogue" and product.c is not None:
        launched.append(_epilogue_kernel(product))
    if choice.cleared:
        launched = [*_with_counter(main), *launched[1:]]
    if post == "epilogue" and tile.split > 1:
        launched.insert(int(choice.cleared), _zeroed_results(product))
    return tables.with_source(_with_times([_in_workspace(kernel) for kernel in launched], choice), choice.source)


def _in_workspace(kernel: Kernel) -> Kernel:
    """Return the kernel with its partial sums in cuBLAS's workspace, which PyTorch keeps: products that write there
    follow those that read there.
    """
    operands = tuple(replace(o, library="cublas") if isinstance(o, Scratch) and o.slot == 0 else o
                     for o in kernel.operands)  # fmt: skip
    return replace(kernel, operands=operands)


def _with_counter(main: Kernel) -> list[Kernel]:
    """Return a launch that clears counters, and ``main`` whose tiles update one: they are dealt out, or wait."""
    counter = scratch(1, _COUNTERS)
    clear = Sketch(1)
    clear.whole(counter, WRITE)
    slot, tiles = len(main.operands), np.arange(main.footprint.tiles)
    updates = regions.whole(counter, slot, ATOMIC, tiles, first=0.0, last=0.0)
    footprint = Footprint(main.footprint.block, Boxes.concat([main.footprint.boxes, updates]))
    operands = (*main.operands, Scratch(1, counter.workspace))
    return [clear.kernel("memset", threads=1), replace(main, footprint=footprint, operands=operands)]


def _with_times(launched: list[Kernel], choice: gemm_kernel_choice.Choice) -> list[Kernel]:
    """Give the measured times to the launches: the main one its own, those beside it the rest in equal parts."""
    if choice.main_ns <= 0:
        return launched
    main = max(launched, key=lambda kernel: kernel.flops)
    beside = choice.rest_ns / max(1, len(launched) - 1)
    return [
        replace(kernel, launch_ns=choice.main_ns if kernel is main else beside, time_source=choice.time_source)
        if kernel is main or beside > 0
        else kernel
        for kernel in launched
    ]


def strips(
    operand: Operand,
    slot: int,
    axis: int,
    size: int,
    loop: Loop,
    batch: int,
    block: NDArray[np.int32],
    *,
    dealt: int = 0,
) -> Boxes:
    """Reads of a (``axis`` 0: rows by tile x) or of b (``axis`` 1: columns by tile y), chunk by chunk.

    Each strip is computed once and given to all tiles that share it. ``dealt``: slices take pieces of k of that many
    elements by turns, instead of one piece each.
    """
    extent = operand.shape[1 + axis]
    tiles, (splits, chunks) = -(-extent // size), loop.start.shape
    strip = np.arange(splits * batch * tiles)
    z, at, chunk = (i.ravel() for i in np.indices((splits * batch, tiles, chunks)))
    s, b = z // batch, z % batch
    own = at * size, np.minimum(at * size + size, extent)
    low, high = loop.start[s, chunk], loop.stop[s, chunk]
    if dealt:
        operand = _by_turns(operand, 2 - axis, splits, dealt)
        turns = (low - loop.start[s, 0]) // dealt, (high - loop.start[s, 0]) // dealt
        depth = [turns, (s, s + 1), (0 * s, 0 * s + dealt)]
    else:
        depth = [(low, high)]
    ranges = [(b, b + 1), *([own, *depth] if axis == 0 else [*depth, own])]
    start, stop = (np.column_stack([r[i] for r in ranges]) for i in (0, 1))
    unique = regions.boxes(
        operand, slot, READ, np.repeat(strip, chunks), start, stop, first=loop.first[s, chunk], last=loop.last[s, chunk]
    )
    pick = block[:, 2].astype(np.int64) * tiles + block[:, axis]
    return regions.repeat(unique, pick, np.arange(len(block)))


def _by_turns(operand: Operand, dim: int, splits: int, piece: int) -> Operand:
    """Return the operand with ``dim`` as (turn, slice, element of a piece)."""
    step = operand.strides[dim]
    sizes = (operand.shape[dim] // (splits * piece), splits, piece)
    strides = (splits * piece * step, piece * step, step)
    return replace(
        operand,
        shape=(*operand.shape[:dim], *sizes, *operand.shape[dim + 1 :]),
        strides=(*operand.strides[:dim], *strides, *operand.strides[dim + 1 :]),
    )


def squares(
    operand: Operand, slot: int, mode: int, tile: gemm_tile_rule.Tile, block: NDArray[np.int32], *, first: float
) -> Boxes:
    """Return each tile's own rectangle of a ``[slices, batch, m, n]`` operand, at the end of its life."""
    slices, batches = np.divmod(block[:, 2], operand.shape[1])
    start = np.column_stack([slices, batches, block[:, 0] * np.int64(tile.rows), block[:, 1] * np.int64(tile.columns)])
    stop = np.minimum(start + np.array((1, 1, tile.rows, tile.columns)), operand.shape)
    return regions.boxes(operand, slot, mode, np.arange(len(block)), start, stop, first=first, last=1.0)


def _dispatch(product: Product, tile: gemm_tile_rule.Tile, kind: str, device: Device) -> Dispatch:
    """Return the blocks of the main kernel, as the library of this kind of kernels launches them."""
    m, n, _ = product.sizes
    tiles = (-(-m // tile.rows), -(-n // tile.columns), tile.split * product.d.shape[0])
    if tile.cluster != (1, 1):
        return dispatch.clusters(tiles, tile.cluster, device)
    return dispatch.swizzled(tiles) if kind == "cutlass" else dispatch.plain(tiles)


def _main_kernel(
    product: Product, tile: gemm_tile_rule.Tile, name: str, rate: str, post: str, order: Dispatch
) -> Kernel:
    m, n, k = product.sizes
    batch = product.d.shape[0]
    block = order.cells
    together = tile.cluster[0] * tile.cluster[1]
    loop = main_loop(k, tile, product.a.itemsize, product.d.itemsize, chunks=chunks_for(len(block)))
    # cuBLAS's kernels without tensor cores deal k out by turns (recorded); where turns are not whole, slices stand for
    # them.
    dealt = tile.k if post == "tiles" and tile.split > 1 and k % (tile.split * tile.k) == 0 else 0
    parts = [
        strips(product.a, 0, 0, tile.rows, loop, batch, block, dealt=dealt),
        strips(product.b, 1, 1, tile.columns, loop, batch, block, dealt=dealt),
    ]
    slots: list[Operand | Scratch] = [product.a, product.b]
    if tile.split == 1 or post in ("inside", "epilogue"):
        # Slices that add up inside the kernel come one behind another to the same results.
        results = block if tile.split == 1 else np.column_stack([block[:, :2], block[:, 2] % batch])
        slots.append(product.d)
        adds = tile.split > 1 and post == "epilogue"
        parts.append(squares(one_slice(product.d), 2, ATOMIC if adds else WRITE, tile, results, first=loop.epilogue))
        for operand in _epilogue_reads(product):
            parts.append(squares(one_slice(operand), len(slots), READ, tile, results, first=loop.epilogue))
            slots.append(operand)
    elif post == "tiles":
        pieces = Pieces(product.d, tile)
        slots.append(binding(pieces.operand))
        parts.append(pieces.boxes(2, WRITE, block, first=loop.epilogue))
    else:
        partial = partial_sums(product.d, tile.split)
        slots.append(workspace(partial))
        parts.append(squares(partial, 2, WRITE, tile, block, first=loop.epilogue))
    for operand in product.whole:
        parts.append(regions.whole(operand, len(slots), READ, np.arange(len(block)), first=0, last=1))
        slots.append(operand)
    boxes = Boxes.concat(parts)
    boxes = replace(boxes, tile=order.tiles[boxes.tile].astype(boxes.tile.dtype))
    work = flops(product.a.dtype, batch * m * n * k)
    shares = np.zeros(len(order.places))
    shares[order.tiles] = work / len(order.tiles)
    return Kernel(
        name, Footprint(order.places, boxes), tuple(slots), order.grid, (tile.threads, 1, 1), (together, 1, 1),
        registers=tile.registers, shared_bytes=tile.shared_bytes, flops=work, tile_flops=shares,
        rate=rate,
    )  # fmt: skip


class Pieces:
    """The partial sums of cuBLAS's kernels without tensor cores in its workspace: behind 128 bytes, for each slice, the
    pieces of all tiles by turns. A piece is a vector of 16 bytes of each thread.

    Recorded products that share the workspace depend on one another as this says (`sm80_xmma_gemm_f32f32_f32f32_f32`
    beside CUTLASS's, whose sums begin at most 128 bytes before).
    """

    def __init__(self, results: Operand, tile: gemm_tile_rule.Tile) -> None:
        batch, m, n = results.shape
        itemsize = max(4, results.itemsize)
        self.tiles = -(-m // tile.m), -(-n // tile.n)
        length = _VECTOR_BYTES // itemsize * tile.threads
        self.count = -(-tile.m * tile.n // length)
        shape = (tile.split * batch, self.count, self.tiles[0] * self.tiles[1], length)
        dense = scratch(0, *shape, itemsize=itemsize)
        begin = _SUMS_BEGIN // itemsize
        self.operand = replace(dense, begin=begin, workspace=dense.workspace + _SUMS_BEGIN)

    def boxes(
        self, slot: int, mode: int, cells: NDArray[np.int32], *, first: float, some: tuple[Any, int] | None = None
    ) -> Boxes:
        """Return accesses of each tile of ``cells`` (row, column, slice and batch) to its pieces: to all, or to as many
        as ``some`` says from its first one on.
        """
        low, length = (0, self.count) if some is None else some
        row, column, z = cells.astype(np.int64).T
        tile, low = row + self.tiles[0] * column, low + 0 * row
        start = np.column_stack([z, low, tile, 0 * tile])
        stop = np.column_stack([z + 1, low + length, tile + 1, 0 * tile + self.operand.shape[3]])
        boxes = regions.boxes(self.operand, slot, mode, np.arange(len(cells)), start, stop, first=first, last=1.0)
        return replace(boxes, offset=boxes.offset + self.operand.begin * self.operand.itemsize)


def _zeroed_results(product: Product) -> Kernel:
    """``scal_kernel`` before slices that add to the results (recorded: blocks of 32 by 64)."""
    return _by_results("gemm_zero", product.d, (), (32, 64), (WRITE,))


def _epilogue_kernel(product: Product) -> Kernel:
    """Adds c to results that are there, in blocks of 32 by 8 (``epilogue::impl::globalKernel<8, 32>``)."""
    return _by_results("gemm_epilogue", product.d, _epilogue_reads(product), (32, 8), (READ, WRITE))


def _by_results(
    name: str, results: Operand, reads: Sequence[Operand], sizes: tuple[int, int], modes: tuple[int, ...]
) -> Kernel:
    """Model a launch over the results in blocks of rows and columns; along x of the grid lie columns."""
    batch, m, n = results.shape
    grid = (-(-n // sizes[1]), -(-m // sizes[0]), batch)
    block = np.array(list(np.ndindex(*grid[::-1])), np.int32)[:, ::-1]
    cells = block[:, (1, 0, 2)]
    own = gemm_tile_rule.Tile(*sizes, 1, 1, 1, THREADS, 32, 0)
    parts = [squares(one_slice(results), 0, mode, own, cells, first=0.0) for mode in modes]
    parts += [squares(one_slice(o), slot, READ, own, cells, first=0.0) for slot, o in enumerate(reads, start=1)]
    return Kernel(
        name, Footprint(block, Boxes.concat(parts)), (results, *reads), grid, (THREADS, 1, 1), flops=results.numel
    )


def _reduction_by_tiles(product: Product, tile: gemm_tile_rule.Tile) -> Kernel:
    """Adds the slices tile by tile: so cuBLAS's kernels without tensor cores do (recorded). A thread adds at most 16
    results; which results of a larger tile a block adds was not recorded, so each of its blocks writes all.
    """
    batch = product.d.shape[0]
    pieces = Pieces(product.d, tile)
    shares = pieces.count // (_ADDED_BYTES // _VECTOR_BYTES)
    shares = shares if shares and pieces.count % shares == 0 else 1
    down, across = pieces.tiles
    block = raster(down, across, batch * shares)
    images, share = np.divmod(block[:, 2], shares)
    cells = np.column_stack([block[:, :2], images]).astype(np.int32)
    each = pieces.count // shares
    parts = [
        pieces.boxes(0, READ, cells + np.array((0, 0, s * batch), np.int32), first=0.0, some=(share * each, each))
        for s in range(tile.split)
    ]
    operands = (product.d, *_epilogue_reads(product))
    for slot, operand in enumerate(operands, start=1):
        parts.append(squares(one_slice(operand), slot, WRITE if slot == 1 else READ, tile, cells, first=0.0))
    return Kernel(
        "splitk_reduce", Footprint(block, Boxes.concat(parts)), (binding(pieces.operand), *operands),
        (down, across, batch * shares), (tile.threads, 1, 1), flops=tile.split * product.d.numel,
        coverage="exact" if shares == 1 else "inferred",
    )  # fmt: skip


def _epilogue_reads(product: Product) -> Sequence[Operand]:
    return (*((product.c,) if product.c else ()), *product.scales)


def _label(product: Product, tile: gemm_tile_rule.Tile) -> str:
    """Return tile, pipeline and layouts, as in 128x256x64_4_nt: n where rows of a matrix lie contiguously."""
    layouts = "".join("n" if o.strides[2] == 1 or o.shape[2] == 1 else "t" for o in (product.a, product.b))
    cluster = "_cluster{}x{}".format(*tile.cluster) if tile.rows * tile.columns > tile.m * tile.n else ""
    split = f"_splitk{tile.split}" if tile.split > 1 else ""
    return f"{tile.m}x{tile.n}x{tile.k}_{tile.stages}_{layouts}{cluster}{split}"
