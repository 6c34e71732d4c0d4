"""The charts of the notebooks show the data of the tables and the graph."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies.charts import areas, bars, curves, heat, level_bars, level_shares, share_points, wave_points
from studies.wait_matrix import wait_matrix

from tests.support.policies.graphs import graph_of
from tileprof.errors import UserError
from tileprof.policy.synthesis.cusync_kinds import Shipped, shipped_policy
from tileprof.policy.verification.pair_waits import pair_waits
from tileprof.policy.verification.verifier import verify
from tileprof.viz.tables.policy_overlay import PairOverlay


def test_values_at_equal_distances_stand_in_order_each_with_its_tick() -> None:
    how = {"x": "x", "y": "y", "by": "variant", "panel": "program", "title": "t", "x_title": "us", "y_title": "gain"}
    axis = curves(sweep_result(), even_x=True, **how).layout.xaxis
    assert (axis.type, list(axis.categoryarray), list(axis.ticktext)) == ("category", [1, 2, 4], ["1", "2", "4"])
    with pytest.raises(UserError, match="no axis for log_x"):
        curves(sweep_result(), even_x=True, log_x=True, **how)


def halo(tiles: int):
    """Return a pair in which every consumer tile needs its own producer tile and the neighbours."""
    needs = {(p, c) for c in range(tiles) for p in (c - 1, c, c + 1) if 0 <= p < tiles}
    return graph_of([(tiles, 1, 1), (tiles, 1, 1)], {(0, 1): needs}), needs


@pytest.mark.parametrize("first", [slice(0, 12), slice(3, 8), slice(0, 100)])
def test_the_wait_matrix_distinguishes_guaranteed_from_missing(first: slice) -> None:
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


def test_points_of_shares_have_one_colour_and_mark_per_family() -> None:
    rows = [(0.5, 0.1, "a", "x"), (1.0, 0.2, "a", "y"), (0.25, 0.05, "b", "z")]
    figure = share_points(pd.DataFrame(rows, columns=["share", "arithmetic", "family", "name"]), title="")
    assert [(t.name, list(t.x), list(t.y)) for t in figure.data] == [
        ("a", [0.5, 1.0], [0.1, 0.2]),
        ("b", [0.25], [0.05]),
    ]
    assert len({(t.marker.color, t.marker.symbol) for t in figure.data}) == 2
