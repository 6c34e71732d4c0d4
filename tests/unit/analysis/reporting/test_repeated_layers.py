"""Repeated layers, recognised by module names and footprints."""

from tests.support.synthetic_graphs import footprint, graph, one_to_one, trace
from tileprof.analysis.bounds import Bounder
from tileprof.analysis.reporting.layers import STEP, repeated_layers


def layers_of(modules, sizes=None):
    sizes = sizes or [2] * len(modules)
    prints = {n: footprint(n, duration_ns=10.0) for n in set(sizes)}
    rows = [
        {"footprint": n, "timing": "modelled", "duration_ns": 10, "begin_ns": 20 * i, "module": m, "block_x": 256}
        for i, (m, n) in enumerate(zip(modules, sizes, strict=True))
    ]
    links = [(i, i + 1, one_to_one(2)) for i in range(len(modules) - 1) if sizes[i] == sizes[i + 1] == 2]
    return repeated_layers(Bounder(graph(sizes, links, trace(rows, prints))))


def test_a_layer_is_bounded_once_for_all_its_occurrences():
    modules = ["embed", *(f"m.h.{i}.{part}" for i in range(3) for part in ("a", "b.7")), "head"]
    (layer,) = layers_of(modules)
    assert (layer.name, layer.times, layer.first, layer.last) == ("m.h.*", 3, 3, 4)
    assert layer.bounds.recorded_ns == 30.0
    assert layer.bounds.ns["ready-gated path"] == layer.bounds.listed_ns == 20.0


def test_layers_with_other_footprints_are_other_layers():
    assert layers_of(["h.0", "h.1"], [2, 3]) == []
    assert [(x.times, x.first) for x in layers_of(["h.0", "h.1", "h.2", "h.3"], [2, 3, 2, 3])] == [(2, 2), (2, 3)]


def test_modules_without_numbers_are_no_layers():
    assert layers_of(["a", "a", "", "b"]) == []


def test_steps_of_a_loop_are_one_row_and_their_modules_no_layers():
    actual = layers_of(["warm", *["m.0", "m.1", "loss"] * 4, "end"], [5, *[2, 3, 4] * 4, 6])
    assert [(x.name, x.times, x.first, x.last) for x in actual] == [(STEP, 4, 7, 9)]


def test_a_repeat_of_a_small_part_is_no_loop():
    assert layers_of(["a", "b", "a", "b", *"cdefghij"]) == []
