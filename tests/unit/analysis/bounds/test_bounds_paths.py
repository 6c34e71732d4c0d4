"""Critical paths and list schedules, compared with oracles that expand every edge."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_graphs import (
    all_to_all,
    block,
    durations,
    edges_of,
    graph,
    list_oracle,
    one_to_one,
    random_graphs,
)
from tileprof.analysis.bounds.list_schedule import alone, list_schedule
from tileprof.analysis.bounds.paths import paths, ready_times, tails
from tileprof.analysis.bounds.problem import problem


def ready_oracle(g, lives, *, reuse):
    ns = [x for life in lives for x in life]
    begin = [0.0] * len(ns)
    for p, c, *_ in sorted(edges_of(g, reuse=reuse), key=lambda e: e[1]):
        begin[c] = max(begin[c], begin[p] + ns[p])
    return [b + d for b, d in zip(begin, ns, strict=True)]


def soonest_end(g, lives, *, reuse):
    """Return the wait-inside path from the earliest moment at which a tile reaches each point of its work."""
    ns = [x for life in lives for x in life]
    needs = {t: [] for t in range(len(ns))}
    for p, c, last, first in edges_of(g, reuse=reuse):
        needs[c].append((p, last, first))

    def reach(tile, point):
        return max(
            [point * ns[tile]]
            + [reach(p, last) + (point - first) * ns[tile] for p, last, first in needs[tile] if first <= point]
        )

    return [reach(t, 1.0) for t in range(len(ns))]


@settings(deadline=None)  # the first call compiles
@given(random_graphs(), st.booleans())
def test_ready_gated_ends_are_those_of_the_expanded_graph(case, reuse):
    g, lives = case
    actual = ready_times(problem(g, durations(lives), reuse=reuse))
    assert actual.tolist() == ready_oracle(g, lives, reuse=reuse)


@settings(deadline=None)  # the first call compiles
@given(random_graphs(), st.booleans())
def test_tails_are_what_must_follow_each_tile(case, reuse):
    g, lives = case
    ns = [x for life in lives for x in life]
    follow = [0.0] * len(ns)
    for p, c, *_ in sorted(edges_of(g, reuse=reuse), key=lambda e: -e[1]):
        follow[p] = max(follow[p], ns[c] + follow[c])
    assert tails(problem(g, durations(lives), reuse=reuse)).tolist() == follow


@settings(deadline=None)  # the first call compiles
@given(random_graphs(), st.booleans())
def test_wait_inside_never_exceeds_the_soonest_possible_end(case, reuse):
    g, lives = case
    p = problem(g, durations(lives), reuse=reuse)
    assert paths(p).wait_inside_ns <= max(soonest_end(g, lives, reuse=reuse)) + 1e-9


@settings(deadline=None)  # the first call compiles
@given(random_graphs())
def test_wait_inside_is_the_soonest_end_where_tiles_are_alike_and_write_last(case):
    g, lives = case
    lives = [[life[0]] * len(life) for life in lives]
    for b in g.blocks:
        b.last[:] = 1.0
    expected = max(soonest_end(g, lives, reuse=True))
    assert paths(problem(g, durations(lives), reuse=True)).wait_inside_ns == pytest.approx(expected)


def test_a_late_write_after_a_later_wait_counts_and_an_early_write_does_not():
    # a -> b needs a's bytes at the end of its work; c needs what b wrote before that.
    early = graph([1, 1, 1], [(0, 1, all_to_all(1, 1, 1.0, 1.0)), (1, 2, all_to_all(1, 1, 0.5, 0.0))])
    late = graph([1, 1, 1], [(0, 1, all_to_all(1, 1, 1.0, 1.0)), (1, 2, all_to_all(1, 1, 1.0, 0.0))])
    lives = durations([[10.0], [4.0], [1.0]])
    assert paths(problem(early, lives, reuse=True)).wait_inside_ns == 10.0
    assert paths(problem(late, lives, reuse=True)).wait_inside_ns == 11.0


@settings(max_examples=200, deadline=None)
@given(random_graphs(), st.integers(1, 6), st.booleans(), st.data())
def test_list_schedule_equals_the_plain_one_tile_by_tile(case, capacity, reuse, data):
    g, lives = case
    sizes = data.draw(st.lists(st.integers(1, min(2, capacity)), min_size=len(lives), max_size=len(lives)))
    p = problem(g, durations(lives), reuse=reuse)
    actual = list_schedule(p, np.array(sizes, np.int64), capacity)
    assert actual.tolist() == list_oracle(g, lives, sizes, capacity, reuse=reuse)


@settings(deadline=None)  # the first call compiles
@given(random_graphs(), st.integers(1, 5))
def test_list_schedule_is_within_grahams_factor_of_the_bounds(case, slots):
    g, lives = case
    p = problem(g, durations(lives), reuse=True)
    list_ns = list_schedule(p, np.ones(len(lives), np.int64), slots).max()
    area, path = sum(map(sum, lives)) / slots, paths(p).ready_ns
    assert max(area, path) <= list_ns + 1e-9
    assert list_ns <= area + (1 - 1 / slots) * path + 1e-9


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.floats(0, 10), max_size=30), st.integers(1, 9))
def test_a_launch_alone_takes_the_next_free_slot(ns, slots):
    free = [0.0] * slots
    expected = []
    for life in ns:
        at = free.index(min(free))
        free[at] += life
        expected.append(free[at])
    assert alone(np.array(ns), slots).tolist() == expected


def test_some_launches_of_a_graph_are_a_problem_of_their_own():
    g = graph([2, 2, 2], [(0, 1, one_to_one(2)), (1, 2, all_to_all(2, 2)), (0, 2, block([[(1, 1, 0)]], [0, -1]))])
    lives = durations([[1.0, 5.0], [1.0, 1.0], [1.0, 2.0]])
    assert ready_times(problem(g, lives, [0, 2], reuse=True)).tolist() == [1.0, 5.0, 6.0, 2.0]


def test_no_launches_are_no_time():
    p = problem(graph([], []), durations([]), reuse=True)
    assert paths(p).ready_ns == 0.0
    assert list_schedule(p, np.empty(0, np.int64), 4).size == 0
