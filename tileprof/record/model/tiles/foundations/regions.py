"""Turns rectangles of a tensor into strided boxes of bytes: the geometry that every tile model stands on.

A tile model says which rectangle ``start <= index < stop`` of an operand each tile touches; `boxes` turns
all rectangles of a launch into rows of `Boxes` at once. The bytes of the rows are exactly the bytes of the
rectangle, whatever the strides (transposed, sliced, broadcast with stride 0, overlapping)::

    operand 4 x 6 (row-major, 4 bytes)      rectangle [1:3, 2:5]      one row: offset 32, length 12,
                                                                      count_0 2, stride_0 24

Dimensions that lie back to back merge into one run; what still has more than a run and two strides becomes
several rows. `linear` cuts ranges of a flattened iteration space, the way a pointwise kernel sees a
tensor, into rectangles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged, spans
from tileprof.trace.footprint import Boxes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.record.model.tile_model import Operand

_LEVELS = 3
"""A row of `Boxes` holds a run and two strides."""


def boxes(
    operand: Operand,
    slot: int,
    mode: int,
    tile: ArrayLike,
    start: ArrayLike,
    stop: ArrayLike,
    *,
    step: Sequence[int] | None = None,
    first: ArrayLike = np.nan,
    last: ArrayLike = np.nan,
) -> Boxes:
    """Return rows whose union is, per region, exactly the bytes of ``operand[start:stop:step]``.

    ``tile``, ``first`` and ``last`` are ``[regions]`` or scalars; ``start`` and ``stop`` ``[regions, dims]`` or
    ``[dims]``, in elements, within the operand's shape; ``step`` is one positive step a dimension. ``slot`` and
    ``mode`` are those of `Boxes`. A tile may have any number of regions, empty ones vanish. Regions of dimensions merge
    where the bytes allow it, so a row may read bytes of stride-0 dimensions once that the kernel reads often.
    """
    rank = len(operand.shape)
    begin, end = _corners(start), _corners(stop)
    regions = max(len(begin), len(end), np.size(tile), np.size(first), np.size(last))
    steps = np.ones(rank, np.int64) if step is None else np.asarray(step, np.int64)
    extent = np.broadcast_to(-((begin - end) // steps), (regions, rank))
    offset = np.broadcast_to(begin @ _strides(operand), regions)
    columns = [np.broadcast_to(np.asarray(c), regions) for c in (tile, first, last)]
    alive = (extent > 0).all(axis=1)
    if not alive.all():
        extent, offset = extent[alive], offset[alive]
        columns = [c[alive] for c in columns]
    counts, strides = _merge(operand, extent, _strides(operand) * steps)
    row, offset, counts, strides = _unroll(offset, counts, strides)
    tile, first, last = (c if row is None else c[row] for c in columns)
    return Boxes.of(
        tile=tile, operand=slot, mode=mode, offset=offset, length=counts[:, 0],
        count_0=counts[:, 1], stride_0=strides[:, 1], count_1=counts[:, 2], stride_1=strides[:, 2],
        first=first, last=last,
    )  # fmt: skip


def whole(
    operand: Operand, slot: int, mode: int, tile: ArrayLike, *, first: ArrayLike = np.nan, last: ArrayLike = np.nan
) -> Boxes:
    """Return the whole operand, for each of ``tile``."""
    rank = len(operand.shape)
    return boxes(operand, slot, mode, tile, np.zeros(rank, np.int64), operand.shape, first=first, last=last)


def linear(shape: Sequence[int], lo: ArrayLike, hi: ArrayLike) -> tuple[I64, I64, I64]:
    """Cut ranges ``[lo, hi)`` of the row-major flattened ``shape`` (one dimension or more) into disjoint rectangles.

    ``lo`` and ``hi`` are ``[ranges]``. Returns ``range`` ``[rectangles]`` (which range it is a part of) and ``start``
    and ``stop`` ``[rectangles, dims]``; at most ``2 * dims - 1`` rectangles a range. Empty ranges have none.
    """
    rank = len(shape)
    lo, hi = (np.atleast_1d(np.asarray(x, np.int64)) for x in (lo, hi))
    pending = [(np.arange(len(lo)), np.zeros((len(lo), rank), np.int64), lo, hi)]
    slabs: list[tuple[I64, I64, I64]] = []
    for dim in range(rank):
        inner = max(int(np.prod(shape[dim + 1 :], dtype=np.int64)), 1)
        following = []
        for source, corner, low, high in pending:
            slab, slab_end = low // inner, high // inner
            whole_from = -(-low // inner)
            within = slab == slab_end
            head = ~within & (low > slab * inner)
            tail = ~within & (high > slab_end * inner)
            middle = ~within & (whole_from < slab_end)
            slabs.append(_slabs(source, corner, shape, dim, whole_from, slab_end, middle))
            for chosen, at, a, b in (
                (within & (low < high), slab, low - slab * inner, high - slab * inner),
                (head, slab, low - slab * inner, np.full_like(low, inner)),
                (tail, slab_end, np.zeros_like(low), high - slab_end * inner),
            ):
                if chosen.any():
                    fixed = corner[chosen].copy()
                    fixed[:, dim] = at[chosen]
                    following.append((source[chosen], fixed, a[chosen], b[chosen]))
        pending = following
    source, start, stop = (np.concatenate(column) for column in zip(*slabs, strict=True))
    order = np.argsort(source, kind="stable")
    return source[order], start[order], stop[order]


def linear_boxes(
    operand: Operand,
    slot: int,
    mode: int,
    tile: ArrayLike,
    lo: ArrayLike,
    hi: ArrayLike,
    *,
    first: ArrayLike = np.nan,
    last: ArrayLike = np.nan,
) -> Boxes:
    """Return elements ``lo`` to ``hi`` of the operand in row-major order of its own (expanded) shape, per tile.

    ``tile``, ``lo``, ``hi``, ``first``, ``last`` are ``[ranges]`` or scalars. Give the operand as the kernel iterates
    it: `expand` for broadcasting, `permute` for an iteration order other than the tensor's.
    """
    tile, low, high, begin, end = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(c)) for c in (tile, lo, hi, first, last))
    )
    flat = coalesce(operand)
    source, start, stop = linear(flat.shape, low, high)
    return boxes(flat, slot, mode, tile[source], start, stop, first=begin[source], last=end[source])


def expand(operand: Operand, shape: Sequence[int]) -> Operand:
    """Return the operand broadcast to ``shape``, as ``torch.Tensor.expand`` does: stride 0 where it repeats."""
    missing = len(shape) - len(operand.shape)
    own = (1,) * missing + operand.shape
    strides = (0,) * missing + operand.strides
    if any(have not in (1, want) for have, want in zip(own, shape, strict=True)):
        raise ValueError(f"shape {operand.shape} does not broadcast to {tuple(shape)}")
    repeated = (0 if have != want else s for have, want, s in zip(own, shape, strides, strict=True))
    return replace(operand, shape=tuple(shape), strides=tuple(repeated))


def permute(operand: Operand, dims: Sequence[int]) -> Operand:
    """Return the operand with its dimensions in the order ``dims``."""
    return replace(
        operand, shape=tuple(operand.shape[d] for d in dims), strides=tuple(operand.strides[d] for d in dims)
    )


def coalesce(operand: Operand) -> Operand:
    """Return the same elements in the same row-major order with as few dimensions as possible (at least one)."""
    shape, strides = [1], [0]
    for size, stride in zip(operand.shape, operand.strides, strict=True):
        if size == 1:
            continue
        if shape[-1] == 1 or strides[-1] == stride * size:
            shape[-1] *= size
            strides[-1] = stride
        else:
            shape.append(size)
            strides.append(stride)
    return replace(operand, shape=tuple(shape), strides=tuple(strides))


def repeat(unique: Boxes, pick: ArrayLike, tile: ArrayLike) -> Boxes:
    """Return for each pair of ``pick`` and ``tile`` the rows that ``unique`` has under tile number ``pick``, now of
    ``tile``.

    Rows of ``unique`` are sorted by tile. For launches whose tiles share regions: model each region once.
    """
    pick, tile = np.asarray(pick, np.int64), np.asarray(tile)
    begin = np.searchsorted(unique.tile, pick, side="left")
    count = np.searchsorted(unique.tile, pick, side="right") - begin
    rows = spans(begin, count)
    columns = {name: getattr(unique, name)[rows] for name in Boxes.__slots__}
    return Boxes(**columns | {"tile": np.repeat(tile, count).astype(np.int32)})


def by_tile(unsorted: Boxes) -> Boxes:
    """Return the same rows, sorted by tile; rows of a tile keep their order."""
    order = np.argsort(unsorted.tile, kind="stable")
    return Boxes(**{name: getattr(unsorted, name)[order] for name in Boxes.__slots__})


def _corners(corner: ArrayLike) -> I64:
    corners = np.asarray(corner, np.int64)
    return corners[None] if corners.ndim == 1 else corners


def _strides(operand: Operand) -> I64:
    return np.asarray(operand.strides, np.int64) * operand.itemsize


def _slabs(
    source: I64, corner: I64, shape: Sequence[int], dim: int, begin: I64, end: I64, chosen: NDArray[np.bool_]
) -> tuple[I64, I64, I64]:
    """Return the rectangles ``[begin, end)`` along ``dim``, whole in every later dimension, fixed in every earlier
    one.
    """
    start = corner[chosen].copy()
    stop = start + 1
    start[:, dim], stop[:, dim] = begin[chosen], end[chosen]
    start[:, dim + 1 :], stop[:, dim + 1 :] = 0, shape[dim + 1 :]
    return source[chosen], start, stop


def _merge(operand: Operand, extent: I64, strides: I64) -> tuple[I64, I64]:
    """Levels of nested repetition, from the run of bytes outwards: ``counts`` and ``strides`` ``[regions, levels]``.

    Dimensions come by rising stride; one joins the level below it when its copies of that level touch or
    overlap, which holds per region, since edge tiles have other extents.
    """
    regions = len(extent)
    counts = np.ones((regions, max(len(operand.shape) + 1, _LEVELS)), np.int64)
    steps = np.zeros_like(counts)
    counts[:, 0], steps[:, 0] = operand.itemsize, 1
    top = np.zeros(regions, np.int64)
    row = np.arange(regions)
    for dim in np.argsort(strides, kind="stable"):
        n, stride = extent[:, dim], strides[dim]
        count, step = counts[row, top], steps[row, top]
        joins = (stride % step == 0) & (stride <= step * count) | (n == 1)
        counts[row, top] = np.where(joins, count + (n - 1) * (stride // step), count)
        top = top + ~joins
        counts[row, top] = np.where(joins, counts[row, top], n)
        steps[row, top] = np.where(joins, steps[row, top], stride)
    return counts, steps


def _unroll(offset: I64, counts: I64, strides: I64) -> tuple[I64 | None, I64, I64, I64]:
    """Enumerate the levels beyond three, smallest counts first; ``row`` names the region of each row (None: one
    each).
    """
    excess = (counts[:, _LEVELS:] > 1).any(axis=1)
    if not excess.any():
        return None, offset, counts, strides
    row = np.arange(len(offset))
    outer = counts.shape[1] - 1
    order = np.concatenate(
        [np.zeros((len(row), 1), np.int64), 1 + np.argsort(-counts[:, 1:], axis=1, kind="stable")], axis=1
    )
    keep = np.sort(order[:, 1:_LEVELS], axis=1)
    order[:, 1:_LEVELS] = keep
    counts, strides = np.take_along_axis(counts, order, 1), np.take_along_axis(strides, order, 1)
    for level in range(_LEVELS, outer + 1):
        n = counts[:, level]
        again, turn = ragged(n)
        offset = offset[again] + turn * strides[again, level]
        row, counts, strides = row[again], counts[again], strides[again]
    return row, offset, counts, strides
