"""Rectangles of strided operands become exactly their bytes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import bytes_of, element_bytes, runs_of
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.foundations import regions
from tileprof.trace.footprint import READ, Boxes, Footprint

SIZES = st.integers(1, 5)


@st.composite
def operands(draw, max_rank=5):
    """Draw contiguous, transposed, sliced, broadcast and overlapping layouts."""
    shape = tuple(draw(st.lists(SIZES, max_size=max_rank)))
    order = draw(st.permutations(range(len(shape))))
    strides, run = [0] * len(shape), 1
    for dim in order:
        kind = draw(st.sampled_from(["dense", "dense", "gap", "broadcast", "overlap"]))
        strides[dim] = {"dense": run, "gap": run + draw(SIZES), "broadcast": 0, "overlap": max(run - 1, 1)}[kind]
        run = max(run, strides[dim] * shape[dim])
    return Operand(shape, tuple(strides), "float16", draw(st.sampled_from([1, 2, 4])))


@st.composite
def rectangles(draw, operand):
    """Draw start and stop within the operand; the range may be empty."""
    start = [draw(st.integers(0, n)) for n in operand.shape]
    return start, [draw(st.integers(a, n)) for a, n in zip(start, operand.shape, strict=True)]


def footprint(tiles: int, boxes: Boxes) -> Footprint:
    return Footprint(np.zeros((tiles, 3), np.int32), boxes)


@settings(max_examples=400)
@given(st.data())
def test_the_boxes_of_a_rectangle_are_exactly_its_bytes(data):
    operand = data.draw(operands())
    cut = [data.draw(rectangles(operand)) for _ in range(3)]
    step = [data.draw(st.integers(1, 3)) for _ in operand.shape]
    boxes = regions.boxes(operand, 7, READ, range(3), [a for a, _ in cut], [b for _, b in cut], step=step)
    for tile, (start, stop) in enumerate(cut):
        ranges = [range(a, b, s) for a, b, s in zip(start, stop, step, strict=True)]
        assert bytes_of(footprint(3, boxes), tile, 7) == element_bytes(operand, itertools.product(*ranges))


@given(st.data())
def test_linear_ranges_over_any_layout_are_exactly_their_elements(data):
    operand = data.draw(operands())
    numel = operand.numel
    cuts = sorted(data.draw(st.lists(st.integers(0, numel), min_size=2, max_size=6)))
    tiles = len(cuts) - 1
    boxes = regions.linear_boxes(operand, 0, READ, range(tiles), cuts[:-1], cuts[1:])
    elements = list(np.ndindex(*operand.shape))
    for tile in range(tiles):
        expected = element_bytes(operand, elements[cuts[tile] : cuts[tile + 1]])
        assert bytes_of(footprint(tiles, boxes), tile, 0) == expected


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_a_linear_range_is_cut_into_few_disjoint_rectangles(shape, data):
    numel = int(np.prod(shape))
    lo = data.draw(st.integers(0, numel))
    hi = data.draw(st.integers(lo, numel))
    _, start, stop = regions.linear(shape, [lo], [hi])
    actual = [
        int(np.ravel_multi_index(index, shape))
        for a, b in zip(start, stop, strict=True)
        for index in itertools.product(*map(range, a, b))
    ]
    assert sorted(actual) == list(range(lo, hi))
    assert len(start) <= 2 * len(shape) - 1


@given(operands())
def test_coalescing_keeps_the_row_major_order_of_elements(operand):
    def addresses(o):
        return [sum(i * s for i, s in zip(index, o.strides, strict=True)) for index in np.ndindex(*o.shape)]

    assert addresses(regions.coalesce(operand)) == addresses(operand)


def test_a_contiguous_rectangle_is_one_run():
    operand = Operand((4, 6, 8), (48, 8, 1), "float32", 4)
    boxes = regions.boxes(operand, 0, READ, 0, [1, 0, 0], [3, 6, 8])
    assert [(r.start, len(r)) for r in runs_of(footprint(1, boxes), 0, 0)] == [(192, 384)]


def test_runs_that_almost_touch_stay_apart():
    bytes_apart = Operand((3,), (2,), "int8", 1)
    boxes = regions.whole(bytes_apart, 0, READ, 0)
    assert bytes_of(footprint(1, boxes), 0, 0) == {0, 2, 4}
    rows_apart = Operand((2, 4), (40, 10), "int8", 1)
    boxes = regions.boxes(rows_apart, 0, READ, 0, [0, 0], [2, 3])
    assert bytes_of(footprint(1, boxes), 0, 0) == {0, 10, 20, 40, 50, 60}


def test_more_than_two_strides_unroll_the_smallest_count():
    operand = Operand((2, 3, 5, 4), (10000, 1000, 100, 1), "int8", 1)
    boxes = regions.whole(operand, 0, READ, 0)
    assert boxes.offset.tolist() == [0, 10000]
    assert (boxes.count_0.tolist(), boxes.count_1.tolist()) == ([5, 5], [3, 3])


def test_expand_repeats_with_stride_zero_and_refuses_what_does_not_broadcast():
    bias = regions.expand(Operand((3, 1), (1, 1), "float32", 4), (2, 3, 4))
    assert (bias.shape, bias.strides) == ((2, 3, 4), (0, 1, 0))
    with pytest.raises(ValueError, match="does not broadcast"):
        regions.expand(Operand((3,), (1,), "float32", 4), (4,))


def test_repeat_gives_every_tile_the_rows_of_the_region_it_shares():
    operand = Operand((4, 8), (8, 1), "int8", 1)
    strips = regions.boxes(operand, 0, READ, [0, 0, 1], [[0, 0], [0, 4], [1, 2]], [[1, 2], [1, 6], [4, 3]])
    shared = footprint(3, regions.repeat(strips, [1, 0, 1], [0, 1, 2]))
    assert bytes_of(shared, 0, 0) == bytes_of(shared, 2, 0) == {10, 18, 26}
    assert bytes_of(shared, 1, 0) == {0, 1, 4, 5}


def test_scalars_and_empty_operands_are_fine():
    scalar = Operand((), (), "float32", 4)
    assert len(regions.whole(scalar, 0, READ, [0, 1, 2])) == 3
    empty = Operand((0, 4), (4, 1), "float32", 4)
    assert len(regions.whole(empty, 0, READ, 0)) == 0
    assert len(regions.linear_boxes(empty, 0, READ, 0, 0, 0)) == 0
