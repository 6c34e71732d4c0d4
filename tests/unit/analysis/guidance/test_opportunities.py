"""Advice: which opportunities are listed, in which order, and which are left out."""

import pandas as pd

from tests.support.synthetic_graphs import footprint, graph, one_to_one, trace
from tileprof.analysis.reporting.opportunities import opportunities
from tileprof.analysis.reporting.report import build_report
from tileprof.analysis.simulate import Simulator


def advice(*, tiles=5, ns=100_000.0, first=0.0, coverage="exact", reuse=False, pairs=1):
    """Return pairs of launches with partial last waves on two slots."""
    life = footprint(tiles, duration_ns=ns)
    took = int(ns) * -(-tiles // 2)
    rows = [
        {"footprint": 0, "timing": "modelled", "duration_ns": took, "begin_ns": i * (took + 100), "block_x": 256,
         "op": "mm", "kernel": "mm", "module": f"h.{i}", "coverage": coverage}
        for i in range(2 * pairs)
    ]  # fmt: skip
    t = trace(rows, {0: life})
    t.tiles = pd.DataFrame({"footprint": [0], "bytes_read": [0], "bytes_written": [0]})
    g = graph([tiles] * len(rows), [(2 * i, 2 * i + 1, one_to_one(tiles, first=first), reuse) for i in range(pairs)], t)
    g.pairs = g.links[["producer", "consumer", "edges", "bytes"]].assign(pattern="one_to_one", map="", reuse_only=reuse)
    return opportunities(build_report(g), Simulator(g))


def test_a_partial_last_wave_asks_for_tile_synchronisation_with_its_evidence():
    (actual,) = (o for o in advice() if o.producers)
    assert actual.scheduler == "cusync"
    # 3 + 3 waves of 100 us, of which 5 remain; posts take 200 ns per tile and the poll 700, and the gap of 50 is saved.
    assert 95_000 < actual.saves_ns < 100_050 <= actual.bound_ns + 1
    assert "80% of the consumer's tiles could start" in actual.because
    assert "6 waves hold 5 waves of tiles" in actual.because


def test_narrow_launches_that_do_not_depend_on_each_other_ask_for_a_graph_of_dependencies():
    (actual,) = (o for o in advice(tiles=1, pairs=4, first=0.5) if not o.producers)
    assert actual.scheduler == "graph:dependencies=1"
    # Two slots: four pairs of 2 x 100 us, two at a time.
    assert actual.saves_ns > 350_000
    assert "do not depend on each other" in actual.because
    assert [o.scheduler for o in advice(tiles=1, ns=10.0) if not o.producers] == ["graph"]


def test_a_long_prologue_asks_for_dependent_launch():
    (actual,) = (o for o in advice(tiles=1, first=0.9) if o.producers)
    assert actual.scheduler == "pdl"


def test_repetitions_add_up_and_the_largest_saving_comes_first():
    suggestions = advice(pairs=3)
    assert [o.times for o in suggestions if o.producers] == [3]
    assert [o.saves_ns for o in suggestions] == sorted((o.saves_ns for o in suggestions), reverse=True)
    assert suggestions[0].saves_ns > 3 * 95_000


def test_many_small_launches_ask_for_a_graph():
    (suggestions,) = advice(tiles=1, ns=10.0, pairs=4, first=0.0)[:1]
    assert (suggestions.scheduler, suggestions.producers) == ("graph:dependencies=1", ())
    # In stream order 8 x 10 ns and 7 gaps of 100; otherwise four chains of two on two slots, with one gap of 50 in all.
    assert suggestions.saves_ns == 780 - 80
    assert "8 launches" in suggestions.because


def test_what_is_not_known_is_no_opportunity():
    assert all(not o.producers for o in advice(coverage="conservative"))
    assert all(not o.producers for o in advice(reuse=True))
