"""Column arithmetic, compared with plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileprof.arrays import boxes, grids, intervals, ragged

SPAN = st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 6))


def test_ragged_rows_know_their_owner_and_place():
    owner, place = ragged.ragged(np.array([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2]
    assert place.tolist() == [0, 1, 0, 1, 2]
    pointers = ragged.pointers([2, 0, 3])
    assert pointers.tolist() == [0, 2, 2, 5]
    assert ragged.owners(pointers).tolist() == owner.tolist()
    assert ragged.spans(np.array([7, 1, 4]), np.array([2, 0, 3])).tolist() == [7, 8, 4, 5, 6]


@given(st.lists(SPAN, max_size=12))
def test_a_union_within_groups_is_that_of_sets_of_points(rows):
    table = np.array(sorted((g, lo, lo + n) for g, lo, n in rows), np.int64).reshape(-1, 3)
    group, lo, hi = table.T
    row, begin, end = intervals.grouped_union(group, lo, hi)
    pieces = list(zip(group[row].tolist(), begin.tolist(), end.tolist(), strict=True))
    points = {(g, at) for g, lo, hi in table.tolist() for at in range(lo, hi)}
    assert [(g, at) for g, lo, hi in pieces for at in range(lo, hi)] == sorted(points)
    assert all(a[0] < b[0] or a[2] < b[1] for a, b in pairwise(pieces)), "pieces have gaps"


@given(st.lists(SPAN, max_size=12))
def test_a_union_is_the_same_for_integers_and_floats(rows):
    lo, hi = np.array(sorted((lo, lo + n) for _, lo, n in rows), np.int64).reshape(-1, 2).T
    whole = intervals.union(lo, hi)
    real = intervals.union(lo.astype(np.float64), hi.astype(np.float64))
    assert np.array_equal(whole, real)
    assert {p for a, b in zip(*whole, strict=True) for p in range(a, b)} == {
        p for a, b in zip(lo, hi, strict=True) for p in range(a, b)
    }


def greedy(begin, alike):
    """Return progressions, computed one row at a time."""
    out, row = [], 0
    while row < len(begin):
        count, step = 1, 0
        while row + count < len(begin) and alike[row + count] == alike[row]:
            distance = begin[row + count] - begin[row + count - 1]
            if count > 1 and distance != step:
                break
            step, count = distance, count + 1
        out.append((row, count, step))
        row += count
    return out


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1) | st.just(0)), max_size=24))
def test_runs_are_folded_as_a_greedy_loop_folds_them(rows):
    begin, alike = np.cumsum([step for step, _ in rows], dtype=np.int64), [kind for _, kind in rows]
    folds = boxes.fold(begin, np.array(alike, np.int64))
    assert list(zip(*(c.tolist() for c in folds), strict=True)) == greedy(begin.tolist(), alike)


def test_boxes_are_written_out_run_by_run():
    box, begin = boxes.runs(*(np.array(c, np.int64) for c in ([100, 7], [2, 1], [10, 0], [3, 1], [50, 0])))
    assert box.tolist() == [0] * 6 + [1]
    assert begin.tolist() == [100, 110, 150, 160, 200, 210, 7]


@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 3, 2)])
def test_places_and_numbers_of_a_grid_are_inverse(grid):
    places = grids.places(grid)
    assert len(places) == grids.size(grid)
    assert np.array_equal(grids.number(grid, *places.T), np.arange(len(places)))
    assert grids.place(grid, len(places) - 1) == tuple(n - 1 for n in grid)
