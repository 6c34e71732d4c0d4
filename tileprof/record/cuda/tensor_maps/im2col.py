"""The bytes that a tensor-map load in im2col mode reads: runs of channels at pixels that walk a bounding box.

A map in this mode has dimensions (c, w, h, d, n), c fastest; three to five of them. In place of box sizes it holds::

    word 13   bits 24-31  channels a pixel - 1
    word 14   0-15 lower corner, 16-31 upper corner of the bounding box: one to three signed numbers of 16, 8 or 5 bits,
    w first word 15   0-9         pixels a load - 1

Pixels lie in the box from the lower corner to the last pixel plus the upper corner, in each of w, h, d; a load begins
at its coordinates and takes that number of pixels, w fastest, by the steps of the map, into the next image where it
reaches the last. Each reads its channels at the pixel plus the load's own offsets; outside the tensor nothing is read.

Source: the layout as NVIDIA publishes it in TensorRT-LLM (Apache-2.0, tmaDescriptor.h), the walk as in the PTX manual,
section on im2col mode. Both were checked on an H200 (driver 580): ten maps of three to five dimensions, 88 loads with
steps, paddings and ragged ends, each byte for byte what the hardware fetched (tests/gpu/recorder/test_gpu_im2col.py).
Where `calibrate` finds another layout, such a load counts as its whole tensor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError
from tileprof.record.cuda.tensor_maps import tensormap
from tileprof.record.cuda.tensor_maps.tensormap import LoadBoxes, TensorMap

_CORNER_BITS: Final = {3: 16, 4: 8, 5: 5}
"""Bits of one number of a corner, and of a load's offsets, by dimensions."""
_CORNERS, _CHANNELS, _PIXELS = 12, 11, 13
"""Places of words 14, 13 and 15 in ``TensorMap.shape_words``, which begin at word 2."""


@dataclass(frozen=True, slots=True)
class Window:
    """The bounding box: first pixel and number of positions along w, h, d (``[spatial]``), channels and pixels a
    load.
    """

    first: I64
    positions: I64
    channels: int
    pixels: int


def window(map_: TensorMap) -> Window:
    """Return the window of a map in im2col mode."""
    dims = len(map_.sizes)
    bits, spatial = _CORNER_BITS[dims], dims - 2
    corners = map_.shape_words[_CORNERS]
    lower, upper = (_signed(corners >> shift & 0xFFFF, bits, spatial) for shift in (0, 16))
    size, step = np.array(map_.sizes[1:-1]), np.array(map_.steps[1:-1])
    positions = np.maximum(0, -(-(size - 1 + upper - lower + 1) // step))
    channels, pixels = (map_.shape_words[_CHANNELS] >> 24) + 1, (map_.shape_words[_PIXELS] & 0x3FF) + 1
    return Window(lower, positions, channels, pixels)


def pixels(map_: TensorMap, coordinates: I64) -> tuple[I64, I64]:
    """Return ``[begin, end)`` of the pixels of each load, numbered through the bounding boxes of all images."""
    box = window(map_)
    begin = _linear(coordinates, box, np.array(map_.steps[1:-1]), len(map_.sizes))
    return begin, begin + box.pixels


def boxes(map_: TensorMap, coordinates: I64, offsets: I64) -> LoadBoxes:
    """Return what loads at ``coordinates`` ``[loads, 5]`` with packed ``offsets`` ``[loads]`` read, one box per row of
    pixels.
    """
    box, dims = window(map_), len(map_.sizes)
    step = np.array(map_.steps[1:-1])
    own = np.stack([offsets >> _CORNER_BITS[dims] * d & (1 << _CORNER_BITS[dims]) - 1 for d in range(dims - 2)], axis=1)
    begin = _linear(coordinates, box, step, dims)
    load, start, stop = _rows(begin, begin + box.pixels, int(box.positions[0]))
    row = start // box.positions[0]
    at = [start % box.positions[0]]  # positions along w, h, d, then the image
    for count in box.positions[1:].tolist():
        at.append(row % count)
        row = row // count
    pixel = np.stack([box.first[d] + at[d] * step[d] + own[load, d] for d in range(dims - 2)], axis=1)
    size = np.array(map_.sizes)
    inside = (row < size[-1]) & ((pixel[:, 1:] >= 0) & (pixel[:, 1:] < size[2:-1])).all(axis=1)
    # Along w a row may begin before the tensor and end behind it.
    skip = np.maximum(0, -(pixel[:, 0] // step[0]))
    count = np.minimum(stop - start, -(-(size[1] - pixel[:, 0]) // step[0])) - skip
    low = np.maximum(coordinates[load, 0], 0)
    length = np.minimum(coordinates[load, 0] + box.channels, size[0]) - low
    keep = inside & (count > 0) & (length > 0)
    stride = np.array(map_.strides)
    pixel[:, 0] += skip * step[0]
    address = map_.base + low * stride[0] + pixel @ stride[1:-1] + row * stride[-1]
    counts, strides = np.ones((len(load), 2), np.int64), np.zeros((len(load), 2), np.int64)
    counts[:, 0] = count
    strides[:, 0] = np.where(count > 1, step[0] * stride[1], 0)
    return LoadBoxes(load[keep], address[keep], (length * map_.element)[keep], counts[keep], strides[keep])


def calibrate(driver: ctypes.CDLL) -> None:
    """Raise `UserError` unless this driver encodes maps in im2col mode as `window` reads them."""
    tensormap.in_a_context(driver, lambda: _compare(driver.cuTensorMapEncodeIm2col))


def _compare(encode: Callable[..., int]) -> None:
    u32, u64, i32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32
    half = 6  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16, and the map's own number of the type
    cases = [
        ((64, 30, 20, 4), (128, 3840, 76800), (-1, -2), (1, -3), 64, 128, (1, 2, 1, 1)),
        ((32, 9, 8, 7, 2), (64, 576, 4608, 32256), (-1, -2, -3), (1, 0, -1), 32, 16, (1, 1, 1, 1, 1)),
    ]
    for sizes, strides, lower, upper, channels, pixels, steps in cases:
        room = ctypes.create_string_buffer(128 + 64)
        at, dims = (ctypes.addressof(room) + 63) // 64 * 64, len(sizes)
        result = encode(
            ctypes.c_void_p(at), u32(half), u32(dims), ctypes.c_void_p(0x7F0012345600), (u64 * dims)(*sizes),
            (u64 * (dims - 1))(*strides), (i32 * (dims - 2))(*lower), (i32 * (dims - 2))(*upper), u32(channels),
            u32(pixels), (u32 * dims)(*steps), 0, 0, 0, 0,
        )  # fmt: skip
        if result != 0:
            raise UserError(f"the driver does not encode a map in im2col mode (error {result})")
        decoded = tensormap.decode(np.frombuffer(ctypes.string_at(at, 64), np.uint32))
        read = None if decoded is None or not decoded.im2col else window(decoded)
        first = None if read is None else (read.first.tolist(), read.channels, read.pixels)
        last = (
            None
            if read is None or decoded is None
            else (_signed(decoded.shape_words[_CORNERS] >> 16, _CORNER_BITS[dims], dims - 2).tolist())
        )
        if (first, last) != ((list(lower), channels, pixels), list(upper)):
            raise UserError(
                f"This GPU or driver lays out maps in im2col mode differently: corners, channels and pixels {first}, "
                f"{last} were read from a map made of {lower}, {upper}, {channels}, {pixels}. Such loads stand for "
                "their whole tensors."
            )


def _linear(coordinates: I64, box: Window, step: I64, dims: int) -> I64:
    """Return the number of each load's first pixel among all of the bounding boxes of all images."""
    number = coordinates[:, dims - 1]
    for d in range(dims - 3, -1, -1):
        number = number * box.positions[d] + (coordinates[:, 1 + d] - box.first[d]) // step[d]
    return np.asarray(number)


def _rows(begin: I64, end: I64, width: int) -> tuple[I64, I64, I64]:
    """Return ranges cut where a row of the bounding box ends: load, begin and end of each piece."""
    count = (end - 1) // width - begin // width + 1
    load, index = ragged(count)
    row = (begin // width)[load] + index
    return load, np.maximum(begin[load], row * width), np.minimum(end[load], (row + 1) * width)


def _signed(packed: int, bits: int, count: int) -> I64:
    values = np.array([packed >> bits * d & (1 << bits) - 1 for d in range(count)])
    return np.asarray(np.where(values >> bits - 1 == 1, values - (1 << bits), values), np.int64)
