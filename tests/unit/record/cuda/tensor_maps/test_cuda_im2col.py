"""Loads in im2col mode, compared with a walk pixel by pixel as in the PTX manual."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.cuda.tensor_maps.encoded_maps import BASE, words_of
from tileprof.errors import UserError
from tileprof.record.cuda.tensor_maps import im2col, tensormap


def walk(sizes, strides, lower, upper, channels, pixels, steps, at, offsets):
    """Return the bytes read, by moving one pixel at a time."""
    spatial = len(sizes) - 2
    first, last = lower, [size - 1 + u for size, u in zip(sizes[1:-1], upper, strict=True)]
    where, image, out = list(at[1:-1]), at[-1], set()
    for _ in range(pixels):
        pixel = [p + o for p, o in zip(where, offsets, strict=True)]
        if image < sizes[-1] and all(0 <= p < size for p, size in zip(pixel, sizes[1:-1], strict=True)):
            row = BASE + sum(p * s for p, s in zip([*pixel, image], strides, strict=True))
            out |= {row + c for c in range(max(at[0], 0), min(at[0] + channels, sizes[0]))}
        for d in range(spatial):
            where[d] += steps[1 + d]
            if where[d] <= last[d]:
                break
            where[d] = first[d]
        else:
            image += 1
    return out


@st.composite
def loads(draw):
    spatial = draw(st.integers(1, 3))
    sizes = [16 * draw(st.integers(1, 2)), *(draw(st.integers(2, 5)) for _ in range(spatial)), draw(st.integers(1, 3))]
    strides, run = [], sizes[0]
    for size in sizes[1:]:
        strides.append(run)
        run *= size
    steps = [1, *(draw(st.integers(1, 2)) for _ in range(spatial)), 1]
    taps = [draw(st.integers(1, 3)) for _ in range(spatial)]
    pads = [draw(st.integers(0, 1)) for _ in range(spatial)]
    lower, upper = [-p for p in pads], [p - (t - 1) for p, t in zip(pads, taps, strict=True)]
    positions = [
        max(0, -(-(n - 1 + u - low + 1) // s))
        for n, low, u, s in zip(sizes[1:-1], lower, upper, steps[1:-1], strict=True)
    ]
    if not all(positions):
        lower, upper, positions = (
            [0] * spatial,
            [0] * spatial,
            [-(-n // s) for n, s in zip(sizes[1:-1], steps[1:-1], strict=True)],
        )
        taps = [1] * spatial
    at = [16 * draw(st.integers(0, 1))]
    at += [low + s * draw(st.integers(0, n - 1)) for low, s, n in zip(lower, steps[1:-1], positions, strict=True)]
    at.append(draw(st.integers(0, sizes[-1] - 1)))
    offsets = [draw(st.integers(0, t - 1)) for t in taps]
    return (sizes, strides, lower, upper, draw(st.integers(1, 32)), draw(st.integers(1, 40)), steps), at, offsets


@settings(max_examples=200, deadline=None)
@given(loads())
def test_a_load_reads_what_a_walk_pixel_by_pixel_reads_each_byte_once(case):
    shape, at, offsets = case
    map_ = tensormap.decode(words_of(*shape))
    assert map_ is not None
    assert map_.im2col
    bits = {3: 16, 4: 8, 5: 5}[len(at)]
    packed = np.array([sum(o << bits * d for d, o in enumerate(offsets))])
    actual = im2col.boxes(map_, np.array([at + [0] * (5 - len(at))], np.int64), packed)
    observed_value = [
        int(address + i * stride + j)
        for address, length, count, stride in zip(
            actual.address, actual.length, actual.count[:, 0], actual.stride[:, 0], strict=True
        )
        for i in range(int(count))
        for j in range(int(length))
    ]
    assert len(observed_value) == len(set(observed_value))
    assert set(observed_value) == walk(*shape, at, offsets)


@pytest.mark.parametrize("right", [True, False])
def test_a_driver_that_lays_maps_out_otherwise_is_refused(right):
    def encode(at, type_, rank, address, sizes, strides, lower, upper, channels, pixels, steps, *_):
        words = words_of(
            list(sizes), list(strides), list(lower), list(upper), channels.value, pixels.value, list(steps)
        )
        words[2] |= type_.value << 7
        words[0], words[1] = address.value & 0xFFFFFFFF, address.value >> 32
        if not right:
            words[14] = (int(words[14]) >> 16 | int(words[14]) << 16) & 0xFFFFFFFF
        ctypes.memmove(at.value, words.tobytes(), 64)
        return 0

    if right:
        im2col._compare(encode)
    else:
        with pytest.raises(UserError, match="lays out maps in im2col mode differently"):
            im2col._compare(encode)
