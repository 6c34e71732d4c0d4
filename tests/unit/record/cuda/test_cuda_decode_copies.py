"""Raw records to traces: copies, fills and memory operations of streams are launches of one tile."""

import pytest

from tests.unit.record.cuda.cuda_records import ALLOC, KERNEL, TENSOR
from tileprof.analysis import build_graph
from tileprof.record.cuda.installation.selftest import granules
from tileprof.trace import READ, WRITE


def test_copies_and_memsets_are_launches_of_one_tile(trace_of):
    copy = {
        "e": "copy", "from": 0x100000, "to": 0x108000, "bytes": 4096, "width": 4096, "height": 1, "depth": 1,
        "from_pitch": 4096, "to_pitch": 4096, "direction": 4, "stream": "0x1", "graph": -1, "t": 1,
    }  # fmt: skip
    pitched_copy = {**copy, "width": 64, "height": 3, "bytes": 192, "from_pitch": 256, "to_pitch": 128}
    memset_event = {
        "e": "set", "to": 0x100000, "width": 10, "height": 1, "to_pitch": 0, "element": 4, "stream": "0x1",
        "graph": -1, "t": 1,
    }  # fmt: skip
    host = {**copy, "direction": 2, "from": 0x7FFF00000000}
    trace, _ = trace_of([ALLOC, copy, pitched_copy, memset_event, host], [])
    assert trace.launches.tiles.tolist() == [1] * 4
    assert granules(trace, 0, 4096) == {(0, READ, 0x100), (0, WRITE, 0x108)}
    assert {(m, g * 64) for _, m, g in granules(trace, 1, 64)} == {
        *((READ, 0x100000 + r * 256) for r in range(3)),
        *((WRITE, 0x108000 + r * 128) for r in range(3)),
    }
    assert {g for *_, g in granules(trace, 2, 1)} == set(range(0x100000, 0x100000 + 40))
    assert {m for _, m, _ in granules(trace, 3, 4096)} == {WRITE}


COPY = {
    "e": "copy", "from": 0x100000, "to": 0x108000, "bytes": 64, "width": 64, "height": 1, "depth": 1,
    "from_pitch": 64, "to_pitch": 64, "direction": 4, "stream": "0x1", "graph": -1, "t": 1,
}  # fmt: skip

PINNED = {"e": "alloc", "address": 0x700000, "bytes": 0x1000, "host": 1}


@pytest.mark.parametrize("direction", [1, 2, 3])
def test_copies_touch_pinned_memory_which_kernels_reach(trace_of, direction):
    sides = {"from": 0x700000 if direction != 3 else 0x100000, "to": 0x100000 if direction == 2 else 0x700400}
    trace, _ = trace_of([ALLOC, PINNED, {**COPY, **sides, "direction": direction}], [])
    assert granules(trace, 0, 64) == {(0, READ, sides["from"] // 64), (0, WRITE, sides["to"] // 64)}


def test_a_copy_of_unknown_direction_touches_both_sides(trace_of):
    trace, _ = trace_of([ALLOC, {**COPY, "direction": 0}], [])
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert granules(trace, 0, 64) == {(0, READ, 0x100000 // 64), (0, WRITE, 0x108000 // 64)}


@pytest.mark.parametrize(("graph", "launches"), [(0, ["memcpy in a graph"]), (-1, [])])
def test_a_copy_without_a_size_touches_all_memory_in_a_graph_and_nothing_elsewhere(trace_of, graph, launches):
    empty = {
        "e": "copy",
        "from": 0,
        "to": 0,
        "bytes": 0,
        "width": 0,
        "height": 0,
        "depth": 0,
        "from_pitch": 0,
        "to_pitch": 0,
        "direction": 4,
        "stream": "graph",
    }
    trace, _ = trace_of([ALLOC, TENSOR, {"e": "graph", "graph": 0}, {**empty, "graph": graph, "t": 0}], [])
    assert trace.launches.kernel.tolist() == launches
    assert set(trace.launches.coverage) <= {"conservative"}


def test_words_of_streams_are_launches_of_one_tile(trace_of):
    word = {"e": "value", "to": 0x100040, "bytes": 4, "stream": "0x1", "graph": -1, "t": 0}
    trace, _ = trace_of([ALLOC, KERNEL, {**word, "writes": 1}, {**word, "writes": 0}], [])
    assert trace.launches.kernel.tolist() == ["stream write value", "stream wait value"]
    assert [(m, n) for m, n in zip(trace.accesses["mode"], trace.accesses.length, strict=True)] == [
        ("write", 4), ("read", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("tensors", [[], [{"e": "tensor", "address": 0x100000, "bytes": 0x4000, "kind": "activation"}]])
def test_a_copy_from_an_array_depends_on_copies_into_it(trace_of, tensors):
    copy = {"e": "array_copy", "width": 64, "height": 4, "depth": 1, "stream": "0x1", "graph": -1, "t": 0}
    linear = {"bytes": 3 * 256 + 64, "pitch": 256, "array": 0, "device": 1}
    array = {"bytes": 0, "pitch": 0, "array": 1, "device": 1}
    sides = {"from_": linear, "to_": array}
    into = {**copy, "from": 0x100000, "to": 0x5500A000} | {k + n: v for k, s in sides.items() for n, v in s.items()}
    sides = {"from_": array, "to_": linear}
    out = {**copy, "from": 0x5500A000, "to": 0x102000} | {k + n: v for k, s in sides.items() for n, v in s.items()}
    trace, _ = trace_of([ALLOC, *tensors, KERNEL, into, out, {**out, "depth": 2}], [])
    assert set(trace.launches.kernel) == {"memcpy of an array"}
    pairs = build_graph(trace).pairs
    assert (0, 1) in set(zip(pairs.producer, pairs.consumer, strict=True))
    assert {g for _, m, g in granules(trace, 1, 64) if m == WRITE} == {0x102000 // 64 + 4 * row for row in range(4)}
    assert trace.launches.coverage.tolist() == ["exact", "exact", "conservative"]
