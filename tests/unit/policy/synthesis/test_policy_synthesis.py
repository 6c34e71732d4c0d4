"""Synthesised policies are sound on any graph, and tight on known graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policies.graphs import Relation, graph_of
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.policy.format import Policy, from_dict, to_dict
from tileprof.policy.format.tile_numbers import coordinates
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.synthesis.semaphore_groupings import edge_for, groupings, hull_for
from tileprof.policy.synthesis.stage_choice import stage_of
from tileprof.policy.verification.verifier import verify

Grid = tuple[int, int, int]


@st.composite
def graphs(draw: st.DrawFn) -> TileGraph:
    grids = [
        (draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2)))
        for _ in range(draw(st.integers(2, 4)))
    ]
    tiles = [x * y * z for x, y, z in grids]
    relation: Relation = {}
    for consumer in range(1, len(grids)):
        for producer in range(consumer):
            if draw(st.booleans()):
                pairs = st.tuples(st.integers(0, tiles[producer] - 1), st.integers(0, tiles[consumer] - 1))
                relation[producer, consumer] = draw(st.sets(pairs, min_size=1, max_size=12))
    return graph_of(grids, relation, sms=draw(st.integers(1, 8)))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_a_synthesised_policy_never_misses_a_dependency(graph: TileGraph) -> None:
    policy = synthesise(graph, range(len(graph.launches)))
    assert verify(from_dict(to_dict(policy)), graph).sound


def chain(producer: Grid, consumer: Grid, parents, sms: int) -> TileGraph:
    def number(grid: Grid, x: int, y: int, z: int = 0) -> int:
        return x + grid[0] * (y + grid[1] * z)

    edges = set()
    for z in range(consumer[2]):
        for y in range(consumer[1]):
            for x in range(consumer[0]):
                edges |= {(number(producer, *p), number(consumer, x, y, z)) for p in parents(x, y, z)}
    return graph_of([producer, consumer], {(0, 1): edges}, sms=sms)


# The SMs leave the producer's last wave partly empty, so that waiting for less than the grid pays.
CASES = {
    "row": (36, (8, 6, 1), (9, 6, 1), lambda _x, y, _z: [(x, y) for x in range(8)]),
    "tile": (30, (40, 1, 1), (40, 1, 1), lambda x, _y, _z: [(x, 0)]),
    "grid": (6, (8, 1, 1), (40, 1, 1), lambda *_: [(x, 0) for x in range(8)]),
    "interval": (30, (40, 1, 1), (40, 1, 1), lambda x, _y, _z: [(i, 0) for i in range(max(0, x - 1), min(40, x + 2))]),
    "table": (24, (30, 1, 1), (36, 1, 1), lambda x, _y, _z: [((7 * x * x + 3) % 22 if x % 3 else 24 + 5 * x % 6, 0)]),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_known_relation_gets_the_kind_that_loses_nothing(kind: str) -> None:
    sms, producer, consumer, parents = CASES[kind]
    policy = synthesise(chain(producer, consumer, parents, sms), [0, 1])
    assert [edge.kind for edge in policy.edges] == [kind]
    if kind != "grid":
        assert policy.prediction["gain_percent"] > 5


def test_an_edge_that_others_imply_is_left_out() -> None:
    rows = {(0, 1): {(i, i) for i in range(4)}, (1, 2): {(i, i) for i in range(4)}, (0, 2): {(i, i) for i in range(4)}}
    policy = synthesise(graph_of([(4, 1, 1)] * 3, rows), [0, 1, 2])
    assert [(e.producer, e.consumer) for e in policy.edges] == [(0, 1), (1, 2)]


def test_a_strided_relation_may_share_semaphores_across_its_stride() -> None:
    parents = np.array([[x + 8 * k, 0, 0] for x in range(8) for k in range(3)])
    actual = {g.name: g for g in groupings((24, 1, 1), parents, np.repeat(np.arange(8), 3))}
    assert (actual["strided"].grid, actual["strided"].texts) == ((8, 1, 1), ("x % 8", "0", "0"))
    graph = chain((24, 1, 1), (8, 1, 1), lambda x, _y, _z: [(x, 0), (x + 8, 0), (x + 16, 0)], 20)
    at = [graph.footprint(n).block.astype(np.int64) for n in (0, 1)]
    _, edge = edge_for(graph.blocks[0], actual["strided"], *at, (0, 1), ("RAW",))
    assert edge.kind == "strided"
    assert [str(r) for r in edge.waits] == ["x", "0", "0"]
    assert edge.value.text == "3"


def test_tiles_that_are_always_awaited_together_share_a_semaphore() -> None:
    """Split-k: a consumer tile needs half of the columns, each with all three slices of k."""

    def half(x: int, _y: int, _z: int):
        return [(6 * (x // 18) + column, part) for column in range(6) for part in range(3)]

    policy = synthesise(chain((12, 3, 1), (36, 1, 1), half, 24), [0, 1])
    (semaphores,), (edge,) = policy.semaphores, policy.edges
    assert (semaphores.grid, [e.text for e in semaphores.of]) == ((2, 1, 1), ["x // 6", "0", "0"])
    assert (edge.kind, edge.value.text) == ("interval", "18")
    assert policy.prediction["gain_percent"] > 20


windows = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)).map(sorted), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(windows, st.integers(1, 3))
def test_a_range_around_broken_windows_never_misses_one_and_stays_on_the_grid(pairs, rows: int) -> None:
    """Consumer tile (x, y) needs the producer tiles from ``pairs[x][0]`` to ``pairs[x][1]`` of row y."""
    edges = {
        (p + 12 * y, x + len(pairs) * y) for y in range(rows) for x, (a, b) in enumerate(pairs) for p in range(a, b + 1)
    }
    graph = graph_of([(12, rows, 1), (len(pairs), rows, 1)], {(0, 1): edges})
    at = [coordinates(graph, n) for n in (0, 1)]
    owner = np.repeat(np.arange(graph.blocks[0].sets), np.diff(graph.blocks[0].indptr))
    for grouping in groupings((12, rows, 1), at[0][graph.blocks[0].parent], owner):
        semaphores, edge = hull_for(graph.blocks[0], grouping, *at, (0, 1), ("RAW",))
        policy = Policy(tuple(stage_of(graph, n) for n in (0, 1)), (semaphores,), (edge,))
        assert verify(policy, graph, [0, 1]).sound


def test_windows_that_break_in_a_ragged_last_tile_are_ranges_all_the_same() -> None:
    """Two images of 45 rows in tiles of 10: the fifth tile ends the first image and begins the second."""

    def halo(x: int, _y: int, _z: int):
        rows = [
            n
            for r in range(10 * x, min(90, 10 * x + 10))
            for n in (r - 1, r, r + 1)
            if n // 45 == r // 45 and 0 <= n < 90
        ]
        return sorted({(n // 10, 0) for n in rows} - {(x, 0)} if x == 2 else {(n // 10, 0) for n in rows})

    policy = synthesise(chain((9, 1, 1), (9, 1, 1), halo, 6), [0, 1])
    assert [edge.kind for edge in policy.edges] == ["interval"]
    assert [str(r) for r in policy.edges[0].waits] == ["max(0, x - 1)..min(8, x + 1)", "0", "0"]
