"""Sorting pairs of keys and numbers as CUB's ``DeviceRadixSort`` does it in one sweep per byte of the key.

Source: A. Adinets, D. Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs", arXiv:2206.01784; the
launches, their grids and sizes were harvested on an H200 (PyTorch 2.11, `tileprof.harvest.operators`): two fills,
histograms of all digits, their prefix sums (a block per digit), then per digit a fill of the look-back states and a
sweep. Up to `SINGLE_TILE` pairs one block sorts everything. Where a sweep puts a pair depends on all keys: with more
than one block every block may write everywhere.
"""

from __future__ import annotations

from typing import Final

from tileprof.devices import Device
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.model.tiles.elementwise.pointwise import memset, range_kernel
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

SINGLE_TILE: Final = 2304
"""Pairs that one block of 256 threads sorts: between 1024, which it did, and 3073, which it did not."""
_DIGITS: Final = 256
_HISTOGRAM_BLOCKS: Final = {4: 16, 8: 7}
"""Blocks per SM, by bytes of a key."""
_SWEPT: Final = {4: 5376, 8: 4608}
"""Pairs of a block of 384 threads, by bytes of a key; numbers have 8 bytes."""
SLOT: Final = 40
"""The first scratch slot that sorting takes; it takes ten."""


def sorted_keys(count: int) -> Part:
    """Return the workspace that holds sorted indices."""
    return scratch(SLOT, count, itemsize=8)


def sorted_places(count: int) -> Part:
    """Return the workspace that says where each of the sorted indices came from."""
    return scratch(SLOT + 1, count, itemsize=8)


def sort_indices(keys: Operand, device: Device, *, bits: int = 64) -> list[Kernel]:
    """Sort indices, with their places: numbers counted up, then the sort of both (`sorted_keys`, `sorted_places`)."""
    count = keys.numel
    places = scratch(SLOT + 2, count, itemsize=8)
    flat = part(keys, keys.shape, keys.strides)
    sort = sort_pairs(flat, places, sorted_keys(count), sorted_places(count), device, bits=bits)
    return [range_kernel("arange", places), *sort]


def sort_pairs(
    keys: Operand, places: Operand, sorted_: Operand, order: Operand, device: Device, *, bits: int = 64
) -> list[Kernel]:
    """Launches that sort ``keys`` into ``sorted_`` and ``places`` beside them into ``order``, by ``bits`` of a key."""
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
    histogram.whole(bins, ATOMIC)
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
    for turn in range(passes):
        target = (sorted_, order) if (passes - turn) % 2 else spare
        sweep = Sketch(tiles)
        tile, lo, hi = ranges(count, _SWEPT[size])
        for operand in source:
            sweep.span(operand, READ, tile, Span(tuple(range(len(operand.shape))), lo, hi))
        sweep.span(counters, ATOMIC, tile, Span((0,), 0 * lo + turn, 0 * lo + turn + 1))
        sweep.span(bins, READ, tile, Span((0,), 0 * lo + turn, 0 * lo + turn + 1))
        sweep.whole(states, ATOMIC)
        for operand in target:
            sweep.whole(operand, WRITE)
        kernels += [memset(states), sweep.kernel("radix_sort_onesweep", threads=384, flops=count)]
        source = target
    return kernels
