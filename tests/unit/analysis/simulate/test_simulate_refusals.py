"""Refusals give a reason: deadlocks, devices and clusters that do not fit, unknown options."""

import pytest

from tests.support.synthetic_graphs import all_to_all, graph
from tests.unit.analysis.simulate.launch_chains import chain, time_of, with_trace
from tileprof.analysis.bounds import Machine
from tileprof.analysis.simulate import SCHEDULERS, Simulator, scheduler
from tileprof.analysis.simulate.engine.plan import Draft
from tileprof.errors import UserError


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
    assert schedule.deadlock == (
        "launch 1 tile 0 holds its slot and waits for launch 0 tile 0, which has not ended; launch 0 tile 0 cannot be "
        "dispatched: "
        "tiles of launch 1 hold the slots; that is a cycle through launch 1: 2 tiles hold slots and wait"
    )
    assert schedule.to_json()["time_ns"] is None


def test_launches_that_wait_for_each_other_are_named():
    class Crossed:
        name, renames = "crossed", False

        def draft(self, program):
            return Draft(program.count, after=[set(), {3}, {1}, {2}])

    schedule = Simulator(with_trace(graph([1] * 4, []), [[1.0]] * 4)).run(Crossed())
    assert schedule.deadlock == (
        "launch 1 never opens before launch 3 ends; launch 3 never opens before launch 2 ends; launch 2 never opens "
        "before launch 1 ends; "
        "that is a cycle through launch 1"
    )


def test_a_device_too_small_for_a_block_is_refused_with_the_launch():
    g = with_trace(graph([1], []), [[1.0]], block_x=512, kernel="wide")
    assert time_of(g, "stream") == 1.0  # it ran on its own device, so it fits
    with pytest.raises(UserError, match=r"too small for launch 0 \(wide\).* exceeds its threads"):
        Simulator(g, Machine(g.device, foreign=True))


def test_a_foreign_device_has_its_own_occupancy():
    g = with_trace(graph([8], []), [[1.0] * 8], block_x=64, blocks_per_sm=1)
    assert time_of(g, "stream") == 4.0
    assert Simulator(g, Machine(g.device, foreign=True)).run(scheduler("stream")).time_ns == 1.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stream:gap=2", "write gap=2us or gap_ns=2000"),
        ("stream:gap=us", "write gap=2us"),
        ("stream:gap_ns=inf", "expected at least 0"),
        ("stream:gap_ns=nan", "expected at least 0"),
        ("dataflow-bloom:hashes=0", "at least 1"),
        ("persistent-dynamic:scheduler_sms=0.5", "whole number"),
        ("strem", "did you mean stream?"),
        ("ccks-ready", "the simulator has it as ccks:speculate=0"),
        ("pdl:prolog=1", "did you mean prologue?"),
        ("pdl:prologue=2", "at most 1"),
        ("cusync:window=2,window=3", "window is given twice, as 2 and 3"),
        ("cusync:poll=1us,poll_ns=5", "poll_ns is given twice"),
        ("cusync:", "cusync alone"),
        ("cusync:window=2,", "is not key=value"),
        ("pdl:signal=1e300us", "at most 1e+12"),
        ("pdl:signal_ns=nan", "signal_ns is nan"),
        ("cusync:window=" + "9" * 400, "window is 999999… (400 digits)"),
        ("acs-sw:threads=1000001", "at most 1000000"),
        ("wireframe:nodes=1000001", "at most 1000000"),
        ("stream:gap_ns=-1", "at least 0"),
        ("streams:queues=1.5", "whole number"),
        ("stream:gap_ns=fast", "is not a number"),
        ("stream:gap_ns", "is not key=value"),
    ],
)
def test_bad_schedulers_are_answered_with_what_there_is(text, says):
    with pytest.raises(UserError, match="scheduler") as error:
        scheduler(text)
    assert says in str(error.value)


def test_a_time_may_carry_its_unit():
    assert scheduler("stream:gap=2us") == scheduler("stream:gap_ns=2000")
    assert time_of(chain(), "stream:gap=0.001us") == 62


def test_a_cluster_that_never_fits_is_refused_with_its_launch():
    g = with_trace(graph([1, 2], []), [[1.0], [1.0] * 2], cluster_x=4, blocks_per_sm=1, grid_x=8)
    with pytest.raises(UserError, match=r"cluster of 4 blocks of launch 0 needs 4 SMs .* the machine holds 2"):
        Simulator(g)
    assert not Simulator(g, Machine(g.device, sms=4)).run(scheduler("stream")).deadlock


def test_sms_set_apart_are_missing_for_a_cluster():
    g = with_trace(graph([1], []), [[1.0]], cluster_x=2, blocks_per_sm=1, grid_x=2)
    with pytest.raises(UserError, match="needs 2 SMs"):
        Simulator(g).run(scheduler("persistent-dynamic:scheduler_sms=1"))


def test_a_persistent_launch_is_no_faster_on_a_larger_gpu():
    g = with_trace(graph([6], []), [[10.0] * 6], grid_x=2)
    assert Simulator(g, Machine(g.device, sms=6)).run(scheduler("list")).time_ns == 30


def test_a_prologue_beyond_what_is_safe_is_called_no_valid_schedule():
    def message_of(text):
        return " ".join(Simulator(chain(first=0.5)).run(scheduler(text)).notes)

    assert "No valid schedule of the program as recorded: with prologue=0.75 tiles of 2 of 3" in message_of(
        "pdl:prologue=0.75"
    )
    assert "No valid schedule" not in message_of("pdl:prologue=0.5")
    assert "No valid schedule" not in message_of("pdl")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"sms": 10**9}, "at most 100,000 SMs"), ({"blocks_per_sm": 10**9}, "at most 10,000 blocks")],
)
def test_machines_beyond_any_gpu_are_refused(arguments, says):
    with pytest.raises(UserError, match=says):
        Machine(chain().device, **arguments)
