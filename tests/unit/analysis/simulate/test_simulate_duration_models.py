"""Duration models: how tiles that run side by side change each other's durations."""

import numpy as np
import pytest

from tests.support.synthetic_graphs import DEVICE, Boxes, all_to_all, footprint, graph, trace
from tileprof.analysis.simulate import Simulator, life_model, scheduler
from tileprof.devices import Device
from tileprof.errors import UserError


def independent(bytes_each, *, launches=2, ns=1000.0, flops=0, tiles=1, first=0.0):
    """Return launches that read separate bytes, or of which the second needs the first after a share of its work."""
    box = Boxes.of(tile=0, operand=0, mode=0, offset=0, length=bytes_each)
    read = footprint(tiles, box, duration_ns=ns)
    rows = [
        {
            "footprint": 0,
            "timing": "modelled",
            "block_x": 64,
            "blocks_per_sm": 4,
            "duration_ns": int(ns),
            "flops": flops,
        }
    ] * launches
    device = Device.from_dict({**DEVICE, "sustained": {"dram_bytes_per_s": 1e12, "fp16": 4e12}})
    g = graph([tiles] * launches, [] if first == 0 else [(0, 1, all_to_all(tiles, tiles, first=first))])
    g.recording = trace(rows, {0: read}, device=device)
    return g


def time_of(g, model, text="list"):
    return Simulator(g, lives=life_model(model)).run(scheduler(text)).time_ns


def test_recorded_lives_do_not_depend_on_what_runs_beside():
    assert time_of(independent(10**9, launches=8), "recorded") == 1000


def test_tiles_share_the_dram_bandwidth_and_are_never_faster_than_recorded():
    # 1e12 bytes/s: a thousand bytes a nanosecond; each launch alone takes half of it.
    g = independent(500_000, launches=4)
    assert time_of(g, "shared-roofline") == pytest.approx(2000, rel=1e-6)
    assert time_of(independent(500_000, launches=2), "shared-roofline") == pytest.approx(1000, rel=1e-6)
    assert time_of(independent(100), "shared-roofline") == 1000


def test_time_lost_to_others_is_no_wait():
    outcome = Simulator(independent(500_000, launches=4), lives=life_model("shared-roofline")).run(scheduler("list"))
    assert outcome.waiting_ns == pytest.approx(0, abs=1e-6)
    assert outcome.overheads_ns["slowed"] == pytest.approx(4000, rel=1e-6)


def test_a_launch_alone_runs_as_recorded_whatever_it_moves():
    assert time_of(independent(10**9, launches=1), "shared-roofline") == 1000


def test_tiles_share_the_arithmetic():
    assert time_of(independent(0, launches=3, flops=4_000_000), "shared-roofline") == pytest.approx(3000, rel=1e-6)


def test_what_is_done_before_a_wait_takes_its_part_of_the_bandwidth():
    # Both ask for all bandwidth; half of the consumer's work comes before its wait: 2000 ns of bandwidth in all.
    g = independent(10**6, first=0.5)
    outcome = Simulator(g, lives=life_model("shared-roofline")).run(scheduler("pdl:signal_ns=0"))
    assert outcome.time_ns == pytest.approx(2000, rel=1e-6)
    assert time_of(g, "recorded", "pdl:signal_ns=0") == 1500


def test_a_full_sm_makes_its_blocks_slower_and_an_empty_one_faster():
    # Toy GPU: two SMs of four slots. Eight launches of one tile, each recorded alone at a fill of 1/4.
    g = independent(0, launches=8)
    assert time_of(g, "co-residency-scaled:sensitivity=1") == pytest.approx(1000 * 2 / 1.25, rel=1e-6)
    assert time_of(independent(0, launches=2), "co-residency-scaled:sensitivity=1") == pytest.approx(1000, rel=1e-6)
    # A launch of eight tiles was recorded on full SMs; on many SMs each block has one to itself.
    wide = independent(0, launches=1, tiles=8)
    assert time_of(wide, "co-residency-scaled:sensitivity=1") == pytest.approx(1000, rel=1e-6)


def test_shortest_lives_are_no_longer_than_any_that_is_simulated():
    g = independent(0, launches=1, tiles=8)
    model = life_model("co-residency-scaled:sensitivity=1")
    simulator = Simulator(g, lives=model)
    shortest = model.shortest(g.recording, simulator.machine, simulator.recorded)
    assert np.allclose(shortest.of(0, 8), 1000 * 1.25 / 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("roofline", "did you mean shared-roofline?"),
        ("recorded:x=1", "durations recorded has no option 'x'"),
        ("co-residency-scaled:sensitivity=-1", "durations co-residency-scaled: sensitivity is -1, expected at least 0"),
        ("co-residency-scaled:sensitivity", "is not key=value"),
    ],
)
def test_other_models_are_answered_with_what_there_is(text, says):
    with pytest.raises(UserError) as error:
        life_model(text)
    assert says in str(error.value)


def test_a_signal_on_its_way_adds_no_load():
    # Alone on its SM, each tile is as slow as recorded. Half of the consumer runs before its wait, half after the
    # signal.
    simulator = Simulator(independent(0, first=0.5), lives=life_model("co-residency-scaled:sensitivity=2"))
    outcome = simulator.run(scheduler("pdl:signal=90us"))
    assert outcome.time_ns == pytest.approx(1000 + 90_000 + 500, rel=1e-6)
    assert outcome.waiting_ns == pytest.approx(500 + 90_000, rel=1e-6)
    assert "slowed" not in outcome.overheads_ns


def test_a_tile_that_waits_takes_no_bandwidth():
    # The first half of the consumer slows the producer; the signal does not.
    simulator = Simulator(independent(10**6, first=0.5), lives=life_model("shared-roofline"))
    outcome = simulator.run(scheduler("pdl:signal=5us"))
    assert outcome.end_ns.tolist() == pytest.approx([1500, 7000], rel=1e-6)
    assert outcome.waiting_ns == pytest.approx(5500, rel=1e-6)
    assert outcome.overheads_ns["slowed"] == pytest.approx(1000, rel=1e-6)


def test_polls_inside_a_tile_are_no_work():
    simulator = Simulator(independent(10**6, first=0.5), lives=life_model("shared-roofline"))
    outcome = simulator.run(scheduler("cusync:inside=1,post_ns=0,wait_ns=0,poll_ns=5000"))
    assert outcome.end_ns.tolist() == pytest.approx([1500, 7000], rel=1e-6)
    assert outcome.waiting_ns == pytest.approx(5500, rel=1e-6)
