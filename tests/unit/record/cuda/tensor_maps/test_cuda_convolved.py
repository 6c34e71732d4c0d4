"""Convolutions whose stores are inferred from their loads, compared with every element by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.cuda.tensor_maps.encoded_maps import words_of
from tileprof.record.cuda.tensor_maps import convolved, tensormap
from tileprof.record.cuda.tensor_maps.loads import Loads

OUT = 0x7F0000800000


def dense(base, sizes, box=None):
    """Return a dense tiled map of bytes."""
    strides = (1, *np.cumprod(sizes[:-1]).tolist())
    steps = (1,) * len(sizes)
    return tensormap.TensorMap(base, 1, tuple(sizes), strides, tuple(box or sizes), steps, im2col=False, shape_words=())


class Convolution:
    """Return a 3x3 convolution with padding: tiles of pixels by filters, channels in segments, cut among blocks."""

    def __init__(self, images, height, width, channels, filters, tile, segments, order):
        self.shape, self.filters, self.tile = (images, height, width), filters, tile
        total = images * height * width
        self.places = [
            (p, f, s) for p in range(0, total, tile[0]) for f in range(0, filters, tile[1]) for s in range(segments)
        ]
        self.places = [self.places[i] for i in order if i < len(self.places)]
        self.channels, self.step = channels, channels // segments
        sizes = (channels, width, height, images)
        strides = np.cumprod(sizes[:-1]).tolist()
        words = words_of(sizes, strides, (-1, -1), (-1, -1), 16, tile[0], (1, 1, 1, 1))
        self.pixels = tensormap.decode(words, loaded=True)
        self.weights = dense(0x7F0000400000, (channels, 3, 3, filters), (16, 1, 1, tile[1]))
        self.out = dense(OUT, (filters, width, height, images))

    def loads(self):
        pixels, filters = [], []
        for block, (pixel, filter_, segment) in enumerate(self.places):
            _, height, width = self.shape
            x, y, image = pixel % width, pixel // width % height, pixel // (width * height)
            for channel in range(segment * self.step, (segment + 1) * self.step, 16):
                for tap in range(9):
                    pixels.append((block, channel, x - 1, y - 1, image, 0, tap // 3 << 8 | tap % 3))
                    filters.append((block, channel, tap % 3, tap // 3, filter_, 0, 0))
        return [self.columns(m, rows) for m, rows in ((self.pixels, pixels), (self.weights, filters))]

    @staticmethod
    def columns(map_, rows):
        rows = np.array(rows, np.int64).reshape(-1, 7)
        return Loads(map_, rows[:, 0], rows[:, 1:6], np.zeros(len(rows), np.int64), rows[:, 6])

    def expected(self):
        total = int(np.prod(self.shape))
        return [
            {
                (p, f)
                for p in range(pixel, min(pixel + self.tile[0], total))
                for f in range(filter_, min(filter_ + self.tile[1], self.filters))
            }
            for pixel, filter_, _ in self.places
        ]


def elements(boxes, filters):
    out = [set() for _ in range(int(boxes.tile.max()) + 1)]
    for tile, at, length, count, stride in zip(
        boxes.tile, boxes.address, boxes.length, boxes.count[:, 0], boxes.stride[:, 0], strict=True
    ):
        for i in range(count):
            first = int(at - OUT + i * stride)
            out[tile] |= {divmod(first + j, filters) for j in range(length)}
    return out


@settings(max_examples=60, deadline=None)
@given(
    images=st.integers(1, 2),
    sides=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    channels=st.sampled_from([32, 64]),
    filters=st.sampled_from([16, 32, 48, 64]),
    tile=st.tuples(st.sampled_from([7, 16]), st.sampled_from([16, 32])),
    segments=st.sampled_from([1, 2]),
    order=st.permutations(range(64)),
)
def test_tiles_write_their_pixels_by_their_filters(images, sides, channels, filters, tile, segments, order):
    convolution = Convolution(images, *sides, channels, filters, tile, segments, order)
    actual = convolved.result(convolution.out, convolution.loads())
    if actual is None:
        # Filters and channels are told apart by who walks them; where each tile has all of both, they cannot be.
        assert channels == filters
        return
    boxes, shared = actual
    assert shared == (segments > 1)
    assert elements(boxes, filters) == convolution.expected()


@pytest.mark.parametrize("segments", [1, 2])
def test_as_many_filters_as_channels_are_told_apart_by_what_both_operands_walk(segments):
    convolution = Convolution(1, 4, 4, 64, 64, (8, 32), segments, range(64))
    actual = convolved.result(convolution.out, convolution.loads())
    assert actual is not None
    assert elements(actual[0], 64) == convolution.expected()


def test_no_store_is_inferred_for_other_tensors_and_for_incomplete_loads():
    convolution = Convolution(1, 4, 4, 32, 64, (8, 32), 1, range(64))
    loads = convolution.loads()
    assert convolved.result(convolution.out, loads) is not None
    assert convolved.result(dense(OUT, (64, 4, 5, 1)), loads) is None, "another shape"
    padded = replace(convolution.out, strides=(1, 80, 320, 1280))
    assert convolved.result(padded, loads) is not None, "rows of pixels may have room behind them"
    assert convolved.result(replace(convolution.out, strides=(1, 64, 512, 2048)), loads) is None, "gaps between rows"
    convolution.places.pop()
    assert convolved.result(convolution.out, convolution.loads()) is None
    assert convolved.result(convolution.out, loads[:1]) is None
