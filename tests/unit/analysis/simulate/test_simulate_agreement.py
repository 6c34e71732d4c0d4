"""Stream order compared with recordings, and dependent launch pair by pair."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.synthetic_graphs import all_to_all, block, graph
from tests.unit.analysis.simulate.launch_chains import with_trace
from tileprof.analysis import build_graph
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.simulate.agreement import agreement
from tileprof.analysis.simulate.triggers import triggers
from tileprof.trace import load

GOLDEN = sorted((Path(__file__).parents[3] / "golden").glob("*.tileprof"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_stream_order_reproduces_the_recorded_time_of_every_launch(path):
    recorded_graph = build_graph(load(path))
    simulator = Simulator(recorded_graph)
    correlations = agreement(recorded_graph, simulator.run(scheduler("stream")), simulator.recorded)
    assert correlations.launches == int((np.diff(recorded_graph.tile_base) > 0).sum())
    assert correlations.reproduced, correlations
    assert correlations.simulated_running_ns == pytest.approx(correlations.recorded_running_ns, rel=0.05)
    assert all(0.1 < factor <= 1.1 for factor in simulator.recorded.calibration.values())


def test_a_launch_that_took_longer_than_its_tiles_do_is_named():
    g = with_trace(graph([2, 2], []), [[1000.0] * 2] * 2)
    g.launches["duration_ns"] = [1000, 1100]
    g.launches["begin_ns"] = [0, 5000]
    simulator = Simulator(g)
    correlations = agreement(g, simulator.run(scheduler("stream")), simulator.recorded)
    assert (correlations.off, correlations.worst, correlations.reproduced) == (1, 1, False)
    assert correlations.worst_off == pytest.approx(100 / 1100)
    assert (correlations.recorded_between_ns, correlations.simulated_between_ns) == (4000, 100)


def test_launches_with_scaled_durations_are_counted_separately():
    # Tiles of the first launch have their own durations; only the time of the second is known, and spread over its
    # tiles.
    g = with_trace(graph([2, 2], []), [[1000.0] * 2] * 2)
    g.launches["duration_ns"] = 1000
    g.launches["timing"] = ["modelled", "launch"]
    simulator = Simulator(g)
    correlations = agreement(g, simulator.run(scheduler("stream")), simulator.recorded)
    assert (correlations.launches, correlations.by_construction, correlations.reproduced) == (2, 1, True)
    assert correlations.to_json()["by_construction"] == 1


def test_a_pair_says_when_to_trigger_and_what_comes_before_the_wait():
    # Two tiles on two slots, 10 ns each; stores end after 60%, needs begin after 30%.
    needs = block([[(0, 0.6, 0.3), (1, 0.5, 0.4)]], [0, 0])
    (trigger,) = triggers(Simulator(with_trace(graph([2, 2], [(0, 1, needs)]), [[10.0] * 2] * 2)))
    assert (trigger.producer, trigger.consumer, trigger.times, trigger.dependent) == (0, 1, 1, True)
    assert trigger.last_store == pytest.approx(0.6)
    assert trigger.last_store_ns == pytest.approx(6.0)
    assert (trigger.producer_ns, trigger.prologue_ns) == (10.0, pytest.approx(3.0))


def test_what_no_recorder_saw_is_not_taken_for_safe():
    unknown = all_to_all(1, 1, last=np.nan, first=np.nan)
    (trigger,) = triggers(Simulator(with_trace(graph([1, 1], [(0, 1, unknown)]), [[10.0]] * 2)))
    assert (trigger.last_store, trigger.last_store_ns, trigger.prologue, trigger.prologue_ns) == (None, 10.0, None, 0.0)


def test_a_need_of_an_older_launch_ends_the_prologue_too():
    links = [(0, 2, all_to_all(1, 1, first=0.0)), (1, 2, all_to_all(1, 1, first=0.5))]
    actual = {(t.producer, t.consumer): t for t in triggers(Simulator(with_trace(graph([1] * 3, links), [[10.0]] * 3)))}
    assert actual[1, 2].prologue == 0.0
    assert not actual[0, 1].dependent


def test_repeated_pairs_are_one_kind():
    shared = all_to_all(1, 1)
    g = with_trace(graph([1] * 3, [(0, 1, shared), (1, 2, shared)]), [[10.0]] * 3)
    g.launches["footprint"] = 0
    g.links["block"] = 0
    (trigger,) = triggers(Simulator(g))
    assert trigger.times == 2
