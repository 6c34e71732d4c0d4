"""Gains of pairs, the pairs that count, and the folding of repeated layers."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.synthetic_graphs import all_to_all, footprint, graph, one_to_one, trace
from tileprof.analysis.bounds import Bounder
from tileprof.analysis.reporting.gains import common_name, direct, fold, pair_gains


def chain(tiles, links, *, modules=None, launch=None, footprints=None):
    """Return a graph with a trace of modelled 10 ns tiles, and a frame of pairs; the toy GPU has two slots."""
    sizes = sorted(set(tiles))
    shared = footprints or {i: footprint(n, duration_ns=10.0) for i, n in enumerate(sizes)}
    begin, rows = 0, []
    for i, n in enumerate(tiles):
        took = 10 * -(-n // 2)
        module = modules[i] if modules else ""
        rows.append(
            {"footprint": sizes.index(n), "timing": "modelled", "begin_ns": begin, "duration_ns": took,
             "module": module, "op": "aten::mm", "kernel": "k", "block_x": 256, **(launch or {})}
        )  # fmt: skip
        begin += took + 5
    g = graph(tiles, links, trace(rows, shared))
    pairs = g.links.drop_duplicates(["producer", "consumer"])[["producer", "consumer", "edges", "bytes"]]
    only = g.links.groupby(["producer", "consumer"])["reuse"].all()
    g.pairs = pairs.assign(
        pattern="one_to_one",
        map="",
        reuse_only=[bool(only[p, c]) for p, c in zip(pairs.producer, pairs.consumer, strict=True)],
    )
    return g


def test_the_gain_of_a_pair_is_recorded_time_less_its_bound():
    gains = pair_gains(Bounder(chain([3, 3], [(0, 1, one_to_one(3))]))).iloc[0]
    assert gains["recorded_ns"] == 45.0  # 20 + 5 between + 20
    assert gains["bound_ns"] == 30.0  # six tiles of 10 ns on two slots
    assert (gains["gain_ns"], gains["binding"], gains["listed_ns"]) == (15.0, "area", 30.0)
    assert (gains["stream_waves"], gains["overlapped_waves"]) == (4, 3.0)


def test_tiles_are_early_when_their_parents_end_before_the_last_wave():
    gains = pair_gains(Bounder(chain([3, 3], [(0, 1, one_to_one(3))]))).iloc[0]
    assert gains["early"] == pytest.approx(2 / 3)
    assert gains["lead_ns"] == pytest.approx((10 + 10 + 0) / 3)
    late = pair_gains(Bounder(chain([3, 3], [(0, 1, all_to_all(3, 3))]))).iloc[0]
    assert (late["early"], late["lead_ns"]) == (0.0, 0.0)


def test_measured_block_times_decide_what_is_early():
    g = chain([2, 2], [(0, 1, one_to_one(2))], launch={"timing": "measured"})
    times = [{"launch": 0, "tile": t, "begin_ns": 0, "end_ns": end} for t, end in enumerate((70, 100))]
    g.recording.times = trace([], {}, times=times).times
    gains = pair_gains(Bounder(g)).iloc[0]
    assert (gains["early"], gains["lead_ns"]) == (
        0.5,
        1.5,
    )  # of 10 ns, which the launch took in the pass without block times


def test_hazards_of_recycled_memory_hold_nothing_back_in_a_gain():
    gains = pair_gains(Bounder(chain([2, 2], [(0, 1, all_to_all(2, 2), True)]))).iloc[0]
    assert gains["early"] == 1.0
    assert gains["reuse_only"]


def test_a_long_gap_between_launches_is_no_gain_of_a_pair():
    g = chain([2, 2], [(0, 1, one_to_one(2))])
    g.launches.loc[1, "begin_ns"] = 10_000_000
    assert pair_gains(Bounder(g)).iloc[0]["recorded_ns"] == 10 + 10 + 100  # the toy GPU's launch gap


def test_launches_that_overlapped_already_are_not_counted_twice():
    g = chain([2, 2], [(0, 1, one_to_one(2))])
    g.launches.loc[1, "begin_ns"] = 4
    assert pair_gains(Bounder(g)).iloc[0]["recorded_ns"] == 14


@given(st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda e: e[0] < e[1])))
def test_a_pair_is_direct_unless_a_path_in_between_orders_it(edges):
    parents = {}
    for p, c in edges:
        parents.setdefault(c, set()).add(p)
    pairs = [(p, c) for p in range(12) for c in range(p + 1, 12)]
    actual = direct(12, parents, *map(list, zip(*pairs, strict=True)))
    dag = nx.DiGraph(list(edges))
    dag.add_nodes_from(range(12))
    for (p, c), is_direct in zip(pairs, actual, strict=True):
        others = [q for q in dag.predecessors(c) if q != p and nx.has_path(dag, p, q)]
        assert is_direct == (not others)


def test_repeated_layers_fold_into_one_row_with_summed_gains():
    modules = [f"h.{layer}.{part}" for layer in range(3) for part in ("up", "down")]
    links = [(i, i + 1, one_to_one(3)) for i in range(5)]
    g = chain([3] * 6, links, modules=modules)
    folds = fold(pair_gains(Bounder(g)), g.launches)
    assert folds["times"].tolist() == [3, 2]
    assert folds["gain_ns"].tolist() == [45.0, 30.0]
    assert folds["producers"].tolist() == [(0, 2, 4), (1, 3)]
    assert folds[["producer_module", "consumer_module"]].to_numpy().tolist() == [
        ["h.*.up", "h.*.down"],
        ["h.*.down", "h.*.up"],
    ]


def test_other_sizes_and_other_modules_do_not_fold():
    g = chain(
        [3, 3, 4, 3],
        [(0, 1, one_to_one(3)), (1, 2, all_to_all(3, 4)), (2, 3, all_to_all(4, 3))],
        modules=["a", "b", "a", "b"],
    )
    assert fold(pair_gains(Bounder(g)), g.launches)["times"].tolist() == [1, 1, 1]


def test_direct_pairs_come_first_however_large_the_others_are():
    links = [(0, 1, all_to_all(4, 1)), (1, 2, all_to_all(1, 4)), (0, 2, one_to_one(4))]
    g = chain([4, 1, 4], links)
    folds = fold(pair_gains(Bounder(g)), g.launches)
    assert folds["direct"].tolist() == [True, True, False]
    assert folds["gain_ns"].is_monotonic_decreasing or folds["gain_ns"].iloc[2] > folds["gain_ns"].iloc[1]


def test_no_pairs_are_no_rows_with_the_same_columns():
    g = chain([1, 1], [])
    g.pairs = chain([1, 1], [(0, 1, one_to_one(1))]).pairs.iloc[:0]
    folds = fold(pair_gains(Bounder(g)), g.launches)
    assert len(folds) == 0
    full = chain([1, 1], [(0, 1, one_to_one(1))])
    assert set(folds) == set(fold(pair_gains(Bounder(full)), full.launches))


def test_names_that_differ_in_digits_get_stars_where_they_differ():
    assert common_name(["h.0.mlp.fc1", "h.11.mlp.fc1"]) == "h.*.mlp.fc1"
    assert common_name(["a"]) == "a"
    assert common_name(["", ""]) == ""
    assert np.all([common_name(["x.1", "x.1"]) == "x.1"])
