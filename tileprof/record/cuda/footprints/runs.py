"""Bit masks to runs of bytes, runs to strided boxes: pure arithmetic on columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.boxes import fold
from tileprof.arrays.ragged import ragged


@dataclass(frozen=True, slots=True)
class Runs:
    """Contiguous bytes ``[start, end)`` that a tile touches, first at ``first`` (ns); sorted by tile and start."""

    tile: I64
    start: I64
    end: I64
    first: I64

    def __len__(self) -> int:
        return len(self.tile)


def from_masks(tile: I64, window: I64, mask: NDArray[np.uint32], first: I64, granule: int) -> Runs:
    """Return runs of the granules whose bits are set: bit i of a mask is granule ``32 * window + i`` of the address
    space.

    Rows of the same tile and window are united. Runs continue across windows.
    """
    has_bits = mask != 0
    tile, window, mask, first = tile[has_bits], window[has_bits], mask[has_bits], first[has_bits]
    if not len(tile):
        return Runs(tile, window, window, first)
    order = np.lexsort((window, tile))
    tile, window, mask, first = tile[order], window[order], mask[order], first[order]
    new = np.flatnonzero(np.append(True, (tile[1:] != tile[:-1]) | (window[1:] != window[:-1])))
    tile, window = tile[new], window[new]
    mask, first = np.bitwise_or.reduceat(mask, new), np.minimum.reduceat(first, new)

    bits = np.unpackbits(mask.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little").astype(bool)
    follows = np.append(False, (tile[1:] == tile[:-1]) & (window[1:] == window[:-1] + 1))
    before = np.empty_like(bits)
    before[:, 1:] = bits[:, :-1]
    before[0, 0] = False
    before[1:, 0] = bits[:-1, 31] & follows[1:]
    after = np.empty_like(bits)
    after[:, :-1] = bits[:, 1:]
    after[-1, -1] = False
    after[:-1, 31] = bits[1:, 0] & follows[1:]
    row, column = np.nonzero(bits & ~before)
    last_row, last_column = np.nonzero(bits & ~after)
    start = (window[row] * 32 + column) * granule
    end = (window[last_row] * 32 + last_column + 1) * granule
    # The earliest of the rows that a run covers; reduceat takes [row, last_row + 1) at the even places.
    edges = np.minimum(np.stack([row, last_row + 1], axis=1).ravel(), len(first) - 1)
    earliest = np.minimum.reduceat(first, edges)[::2]
    earliest = np.minimum(earliest, first[last_row])
    return Runs(tile[row], start, end, earliest)


def cut(runs: Runs, edges: I64) -> Runs:
    """Return the same bytes, with runs cut at the sorted addresses ``edges``."""
    lowest = np.searchsorted(edges, runs.start, side="right")
    highest = np.searchsorted(edges, runs.end, side="left")
    pieces = highest - lowest + 1
    if (pieces == 1).all():
        return runs
    row, index = ragged(pieces)
    edge = lowest[row] + index
    start = np.where(index == 0, runs.start[row], edges[np.maximum(edge - 1, 0)])
    end = np.where(index == pieces[row] - 1, runs.end[row], edges[np.minimum(edge, len(edges) - 1)])
    return Runs(runs.tile[row], start, end, runs.first[row])


@dataclass(frozen=True, slots=True)
class Strided:
    """Strided boxes at absolute addresses; ``count`` and ``stride`` are ``[boxes, 2]``, inner level first."""

    tile: I64
    address: I64
    length: I64
    count: I64
    stride: I64
    first: I64

    def __len__(self) -> int:
        return len(self.tile)


def boxes(runs: Runs, group: I64 | None = None) -> Strided:
    """Return the same bytes as few strided boxes, exactly.

    Runs of different ``group`` (a buffer, say) do not share a box.
    """
    group = np.zeros(len(runs), np.int64) if group is None else group
    ones, zeros = np.ones(len(runs), np.int64), np.zeros(len(runs), np.int64)
    shape = np.stack([runs.tile, group, runs.end - runs.start, ones, zeros, ones, zeros], axis=1)
    start, first = runs.start, runs.first
    for level in (0, 1):
        head, count, stride = fold(start, *shape.T)
        if len(head):
            first = np.minimum.reduceat(first, head)
        start, shape = start[head], shape[head]
        shape[:, 3 + 2 * level] = count
        shape[:, 4 + 2 * level] = stride
    return Strided(shape[:, 0], start, shape[:, 2], shape[:, [3, 5]], shape[:, [4, 6]], first)
