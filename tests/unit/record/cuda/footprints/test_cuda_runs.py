"""Masks to runs to boxes, compared with sets of bytes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.record.cuda.accesses import outside, united
from tileprof.record.cuda.footprints import bind, runs

rows = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 3),
        st.one_of(st.integers(0, 2**32 - 1), st.just(2**32 - 1)),
        st.integers(0, 99),
    ),
    max_size=12,
)
granules = st.sampled_from([1, 4, 32])


def columns(result):
    tile, window, mask, first = (
        (np.array(c, np.int64) for c in zip(*result, strict=True)) if result else [np.empty(0, np.int64)] * 4
    )
    return tile, window, mask.astype(np.uint32), first


def bytes_of(result):
    return [(t, b) for t, s, e in zip(result.tile, result.start, result.end, strict=True) for b in range(s, e)]


def masked(result, granule):
    out = {}
    for tile, window, mask, first in result:
        for bit in range(32):
            if mask >> bit & 1:
                for b in range(granule):
                    key = (tile, (window * 32 + bit) * granule + b)
                    out[key] = min(first, out.get(key, 1 << 30))
    return out


@given(rows, granules)
def test_runs_hold_exactly_the_bytes_of_the_masks_once_and_are_maximal(entries, granule):
    result = runs.from_masks(*columns(entries), granule)
    actual = bytes_of(result)
    assert len(actual) == len(set(actual))
    assert set(actual) == set(masked(entries, granule))
    ends = {(t, e) for t, e in zip(result.tile, result.end, strict=True)}
    assert not ends & {(t, s) for t, s in zip(result.tile, result.start, strict=True)}, (
        "neighbouring runs were not joined"
    )


@given(rows)
def test_a_run_is_first_touched_no_later_than_any_byte_of_it(entries):
    result = runs.from_masks(*columns(entries), 1)
    oracle = masked(entries, 1)
    for tile, start, end, first in zip(result.tile, result.start, result.end, result.first, strict=True):
        assert first <= min(oracle[(tile, b)] for b in range(start, end))


@given(rows, st.lists(st.integers(0, 4 * 32 * 4), max_size=5))
def test_cutting_keeps_the_bytes_and_leaves_no_run_across_an_edge(entries, edges):
    whole = runs.from_masks(*columns(entries), 4)
    edges = np.unique(np.array(edges, np.int64))
    cut = runs.cut(whole, edges)
    assert bytes_of(cut) == bytes_of(whole)
    for start, end in zip(cut.start, cut.end, strict=True):
        assert start < end
        assert not ((edges > start) & (edges < end)).any()


@settings(deadline=None)  # the first call compiles
@given(rows, granules)
def test_boxes_hold_exactly_the_bytes_of_the_runs(entries, granule):
    result = runs.from_masks(*columns(entries), granule)
    assert sorted(bytes_of(bind.expanded(runs.boxes(result)))) == sorted(bytes_of(result))


def test_rows_of_a_matrix_become_one_box_and_a_stack_of_them_too():
    start = np.array([z * 10000 + y * 256 for z in range(3) for y in range(4)], np.int64)
    zero = np.zeros_like(start)
    result = runs.boxes(runs.Runs(zero, start, start + 64, zero))
    assert result.count.tolist() == [[4, 3]]
    assert result.stride.tolist() == [[256, 10000]]


ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1])), max_size=8)


@given(ranges, ranges)
def test_bytes_outside_a_union_are_counted_as_sets_count_them(covered_runs, change_runs):
    start, end = (
        (np.array(c, np.int64) for c in zip(*covered_runs, strict=True))
        if covered_runs
        else [np.empty(0, np.int64)] * 2
    )
    union = united(np.zeros_like(start), start, end, start) if covered_runs else runs.Runs(start, start, start, start)
    inside = {b for low, high in covered_runs for b in range(low, high)}
    assert {b for _, b in bytes_of(union)} == inside
    change_runs = sorted({b for low, high in change_runs for b in range(low, high)})
    pairs = np.array([(b, b + 1) for b in change_runs], np.int64).reshape(-1, 2)
    assert outside(pairs, union) == len(set(change_runs) - inside)
