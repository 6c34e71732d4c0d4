"""Launches on lanes keep every order that they must, and the simulator's rules agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.synthetic_graphs import all_to_all, graph
from tests.unit.analysis.simulate.launch_chains import time_of, with_trace
from tileprof import devices
from tileprof.analysis.bounds import Machine
from tileprof.analysis.reporting.independence import independence
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.simulate.scheduler import program_of
from tileprof.analysis.simulate.schedulers.acs_lanes import Lanes


@st.composite
def conflicts(draw):
    """Return, by launch, the earlier launches that it must wait for."""
    count = draw(st.integers(1, 40))
    return [draw(st.sets(st.integers(0, launch - 1), max_size=4)) if launch else set() for launch in range(count)]


@given(conflicts(), st.integers(1, 6), st.integers(1, 12))
def test_every_conflict_is_kept_and_everything_behind_the_window_has_ended(needs_of, lanes, window):
    placing = Lanes(lanes, window)
    before = []  # by launch: all launches that are ordered before it
    for launch, need in enumerate(needs_of):
        placement = placing.place(launch, need)
        direct = {*placement.awaited, *({placement.before} - {-1})}
        before.append(direct.union(*(before[p] for p in direct)))
        assert need <= before[launch]
        assert set(range(launch - window)) <= before[launch]


def test_a_chain_stays_on_one_lane_and_records_nothing():
    placing = Lanes(8, 32)
    placement = [placing.place(launch, {launch - 1} - {-1}) for launch in range(20)]
    assert {p.lane for p in placement} == {0}
    assert sum(len(p.awaited) for p in placement) == 0


def test_launches_that_share_a_parent_await_one_event_of_it():
    placing = Lanes(8, 32)
    placing.place(0, set())
    children = [placing.place(launch, {0}) for launch in (1, 2, 3)]
    assert [p.lane for p in children] == [0, 1, 2]
    assert [p.awaited for p in children] == [(), (0,), (0,)]
    assert [p.recorded for p in children] == [0, 1, 0]


def test_events_leave_the_host_out_of_the_order_but_not_out_of_the_bill():
    g = with_trace(graph([1, 1, 1], [(0, 2, all_to_all(1, 1))]), [[10.0]] * 3)
    costs = dict.fromkeys(("gap_ns", "hop_ns", "issue_ns", "record_ns", "wait_ns", "check_ns", "segment_ns"), 0)

    def time_with(**more):
        return time_of(g, "acs-sw:events=1," + ",".join(f"{key}={value}" for key, value in (costs | more).items()))

    assert time_with() == 20
    assert time_with(streams=1) == 30
    assert time_with(gap_ns=3) == 23
    assert time_with(issue_ns=50) == time_with(check_ns=50) == 110


def test_a_thread_beside_the_program_takes_the_drivers_time_over():
    g = with_trace(graph([1, 1, 1], []), [[10.0]] * 3)
    machine = Machine(devices.get("H200"))
    driver = machine.device.issue_ns()

    def time_with(more):
        free = "acs-sw:events=1,gap_ns=0,hop_ns=0,record_ns=0,wait_ns=0,check_ns=0,segment_ns=0"
        return Simulator(g, machine).run(scheduler(f"{free},{more}")).time_ns

    assert driver > 1100
    each = driver + 1000
    assert time_with(f"issue_ns={each}") == pytest.approx(2 * each + 10)
    # Two times 1,100 ns until the last launch is queued; the other thread is then still busy with the second one.
    assert time_with(f"issue_ns={each},queued=1,queue_ns=100") == pytest.approx(1100 + 2 * driver + 10)
    # A program that is slower than the driver gains the time that it hands over.
    slow = driver + 50_000
    assert time_with(f"issue_ns={slow},queued=1,queue_ns=100") == pytest.approx(2 * 50_100 + driver + 10)


def test_a_captured_program_costs_the_host_nothing_and_a_join_its_hop():
    g = with_trace(graph([1, 1, 1], [(0, 2, all_to_all(1, 1)), (1, 2, all_to_all(1, 1))]), [[10.0], [20.0], [10.0]])
    free = "acs-sw:captured=1,gap_ns=0,hop_ns=0"
    assert time_of(g, free) == time_of(g, free + ",issue_ns=50,record_ns=50,wait_ns=50") == 30
    assert time_of(g, free + ",streams=1") == 40
    assert time_of(g, "acs-sw:captured=1,gap_ns=3,hop_ns=0") == 33
    assert time_of(g, "acs-sw:captured=1,gap_ns=3,hop_ns=5") == 38


@pytest.mark.parametrize(
    ("loss", "time"), [("", 1010), ("beside_ns=30,", 1040), ("beside_ns=30,beside_share=0.1,", 1110)]
)
def test_a_branch_beside_another_loses_a_time_or_a_share_of_its_own_where_that_is_more(loss, time):
    to_both = [(0, 1, all_to_all(1, 1)), (0, 2, all_to_all(1, 1))]
    g = with_trace(graph([1, 1, 1], to_both), [[10.0], [1000.0], [1000.0]])
    g.launches["duration_ns"] = [10, 1000, 1000]
    default = "beside_ns=0," * ("beside_ns" not in loss) + "beside_share=0," * ("beside_share" not in loss)
    assert time_of(g, f"acs-sw:captured=1,gap_ns=0,hop_ns=0,{loss}{default}".rstrip(",")) == time


def test_the_share_of_independent_launches_counts_the_launch_before():
    g = with_trace(graph([1, 1, 1, 1], [(0, 1, all_to_all(1, 1)), (0, 2, all_to_all(1, 1))]), [[10.0]] * 4)
    actual = independence(program_of(g))
    assert actual.share == 2 / 3
    assert actual.width == 4 / 2
    assert independence(program_of(g), window=1).width == 1


def test_a_barrier_comes_behind_everything_and_before_everything():
    placing = Lanes(4, 2)
    for launch in range(3):
        placing.place(launch, set())
    barrier = placing.barrier(3)
    assert barrier.lane == 0
    assert {barrier.before, *barrier.awaited} == {0, 1, 2}
    behind = [placing.place(launch, set()) for launch in (4, 5, 6)]
    # the order follows from other waits anyway
    assert (behind[0].lane, behind[0].before, behind[0].awaited) == (0, 3, ())
    assert 0 not in {p.lane for p in behind[1:]}
    assert [p.awaited[0] for p in behind[1:]] == [3, 3]


def test_a_launch_that_the_recorder_guesses_at_stands_for_all_memory():
    g = with_trace(graph([1, 1], []), [[10.0]] * 2)
    free = "gap_ns=0,hop_ns=0,issue_ns=0,record_ns=0,wait_ns=0,check_ns=0"
    for form in ("captured=1,gap_ns=0,hop_ns=0", f"events=1,{free}"):
        g.launches["coverage"] = "exact"
        assert time_of(g, f"acs-sw:{form}") == 10
        g.launches.loc[1, "coverage"] = "conservative"
        assert time_of(g, f"acs-sw:{form}") == 20
