"""Bounds of whole programs: each is below every schedule, and has the value that its definition gives."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_graphs import (
    DEVICE,
    all_to_all,
    footprint,
    graph,
    list_oracle,
    one_to_one,
    random_graphs,
    trace,
)
from tileprof.analysis.bounds import ANY, ASSUMPTIONS, MEASURED, MODELLED, ROOFLINE, SPREAD, Bounder, Machine
from tileprof.analysis.bounds.machine import dual_feasible
from tileprof.analysis.bounds.rates import compute_ns
from tileprof.devices import Device
from tileprof.errors import UserError
from tileprof.trace.footprint import Boxes


def with_trace(g, lives, **launch):
    footprints = {i: footprint(len(life), duration_ns=life) for i, life in enumerate(lives)}
    g.recording = trace(
        [{"footprint": i, "timing": "modelled", "block_x": 64, **launch} for i in footprints], footprints
    )
    return g


@settings(deadline=None)
@given(random_graphs(), st.integers(1, 4))
def test_no_schedule_is_below_any_bound(case, blocks_per_sm):
    g, lives = case
    bounds = Bounder(with_trace(g, lives, blocks_per_sm=blocks_per_sm)).of(100.0)
    slots = g.device.sms * blocks_per_sm
    schedule = max(list_oracle(g, lives, [1] * len(lives), slots, reuse=False))
    assert bounds.listed_ns == schedule
    assert bounds.listed_reuse_ns == max(list_oracle(g, lives, [1] * len(lives), slots, reuse=True))
    for name in (*ANY, "ready-gated path", "head and tail"):
        assert bounds.ns[name] <= schedule + 1e-9, name
    assert bounds.bound_ns <= bounds.ready_ns
    assert bounds.ns["wait-inside path"] <= bounds.ns["ready-gated path"]


@settings(deadline=None)
@given(random_graphs(), st.integers(1, 4))
def test_the_list_schedule_is_within_grahams_factor_of_the_bounds(case, blocks_per_sm):
    g, lives = case
    bounds = Bounder(with_trace(g, lives, blocks_per_sm=blocks_per_sm)).of(100.0)
    slots = g.device.sms * blocks_per_sm
    area_ns = sum(map(sum, lives)) / slots
    assert bounds.listed_ns <= area_ns + (1 - 1 / slots) * bounds.ns["ready-gated path"] + 1e-9
    assert bounds.listed_ns <= (2 - 1 / slots) * max(area_ns, bounds.ns["ready-gated path"]) + 1e-9


def test_area_counts_the_scarcest_resource():
    # 128 of 256 threads per block: two fit an SM, four on the GPU; eight tiles of 10 ns need 20 ns.
    g = with_trace(graph([8], []), [[10.0] * 8], block_x=128, blocks_per_sm=2)
    bounds = Bounder(g).of(50.0)
    assert bounds.resources_ns["threads"] == bounds.ns["area"] == 20.0
    assert bounds.resources_ns["block slots"] == 10.0
    assert (bounds.binding, bounds.bound_ns, bounds.gain) == ("area", 20.0, 0.6)


def test_blocks_of_which_two_fit_count_as_halves():
    # 96 of 256 threads: 2.67 would fit, 2 do.
    g = with_trace(graph([8], []), [[10.0] * 8], block_x=96, blocks_per_sm=2)
    assert Bounder(g).of(50.0).ns["area"] == 20.0


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(1, 8))
def test_dual_feasible_values_of_what_fits_an_sm_sum_to_at_most_one(sizes, k):
    fitting = list(itertools.takewhile(lambda total: total <= 12, itertools.accumulate(sizes)))
    shares = np.array(sizes[: len(fitting)], np.float64) / 12
    assert dual_feasible(shares, k).sum() <= 1 + 1e-9


def test_head_and_tail_add_what_must_come_before():
    # One tile of 10 ns, then 16 tiles of 10 ns on 2 slots: 90 ns; area alone says 85.
    g = with_trace(graph([1, 16], [(0, 1, all_to_all(1, 16))]), [[10.0], [10.0] * 16], blocks_per_sm=1, block_x=256)
    bounds = Bounder(g).of(200.0)
    assert bounds.ns["area"] == 85.0
    assert bounds.ns["head and tail"] == 90.0 == bounds.listed_ns
    assert bounds.ready_ns == 90.0
    assert bounds.bound_ns == 85.0


def test_a_pair_is_bounded_without_its_neighbours():
    g = graph([2, 2, 2], [(0, 1, one_to_one(2)), (1, 2, one_to_one(2))])
    bounder = Bounder(with_trace(g, [[10.0] * 2] * 3))
    assert bounder.of(60.0).ns["ready-gated path"] == 30.0
    assert bounder.of(40.0, [0, 1]).ns["ready-gated path"] == 20.0
    assert bounder.of(40.0, [0, 2]).ns["ready-gated path"] == 10.0


def test_compute_and_dram_follow_the_operands():
    read_all = Boxes.of(tile=0, operand=0, mode=0, offset=0, length=1001)
    t = trace(
        [
            {"footprint": 0, "flops": 8_000_000, "duration_ns": 10},
            {"footprint": 0, "flops": 8_000_000, "duration_ns": 10},
        ],
        {0: footprint(1, read_all)},
        operands=[{"launch": i, "operand": 0, "buffer": i} for i in range(2)],
        buffers=[{"buffer": 0, "dtype": "float16"}, {"buffer": 1, "dtype": "torch.float32"}],
        device=Device.from_dict({**DEVICE, "graph_issue_ns": 30}),
    )
    bounds = Bounder(graph([1, 1], [], t)).of(20.0)
    assert bounds.ns["compute"] == pytest.approx(8e6 / 4e12 * 1e9 + 8e6 / 1e12 * 1e9)
    assert bounds.dram_bytes == 2002
    assert bounds.ns["DRAM"] == pytest.approx(2001 / 1e12 * 1e9)  # minus the one byte of L2
    assert bounds.ns["host issue"] == 30  # the first kernel need not wait for a launch


def test_bytes_of_a_workspace_are_no_type_of_operands():
    """The first launch writes one beside float32, the second reads and writes nothing else: any unit may compute it."""
    t = trace(
        [{"footprint": 0, "flops": 8_000_000, "duration_ns": 10}] * 2,
        {0: footprint(1)},
        operands=[{"launch": i, "operand": o, "buffer": b} for i, o, b in ((0, 0, 0), (0, 1, 1), (1, 0, 1))],
        buffers=[{"buffer": 0, "dtype": "float32"}, {"buffer": 1, "dtype": "uint8", "kind": "workspace"}],
        device=Device.from_dict({**DEVICE, "peak_flops": {"fp32": 1e12, "fp16": 4e12, "int8": 8e12}}),
    )
    assert compute_ns(t, t.device).tolist() == [8000.0, 1000.0]
    t.buffers["kind"] = "input"
    assert compute_ns(t, t.device).tolist() == [1000.0, 1000.0]


def test_durations_come_from_blocks_that_were_timed_then_from_the_model_then_from_the_launch():
    t = trace(
        [
            {"footprint": 0, "timing": "measured", "duration_ns": 36},
            {"footprint": 0, "timing": "modelled", "duration_ns": 50},
            {"footprint": 1, "timing": "measured", "duration_ns": 60},
            {"footprint": 2, "timing": "measured", "flops": 8000},
        ],
        {0: footprint(3, duration_ns=[1.0, np.nan, 3.0]), 1: footprint(5), 2: footprint(5)},
        times=[{"launch": 0, "tile": i, "begin_ns": 2, "end_ns": 10 + i} for i in (0, 2)],
    )
    bounder = Bounder(graph([3, 3, 5, 5], [], t))
    durations = bounder.durations
    assert durations.source == [MEASURED, MODELLED, SPREAD, ROOFLINE]
    # 8, 9 and 10 ns in the blocks pass, 18 on two slots; the launch took 36 without it.
    assert durations.of(0, 3).tolist() == [16.0, 18.0, 20.0]
    assert durations.calibration == {0: 2.0}
    assert durations.sums(np.array([3, 3, 5, 5])).tolist()[:3] == [54.0, 6.0, 100.0]
    assert durations.of(1, 3).tolist() == [1.0, 2.0, 3.0]
    assert durations.of(2, 5).tolist() == [20.0] * 5  # three waves on two slots
    sustained_rate = t.device.sustained_flops("fp16") / 1e9
    assert durations.of(3, 5) == pytest.approx([8000 / sustained_rate / 3 + 1000] * 5)
    assert bounder.launch_ns[3] == pytest.approx(8000 / sustained_rate + 3000)


def test_a_graph_with_a_cycle_is_refused_with_the_cycle():
    links = [(0, 1, one_to_one(1)), (1, 2, one_to_one(1)), (2, 0, one_to_one(1))]
    with pytest.raises(UserError, match=r"has a cycle.*: 0 → 1 → 2 → 0"):
        Bounder(with_trace(graph([1] * 3, links), [[1.0]] * 3)).of(1.0)
    with pytest.raises(UserError, match="launch 0 depends on launch 1, which is issued after it"):
        Bounder(with_trace(graph([1] * 2, [(1, 0, one_to_one(1))]), [[1.0]] * 2)).of(1.0)


def test_kernels_of_different_occupancy_share_one_pool():
    t = trace([{"footprint": 0, "blocks_per_sm": b} for b in (2, 3)], {0: footprint(1)})
    units, capacity = Machine(t.device).units(t.launches)
    assert (units.tolist(), capacity) == ([3, 2], 12)


def test_an_impossible_machine_is_refused():
    device = trace([], {}).device
    with pytest.raises(UserError, match="at least one SM"):
        Machine(device, sms=-1)
    with pytest.raises(UserError, match="at least one block"):
        Machine(device, blocks_per_sm=0)


def test_every_bound_says_what_it_assumes():
    bounds = Bounder(with_trace(graph([1], []), [[1.0]])).of(1.0)
    assert set(bounds.ns) | {"list schedule"} == set(ASSUMPTIONS)
    assert set(bounds.to_json()["bounds_ns"]) == set(bounds.ns)
