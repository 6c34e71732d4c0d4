"""Gradients of strided convolutions, whose stores are inferred from their loads, compared with every element by
hand.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.cuda.tensor_maps.encoded_maps import words_of
from tileprof.record.cuda.tensor_maps import strided, tensormap
from tileprof.record.cuda.tensor_maps.loads import Loads

OUT = 0x7F0000800000


class Gradient:
    """Return tiles of pixels by channels, each of one phase. ``takes`` says which tiles each block computes in turn."""

    def __init__(self, images, sides, steps, channels, tile, blocks, takes):
        self.images, (self.height, self.width), self.steps = images, sides, steps
        self.channels, self.tile = channels, tile
        total = images * self.height * self.width
        self.items = [
            (phase, p, c)
            for phase in range(steps[0] * steps[1])
            for p in range(0, total, tile[0])
            for c in range(0, channels, tile[1])
        ]
        self.block_of = [takes[n % len(takes)] % blocks for n in range(len(self.items))]
        depth = 32
        sizes = (depth, self.width, self.height, images)
        strides = np.cumprod(sizes[:-1]).tolist()
        words = words_of(sizes, strides, (0, 0), (0, 0), 16, tile[0], (1, 1, 1, 1))
        self.pixels = tensormap.decode(words, loaded=True)
        filters = (channels, 3, 3, depth)
        at = (1, *np.cumprod(filters[:-1]).tolist())
        self.weights = tensormap.TensorMap(
            0x7F0000400000, 1, filters, at, (tile[1], 1, 1, 16), (1,) * 4, im2col=False, shape_words=()
        )
        out = (channels, self.width * steps[1], self.height * steps[0], images)
        at = (1, *np.cumprod(out[:-1]).tolist())
        self.out = tensormap.TensorMap(
            OUT, 1, out, at, (tile[1], tile[0], 1, 1), (1, steps[1], steps[0], 1), im2col=True, shape_words=()
        )

    def loads(self, *, without=()):
        pixels, filters = {}, []
        for n, (phase, pixel, channel) in enumerate(self.items):
            if n in without:
                continue
            x, y, image = pixel % self.width, pixel // self.width % self.height, pixel // (self.width * self.height)
            for depth in (0, 16):
                pixels.setdefault(phase, []).append((self.block_of[n], depth, x, y, image, 0, 0))
                filters.append((self.block_of[n], channel, phase % 2, phase // 2, depth, 0, 0))
        loads = [self.columns(self.pixels, rows, 0x1000 + 64 * phase) for phase, rows in pixels.items()]
        return [*loads, self.columns(self.weights, filters, 0x2000)]

    @staticmethod
    def columns(map_, rows, identity):
        rows = np.array(rows, np.int64).reshape(-1, 7)
        return Loads(map_, rows[:, 0], rows[:, 1:6], np.zeros(len(rows), np.int64), rows[:, 6], identity=identity)

    def expected(self):
        """Return elements ``(image, row, column, channel)`` of each block: all phases, its positions by its
        channels.
        """
        positions, channels = {}, {}
        total = self.images * self.height * self.width
        for block, (_, pixel, channel) in zip(self.block_of, self.items, strict=True):
            positions.setdefault(block, set()).update(range(pixel, min(pixel + self.tile[0], total)))
            channels.setdefault(block, set()).update(range(channel, min(channel + self.tile[1], self.channels)))
        return {block: self.at_all_phases(positions[block], channels[block]) for block in positions}

    def at_all_phases(self, positions, channels):
        out = set()
        for position in positions:
            rest, j = divmod(position, self.width)
            image, i = divmod(rest, self.height)
            for a in range(self.steps[0]):
                for b in range(self.steps[1]):
                    out |= {(image, i * self.steps[0] + a, j * self.steps[1] + b, c) for c in channels}
        return out


def elements(boxes, out):
    actual = {}
    c, w, h, _ = out.sizes
    columns = (boxes.tile, boxes.address - OUT, boxes.length, *boxes.count.T, *boxes.stride.T)
    for tile, at, length, count_0, count_1, stride_0, stride_1 in zip(*(x.tolist() for x in columns), strict=True):
        for i in range(count_0):
            for j in range(count_1):
                for byte in range(at + i * stride_0 + j * stride_1, at + i * stride_0 + j * stride_1 + length):
                    rest, channel = divmod(byte, c)
                    rest, column = divmod(rest, w)
                    actual.setdefault(tile, set()).add((*divmod(rest, h), column, channel))
    return actual


@settings(max_examples=60, deadline=None)
@given(
    images=st.integers(1, 2),
    sides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    steps=st.sampled_from([(2, 2), (1, 2), (2, 1), (3, 2)]),
    channels=st.sampled_from([16, 32, 48]),
    tile=st.tuples(st.sampled_from([3, 4, 16]), st.sampled_from([16, 32])),
    blocks=st.integers(1, 6),
    takes=st.lists(st.integers(0, 5), min_size=1, max_size=24),
)
def test_a_tile_writes_its_positions_at_all_phases_by_its_channels(images, sides, steps, channels, tile, blocks, takes):
    gradient = Gradient(images, sides, steps, channels, tile, blocks, takes)
    boxes = strided.result(gradient.out, gradient.loads())
    assert boxes is not None
    assert elements(boxes, gradient.out) == gradient.expected()


@pytest.fixture
def gradient():
    return Gradient(2, (4, 4), (2, 2), 64, (16, 32), 3, [0, 1, 2, 1])


def test_no_store_is_inferred_if_a_phase_is_not_loaded(gradient):
    """A 1x1 convolution with a stride is such a case: any tile may write its zeros."""
    assert strided.result(gradient.out, gradient.loads()) is not None
    load_numbers = {n for n, (phase, *_) in enumerate(gradient.items) if phase == 3}
    assert strided.result(gradient.out, gradient.loads(without=load_numbers)) is None


def test_no_store_is_inferred_if_a_rectangle_of_one_phase_is_not_loaded(gradient):
    for item in (0, 5, len(gradient.items) - 1):
        assert strided.result(gradient.out, gradient.loads(without={item})) is None


def test_a_map_that_is_known_by_what_it_held_counts_for_no_phase(gradient):
    loads = gradient.loads()
    with_identity = [*loads[:3], replace(loads[3], identity=-5), *loads[4:]]
    assert strided.result(gradient.out, with_identity) is None
    also = [*loads, replace(loads[3], identity=-5)]
    assert strided.result(gradient.out, also) is not None


def test_no_store_to_other_tensors_is_inferred(gradient):
    loads = gradient.loads()
    assert strided.result(replace(gradient.out, steps=(1, 1, 1, 1)), loads) is None, "not strided"
    assert strided.result(replace(gradient.out, sizes=(64, 9, 8, 2)), loads) is None, "positions do not fill it"
    assert strided.result(replace(gradient.out, sizes=(32, 8, 8, 2)), loads) is None, "other channels"
    assert strided.result(replace(gradient.out, strides=(1, 64, 1024, 8192)), loads) is None, "gaps between rows"
    assert strided.result(gradient.out, [replace(load, decodable=False) for load in loads]) is None
    assert strided.result(gradient.out, loads[:-1]) is None, "no filters"


def test_no_store_is_inferred_for_strides_along_a_third_dimension():
    words = words_of((32, 2, 2, 2, 1), [32, 64, 128, 256], (0, 0, 0), (0, 0, 0), 16, 4, (1,) * 5)
    pixels = tensormap.decode(words, loaded=True)
    weights = tensormap.TensorMap(
        0x7F0000400000, 1, (16, 1, 1, 1, 32), (1, 16, 16, 16, 16), (16, 1, 1, 1, 32), (1,) * 5, im2col=False,
        shape_words=(),
    )  # fmt: skip
    rows = [(0, c, x, y, z, 0, 0) for z in (0, 1) for y in (0, 1) for x in (0,) for c in (0, 16)]
    loads = [Gradient.columns(pixels, [(*r[:4], r[4], 0, 0) for r in rows if r[2] == 0 and r[3] == 0], 64 * n)
             for n in range(8)]  # fmt: skip
    loads.append(Gradient.columns(weights, [(0, 0, 0, 0, 0, 0, 0)], 0x2000))
    for steps, sizes in (((2, 2, 2), (16, 4, 4, 4, 1)), ((2, 2, 1), (16, 4, 4, 2, 1))):
        at = (1, *np.cumprod(sizes[:-1]).tolist())
        out = tensormap.TensorMap(OUT, 1, sizes, at, sizes, (1, *steps, 1), im2col=True, shape_words=())
        actual = strided.result(out, loads[-1 - steps[0] * steps[1] * steps[2] :])
        assert (actual is None) == (steps[2] > 1)
