"""Counters, GraphML and Perfetto files hold what the policy and the graph say."""

from __future__ import annotations

import json
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.small_programs import Program, norm
from tests.support.synthetic_graphs import write_mlp
from tileprof.analysis import build_graph
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.analysis.lanes import LaneSource
from tileprof.errors import UserError
from tileprof.policy.emit import perfetto
from tileprof.policy.emit.counters import counters
from tileprof.policy.emit.folder import write_folder
from tileprof.policy.emit.graphml import graphml_files
from tileprof.policy.emit.names import comment, identifiers, xml_text
from tileprof.policy.emit.perfetto import perfetto_files
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.dependency_file import parse_dependencies
from tileprof.trace import load

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> TileGraph:
    path = write_mlp(tmp_path_factory.mktemp("emit") / "mlp.tileprof", layers=2, tokens=512, hidden=1024)
    return build_graph(load(path))


@pytest.mark.parametrize(
    "text",
    [
        "grid up 6 x 4\ngrid down 5 x 4\ndep down on up(0..5, y)",
        (
            "grid a 9\ngrid b 9\ngrid c 3\ndep b on a(max(0, x - 1)..min(8, x + 1))\n"
            "dep c on b(3*x..3*x + 2)\ndep c on a(8 - x)"
        ),
    ],
)
def test_running_the_task_groups_runs_every_task_after_what_its_policy_awaits(text: str) -> None:
    policy = parse_dependencies("tileprof dependencies 1\n" + text).policy()
    result = json.loads(json.dumps(counters(policy)))
    counter_values = [0] * len(result["counters"])
    ended_tasks: set[tuple[int, int]] = set()
    producers_of = {(s, t): set() for s, stage in enumerate(policy.stages) for t in range(stage.tiles)}
    for waits in lower(policy):
        for tile in range(len(waits.indptr) - 1):
            for k in range(waits.indptr[tile], waits.indptr[tile + 1]):
                producers_of[waits.edge.consumer, tile] |= {
                    (waits.edge.producer, p) for p, s in enumerate(waits.of) if s == waits.semaphore[k]
                }
    waiting_groups = list(result["groups"])
    while waiting_groups:
        ready = [g for g in waiting_groups if all(counter_values[c] >= v for c, v in g["waits"])]
        assert ready, "nothing can run"
        for group in ready:
            waiting_groups.remove(group)
            for tile in (t for begin, end in group["tiles"] for t in range(begin, end)):
                assert producers_of[group["stage"], tile] <= ended_tasks
                ended_tasks.add((group["stage"], tile))
                for column in result["stages"][group["stage"]]["posts"]:
                    counter_values[column[tile]] += 1
    assert ended_tasks == set(producers_of)
    assert counter_values == result["counters"]


def test_graphml_holds_every_launch_and_pair(graph: TileGraph) -> None:
    text = graphml_files(graph)["graph.graphml"]
    read = nx.parse_graphml(text)
    expected = graph.to_networkx()
    assert read.number_of_nodes() == expected.number_of_nodes()
    assert {(int(p), int(c)) for p, c in read.edges} == set(expected.edges)
    assert read.nodes["0"]["kernel"] == expected.nodes[0]["kernel"]
    assert len(nx.parse_graphml(graphml_files(graph, [0, 1])["graph.graphml"])) == 2


def test_graphml_survives_names_that_xml_cannot_hold(graph: TileGraph) -> None:
    names = ["<&\"'>\x00\x1b]]>", "\ud800x"]
    assert [xml_text(n) for n in names] == ["<&\"'>\ufffd\ufffd]]>", "\ufffdx"]
    element = ET.Element("a")
    element.text = xml_text(names[0])
    ET.fromstring(ET.tostring(element))


def test_perfetto_holds_every_tile_on_a_lane_of_its_own(graph: TileGraph) -> None:
    events = json.loads(perfetto_files(graph, [0, 1])["perfetto.json"])["traceEvents"]
    tiles = [e for e in events if e.get("cat") == "tile"]
    assert Counter(e["args"]["launch"] for e in tiles) == {
        0: graph.tile_base[1],
        1: graph.tile_base[2] - graph.tile_base[1],
    }
    for launch in (0, 1):
        by_lane: dict[int, list[tuple[float, float]]] = {}
        for e in (e for e in tiles if e["args"]["launch"] == launch):
            by_lane.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
        for spans in by_lane.values():
            spans.sort()
            assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))
    thread_ids = {e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    assert {e["tid"] for e in tiles} == thread_ids


def test_perfetto_nests_launches_in_slices_of_their_modules() -> None:
    graph = build_graph(load(GOLDEN / "gpt2.tileprof"))
    launch_range = range(40)
    events = json.loads(perfetto_files(graph, launch_range)["perfetto.json"])["traceEvents"]
    slices = [e for e in events if e.get("cat") in ("module", "launch")]
    launches = [e for e in slices if e["cat"] == "launch"]
    assert len({e["name"] for e in launches}) > 5
    assert all(e["name"].split(" · ")[-1] == e["args"]["kernel"] for e in launches)
    for launch in launches:
        around = [
            e["args"]["module"]
            for e in slices
            if e["cat"] == "module"
            and e["tid"] == launch["tid"]
            and e["ts"] <= launch["ts"] + 1e-6
            and launch["ts"] + launch["dur"] <= e["ts"] + e["dur"] + 1e-6
        ]
        module = launch["args"]["module"]
        assert not module or around[-1] == module
        assert all(module == path or module.startswith(f"{path}.") for path in around)
    assert any(e["name"] == "h.0" for e in slices)


def test_perfetto_draws_a_limited_number_of_arrows_from_end_to_begin(
    graph: TileGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MOST_ARROWS", 10)
    events = json.loads(perfetto_files(graph)["perfetto.json"])["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert 0 < len(starts) <= 10
    assert starts.keys() == ends.keys()
    assert all(e["bp"] == "e" for e in ends.values())
    tiles = [e for e in events if e.get("cat") == "tile"]
    finish = {(e["tid"], round(e["ts"] + e["dur"], 6)) for e in tiles}
    begin = {(e["tid"], round(e["ts"], 6)) for e in tiles}
    assert all((e["tid"], round(e["ts"], 6)) in finish for e in starts.values())
    assert all((e["tid"], round(e["ts"], 6)) in begin for e in ends.values())


@pytest.mark.parametrize("name", ["gemm_pair", "softmax", "attention"])
def test_perfetto_shows_the_lanes_of_the_page_and_no_tile_outlasts_its_launch(name: str) -> None:
    graph = build_graph(load(GOLDEN / f"{name}.tileprof"))
    events = json.loads(perfetto_files(graph, [0, 1])["perfetto.json"])["traceEvents"]
    whole = {e["args"]["launch"]: e for e in events if e.get("cat") == "launch"}
    source = LaneSource(graph.recording, graph.launches)
    for launch in (0, 1):
        lanes, begin_us = source.of(launch), whole[launch]["ts"]
        tiles = [e for e in events if e.get("cat") == "tile" and e["args"]["launch"] == launch]
        for e, sm, begin, end in zip(tiles, lanes.sm, lanes.begin_ns, lanes.end_ns, strict=True):
            assert e["tid"] // 64 == sm
            assert e["ts"] - begin_us == pytest.approx(begin / 1000, abs=1e-6)
            assert e["dur"] == pytest.approx((end - begin) / 1000, abs=1e-6)
            assert e["ts"] + e["dur"] <= begin_us + whole[launch]["dur"] + 1e-6


def test_perfetto_leaves_out_tiles_that_were_not_measured_where_others_were(tmp_path: Path) -> None:
    program = Program(tmp_path / "t")
    buffers = [program.buffer() for _ in range(3)]
    first = program.launch("row", norm(), buffers[:2], timing="measured", duration=600)
    program.launch("row", norm(), buffers[1:], duration=600)
    program.writer.add_times(first, [5, 2], [7, 9], [100, 200], [300, 400])
    events = json.loads(perfetto_files(build_graph(load(program.writer.close())))["perfetto.json"])["traceEvents"]
    shown_threads = {
        e["args"]["tile"]: e["tid"] // 64 for e in events if e.get("cat") == "tile" and e["args"]["launch"] == first
    }
    assert shown_threads == {2: 9, 5: 7}
    assert sum(e["ph"] == "s" for e in events) == 2


def test_perfetto_refuses_more_tiles_than_a_browser_shows(graph: TileGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MOST_TILES", 3)
    with pytest.raises(UserError, match="choose launches"):
        perfetto_files(graph)


@settings(max_examples=200)
@given(st.lists(st.text(max_size=60), max_size=12))
def test_identifiers_are_distinct_and_plain(names: list[str]) -> None:
    result = identifiers(names)
    assert len({name.lower() for name in result}) == len(names)
    for name in result:
        assert name.isascii()
        assert name.replace("_", "a").isalnum()
        assert name[0].isupper() or name[0].isalpha()
        assert "__" not in name


@settings(max_examples=200)
@given(st.text(max_size=300))
def test_a_comment_stays_one_line_of_a_comment(text: str) -> None:
    result = comment(text)
    assert result.isascii()
    assert result.isprintable()
    assert len(result) <= 120
    assert not set(result) & set("\\*/?")


def test_a_folder_gets_all_files_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_folder(folder, {"a": "1", "b": "2"}, force=False)
    with pytest.raises(UserError, match=r"will not overwrite .*b without --force"):
        write_folder(folder, {"c": "3", "b": "4"}, force=False)
    assert sorted(p.name for p in folder.iterdir()) == ["a", "b"]
    (folder / "d").mkdir()
    with pytest.raises(UserError, match="is not a file, and one is to be written there"):
        write_folder(folder, {"a": "9", "d": "4"}, force=True)
    assert (folder / "a").read_text() == "1"
    write_folder(folder, {"a": "9"}, force=True)
    assert (folder / "a").read_text() == "9"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_is_there_takes_files_though_what_lies_above_it_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    result = tempfile.mkdtemp

    def refusing(suffix: str | None = None, prefix: str | None = None, dir: Path | None = None) -> str:  # noqa: A002 - mkdtemp's
        if dir == tmp_path:
            raise PermissionError(13, "Permission denied")
        return result(suffix, prefix, dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refusing)
    write_folder(tmp_path / "out", {"a": "1"}, force=False)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
    with pytest.raises(UserError, match=r"could not write into .*new: Permission denied"):
        write_folder(tmp_path / "new", {"a": "1"}, force=False)


@pytest.mark.parametrize(("where", "message"), [("file", "is a file"), ("no/such/out", "no folder")])
def test_a_place_that_takes_no_folder_is_refused(tmp_path: Path, where: str, message: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=message):
        write_folder(tmp_path / where, {"a": "1"}, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
