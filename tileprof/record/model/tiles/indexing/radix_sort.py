"""Sorting pairs of keys and numbers as CUB's ``DeviceRadixSort`` does it in one sweep per byte of the key.

Source: A. Adinets, D. Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs", arXiv:2206.01784; the
launches, their grids and sizes were harvested on an H200 (PyTorch 2.11, `tileprof.harvest.operators`): two fills,
histograms of all digits, their prefix sums (a block per digit), then per digit a fill of the look-back states and a
sweep. Up to `SINGLE_TILE` pairs one block sorts everything. Where a sweep puts a pair depends on all keys: where they
are unknown, or many, every block may write everywhere.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.model.tiles.elementwise.pointwise import memset, range_kernel
from tileprof.record.model.tiles.foundations.index_values import positions
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Part,
    Sketch,
    Span,
    blocks,
    part,
    ranges,
    scratch,
)

Keys = NDArray[np.uint64]
"""Keys as the sort compares them, in the order in which it reads them."""
SINGLE_TILE: Final = 2304
"""Pairs that one block of 256 threads sorts: between 1024, which it did, and 3073, which it did not."""
_DIGITS: Final = 256
_HISTOGRAM_BLOCKS: Final = {4: 16, 8: 7}
"""Blocks per SM, by bytes of a key."""
_SWEPT: Final = {4: 5376, 8: 4608}
"""Pairs of a block of 384 threads, by bytes of a key; numbers have 8 bytes."""
_MOST_KNOWN: Final = 1 << 19
"""Pairs whose places are followed; beyond, they take more memory than they are worth."""
SLOT: Final = 40
"""The first scratch slot that sorting takes; it takes ten."""


def sorted_keys(count: int) -> Part:
    """Return the workspace that holds sorted indices."""
    return scratch(SLOT, count, itemsize=8)


def sorted_places(count: int) -> Part:
    """Return the workspace that says where each of the sorted indices came from."""
    return scratch(SLOT + 1, count, itemsize=8)


def keys_of(values: NDArray[Any], *, descending: bool = False, floating: bool = False) -> Keys | None:
    """Return numbers as CUB compares them: unsigned, with their bits twiddled; None for other types.

    ``floating``: the integers are the bits of floating-point numbers.
    """
    flat = np.ascontiguousarray(values).ravel()
    floating |= flat.dtype.kind == "f"
    if flat.dtype.kind not in "iufb" or flat.dtype.itemsize > 8:
        return None
    bits = 8 * flat.dtype.itemsize
    keys = flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64)
    sign = np.uint64(1) << np.uint64(bits - 1)
    if floating:
        keys = np.where(keys & sign, ~keys, keys | sign)
    elif flat.dtype.kind == "i":
        keys ^= sign
    if descending:
        keys = ~keys
    return keys & np.uint64((1 << bits) - 1)


def sort_indices(
    indices: Operand, device: Device, *, bits: int = 64, values: NDArray[Any] | None = None
) -> list[Kernel]:
    """Sort indices, with their places: numbers counted up, then the sort of both (`sorted_keys`, `sorted_places`).
    ``values``: the indices, where they are known.
    """
    count = indices.numel
    places = scratch(SLOT + 2, count, itemsize=8)
    flat = part(indices, indices.shape, indices.strides)
    keys = None if values is None else keys_of(values)
    sort = sort_pairs(flat, places, sorted_keys(count), sorted_places(count), device, bits=bits, known=keys)
    return [range_kernel("arange", places), *sort]


def sort_pairs(
    keys: Operand, places: Operand, sorted_: Operand, order: Operand, device: Device, *, bits: int = 64,
    known: Keys | None = None,
) -> list[Kernel]:  # fmt: skip
    """Launches that sort ``keys`` into ``sorted_`` and ``places`` beside them into ``order``, by ``bits`` of a key.
    ``known``: the keys, see `keys_of`.
    """
    count = keys.numel
    if count <= SINGLE_TILE:
        one = Sketch(1)
        for operand, mode in ((keys, READ), (places, READ), (sorted_, WRITE), (order, WRITE)):
            one.whole(operand, mode)
        return [one.kernel("radix_sort_single_tile", threads=256, flops=count)]
    passes, size = blocks(bits, 8), keys.itemsize if keys.itemsize in _SWEPT else 4
    tiles = blocks(count, _SWEPT[size])
    counters, bins = scratch(SLOT + 3, passes), scratch(SLOT + 4, passes, _DIGITS)
    states = scratch(SLOT + 5, tiles, _DIGITS)
    histogram = Sketch(device.sms * _HISTOGRAM_BLOCKS[size])
    tile, lo, hi = ranges(count, 16 * 128, histogram.tiles)
    every = Span(tuple(range(len(keys.shape))), lo, hi)
    histogram.span(keys, READ, tile, every)
    known = known if count <= _MOST_KNOWN else None
    if known is not None:  # digits that a block does not meet are left alone
        digits = [_digit(known, turn) + turn * _DIGITS for turn in range(passes)]
        histogram.elements(bins, ATOMIC, np.tile(np.repeat(tile, hi - lo), passes), np.concatenate(digits))
    else:
        histogram.whole(bins, ATOMIC, np.unique(tile))  # blocks without keys add nothing
    sums = Sketch(passes)
    tile, lo, hi = ranges(passes, 1)
    for mode in (READ, WRITE):
        sums.span(bins, mode, tile, Span((0,), lo, hi))
    kernels = [
        memset(counters), memset(bins), histogram.kernel("radix_sort_histogram", threads=128, flops=count),
        sums.kernel("radix_sort_exclusive_sum", threads=256),
    ]  # fmt: skip
    spare = (scratch(SLOT + 6, count, itemsize=keys.itemsize), scratch(SLOT + 7, count, itemsize=8))
    source = (keys, places)
    tile, lo, hi = ranges(count, _SWEPT[size])
    block_of = np.repeat(tile, hi - lo)
    for turn in range(passes):
        target = (sorted_, order) if (passes - turn) % 2 else spare
        sweep = Sketch(tiles)
        for operand in source:
            sweep.span(operand, READ, tile, Span(tuple(range(len(operand.shape))), lo, hi))
        sweep.span(counters, ATOMIC, tile, Span((0,), 0 * lo + turn, 0 * lo + turn + 1))
        sweep.span(bins, READ, tile, Span((0,), 0 * lo + turn, 0 * lo + turn + 1))
        sweep.whole(states, ATOMIC)
        if known is not None:
            by_digit = np.argsort(_digit(known, turn), kind="stable")
            known = known[by_digit]
            for operand in target:
                sweep.elements(operand, WRITE, block_of[by_digit], positions(operand))
        else:
            for operand in target:
                sweep.whole(operand, WRITE)
        kernels += [memset(states), sweep.kernel("radix_sort_onesweep", threads=384, flops=count)]
        source = target
    return kernels


def _digit(keys: Keys, turn: int) -> I64:
    return (keys >> np.uint64(8 * turn) & np.uint64(_DIGITS - 1)).astype(np.int64)
