"""The page in a real browser: what it draws, what a click does, and that it requests nothing and logs no error."""

import numpy as np
import pytest

from tests.support.small_programs import Program, norm, pointwise, recurrent, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.reporting.report import build_report
from tileprof.trace import load
from tileprof.trace.footprint import Boxes, Footprint
from tileprof.viz import page, study

LAYER = 10  # launches in a layer of the small transformer
GEMM, ATTENTION = 2, 3  # launches of its first layer


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("browser") / "t", layers=6)))


@pytest.fixture(scope="module")
def page_file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(graph, build_report(graph)), encoding="utf-8")
    return path


MIDDLE = "(i) => { const n = tileprof.nodeFor(i); return [n.ax + n.w / 2, n.ay + n.h / 2]; }"
EDGE = """(pair) => { const d = tileprof.drawing();
    const e = d.edges.find((e) => tileprof.pairs.producer[e.pair] === pair[0]
    && tileprof.pairs.consumer[e.pair] === pair[1]); return e.path.samples[Math.floor(e.path.samples.length / 2)]; }"""
TILES_READY = "(pair) => tileprof.matrix.parts.length > 0 && tileprof.matrix.key === pair.join(',')"


def test_the_header_names_the_program_and_calls_modelled_time_modelled(tab):
    page_tab = tab()
    assert page_tab.page.inner_text("#command") == "python infer.py"
    facts = page_tab.page.inner_text("#facts")
    assert all(word in facts for word in ("H200", "modelled", "63 launches", "exact"))
    assert "with overlap" not in facts
    assert not page_tab.page.is_visible("#notes")
    assert page_tab.colours("graph") > 10
    assert page_tab.colours("lanes") > 5


def test_repeated_layers_are_one_until_they_are_opened(tab):
    page_tab = tab()
    nodes = "() => tileprof.drawing().nodes.length"
    assert page_tab.ask(nodes) == 1 + LAYER + 2
    page_tab.click("graph", "() => { const b = tileprof.drawing().boxes[0]; return [b.ax + 30, b.ay + 16]; }")
    assert page_tab.ask(nodes) == 63
    assert page_tab.hash() == "#open=1"
    page_tab.ask("(i) => tileprof.select({ launch: i })", 1 + 2 * LAYER)  # scrolls it into view
    page_tab.click("graph", "() => { const b = tileprof.drawing().boxes[2]; return [b.ax + 30, b.ay + 16]; }")
    assert page_tab.ask(nodes) == 1 + LAYER + 2
    assert (
        page_tab.ask("() => tileprof.drawing().nodes[1].launch") == 1 + 2 * LAYER
    )  # folded into the copy that was clicked


def test_no_node_lies_on_another_and_edges_point_down(tab):
    page_tab = tab("#open=1")
    page_tab.ask("""() => { const nodes = tileprof.drawing().nodes;
        for (const a of nodes) for (const b of nodes)
            if (a !== b && a.ax < b.ax + b.w && b.ax < a.ax + a.w && a.ay < b.ay + b.h && b.ay < a.ay + a.h)
                throw new Error(`${a.launch} lies on ${b.launch}`); }""")
    assert page_tab.ask("() => tileprof.drawing().edges.every((e) => e.around || e.a.ay + e.a.h <= e.b.ay)")


def test_edges_do_not_cross_nodes(tab):
    crossings = tab().ask("""() => { const d = tileprof.drawing(); const bad = [];
        for (const e of d.edges) for (const n of d.nodes) if (n !== e.a && n !== e.b)
            for (const [x, y] of e.path.samples)
                if (x > n.ax + 2 && x < n.ax + n.w - 2 && y > n.ay + 2 && y < n.ay + n.h - 2)
                    bad.push([e.a.launch, e.b.launch, n.launch]);
        return bad; }""")
    assert crossings == []


def test_hovering_a_node_shows_kernel_op_module_grid_tiles_and_time(tab):
    tooltip = tab().tip("graph", MIDDLE, ATTENTION)
    for word in (
        "flash_attention_causal",
        "aten::sdpa",
        "transformer.h.0.attn",
        "8\u00d78\u00d71",
        "64 tiles",
        "waves",
        "7.2 us",
        "exact",
    ):
        assert word in tooltip


def test_a_click_on_an_edge_shows_the_tiles_of_its_pair(tab, graph):
    page_tab = tab()
    page_tab.click("graph", EDGE, [GEMM, ATTENTION])
    page_tab.until(TILES_READY, [GEMM, ATTENTION])
    assert page_tab.hash() == f"#pair={GEMM},{ATTENTION}"
    links = graph.links[(graph.links["producer"] == GEMM) & (graph.links["consumer"] == ATTENTION)]
    assert f"edges {int(links['edges'].sum()):,}" in page_tab.page.inner_text("#pair").replace("\n", " ")
    assert page_tab.colours("matrix") > 3


def test_every_cell_of_the_matrix_says_what_the_graph_says(tab, graph):
    page_tab = tab(f"#pair={GEMM},{ATTENTION}")
    page_tab.until(TILES_READY, [GEMM, ATTENTION])
    edges = graph.edges
    edges = edges[(edges["producer_launch"] == GEMM) & (edges["consumer_launch"] == ATTENTION)]
    reference = {(p, c): b for p, c, b in edges[["producer_tile", "consumer_tile", "bytes"]].itertuples(index=False)}
    message = page_tab.ask("""async () => { const out = []; const { block } = tileprof.matrix.parts[0];
        await block.details();
        block.set_of.forEach((set, c) => {
            for (let e = block.indptr[set]; e < block.indptr[set + 1]; e++)
                out.push([block.parent[e], c, block.bytes[e]]); });
        return out; }""")
    assert {(p, c): b for p, c, b in message} == reference


def test_zooming_down_to_a_tile_shows_its_place_bytes_and_hazard(tab, graph):
    page_tab = tab(f"#pair={GEMM},{ATTENTION}")
    page_tab.until(TILES_READY, [GEMM, ATTENTION])
    edge = graph.edges[(graph.edges["producer_launch"] == GEMM) & (graph.edges["consumer_launch"] == ATTENTION)].iloc[
        40
    ]
    cell = [int(edge["consumer_tile"]), int(edge["producer_tile"])]
    centre = "(cell) => cell.map((v) => v + 0.5)"
    before = page_tab.ask("() => tileprof.views.matrix.view.ky")
    for _ in range(20):
        page_tab.page.mouse.move(*page_tab.at("matrix", centre, cell))
        page_tab.page.mouse.wheel(0, -120)
    page_tab.until("(k) => tileprof.views.matrix.view.ky > 20 * k", before)
    page_tab.tip("matrix", centre, cell)
    page_tab.until("() => document.getElementById('tip').innerText.includes('RAW: ')")
    tooltip = page_tab.page.inner_text("#tip")
    x, y, _ = graph.footprint(int(graph.launches["footprint"][ATTENTION])).block[cell[0]]
    assert f"consumer tile {cell[0]} ({x}, {y}, 0)" in tooltip
    assert f"producer tile {cell[1]}" in tooltip
    assert "RAW: 8.19 kB" in tooltip
    page_tab.page.keyboard.press("0")
    page_tab.page.dblclick("#matrix canvas")
    assert page_tab.ask("() => tileprof.views.matrix.view.ky") == pytest.approx(before)


def test_ordering_tiles_along_an_axis_moves_cells_and_loses_none(tab):
    page_tab = tab(f"#pair={GEMM},{ATTENTION}")
    page_tab.until(TILES_READY, [GEMM, ATTENTION])
    page_tab.page.select_option("#pair select", "y")
    tiles = page_tab.ask("() => Array.from(tileprof.matrix.columns.tile)")
    assert tiles != sorted(tiles)
    assert sorted(tiles) == list(range(64))


def test_a_tile_is_followed_to_its_parents_and_children(tab, graph):
    tile = 20
    page_tab = tab(f"#pair={GEMM},{ATTENTION}&tile={ATTENTION},{tile}")
    edges = graph.edges[~graph.edges["reuse"]]
    parents = edges[(edges["consumer_launch"] == ATTENTION) & (edges["consumer_tile"] == tile)]
    children = edges[(edges["producer_launch"] == ATTENTION) & (edges["producer_tile"] == tile)]
    page_tab.page.wait_for_selector("#lanes-says:has-text('children')")
    assert f"{len(parents)} parents, {len(children)} children" in page_tab.page.inner_text("#lanes-says")


def test_a_click_in_the_timeline_selects_the_tile_and_its_launch(tab):
    page_tab = tab(f"#launch={GEMM}")
    page_tab.until("(i) => tileprof.laneTables.ready(tileprof.laneOf[i])", GEMM)
    where = (
        "([i, t]) => { const l = tileprof.laneTables.ready(tileprof.laneOf[i]); return [tileprof.startOf(i) + "
        "(l.begin[t] + l.life[t] / 2) / 10, l.sm[t] + 0.5]; }"
    )
    assert "tile 7 (7, 0, 0)" in page_tab.tip("lanes", where, [GEMM, 7])
    page_tab.click("lanes", where, [GEMM, 7])
    assert page_tab.hash() == f"#tile={GEMM},7"


def test_search_finds_kernels_operators_and_modules_and_enter_selects_the_next(tab):
    page_tab = tab()
    page_tab.page.keyboard.press("/")
    page_tab.page.keyboard.type("SDPA h.4")
    assert page_tab.page.inner_text("#found") == "1 match"
    page_tab.page.keyboard.press("Enter")
    assert page_tab.hash() == f"#launch={ATTENTION + 4 * LAYER}&search=SDPA%20h.4"
    assert "transformer.h.4.attn" in page_tab.page.inner_text("#launch")
    page_tab.page.keyboard.press("Escape")
    assert page_tab.page.inner_text("#found") == ""


def test_keys_walk_zoom_and_step_back(tab):
    page_tab = tab()
    page_tab.page.focus("#graph canvas")
    page_tab.page.keyboard.press("ArrowRight")
    assert page_tab.hash() == "#launch=0"
    page_tab.page.keyboard.press("ArrowDown")
    assert page_tab.hash() in {"#launch=1", "#launch=5"}
    before = page_tab.ask("() => tileprof.views.graph.view.kx")
    page_tab.page.keyboard.press("+")
    assert page_tab.ask("() => tileprof.views.graph.view.kx") > before
    page_tab.page.keyboard.press("Enter")
    page_tab.until("() => tileprof.state.pair !== null")
    for _ in range(2):
        page_tab.page.keyboard.press("Escape")
    assert page_tab.hash() == ""
    page_tab.page.keyboard.press("?")
    assert page_tab.page.is_visible("#keys")
    page_tab.page.keyboard.press("Escape")
    page_tab.page.keyboard.press("f")
    assert not page_tab.page.is_visible("#lanes")
    page_tab.page.keyboard.press("f")
    assert page_tab.page.is_visible("#lanes")


def test_the_list_of_pairs_leads_to_a_pair_and_back(tab):
    page_tab = tab()
    page_tab.page.click("#ranking tbody tr >> nth=1")
    page_tab.until("() => tileprof.matrix.parts.length > 0")
    assert not page_tab.page.is_visible("#ranking")
    page_tab.page.click("#back")
    assert page_tab.page.is_visible("#ranking")


def test_hidden_patterns_leave_the_drawing(tab):
    page_tab = tab()
    edges = "() => tileprof.drawing().edges.length"
    before = page_tab.ask(edges)
    page_tab.page.click("#legend button >> nth=0")
    assert page_tab.ask(edges) < before
    page_tab.page.click("#legend button >> nth=0")
    assert page_tab.ask(edges) == before


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_page_takes_the_systems_theme_and_changes_it_on_demand(tab, scheme):
    page_tab = tab(color_scheme=scheme)
    theme = "() => document.documentElement.dataset.theme"
    assert page_tab.ask(theme) == scheme
    page_tab.page.click("#theme")
    assert page_tab.ask(theme) != scheme


def test_an_address_that_names_nothing_selects_nothing(tab):
    view = tab("#pair=1,99999")
    selection = "() => [tileprof.state.launch, tileprof.state.pair, tileprof.state.tile]"
    assert view.ask(selection) == [None] * 3
    for address in ("#launch=-1", "#tile=2,1e9", "#tile=5,1.5", "#open=9.9.9", "#pair=<b>", "#launch=x&pair=,"):
        view.visit(f"#launch={GEMM}")
        assert view.ask(selection)[0] == GEMM
        view.visit(address)
        assert view.ask(selection) == [None] * 3, address


def test_steps_within_layers_fold_twice_and_every_launch_can_be_shown(tab, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page(build_graph(load(recurrent(tmp_path / "t")))), encoding="utf-8")
    page_tab = tab(path=path)
    assert page_tab.ask("() => tileprof.drawing().nodes.length") == 3  # one fill, one step
    wrong = page_tab.ask("""() => Array.from(tileprof.launches.tiles, (_, i) => i).filter((i) => {
        tileprof.select({ launch: i }); return tileprof.nodeFor(i).launch !== i; })""")
    assert wrong == []
    pair_numbers = page_tab.ask("() => tileprof.drawing().edges.flatMap((e) => e.pairs).sort((a, b) => a - b)")
    assert pair_numbers == list(range(page_tab.ask("() => tileprof.pairs.producer.length")))
    page_tab.ask(
        "() => { for (const b of tileprof.drawing().boxes) tileprof.state.open.add(b.group); tileprof.select({}); }"
    )
    assert page_tab.ask("() => tileprof.drawing().nodes.map((n) => n.launch)") == list(range(33))


def _empty(program):
    del program


def _one_tile(program):
    program.launch("one", pointwise(tiles=1), [program.buffer(), program.buffer()])


def _one_launch(program):
    program.launch("one", norm(), [program.buffer(), program.buffer()])


def _no_times(program):
    footprint = norm()
    footprint.duration_ns = None
    buffers = [program.buffer() for _ in range(3)]
    for a, b in ((0, 1), (1, 2)):
        program.now = 0
        program.launch("row", footprint, (buffers[a], buffers[b]), duration=0)


def _no_accesses(program):
    grid = np.zeros((3, 3), np.int32)
    footprint = Footprint(grid, Boxes.concat([]), None)
    program.launch("opaque", footprint, [])
    program.launch("opaque", footprint, [])


def _hostile(program):
    name = "</script><img src=x onerror=alert(1)>'\"&\u202e\u2028\x00"
    buffers = [program.buffer() for _ in range(3)]
    for a, b in ((0, 1), (1, 2)):
        program.launch(name, norm(), (buffers[a], buffers[b]), module=name, op=name, note=name, coverage="conservative")


def _measures(program):
    buffers = [program.buffer() for _ in range(3)]
    for a, b in ((0, 1), (1, 2)):
        launch = program.launch("row", norm(), (buffers[a], buffers[b]), timing="measured")
        program.writer.add_times(launch, np.arange(8), np.arange(8) % 3, np.arange(8) * 100, np.arange(8) * 100 + 900)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (_empty, "The trace holds no launches"),
        (_one_tile, "The trace holds one launch, which depends on nothing."),
        (_one_launch, "The trace holds one launch, which depends on nothing."),
        (_no_times, "modelled"),
        (_no_accesses, "The trace holds no accesses"),
        (_hostile, "2 launches are conservative"),
        (_measures, "measured tiles"),
    ],
)
def test_pages_of_unusual_traces_explain_what_is_missing(tab, tmp_path, build, says):
    program = Program(tmp_path / "t")
    build(program)
    path = tmp_path / "page.html"
    graph = build_graph(load(program.writer.close()))
    path.write_text(page(graph, build_report(graph), study(graph)), encoding="utf-8")
    page_tab = tab("#launch=0", path=path)
    page_tab.page.mouse.move(200, 400)
    page_tab.until("(says) => document.body.innerText.includes(says)", says)
    page_tab.page.keyboard.press("Escape")
    for key in "456":  # the other views log no error either
        page_tab.page.keyboard.press(key)
        page_tab.ask("() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
    assert page_tab.page.query_selector("img") is None


def test_a_partial_trace_says_so_first(tab, tmp_path):
    program = Program(tmp_path / "t")
    _hostile(program)
    path = tmp_path / "page.html"
    path.write_text(page(build_graph(load(program.writer.abandon("interrupted")))), encoding="utf-8")
    assert tab(path=path).page.inner_text("#notes").startswith("Partial trace")


def test_hostile_names_are_shown_as_they_are(tab, tmp_path):
    program = Program(tmp_path / "t")
    _hostile(program)
    path = tmp_path / "page.html"
    path.write_text(page(build_graph(load(program.writer.close()))), encoding="utf-8")
    page_tab = tab("#pair=0,1", path=path)
    page_tab.until("() => tileprof.matrix.parts.length > 0")
    assert "</script><img src=x onerror=alert(1)>'\"&\\u202e\\u2028\\u0000" in page_tab.page.inner_text("#launch")
    assert "onerror" in page_tab.tip("graph", MIDDLE, 1)


def test_kernel_names_keep_their_template_arguments(tab, tmp_path):
    names = {
        "void at::native::vectorized_elementwise<add>(int, float)": "vectorized_elementwise<add>",
        "vectorized_elementwise<add>": "vectorized_elementwise<add>",
        "cutlass::Kernel<A, ns::B>(Params)": "Kernel<A, ns::B>",
        "Memcpy HtoD (Pageable -> Device)": "Memcpy HtoD (Pageable -> Device)",
        "<script>alert(1)</script>": "<script>alert(1)</script>",
    }
    program = Program(tmp_path / "t")
    for name in names:
        program.launch(name, norm(), [program.buffer() for _ in range(2)])
    path = tmp_path / "page.html"
    path.write_text(page(build_graph(load(program.writer.close()))), encoding="utf-8")
    page_tab = tab(path=path)
    for launch, (name, short) in enumerate(names.items()):
        page_tab.ask("(i) => tileprof.select({ launch: i })", launch)
        assert page_tab.page.inner_text("#launch h3") == f"{launch} {short}"
        assert name in page_tab.page.inner_text("#launch")
        assert name in page_tab.tip("graph", MIDDLE, launch)


@pytest.fixture(scope="module")
def many_modules(tmp_path_factory):
    program = Program(tmp_path_factory.mktemp("modules") / "t")
    before = program.buffer()
    for block in range(6):
        for part in range(7):
            after = program.buffer()
            name = f"net.block.{block}.part{part}"
            program.launch(
                f"kernel_{block}_{part}", pointwise(1, 1, 8 + part), (before, after), module=name, op="aten::op"
            )
            before = after
    path = tmp_path_factory.mktemp("pages") / "modules.html"
    path.write_text(page(build_graph(load(program.writer.close()))), encoding="utf-8")
    return path


def test_modules_are_one_node_until_a_click_opens_them(tab, many_modules):
    page_tab = tab(path=many_modules)
    names = "() => tileprof.drawing().nodes.map((n) => n.module ?? n.launch)"
    assert page_tab.ask(names) == [f"net.block.{k}" for k in range(6)]
    assert (
        page_tab.ask("() => document.querySelectorAll('#ranking tbody tr').length") == 41
    )  # those inside of modules too
    page_tab.click("graph", MIDDLE, 8)
    assert page_tab.ask("() => tileprof.drawing().nodes.length") == 12
    assert page_tab.hash() == "#open=1"
    page_tab.page.keyboard.press("Escape")
    page_tab.click("graph", "() => { const b = tileprof.drawing().boxes[0]; return [b.ax + 30, b.ay + 16]; }")
    assert page_tab.ask("() => tileprof.drawing().nodes.length") == 6


def test_zooming_out_of_the_graph_ends_where_names_are_legible_and_the_map_moves_the_view(tab, many_modules):
    page_tab = tab("#open=0,1,2,3,4,5", path=many_modules)
    view = "() => tileprof.views.graph"
    page_tab.page.focus("#graph canvas")
    for _ in range(12):
        page_tab.page.keyboard.press("-")
    assert page_tab.ask(f"() => ({view})().view.kx") == pytest.approx(0.5)
    assert (
        page_tab.ask("() => Math.min(...tileprof.drawing().nodes.map((n) => n.w)) * 0.5") > 90
    )  # pixels for a name in 11 px type
    page_tab.page.keyboard.press("0")
    before = page_tab.ask(f"() => ({view})().view.y")
    x, y, w, h = page_tab.ask("() => { const m = tileprof.map(); return [m.x, m.y, m.w, m.h]; }")
    box = page_tab.page.locator("#graph canvas").bounding_box()
    page_tab.page.mouse.click(box["x"] + x + w / 2, box["y"] + y + h * 0.9)
    assert page_tab.ask(f"() => ({view})().view.y") < before - 100
