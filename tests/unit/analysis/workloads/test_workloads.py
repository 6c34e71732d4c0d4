"""Synthetic workloads: they have the properties that they promise, and a seed gives the same workload again."""

import networkx as nx
import numpy as np
import pytest
from studies import published_averages as published

from tileprof.analysis import build_graph
from tileprof.analysis.bounds import Machine
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.simulate.spawning import Spawning, spawn
from tileprof.analysis.workloads import (
    SPAWNS,
    application,
    bfs,
    citation,
    gated,
    kronecker,
    power_law,
    random_wired,
    rigid_bodies,
    rmat,
    searched,
    squeezed,
    sssp,
    wavefront,
)
from tileprof.devices import get
from tileprof.errors import UserError
from tileprof.trace import load, validate


@pytest.mark.parametrize("name", SPAWNS)
def test_a_seed_gives_the_same_workload_again(name):
    one, again, other = (SPAWNS[name](scale=8, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.items, again.items)
    assert np.array_equal(one.round_at, again.round_at)
    assert not np.array_equal(one.items * one.item_ns, other.items * other.item_ns)
    assert len(one.item_ns) == len(one.items)
    nested = 0 if one.first_child is None else one.items[: (one.first_child >= 0).sum()].sum()
    assert one.round_at[-1] + nested == len(one.items)
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


def test_kronecker_graphs_go_both_ways_without_loops_and_repeats():
    g = kronecker(8, seed=1)
    edges = {(int(v), int(w)) for v in range(256) for w in g.target[g.indptr[v] : g.indptr[v + 1]]}
    assert len(edges) == len(g.target)
    assert edges == {(w, v) for v, w in edges}
    assert not any(v == w for v, w in edges)


def test_citations_have_the_mean_degree_of_citeseer_and_as_many_edges_in_as_out():
    g = citation(14, seed=0)
    assert g.degree.mean() == pytest.approx(9.1, rel=0.05)
    assert np.array_equal(np.bincount(g.target, minlength=len(g.degree)), g.degree)


def test_squares_of_the_mandelbrot_set_whose_border_is_of_one_value_have_nothing_to_do():
    work = SPAWNS["mandelbrot"](scale=14, seed=0)
    assert set(work.items.tolist()) == {0, 36}
    assert len(work.items) == 2**14 // 64


def test_probing_rows_of_a_join_have_the_matches_that_their_key_has():
    for name in ("join", "join-gaussian"):
        work = SPAWNS[name](scale=12, seed=0)
        assert len(work.items) == 2**12
        assert 40 < work.items.mean() < 100
    assert SPAWNS["join-gaussian"](scale=12).items.std() > SPAWNS["join"](scale=12).items.std()


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
    actual = {
        (cell(e.producer_launch, e.producer_tile), cell(e.consumer_launch, e.consumer_tile)) for e in raw.itertuples()
    }
    cells = [(y, x) for y in range(4) for x in range(4)]
    assert actual == {((y - a, x - b), (y, x)) for y, x in cells for a, b in ((1, 0), (0, 1)) if y >= a and x >= b}


def launches_of(path):
    t = load(path)
    assert not validate(t)
    return t, build_graph(t)


def test_bodies_wait_for_their_joints_and_contacts_and_joints_for_their_two_bodies(tmp_path):
    t, g = launches_of(rigid_bodies(tmp_path / "b.tileprof", "cheetah", steps=2, contacts=0.0, seed=0))
    ops = t.launches["op"].tolist()
    assert ops == (["joint"] * 6 + ["move"] * 7) * 2
    before = {c: sorted(p for p, _ in group) for c, group in _by_consumer(g)}
    assert all(c not in before for c in range(6))
    for joint in range(13, 19):
        assert len(before[joint]) == 2
        assert all(ops[p] == "move" for p in before[joint])
    for move in range(6, 13):
        assert all(ops[p] == "joint" for p in before[move])
    touching = launches_of(rigid_bodies(tmp_path / "c.tileprof", "cheetah", steps=2, contacts=1.0, seed=0))[0]
    actual = touching.launches["op"].value_counts()
    assert actual["find contact"] == actual["answer contact"] > 0


def test_bodies_leave_as_much_of_the_gpu_empty_as_was_published(tmp_path):
    machine = Machine(get("L4"), published.AMPERE_SMS)
    for environment in ("ant", "humanoid"):
        path = rigid_bodies(tmp_path / f"{environment}.tileprof", environment, steps=2, device="L4")
        simulator = Simulator(build_graph(load(path)), machine)
        busy = simulator.run(scheduler(f"stream:gap_ns={published.LAUNCH_NS}")).busy
        assert busy == pytest.approx(0.34, abs=0.04)


def _by_consumer(g):
    pairs = sorted(set(zip(g.links["consumer"].tolist(), g.links["producer"].tolist(), strict=True)))
    for consumer in sorted({c for c, _ in pairs}):
        yield consumer, [(p, c) for c, p in pairs if c == consumer]


def test_parts_of_a_batch_of_bodies_depend_on_the_same_parts(tmp_path):
    _, g = launches_of(rigid_bodies(tmp_path / "b.tileprof", "walker2d", steps=1, contacts=0.0, tiles=(8, 8), seed=0))
    assert (g.edges["producer_tile"] == g.edges["consumer_tile"]).all()


def test_an_input_chooses_the_branches_of_a_gated_network(tmp_path):
    t, g = launches_of(gated(tmp_path / "g.tileprof", 6, branches=3, keep=0.5, seed=1))
    ops = t.launches["op"]
    expansions, sums = (ops == "expand").sum(), (ops == "sum").sum()
    assert (ops == "project").sum() == (ops == "depthwise convolution").sum() == expansions
    assert sums <= 6
    assert expansions <= 18
    whole = launches_of(gated(tmp_path / "a.tileprof", 6, branches=3, keep=1.0, seed=1))[0]
    assert (whole.launches["op"] == "expand").sum() == 18
    other = load(gated(tmp_path / "o.tileprof", 6, branches=3, keep=0.5, seed=2))
    assert other.launches["op"].tolist() != ops.tolist()
    assert nx.is_directed_acyclic_graph(g.to_networkx())


def test_a_randomly_wired_network_runs_faster_out_of_order(tmp_path):
    t, g = launches_of(random_wired(tmp_path / "r.tileprof", 12, stages=2, seed=0))
    assert t.launches["op"].value_counts().to_dict() == {
        "weighted sum": 24, "depthwise convolution": 24, "pointwise convolution": 24, "mean": 2,
    }  # fmt: skip
    simulator = Simulator(g)
    assert simulator.run(scheduler("acs-hw")).time_ns < simulator.run(scheduler("stream")).time_ns
    dependent = g.to_networkx()
    assert nx.is_directed_acyclic_graph(dependent)
    last = len(t.launches) - 1
    assert nx.ancestors(dependent, last) == set(range(last))


def test_cells_of_a_searched_network_read_the_two_before_and_leave_nothing_unread(tmp_path):
    t, g = launches_of(searched(tmp_path / "s.tileprof", 4, pairs=5, seed=3))
    ops = t.launches["op"].tolist()
    assert ops.count("sum") == 20
    assert ops.count("concatenate") == 4
    cells = [ops[: ops.index("concatenate") + 1]] * 4
    assert [op for cell in cells for op in cell] == ops  # the same operations in every cell
    last = len(ops) - 1
    dependent = g.to_networkx()
    assert nx.ancestors(dependent, last) == set(range(last))
    ends = [i for i, op in enumerate(ops) if op == "concatenate"]
    read = {p for p, c in dependent.edges if c > ends[2]}
    assert {ends[1], ends[2]} >= read & set(ends)


def test_a_module_of_a_squeezed_network_expands_twice_what_it_squeezed(tmp_path):
    t, g = launches_of(squeezed(tmp_path / "q.tileprof", 3, seed=0))
    assert t.launches["op"].tolist() == ["squeeze", "expand", "expand", "concatenate"] * 3
    pairs = set(zip(g.links["producer"].tolist(), g.links["consumer"].tolist(), strict=True))
    assert pairs == {(b + p, b + c) for b in (0, 4, 8) for p, c in ((0, 1), (0, 2), (1, 3), (2, 3))} | {(3, 4), (7, 8)}


@pytest.mark.parametrize("make", [rigid_bodies, random_wired, searched, squeezed, gated])
def test_a_seed_gives_the_same_task_graph_again(make, tmp_path):
    def files_of(name, seed):
        t = load(make(tmp_path / name, seed=seed))
        return t.launches[["tiles", "op", "duration_ns"]].values.tolist(), t.operands.values.tolist()

    one = files_of("a.tileprof", 3)
    assert files_of("b.tileprof", 3) == one
    assert files_of("c.tileprof", 4) != one


KERNELS = {"3mm": 3, "alexnet": 22, "fdtd-2d": 24, "fft": 60, "lud": 46, "bicg": 2, "mvt": 2}


@pytest.mark.parametrize("name", KERNELS)
def test_applications_launch_as_many_kernels_as_the_paper_counts(name, tmp_path):
    t, _ = launches_of(application(tmp_path / "a.tileprof", name))
    assert len(t.launches) == KERNELS[name]


def test_blocks_of_a_decomposition_wait_for_their_row_and_column(tmp_path):
    _, g = launches_of(application(tmp_path / "l.tileprof", "lud"))
    edges = g.edges
    inside = edges[(edges["producer_launch"] == 1) & (edges["consumer_launch"] == 2)]  # perimeter, interior
    actual = {(int(e.producer_tile), int(e.consumer_tile)) for e in inside.itertuples()}
    assert actual == {(x, y * 15 + x) for y in range(15) for x in range(15)} | {
        (15 + y, y * 15 + x) for y in range(15) for x in range(15)
    }
    onward = edges[(edges["producer_launch"] == 2) & (edges["consumer_launch"] == 3)]
    assert onward["producer_tile"].tolist() == [0]


def test_halos_reach_as_far_as_they_say(tmp_path):
    _, g = launches_of(application(tmp_path / "p.tileprof", "pathfinder"))
    edges = g.edges
    away = (edges["producer_tile"] - edges["consumer_tile"]).abs()
    assert away.max() == 1
    assert len(edges) == 4 * (463 + 2 * 462)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: rigid_bodies(path, "spider"), "no environment 'spider'; there are ant"),
        (lambda path: rigid_bodies(path, steps=0), "rigid-bodies: steps is 0, expected at least 1"),
        (lambda path: gated(path, keep=0.0), "keep is 0, expected more than 0 and at most 1"),
        (lambda path: gated(path, tiles=(5, 2)), "gated: tiles is 5 to 2"),
        (lambda path: random_wired(path, 2), "nodes is 2, expected at least 3"),
        (lambda path: wavefront(path, 4, spread=1.0), "spread is 1, expected 0 to less than 1"),
        (lambda path: wavefront(path, 0), "side is 0, expected at least 1"),
        (lambda path: application(path, "alexnets"), "no application 'alexnets'; there are 3mm"),
    ],
)
def test_parameters_out_of_range_are_refused_before_anything_is_written(make, says, tmp_path):
    with pytest.raises(UserError) as error:
        make(tmp_path / "x.tileprof")
    assert says in str(error.value)
    assert not list(tmp_path.iterdir())


def test_parts_of_nested_cells_refine_nearer_to_the_front():
    work = SPAWNS["amr-nested"](scale=12, seed=0)
    cells = work.items[: work.round_at[-1]]
    parts = work.items[work.round_at[-1] :][: cells.sum()]
    assert set(cells.tolist()) == set(parts.tolist()) == {0, 32}
    assert 0 < (parts > 0).mean() < 1
    assert len(work.items) == len(cells) + len(parts) + parts.sum()
    assert spawn(work, Spawning(), "always").launched == (cells > 0).sum() + (parts > 0).sum()
    assert spawn(work, Spawning(), "warp").time_ns <= spawn(work, Spawning(), "flat").time_ns
