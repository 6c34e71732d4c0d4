"""Tiles inline or spawned: the compiled simulation compared with the plain one, and cases computed by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_graphs import all_to_all, block, durations, edges_of, graph, one_to_one, random_graphs
from tests.unit.analysis.simulate.plain_inlining import Plain
from tileprof.analysis.bounds.problem import problem, successors
from tileprof.analysis.simulate.engine.event_loop import Room
from tileprof.analysis.simulate.engine.plan import Draft
from tileprof.analysis.simulate.inlining import INLINE, PRINTED, RULE, SPAWN, Inlining, run
from tileprof.analysis.simulate.schedulers import scheduler
from tileprof.errors import UserError

PLAN = Draft(0).plan()
costs = st.sampled_from([0.0, 0.0, 1.0, 2.5])
inlinings = st.builds(Inlining, st.integers(1, 4), st.integers(0, PRINTED), costs, costs, costs)


@settings(max_examples=400, deadline=None)
@given(random_graphs(), inlinings)
def test_the_compiled_simulation_equals_the_plain_one(case, costs):
    g, lives = case
    p = problem(g, durations(lives), reuse=True)
    fast, plain = run(p, successors(p), costs), Plain(p, costs).run()
    for a, b in zip(fast, plain, strict=True):
        assert a.tolist() == b.tolist()


@settings(max_examples=200, deadline=None)
@given(random_graphs(), inlinings)
def test_every_tile_runs_once_after_its_parents_and_workers_run_one_at_a_time(case, costs):
    g, lives = case
    p = problem(g, durations(lives), reuse=True)
    outcome = run(p, successors(p), costs)
    assert np.isfinite(outcome.end_ns).all()
    for parent, child, *_ in edges_of(g, reuse=True):
        assert outcome.begin_ns[child] >= outcome.end_ns[parent]
    for worker in range(costs.workers):
        mine = np.flatnonzero(outcome.worker == worker)
        mine = mine[np.lexsort((outcome.end_ns[mine], outcome.begin_ns[mine]))]
        assert (outcome.begin_ns[mine][1:] >= outcome.end_ns[mine][:-1]).all()
    if costs.policy == SPAWN:
        assert not outcome.inline.any()
    with_parents = {child for _, child, *_ in edges_of(g, reuse=True)}
    if costs.policy == INLINE:
        assert set(np.flatnonzero(outcome.inline).tolist()) == with_parents


def simulate(g, lives, **arguments):
    p = problem(g, durations(lives), reuse=True)
    return run(p, successors(p), Inlining(**arguments))


CHAIN = graph([2, 2], [(0, 1, one_to_one(2))])


def test_a_chain_is_run_inline_and_spares_the_queue():
    lives = [[10.0, 10.0], [5.0, 5.0]]
    assert simulate(CHAIN, lives, workers=2, policy=SPAWN, spawn_ns=3.0, fetch_ns=1.0).end_ns.max() == 11 + 3 + 1 + 5
    inline = simulate(CHAIN, lives, workers=2, policy=INLINE, spawn_ns=3.0, fetch_ns=1.0, reload_ns=2.0)
    assert inline.end_ns.max() == 11 + 5 - 2
    assert inline.inline.tolist() == [False, False, True, True]
    assert simulate(CHAIN, lives, workers=2, spawn_ns=3.0, fetch_ns=1.0).end_ns.max() == 16


def test_the_rule_spawns_what_would_wait_long_on_the_list():
    fan = graph([1, 4], [(0, 1, all_to_all(1, 4))])
    lives = [[1.0], [10.0] * 4]
    alone = simulate(fan, lives, workers=4, policy=INLINE, spawn_ns=3.0)
    assert alone.end_ns.max() == 41
    rule = simulate(fan, lives, workers=4, policy=RULE, spawn_ns=3.0)
    # The first runs inline; for the others, 3 ns to the queue are less than 10 ns on the list.
    assert rule.inline.tolist() == [False, True, False, False, False]
    assert rule.end_ns.max() == 1 + 3 + 10
    # A queue that takes longer than the list does not pay.
    assert simulate(fan, lives, workers=4, policy=RULE, spawn_ns=50.0).inline.tolist() == [False] + [True] * 4


def test_a_tile_is_run_by_the_worker_of_its_last_parent():
    join = graph([2, 1], [(0, 1, block([[(0, 1.0, 0.0), (1, 1.0, 0.0)]], [0]))])
    outcome = simulate(join, [[3.0, 9.0], [1.0]], workers=2, policy=INLINE)
    assert outcome.worker[2] == outcome.worker[1]
    assert outcome.begin_ns[2] == 9


def test_there_are_as_many_workers_as_blocks_reside_of_the_largest_tile():
    p = problem(CHAIN, durations([[10.0, 10.0], [5.0, 5.0]]), reuse=True)
    room = Room(2, np.array([[1, 64], [1, 100]]), np.ones(2, np.int64), np.array([8, 256]), np.full(2, 9))
    actual, message = scheduler("inline:policy=1").alone(p, room, PLAN)
    assert "0 of 4 tiles run inline" in message[0]
    assert "4 workers" in message[0]
    assert actual.ended == 4
    assert actual.open_ns.tolist() == [100.0, 100 + 10.0 + 700 + 100]
    assert actual.deciding_ns == 4 * 100
    assert scheduler("inline").alone(p, room, PLAN)[0].end_ns.max() < actual.end_ns.max()


def test_options_out_of_range_are_refused():
    with pytest.raises(UserError, match=r"policy is 4, expected at least 0 and at most 3 \(0: the rule decides"):
        scheduler("inline:policy=4")
    with pytest.raises(UserError, match="no option 'polcy'; did you mean policy"):
        scheduler("inline:polcy=1")


def test_a_worker_holds_a_whole_cluster():
    p = problem(CHAIN, durations([[10.0, 10.0], [5.0, 5.0]]), reuse=True)
    room = Room(3, np.ones((2, 1), np.int64), np.array([1, 4]), np.array([2]), np.full(2, 9))
    # Six blocks fit on the GPU, on three SMs: one cluster of four.
    actual, message = scheduler("inline").alone(p, room, PLAN)
    assert "1 workers" in message[0]
    assert actual.end_ns.max() >= 30
    with pytest.raises(UserError, match="as large as a tile of launch 1 does not fit"):
        scheduler("inline").alone(p, room._replace(sms=1), PLAN)


def test_nothing_runs_in_no_time():
    p = problem(graph([], []), durations([]), reuse=True)
    none = np.zeros(0, np.int64)
    actual, _ = scheduler("inline").alone(p, Room(2, np.zeros((0, 1), np.int64), none, np.array([2]), none), PLAN)
    assert actual.ended == 0
