"""The runs that a page's sliders move through."""

import numpy as np
import pytest

from tests.support.small_programs import Program, pointwise, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.bounds import Machine
from tileprof.analysis.simulate import SCHEDULERS, Simulator, scheduler
from tileprof.errors import UserError
from tileprof.trace import load
from tileprof.viz import variants
from tileprof.viz.comparisons import cost
from tileprof.viz.variants import knobs, variant_value


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("variants") / "t", layers=2)))


@pytest.fixture(scope="module")
def slider_runs(graph):
    return variants(graph, simulated_tiles=60 * cost(graph))


def test_every_option_of_every_scheduler_has_a_slider_that_the_scheduler_takes():
    for name, entry in SCHEDULERS.items():
        assert [k.key for k in knobs(name)] == list(entry.options())
        for knob in knobs(name):
            assert knob.default in knob.values
            assert len(set(knob.values)) == len(knob.values) >= 2
            numbers = [v for v in knob.values if v is not None]
            assert numbers == sorted(numbers)
            for value in numbers:
                assert getattr(entry.with_options({knob.key: f"{value:g}"}), knob.key) == value


def test_a_variant_is_what_the_simulator_says(graph, slider_runs):
    assert {v.scheduler for v in slider_runs if v.key}
    assert {v.sms for v in slider_runs} >= {66, 264}
    for v in slider_runs[::7]:
        text = v.scheduler + (f":{v.key}={v.value:g}" if v.key else "")
        machine = Machine(graph.device, v.sms, v.occupancy or None)
        assert v.time_ns == Simulator(graph, machine).run(scheduler(text)).time_ns
        assert variant_value(graph, text, v.sms, v.occupancy) == {"time_ns": v.time_ns, "deadlock": ""}


def test_sliders_are_whole_and_within_the_budget(graph, slider_runs):
    assert len(slider_runs) <= 60
    assert variants(graph, simulated_tiles=0) == ()
    moved_keys = {(v.scheduler, v.key) for v in slider_runs if v.key}
    for name, key in moved_keys:
        knob = next(k for k in knobs(name) if k.key == key)
        assert sum((v.scheduler, v.key) == (name, key) for v in slider_runs) == len(knob.values) - 1


def test_launches_cost_beside_their_tiles_so_that_many_small_ones_are_not_waited_for(tmp_path):
    few_tiles = Program(tmp_path / "t")
    x = few_tiles.buffer()
    for _ in range(50):
        y = few_tiles.buffer()
        few_tiles.launch("small", pointwise(tiles=1), (x, y))
        x = y
    small = build_graph(load(few_tiles.writer.close()))
    assert cost(small) > 10 * int(small.tile_base[-1])
    assert len(variants(small, simulated_tiles=60 * int(small.tile_base[-1]))) <= 5


def test_an_empty_trace_has_no_variants(tmp_path):
    assert variants(build_graph(load(Program(tmp_path / "t").writer.close()))) == ()


def test_a_deadlock_is_no_time_and_a_wrong_option_is_refused(graph):
    assert np.isfinite(variant_value(graph, "list", 4, 1)["time_ns"])
    with pytest.raises(UserError, match="no option"):
        variant_value(graph, "cusync:windows=2", 4, 1)
