import numpy as np
import pytest

from tests.support.packed_values import unpacked
from tests.support.small_programs import transformer
from tileprof.analysis import EdgeBlock, build_graph
from tileprof.trace import load
from tileprof.viz.document import document
from tileprof.viz.tables import relations


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return build_graph(load(transformer(tmp_path_factory.mktemp("relations") / "t", layers=3)))


def edges_of(value, link):
    """Return the edges that the page holds for a link: (producer tile, consumer tile, bytes)."""
    block = value["blocks"][int(unpacked(value["links"]["block"])[link])]
    set_of, indptr, parent, size = (unpacked(block[k]).astype(int) for k in ("set_of", "indptr", "parent", "bytes"))
    rows = [(c, e) for c, s in enumerate(set_of) if s >= 0 for e in range(indptr[s], indptr[s + 1])]
    return sorted((parent[e], c, size[e]) for c, e in rows)


def test_every_edge_of_the_graph_is_in_the_page(graph):
    value = document(graph)
    edges = graph.edges
    names = ["producer_tile", "consumer_tile", "bytes"]
    for link, row in enumerate(graph.links.itertuples()):
        assert int(unpacked(value["links"]["producer"])[link]) == row.producer
        same = edges[(edges["producer_launch"] == row.producer) & (edges["consumer_launch"] == row.consumer)]
        same = same[(same["hazard"] == row.hazard) & (same["reuse"] == row.reuse)]
        assert edges_of(value, link) == sorted(same[names].itertuples(index=False, name=None))


def test_repeated_layers_share_their_relations(graph):
    assert len(document(graph)["blocks"]) < len(graph.links)


def test_relations_beyond_the_budget_are_counted_on_a_grid_with_a_note(graph, monkeypatch):
    monkeypatch.setattr(relations, "_SMALL_BYTES", 0)
    notes = []
    tables = relations.relation_tables(graph, graph.pairs, budget=20_000, notes=notes)
    coarse = [b for b in tables["blocks"] if "counts" in b]
    assert coarse
    assert notes[0].startswith(f"{len(coarse)} of {len(tables['blocks'])} tile relations are too large")


def test_a_counted_relation_has_as_many_edges_as_the_whole_one():
    rng = np.random.default_rng(1)
    sets = [np.sort(rng.choice(700, rng.integers(1, 20), replace=False)) for _ in range(40)]
    block = EdgeBlock(
        set_of=rng.integers(-1, 40, 900).astype(np.int32),
        indptr=np.cumsum([0, *map(len, sets)]),
        parent=np.concatenate(sets).astype(np.int32),
        bytes=np.ones(sum(map(len, sets)), np.int64),
        last=np.ones(sum(map(len, sets)), np.float32),
        first=np.zeros(sum(map(len, sets)), np.float32),
    )
    coarse = relations._aggregated(block, 700)
    counts = unpacked(coarse["counts"]).reshape(coarse["rows"], coarse["columns"])
    expected = np.zeros_like(counts)
    producer, consumer, _ = block.edges()
    np.add.at(expected, (producer * coarse["rows"] // 700, consumer * coarse["columns"] // 900), 1)
    np.testing.assert_array_equal(counts, expected)


def test_shares_of_a_life_keep_their_unknowns():
    packed = relations._shares(np.array([0.0, 0.5, 1.0, np.nan], np.float32))
    assert packed.tolist() == [0, 127, 254, 255]


def test_a_relation_that_aggregation_would_not_shrink_stays_whole_though_many_are_to_come(graph):
    block = graph.blocks[0]
    value, size = relations.fitted(block, 64, 50_000, reserved=10**9)
    assert size < relations._SMALL_BYTES
    np.testing.assert_array_equal(unpacked(value["parent"]), block.parent)
    assert relations.fitted(block, 64, size - 1)[1] < size
