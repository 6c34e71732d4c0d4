"""A kernel in the making: the memory-bound tile models write down here who touches what.

Most of ATen's kernels walk an iteration space in row-major order and give each thread block a range of it. A
`Span` says which dimensions form such a space and which range each tile takes; dimensions that no span names
are taken whole. A row-wise kernel has one span over the rows, a pointwise one has one span over all
dimensions, a split reduction has one over the kept and one over the reduced dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tileprof.arrays import I64, grids
from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError
from tileprof.record.model.tile_model import Kernel, Operand, Scratch
from tileprof.record.model.tiles.foundations import regions
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes, Footprint
from tileprof.trace.structure import MOST_TILES

POINTWISE_BYTES, PRODUCT_BYTES = 500, 1_200
"""Peak memory per tile in bytes while a launch is modelled, as measured at 0.1 to 1.1 million tiles."""
STORES_BEGIN = 0.5
"""The moment in its life at which a block that loads first begins to store: loads and stores move about as much. Only
the order matters to a launch that waits for the block's last store or lets it wait for its first load.
"""


def check_number(tiles: int, tile_bytes: int = POINTWISE_BYTES) -> None:
    """Raise `UserError` if one launch has more tiles than a whole trace may have, or than this machine's memory holds
    at ``tile_bytes`` each, before there are arrays of them.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most, reason = min((MOST_TILES, "a trace holds"), (memory // tile_bytes, "this machine's memory holds"))
    if tiles > most:
        raise UserError(f"a launch of {tiles:,} tiles is more than {reason} ({most:,}); record a smaller problem")


@dataclass(frozen=True, slots=True)
class Span:
    """Range ``lo[r] <= index < hi[r]`` of the dimensions ``dims``, flattened in that order; one range per row ``r``."""

    dims: tuple[int, ...]
    lo: I64
    hi: I64


@dataclass(frozen=True, slots=True)
class Part(Operand):
    """A view of an operand: its first element lies ``begin`` elements behind the operand's own.

    ``workspace`` is the size in bytes of the `Scratch` that it is a view of, where it is one.
    """

    begin: int = 0
    workspace: int = 0


class Sketch:
    """Collects the accesses of one launch; operands get their slots in the order of their first access.

    ``grid`` is in thread blocks, x first; tile ``x + grid_x * (y + grid_y * z)`` is thread block (x, y, z).
    """

    def __init__(self, *grid: int) -> None:
        x, y, z = (*grid, 1, 1)[:3]
        self.grid = (int(x), int(y), int(z))
        self.tiles = int(x) * int(y) * int(z)
        check_number(self.tiles)
        self._operands: list[Operand | Scratch] = []
        self._slots: dict[tuple[int, bool], int] = {}
        self._parts: list[Boxes] = []

    def slot(self, operand: Operand, *, awaited: bool = False) -> int:
        """Return the operand's slot, a new one on first sight; ``awaited``: the one of `awaits`."""
        key = operand.ref, awaited
        if key not in self._slots:
            self._slots[key] = len(self._operands)
            self._operands.append(binding(operand))
        return self._slots[key]

    def region(
        self, operand: Operand, mode: int, tile: ArrayLike, start: ArrayLike, stop: ArrayLike, **more: Any
    ) -> None:
        """Tiles touch rectangles ``start <= index < stop`` of the operand, as in `regions.boxes`; none is fine."""
        if np.ndim(start) == 2 and not len(np.asarray(start)):
            return
        self._place(operand, regions.boxes(operand, self.slot(operand), mode, tile, start, stop, **more))

    def span(self, operand: Operand, mode: int, tile: ArrayLike, *spans: Span) -> None:
        """Tiles touch the product of ``spans``; dimensions outside them whole. ``tile`` is ``[ranges]``."""
        flat, ranges, start, stop = rectangles(operand, *spans)
        self.region(flat, mode, np.asarray(tile)[ranges], start, stop)

    def awaits(self, operand: Operand, tile: ArrayLike, *spans: Span) -> None:
        """Tiles wait inside the launch for other tiles that read these elements.

        A read in a slot of its own: it orders the tile behind the tiles that write the elements, and moves no bytes.
        """
        flat, ranges, start, stop = rectangles(operand, *spans)
        if len(start):
            slot = self.slot(operand, awaited=True)
            self._place(operand, regions.boxes(flat, slot, READ, np.asarray(tile)[ranges], start, stop))

    def whole(self, operand: Operand, mode: int, tile: ArrayLike | None = None) -> None:
        """Tiles (all of them unless given) touch the whole operand."""
        tile = np.arange(self.tiles) if tile is None else tile
        self._place(operand, regions.whole(operand, self.slot(operand), mode, tile))

    def elements(self, operand: Operand, mode: int, tile: ArrayLike, element: ArrayLike, run: int = 1) -> None:
        """Tiles touch ``run`` consecutive elements from each storage position ``element`` (in elements).

        Positions repeat freely; neighbours within a tile become one row.
        """
        self._place(operand, _runs(operand, self.slot(operand), mode, np.asarray(tile), np.asarray(element), run))

    def _place(self, operand: Operand, boxes: Boxes) -> None:
        if isinstance(operand, Part):
            boxes.offset = boxes.offset + operand.begin * operand.itemsize
        self._parts.append(boxes)

    def kernel(
        self,
        name: str,
        *,
        threads: int | tuple[int, int, int],
        flops: float = 0,
        loads_first: bool = False,
        **fields: Any,
    ) -> Kernel:
        """The finished kernel. ``flops`` is the whole launch; other fields as in `Kernel`.

        ``loads_first``: a block loads all it reads before it stores anything, so the times of its accesses are known.
        """
        block = (threads, 1, 1) if isinstance(threads, int) else threads
        boxes = Boxes.concat(self._parts)
        if loads_first:
            load = boxes.mode == READ
            boxes.first = np.where(load, 0.0, STORES_BEGIN).astype(np.float32)
            boxes.last = np.where(load, STORES_BEGIN, 1.0).astype(np.float32)
        footprint = Footprint(grid_blocks(self.grid), boxes)
        is_awaited = frozenset(slot for (_, awaited), slot in self._slots.items() if awaited)
        if is_awaited:
            fields.setdefault("coverage", "inferred")
        return Kernel(
            name, footprint, tuple(self._operands), self.grid, block, flops=int(flops), awaited=is_awaited, **fields
        )


def rectangles(operand: Operand, *spans: Span) -> tuple[Operand, I64, I64, I64]:
    """Return the operand with merged dimensions, and rectangles of it: ``range``, ``start``, ``stop``.

    Several spans multiply range by range: rectangle rows are the pairs of rectangles of equal range.
    """
    spanned_dims = [d for span in spans for d in span.dims]
    rest = tuple(d for d in range(len(operand.shape)) if d not in spanned_dims)
    count = len(spans[0].lo)
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    ranges = np.arange(count)
    start = stop = np.zeros((count, 0), np.int64)
    for span in spans:
        part = regions.coalesce(regions.permute(operand, span.dims))
        shape, strides = shape + part.shape, strides + part.strides
        source, low, high = regions.linear(part.shape, span.lo, span.hi)
        left, right = _pair(ranges, source, count)
        ranges = ranges[left]
        start = np.concatenate([start[left], low[right]], axis=1)
        stop = np.concatenate([stop[left], high[right]], axis=1)
    if rest:
        part = regions.coalesce(regions.permute(operand, rest))
        shape, strides = shape + part.shape, strides + part.strides
        ends = np.broadcast_to(np.array(part.shape), (len(start), len(part.shape)))
        start, stop = np.concatenate([start, 0 * ends], axis=1), np.concatenate([stop, ends], axis=1)
    return replace(operand, shape=shape, strides=strides), ranges, start, stop


def _pair(left: I64, right: I64, count: int) -> tuple[I64, I64]:
    """Row numbers of all pairs of ``left`` and ``right`` (sorted range ids below ``count``) with equal id."""
    every = np.arange(count)
    if np.array_equal(left, every) and np.array_equal(right, every):
        return every, every
    many = np.bincount(right, minlength=count)
    begin = np.cumsum(many) - many
    repeats = many[left]
    rows, turn = ragged(repeats)
    return rows, begin[left[rows]] + turn


def ranges(total: int, chunk: int, tiles: int | None = None) -> tuple[I64, I64, I64]:
    """``tile, lo, hi`` of consecutive chunks of ``total``; a grid-stride loop when ``tiles`` is fewer than chunks."""
    lo = np.arange(0, total, chunk, dtype=np.int64)
    tile = np.arange(len(lo))
    return tile if tiles is None else tile % tiles, lo, np.minimum(lo + chunk, total)


def cut(lo: I64, hi: I64, size: int) -> tuple[I64, I64, I64]:
    """Return ranges cut at multiples of ``size``: range id, begin and end of each piece."""
    count = np.maximum((hi - 1) // size - lo // size + 1, 0)
    which, turn = ragged(count)
    line = (lo // size)[which] + turn
    return which, np.maximum(lo[which], line * size), np.minimum(hi[which], (line + 1) * size)


def blocks(total: int, chunk: int) -> int:
    """Thread blocks that cover ``total`` with ``chunk`` each."""
    return -(-int(total) // int(chunk))


def grid_blocks(grid: tuple[int, int, int]) -> NDArray[np.int32]:
    """``[tiles, 3]`` coordinates of all thread blocks, x fastest, as the hardware dispatches them."""
    return grids.places(grid).astype(np.int32)


def scratch(slot: int, *shape: int, itemsize: int = 4) -> Part:
    """Contiguous workspace, shared by the kernels of a call by ``slot``; its ``ref`` is negative."""
    strides = tuple(int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape)))
    size = itemsize * int(np.prod(shape, dtype=np.int64))
    return Part(tuple(int(n) for n in shape), strides, "float32", itemsize, ref=-1 - slot, workspace=size)


def narrow(operand: Operand, dim: int, start: int, length: int, step: int = 1) -> Part:
    """Return every ``step``-th of the indices from ``start`` along ``dim``, ``length`` of them."""
    shape = (*operand.shape[:dim], length, *operand.shape[dim + 1 :])
    strides = (*operand.strides[:dim], operand.strides[dim] * step, *operand.strides[dim + 1 :])
    return part(operand, shape, strides, start * operand.strides[dim])


def select(operand: Operand, dim: int, index: int) -> Part:
    """Return the operand without ``dim``, at ``index`` of it."""
    return part(operand, _without(operand.shape, dim), _without(operand.strides, dim), index * operand.strides[dim])


def part(operand: Operand, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Part:
    """Return the operand's memory as another shape, ``offset`` elements on."""
    if isinstance(operand, Part):
        return replace(operand, shape=tuple(shape), strides=tuple(strides), begin=operand.begin + offset)
    fields = (operand.dtype, operand.itemsize, operand.alignment, operand.ref)
    return Part(tuple(shape), tuple(strides), *fields, begin=offset)


def is_contiguous(operand: Operand) -> bool:
    """Return whether elements lie back to back in row-major order."""
    flat = regions.coalesce(operand)
    return len(flat.shape) == 1 and (flat.strides[0] == 1 or flat.shape[0] == 1)


def memory_order(operands: Sequence[Operand]) -> tuple[int, ...]:
    """Return dimensions from the outermost to the innermost in memory, as TensorIterator sorts them.

    The first operand (the output) decides; where it has stride 0 or a size of 1, the next ones do.
    """

    def outwards(dim: int) -> tuple[int, ...]:
        return tuple(o.strides[dim] if o.shape[dim] > 1 else 0 for o in operands)

    return tuple(sorted(range(len(operands[0].shape)), key=lambda d: (*outwards(d), -d), reverse=True))


def rate_of(*operands: Operand) -> str:
    """Return the peak that element-wise arithmetic on these types runs at: half types compute in fp32."""
    return "fp64" if any(o.dtype in {"float64", "complex128"} for o in operands) else "fp32"


def _without(sizes: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return sizes[:dim] + sizes[dim + 1 :]


def binding(operand: Operand) -> Operand | Scratch:
    """Return what a slot holds for an operand: workspace for a view of it."""
    return Scratch(-1 - operand.ref, operand.workspace) if isinstance(operand, Part) and operand.workspace else operand


def _runs(operand: Operand, slot: int, mode: int, tile: NDArray[Any], element: NDArray[Any], run: int) -> Boxes:
    tile, element = (c.ravel() for c in np.broadcast_arrays(tile, element))
    order = np.lexsort((element, tile))
    tile, element = tile[order], element[order]
    if not len(tile):
        return Boxes.concat([])
    # A run joins the one before it in the same tile when it begins where that one ends, or earlier.
    joins = (tile[1:] == tile[:-1]) & (element[1:] <= element[:-1] + run)
    begin = np.flatnonzero(np.concatenate([[True], ~joins]))
    end = np.concatenate([begin[1:], [len(tile)]]) - 1
    length = element[end] + run - element[begin]
    return Boxes.of(
        tile=tile[begin], operand=slot, mode=mode,
        offset=element[begin] * operand.itemsize, length=length * operand.itemsize,
    )  # fmt: skip


__all__ = [
    "ATOMIC", "READ", "WRITE", "Part", "Sketch", "Span", "binding", "blocks", "cut", "grid_blocks", "is_contiguous",
    "memory_order",
    "narrow", "part", "ranges", "rate_of", "rectangles", "scratch", "select",
]  # fmt: skip
