"""Synthetic workloads: what they promise, and that a seed gives the same again."""

import networkx as nx
import numpy as np
import pytest

from tileprof.analysis import build_graph
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.workloads import SPAWNS, bfs, power_law, random_wired, rigid_bodies, rmat, sssp, wavefront
from tileprof.trace import load, validate


@pytest.mark.parametrize("name", SPAWNS)
def test_a_seed_gives_the_same_workload_again(name):
    one, again, other = (SPAWNS[name](scale=8, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.items, again.items)
    assert np.array_equal(one.round_at, again.round_at)
    assert not np.array_equal(one.items, other.items)
    assert one.round_at[-1] == len(one.items)
    assert (one.items >= 0).all()


def as_networkx(g):
    source = np.repeat(np.arange(len(g.degree)), g.degree)
    return nx.from_edgelist(zip(source.tolist(), g.target.tolist(), strict=True), create_using=nx.DiGraph)


def test_rounds_of_a_breadth_first_search_are_its_levels():
    g = rmat(8, seed=3)
    work = bfs(graph=g)
    depth = nx.single_source_shortest_path_length(as_networkx(g), int(np.argmax(g.degree)))
    assert np.diff(work.round_at).tolist() == np.bincount(list(depth.values())).tolist()
    assert work.items.sum() == sum(int(g.degree[v]) for v in depth)


def test_shortest_paths_visit_whom_a_search_visits_and_some_again():
    g = rmat(8, seed=3)
    assert sssp(graph=g).items.sum() >= bfs(graph=g).items.sum()


def test_random_graphs_have_few_vertices_of_many_edges():
    for g in (rmat(12, seed=0), power_law(4096, seed=0)):
        assert len(g.target) == g.degree.sum() == pytest.approx(16 * 4096, rel=0.05)
        assert g.degree.max() > 20 * g.degree.mean()


def test_a_wavefront_waits_for_its_upper_and_left_neighbours(tmp_path):
    t = load(wavefront(tmp_path / "w.tileprof", 4, seed=0))
    assert not validate(t)
    edges = build_graph(t).edges

    def cell(launch, tile):
        y = max(0, launch - 3) + tile
        return int(y), int(launch - y)

    raw = edges[edges["hazard"] == "RAW"]
    found = {
        (cell(e.producer_launch, e.producer_tile), cell(e.consumer_launch, e.consumer_tile)) for e in raw.itertuples()
    }
    cells = [(y, x) for y in range(4) for x in range(4)]
    assert found == {((y - a, x - b), (y, x)) for y, x in cells for a, b in ((1, 0), (0, 1)) if y >= a and x >= b}


def test_worlds_of_rigid_bodies_are_independent_chains(tmp_path):
    t = load(rigid_bodies(tmp_path / "b.tileprof", 3, steps=1, seed=0))
    assert not validate(t)
    graph = build_graph(t).to_networkx()
    assert nx.number_weakly_connected_components(graph) == 3
    assert max(d for _, d in graph.out_degree()) == 1


def test_a_randomly_wired_network_runs_faster_out_of_order(tmp_path):
    t = load(random_wired(tmp_path / "r.tileprof", 12, seed=0))
    assert not validate(t)
    simulator = Simulator(build_graph(t))
    assert simulator.run(scheduler("acs-hw")).time_ns < simulator.run(scheduler("stream")).time_ns
    assert nx.is_directed_acyclic_graph(build_graph(t).to_networkx())
