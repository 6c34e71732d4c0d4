"""Compares the colours of the matrix and of the lanes with numpy's computation from the same trace."""

import numpy as np
import pytest

from tests.support.small_programs import Program, tile_grid, transformer
from tileprof.analysis import build_graph
from tileprof.analysis.timeline import dispatch
from tileprof.trace import load
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint
from tileprof.viz import page

GEMM, ATTENTION = 2, 3
TILES, PARENTS = 3_000, 6  # of each launch of the wide program
# The light palette: no dependency, read after write, an empty slot, the selected launch.
GAP, RAW, IDLE, FOCUS = (np.array(c) for c in ((250, 251, 252), (91, 63, 176), (242, 239, 230), (47, 61, 85)))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("pixels") / "t", layers=2)))


@pytest.fixture(scope="module")
def page_file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(graph), encoding="utf-8")
    return path


def are_related(graph, producer, consumer):
    """Return ``[producer tiles, consumer tiles]``: whether one needs the other."""
    counts = np.diff(graph.tile_base)
    edges = graph.edges
    edges = edges[(edges["producer_launch"] == producer) & (edges["consumer_launch"] == consumer) & ~edges["reuse"]]
    relation = np.zeros((counts[producer], counts[consumer]), bool)
    relation[edges["producer_tile"], edges["consumer_tile"]] = True
    return relation


def centres(columns, rows):
    x, y = np.meshgrid(np.asarray(columns) + 0.5, np.asarray(rows) + 0.5)
    return np.stack([x.ravel(), y.ravel()], axis=1)


def pair_tab(tab, pair, **options):
    view = tab(f"#pair={pair[0]},{pair[1]}", color_scheme="light", viewport={"width": 1600, "height": 1000}, **options)
    view.until("(pair) => tileprof.matrix.parts.length > 0 && tileprof.matrix.key === pair.join(',')", list(pair))
    view.page.click("#matrix button[title^='Show only this view']")
    view.until("() => tileprof.views.matrix.plotHeight > 600")
    return view


def test_every_cell_of_a_matrix_has_the_colour_of_its_dependency(tab, graph):
    view = pair_tab(tab, (GEMM, ATTENTION))
    relation = are_related(graph, GEMM, ATTENTION)
    assert 0.05 < relation.mean() < 0.95
    colours = view.pixels("matrix", centres(range(64), range(192)))
    expected = np.where(relation.reshape(-1, 1), RAW, GAP)
    np.testing.assert_array_equal(colours, expected)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Write three launches of thousands of tiles; each tile of the later ones reads the blocks of random tiles of the
    one before.
    """
    program = Program(tmp_path_factory.mktemp("wide") / "t")
    rng = np.random.default_rng(5)
    at = np.arange(TILES)
    block = 8 * 64 * 64 * 2 * 8 // TILES // 16 * 16
    before, after = program.buffer(), None
    for number in range(3):
        after = program.buffer()
        near = np.clip(at[:, None] + rng.integers(-200, 200, (TILES, PARENTS)), 0, TILES - 1)
        boxes = [Boxes.of(tile=at, operand=1, mode=WRITE, offset=at * block, length=block)]
        reader, read = np.repeat(at, PARENTS), np.sort(near).ravel() * block
        boxes.append(Boxes.of(tile=reader, operand=0, mode=READ, offset=read, length=block))
        footprint = Footprint(tile_grid(TILES, 1), Boxes.concat(boxes), rng.uniform(500, 900, TILES))
        program.launch(f"wide_{number}<add>", footprint, (before, after), duration=30_000)
        before = after
    return build_graph(load(program.writer.close()))


def test_cells_that_stand_for_many_tiles_are_as_dark_as_their_share_of_dependencies(tab, wide, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page(wide), encoding="utf-8")
    view = pair_tab(tab, (1, 2), path=path)
    relation = are_related(wide, 1, 2)
    for zooms in range(3):
        cell = view.ask("() => { const v = tileprof.views.matrix.view; const t = (k) => k >= 1 ? 1 : 2 ** "
                        "Math.ceil(Math.log2(1 / k)); return [t(v.kx), t(v.ky)]; }")  # fmt: skip
        across, down = map(int, cell)
        assert (down > 1) == (zooms < 2)  # zoomed in to single tiles
        actual = view.ask("() => { const v = tileprof.views.matrix; return [...v.toWorld(v.margin.left, v.margin.top), "
                        "...v.toWorld(v.width, v.height)]; }")  # fmt: skip
        left, top, right, bottom = np.clip(actual, 0, TILES).astype(int)
        columns = np.arange(left // across + 2, right // across - 2)[:: max(1, (right - left) // across // 60)] * across
        rows = np.arange(top // down + 2, bottom // down - 2)[:: max(1, (bottom - top) // down // 60)] * down
        sums = np.add.reduceat(relation, np.arange(0, TILES, down))
        sums = np.add.reduceat(sums, np.arange(0, TILES, across), axis=1, dtype=int)
        counts = sums[np.ix_(rows // down, columns // across)]
        alpha = np.where(counts > 0, 85 + 170 * np.minimum(counts / (across * down), 1), 0).reshape(-1, 1) / 255
        points = centres(columns + (across - 1) / 2, rows + (down - 1) / 2)
        np.testing.assert_allclose(view.pixels("matrix", points), GAP + alpha * (RAW - GAP), atol=3)
        assert (counts > 0).any()
        assert (counts == 0).any()
        view.ask("() => tileprof.views.matrix.zoom(2.5)")


def test_lanes_are_full_where_a_tile_runs_and_shaded_where_none_does(tab, graph):
    view = tab(f"#launch={GEMM}", color_scheme="light", viewport={"width": 1600, "height": 1000})
    view.page.click("#lanes button[title^='Show only this view']")
    view.until("(i) => tileprof.views.lanes.plotHeight > 700 && tileprof.laneTables.ready(tileprof.laneOf[i])", GEMM)
    lives = graph.footprint(int(graph.launches["footprint"][GEMM])).duration_ns
    lanes = dispatch(lives, sms=132, blocks_per_sm=1)
    start = float(graph.launches["begin_ns"][GEMM] - graph.launches["begin_ns"].min())
    times = np.linspace(100, lanes.end_ns.max() - 100, 57)
    expected = np.tile(IDLE, (132, len(times), 1))
    for sm, begin, end in zip(lanes.sm, lanes.begin_ns, lanes.end_ns, strict=True):
        expected[sm, (begin + 40 < times) & (times < end - 40)] = FOCUS
        expected[sm, (np.abs(times - begin) <= 40) | (np.abs(times - end) <= 40)] = -1  # within a pixel of an edge
    has_lane = expected[..., 0] >= 0
    points = np.array([[start + t, sm + 0.4] for sm in range(132) for t in times])
    colours = view.pixels("lanes", points).reshape(132, len(times), 3)
    np.testing.assert_array_equal(colours[has_lane], expected[has_lane])
    assert has_lane.mean() > 0.9
    assert (expected[has_lane] == IDLE).all(axis=1).mean() > 0.1
