import base64
import hashlib
import html
import re

import numpy as np
import pytest

from tests.support.packed_values import embedded, unpacked
from tests.support.small_programs import Program, norm, pointwise, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.reporting.report import build_report
from tileprof.trace import load
from tileprof.trace.footprint import Boxes, Footprint
from tileprof.viz import document as documents
from tileprof.viz import page, study, variants

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&\u202e\u2028\x00<!--"


def values_of(path):
    return build_graph(load(path))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    graph = values_of(transformer(tmp_path_factory.mktemp("page") / "t", layers=3))
    return page(graph, build_report(graph))


def test_only_the_pages_own_code_and_style_may_run(text):
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    script = re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL)[1]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    for kind, code in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_nothing_is_fetched(text):
    addresses = set(re.findall(r"""(?:https?:)?//[\w.-]+\.\w+[^\s"']*""", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert "connect-src" not in text  # so that the code with which a served page fetches does nothing in a file
    assert not re.search(r"\b(XMLHttpRequest|WebSocket|import)\s*\(|innerHTML|insertAdjacentHTML|document\.write", text)


def test_the_page_of_one_trace_is_always_the_same(tmp_path):
    path = transformer(tmp_path / "t", layers=2)
    assert page(values_of(path)) == page(values_of(path))


def test_the_summary_counts_what_the_trace_holds(text):
    summary = embedded(text)["summary"]
    assert (summary["launches"], summary["device"], summary["complete"]) == (33, "H200", True)
    assert summary["coverage"] == {"exact": 33, "inferred": 0, "conservative": 0}
    assert summary["timing"] == {"measured": 0, "modelled": 33}
    assert 0 < summary["bound_ns"] < summary["recorded_ns"]


def test_the_reports_gains_stand_at_their_pairs(tmp_path):
    graph = values_of(transformer(tmp_path / "t", layers=2))
    report = build_report(graph)
    pairs = embedded(page(graph, report))["pairs"]
    expected = {(r.producer, r.consumer): r.gain_ns for r in report.pairs.itertuples()}
    keys = zip(unpacked(pairs["producer"]), unpacked(pairs["consumer"]), strict=True)
    np.testing.assert_allclose(unpacked(pairs["gain_ns"]), [expected[k] for k in keys], rtol=1e-6)
    assert np.isnan(unpacked(embedded(page(graph))["pairs"]["gain_ns"])).all()


def test_hostile_names_stay_data(tmp_path):
    program = Program(tmp_path / "t", command=("python", HOSTILE))
    buffers = [program.buffer() for _ in range(2)]
    program.launch(HOSTILE, norm(), buffers, module=HOSTILE, op=HOSTILE, note=HOSTILE, coverage="conservative")
    program.writer.note(HOSTILE)
    text = page(values_of(program.writer.close()))
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert "<!--" not in text
    assert not set(text) & set("\u202e\u2028\x00")
    assert embedded(text)["strings"][0] == HOSTILE.replace("\u202e", "\\u202e").replace("\u2028", "\\u2028").replace(
        "\x00", "\\u0000"
    )


def test_the_words_that_hold_parts_of_the_page_are_not_names(tmp_path):
    program = Program(tmp_path / "t", command=("@@DATA@@", "@@SCRIPT@@"))
    program.launch("@@STYLE@@", norm(), [program.buffer() for _ in range(2)])
    value = embedded(page(values_of(program.writer.close())))
    assert value["summary"]["command"] == "@@DATA@@ @@SCRIPT@@"
    assert "@@STYLE@@" in value["strings"]


def test_a_trace_without_launches_has_a_page(tmp_path):
    assert embedded(page(values_of(Program(tmp_path / "t").writer.close())))["summary"]["launches"] == 0


def test_a_partial_trace_is_marked(tmp_path):
    program = Program(tmp_path / "t")
    program.launch("row", norm(), [program.buffer() for _ in range(2)])
    assert embedded(page(values_of(program.writer.abandon("interrupted"))))["summary"]["complete"] is False


def test_tiles_without_times_share_the_launch_and_the_page_says_so(tmp_path):
    program = Program(tmp_path / "t")
    footprint = norm()
    footprint.duration_ns = None
    program.launch("row", footprint, [program.buffer() for _ in range(2)], duration=1_000)
    value = embedded(page(values_of(program.writer.close())))
    assert unpacked(value["lanes"][0]["life"]).tolist() == [10_000] * 8  # tenths of a nanosecond
    assert "spread evenly" in " ".join(value["notes"])


def test_launches_without_begins_stand_one_after_another(tmp_path):
    program = Program(tmp_path / "t")
    buffers = [program.buffer() for _ in range(4)]
    for a, b in ((0, 1), (1, 2), (2, 3)):
        program.now = 0
        program.launch("row", norm(), (buffers[a], buffers[b]), duration=700)
    value = embedded(page(values_of(program.writer.close())))
    assert unpacked(value["launches"]["begin_ns"]).tolist() == [0, 700, 1400]
    assert value["summary"]["span_ns"] == 2100
    assert "one after another" in value["notes"][0]


def test_measured_tiles_stand_on_their_own_sm(tmp_path):
    program = Program(tmp_path / "t")
    launch = program.launch("row", norm(), [program.buffer() for _ in range(2)], timing="measured")
    sm, begin = np.arange(8) // 2, np.arange(8) * 10
    program.writer.add_times(launch, np.arange(8), sm, begin, begin + 15)
    lanes = embedded(page(values_of(program.writer.close())))["lanes"][0]
    assert unpacked(lanes["sm"]).tolist() == sm.tolist()
    assert unpacked(lanes["begin"]).tolist() == (begin * 10).tolist()
    assert unpacked(lanes["slot"]).tolist() == [0, 1] * 4


def test_measured_tiles_do_not_outlast_their_launch_and_the_page_says_so(tmp_path):
    program = Program(tmp_path / "t")
    launch = program.launch("row", norm(), [program.buffer() for _ in range(2)], timing="measured", duration=600)
    program.writer.add_times(launch, np.arange(8), np.arange(8), np.full(8, 200), np.full(8, 800))
    value = embedded(page(values_of(program.writer.close())))
    lanes = value["lanes"][0]
    assert unpacked(lanes["begin"]).tolist() == [1500] * 8
    assert unpacked(lanes["life"]).tolist() == [4500] * 8
    assert "slower pass, scaled" in " ".join(value["notes"])


def test_clusters_come_with_the_lanes_that_they_hold_and_the_slots_of_their_launch(tmp_path):
    program = Program(tmp_path / "t")
    buffers = [program.buffer() for _ in range(2)]
    program.launch("pairs", pointwise(1, 1, 128), buffers, cluster=(2, 1, 1), grid=(256, 1, 1))
    value = embedded(page(values_of(program.writer.close())))
    assert value["lanes"][0]["cluster"] == 2
    assert unpacked(value["launches"]["slots"]).tolist() == [66]
    assert len(set(unpacked(value["lanes"][0]["begin"]).tolist())) == 2


def test_a_trace_without_durations_is_drawn_as_modelled(tmp_path):
    program = Program(tmp_path / "t")
    footprint = norm()
    footprint.duration_ns = None
    buffers = [program.buffer() for _ in range(3)]
    for i in range(2):
        program.now = 0
        program.launch("row", footprint, buffers[i : i + 2], duration=0, timing="measured")
    graph = values_of(program.writer.close())
    value = embedded(page(graph, build_report(graph)))
    assert value["summary"]["timing"] == {"measured": 0, "modelled": 2}
    assert value["summary"]["span_ns"] == pytest.approx(value["gain"]["recorded_ns"], abs=2)
    assert (unpacked(value["launches"]["duration_ns"]) > 0).all()
    assert "roofline" in " ".join(value["notes"])


def test_a_trace_without_accesses_has_a_page_without_gains(tmp_path):
    program = Program(tmp_path / "t")
    footprint = Footprint(norm().block, Boxes.concat([]), np.full(8, 100.0))
    for _ in range(2):
        program.launch("row", footprint, ())
    graph = values_of(program.writer.close())
    value = embedded(page(graph, build_report(graph), study(graph), variants=variants(graph)))
    assert (value["gain"], value["schedules"], value["variants"]) == ({}, [], [])
    assert value["summary"]["dependencies_known"] is False
    assert "bound_ns" not in value["summary"]
    assert "is unknown" in " ".join(value["notes"])


def test_pairs_are_ranked_and_grouped_as_the_report_does(tmp_path):
    graph = values_of(transformer(tmp_path / "t", layers=3))
    report = build_report(graph)
    value = embedded(page(graph, report))
    pairs = {name: unpacked(value["pairs"][name]).tolist() for name in ("producer", "consumer", "group")}
    for p, c, group in zip(*pairs.values(), strict=True):
        row = report.groups.iloc[int(group)]
        assert (p, c) in list(zip(row["producers"], row["consumers"], strict=True))
    assert unpacked(value["groups"]["times"]).tolist() == report.groups["times"].tolist()
    np.testing.assert_allclose(unpacked(value["groups"]["gain_ns"]), report.groups["gain_ns"], rtol=1e-6)


def test_coordinates_are_those_of_the_footprint(tmp_path):
    path = transformer(tmp_path / "t", layers=2)
    value, trace = embedded(page(values_of(path))), load(path)
    for launch, place in enumerate(unpacked(value["grid_of"]).astype(int)):
        block = trace.footprint(int(trace.launches["footprint"][launch])).block
        grid = value["grids"][place]
        assert np.stack([unpacked(grid[axis]) for axis in "xyz"], axis=1).tolist() == block.tolist()


def test_layers_more_cost_a_page_next_to_nothing(tmp_path):
    sizes = [len(page(values_of(transformer(tmp_path / str(layers), layers=layers)))) for layers in (12, 48)]
    assert sizes[1] < 1.15 * sizes[0]
    assert sizes[1] < 400_000


def test_a_large_program_takes_few_bytes_an_edge(tmp_path):
    program = Program(tmp_path / "t")
    rng = np.random.default_rng(4)
    before, tiles, near = program.buffer(), 20_000, 10
    at = np.arange(tiles)
    for number in range(3):
        after = program.buffer()
        parents = np.sort((at[:, None] + rng.permutation(400)[:near]) % tiles, axis=1)
        reads = Boxes.of(tile=np.repeat(at, near), operand=0, mode=0, offset=parents.ravel() * 16, length=16)
        boxes = Boxes.concat([reads, Boxes.of(tile=at, operand=1, mode=1, offset=at * 16, length=16)])
        footprint = Footprint(np.stack([at, 0 * at, 0 * at], axis=1).astype(np.int32), boxes, np.full(tiles, 500.0))
        program.launch(f"kernel_{number}", footprint, (before, after), duration=9_000)
        before = after
    graph = values_of(program.writer.close())
    edges = int(graph.links["edges"].sum())
    assert edges == 2 * tiles * near
    data = re.search(r'id="data">(.*?)</script>', page(graph), re.DOTALL)[1]
    assert len(data) < 1.5 * edges


@pytest.fixture
def crowded_trace(tmp_path):
    """Return fifty launches whose tiles and relations are random, so that nothing compresses."""
    program = Program(tmp_path / "t")
    rng = np.random.default_rng(3)
    before, tiles = program.buffer(), 2_000
    at = np.arange(tiles)
    grid = rng.permutation(np.stack([at, at, at], axis=1)).astype(np.int32)
    for number in range(50):
        after = program.buffer()
        reads = Boxes.of(
            tile=np.repeat(at, 4), operand=0, mode=0, offset=rng.integers(0, tiles, 4 * tiles) * 8, length=8
        )
        writes = Boxes.of(tile=at, operand=1, mode=1, offset=at * 8, length=8)
        footprint = Footprint(grid, Boxes.concat([reads, writes]), rng.uniform(100, 900, tiles))
        program.launch(f"kernel_{number}", footprint, (before, after), duration=9_000)
        before = after
    return values_of(program.writer.close())


def test_a_page_never_grows_beyond_its_budget_and_says_what_it_aggregated(crowded_trace, monkeypatch):
    whole = len(page(crowded_trace))
    monkeypatch.setattr(documents, "PAGE_BYTES", 600_000)
    small = page(crowded_trace)
    code = len(small) - len(re.search(r'id="data">(.*?)</script>', small, re.DOTALL)[1])
    assert len(small) < 650_000 + code < whole
    notes = " ".join(embedded(small)["notes"])
    assert "lanes of" in notes or "Grid coordinates" in notes
    assert "tile relations" in notes


def test_launches_and_pairs_beyond_what_can_be_drawn_are_left_out_aloud(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_LAUNCHES", 20)
    monkeypatch.setattr(documents, "MOST_PAIRS", 5)
    value = embedded(page(values_of(transformer(tmp_path / "t", layers=3))))
    assert value["launches"]["tiles"]["n"] == 20
    assert value["pairs"]["bytes"]["n"] == 5
    assert len(value["notes"]) == 2
    assert set(unpacked(value["links"]["consumer"])) <= set(unpacked(value["pairs"]["consumer"]))


def test_one_launch_of_one_tile_has_a_page(tmp_path):
    program = Program(tmp_path / "t")
    program.launch("one", pointwise(tiles=1), [program.buffer() for _ in range(2)])
    value = embedded(page(values_of(program.writer.close())))
    assert value["summary"]["tiles"] == 1
    assert value["pairs"]["bytes"]["n"] == 0
