"""The graph from filters alone holds every dependency of the accesses behind them, and its false dependencies are
counted.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_graphs import write_mlp
from tests.unit.analysis.simulate.filters.programs_of_boxes import conflict, program, programs
from tileprof.analysis import build_graph
from tileprof.analysis.simulate import SCHEDULERS, Simulator
from tileprof.analysis.simulate.filters.bloom import Filters, filter_words, touched
from tileprof.analysis.simulate.filters.filter_graph import BASIS, against, filter_graph
from tileprof.errors import TraceError, UserError
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.verifier import verify
from tileprof.trace import filters as file
from tileprof.trace import load
from tileprof.trace.footprint import READ, WRITE

RECURRENT = Path(__file__).parents[4] / "golden/later/recurrent_filters.tileprof"
EDGE = ["producer_launch", "producer_tile", "consumer_launch", "consumer_tile"]
HAZARDS = ("RAW", "WAR", "WAW")


def filled(trace, bits, hashes, granule, *, without=()):
    """Return the filters that the blocks of a trace would fill."""
    words = {n: filter_words(touched(trace, n, granule), Filters(bits, hashes)) for n in range(len(trace.launches))}
    rows = [file.LaunchFilters(n, w, np.full(len(w), -1)) for n, w in words.items() if n not in without]
    return file.StoredFilters(bits, hashes, granule, rows)


def sets_of_bits(stored):
    """Return the set bits of each filter, by launch, tile and side."""
    flags = {f.launch: np.unpackbits(f.words.view(np.uint8), axis=2, bitorder="little") for f in stored.launches}
    return {n: [[set(np.flatnonzero(side).tolist()) for side in tile] for tile in tiles] for n, tiles in flags.items()}


def may_share(one, other, hashes):
    common = one & other
    return len(common) >= hashes and (hashes == 1 or len({bit % 2 for bit in common}) == 2)


@settings(deadline=None, max_examples=60)
@given(programs, st.sampled_from([32, 128, 1024]), st.integers(1, 3), st.sampled_from([1, 32, 128]))
def test_edges_are_those_that_a_search_of_all_pairs_of_filters_finds(launches, bits, hashes, granule):
    t = program(launches)
    stored = filled(t, bits, hashes, granule)
    graph, exact = filter_graph(t, stored), build_graph(t)
    of, expected, conflicts = sets_of_bits(stored), set(), 0
    for c, after in enumerate(launches):
        for p in range(c):
            for child, parent in np.ndindex(len(after), len(launches[p])):
                (read, written), (reads, writes) = of[p][parent], of[c][child]
                shared = [
                    may_share(one, other, hashes)
                    for one, other in ((written, reads), (read, writes), (written, writes))
                ]
                pair = p, parent, c, child
                expected |= {(*pair, hazard) for hazard, shares in zip(HAZARDS, shared, strict=True) if shares}
                if conflict(launches[p][parent], after[child]):
                    assert any(shared)
                    conflicts += 1
    assert {tuple(row) for row in graph.edges[[*EDGE, "hazard"]].itertuples(index=False)} == expected
    agreement = against(graph, exact)
    assert agreement.lacking == 0
    assert agreement.by_filters == len({edge[:4] for edge in expected})
    assert conflicts <= agreement.conflicting <= agreement.by_filters
    assert agreement.exact == len(exact.edges[EDGE].drop_duplicates())


def chain(tiles=6, launches=3):
    """Tile t of every launch reads and writes its own 64 bytes."""
    return program([[[(0, READ, 64 * t, 64, 1, 64), (0, WRITE, 64 * t, 64, 1, 64)] for t in range(tiles)]] * launches)


def test_a_filter_that_lost_its_bits_is_noticed():
    t = chain()
    stored = filled(t, 1024, 2, 64)
    assert against(filter_graph(t, stored), build_graph(t)).lacking == 0
    stored.launches[1].words[3] = 0
    assert against(filter_graph(t, stored), build_graph(t)).lacking == 2


def test_a_launch_without_filters_may_touch_anything():
    t = chain()
    t.launches["registers"] = 32  # a kernel
    graph = filter_graph(t, filled(t, 1024, 2, 64, without=[1]))
    between = graph.links.set_index(["producer", "consumer"])["edges"]
    assert set(between[0, 1]) == set(between[1, 2]) == {36}


def test_a_copy_without_filters_touches_what_the_call_of_the_driver_names():
    t = chain()
    t.launches["registers"] = 0
    whole = filter_graph(t, filled(t, 1024, 2, 64)).edges
    assert filter_graph(t, filled(t, 1024, 2, 64, without=[1])).edges.equals(whole)


def test_a_policy_of_filters_waits_for_all_that_the_accesses_need(tmp_path):
    t = load(write_mlp(tmp_path / "mlp.tileprof", tokens=512))
    graph, exact = filter_graph(t, filled(t, 8192, 2, 512)), build_graph(t)
    policy = synthesise(graph, [0, 1])
    assert policy.notes[0] == BASIS
    assert BASIS not in synthesise(exact, [0, 1]).notes
    assert verify(policy, exact, [0, 1]).sound
    assert verify(policy, exact, [2, 3]).sound  # the same launches of the next layer, at other addresses


def test_filters_that_patches_filled_on_a_gpu_give_policies_for_every_step():
    """Six steps of a recurrent network, recorded on an H200; the filters of one step are enough for all steps."""
    t = load(RECURRENT)
    graph, exact = filter_graph(t), build_graph(t)
    agreement = against(graph, exact)
    assert (agreement.lacking, agreement.exact, agreement.by_filters, agreement.false) == (0, 36_736, 185_883, 68_187)
    kernels = np.flatnonzero(t.launches["registers"].to_numpy() > 0).reshape(6, 4).tolist()
    policy = synthesise(graph, kernels[1])
    assert all(verify(policy, exact, step).sound for step in kernels)
    whole, narrow = (Simulator(of).run(SCHEDULERS["dataflow"]).time_ns for of in (graph, exact))
    assert narrow < whole < Simulator(exact).run(SCHEDULERS["graph"]).time_ns


def test_filters_of_another_trace_are_refused(tmp_path):
    t = load(write_mlp(tmp_path / "mlp.tileprof"))
    with pytest.raises(UserError, match="has no filters: record it with --filters"):
        filter_graph(t)
    stored = filled(t, 1024, 2, 512)
    stored.launches[0] = file.LaunchFilters(0, stored.launches[0].words[:-1], np.zeros(1))
    with pytest.raises(TraceError, match="launch 0 has 32 tiles, but filters of 31"):
        filter_graph(t, stored)
