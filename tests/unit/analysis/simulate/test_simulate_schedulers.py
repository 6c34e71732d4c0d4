"""Each scheduler on a chain whose times can be computed by hand, and options from the command line."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_graphs import (
    DEVICE,
    all_to_all,
    block,
    durations,
    footprint,
    graph,
    one_to_one,
    random_graphs,
    trace,
)
from tests.unit.analysis.simulate.engine import plain_engine as reference
from tests.unit.analysis.simulate.launch_chains import chain, time_of, with_trace
from tileprof.analysis.bounds import Bounder, Machine
from tileprof.analysis.bounds.problem import problem, successors
from tileprof.analysis.simulate import SCHEDULERS, Simulator, life_model, scheduler
from tileprof.analysis.simulate.engine import event_loop as engine
from tileprof.analysis.simulate.scheduler import program_of
from tileprof.analysis.simulate.schedulers.acs import missed_notes
from tileprof.analysis.simulate.simulator import covered_ns
from tileprof.devices import Device, get
from tileprof.errors import UserError
from tileprof.trace.footprint import Boxes


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


LAUNCH_ONE_BY_ONE = (
    "stream",
    "graph",
    "graph:dependencies=1",
    "pdl",
    "streams:queues=32",
    "acs-sw",
    "acs-hw",
    "cusync:window=0",
    "blockmaestro",
)
HOST_LAUNCHES = ("stream", "pdl", "streams:queues=32", "acs-sw", "acs-sw:streams=32", "cusync:window=0", "blockmaestro")


def many_small_kernels():
    g = with_trace(graph([1] * 512, []), [[1000.0]] * 512)
    g.recording.device = get("H200")
    return g


@pytest.mark.parametrize("text", LAUNCH_ONE_BY_ONE)
def test_no_scheduler_that_launches_kernels_one_by_one_beats_the_host_issue_bound(text):
    g = many_small_kernels()
    bound = Bounder(g).of(1.0).ns["host issue"]
    assert bound == 511 * g.device.graph_issue_ns
    assert time_of(g, text) >= bound
    if text in HOST_LAUNCHES:
        assert time_of(g, text) >= 511 * g.device.host_issue_shared_ns


def test_every_scheduler_that_launches_kernels_is_held_to_the_host_issue_bound():
    whole = {
        "persistent",
        "persistent-dynamic",
        "inline",
        "ccks",
        "wireframe",
        "dataflow",
        "dataflow-bloom",
        "list",
    }  # one kernel, or no launches
    assert {text.partition(":")[0] for text in LAUNCH_ONE_BY_ONE} == set(SCHEDULERS) - whole


def test_host_threads_launch_side_by_side_up_to_what_they_share():
    h200 = get("H200")
    assert h200.issue_ns() == 3700
    assert h200.issue_ns(2) == 1850
    assert h200.issue_ns(8) == h200.issue_ns(32) == 1400


FREE_OF_COST = (
    "persistent-dynamic:signal_ns=0,decide_ns=0,deliver_ns=0,fetch_ns=0,scheduler_sms=0", "wireframe",
    "ccks:up_ns=0,down_ns=0,decide_ns=0,commit_ns=0,fetch_ns=0",
)  # fmt: skip


@pytest.mark.parametrize(("threads", "resident", "us"), [(64, 4, 20), (128, 2, 20), (64, 1, 30), (192, 1, 30)])
def test_a_worker_of_one_kernel_runs_as_many_small_tiles_as_it_holds(threads, resident, us):
    # One block of the second launch resides per SM, so a kernel of both has one worker of 256 threads there.
    g = with_trace(graph([4, 2], []), [[10.0] * 4, [10.0] * 2])
    g.launches["block_x"], g.launches["blocks_per_sm"] = [threads, 256], [resident, 1]
    assert {time_of(g, text) for text in FREE_OF_COST} == {us}
    assert time_of(g, "inline:fetch_ns=0") == 30.0  # one tile at a time


def test_a_cluster_takes_a_worker_of_one_kernel_for_each_of_its_blocks():
    # Two SMs: the cluster takes both, and each of the other launch's tiles takes one.
    g = with_trace(graph([2, 1], []), [[10.0] * 2, [10.0]])
    g.launches["block_x"], g.launches["blocks_per_sm"], g.launches["cluster_x"] = [256, 256], [1, 1], [1, 2]
    assert {time_of(g, text) for text in FREE_OF_COST} == {20.0}


def test_list_scheduling_passes_over_a_tile_that_fits_nowhere():
    # The second launch needs a whole SM; the third fits beside the first.
    g = with_trace(graph([2, 1, 2], []), [[10.0] * 2, [10.0], [10.0] * 2])
    g.launches["block_x"], g.launches["blocks_per_sm"] = [128, 256, 128], [2, 1, 2]
    actual = {name: Simulator(g).run(scheduler(name)) for name in ("list", "dataflow")}
    assert actual["list"].begin_ns.tolist() == [0, 0, 10, 0, 0]
    assert actual["dataflow"].begin_ns[3:].min() == 10


def test_a_wait_is_charged_once_per_producer_whatever_its_hazards():
    raw, waw = one_to_one(2, first=0.25), one_to_one(2, first=0.75)
    g = with_trace(graph([2, 2], [(0, 1, raw), (0, 1, waw)]), [[10.0] * 2] * 2)
    for inside in (0, 1):
        assert Simulator(g).run(scheduler(f"cusync:inside={inside}")).overheads_ns.get("loop waits", 0.0) == 0.0
    two = with_trace(graph([2, 2, 2], [(0, 2, raw), (1, 2, waw)]), [[10.0] * 2] * 3)
    assert Simulator(two).run(scheduler("cusync:inside=0,wait_ns=5")).overheads_ns["loop waits"] == 10


def test_dataflow_and_list_fill_the_last_waves():
    assert time_of(chain(), "dataflow") == 50
    assert time_of(chain(), "list") == 50


def test_ready_tiles_of_the_consumer_or_of_the_critical_path_may_go_first():
    # Launch 1 needs launch 0 tile by tile; launch 2 is long and needs nothing, 3 needs it.
    links = [(0, 1, one_to_one(4)), (2, 3, all_to_all(1, 1))]
    g = with_trace(graph([4, 4, 1, 1], links), [[10.0] * 4, [10.0] * 4, [40.0], [40.0]])
    g.launches["duration_ns"] = [20, 20, 40, 40]
    assert time_of(g, "dataflow") == 20 + 20 + 40 + 40
    assert time_of(g, "dataflow:priority=2") == 80
    consumer = Simulator(chain()).run(scheduler("dataflow:priority=1"))
    assert consumer.begin_ns[3] == 10
    assert Simulator(chain()).run(scheduler("dataflow")).begin_ns[2] == 10


def test_the_first_launch_of_a_kind_runs_behind_barriers():
    g = chain()  # three kinds
    first = Simulator(g).run(scheduler("dataflow:first=1"))
    assert (first.time_ns, first.notes) == (
        60,
        ("3 of 3 launches are the first of their kind and run behind barriers.",),
    )
    g.launches["footprint"] = 0
    again = Simulator(g).run(scheduler("dataflow:first=1"))
    assert (again.time_ns, again.notes) == (
        50,
        ("1 of 3 launches are the first of their kind and run behind barriers.",),
    )


def test_dependent_launches_say_who_has_work_before_the_wait():
    (note,) = Simulator(chain(first=0.5)).run(scheduler("pdl")).notes
    assert note.startswith("2 of 3 launches have work before they must wait, 50%")
    assert Simulator(chain(first=0.0)).run(scheduler("pdl")).notes == ()


def test_dependent_launches_run_their_prologue_beside_the_launch_before():
    assert time_of(chain(first=0.0), "pdl:signal_ns=0") == 60
    # The third tile of a launch ends its wait 20 ns in; a consumer in the other slot has done half of its work.
    assert time_of(chain(first=0.5), "pdl:signal_ns=0") < 60
    assert time_of(chain(first=0.5), "pdl:signal_ns=0,prologue=0") == 60


def test_a_late_trigger_leaves_slots_free_that_waiting_tiles_would_hold():
    g = chain(first=0.0)
    early, late = (Simulator(g).run(scheduler(f"pdl:signal_ns=0,{how}")) for how in ("trigger=0", "trigger=1"))
    assert (early.time_ns, late.time_ns) == (60, 60)
    assert late.waiting_ns < early.waiting_ns
    # The last tile of each launch runs from 10 to 20 ns; after half of it the next launch may start.
    half = Simulator(g).run(scheduler("pdl:signal_ns=0,trigger=0.5"))
    assert half.begin_ns[3] == 15
    assert Simulator(g).run(scheduler("pdl:signal_ns=0,recorded=1")).begin_ns[3] == 20  # stores continue until the end


def test_cusync_tiles_wait_for_their_own_parents():
    # Two launches under way; tile 2 of a launch runs beside tile 0 of the next.
    assert time_of(chain(), "cusync:post_ns=0,poll_ns=0,window=0") == 50
    assert time_of(chain(), "cusync:post_ns=1,poll_ns=0,window=0") == 55


def test_streams_overlap_what_is_independent():
    g = with_trace(graph([1, 1, 1], [(0, 2, all_to_all(1, 1)), (1, 2, all_to_all(1, 1))]), [[10.0]] * 3)
    assert time_of(g, "streams:gap_ns=0,sync_ns=0") == 20
    assert time_of(g, "streams:gap_ns=0,sync_ns=5") == 25
    assert time_of(g, "streams:gap_ns=0,sync_ns=0,queues=1") == 30


def queues_of(g, text):
    outcome = Simulator(g).run(scheduler(f"streams:gap_ns=0,sync_ns=0,{text}"))
    return outcome.time_ns, outcome.notes


def test_queues_that_the_hardware_does_not_watch_wait_for_the_end_of_a_quantum():
    # Launches 0 and 1 are independent; 2 needs 1; 3 needs nothing. Queues: {0}, {1, 2}, {3} with one watched at a time.
    g = with_trace(graph([1] * 4, [(1, 2, all_to_all(1, 1))]), [[10.0], [10.0], [10.0], [10.0]])
    assert queues_of(g, "queues=3") == (20, ())
    # An empty queue is unmapped at once: one queue after the other, without a quantum.
    assert queues_of(g, "queues=3,hardware=1,quantum_ns=1000") == (40, ())
    # Queue 0: launch 0, then 3, which needs 2 of queue 1. It occupies the only place until the quantum ends, and then 2
    # can run.
    blocked_chain = with_trace(graph([1] * 4, [(0, 3, all_to_all(1, 1)), (2, 3, all_to_all(1, 1))]), [[10.0]] * 4)
    assert queues_of(blocked_chain, "queues=3") == (30, ())
    time_ns, notes = queues_of(blocked_chain, "queues=3,hardware=1,quantum_ns=1000")
    assert time_ns >= 1010
    assert notes[0].startswith("1 time a queue") or notes[0].startswith("2 times a queue")


def test_queues_whose_launches_are_shorter_than_a_quantum_have_their_turns_until_all_has_run():
    """Two queues need each other's last launch, one is watched, and at the end of each quantum nothing runs any
    more.
    """
    links = [(2 * k + i, 2 * k + 2 + j, all_to_all(1, 1)) for k in range(5) for i in range(2) for j in range(2)]
    g = with_trace(graph([1] * 12, links), [[10.0]] * 12)
    schedule = Simulator(g).run(scheduler("streams:queues=2,hardware=1,quantum_ns=50,gap_ns=0,sync_ns=0"))
    assert not schedule.deadlock
    assert schedule.time_ns > 5 * 50


@pytest.mark.parametrize("priority", [1, 2])
def test_prioritised_queues_let_in_what_others_wait_for(priority):
    # A wavefront: many queues, most of which only wait. In turn, each quantum maps one of them; by priority, the
    # one that can run.
    links = [(i, i + 6, all_to_all(1, 1)) for i in range(18)] + [(i, i + 5, all_to_all(1, 1)) for i in range(19)]
    g = with_trace(graph([1] * 24, sorted(links, key=lambda link: link[:2])), [[10.0]] * 24)
    in_turn = queues_of(g, "queues=12,hardware=2,quantum_ns=100")[0]
    by_priority = queues_of(g, f"queues=12,hardware=2,quantum_ns=100,priority={priority}")[0]
    assert by_priority < in_turn
    assert queues_of(g, "queues=12")[0] <= by_priority


def test_acs_looks_no_further_than_its_window():
    g = with_trace(graph([1] * 3, [(0, 1, all_to_all(1, 1))]), [[10.0]] * 3)
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=0,check_ns=0") == 20
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=0,check_ns=0,window=2") == 20
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=0,check_ns=0,window=1") == 30
    # A launch that waited for another one, or for a place, begins when the host has seen that end.
    assert time_of(g, "acs-sw:gap_ns=1,sync_ns=5,check_ns=0") == 10 + 6 + 10
    assert time_of(g, "acs-sw:gap_ns=1,sync_ns=5,check_ns=0,window=2") == 10 + 6 + 10
    assert time_of(g, "acs-sw:gap_ns=1,sync_ns=5,check_ns=0,window=1") == 10 + 6 + 10 + 6 + 10


def test_the_window_of_acs_on_the_gpu_spares_the_way_to_the_host():
    g = with_trace(graph([1] * 3, [(0, 1, all_to_all(1, 1))]), [[10.0]] * 3)
    assert time_of(g, "acs-hw:gap_ns=0,check_ns=0,send_ns=0") == 20
    assert time_of(g, "acs-hw:gap_ns=5,check_ns=1,send_ns=0") == 1 + 10 + 6 + 10
    assert time_of(g, "acs-hw:gap_ns=0,check_ns=0,send_ns=30") == 70


def test_acs_compares_ranges_unless_it_is_asked_for_bytes():
    # Even and odd rows of one buffer: two writers that share no byte, but whose ranges overlap.
    rows = [Boxes.of(tile=0, operand=0, mode=1, offset=8 * i, length=8, count_0=4, stride_0=16) for i in (0, 1)]
    g = graph([1, 1], [])
    g.recording = trace(
        [{"footprint": i, "timing": "modelled"} for i in (0, 1)],
        {i: footprint(1, rows[i], duration_ns=[10.0]) for i in (0, 1)},
        operands=[{"launch": i, "operand": 0, "buffer": 0} for i in (0, 1)],
        buffers=[{"buffer": 0, "base": 1 << 20, "bytes": 64}],
    )
    free = "gap_ns=0,check_ns=0,segment_ns=0"
    assert time_of(g, f"acs-sw:{free},sync_ns=0") == 20
    assert time_of(g, f"acs-sw:{free},sync_ns=0,exact=1") == 10
    assert time_of(g, f"acs-hw:{free},send_ns=0") == 20
    assert time_of(g, f"acs-hw:{free},send_ns=0,exact=1") == 10


def test_what_acs_has_a_table_of_reads_whole_buffers_unless_it_is_fine():
    halves = [Boxes.of(tile=0, operand=0, mode=mode, offset=32 * mode, length=32) for mode in (1, 0)]
    g = graph([1, 1], [])
    g.recording = trace(
        [{"footprint": i, "timing": "modelled"} for i in (0, 1)],
        {i: footprint(1, halves[i], duration_ns=[10.0]) for i in (0, 1)},
        operands=[{"launch": i, "operand": 0, "buffer": 0} for i in (0, 1)],
        buffers=[{"buffer": 0, "base": 1 << 20, "bytes": 64}],
    )
    for form in ("captured=1,gap_ns=0,hop_ns=0", "events=1,gap_ns=0,hop_ns=0,issue_ns=0,check_ns=0,segment_ns=0"):
        assert time_of(g, f"acs-sw:{form}") == 20
        assert time_of(g, f"acs-sw:{form},fine=1") == 10
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=0,check_ns=0,segment_ns=0") == 10


def test_streams_of_acs_are_fewer_than_places_in_its_window():
    g = with_trace(graph([1] * 4, []), [[10.0]] * 4)
    free = "acs-sw:gap_ns=0,sync_ns=0,check_ns=0,segment_ns=0"
    assert time_of(g, free) == 20  # two SMs
    assert time_of(g, f"{free},streams=1") == 40
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=3,check_ns=0,segment_ns=0,streams=1") == 4 * 10 + 3 * 3
    assert time_of(g, f"{free},issue_ns=7") == 3 * 7 + 10


def test_a_check_costs_by_pairs_of_segments():
    g = with_trace(graph([1] * 3, []), [[10.0]] * 3)
    g.recording.operands = pd.DataFrame({"launch": [0, 0, 1, 2, 2, 2]})
    # Launch 1 compares 1 segment with 2, launch 2 its 3 with 3.
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=0,check_ns=0,segment_ns=10") == 20 + 90 + 10
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=0,check_ns=0,segment_ns=10,threads=2") == 10 + 45 + 10
    assert time_of(g, "acs-sw:gap_ns=0,sync_ns=0,check_ns=0,segment_ns=10,window=1") == 20 + 30 + 10
    assert time_of(g, "acs-hw:gap_ns=0,send_ns=1,check_ns=0,segment_ns=10") == 1 + 20 + 1 + 90 + 10


@pytest.mark.parametrize("name", ["acs-sw", "acs-hw"])
def test_the_published_check_misses_what_is_only_read(name):
    links = [(i, i + 1, one_to_one(2)) for i in range(3)]
    g = with_trace(graph([2] * 4, links), [[10.0] * 2] * 4)
    g.links["hazard"] = ["RAW", "WAR", "RAW"]
    host = "send_ns=0" if name == "acs-hw" else "segment_ns=0"
    outcome = Simulator(g).run(scheduler(f"{name}:published=1,check_ns=0,{host}"))
    assert "misses 2 of 3 dependent pairs of launches (RAW): 0 to 1, 2 to 3." in outcome.notes[0]
    assert outcome.time_ns < Simulator(g).run(scheduler(f"{name}:check_ns=0,{host}")).time_ns
    assert Simulator(g).run(scheduler(name)).notes == ()


def test_a_chain_of_checked_launches_keeps_what_the_check_misses():
    assert missed_notes([{}, {0: {"WAW"}}, {1: {"WAR"}, 0: {"RAW"}}], [set(), {0}, {1}])[0].endswith(
        "no dependency here."
    )
    assert "misses 1 of 1" in missed_notes([{}, {0: {"RAW"}}], [set(), set()])[0]


def test_static_lists_wait_inside_and_cost_a_signal():
    g = with_trace(graph([2, 1], [(0, 1, one_to_one(1))]), [[10.0] * 2, [10.0]])
    assert time_of(g, "persistent:signal_ns=0") == 20
    assert time_of(g, "persistent:signal_ns=3,fetch_ns=1") == 11 + 3 + 11
    wide = with_trace(graph([2], []), [[10.0] * 2])
    assert time_of(wide, "persistent") == 10  # no SM is set apart


def test_a_persistent_kernel_sets_sms_apart_and_pays_for_every_hop():
    g = with_trace(graph([1, 1], [(0, 1, one_to_one(1))]), [[10.0], [10.0]])
    free = "persistent-dynamic:signal_ns=0,decide_ns=0,deliver_ns=0,fetch_ns=0"
    assert time_of(g, free) == 20
    assert time_of(g, "persistent-dynamic:signal_ns=1,decide_ns=2,deliver_ns=4,fetch_ns=8") == (2 + 4 + 18) + (
        1 + 2 + 4 + 18
    )
    wide = with_trace(graph([2], []), [[10.0] * 2])
    assert time_of(wide, free) == 20
    assert time_of(wide, f"{free},scheduler_sms=0") == 10
    with pytest.raises(UserError, match="reserves 2 SMs, but the GPU has 2"):
        time_of(wide, f"{free},scheduler_sms=2")


def test_schedulers_of_a_persistent_kernel_are_a_bottleneck():
    g = with_trace(graph([8], []), [[0.0] * 8])
    assert time_of(g, "persistent-dynamic:signal_ns=0,decide_ns=10,deliver_ns=0,fetch_ns=0") == 20  # four servers
    schedule = Simulator(g).run(scheduler("persistent-dynamic:decide_ns=10"))
    assert schedule.overheads_ns["decisions"] == 80


def test_the_cpu_decides_over_a_link_unless_it_is_bypassed_or_was_ahead():
    costs = "up_ns=100,down_ns=200,decide_ns=1,commit_ns=10,fetch_ns=0,local_ns=7,threads=1"
    g = with_trace(graph([1, 1], [(0, 1, one_to_one(1))]), [[10.0], [10.0]])
    first = 11 + 200 + 10
    assert time_of(g, f"ccks:{costs},speculate=0,bypass=0") == first + 100 + 11 + 200 + 10
    assert time_of(g, f"ccks:{costs},speculate=0,bypass=1") == first + 7 + 10
    # With work ahead, the second decision is made with the first, in a batch of two.
    assert time_of(g, f"ccks:{costs},speculate=1,bypass=0") == 12 + 200 + 10 + 7 + 10
    assert time_of(g, f"ccks:{costs},speculate=1,bypass=0,batch=1") == first + 7 + 10
    # With a window of one, it is made when the report of the first has arrived.
    assert time_of(g, f"ccks:{costs},speculate=1,bypass=0,window=1") == first + 100 + 11 + 200 + 10


def test_the_link_of_the_cpu_is_the_devices_for_as_many_blocks_as_it_has_sms():
    toy = Device.from_dict({**DEVICE, "link_trip_ns": {"ring": {"2": 400, "8": 1600}, "relay": {"2": 60}}})
    g = with_trace(graph([1, 1], [(0, 1, one_to_one(1))]), [[10.0], [10.0]])
    g.recording.device = toy
    costs = "decide_ns=0,commit_ns=0,fetch_ns=0,speculate=0,bypass=0"
    first = 200 + 10
    assert time_of(g, f"ccks:{costs}") == first + 200 + first
    assert time_of(g, f"ccks:{costs},up_ns=1") == first + 1 + first
    assert time_of(g, f"ccks:{costs},way=2") == 30 + 10 + 30 + 30 + 10
    assert time_of(g, f"ccks:{costs},way=relay") == time_of(g, f"ccks:{costs},way=2")
    with pytest.raises(UserError, match="way=moon; expected one of ring, host, relay, copy, write, batch"):
        scheduler("ccks:way=moon")
    with pytest.raises(UserError, match="no times of the link by way of 'copy'"):
        time_of(g, f"ccks:{costs},way=3")


def test_blocks_of_the_next_kernel_wait_for_their_parents_and_kernels_leave_in_order():
    assert time_of(chain(), "blockmaestro:gap_ns=0,update_ns=0,window=3") == 50
    g = with_trace(graph([1, 1, 1], []), [[50.0], [10.0], [10.0]])
    # The second kernel has ended, but not the first, so the third waits.
    assert time_of(g, "blockmaestro:gap_ns=0,update_ns=0") == 60
    assert time_of(g, "blockmaestro:gap_ns=0,update_ns=0,window=3") == 50


def test_counters_and_buffers_that_are_too_small_cost_time():
    g = with_trace(graph([3, 1], [(0, 1, all_to_all(3, 1))]), [[10.0] * 3, [10.0]])
    assert time_of(g, "blockmaestro:gap_ns=0,update_ns=1") == 31
    assert time_of(g, "blockmaestro:gap_ns=0,update_ns=1,counter=3,entries=3") == 31
    coarse = Simulator(g).run(scheduler("blockmaestro:gap_ns=3,update_ns=1,counter=2"))
    assert (coarse.time_ns, coarse.notes) == (
        31,
        ("1 launches wait for whole launches: a tile has more than 2 parents.",),
    )
    uneven = with_trace(
        graph([3, 2], [(0, 1, block([[(0, 1.0, 0.0)], [(0, 1.0, 0.0), (1, 1.0, 0.0)]], [0, 1]))]),
        [[1.0, 9.0, 5.0], [1.0] * 2],
    )
    ahead = Simulator(uneven).run(scheduler("blockmaestro:gap_ns=0,update_ns=0"))
    behind = Simulator(uneven).run(scheduler("blockmaestro:gap_ns=0,update_ns=0,counter=1"))
    assert ahead.begin_ns[3] < ahead.end_ns[:3].max()
    assert behind.begin_ns[3:].min() >= behind.end_ns[:3].max()  # the second has too many parents, so both wait for all
    memory = Simulator(g).run(scheduler("blockmaestro:gap_ns=0,update_ns=1,memory_ns=9,entries=2"))
    assert (memory.time_ns, memory.notes) == (39, ("1 launches have their dependencies in memory: more than 2.",))


def test_a_task_graph_in_hardware_runs_no_further_ahead_than_its_nodes():
    assert time_of(chain(), "wireframe:signal_ns=0") == 50
    assert time_of(chain(), "wireframe:signal_ns=0,nodes=1") == 90
    spill_run = Simulator(chain()).run(scheduler("wireframe:signal_ns=0,nodes=2,pending=0,spill_ns=50"))
    assert spill_run.time_ns > time_of(chain(), "wireframe:signal_ns=0,nodes=2,spill_ns=50")
    assert "were noted in memory" in spill_run.notes[0]


def test_hazards_of_recycled_memory_hold_back_all_but_those_who_rename():
    g = with_trace(graph([1, 1], [(0, 1, all_to_all(1, 1), True)]), [[10.0]] * 2)
    for name in (
        "streams:gap_ns=0,sync_ns=0",
        "acs-sw:gap_ns=0",
        "acs-hw:gap_ns=0",
        "dataflow",
        "persistent",
        "persistent-dynamic",
        "ccks",
        "wireframe",
        "blockmaestro:gap_ns=0",
        "dataflow-bloom",
        "graph:gap_ns=0,dependencies=1",
    ):
        assert time_of(g, name) >= 20, name
    assert time_of(g, "list") == 10


SHARING = ("co-residency-scaled:sensitivity=1", "shared-roofline")
CORNERS = (
    "pdl:trigger=0.5",
    "pdl:recorded=1",
    "streams:queues=4,hardware=1,quantum_ns=3",
    "streams:queues=4,hardware=2,quantum_ns=2,priority=2",
    "ccks:up_ns=0,down_ns=0,decide_ns=0,commit_ns=0,local_ns=0,fetch_ns=0",
    "ccks:speculate=0,bypass=3,batch=1",
    "persistent-dynamic:signal_ns=0,decide_ns=0,deliver_ns=0,fetch_ns=0,scheduler_sms=0",
    "blockmaestro:window=3,counter=1,gap_ns=0,update_ns=0",
    "blockmaestro:counter=0,gap_ns=0",
    "wireframe:nodes=1,pending=0",
    "wireframe:nodes=3,pending=1,signal_ns=0,spill_ns=0",
    "dataflow-bloom:flush=1",
    "acs-hw:window=1",
    "dataflow:priority=1,window=2",
    "dataflow:priority=2,first=1",
    "inline:policy=1,spawn_ns=0,fetch_ns=0",
    "inline:policy=2,spawn_ns=0,fetch_ns=0",
    "inline:spawn_ns=1,fetch_ns=1",
)


@settings(deadline=None, max_examples=40)
@given(random_graphs(), st.integers(1, 3), st.sampled_from(["recorded", *SHARING]))
def test_no_scheduler_beats_the_bound_or_ends_in_a_deadlock(case, blocks_per_sm, model):
    g, lives = case
    with_trace(g, lives, block_x=64, blocks_per_sm=blocks_per_sm)
    machine = Machine(g.device, blocks_per_sm=blocks_per_sm)
    simulator = Simulator(g, machine, life_model(model))
    bounds = Bounder(g, machine, simulator.lives.shortest(g.recording, machine, simulator.recorded)).of(1.0)
    for name in (*SCHEDULERS, *CORNERS):
        if model != "recorded" and name.startswith("inline"):
            with pytest.raises(UserError, match="does not support --durations"):
                simulator.run(scheduler(name))
            continue
        schedule = simulator.run(scheduler(name))
        assert not schedule.deadlock, name
        assert schedule.time_ns >= bounds.bound_ns - 1e-9, name
        assert 0 <= schedule.busy <= 1 + 1e-9, name
    list_ns = simulator.run(scheduler("list")).time_ns
    assert list_ns >= bounds.ready_ns - 1e-9


@settings(deadline=None, max_examples=30)
@given(random_graphs())
def test_what_schedulers_ask_for_is_the_same_in_both_engines(case):
    g, lives = case
    with_trace(g, lives, block_x=64, blocks_per_sm=2)
    for name in (*SCHEDULERS, *CORNERS):
        entry = scheduler(name)
        p = problem(g, durations(lives), reuse=not entry.renames, unknown_first=0.0)
        plan = entry.draft(program_of(g)).plan()
        ones = np.ones(len(lives), np.int64)
        room = engine.Room(2, ones[:, None], ones, np.array([2], np.int64), 1000 * ones)
        fast, plain = engine.run(p, successors(p), plan, room), reference.run(p, plan, room)
        assert fast.end_ns.tolist() == plain.end_ns.tolist(), name


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
    inside = Simulator(g).run(scheduler("cusync:post_ns=0,poll_ns=5,inside=1"))
    assert (inside.time_ns, inside.waiting_ns, inside.gap_ns) == (25.0, 15.0, 0.0)
    stream = Simulator(g).run(scheduler("stream"))
    assert (stream.time_ns, stream.waiting_ns, stream.gap_ns, stream.busy) == (120.0, 0.0, 100.0, 20 / 240)


def test_idle_time_at_the_ends_of_launches_is_that_of_the_whole_gpu():
    # Three tiles on two slots: one is idle for 10 ns after the last dispatch, both in the gap of 100.
    outcome = Simulator(chain()).run(scheduler("stream"))
    assert outcome.boundary_ns == pytest.approx(2 * (5 + 100))
    assert outcome.overheads_ns == {"gaps": 200.0}
    assert Simulator(chain()).run(scheduler("list")).boundary_ns == 0


def test_every_scheduler_cites_its_source():
    for entry in SCHEDULERS.values():
        text = " ".join(type(entry).__doc__.split())
        assert any(word in text for word in ("Guide", "et al.", "proposal", "1966")), entry.name


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted), max_size=6))
def test_covered_time_is_the_length_of_the_union(intervals):
    begin, end = (np.array([i[k] for i in intervals], np.float64) for k in (0, 1))
    assert covered_ns(begin, end) == len({x for a, b in intervals for x in range(a, b)})


def test_waits_in_the_loop_are_an_overhead_of_their_own():
    relation = block([[(0, 1.0, 0.0), (1, 1.0, 0.5)]], [0, 0])
    g = with_trace(graph([2, 2], [(0, 1, relation)]), [[10.0] * 2] * 2)
    outcome = Simulator(g).run(scheduler("cusync:inside=1,wait_ns=6,post_ns=1"))
    assert outcome.overheads_ns == {"posts": 4.0, "loop waits": 12.0}


def test_what_a_simulation_claims_follows_from_its_lives():
    g = with_trace(graph([1], []), [[1.0]], flops=10**12)
    least_ns = Bounder(g, None, Simulator(g).recorded).of(1.0)
    assert least_ns.ns["compute"] > least_ns.bound_ns
    assert least_ns.binding in ("area", "wait-inside path")
    assert Bounder(g).of(1.0).binding == "compute"
