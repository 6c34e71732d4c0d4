"""Spans multiply range by range, whatever the number of rectangles each range becomes."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import bytes_of
from tileprof.errors import UserError
from tileprof.record.model.tile_model import Operand, Scratch
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    Sketch,
    Span,
    check_number,
    cut,
    memory_order,
    narrow,
    part,
    ranges,
    scratch,
    select,
)
from tileprof.record.model.tiles.products.main_loop import raster


def operand(shape, order, *, itemsize=1):
    strides, run = [0] * len(shape), 1
    for d in order:
        strides[d], run = run, run * shape[d]
    return Operand(tuple(shape), tuple(strides), "int8", itemsize)


def expected(o, dims, spans):
    """Return the positions of all elements whose flattened index lies in every span's range."""
    actual = set()
    for index in itertools.product(*(range(n) for n in o.shape)):
        flat = []
        for group in dims:
            at = 0
            for d in group:
                at = at * o.shape[d] + index[d]
            flat.append(at)
        if all(lo <= at < hi for at, (lo, hi) in zip(flat, spans, strict=True)):
            actual.add(sum(i * s for i, s in zip(index, o.strides, strict=True)))
    return actual


@st.composite
def products(draw):
    rank = draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    order = draw(st.permutations(range(rank)))
    dims = draw(st.permutations(range(rank)))
    first, second = sorted(draw(st.tuples(st.integers(0, rank), st.integers(0, rank))))
    groups = [tuple(dims[:first]), tuple(dims[first:second])]
    sizes = [int(np.prod([shape[d] for d in g], dtype=int)) for g in groups]
    pairs = st.tuples(*(st.tuples(st.integers(0, n), st.integers(0, n)) for n in sizes))
    return shape, order, groups, draw(st.lists(pairs, min_size=1, max_size=5))


@settings(max_examples=150, deadline=None)
@given(products())
@example(([3, 3], [0, 1], [(0, 1), ()], [((1, 6), (0, 1)), ((2, 2), (0, 1))]))
@example(([2, 2, 2], [0, 1, 2], [(0, 1, 2), ()], [((5, 8), (0, 1)), ((8, 8), (0, 1))]))
def test_spans_are_products_of_ranges(case):
    shape, order, groups, bounds = case
    o = operand(shape, order)
    sketch = Sketch(len(bounds))
    lo, hi = (np.array([[pair[g][k] for pair in bounds] for g in range(2)]) for k in range(2))
    spans = [Span(groups[g], lo[g], np.maximum(lo[g], hi[g])) for g in range(2)]
    sketch.span(o, READ, np.arange(len(bounds)), *spans)
    kernel = sketch.kernel("k", threads=1)
    for tile, pair in enumerate(bounds):
        assert bytes_of(kernel.footprint, tile, 0) == expected(o, groups, pair)


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1))
def test_ranges_are_cut_at_multiples(size, bounds):
    lo = np.array([min(b) for b in bounds])
    hi = np.array([max(b) for b in bounds])
    which, begin, end = cut(lo, hi, size)
    pieces = [(int(w), int(x)) for w, a, b in zip(which, begin, end, strict=True) for x in range(a, b)]
    assert pieces == [(w, x) for w in range(len(lo)) for x in range(lo[w], hi[w])]
    assert all(a // size == (b - 1) // size for a, b in zip(begin, end, strict=True) if a < b)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=40), st.integers(1, 5))
def test_elements_join_into_runs_within_a_tile(pairs, run):
    sketch = Sketch(4)
    o = Operand((100,), (1,), "int8", 1)
    sketch.elements(o, READ, [t for t, _ in pairs], [e for _, e in pairs], run)
    kernel = sketch.kernel("k", threads=1)
    for tile in range(4):
        assert bytes_of(kernel.footprint, tile, 0) == {e + i for t, e in pairs if t == tile for i in range(run)}
    b = kernel.footprint.boxes
    ends = b.offset + b.length
    assert not ((b.tile[1:] == b.tile[:-1]) & (b.offset[1:] <= ends[:-1])).any()


def test_views_of_views_add_their_offsets():
    o = Operand((6, 8), (8, 1), "int16", 2)
    view = select(narrow(narrow(o, 0, 1, 4), 1, 2, 3, 2), 0, 2)
    assert (view.begin, view.shape, view.strides) == (3 * 8 + 2, (3,), (2,))
    sketch = Sketch(1)
    sketch.whole(view, READ)
    assert bytes_of(sketch.kernel("k", threads=1).footprint, 0, 0) == {
        b for e in (26, 28, 30) for b in (2 * e, 2 * e + 1)
    }


def test_a_workspace_keeps_its_size_through_views():
    sketch = Sketch(1)
    sketch.whole(part(scratch(3, 4, 5, itemsize=8), (100, 20), (0, 1)), READ)
    assert sketch.kernel("k", threads=1).operands == (Scratch(3, 160),)


def test_memory_order_follows_the_output_and_then_the_inputs():
    assert memory_order([operand((2, 3, 4), (1, 0, 2))]) == (2, 0, 1)
    flat = Operand((1, 3, 4), (0, 0, 0), "int8", 1)
    assert memory_order([flat, operand((1, 3, 4), (0, 1, 2))]) == (2, 1, 0)


def test_a_loop_hands_chunks_to_tiles_in_turn():
    tile, lo, hi = ranges(10, 3, 2)
    assert (tile.tolist(), lo.tolist(), hi.tolist()) == ([0, 1, 0, 1], [0, 3, 6, 9], [3, 6, 9, 10])


def test_tiles_are_numbered_along_x_first():
    kernel = Sketch(2, 3).kernel("k", threads=32)
    assert kernel.footprint.block[:4].tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]


def test_a_launch_of_too_many_tiles_is_refused_before_there_are_arrays() -> None:
    with pytest.raises(UserError, match=r"a launch of 10,000,000,000 tiles is more than .*; record a smaller problem"):
        Sketch(100_000, 100_000)
    with pytest.raises(UserError, match="a launch of 10,000,000,000 tiles is more than"):
        raster(100_000, 100_000, 1)


def test_a_launch_that_memory_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1_000, "SC_PAGE_SIZE": 4_096}.__getitem__)
    check_number(4_096, tile_bytes=1_000)
    with pytest.raises(UserError, match=r"4,097 tiles is more than this machine's memory holds \(4,096\)"):
        check_number(4_097, tile_bytes=1_000)
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1 << 30, "SC_PAGE_SIZE": 4_096}.__getitem__)
    check_number(1 << 28)
    with pytest.raises(UserError, match=r"more than a trace holds \(268,435,456\)"):
        check_number((1 << 28) + 1)
