"""Raw records to traces: the facts about each launch, and that nothing is lost silently."""

from tests.unit.record.cuda.cuda_records import ALLOC, KERNEL, WINDOW, access, block_record, launch
from tileprof.record.cuda.decode import Timed
from tileprof.record.cuda.installation.selftest import granules
from tileprof.trace import ATOMIC, READ, WRITE


def test_bits_become_the_granules_of_their_tiles_with_modes(trace_of):
    entries = [
        block_record(1, 0, 1000, 2000), block_record(1, 1, 1500, 2500),
        access(1, 0, WINDOW, read=0b0110, first=1500), access(1, 1, WINDOW + 1, write=1, atomic=1 << 31, first=2000),
        access(1, 0, WINDOW, read=0b1000, first=1250),  # the same key again, which the index had lost
    ]  # fmt: skip
    trace, _ = trace_of([ALLOC, KERNEL, launch(1)], entries)
    first = 0x100000 // 32
    want = {(0, READ, first + g) for g in (1, 2, 3)} | {(1, WRITE, first + 32), (1, ATOMIC, first + 63)}
    assert granules(trace, 0, 32) == want
    assert trace.accesses["first"][trace.accesses.tile == 0].tolist() == [0.25]
    assert trace.times[["sm", "begin_ns", "end_ns"]].to_numpy().tolist() == [[3, 0, 1000], [3, 500, 1500]]
    assert trace.launches.coverage.tolist() == ["exact"]


def test_equal_launches_on_other_buffers_share_a_footprint(trace_of):
    events = [ALLOC, {**ALLOC, "address": 0x200000}, KERNEL, launch(1), launch(2)]
    other = 0x200000 // 1024
    entries = [access(n, b, w + b, write=0xFF, first=n) for n, w in ((1, WINDOW), (2, other)) for b in (0, 1)]
    trace, _ = trace_of(events, entries)
    assert trace.launches.footprint.tolist() == [0, 0]
    assert trace.operands.buffer.tolist() == [0, 1]


def test_a_launch_on_swapped_operands_has_the_same_footprint_and_swapped_bindings(trace_of):
    events = [ALLOC, {**ALLOC, "address": 0x200000}, KERNEL, launch(1), launch(2)]
    other = 0x200000 // 1024
    entries = [access(1, 0, WINDOW, read=1), access(1, 0, other, write=1), access(2, 0, other, read=1)]
    entries.append(access(2, 0, WINDOW, write=1))
    trace, _ = trace_of(events, entries)
    assert trace.launches.footprint.tolist() == [0, 0]
    first, second = (trace.operands.buffer[trace.operands.launch == n].tolist() for n in (0, 1))
    assert first == second[::-1]


def test_bytes_beyond_a_buffer_and_granules_across_two_are_cut_at_the_edge(trace_of):
    events = [{**ALLOC, "bytes": 48}, {**ALLOC, "address": 0x100000 + 48, "bytes": 8}, KERNEL, launch(1)]
    trace, _ = trace_of(events, [access(1, 0, WINDOW, write=0b11)])
    rows = trace.accesses.merge(trace.operands, on="operand")
    assert sorted(zip(rows.buffer, rows.length, strict=True)) == [(0, 48), (1, 8)]


def test_nodes_of_a_graph_that_share_a_kernel_are_told_apart(trace_of):
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in (0, 1)]
    entries = [
        item
        for g in (0, 1)
        for b in (0, 1)
        for item in (block_record(5, b, 1000, 1100, generation=g), access(5, b, WINDOW + g, write=1 << b, generation=g))
    ]
    trace, _ = trace_of([ALLOC, KERNEL, *nodes], entries)
    assert [sorted(g for *_, g in granules(trace, n, 32)) for n in (0, 1)] == [
        [0x8000, 0x8001],
        [0x8000 + 32, 0x8000 + 33],
    ]
    assert set(trace.launches.coverage) == {"exact"}


def test_a_killed_process_leaves_a_trace_that_says_so(trace_of):
    trace, _ = trace_of([ALLOC, KERNEL, launch(1)], [access(1, 0, WINDOW, write=1)], ended=False)
    assert any("ended early" in note for note in trace.manifest["notes"])


def test_a_program_that_marks_a_region_keeps_nothing_else(trace_of):
    on, off = {"e": "capture", "on": 1}, {"e": "capture", "on": 0}
    events = [ALLOC, KERNEL, launch(1), on, launch(2), off]
    trace, _ = trace_of(events, [access(n, 0, WINDOW, write=n) for n in (1, 2)])
    assert granules(trace, 0, 32) == {(0, WRITE, 0x8001)}
    assert len(trace.launches) == 1


def test_uninstrumented_times_win_over_block_times(trace_of):
    times = {0: Timed(begin_ns=5, duration_ns=77, registers=40, shared_bytes=2048)}
    trace, _ = trace_of(
        [ALLOC, KERNEL, launch(1), launch(2)],
        [block_record(1, 0, 10, 900), block_record(2, 0, 1000, 1300)],
        timed=times,
    )
    assert trace.launches.duration_ns.tolist() == [77, 300]
    assert trace.launches.registers.tolist() == [40, 32]


def test_the_write_check_counts_what_changed_outside_recorded_writes(trace_of):
    change_event = {"e": "changed", "launch": 1, "ranges": [[0x100000, 0x100010], [0x100020, 0x100030]]}
    trace, decoder = trace_of([ALLOC, KERNEL, launch(1), change_event], [access(1, 0, WINDOW, write=1)])
    assert decoder.checked == 32
    assert decoder.unrecorded == {0: 16}
    assert any("16 bytes changed" in note for note in trace.manifest["notes"])


def test_graph_nodes_have_the_names_under_which_they_were_captured(trace_of):
    names = [{"e": "mark", "op": f"aten::{n}", "module": "m"} for n in ("mm", "add")]
    captured = {"e": "captured", "kernel": 0}
    graph = {"e": "graph", "graph": 0, "exec": "0x1", "stream": "0x1"}
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in (0, 1)]
    events = [ALLOC, names[0], captured, names[1], captured, graph, KERNEL, *nodes]
    trace, _ = trace_of(events, [block_record(5, b, 1, 2, generation=g) for g in (0, 1) for b in (0, 1)])
    assert trace.launches.op.tolist() == ["aten::mm", "aten::add"]


def test_launches_that_were_not_wanted_are_counted(trace_of):
    """--kernel, --exclude and --skip leave them out, and with them the dependencies through them."""
    trace, _ = trace_of([ALLOC, KERNEL, launch(1, ordinal=2), launch(2, ordinal=5)], [])
    assert any(note.startswith("4 launches among these were left out") for note in trace.manifest["notes"])
