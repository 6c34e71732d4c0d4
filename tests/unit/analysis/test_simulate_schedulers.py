"""Each scheduler on a chain whose times can be worked out by hand, and options from the command line."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.analysis.fakes import all_to_all, block, footprint, graph, one_to_one, random_graphs, trace
from tileprof.analysis.bounds import Bounder, Machine
from tileprof.analysis.simulate import SCHEDULERS, Simulator, scheduler
from tileprof.analysis.simulate.simulator import covered_ns
from tileprof.errors import UserError


def with_trace(g, lives, **launch):
    """Two slots on the toy GPU unless the launches say otherwise."""
    footprints = {i: footprint(len(life), duration_ns=life) for i, life in enumerate(lives)}
    rows = [{"footprint": i, "timing": "modelled", "block_x": 256, **launch} for i in footprints]
    g.trace = trace(rows, footprints)
    return g


def chain(first=0.0):
    """Three launches of three 10 ns tiles on two slots; tile t needs tile t of the launch before."""
    links = [(i, i + 1, one_to_one(3, first=first)) for i in range(2)]
    return with_trace(graph([3, 3, 3], links), [[10.0] * 3] * 3)


def time_of(g, text):
    return Simulator(g).run(scheduler(text)).time_ns


def test_stream_order_pays_whole_waves_and_gaps():
    assert time_of(chain(), "stream") == 3 * 20 + 2 * 100
    assert time_of(chain(), "stream:gap_ns=1") == 62
    assert time_of(chain(), "stream:gap_ns=1,issue_ns=50") == 120


def test_a_graph_has_shorter_gaps():
    assert time_of(chain(), "graph") == 3 * 20 + 2 * 50


def test_a_graph_of_dependencies_runs_branches_side_by_side():
    g = with_trace(graph([1, 1, 1], [(0, 2, all_to_all(1, 1))]), [[10.0]] * 3)
    assert time_of(g, "graph:gap_ns=0") == 30
    assert time_of(g, "graph:gap_ns=0,dependencies=1") == 20


def test_dataflow_and_list_fill_the_last_waves():
    assert time_of(chain(), "dataflow") == 50
    assert time_of(chain(), "list") == 50


def test_dependent_launches_run_their_prologue_beside_the_launch_before():
    assert time_of(chain(first=0.0), "pdl:signal_ns=0") == 60
    # The third tile of a launch ends its wait 20 ns in; a consumer in the other slot has done half of its work.
    assert time_of(chain(first=0.5), "pdl:signal_ns=0") < 60
    assert time_of(chain(first=0.5), "pdl:signal_ns=0,prologue=0") == 60


def test_cusync_tiles_wait_for_their_own_parents():
    # Two launches under way; tile 2 of a launch runs beside tile 0 of the next.
    assert time_of(chain(), "cusync:post_ns=0,poll_ns=0,window=0") == 50
    assert time_of(chain(), "cusync:post_ns=1,poll_ns=0,window=0") == 55


def test_streams_overlap_what_is_independent():
    g = with_trace(graph([1, 1, 1], [(0, 2, all_to_all(1, 1)), (1, 2, all_to_all(1, 1))]), [[10.0]] * 3)
    assert time_of(g, "streams:gap_ns=0,sync_ns=0") == 20
    assert time_of(g, "streams:gap_ns=0,sync_ns=5") == 25
    assert time_of(g, "streams:gap_ns=0,sync_ns=0,queues=1") == 30


def test_acs_looks_no_further_than_its_window():
    g = with_trace(graph([1] * 3, [(0, 1, all_to_all(1, 1))]), [[10.0]] * 3)
    assert time_of(g, "acs-sw:gap_ns=0,check_ns=0") == 20
    assert time_of(g, "acs-sw:gap_ns=0,check_ns=0,window=2") == 20
    assert time_of(g, "acs-sw:gap_ns=0,check_ns=0,window=1") == 30


def test_hazards_of_recycled_memory_hold_back_all_but_those_who_rename():
    g = with_trace(graph([1, 1], [(0, 1, all_to_all(1, 1), True)]), [[10.0]] * 2)
    for name in ("streams:gap_ns=0,sync_ns=0", "acs-sw:gap_ns=0", "dataflow", "graph:gap_ns=0,dependencies=1"):
        assert time_of(g, name) >= 20, name
    assert time_of(g, "list") == 10


@settings(deadline=None, max_examples=40)
@given(random_graphs(), st.integers(1, 3))
def test_no_scheduler_beats_the_bound_or_ends_in_a_deadlock(case, blocks_per_sm):
    g, lives = case
    with_trace(g, lives, block_x=64, blocks_per_sm=blocks_per_sm)
    simulator, bounds = Simulator(g, Machine(g.trace.device, blocks_per_sm=blocks_per_sm)), Bounder(g).of(1.0)
    for name, chosen in SCHEDULERS.items():
        schedule = simulator.run(chosen)
        assert not schedule.deadlock, name
        assert schedule.time_ns >= bounds.bound_ns - 1e-9, name
        assert 0 <= schedule.busy <= 1 + 1e-9, name


def test_ends_respect_every_parent():
    g = chain()
    for name in SCHEDULERS:
        schedule = Simulator(g).run(scheduler(name))
        for launch in (1, 2):
            begin, end = schedule.begin_ns[3 * launch : 3 * launch + 3], schedule.end_ns[3 * launch - 3 : 3 * launch]
            worked_from = schedule.end_ns[3 * launch : 3 * launch + 3] - 10
            assert (worked_from >= end - 1e-9).all() or (begin >= end).all(), name


def test_waits_inside_and_idle_time_are_counted():
    g = with_trace(graph([1, 1], [(0, 1, block([[(0, 1.0, 0.0)]], [0]))]), [[10.0], [10.0]])
    inside = Simulator(g).run(scheduler("cusync:post_ns=0,poll_ns=5"))
    assert (inside.time_ns, inside.waiting_ns, inside.gap_ns) == (25.0, 15.0, 0.0)
    stream = Simulator(g).run(scheduler("stream"))
    assert (stream.time_ns, stream.waiting_ns, stream.gap_ns, stream.busy) == (120.0, 0.0, 100.0, 20 / 240)


def test_a_deadlock_names_who_waits_for_whom():
    class Backwards:
        name, renames = "backwards", False

        def draft(self, program):
            draft = SCHEDULERS["cusync"].draft(program)
            draft.started = [{1}, set()]  # the consumer first
            draft.window = 0
            return draft

    g = with_trace(graph([2, 2], [(0, 1, all_to_all(2, 2))]), [[1.0] * 2] * 2)
    schedule = Simulator(g).run(Backwards())
    assert schedule.deadlock.startswith("launch 1 tile 0 holds its slot and waits for launch 0 tile 0")
    assert schedule.to_json()["time_ns"] is None


def test_a_device_too_small_for_a_block_is_refused_with_the_launch():
    g = with_trace(graph([1], []), [[1.0]], block_x=512, kernel="wide")
    assert time_of(g, "stream") == 1.0  # on its own device it ran, so it fits
    with pytest.raises(UserError, match=r"too small for launch 0 \(wide\).* exceeds its threads"):
        Simulator(g, Machine(g.trace.device, foreign=True))


def test_a_foreign_device_has_its_own_occupancy():
    g = with_trace(graph([8], []), [[1.0] * 8], block_x=64, blocks_per_sm=1)
    assert time_of(g, "stream") == 4.0
    assert Simulator(g, Machine(g.trace.device, foreign=True)).run(scheduler("stream")).time_ns == 1.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("strem", "did you mean stream?"),
        ("pdl:prolog=1", "did you mean prologue?"),
        ("pdl:prologue=2", "at most 1"),
        ("stream:gap_ns=-1", "at least 0"),
        ("streams:queues=1.5", "whole number"),
        ("stream:gap_ns=fast", "is not a number"),
        ("stream:gap_ns", "is not key=value"),
    ],
)
def test_bad_schedulers_are_answered_with_what_there_is(text, says):
    with pytest.raises(UserError, match="scheduler") as raised:
        scheduler(text)
    assert says in str(raised.value)


def test_every_scheduler_cites_its_source():
    for chosen in SCHEDULERS.values():
        assert any(word in type(chosen).__doc__ for word in ("Guide", "et al.", "proposal", "1966")), chosen.name


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=6))
def test_covered_time_is_the_length_of_the_union(intervals):
    begin, end = (np.array([i[k] for i in intervals], np.float64) for k in (0, 1))
    assert covered_ns(begin, end) == len({x for a, b in intervals for x in range(a, b)})
