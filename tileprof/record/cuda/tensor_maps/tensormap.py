"""Tensor maps: what a TMA load with given coordinates reads, and whether this GPU's maps are as we think.

Hopper's tensor map is opaque to CUDA's users, but 64 of its 128 bytes say everything. As 32-bit words:

    0,1    address
    2      bit 0 im2col · 4-6 dimensions - 1 · 7-10 element type · 11-12 interleave · 13-14 swizzle
    3-6    strides of dimensions 1 to 4, >> 4
    7      their bits 32 to 35, four each
    8-12   sizes - 1
    13     steps - 1, three bits each; bits 24-31: box size of dimension 0, - 1 (tiled)
    14     box sizes of dimensions 1 to 4, - 1, eight bits each (tiled)

`calibrate` encodes maps with the driver's own function and compares, so that another layout is refused, not misread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError

ELEMENT_BYTES: Final = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
"""Bytes per element by type: u8 u16 u32 i32 u64 i64 f16 f32 f32-ftz f64 bf16 tf32 tf32-ftz."""

FIRST_MAJOR: Final = 9
"""Hopper's compute capability: older GPUs have no tensor maps."""

SMALLEST: Final = 16
"""Least bytes of a row: hardware moves no less, so words that look like a smaller tensor are something else."""

WORDS: Final = 16

ADDRESS_BITS: Final = 48
"""Bits of a device address, as in the entries' keys; words that look like a higher one are something else."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A decoded tensor map; ``strides[0]`` is the element size, sizes and boxes are in elements, strides in bytes."""

    base: int
    element: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    im2col: bool
    shape_words: tuple[int, ...]
    """Everything but the address, to compare maps of different launches."""

    @property
    def bytes(self) -> int:
        """Return the bytes from the base to the end of the last element."""
        outer = zip(self.sizes[1:], self.strides[1:], strict=True)
        return self.sizes[0] * self.element + sum((size - 1) * stride for size, stride in outer)


def decode(words: NDArray[np.uint32], *, loaded: bool = False) -> TensorMap | None:
    """Return the map in 16 words; None when they cannot be one.

    ``loaded``: a kernel loads through it, so that it is one, of a narrow tensor or one that repeats (a stride of 0)
    anywhere, too. Results of cuBLAS's products repeat outside of their dimensions.
    """
    w = [int(x) for x in words]
    base = w[0] | w[1] << 32
    dims, type_ = (w[2] >> 4 & 7) + 1, w[2] >> 7 & 15
    if base == 0 or base % 16 or base >> ADDRESS_BITS or dims > 5 or type_ >= len(ELEMENT_BYTES):
        return None
    element = ELEMENT_BYTES[type_]
    strides = [element, *(((w[7] >> 4 * d & 15) << 32 | w[3 + d]) << 4 for d in range(dims - 1))]
    box = [(w[13] >> 24) + 1, *((w[14] >> 8 * d & 255) + 1 for d in range(dims - 1))]
    steps = [(w[13] >> 3 * d & 7) + 1 for d in range(dims)]
    sizes = [x + 1 for x in w[8 : 8 + dims]]
    if not loaded and (sizes[0] * element < SMALLEST or _repeats_within(sizes, strides)):
        return None
    return TensorMap(
        base, element, tuple(sizes), tuple(strides), tuple(box), tuple(steps), bool(w[2] & 1), tuple(w[2:WORDS])
    )


def _repeats_within(sizes: list[int], strides: list[int]) -> bool:
    """Return whether a tensor repeats anywhere but in dimensions outside of two or more that lie apart in memory."""
    outer = [(size, stride) for size, stride in zip(sizes[1:], strides[1:], strict=True) if size > 1]
    apart = [pair for pair in outer if pair[1]]
    if len(apart) == len(outer):
        return False
    end, ordered = sizes[0] * strides[0], bool(apart) and outer[: len(apart)] == apart
    for size, stride in apart:
        ordered &= stride >= end
        end += (size - 1) * stride
    return not ordered


@dataclass(frozen=True, slots=True)
class LoadBoxes:
    """The bytes that each of several loads through one map reads, as columns; ``load`` is its index. Levels as in the
    schema.
    """

    load: NDArray[np.int64]
    address: NDArray[np.int64]
    length: NDArray[np.int64]
    count: NDArray[np.int64]
    stride: NDArray[np.int64]


def whole(map_: TensorMap, loads: int) -> LoadBoxes:
    """Return loads that count as the whole tensor, a superset."""
    zero = np.zeros((loads, 2), np.int64)
    return LoadBoxes(np.arange(loads), np.full(loads, map_.base), np.full(loads, map_.bytes), zero + 1, zero)


def boxes(map_: TensorMap, coordinates: NDArray[np.int64]) -> LoadBoxes:
    """Return what tiled loads at ``coordinates`` ``[loads, 5]`` read, clipped to the tensor.

    ``count`` and ``stride`` are ``[boxes, 2]``, inner level first. A load whose box lies outside reads nothing. A
    tensor with more than two outer dimensions of more than one element gives several boxes a load.
    """
    dims = len(map_.sizes)
    at = coordinates[:, :dims]
    size, box = np.array(map_.sizes), np.array(map_.box)
    step, stride = np.array(map_.steps), np.array(map_.strides)
    # Elements at, at + step, ... below at + box; those below 0 or from size on are filled, not read.
    skipped = np.maximum(0, -(at // step))
    begin = at + skipped * step
    count = np.maximum(0, -(-(np.minimum(at + box, size) - begin) // step))
    keep = (count > 0).all(axis=1)
    load = np.flatnonzero(keep)
    begin, count = begin[keep], np.where(stride == 0, 1, count[keep])
    address = map_.base + begin @ stride
    if step[0] == 1:
        length, levels = count[:, 0] * map_.element, list(range(1, dims))
    else:
        length, levels = np.full(len(load), map_.element), list(range(dims))
    levels = [d for d in levels if len(load) and (count[:, d] > 1).any()]
    while len(levels) > 2:
        load, address, length, count = _unrolled(load, address, length, count, levels.pop(), step, stride)
    counts, strides = np.ones((len(load), 2), np.int64), np.zeros((len(load), 2), np.int64)
    for level, d in enumerate(levels):
        counts[:, level] = count[:, d]
        strides[:, level] = np.where(count[:, d] > 1, step[d] * stride[d], 0)
    return LoadBoxes(load, address, length, counts, strides)


def _unrolled(
    load: NDArray[np.int64],
    address: NDArray[np.int64],
    length: NDArray[np.int64],
    count: NDArray[np.int64],
    dimension: int,
    step: NDArray[np.int64],
    stride: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    times = count[:, dimension]
    _, index = ragged(times)
    addresses = np.repeat(address, times) + index * step[dimension] * stride[dimension]
    return np.repeat(load, times), addresses, np.repeat(length, times), np.repeat(count, times, axis=0)


def calibrate(driver: ctypes.CDLL) -> None:
    """Raise `UserError` unless this driver encodes tensor maps in the layout that `decode` reads."""
    in_a_context(driver, lambda: _compare(driver.cuTensorMapEncodeTiled))


def in_a_context(driver: ctypes.CDLL, action: Callable[[], None]) -> None:
    """Do something while the first GPU's context is this thread's.

    Raises `UserError` where the GPU gives no context.
    """
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    result = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if result != 0:
        raise UserError(f"No context on the GPU (cuDevicePrimaryCtxRetain: error {result}). `nvidia-smi` says more.")
    try:
        driver.cuCtxSetCurrent(context)
        action()
    finally:
        driver.cuCtxSetCurrent(None)
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _compare(encode: Callable[..., int]) -> None:
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    cases = [
        (6, 2, 0x7F0012345600, (1000, 77), (2048,), (64, 16), (1, 1)),
        (7, 3, 0x7F0012340000, (96, 50, 9), (384, 19200), (32, 8, 2), (1, 2, 1)),
        (9, 5, 0x7F0000000010, (64, 5, 6, 7, 8), (128, 640, 1 << 33, 1 << 34), (8, 1, 2, 3, 4), (1, 1, 1, 1, 1)),
    ]
    types = {6: 6, 7: 7, 9: 10}  # CU_TENSOR_MAP_DATA_TYPE to the element type of the map
    for type_, dims, base, sizes, strides, box, steps in cases:
        room = ctypes.create_string_buffer(128 + 64)
        at = (ctypes.addressof(room) + 63) // 64 * 64
        result = encode(
            ctypes.c_void_p(at), u32(type_), u32(dims), ctypes.c_void_p(base), (u64 * dims)(*sizes),
            (u64 * (dims - 1))(*strides), (u32 * dims)(*box), (u32 * dims)(*steps), 0, 0, 0, 0,
        )  # fmt: skip
        if result != 0:
            raise UserError(f"the driver does not encode a tensor map (cuTensorMapEncodeTiled: error {result})")
        decoded = decode(np.frombuffer(ctypes.string_at(at, 64), np.uint32))
        element = ELEMENT_BYTES[types[type_]]
        expected = (base, element, sizes, (element, *strides), box, steps, False)
        fields = decoded and (
            decoded.base,
            decoded.element,
            decoded.sizes,
            decoded.strides,
            decoded.box,
            decoded.steps,
            decoded.im2col,
        )
        if fields != expected:
            raise UserError(
                f"This GPU or driver lays out tensor maps differently than Hopper: {fields} was decoded from a map "
                f"made of {expected}. Record with `--passes blocks,time`, which need no tensor maps."
            )
