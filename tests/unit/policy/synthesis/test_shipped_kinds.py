"""What the policies that cuSync ships wait for, on grids of every shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.policies.graphs import Relation, graph_of
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.errors import UserError
from tileprof.policy.assessment import assess
from tileprof.policy.synthesis.cusync_kinds import KINDS, Shipped, shipped_policy
from tileprof.policy.synthesis.epilogue_fusion import fuse
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.synthesis.stage_choice import best_pair, checked, of_module
from tileprof.policy.verification.overtaken import overtaken_launches
from tileprof.policy.verification.verifier import verify

Grid = tuple[int, int, int]


def product(up: Grid, down: Grid, row: int = 1) -> TileGraph:
    """Return two dependent products: a tile needs all tiles of its row; ``row`` is the axis of rows."""
    edges = set()
    for number in range(up[0] * up[1]):
        for other in range(down[0] * down[1]):
            if (number % up[0], number // up[0])[row] == (other % down[0], other // down[0])[row]:
                edges.add((number, other))
    return graph_of([up, down], {(0, 1): edges})


@pytest.mark.parametrize("kind", ["tilesync", "rowsync", "conv2dtile"])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("size", [(6, 4), (4, 6), (5, 5)])
def test_products_of_matrices_are_covered_exactly(kind: str, row: int, size: tuple[int, int]) -> None:
    up = (*size, 1)
    down = (up[0], 3, 1) if row == 0 else (3, up[1], 1)
    graph = product(up, down, row)
    policy = shipped_policy(Shipped(kind), graph, 0, 1)
    verdict = verify(policy, graph)
    assert verdict.sound
    assert verdict.excess["excess_tiles"].tolist() == [0]
    assert f"rows are {'xy'[row]} of the producer's grid and {'xy'[row]} of the consumer's" in policy.notes[0]
    assert policy.semaphores[0].count == (up[row] if kind == "rowsync" else up[0] * up[1])


def test_a_stride_covers_columns_that_lie_so_far_apart() -> None:
    edges = {(y * 12 + c, y * 4 + x) for y in range(3) for x in range(4) for c in (x, x + 4, x + 8)}
    graph = graph_of([(12, 3, 1), (4, 3, 1)], {(0, 1): edges})
    for shipped_kind in (Shipped.parse("cusync:stridedsync:4"), Shipped.parse("cusync:stridedsync")):
        assert verify(shipped_policy(shipped_kind, graph, 0, 1), graph).sound
    assert not verify(shipped_policy(Shipped.parse("cusync:stridedsync:6"), graph, 0, 1), graph).sound
    with pytest.raises(UserError, match="a stride must divide the columns"):
        shipped_policy(Shipped("stridedsync", 5, "yy"), graph, 0, 1)


def test_where_no_stride_fits_one_that_does_is_named_or_none() -> None:
    graph = product((35, 3, 1), (4, 3, 1))
    with pytest.raises(UserError, match="name one, for example cusync:stridedsync:5"):
        shipped_policy(Shipped("stridedsync", 2, "yy"), graph, 0, 1)
    with pytest.raises(UserError, match="there is one column; cusync:rowsync is the same there"):
        shipped_policy(Shipped("stridedsync", 2, "yy"), product((1, 3, 1), (4, 3, 1)), 0, 1)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "stridedsync"])
def test_a_halo_is_missed_row_by_row(kind: str) -> None:
    edges = {(p, c) for c in range(10) for p in range(max(0, c - 1), min(10, c + 2))}
    graph = graph_of([(10, 1, 1), (10, 1, 1)], {(0, 1): edges})
    missing = verify(shipped_policy(Shipped(kind), graph, 0, 1), graph).missing
    actual = set(missing[["producer_tile", "consumer_tile"]].itertuples(index=False, name=None))
    assert actual == {(p, c) for p, c in edges if p != c}


def test_a_taller_consumer_waits_for_the_row_of_its_first_element() -> None:
    edges = {(p, p // 4) for p in range(8)}
    graph = graph_of([(8, 1, 1), (2, 1, 1)], {(0, 1): edges})
    policy = shipped_policy(Shipped("rowsync", rows="xx"), graph, 0, 1)
    missing = verify(policy, graph).missing
    assert set(missing["producer_tile"]) == {1, 2, 3, 5, 6, 7}
    assert "spans several of the producer" in policy.notes[0]


def test_all_slices_of_a_split_product_post() -> None:
    edges = {(y * 2 + x + 6 * z, y) for y in range(3) for x in range(2) for z in range(4)}
    graph = graph_of([(2, 3, 4), (1, 3, 1)], {(0, 1): edges})
    for kind in ("rowsync", "tilesync"):
        assert verify(shipped_policy(Shipped(kind, rows="yy"), graph, 0, 1), graph).sound


def test_a_judgement_knows_the_cost_of_waiting_for_everything() -> None:
    edges = {(t, t) for t in range(40)}
    graph = graph_of([(40, 1, 1), (40, 1, 1)], {(0, 1): edges}, sms=3)
    whole = shipped_policy(Shipped("rowsync", rows="yy"), graph, 0, 1)
    assessment = assess(whole, graph)
    assert assessment.verdict.sound
    assert assessment.corrected is None
    assert assessment.policy_us > assessment.exact_us
    assert assessment.excess_us == pytest.approx(assessment.policy_us - assessment.exact_us)
    assert assess(shipped_policy(Shipped("tilesync", rows="xx"), graph, 0, 1), graph).excess_us == pytest.approx(0)


def chain(*links: Relation, tiles: int = 4) -> TileGraph:
    relation: Relation = {}
    for link in links:
        relation |= link
    return graph_of([(tiles, 1, 1)] * (1 + max(c for _, c in relation)), relation)


def test_what_lies_between_is_composed_tile_by_tile() -> None:
    shift = {(t, t + 1) for t in range(3)}
    graph = chain({(0, 1): shift}, {(1, 2): shift}, {(0, 2): {(3, 0)}})
    assert overtaken_launches(graph, [0, 2]) == [1]
    fused = fuse(graph, [0, 2])
    (row,) = fused.links.itertuples()
    assert (row.producer, row.consumer, row.reuse) == (0, 2, False)
    parent, child, _ = fused.blocks[row.block].edges()
    assert set(zip(parent.tolist(), child.tolist(), strict=True)) == {(0, 2), (1, 3), (3, 0)}
    assert overtaken_launches(fused, [0, 2]) == []


def test_fused_bytes_are_those_that_the_consumer_reads_on_the_way() -> None:
    graph = chain({(0, 1): {(0, 0), (1, 0), (1, 1)}}, {(1, 2): {(0, 0), (1, 0)}}, tiles=2)
    fused = fuse(graph, [0, 2])
    block = fused.blocks[fused.links["block"].iloc[0]]
    parent, child, row = block.edges()
    assert sorted(zip(parent.tolist(), child.tolist(), block.bytes[row].tolist(), strict=True)) == [
        (0, 0, 4),
        (1, 0, 8),
    ]


def test_what_a_launch_in_between_needs_its_stage_needs_too() -> None:
    """The sum of a residual block is in the epilogue of the second product, which waits for the first one."""
    same = {(t, t) for t in range(4)}
    graph = chain({(0, 2): {(t, 3 - t) for t in range(4)}}, {(1, 2): same}, {(2, 3): same})
    fused = fuse(graph, [0, 1, 3])
    needs = {}
    for row in fused.links.itertuples():
        parent, child, _ = fused.blocks[row.block].edges()
        needs[row.producer, row.consumer] = set(zip(parent.tolist(), child.tolist(), strict=True))
    crossing_edges = {(t, 3 - t) for t in range(4)}
    assert needs == {(0, 1): crossing_edges, (0, 3): crossing_edges, (1, 3): same}
    policy = synthesise(fused, [0, 1, 3])
    assert [(e.producer, e.consumer) for e in policy.edges] == [(0, 1), (1, 2)]


Tile = tuple[int, int]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_fused_needs_are_those_of_tiles_followed_one_by_one(data: st.DataObject) -> None:
    count, tiles = data.draw(st.integers(3, 5)), 3
    pairs = st.sets(st.tuples(st.integers(0, tiles - 1), st.integers(0, tiles - 1)), max_size=4)
    relation = {(p, c): data.draw(pairs) for c in range(count) for p in range(c)}
    graph = graph_of([(tiles, 1, 1)] * count, relation)
    picks = data.draw(st.lists(st.integers(0, count - 1), unique=True, min_size=2, max_size=count).map(sorted))
    folded_launches = overtaken_launches(graph, picks)
    records: dict[Tile, set[Tile]] = {}  # the stages that a tile needs
    host = {launch: launch for launch in picks}
    expected: set[tuple[Tile, Tile]] = set()
    for launch in sorted({*picks, *folded_launches}):
        given_by = [p for p in host if relation.get((p, launch))]
        for tile in range(tiles):
            parents = {(p, t) for p in given_by for t, c in relation[p, launch] if c == tile}
            records[launch, tile] = {s for p in parents for s in ({p} if p[0] in picks else records[p])}
        host.setdefault(launch, max((host[p] for p in given_by), default=-1))
        for tile in range(tiles):
            need = records[launch, tile]
            own = {(launch, tile)} if launch in picks else {s for s in need if s[0] == host[launch]}
            expected |= {(s, mine) for mine in own for s in need if s[0] != mine[0]}
    fused = fuse(graph, picks)
    actual = set()
    for row in fused.links.itertuples():
        parent, child, _ = fused.blocks[row.block].edges()
        actual |= {((row.producer, p), (row.consumer, c)) for p, c in zip(parent.tolist(), child.tolist(), strict=True)}
    assert actual == expected


def test_a_launch_that_overwrites_what_a_later_stage_uses_is_not_fused() -> None:
    same = {(t, t) for t in range(4)}
    graph = chain({(0, 1): same}, {(0, 2): same}, {(1, 2): same}, {(2, 3): same})
    graph.links.loc[(graph.links["producer"] == 1) & (graph.links["consumer"] == 2), "hazard"] = "WAR"
    with pytest.raises(
        UserError, match="launch 2 cannot be taken as part of launch 0: it overwrites what launch 1 uses"
    ):
        fuse(graph, [0, 1, 3])


def test_launches_without_dependants_are_not_overtaken() -> None:
    same = {(t, t) for t in range(4)}
    graph = chain({(0, 1): same}, {(0, 2): same}, {(2, 3): same})
    assert overtaken_launches(graph, [0, 3]) == [2]
    assert overtaken_launches(graph, [0, 2]) == []
    assert fuse(graph, [0, 2]).links[["producer", "consumer"]].to_numpy().tolist() == [[0, 2]]


def test_launches_are_checked_and_sorted() -> None:
    graph = chain({(0, 1): {(0, 0)}})
    assert checked(graph, [1, 0, 1]) == [0, 1]
    for launch in (-1, 2):
        with pytest.raises(UserError, match="launches 0 to 1"):
            checked(graph, [launch])
    assert of_module(graph, "^m$") == [0, 1]


def test_a_trace_without_dependencies_has_no_best_pair(tmp_path) -> None:
    from tests.support.synthetic_graphs import write_mlp
    from tileprof.analysis import build_graph
    from tileprof.trace import load

    graph = build_graph(load(write_mlp(tmp_path / "mlp.tileprof", layers=2)))
    producer, consumer = best_pair(graph)
    assert consumer == producer + 1
    empty = replace(graph, links=graph.links.iloc[:0], blocks=[])
    with pytest.raises(UserError, match="no two launches"):
        best_pair(empty)
