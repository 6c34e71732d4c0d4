"""The notebooks' figures show what the graph and the tables hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.policy.graphs import graph_of
from tileprof.errors import UserError
from tileprof.policy.synthesis.cusync_kinds import Shipped, shipped_policy
from tileprof.policy.verification.pair_waits import pair_waits
from tileprof.policy.verification.verifier import verify
from tileprof.viz.charts import areas, bars, curves, heat, level_bars, level_shares, wave_points
from tileprof.viz.figures import MOST_TILES, tile_graph, tile_matrix, wait_matrix
from tileprof.viz.overlay import PairOverlay


def chain(tiles: int = 6):
    return graph_of([(tiles, 1, 1), (tiles, 1, 1)], {(0, 1): {(i, i) for i in range(1, tiles)}})


def drawn_lines(figure):
    """Ends of every line: (column, height) pairs, from left to right."""
    ends = []
    for trace in figure.data:
        if trace.mode != "lines":
            continue
        x, y = list(trace.x), list(trace.y)
        start = 0
        for at, value in enumerate(x):
            if value is None:
                ends.append(((x[start], y[start]), (x[at - 1], y[at - 1])))
                start = at + 1
    return ends


def connected(figure, columns: list[int]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of nodes that lines lead from the one to the other, through squares but not through other nodes."""
    after = {}
    for start, end in drawn_lines(figure):
        after.setdefault(start, set()).add(end)

    def share_at(at):
        for end in after.get(at, ()):
            if float(end[0]).is_integer():
                yield end
            else:
                yield from share_at(end)

    def tile(node):
        return int(node[0]), round(node[1] * columns[int(node[0])] - 0.5)

    return {(tile(a), tile(b)) for a in after if float(a[0]).is_integer() for b in share_at(a)}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_lines_lead_from_every_tile_to_all_that_need_it(data) -> None:
    tiles = data.draw(st.lists(st.integers(1, 4), min_size=3, max_size=3))
    cells = {(a, b): [(p, c) for p in range(tiles[a]) for c in range(tiles[b])] for a, b in ((0, 1), (1, 2), (0, 2))}
    needs = {key: data.draw(st.sets(st.sampled_from(of))) for key, of in cells.items()}
    graph = graph_of([(n, 1, 1) for n in tiles], {key: pairs for key, pairs in needs.items() if pairs})
    expected = {((a, p), (b, c)) for (a, b), pairs in needs.items() for p, c in pairs}
    assert connected(tile_graph(graph, [0, 1, 2]), tiles) >= expected


def test_all_that_need_all_share_one_line() -> None:
    graph = graph_of([(8, 1, 1), (8, 1, 1)], {(0, 1): {(p, c) for p in range(8) for c in range(8)}})
    figure = tile_graph(graph, [0, 1])
    assert len(drawn_lines(figure)) == 17
    assert connected(figure, [8, 8]) == {((0, p), (1, c)) for p in range(8) for c in range(8)}


def test_lines_over_other_launches_are_bent_and_coloured() -> None:
    figure = tile_graph(graph_of([(2, 1, 1)] * 3, {(0, 1): {(0, 0)}, (0, 2): {(1, 1)}}), [0, 1, 2])
    near, far = (next(t for t in figure.data if (t.name or "").startswith(name)) for name in ("needed by", "passes"))
    assert near.line.color != far.line.color
    assert list(near.y) == [0.25, 0.25, None]
    assert (far.y[0], far.y[-2]) == (0.75, 0.75)
    assert all(height < 0.75 for height in far.y[1:-2])


def test_tiles_without_parents_are_marked() -> None:
    colours = [set(np.asarray(d.marker.color).tolist()) for d in tile_graph(chain(), [0, 1]).data if d.text]
    assert colours == [{"#E69F00"}, {"#E69F00", "#0072B2"}]


def test_titles_break_before_they_leave_the_page() -> None:
    title = tile_graph(chain(), [0, 1], title="word " * 40 + "<br>end").layout.title.text
    assert title.replace("<br>", " ").split() == ["word"] * 40 + ["end"]
    assert max(map(len, title.split("<br>"))) < 100
    assert title.endswith("<br>end")


def test_values_at_equal_distances_stand_in_order_each_with_its_tick() -> None:
    how = {"x": "x", "y": "y", "by": "variant", "panel": "program", "title": "t", "x_title": "us", "y_title": "gain"}
    axis = curves(sweep_result(), even_x=True, **how).layout.xaxis
    assert (axis.type, list(axis.categoryarray), list(axis.ticktext)) == ("category", [1, 2, 4], ["1", "2", "4"])
    with pytest.raises(UserError, match="no axis for log_x"):
        curves(sweep_result(), even_x=True, log_x=True, **how)


def test_the_matrix_counts_each_edge_once_whatever_the_bins() -> None:
    assert np.asarray(tile_matrix(chain(), 0, 1).data[0].z).sum() == 5
    assert np.asarray(tile_matrix(chain(1000), 0, 1).data[0].z).sum() == 999


@pytest.mark.parametrize("tiles", [6, 256, 1000])
def test_the_axes_of_the_matrix_are_tiles_not_bins(tiles: int) -> None:
    drawing = tile_matrix(chain(tiles), 0, 1).data[0]
    for low, step, bins in ((drawing.x0, drawing.dx, drawing.z.shape[1]), (drawing.y0, drawing.dy, drawing.z.shape[0])):
        assert low - step / 2 == pytest.approx(-0.5)
        assert low + (bins - 0.5) * step == pytest.approx(tiles - 0.5)


def test_what_cannot_be_drawn_says_why() -> None:
    with pytest.raises(UserError, match=f"at most {MOST_TILES:,}"):
        tile_graph(chain(3000), [0, 1])
    with pytest.raises(UserError, match="does not depend"):
        tile_matrix(chain(), 1, 0)


def halo(tiles: int):
    """Every consumer tile needs its own producer tile and the neighbours, and there is nothing else."""
    needs = {(p, c) for c in range(tiles) for p in (c - 1, c, c + 1) if 0 <= p < tiles}
    return graph_of([(tiles, 1, 1), (tiles, 1, 1)], {(0, 1): needs}), needs


@pytest.mark.parametrize("first", [slice(0, 12), slice(3, 8), slice(0, 100)])
def test_the_wait_matrix_tells_guaranteed_from_missing(first: slice) -> None:
    graph, needs = halo(12)
    policy = shipped_policy(Shipped("conv2dtile", rows="xx"), graph, 0, 1)
    waits = pair_waits(policy, graph, verify(policy, graph))[0]
    figure = wait_matrix(graph, PairOverlay(0, 1, waits.awaited, waits.missing), title="", first=first)
    cells = figure.data[0]
    first_rows = range(*first.indices(12))
    expected = [[(1 if p == c else 2) if (p, c) in needs else 0 for c in first_rows] for p in first_rows]
    assert np.asarray(cells.z).tolist() == expected
    assert (cells.x0, cells.y0) == (first.start, first.start)
    names = {0: "nothing", 1: "needed and guaranteed", 2: "needed, but nothing waits for it"}
    assert np.asarray(cells.text).tolist() == [[names[number] for number in row] for row in expected]


def test_the_wait_matrix_shows_waits_without_need() -> None:
    graph, _ = halo(4)
    all_to_all = graph_of([(4, 1, 1), (4, 1, 1)], {(0, 1): {(p, c) for p in range(4) for c in range(4)}})
    figure = wait_matrix(graph, PairOverlay(0, 1, all_to_all.blocks[0], None), title="")
    assert np.asarray(figure.data[0].z).tolist() == [[1 if abs(p - c) < 2 else 3 for c in range(4)] for p in range(4)]
    with pytest.raises(UserError, match="no tiles to show"):
        wait_matrix(graph, PairOverlay(0, 1, None, None), title="", first=slice(7, 9))


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 1]), st.integers(1, 50)),
        min_size=1,
        max_size=30,
    )
)
def test_levels_share_out_all_weight(rows) -> None:
    shares = level_shares(np.array([r[0] for r in rows], float), np.array([r[1] for r in rows], float))
    total = sum(weight for _, weight in rows)
    for level, (low, high) in enumerate(((0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01))):
        assert shares[level] == pytest.approx(sum(w for share, w in rows if low <= share < high) / total)


def test_level_bars_count_kernels_on_the_left_and_time_on_the_right() -> None:
    rows = [("a", 0.1, 900), ("a", 0.9, 100), ("b", 0.5, 10)]
    figure = level_bars(pd.DataFrame(rows, columns=["group", "share", "time_ns"]), title="", what="slots")
    kernels = [list(bar.x) for bar in figure.data[:4]]
    time = [list(bar.x) for bar in figure.data[4:]]
    assert kernels == [[0.5, 0], [0, 0], [0, 1], [0.5, 0]]
    assert time == [[0.9, 0], [0, 0], [0, 1], [pytest.approx(0.1), 0]]
    assert [bar.name for bar in figure.data[:4]] == ["0% to 25%", "25% to 50%", "50% to 75%", "75% to 100%"]
    assert list(figure.data[0].y) == ["a", "b"]
    with pytest.raises(UserError, match="nothing to share out"):
        level_shares(np.zeros(2), np.zeros(2))


def test_kernels_at_one_point_are_one_mark_that_grows() -> None:
    rows = [(0.5, 0.5, "gemm", "modelled", f"k{n}") for n in range(9)] + [(1.5, 0.75, "gemm", "recorded", "other")]
    figure = wave_points(pd.DataFrame(rows, columns=["waves", "share", "family", "source", "name"]), title="")
    line, modelled, recorded = figure.data
    assert (list(modelled.x), list(modelled.y), list(modelled.text)) == ([0.5], [0.5], ["k0 and 8 more"])
    assert list(recorded.text) == ["other"]
    assert modelled.marker.size[0] > recorded.marker.size[0]
    behind = dict(zip(line.x, line.y, strict=True))
    assert behind[1.0] == 1.0
    assert min(y for x, y in behind.items() if x > 1) == pytest.approx(0.5, abs=0.01)


def sweep_result():
    rows = [
        (p, v, x, 10 * k + x) for k, (p, v) in enumerate((p, v) for p in "AB" for v in "uw") for x in (4.0, 1.0, 2.0)
    ]
    return pd.DataFrame(rows, columns=["program", "variant", "x", "y"])


def test_each_panel_has_each_line_in_order_of_x() -> None:
    figure = curves(
        sweep_result(),
        x="x",
        y="y",
        by="variant",
        panel="program",
        title="t",
        x_title="us",
        y_title="gain",
        levels={"B": {"bar": 7.0}},
        guides={"link": 2.0},
        ranges={"A": (0.0, 9.0)},
        log_x=True,
    )
    drawing = {(trace.name, trace.yaxis): (list(trace.x), list(trace.y)) for trace in figure.data}
    assert drawing["u", "y"] == ([1, 2, 4], [1, 2, 4])
    assert drawing["w", "y"] == ([1, 2, 4], [11, 12, 14])
    assert drawing["u", "y2"] == ([1, 2, 4], [21, 22, 24])
    assert drawing["bar", "y2"] == ([1, 4], [7, 7])
    assert ("bar", "y") not in drawing
    assert tuple(figure.layout.yaxis.range) == (0, 9)
    labels = [note for note in figure.layout.annotations if note.text == "link"]
    assert [note.x for note in labels] == [pytest.approx(np.log10(2))] * 2
    assert [shape.x0 for shape in figure.layout.shapes] == [2, 2]


def test_names_in_the_legend_come_once_and_looks_differ_in_more_than_colour() -> None:
    figure = curves(
        sweep_result(), x="x", y="y", by="variant", panel="program", title="t", x_title="us", y_title="gain"
    )
    assert sorted(trace.name for trace in figure.data if trace.showlegend) == ["u", "w"]
    looks = {trace.name: (trace.line.dash, trace.marker.symbol) for trace in figure.data}
    assert looks["u"][0] != looks["w"][0]
    assert looks["u"][1] != looks["w"][1]


def test_cells_of_heat_stand_at_their_values() -> None:
    table = pd.DataFrame([(8, 2, 0.5), (1, 2, 0.25), (8, 16, 1.0)], columns=["flush", "bits", "kept"])
    cells = heat(
        table, x="flush", y="bits", value="kept", title="", x_title="", y_title="", unit="kept", percent=True
    ).data[0]
    assert (list(cells.x), list(cells.y)) == (["1", "8"], ["2", "16"])
    assert np.asarray(cells.text).tolist() == [["25%", "50%"], ["", "100%"]]


def test_areas_name_their_cells_and_refuse_numbers_without_a_name() -> None:
    figure = areas(
        np.array([[0, 2], [2, 2]]), ("a", "b", "c"), ("#fff", "#eee", "#000"), title="", x_title="", y_title=""
    )
    assert np.asarray(figure.data[0].text).tolist() == [["a", "c"], ["c", "c"]]
    assert [trace.name for trace in figure.data[1:]] == ["a", "c"], "the legend names what is there"
    scale = dict(figure.data[0].colorscale)
    assert scale[0] == "#fff"
    assert scale[1] == "#000"
    for wrong in (np.array([[3]]), np.array([[-1]]), np.zeros((0, 2), int)):
        with pytest.raises(UserError, match="numbers of one of 3 names"):
            areas(wrong, ("a", "b", "c"), ("#fff", "#eee", "#000"), title="", x_title="", y_title="")


def test_bars_carry_their_numbers() -> None:
    table = pd.DataFrame(
        [("s1", "one", 0.5), ("s2", "one", 0.25), ("s1", "two", 1.0)], columns=["layer", "images", "v"]
    )
    figure = bars(table, x="layer", y="v", by="images", title="", x_title="", y_title="", percent=True)
    actual = {trace.name: (list(trace.x), list(trace.y), list(trace.text)) for trace in figure.data}
    assert actual == {"one": (["s1", "s2"], [0.5, 0.25], ["50%", "25%"]), "two": (["s1"], [1.0], ["100%"])}
    assert figure.data[0].marker.pattern.shape != figure.data[1].marker.pattern.shape
