"""Bloom filters never miss a dependency, and their false hits are counted."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.analysis.simulate.filters.programs_of_boxes import conflict, program, programs
from tileprof.analysis import build_graph
from tileprof.analysis.bounds import Durations
from tileprof.analysis.bounds.problem import problem
from tileprof.analysis.simulate import Simulator
from tileprof.analysis.simulate.filters import bloom
from tileprof.analysis.simulate.filters.bloom import Filters, count, numbered, pair_bits, touched
from tileprof.analysis.simulate.scheduler import program_of
from tileprof.analysis.simulate.schedulers.bloom import DataflowBloom
from tileprof.errors import UserError
from tileprof.trace.footprint import READ, WRITE


def has(bits, child, parent):
    return bool(bits[child, parent // 64] >> np.uint64(parent % 64) & np.uint64(1))


def filter_hits(t, filters, granule):
    return pair_bits([touched(t, i, granule) for i in range(len(t.launches))], filters)


@settings(deadline=None, max_examples=150)
@given(programs, st.sampled_from([8, 64, 512]), st.integers(1, 3), st.sampled_from([1, 32, 128]))
def test_no_recorded_dependency_is_missed(launches, bits, hashes, granule):
    t = program(launches)
    pairs = filter_hits(t, Filters(bits, hashes), granule)
    for edge in build_graph(t).edges.itertuples():
        assert has(pairs[edge.producer_launch, edge.consumer_launch], edge.consumer_tile, edge.producer_tile)


@settings(deadline=None, max_examples=80)
@given(programs)
def test_without_hashing_tiles_depend_exactly_where_their_bytes_conflict(launches):
    t = program(launches)
    pairs = pair_bits(*numbered([touched(t, i, 1) for i in range(len(launches))]))
    for c, after in enumerate(launches):
        for p in range(c):
            bits = pairs.get((p, c))
            for child, parent in np.ndindex(len(after), len(launches[p])):
                expected = conflict(launches[p][parent], after[child])
                assert (bits is not None and has(bits, child, parent)) == expected


def stripes(launches=4, tiles=71):
    """Tile t of every launch reads and writes its own 16 bytes."""
    return program([[[(0, READ, 16 * t, 16, 1, 0), (0, WRITE, 16 * t, 16, 1, 0)] for t in range(tiles)]] * launches)


def test_false_edges_are_counted_and_simulated():
    t = stripes()
    graph = build_graph(t)
    times, collisions = [], []
    for bits in (8, 256, 1 << 24):
        rule = DataflowBloom(bits=bits, granule=1)
        collisions.append(rule.conflicts(graph, list(range(4)))[1])
        times.append(Simulator(graph).run(rule).time_ns)
    assert collisions[0] > collisions[1] > collisions[2] == 0
    assert times[0] > times[2]
    note = Simulator(graph).run(DataflowBloom(bits=1 << 20, granule=16)).notes[0]
    assert "find 426 pairs of dependent tiles; 0 of them" in note


def test_a_coarse_granule_makes_neighbours_dependent_without_collisions():
    pairs, collisions = DataflowBloom(bits=1 << 20, granule=32).conflicts(build_graph(stripes(2)), [0, 1])
    assert (sum(map(count, pairs.values())), collisions) == (141, 0)


def test_a_flush_forgets_and_is_a_barrier():
    t = stripes()
    graph = build_graph(t)
    pairs, _ = DataflowBloom(flush=2, granule=16).conflicts(graph, list(range(4)))
    assert set(pairs) == {(0, 1), (2, 3)}
    assert DataflowBloom(flush=2).draft(program_of(graph)).after == [set(), set(), {0, 1}, {0, 1}]
    begin = Simulator(graph).run(DataflowBloom(flush=2, granule=16, bits=1 << 20))
    assert begin.begin_ns[142:].min() >= begin.end_ns[:142].max()


def test_relations_from_filters_say_what_the_bits_say():
    t = stripes(2)
    graph = build_graph(t)
    p = problem(graph, Durations(np.full(71, 10.0), np.zeros(2, np.int64), [""] * 2), reuse=True)
    wider, _ = DataflowBloom(granule=32, bits=1 << 20).rewired(graph, p)
    assert len(wider.sets) == len(p.sets) + 1
    tile, entries = 5, slice(int(wider.entry_at[-1]), None)
    k = int(wider.set_of[wider.tile_at[-1] + tile])
    at = wider.indptr[wider.set_at[-1] + k : wider.set_at[-1] + k + 2]
    assert wider.parent[entries][at[0] : at[1]].tolist() == [4, 5]


def test_large_filters_are_made_in_parts_and_too_many_pairs_are_refused(monkeypatch):
    t = stripes(2, tiles=200)
    whole = filter_hits(t, Filters(512, 2), 16)[0, 1]
    monkeypatch.setattr(bloom, "_MOST_BYTES", 200 * 4 * 8)  # one word of a table at a time
    assert np.array_equal(filter_hits(t, Filters(512, 2), 16)[0, 1], whole)
    monkeypatch.setattr(bloom, "_MOST_BYTES", 200 * 4 * 8 - 1)
    with pytest.raises(UserError, match="200 tiles against about 256 of another launch are too many pairs"):
        filter_hits(t, Filters(512, 2), 16)


@settings(deadline=None, max_examples=60)
@given(programs, st.integers(1, 6), st.sampled_from([8, 4096]))
def test_in_a_window_a_tile_waits_for_all_earlier_ones_that_conflict_and_that_have_its_place(launches, window, bits):
    """Tiles of the same launch count too. The oracle tries all pairs of tiles."""
    t = program(launches)
    graph = build_graph(t)
    rule = DataflowBloom(bits=bits, granule=1, window=window, insert_ns=30.0, look_up_ns=70.0)
    p = problem(graph, lives_of(launches), reuse=True)
    wider, _ = rule.rewired(graph, p)
    waits = {(parent, child) for parent, child, _ in links_of(wider)}
    shares = {first for *_, first in links_of(wider)}
    order = [(launch, tile) for launch, tiles in enumerate(launches) for tile in range(len(tiles))]
    for (a, (la, ta)), (b, (lb, tb)) in itertools.combinations(enumerate(order), 2):
        if b - a < window and conflict(launches[la][ta], launches[lb][tb]):
            assert (a, b) in waits
        elif b - a == window or (la != lb and conflict(launches[la][ta], launches[lb][tb])):
            assert b - a > window or (a, b) in waits
        elif b - a > window:
            assert (a, b) not in waits
    assert all(0 < first < 1 for first in shares)
    outcome = Simulator(graph).run(rule)
    for parent, child in waits:
        own = lives_of(launches).of(order[child][0], len(launches[order[child][0]]))[order[child][1]]
        assert outcome.end_ns[child] >= outcome.end_ns[parent]
        assert outcome.end_ns[child] - outcome.begin_ns[child] >= own


def lives_of(launches):
    """Return the accesses that `program` gives its tiles."""
    lives = [[10.0] * (len(tiles) - 1) + [100.0] for tiles in launches]
    return Durations(np.concatenate(lives), np.cumsum([0, *map(len, lives)])[:-1], [""] * len(lives))


def links_of(p):
    """Return parent and child, by position among all tiles, and the share of the child's duration before it needs the
    parent.
    """
    for link in range(len(p.producer)):
        r, c = p.relation[link], p.consumer[link]
        for tile in range(p.tile_base[c + 1] - p.tile_base[c]):
            k = p.set_of[p.tile_at[r] + tile]
            at = p.indptr[p.set_at[r] + k : p.set_at[r] + k + 2] if k >= 0 else (0, 0)
            for e in range(at[0], at[1]):
                parent = p.tile_base[p.producer[link]] + p.parent[p.entry_at[r] + e]
                yield int(parent), int(p.tile_base[c] + tile), float(p.first[p.entry_at[r] + e])


def test_false_answers_about_tiles_of_the_same_launch_make_a_chain_whatever_a_look_up_costs():
    """With small filters the time is that of the longest chain of hits, and look-ups hide behind waits, as measured."""
    graph = build_graph(stripes(launches=2))
    tiny = {"bits": 8, "granule": 1, "window": 64, "insert_ns": 0.0}
    times = [Simulator(graph).run(DataflowBloom(**tiny, look_up_ns=ns)).time_ns for ns in (0.0, 5.0)]
    assert times[0] > 10.0 * 140
    assert times[1] < 1.05 * times[0]
    apart = Simulator(graph).run(DataflowBloom(bits=1 << 20, granule=16, window=64, insert_ns=0.0, look_up_ns=0.0))
    assert apart.time_ns < 0.6 * times[0]
