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

from tileprof.record.model.tile_model import Kernel, Operand, Scratch
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.overrides import dictated
from tileprof.record.model.tiles.products import gemm_tiles, nvjet
from tileprof.record.model.tiles.products.main_loop import Loop, chunks_for, flops, main_loop, raster
from tileprof.record.model.tiles.products.split_k import one_slice, partial_sums, reduce_kernel, workspace
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.devices import Device


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


def kernels(product: Product, device: Device, *, name: str = "gemm", tf32: bool = False) -> list[Kernel]:
    """Model one kernel, or two with split-k; none where d is empty."""
    m, n, k = product.sizes
    batch = product.d.shape[0]
    if 0 in (m, n, batch):
        return []
    rate = gemm_tiles.rate_of(product.a.dtype, device, tf32=tf32)
    problem: dict[str, Any] = {
        "itemsize": product.a.itemsize,
        "out_itemsize": product.d.itemsize,
        "rate": rate,
        "device": device,
    }
    tile = nvjet.choose((m, n, k), batch, **problem) if dictated("gemm", (m, n, k)) is None else None
    tile = tile or gemm_tiles.choose("gemm", (m, n, k), batch, **problem)
    tile = replace(tile, split=max(1, min(tile.split, -(-k // tile.k))))
    main = _main_kernel(product, tile, f"{name}_{rate}_{_label(product, tile)}", rate)
    if tile.split == 1:
        return [main]
    if rate in gemm_tiles.SIMT:
        return [main, _reduction_by_tiles(product, tile)]
    return [main, reduce_kernel(product.d, tile.split, _epilogue_reads(product))]


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
    operand: Operand, slot: int, mode: int, tile: gemm_tiles.Tile, block: NDArray[np.int32], *, first: float
) -> Boxes:
    """Return each tile's own rectangle of a ``[slices, batch, m, n]`` operand, at the end of its life."""
    slices, batches = np.divmod(block[:, 2], operand.shape[1])
    start = np.column_stack([slices, batches, block[:, 0] * np.int64(tile.rows), block[:, 1] * np.int64(tile.columns)])
    stop = np.minimum(start + np.array((1, 1, tile.rows, tile.columns)), operand.shape)
    return regions.boxes(operand, slot, mode, np.arange(len(block)), start, stop, first=first, last=1.0)


def _main_kernel(product: Product, tile: gemm_tiles.Tile, name: str, rate: str) -> Kernel:
    m, n, k = product.sizes
    batch = product.d.shape[0]
    tiles = (-(-m // tile.rows), -(-n // tile.columns), tile.split * batch)
    block = raster(*tiles)
    together = tile.cluster[0] * tile.cluster[1]
    # nvjet numbers its clusters along y, whatever their squares (recorded): x counts the blocks of a cluster.
    grid = tiles if together == 1 else (together, tiles[0] * tiles[1], tiles[2])
    number = np.arange(len(block), dtype=np.int32) % (tiles[0] * tiles[1])
    places = block if together == 1 else np.column_stack([0 * number, number, block[:, 2]])
    loop = main_loop(k, tile, product.a.itemsize, product.d.itemsize, chunks=chunks_for(len(block)))
    # cuBLAS's kernels without tensor cores deal k out by turns (recorded); where turns are not whole, slices stand for
    # them.
    dealt = tile.k if rate in gemm_tiles.SIMT and tile.split > 1 and k % (tile.split * tile.k) == 0 else 0
    parts = [
        strips(product.a, 0, 0, tile.rows, loop, batch, block, dealt=dealt),
        strips(product.b, 1, 1, tile.columns, loop, batch, block, dealt=dealt),
    ]
    slots: list[Operand | Scratch] = [product.a, product.b]
    if tile.split == 1:
        slots.append(product.d)
        parts.append(squares(one_slice(product.d), 2, WRITE, tile, block, first=loop.epilogue))
        for operand in _epilogue_reads(product):
            parts.append(squares(one_slice(operand), len(slots), READ, tile, block, first=loop.epilogue))
            slots.append(operand)
    else:
        partial = partial_sums(product.d, tile.split)
        slots.append(workspace(partial))
        parts.append(squares(partial, 2, WRITE, tile, block, first=loop.epilogue))
    for operand in product.whole:
        parts.append(regions.whole(operand, len(slots), READ, np.arange(len(block)), first=0, last=1))
        slots.append(operand)
    return Kernel(
        name, Footprint(places, Boxes.concat(parts)), tuple(slots), grid, (tile.threads, 1, 1), (together, 1, 1),
        registers=tile.registers, shared_bytes=tile.shared_bytes, flops=flops(product.a.dtype, batch * m * n * k),
        rate=rate,
    )  # fmt: skip


def _reduction_by_tiles(product: Product, tile: gemm_tiles.Tile) -> Kernel:
    """Adds the slices square by square, in the main kernel's tiles: so cuBLAS's kernels without tensor cores do
    (recorded).
    """
    batch, m, n = product.d.shape
    grid = (-(-m // tile.m), -(-n // tile.n), batch)
    block = raster(*grid)
    partial = partial_sums(product.d, tile.split)
    of_slice = [block + np.array((0, 0, s * batch), np.int32) for s in range(tile.split)]
    parts = [squares(partial, 0, READ, tile, b, first=0.0) for b in of_slice]
    operands = (product.d, *_epilogue_reads(product))
    for slot, operand in enumerate(operands, start=1):
        parts.append(squares(one_slice(operand), slot, WRITE if slot == 1 else READ, tile, block, first=0.0))
    return Kernel(
        "splitk_reduce", Footprint(block, Boxes.concat(parts)), (workspace(partial), *operands), grid,
        (tile.threads, 1, 1), flops=tile.split * product.d.numel,
    )  # fmt: skip


def _epilogue_reads(product: Product) -> Sequence[Operand]:
    return (*((product.c,) if product.c else ()), *product.scales)


def _label(product: Product, tile: gemm_tiles.Tile) -> str:
    """Return tile, pipeline and layouts, as in 128x256x64_4_nt: n where rows of a matrix lie contiguously."""
    layouts = "".join("n" if o.strides[2] == 1 or o.shape[2] == 1 else "t" for o in (product.a, product.b))
    cluster = "_cluster{}x{}".format(*tile.cluster) if tile.rows * tile.columns > tile.m * tile.n else ""
    split = f"_splitk{tile.split}" if tile.split > 1 else ""
    return f"{tile.m}x{tile.n}x{tile.k}_{tile.stages}_{layouts}{cluster}{split}"
