"""Guidance: the verdict on a program, the schedules, and the order of the actions."""

import dataclasses

import pandas as pd
import pytest

from tests.support.synthetic_graphs import all_to_all, footprint, graph, one_to_one, trace
from tileprof.analysis.guidance import guide
from tileprof.analysis.guidance.chains import chains
from tileprof.analysis.reporting.report import build_report
from tileprof.analysis.simulate import Simulator


def program(*, lives=(1000.0, 1000.0, 1000.0), tiles=2, gap=100, links=None, timing="modelled", op="aten::mul"):
    """Return launches of equal tiles on two slots, each ``gap`` after the one before; one to one unless ``links`` says
    otherwise.
    """
    rows, begin = [], 0
    for i, ns in enumerate(lives):
        took = int(ns) * -(-tiles // 2)
        rows.append(
            {"footprint": i, "timing": timing, "duration_ns": took, "begin_ns": begin, "block_x": 256, "op": op,
             "kernel": "k", "module": f"h.{i}", "coverage": "exact", "stream": 0, "flops": 0}
        )  # fmt: skip
        begin += took + gap
    t = trace(rows, {i: footprint(tiles, duration_ns=ns) for i, ns in enumerate(lives)})
    t.tiles = pd.DataFrame({"footprint": [*range(len(lives))], "bytes_read": 1, "bytes_written": 1})
    links = links or [(i, i + 1, one_to_one(tiles)) for i in range(len(lives) - 1)]
    g = graph([tiles] * len(rows), links, t)
    names = ["one_to_one" if b.count == tiles else "all_to_all" for b in g.blocks]
    g.pairs = g.links[["producer", "consumer", "edges", "bytes"]].assign(pattern=names, map="", reuse_only=False)
    return g


def guidance_of(g):
    return guide(build_report(g), Simulator(g))


def test_short_kernels_with_long_gaps_are_launch_bound_and_a_graph_comes_first():
    actual = guidance_of(program(lives=[100.0] * 10, gap=100))
    assert actual.verdict.kind == "launch-bound"
    assert actual.actions[0].kind == "cuda-graph"
    graph_action = next(a for a in actual.actions if a.kind == "cuda-graph")
    assert graph_action.saves_ns == pytest.approx(9 * 50)  # the device's gaps: 100 ns from the host, 50 in a graph
    assert actual.verdict.saves_share == actual.actions[0].saves_share


@pytest.mark.parametrize(
    ("at", "copies"),
    [((), ""), ((9,), ""), ((8, 9), ""), ((3,), "to the host 1 time: ")],
)
def test_copies_to_the_host_between_launches_are_said_to_split_a_graph(at, copies):
    g = program(lives=[100.0] * 10, gap=100)
    g.launches["kernel"] = ["memcpy<device to host>" if i in at else "k" for i in range(10)]
    (action,) = (a for a in guidance_of(g).actions if a.kind == "cuda-graph")
    assert (copies in action.reason) if copies else ("copied to the host" not in action.reason)


def test_only_actions_that_a_graph_leaves_to_do_count_from_the_graph_on():
    actual = guidance_of(program(lives=[100.0] * 10, gap=100))
    beyond = {action.kind: action.beyond for action in actual.actions}
    assert beyond["cuda-graph"] == ""
    assert beyond["fuse"] == "a CUDA graph"
    (fused,) = (a for a in actual.actions if a.kind == "fuse")
    assert fused.saves_ns == pytest.approx(9 * 50 + 9 * 100)  # gaps as in a graph, and all launches but the longest


def test_schedules_go_down_from_what_was_recorded_to_the_bound():
    actual = guidance_of(program(lives=[100.0] * 10, gap=100))
    times = [row.time_ns for row in actual.schedules]
    assert times == sorted(times, reverse=True)
    assert (actual.schedules[0].name, actual.schedules[-1].name) == ("recorded", "bound")


def test_a_program_that_fills_the_gpu_has_nothing_to_do_first():
    actual = guidance_of(program(lives=[1e6], tiles=200, links=[]))
    assert (actual.verdict.kind, actual.actions) == ("well filled", ())
    assert "no action here" in actual.verdict.sentence


def test_a_measured_program_that_waits_for_its_host_is_recorded_warm_first():
    actual = guidance_of(program(lives=[1000.0] * 4, gap=100_000, timing="measured"))
    assert (actual.verdict.kind, actual.actions[0].kind) == ("host-bound", "warm-up")


def test_chains_are_fused_where_each_tile_needs_the_same_tile_and_nothing_else():
    tiles = 2
    one_program = program(lives=(300.0, 200.0, 100.0))
    (chain,) = chains(one_program, 50.0)
    assert (chain.first, chain.last, chain.times) == (0, 2, 1)
    assert chain.saves_ns == pytest.approx(200 + 100 + 2 * 50)
    apart = program(links=[(0, 1, all_to_all(tiles, tiles)), (1, 2, one_to_one(tiles))])
    assert [(c.first, c.last) for c in chains(apart, 50.0)] == [(1, 2)]


def test_a_copy_to_the_host_is_not_fused():
    one_program = program()
    one_program.launches.loc[2, "kernel"] = "memcpy<device to host>"
    assert [(c.first, c.last) for c in chains(one_program, 50.0)] == [(0, 1)]


def test_chains_that_a_compiler_fuses_at_once_are_one_action():
    tiles = 2
    links = [(0, 1, one_to_one(tiles)), (1, 2, all_to_all(tiles, tiles)), (2, 3, one_to_one(tiles)),
             (3, 4, one_to_one(tiles))]  # fmt: skip
    actual = guidance_of(program(lives=[3000.0, 2000.0, 9000.0, 4000.0, 2500.0], links=links))
    (fused,) = [a for a in actual.actions if a.kind == "fuse"]
    assert (fused.launches, fused.command) == ((2, 3, 4), "torch.compile(model)")
    assert fused.saves_ns == pytest.approx(4000 + 2500 + 2 * 50 + 2000 + 50)
    assert "and 1 more kind of chains" in fused.title


def test_neighbours_are_named_before_pairs_with_launches_in_between():
    """Launch 2 needs only launch 0. While launch 1 keeps its place, launch 2 has to wait for launch 1."""
    tiles = 5
    links = [(0, 2, one_to_one(tiles)), (2, 3, all_to_all(tiles, tiles))]
    groups = build_report(program(lives=[100_000.0] * 4, tiles=tiles, links=links)).groups
    assert [(row["producers"][0], row["consumers"][0]) for row in groups.to_dict("records")] == [(2, 3), (0, 2)]
    assert groups["overlap_ns"].iloc[1] > groups["overlap_ns"].iloc[0]


def test_a_pair_is_ranked_by_what_it_gains_while_everything_else_stays_ordered():
    """Launch 3 needs launches 0 and 2. Launch 0 is far away and has ended before launch 2 ends."""
    tiles = 5
    links = [(1, 2, one_to_one(tiles)), (0, 3, one_to_one(tiles)), (2, 3, one_to_one(tiles))]
    g = program(lives=[100_000.0] * 4, tiles=tiles, links=links)
    groups = build_report(g).groups
    place = {(row["producers"][0], row["consumers"][0]): row["last_producer"] for row in groups.to_dict("records")}
    assert place[0, 3] is False or not place[0, 3]
    assert place[2, 3]
    assert (groups["producers"].iloc[-1][0], groups["consumers"].iloc[-1][0]) == (0, 3)


def test_time_is_listed_by_operator_and_by_module_with_layers_as_one_row():
    actual = guidance_of(program())
    assert [(s.name, s.launches) for s in actual.operators] == [("mul", 3)]
    assert [(s.name, s.launches) for s in actual.modules] == [("h.*", 3)]
    assert actual.operators[0].time_ns == pytest.approx(3000)


def test_json_holds_every_field():
    actual = guidance_of(program(lives=[100.0] * 10))
    value = actual.to_json()
    assert set(value) == {"verdict", "schedules", "actions", "operators", "modules"}
    assert value["actions"][0] == dataclasses.asdict(actual.actions[0]) | {"launches": list(actual.actions[0].launches)}
