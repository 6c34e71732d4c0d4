"""The tile graph of a chain of launches, in a real browser."""

import numpy as np
import pytest

from tests.support.small_programs import Program, pointwise, tile_grid, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.reporting.report import build_report
from tileprof.trace import load
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint
from tileprof.viz import page, study

NORM, GEMM, ATTENTION, PROJECTION = 1, 2, 3, 4
READY = "() => tileprof.chain.parents !== null"
NODE = """([column, tile]) => { const c = tileprof.chain; const count = tileprof.launches.tiles[c.launches[column]];
    return [column + 0.5, ((tile + 0.5) * c.height) / count]; }"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("tiles") / "t", layers=2)))


@pytest.fixture(scope="module")
def page_file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(graph, build_report(graph), study(graph)), encoding="utf-8")
    return path


def edges_between(graph, *launches):
    edges = graph.edges
    return edges[edges["producer_launch"].isin(launches) & edges["consumer_launch"].isin(launches) & ~edges["reuse"]]


def test_every_tile_has_as_many_parents_as_the_graph_says(tab, graph):
    view = tab(f"#pair={GEMM},{ATTENTION}&chain={NORM},{GEMM},{ATTENTION}&view=tiles")
    view.until(READY)
    edges = edges_between(graph, NORM, GEMM, ATTENTION)
    for column, launch in ((1, GEMM), (2, ATTENTION)):
        counts = edges[edges["consumer_launch"] == launch].groupby("consumer_tile").size()
        parent_counts = view.ask("(k) => Array.from(tileprof.chain.parents[k])", column)
        assert parent_counts == [int(counts.get(tile, 0)) for tile in range(len(parent_counts))]
    assert len(view.palette("tiles")) > 10


def test_hovering_a_tile_shows_coordinates_bytes_buffers_and_times(tab, graph):
    view = tab(f"#pair={GEMM},{ATTENTION}&view=tiles&beside=list")
    view.until(READY)
    view.until("() => tileprof.simulated()?.top")
    tooltip = view.tip("tiles", NODE, [1, 20])
    x, y, _ = graph.footprint(int(graph.launches["footprint"][ATTENTION])).block[20]
    parents = edges_between(graph, GEMM, ATTENTION)
    count = int((parents["consumer_tile"] == 20).sum())
    for words in (
        f"tile 20 ({x}, {y}, 0)",
        f"{count} parents",
        "reads ",
        "writes 8.19 kB",
        "launch reads activation",
        "SM ",
        "list:",
    ):
        assert words in tooltip


def test_a_click_selects_a_tile_in_all_views_and_a_second_one_lets_it_go(tab):
    view = tab(f"#pair={GEMM},{ATTENTION}&view=tiles")
    view.until(READY)
    view.click("tiles", NODE, [1, 20])
    assert view.hash() == f"#pair={GEMM},{ATTENTION}&tile={ATTENTION},20&view=tiles"
    view.until("() => document.getElementById('lanes-says').innerText.includes('tile 20')")
    view.click("tiles", NODE, [1, 20])
    assert "tile=" not in view.hash()


def test_the_chain_grows_and_shrinks_and_stays_in_the_address(tab):
    view = tab(f"#pair={GEMM},{ATTENTION}&view=tiles")
    view.until(READY)
    view.page.click("#chain button:has-text('+ consumer')")
    assert f"chain={GEMM},{ATTENTION},{PROJECTION}" in view.hash()
    view.page.click("#chain button:has-text('+ producer')")
    view.until("() => tileprof.chain.launches.length === 4")
    for _ in range(2):
        view.page.click("#chain button:has-text('shorter')")
    assert "chain=" not in view.hash()


def test_zooming_keeps_the_columns_and_spreads_the_tiles(tab):
    view = tab(f"#pair={GEMM},{ATTENTION}&view=tiles")
    view.until(READY)
    before = view.ask("() => ({ ...tileprof.views.tiles.view })")
    view.page.mouse.move(*view.at("tiles", NODE, [0, 40]))
    view.page.mouse.wheel(0, -480)
    view.until("(k) => tileprof.views.tiles.view.ky > k", before["ky"])
    assert view.ask("() => tileprof.views.tiles.view.kx") == pytest.approx(before["kx"])


def test_independent_tiles_are_ringed_and_counted(tab, tmp_path):
    program = Program(tmp_path / "t")
    grid = tile_grid(8, 1)
    tiles = grid[:, 0]
    half = tiles[:4]
    needy = Boxes.concat([
        Boxes.of(tile=half, operand=0, mode=READ, offset=half * 1024, length=1024),
        Boxes.of(tile=tiles, operand=1, mode=WRITE, offset=tiles * 1024, length=1024),
    ])  # fmt: skip
    buffers = [program.buffer() for _ in range(2)]
    program.launch("first", pointwise(0, tiles=8), (buffers[0],))
    program.launch("second", Footprint(grid, needy), buffers)
    path = tmp_path / "page.html"
    path.write_text(page(build_graph(load(program.writer.close()))), encoding="utf-8")
    view = tab("#view=tiles", path=path, color_scheme="light")
    view.until(READY)
    assert "4 tiles wait for none" in view.page.inner_text("#tiles-says")
    assert view.palette("tiles").get("0,102,74", 0) > 20
    assert "waits for none" in view.tip("tiles", NODE, [1, 6])
    assert "waits for none" not in view.tip("tiles", NODE, [1, 2])


def test_chains_beyond_what_can_be_drawn_say_so(tab, tmp_path):
    program = Program(tmp_path / "t")
    buffers = [program.buffer(wide=8) for _ in range(3)]
    for a, b in ((0, 1), (1, 2)):
        program.launch("many", pointwise(1, 8, tiles=4096), (buffers[a], buffers[b]))
    path = tmp_path / "page.html"
    path.write_text(page(build_graph(load(program.writer.close()))), encoding="utf-8")
    view = tab("#pair=0,1&view=tiles", path=path)
    assert "too many" in view.ask("() => tileprof.chain.problem")


@pytest.fixture
def reused_memory(tmp_path):
    """Write two launches of eight tiles: the second reads what the first wrote, and overwrites the first one's input in
    another order.
    """
    program = Program(tmp_path / "t")
    at = np.arange(8)
    grid = tile_grid(8, 1)

    def move(to):
        reads = Boxes.of(tile=at, operand=0, mode=READ, offset=at * 1024, length=1024)
        writes = Boxes.of(tile=at, operand=1, mode=WRITE, offset=to * 1024, length=1024)
        return Footprint(grid, Boxes.concat([reads, writes]), np.full(8, 900.0))

    base = 1 << 30
    buffer = program.writer.add_buffer(base=base, bytes=8192, kind="activation")
    between = program.writer.add_buffer(base=base + 65536, bytes=8192, kind="activation")
    program.launch("first", move(at), (buffer, between))
    program.writer.free_buffer(buffer)
    again = program.writer.add_buffer(base=base, bytes=8192, kind="activation")
    program.launch("second", move(7 - at), (between, again))
    graph = build_graph(load(program.writer.close()))
    assert sorted(graph.links["reuse"]) == [False, True]
    path = tmp_path / "page.html"
    path.write_text(page(graph, build_report(graph), study(graph)), encoding="utf-8")
    return path


def test_no_view_counts_or_draws_memory_reuse_until_it_is_asked_for(tab, reused_memory):
    view = tab("#pair=0,1&tile=1,2", path=reused_memory, color_scheme="light")
    counts = "() => [tileprof.flow.parents.length, tileprof.flow.ready]"
    view.until("() => tileprof.flow.ready && tileprof.matrix.parts.length > 0")
    assert view.ask(counts) == [1, True]
    message = view.page.inner_text("#pair").replace("\n", " ")
    assert "edges 8" in message
    assert "memory reuse" not in message
    reused = "167,159,189"
    assert reused not in view.palette("matrix")
    view.page.keyboard.press("4")
    view.until(READY)
    assert view.ask("() => tileprof.chain.parents[1][2]") == 1
    view.ask("() => tileprof.select({ pair: [0, 1], tile: [1, 2] })")
    view.page.keyboard.press("2")
    view.page.click("#legend button:has-text('memory reuse')")
    view.until("() => tileprof.flow.ready && tileprof.flow.parents.length === 2")
    assert "memory reuse 8" in view.page.inner_text("#pair")
    assert view.palette("matrix").get(reused, 0) > 20
    view.page.keyboard.press("4")
    view.until("() => tileprof.chain.parents && tileprof.chain.parents[1][2] === 2")


@pytest.mark.parametrize(
    ("key", "steps"), [("2", ["ArrowRight"] * 2), ("4", ["ArrowDown"] * 2), ("3", ["ArrowRight"] * 2)]
)
def test_arrows_move_a_tile_cursor_and_enter_selects_it(tab, key, steps):
    view = tab(f"#pair={GEMM},{ATTENTION}")
    view.until("() => tileprof.matrix.parts.length > 0")
    view.page.keyboard.press(key)
    view.until("([key, i]) => key !== '4' || tileprof.chain.parents !== null", [key, GEMM])
    view.page.keyboard.press("Enter")
    for step in steps:
        view.page.keyboard.press(step)
    assert view.ask("() => tileprof.state.tile") is None
    view.page.keyboard.press("Enter")
    assert view.ask("() => tileprof.state.tile") == {"2": [ATTENTION, 2], "4": [GEMM, 2], "3": [ATTENTION, 2]}[key]
    view.page.keyboard.press("Escape")  # the cursor first, then the earlier selection
    assert view.ask("() => tileprof.state.tile") is not None
    view.page.keyboard.press("Escape")
    assert view.ask("() => tileprof.state.tile") is None


def test_back_undoes_a_selection_but_not_each_step_of_scrubbing(tab):
    view = tab()
    view.ask("(launch) => tileprof.select({ launch })", GEMM)
    view.ask("(pair) => tileprof.select({ pair })", [GEMM, ATTENTION])
    for _ in range(3):
        view.page.keyboard.press(".")
    view.page.go_back()
    view.until("() => tileprof.state.pair === null")
    assert view.ask("() => tileprof.state.launch") == GEMM


def test_zooming_out_ends_where_the_content_fills_a_quarter(tab):
    view = tab(f"#pair={GEMM},{ATTENTION}")
    view.until("() => tileprof.matrix.parts.length > 0")
    shares_code = """() => { const { matrix: m, lanes: l } = tileprof.views;
        for (let i = 0; i < 40; i++) for (const v of [m, l]) v.zoom(0.5);
        const end = Math.max(...Array.from(tileprof.launches.tiles, (_, i) => tileprof.startOf(i)));
        const { consumers, producers } = tileprof.matrix;
        return [consumers * m.view.kx / m.plotWidth, producers * m.view.ky / m.plotHeight,
            end * l.view.kx / l.plotWidth]; }"""
    assert all(0.2 < share < 0.3 for share in view.ask(shares_code))


def test_a_long_column_opens_where_its_tiles_can_be_distinguished(tab, tmp_path):
    program = Program(tmp_path / "t")
    buffers = [program.buffer(wide=8) for _ in range(3)]
    for a, b in ((0, 1), (1, 2)):
        program.launch("many", pointwise(1, 8, tiles=1024), (buffers[a], buffers[b]))
    path = tmp_path / "page.html"
    path.write_text(page(build_graph(load(program.writer.close()))), encoding="utf-8")
    view = tab("#pair=0,1&view=tiles&tile=1,700", path=path)
    view.until(READY)
    place = (
        "() => [tileprof.views.tiles.view.ky, tileprof.views.tiles.toScreen(0, 700.5)[1] / tileprof.views.tiles.height]"
    )
    apart, middle = view.ask(place)
    assert apart >= 4
    assert 0.2 < middle < 0.8
    view.page.keyboard.press("4")
    view.page.keyboard.press("0")
    assert view.ask(place)[0] < 1
