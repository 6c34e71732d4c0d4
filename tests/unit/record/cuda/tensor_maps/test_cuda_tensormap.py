"""What a tensor-map load reads, compared with element-by-element enumeration; other layouts are refused."""

import ctypes
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.errors import UserError
from tileprof.record.cuda.tensor_maps import tensormap

BASE = 0x7F0000001000


def words_of(type_, sizes, strides, box, steps, base=BASE, im2col=0):
    """Return the map's words, written from the layout in the module's docstring."""
    w = np.zeros(16, np.uint32)
    w[0], w[1] = base & 0xFFFFFFFF, base >> 32
    w[2] = im2col | len(sizes) - 1 << 4 | type_ << 7
    for d, stride in enumerate(strides):
        w[3 + d] = stride >> 4 & 0xFFFFFFFF
        w[7] |= np.uint32((stride >> 36 & 15) << 4 * d)
    for d, size in enumerate(sizes):
        w[8 + d] = size - 1
        w[13] |= np.uint32(steps[d] - 1 << 3 * d)
    w[13] |= np.uint32(box[0] - 1 << 24)
    for d in range(1, len(sizes)):
        w[14] |= np.uint32(box[d] - 1 << 8 * (d - 1))
    return w


def read_by(map_, at):
    """Return the bytes of the elements at + i*step < at + box that lie in the tensor."""
    axes = [
        [c for c in range(a, a + b, s) if 0 <= c < n]
        for a, b, s, n in zip(at, map_.box, map_.steps, map_.sizes, strict=True)
    ]
    starts = [
        map_.base + sum(c * s for c, s in zip(place, map_.strides, strict=True)) for place in itertools.product(*axes)
    ]
    return {start + i for start in starts for i in range(map_.element)}


def bytes_of(boxes):
    out = []
    for i in range(len(boxes.address)):
        for a in range(boxes.count[i, 0]):
            for b in range(boxes.count[i, 1]):
                start = boxes.address[i] + a * boxes.stride[i, 0] + b * boxes.stride[i, 1]
                out += range(start, start + boxes.length[i])
    return out


@st.composite
def maps(draw):
    dims = draw(st.integers(1, 4))
    sizes = [draw(st.integers(16, 20)), *(draw(st.integers(1, 4)) for _ in range(dims - 1))]
    strides, total = [], -(-sizes[0] // 16) * 16
    for size in sizes[1:]:
        strides.append(total)
        total *= size
    box = [draw(st.integers(1, 8)) for _ in sizes]
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in sizes]
    at = [draw(st.integers(-5, size + 1)) for size in sizes]
    return words_of(0, sizes, strides, box, steps), at


@settings(max_examples=200)
@given(maps())
def test_a_load_reads_its_box_clipped_to_the_tensor_each_byte_once(case):
    words, at = case
    map_ = tensormap.decode(words)
    coordinates = np.array([at + [0] * (5 - len(at))], np.int64)
    actual = bytes_of(tensormap.boxes(map_, coordinates))
    assert len(actual) == len(set(actual))
    assert set(actual) == read_by(map_, at)


def test_a_load_that_is_not_decoded_stands_for_the_whole_tensor():
    map_ = tensormap.decode(words_of(7, (8, 5, 4), (32, 160), (8, 1, 1), (1, 1, 1), im2col=1))
    boxes = tensormap.whole(map_, 2)
    assert boxes.address.tolist() == [BASE] * 2
    assert boxes.length.tolist() == [map_.bytes] * 2 == [5 * 4 * 32] * 2


def test_a_batch_dimension_of_one_may_have_no_stride():
    assert tensormap.decode(words_of(10, (768, 128, 1), (1536, 0), (64, 32, 1), (1, 1, 1))).sizes == (768, 128, 1)


@pytest.mark.parametrize(
    "words",
    [
        np.zeros(16, np.uint32),
        words_of(7, (32, 4), (0,), (8, 2), (1, 1)),  # rows on top of each other
        words_of(0, (8,), (), (8,), (1,)),  # smaller than the hardware's smallest transfer
        words_of(7, (32,), (), (8,), (1,), base=BASE + 4),  # not aligned
        words_of(15, (32,), (), (8,), (1,)),  # no such element
    ],
)
def test_words_that_cannot_be_a_map_are_none(words):
    assert tensormap.decode(words) is None


def encoder(change=lambda words: words):
    """Return a fake cuTensorMapEncodeTiled with this layout, or another."""
    types = {6: 6, 7: 7, 9: 10}

    def encode(to, type_, dims, base, sizes, strides, box, steps, *_):
        words = words_of(types[type_.value], list(sizes), list(strides), list(box), list(steps), base=base.value)
        ctypes.memmove(to, change(words).tobytes(), 64)
        return 0

    return encode


def test_calibration_accepts_this_layout_and_refuses_any_other():
    tensormap._compare(encoder())
    with pytest.raises(UserError, match="lays out tensor maps differently than Hopper"):
        tensormap._compare(encoder(lambda words: np.roll(words, 1)))
    with pytest.raises(UserError, match="error 1"):
        tensormap._compare(lambda *_: 1)


def test_bytes_of_a_map_reach_to_the_last_element():
    map_ = tensormap.decode(words_of(7, (100, 72), (400,), (32, 16), (1, 1)))
    assert map_.bytes == 100 * 72 * 4 == math.prod(map_.sizes) * map_.element


def test_each_byte_of_a_tensor_that_repeats_is_read_once():
    map_ = tensormap.decode(words_of(7, (32, 4, 3), (128, 0), (8, 2, 2), (1, 1, 1)), loaded=True)
    box_bytes = bytes_of(tensormap.boxes(map_, np.array([[8, 1, 0, 0, 0], [8, 1, 2, 0, 0]], np.int64)[:1]))
    assert sorted(box_bytes) == [BASE + row * 128 + 32 + byte for row in (1, 2) for byte in range(32)]
    beyond = tensormap.boxes(map_, np.array([[8, 1, 3, 0, 0]], np.int64))
    assert not len(beyond.load)


@pytest.mark.parametrize(
    ("sizes", "strides", "is_map"),
    [
        ((1000, 2, 1, 1 << 31), (4000, 0, 0), True),  # a result of cuBLAS's, with a dimension that it does not use
        ((196, 256, 2, 1 << 31), (784, 200704, 0), True),
        ((1000, 2, 3, 4), (4000, 0, 0), True),
        ((32, 3), (0,), False),  # nothing but a row
        ((32, 4, 3), (0, 128), False),
        ((32, 4, 3, 5), (64, 4096, 0), False),  # rows overlap
    ],
)
def test_what_no_kernel_loads_through_is_a_map_if_a_matrix_repeats_as_a_whole(sizes, strides, is_map):
    words = words_of(7, sizes, strides, (8,) + (1,) * (len(sizes) - 1), (1,) * len(sizes))
    map_ = tensormap.decode(words)
    assert (map_ is not None) == is_map
    assert tensormap.decode(words, loaded=True) is not None
    matrix = sum((size - 1) * stride for size, stride in zip(sizes[1:], strides, strict=True)) + sizes[0] * 4
    assert not is_map or map_.bytes == matrix
