"""Raw records of launches that were left out or abandoned, and of several GPUs: what the trace says about them."""

import pytest

from tests.unit.record.cuda.cuda_records import KERNEL, access, block_record, launch, process
from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder
from tileprof.trace import TraceWriter, load, validate

H200 = get("H200")
ALLOC = {"e": "alloc", "address": 0x100000, "bytes": 0x10000, "device": 0, "flags": 0}
OTHER = {**ALLOC, "address": 0x200000, "device": 1}
WINDOW = 0x100000 // 1024  # of 32 granules of 32 bytes


@pytest.fixture
def trace_of(tmp_path):
    def make(events, entries, **options):
        name = tmp_path / "t.tileprof"
        with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
            Decoder(process(tmp_path, events, entries, **options), writer, H200).run()
        trace = load(name)
        assert validate(trace) == []
        return trace

    return make


def touched_pages(trace, number):
    """Return the buffers that a launch touches, with the mode and the number of bytes of each."""
    rows = trace.accesses[trace.accesses.footprint == trace.launches.footprint[number]]
    rows = rows.merge(trace.operands[trace.operands.launch == number], on="operand")
    return sorted({(b, m, length) for b, m, length in zip(rows.buffer, rows["mode"], rows.length, strict=True)})


def test_a_launch_that_was_left_alone_stands_for_the_memory_of_all_gpus(trace_of):
    alone = {**launch(0, ordinal=1), "aside": 1}
    entries = [block_record(n, b, 1000, 2000) for n in (1, 2) for b in (0, 1)]
    trace = trace_of([ALLOC, OTHER, KERNEL, launch(1), alone, launch(2, ordinal=2)], entries)
    assert trace.launches.coverage.tolist() == ["exact", "conservative", "exact"]
    assert touched_pages(trace, 1) == [(n, mode, 0x10000) for n in (0, 1) for mode in ("read", "write")]
    assert "was left alone (--include records it)" in trace.launches.note[1]
    assert not any("left out" in note for note in trace.manifest["notes"])


def test_launches_of_a_kernel_that_was_given_up_are_conservative_from_then_on(trace_of):
    given_up = {"e": "spinning", "launch": 2, "kernel": 0, "seconds": 60}
    entries = [access(n, 0, WINDOW, write=1) for n in (1, 2, 3)]
    trace = trace_of([ALLOC, KERNEL, launch(1), launch(2), given_up, launch(3)], entries)
    assert trace.launches.coverage.tolist() == ["exact", "conservative", "conservative"]
    assert touched_pages(trace, 1) == [(0, "write", 32)]
    assert "had not ended after 60 s" in trace.launches.note[1]


def test_a_graph_launch_that_was_given_up_stands_for_all_memory(trace_of):
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in (0, 1)]
    entries = [block_record(5, b, 1000, 1100, generation=g) for g in (0, 1) for b in (0, 1)]
    trace = trace_of([ALLOC, KERNEL, *nodes, {"e": "spinning", "launch": 5, "graph": 0}], entries)
    assert trace.launches.coverage.tolist() == ["conservative"] * 2


def test_a_node_whose_code_is_not_patched_takes_no_place_among_the_others(trace_of):
    """It counts no end, so the node after it has the position that it would have had."""
    nodes = [
        launch(5, graph=0, generation=0, ordinal=0),
        {**launch(0, graph=0, generation=0, ordinal=1), "aside": 1, "counted": 0},
        launch(5, graph=0, generation=1, ordinal=2),
    ]
    entries = [block_record(5, b, 1000, 1100, generation=g) for g in (0, 1) for b in (0, 1)]
    entries += [access(5, 0, WINDOW + g, write=1, generation=g) for g in (0, 1)]
    counts = [{"e": "graph_end", "launch": 5, "nodes": 2}, {"e": "nodes", "launch": 5, "ended": 2, "threads": 0}]
    trace = trace_of([ALLOC, KERNEL, *nodes, *counts], entries)
    assert trace.launches.coverage.tolist() == ["exact", "conservative", "exact"]


def test_launches_say_their_gpu_where_there_are_several(trace_of):
    events = [ALLOC, OTHER, KERNEL, launch(1), {**launch(2), "device": 1, "context": 1}]
    entries = [block_record(1, 0, 1 << 30, (1 << 30) + 50), block_record(1, 1, 1 << 30, (1 << 30) + 50)]
    entries += [block_record(2, b, 500, 600) for b in (0, 1)]  # its clock is another one
    trace = trace_of(events, entries)
    assert trace.launches.device.tolist() == ["0", "1"]
    assert trace.launches.begin_ns.tolist() == [0, 0]
    assert any("several GPUs (1 on GPU 0, 1 on GPU 1)" in note for note in trace.manifest["notes"])
    assert set(trace_of(events[:4], entries[:2]).launches.device) == {""}
