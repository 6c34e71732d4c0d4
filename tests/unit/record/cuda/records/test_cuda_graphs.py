"""Nodes of CUDA graphs are told apart only if the device's own counts and the code that ran agree with the launch."""

import pytest

from tests.unit.record.cuda.cuda_records import KERNEL, access, block_record, launch, process
from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder, fused_operators
from tileprof.record.cuda.installation.selftest import granules
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.graphs import Attribution, Graphs
from tileprof.trace import READ, WRITE, TraceWriter, load, validate

H200 = get("H200")
ALLOC = {"e": "alloc", "address": 0x100000, "bytes": 0x1000, "device": 0, "flags": 0}
WINDOW = 0x100000 // 1024
A, B = ({**KERNEL, "id": i, "code": [0x10000 * (i + 1), 256]} for i in (0, 1))


def counts(number, nodes, *, ended=None, threads=0):
    ended = nodes if ended is None else ended
    return [
        {"e": "graph_end", "launch": number, "nodes": nodes},
        {"e": "nodes", "launch": number, "ended": ended, "threads": threads},
    ]


def node(number, place, *, kernel=0, graph=0):
    return launch(number, kernel=kernel, graph=graph, generation=place, ordinal=place)


def blocks(number, place, code=0x10000, begin=1000):
    sm = (code >> 4) << raw.SM_BITS | 3
    return [block_record(number, b, begin, begin + 50, sm=sm, generation=place) for b in (0, 1)]


def attributions(tmp_path, events, entries):
    actual = process(tmp_path, events, entries)
    graphs = Graphs(actual)
    return [graphs.entries(e)[1] for e in actual.events if e["e"] == "launch" and e["graph"] >= 0]


def traced(tmp_path, events, entries):
    path = tmp_path / "t.tileprof"
    with TraceWriter(path, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(process(tmp_path, events, entries), writer, H200).run()
    trace = load(path)
    assert validate(trace) == []
    return trace


def test_two_launches_of_a_graph_are_trusted_each_by_its_own_counts(tmp_path):
    events = [
        A,
        node(5, 0),
        node(5, 1),
        *counts(5, 2),
        node(6, 0, graph=1),
        node(6, 1, graph=1),
        *counts(6, 2, ended=3),
    ]
    entries = [e for n in (5, 6) for place in (0, 1) for e in blocks(n, place)]
    assert attributions(tmp_path, events, entries) == [Attribution.EXACT] * 2 + [Attribution.AMBIGUOUS] * 2


def test_ends_of_threads_that_are_left_over_make_every_node_a_stand_in_for_all(tmp_path):
    """Where nodes overlap, positions may run ahead of their nodes."""
    events = [ALLOC, A, node(5, 0), node(5, 1), *counts(5, 2, threads=1)]
    entries = [*blocks(5, 0), *blocks(5, 1), access(5, 0, WINDOW, write=1), access(5, 1, WINDOW, read=2, generation=1)]
    trace = traced(tmp_path, events, entries)
    assert set(trace.launches.coverage) == {"conservative"}
    assert granules(trace, 0, 32) == granules(trace, 1, 32) == {(0, WRITE, 0x8000), (1, READ, 0x8001)}


def test_nodes_that_never_ended_under_their_id_stand_for_all_memory(tmp_path):
    """Another launch set the callback data of their functions while they waited, so their records are elsewhere."""
    trace = traced(tmp_path, [ALLOC, A, node(5, 0), node(5, 1), *counts(5, 2, ended=1)], blocks(5, 0))
    assert set(trace.launches.coverage) == {"conservative"}
    assert trace.launches.note.str.contains("records of this graph launch are missing").all()
    assert len(granules(trace, 1, 32)) == 2 * 2 * 0x1000 // 32


def test_kernels_that_changed_places_are_seen_by_where_their_code_lies(tmp_path):
    events = [A, B, node(5, 0), node(5, 1, kernel=1), node(5, 2), *counts(5, 3)]
    right = blocks(5, 0) + blocks(5, 1, 0x20000) + blocks(5, 2)
    assert attributions(tmp_path, events, right) == [Attribution.EXACT] * 3
    swapped_blocks = blocks(5, 0, 0x20000) + blocks(5, 1) + blocks(5, 2)
    assert attributions(tmp_path, events, swapped_blocks) == [Attribution.AMBIGUOUS] * 3


def test_places_of_code_that_launches_of_their_own_contradict_are_not_used(tmp_path):
    events = [A, launch(1), node(5, 0), node(5, 1), *counts(5, 2)]
    entries = blocks(1, 0, 0x990000) + blocks(5, 0, 0x990000) + blocks(5, 1, 0x990000)
    assert attributions(tmp_path, events, entries) == [Attribution.EXACT] * 2


def test_nodes_beyond_the_last_place_share_it(tmp_path):
    many = raw.LAST_GENERATION + 3
    events = [A, *(node(5, place) for place in range(many)), *counts(5, many, ended=raw.LAST_GENERATION)]
    entries = [e for place in range(many) for e in blocks(5, min(place, raw.LAST_GENERATION))]
    actual = attributions(tmp_path, events, entries)
    assert actual[: raw.LAST_GENERATION] == [Attribution.EXACT] * raw.LAST_GENERATION
    assert actual[raw.LAST_GENERATION :] == [Attribution.AMBIGUOUS] * 3


def test_copies_and_fills_of_a_graph_are_launches_in_their_places(tmp_path):
    copy = {
        "e": "copy", "from": 0x100000, "to": 0x100800, "bytes": 64, "width": 64, "height": 1, "depth": 1,
        "from_pitch": 0,
        "to_pitch": 0, "direction": 4, "stream": "0x1", "graph": 0, "t": 1,
    }  # fmt: skip
    fill = {
        "e": "set",
        "to": 0x100400,
        "width": 8,
        "height": 1,
        "to_pitch": 0,
        "element": 4,
        "stream": "0x1",
        "graph": 0,
        "t": 2,
    }
    graph = {"e": "graph", "graph": 0, "exec": "0x1", "stream": "0x1"}
    events = [ALLOC, A, graph, node(5, 0), copy, fill, node(5, 1), *counts(5, 2)]
    entries = [*blocks(5, 0), *blocks(5, 1), access(5, 0, WINDOW, write=1), access(5, 1, WINDOW, read=2, generation=1)]
    trace = traced(tmp_path, events, entries)
    assert trace.launches.kernel.tolist() == ["k(int*)", "memcpy device to device", "memset", "k(int*)"]
    assert trace.launches.graph.tolist() == [0] * 4
    assert set(trace.launches.coverage) == {"exact"}


@pytest.mark.parametrize("entries", [[], [block_record(1, 0, 5, 9)], [block_record(1, b, 5, 9) for b in (0, 1, 1)]])
def test_a_launch_whose_blocks_were_not_all_seen_once_stands_for_all_memory(tmp_path, entries):
    """The code was not patched, or ran under another launch's data."""
    path = tmp_path / "t.tileprof"
    with TraceWriter(path, recorder="cuda", command=["x"], device=H200, granule=32) as writer:
        events = [ALLOC, KERNEL, launch(1)]
        decoder = Decoder(process(tmp_path, events, entries, whole=False), writer, H200)
        decoder.run()
    trace = load(path)
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert len(granules(trace, 0, 32)) == 2 * 2 * 0x1000 // 32
    assert "not every block" in trace.launches.note[0]


@pytest.mark.parametrize(
    ("symbol", "operators"),
    [
        ("triton_poi_fused_add_mul_pow_tanh_view_4", "fused add_mul_pow_tanh_view"),
        (
            "triton_red_fused_add_arange_embedding_native_layer_norm_unsqueeze_",
            "fused add_arange_embedding_native_layer_norm_unsqueeze",
        ),
        ("triton_my_own_kernel", ""),
        ("_Z1kPi", ""),
    ],
)
def test_unnamed_kernels_of_the_compiler_get_the_names_of_their_operators(symbol, operators):
    assert fused_operators(symbol) == operators
