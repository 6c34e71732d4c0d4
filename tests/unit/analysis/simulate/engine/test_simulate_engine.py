"""The compiled engine compared with the plain one, event by event, on random graphs and plans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import typeof

from tests.support.synthetic_graphs import all_to_all, block, durations, graph, list_oracle, one_to_one, random_graphs
from tests.unit.analysis.simulate.engine import plain_engine as reference
from tileprof.analysis.bounds.paths import paths
from tileprof.analysis.bounds.problem import problem, successors
from tileprof.analysis.simulate.engine import event_loop as engine
from tileprof.analysis.simulate.engine.clocks import FULL, Sharing
from tileprof.analysis.simulate.engine.plan import FREE, GRID, INSIDE, READY, Deciding, Draft, Nodes, Queues


@st.composite
def cases(draw):
    g, lives = draw(random_graphs())
    n = len(lives)
    some = st.sampled_from([0.0, 0.0, 1.0, 2.5])
    draft = Draft(n, signal_ns=draw(st.lists(some, min_size=n, max_size=n)), window=draw(st.sampled_from([0, 0, 1, 2])))
    draft.in_order, draft.greedy = draw(st.booleans()), draw(st.booleans())
    draft.period_ns, draft.lanes, draft.lane_ns = draw(some), draw(st.sampled_from([0, 0, 1, 2])), draw(some)
    few = st.integers(0, 2)
    draft.deciding = Deciding(
        draw(few),
        draw(some),
        draw(some),
        draw(st.integers(1, 3)),
        draw(some),
        draw(st.booleans()),
        draw(few),
        draw(some),
    )
    draft.nodes = Nodes(draw(st.sampled_from([0, 0, 1, 3, 8])), draw(st.integers(0, 4)), draw(some))
    for c in range(n):
        draft.gate[c] = draw(st.sampled_from([FREE, READY, READY, INSIDE, GRID]))
        draft.gap_ns[c], draft.issue_ns[c], draft.overhead_ns[c] = draw(some), draw(some), draw(some)
        if c:
            earlier = st.sets(st.integers(0, c - 1), max_size=2)
            draft.after[c], draft.started[c] = draw(earlier), draw(earlier)
            draft.waits_for[c] = draw(st.integers(-1, c - 1))
            draft.prologue[c] = draw(st.sampled_from([0.0, 0.5, 1.0]))
        draft.trigger[c] = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
    draft.queues = Queues(
        draw(st.sampled_from([0, 0, 1, 2])), draw(st.sampled_from([0.5, 1.0, 3.0])), draw(st.booleans())
    )
    draft.queue = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    draft.urgency = draw(st.permutations(range(n)))
    if draft.queues.mapped:
        for c in range(n):
            draft.after[c] = draft.after[c] | {b for b in range(c) if draft.queue[b] == draft.queue[c]}
    plan = draft.plan()._replace(rank=np.array(draw(st.permutations(range(n))), np.int64))
    demand = [[1, draw(st.integers(1, 4))] for _ in range(n)]
    clusters = [draw(st.sampled_from([1, 1, 1, 2])) for _ in range(n)]
    grids = [draw(st.sampled_from([1, 2, 3, 7, 7])) for _ in range(n)]
    room = engine.Room(
        draw(st.integers(1, 3)),
        np.array(demand, np.int64),
        np.array(clusters, np.int64),
        np.array([2, 6], np.int64),
        np.array(grids, np.int64),
    )
    load = st.sampled_from([0, FULL // 3, FULL // 2, FULL, 2 * FULL])
    width, clocks = draw(st.sampled_from([(1, 0), (1, room.sms), (1, 2), (2, 4)]))
    loads = draw(st.lists(st.lists(load, min_size=width, max_size=width), min_size=n, max_size=n))
    by_sm = clocks == room.sms and width == 1
    sharing = Sharing(clocks, by_sm, draw(st.sampled_from([0, FULL])), np.array(loads, np.int64))
    return problem(g, durations(lives), reuse=True, unknown_first=0.0), plan, room, sharing


@settings(max_examples=400, deadline=None)
@given(cases())
def test_the_compiled_engine_equals_the_plain_one(case):
    p, plan, room, sharing = case
    fast, plain = engine.run(p, successors(p), plan, room, sharing), reference.run(p, plan, room, sharing)
    assert fast.begin_ns.tolist() == plain.begin_ns.tolist()
    assert fast.end_ns.tolist() == plain.end_ns.tolist()
    assert fast.sm.tolist() == plain.sm.tolist()
    assert fast.open_ns.tolist() == plain.open_ns.tolist()
    assert (fast.ended, fast.swaps) == (plain.ended, plain.swaps)
    assert (fast.spilled, fast.deciding_ns) == (plain.spilled, pytest.approx(plain.deciding_ns))
    assert fast.launching_ns == pytest.approx(plain.launching_ns)
    assert fast.working_ns == pytest.approx(plain.working_ns, abs=1e-6)


def room_of(slots, launches):
    ones = np.ones(launches, np.int64)
    return engine.Room(1, ones[:, None], ones, np.array([slots], np.int64), 1000 * ones)


@settings(deadline=None)
@given(random_graphs(), st.integers(1, 4))
def test_ready_tiles_without_costs_are_list_scheduling(case, slots):
    g, lives = case
    p = problem(g, durations(lives), reuse=True)
    draft = Draft(len(lives), gate=[READY] * len(lives))
    outcome = engine.run(p, successors(p), draft.plan(), room_of(slots, len(lives)))
    assert outcome.end_ns.tolist() == list_oracle(g, lives, [1] * len(lives), slots, reuse=True)


@settings(deadline=None)
@given(random_graphs())
def test_waiting_inside_on_endless_slots_is_never_below_the_wait_inside_path(case):
    g, lives = case
    p = problem(g, durations(lives), reuse=True)
    draft = Draft(len(lives), gate=[INSIDE] * len(lives))
    outcome = engine.run(p, successors(p), draft.plan(), room_of(99, len(lives)))
    assert outcome.end_ns.max() >= paths(p).wait_inside_ns - 1e-9


def simulate(g, lives, draft, slots):
    p = problem(g, durations(lives), reuse=True, unknown_first=0.0)
    return engine.run(p, successors(p), draft.plan(), room_of(slots, len(lives)))


def test_a_tile_that_waits_inside_holds_its_slot_and_works_until_the_need():
    g = graph([1, 1], [(0, 1, block([[(0, 1.0, 0.5)]], [0]))])
    outcome = simulate(g, [[10.0], [4.0]], Draft(2, gate=[FREE, INSIDE]), 2)
    assert outcome.begin_ns.tolist() == [0.0, 0.0]
    assert outcome.end_ns.tolist() == [10.0, 12.0]


def test_consumers_in_all_slots_before_their_producers_never_end():
    g = graph([2, 2], [(0, 1, all_to_all(2, 2))])
    plan = Draft(2, gate=[FREE, INSIDE]).plan()._replace(rank=np.array([1, 0], np.int64))
    p = problem(g, durations([[1.0] * 2] * 2), reuse=True)
    outcome = engine.run(p, successors(p), plan, room_of(2, 2))
    assert outcome.ended == 0
    assert outcome.begin_ns.tolist() == [np.inf, np.inf, 0.0, 0.0]


def test_a_grid_waits_after_its_prologue_for_the_launch_before():
    draft = Draft(2, gate=[FREE, GRID], started=[set(), {0}], waits_for=[-1, 0], prologue=[0.0, 0.25])
    outcome = simulate(graph([3, 1], []), [[4.0] * 3, [4.0]], draft, 2)
    assert outcome.begin_ns.tolist() == [0.0, 0.0, 4.0, 4.0]
    assert outcome.end_ns.tolist() == [4.0, 4.0, 8.0, 11.0]


def test_a_window_admits_launches_in_order_as_earlier_ones_end():
    outcome = simulate(graph([1] * 4, []), [[5.0], [1.0], [1.0], [1.0]], Draft(4, window=2), 9)
    assert outcome.begin_ns.tolist() == [0.0, 0.0, 1.0, 2.0]


def test_the_signal_and_the_gap_delay_what_waits():
    g = graph([1, 1], [(0, 1, one_to_one(1))])
    ready = simulate(g, [[5.0], [1.0]], Draft(2, gate=[FREE, READY], signal_ns=2.0), 9)
    assert ready.begin_ns[1] == 7.0
    stream = simulate(g, [[5.0], [1.0]], Draft(2, after=[set(), {0}], gap_ns=[0.0, 3.0]), 9)
    assert stream.begin_ns[1] == pytest.approx(8.0)


def persistent(lives, at_most, slots=4, gates=None):
    """Return the start of all tiles, in both engines, of launches without dependencies on one SM with this number of
    slots.
    """
    g = graph([len(x) for x in lives], [])
    n = len(lives)
    p = problem(g, durations(lives), reuse=True, unknown_first=0.0)
    room = room_of(slots, n)._replace(at_most=np.array(at_most, np.int64))
    plan = Draft(n, gate=gates or [FREE] * n).plan()
    fast, plain = engine.run(p, successors(p), plan, room), reference.run(p, plan, room)
    assert fast.begin_ns.tolist() == plain.begin_ns.tolist()
    return fast.begin_ns.tolist()


def test_a_persistent_launch_runs_no_wider_than_its_grid():
    assert persistent([[1.0] * 6], [2]) == [0, 0, 1, 1, 2, 2]


def test_work_items_that_wait_for_their_grid_delay_no_other():
    assert persistent([[2.0] * 3, [1.0] * 3], [1, 9]) == [0, 2, 4, 0, 0, 0]
    # In one slot, they run in order of rank nevertheless.
    assert persistent([[2.0] * 2, [1.0]], [1, 9], slots=1) == [0, 2, 4]


def test_ready_tiles_beyond_the_grid_go_on_by_number():
    assert persistent([[3.0, 1.0, 1.0, 1.0]], [2], gates=[READY]) == [0, 0, 1, 2]


def test_a_launch_that_opens_by_a_dispatch_comes_after_what_was_ready_then():
    # The consumer (rank 1) becomes ready when its producer's tiles have begun, at 0 too; the branch (rank 2) was ready
    # before.
    g = graph([1, 1, 1], [(0, 1, one_to_one(1))])
    draft = Draft(3, gate=[INSIDE] * 3, started=[set(), {0}, set()])
    p = problem(g, durations([[5.0], [5.0], [5.0]]), reuse=True, unknown_first=0.0)
    outcome = engine.run(p, successors(p), draft.plan(), room_of(2, 3))
    assert outcome.begin_ns.tolist() == [0, 5, 0]


def test_plans_have_one_type_so_that_the_engine_is_compiled_once():
    floats = Draft(1, period_ns=1.5, deciding=Deciding(1, 2.0, 3.0), nodes=Nodes(1, 2, 3.0), queues=Queues(1, 2.0))
    integers = Draft(1, period_ns=0, lane_ns=3, deciding=Deciding(1, 2, 3), nodes=Nodes(1, 2, 3), queues=Queues(1, 2))
    assert typeof(floats.plan()) == typeof(integers.plan()) == typeof(Draft(1).plan())
