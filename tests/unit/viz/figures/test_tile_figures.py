"""Figures of a tile graph show the data of the graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policies.graphs import graph_of
from tileprof.errors import UserError
from tileprof.viz.figures.tile_figures import MOST_TILES, tile_graph, tile_matrix


def chain(tiles: int = 6):
    return graph_of([(tiles, 1, 1), (tiles, 1, 1)], {(0, 1): {(i, i) for i in range(1, tiles)}})


def drawn_lines(figure):
    """Return the ends of every line: (column, height) pairs, from left to right."""
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
    """Return pairs of nodes that lines connect, through squares but not through other nodes."""
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
