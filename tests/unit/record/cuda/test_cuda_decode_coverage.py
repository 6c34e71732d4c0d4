"""Raw records to traces: missing records make a launch a superset, and the trace says so."""

import pytest

from tests.unit.record.cuda.cuda_records import ALLOC, KERNEL, TENSOR, WINDOW, access, block_record, entry, launch
from tileprof.record.cuda import coverage, decode
from tileprof.record.cuda.installation.selftest import granules
from tileprof.record.cuda.records import raw
from tileprof.trace import READ, WRITE


def test_after_an_overlap_each_node_covers_all_later_ones(trace_of):
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in range(4)]
    entries = [block_record(5, b, 1000, 1100) for b in (0, 1)]
    entries += [access(5, b, WINDOW, write=1 << b) for b in (0, 1)]
    entries += [block_record(5, b, 2000, 2100, generation=1) for b in (0, 1, 0, 1)]  # the second and the third at once
    entries += [access(5, 0, WINDOW + 1, write=1, generation=1), access(5, 1, WINDOW + 2, read=1, generation=1)]
    entries += [block_record(5, b, 3000, 3100, generation=2) for b in (0, 1)]  # the fourth, out of place
    trace, _ = trace_of([ALLOC, KERNEL, *nodes], entries)
    assert granules(trace, 0, 32) == {(0, WRITE, 0x8000), (1, WRITE, 0x8001)}
    rest = {(0, WRITE, 0x8000 + 32), (1, READ, 0x8000 + 64)}
    assert [granules(trace, n, 32) for n in (1, 2, 3)] == [rest] * 3
    assert trace.launches.coverage.tolist() == ["exact"] + ["conservative"] * 3
    assert "overlapped" in trace.launches.note[1]
    assert set(trace.times.launch) == {0}


def test_a_place_with_the_code_of_another_kernel_is_not_trusted(trace_of):
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in (0, 1)]
    code = 1 << raw.SM_BITS
    entries = [block_record(5, b, 1000, 1100, sm=code | 3, generation=0) for b in (0, 1)]
    entries += [block_record(5, b, 2000, 2100, sm=2 * code | 3, generation=1) for b in (0, 1)]
    trace, _ = trace_of([ALLOC, KERNEL, *nodes], entries)
    assert trace.launches.coverage.tolist() == ["exact", "conservative"]
    assert trace.times.sm.tolist() == [3, 3]


def test_a_full_arena_makes_the_launch_a_superset_in_whole_pages(trace_of):
    big = {**ALLOC, "address": 0x40000000, "bytes": 3 << 21}
    page = (0x40000000 >> 21) + 1
    events = [big, KERNEL, launch(1), {"e": "spill", "launch": 1, "accesses": 7}]
    events.append({"e": "spilled_page", "page": page % raw.SPILL_PAGES, "read": 1, "written": 0, "until": 9})
    trace, _ = trace_of(events, [])
    assert trace.launches.coverage.tolist() == ["conservative"]
    rows = trace.accesses
    assert rows["mode"].tolist() == ["read", "read"]
    assert rows.length.tolist() == [1 << 21] * 2
    assert trace.operands.offset.tolist() == [1 << 21]


def test_unnamed_bytes_beside_a_tensor_are_kept_if_a_run_begins_inside_it(trace_of):
    """In a graph's own memory the run continues past the tensor; only its last granule may be overhang."""
    trace, _ = trace_of([ALLOC, TENSOR, KERNEL, launch(1)], [access(1, 0, WINDOW, write=0xFFFFF)])
    assert granules(trace, 0, 32) == {(0, WRITE, 0x8000 + g) for g in range(20)}
    assert trace.launches.coverage.tolist() == ["exact"]


def test_granules_that_only_hang_over_the_end_of_a_tensor_make_no_buffer(trace_of):
    trace, _ = trace_of([ALLOC, TENSOR, KERNEL, launch(1)], [access(1, 0, WINDOW, write=0xFFFF)])
    assert trace.buffers.bytes.tolist() == [500]


def test_a_launch_on_all_memory_covers_the_memory_between_tensors_too(trace_of):
    """The records of its blocks are missing; a later launch reads memory that had no buffer until then."""
    events = [ALLOC, TENSOR, KERNEL, launch(1), launch(2)]
    entries = [block_record(2, b, 5, 9) for b in (0, 1)] + [access(2, 0, WINDOW + 8, read=1)]
    trace, _ = trace_of(events, entries, whole=False)
    assert trace.launches.coverage.tolist() == ["conservative", "exact"]
    [read] = {g for _, _, g in granules(trace, 1, 32)}
    assert (0, WRITE, read) in granules(trace, 0, 32)
    assert len(granules(trace, 0, 32)) == 2 * 2 * 0x10000 // 32


@pytest.mark.parametrize(
    ("what", "modes"), [("texture", {READ}), ("surface", {READ, WRITE}), ("launches", {READ, WRITE})]
)
def test_accesses_by_textures_surfaces_and_launches_from_kernels_cover_all_memory(trace_of, what, modes):
    trace, _ = trace_of([ALLOC, TENSOR, {**KERNEL, what: 1}, launch(1)], [access(1, 0, WINDOW, read=1)])
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {m for _, m, _ in granules(trace, 0, 32)} == modes
    assert {g for t, m, g in granules(trace, 0, 32) if t == 1 and m == READ} == set(
        range(0x8000, 0x8000 + 0x10000 // 32)
    )


def test_nodes_with_unknown_writes_are_launches_on_all_memory(trace_of):
    opaque = {"e": "opaque", "node": 13, "graph": 0, "stream": "graph"}
    trace, _ = trace_of([ALLOC, TENSOR, {"e": "graph", "graph": 0}, opaque], [])
    assert trace.launches[["kernel", "coverage"]].to_numpy().tolist() == [["conditional node", "conservative"]]
    assert len(granules(trace, 0, 32)) == 2 * 0x10000 // 32


def test_a_large_launch_that_stands_for_all_memory_is_one_tile_where_there_are_many_buffers(trace_of, monkeypatch):
    """Each tile by each buffer would be more rows than fit into memory."""
    monkeypatch.setattr(decode, "MOST_ROWS", 100)
    tensors = [{**TENSOR, "address": 0x100000 + 1024 * n, "bytes": 1024} for n in range(64)]
    trace, _ = trace_of([ALLOC, *tensors, KERNEL, launch(1, grid=(5, 2, 1))], [block_record(1, 0, 5, 9)], whole=False)
    row = trace.launches.iloc[0]
    assert (row.coverage, row.tiles, row.grid_x, row.grid_y) == ("conservative", 1, 5, 2)
    assert row.note.endswith("its 10 tiles stand as one")
    assert granules(trace, 0, 32) == {(0, mode, 0x8000 + g) for mode in (READ, WRITE) for g in range(0x10000 // 32)}


def test_code_that_could_not_be_patched_makes_its_launches_conservative_unless_this_gpu_has_no_such_code(trace_of):
    refused_launch = {**launch(2), "unpatched": ["tileprof_access"]}
    newer = {**launch(3), "unpatched": ["tileprof_newer"]}
    with_newer = pytest.MonkeyPatch()
    with_newer.setitem(coverage.SINCE, "tileprof_newer", 100)
    trace, _ = trace_of(
        [ALLOC, KERNEL, launch(1), refused_launch, newer], [access(n, 0, WINDOW, write=1) for n in (1, 2, 3)]
    )
    with_newer.undo()
    assert trace.launches.coverage.tolist() == ["exact", "conservative", "exact"]
    assert "refused to patch some of its code (tileprof_access)" in trace.launches.note[1]


def test_accesses_beyond_48_bits_are_counted_and_their_launch_is_not_exact(trace_of):
    spilt = {"e": "spill", "launch": 1, "accesses": 0, "beyond": 7}
    trace, _ = trace_of([ALLOC, KERNEL, launch(1), spilt], [access(1, 0, WINDOW, write=1)])
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert "7 accesses at addresses of more than 48 bits" in trace.launches.note[0]
    assert "arena" not in trace.launches.note[0]


def test_constant_variables_are_read_whole_by_every_tile_where_something_wrote_them(trace_of):
    kernel = {**KERNEL, "constants": 2}
    values = {"e": "constants", "kernel": 0, "ranges": [[0xC00040, 64], [0xF000000, 64]]}
    copy = {
        "e": "copy", "from": 0, "to": 0xC00040, "bytes": 64, "width": 64, "height": 1, "depth": 1, "from_pitch": 64,
        "to_pitch": 64, "direction": 2, "stream": "0x1", "graph": -1, "t": 0,
    }  # fmt: skip
    trace, _ = trace_of([ALLOC, kernel, values, copy, launch(1)], [access(1, 0, WINDOW, write=1)])
    assert trace.launches.coverage.tolist() == ["exact", "exact"]
    reads = {(t, g) for t, m, g in granules(trace, 1, 32) if m == READ}
    assert reads == {(t, 0xC00040 // 32 + g) for t in (0, 1) for g in (0, 1)}
    trace, _ = trace_of([ALLOC, kernel, launch(1)], [access(1, 0, WINDOW, write=1)])
    assert trace.launches.coverage.tolist() == ["conservative"], "where they lie was never told"


CODE = 0x7F0000004000
CHILD = 0x7F0000008000
PARENT = {**KERNEL, "launches": 1, "code": [CODE, 0x800]}


def at(code):
    """Return the low bits of the record of a block that entered there on SM 3."""
    return (code >> 4 << raw.SM_BITS | 3) & raw.LOW_MASK


def exit_record(number, block, threads, end, *, code=CODE):
    """Return the record of threads that exit."""
    return entry(raw.EXIT, at(code + 0x40), block, number, (threads, 0, end, 0))


def of_family():
    """Return a parent of two blocks, which do not enter, whose children have three blocks and touch two windows."""
    blocks = [exit_record(1, b, threads, 1000 + b) for b in (0, 1) for threads in (31, 1)]
    for b in (0, 1, 2):
        blocks += [
            block_record(1, b, 5000, 9000 if b == 2 else 0, sm=at(CHILD)),
            exit_record(1, b, 32, 9000, code=CHILD),
        ]
    return [*blocks, access(1, 0, WINDOW, read=1), access(1, 2, WINDOW + 1, write=1)]


def test_accesses_of_children_belong_to_the_launch_that_began_them(trace_of):
    trace, _ = trace_of([ALLOC, PARENT, launch(1), launch(2, kernel=0)], [*of_family(), *of_launch(2)])
    assert granules(trace, 0, 32) == {(0, READ, 0x8000), (0, WRITE, 0x8000 + 32)}
    assert granules(trace, 1, 32) == set()
    assert trace.launches.tiles.tolist() == [1, 1]
    assert trace.launches.coverage.tolist() == ["conservative", "conservative"]
    assert "blocks: 3 of a kernel that the host did not launch from 4.0 to 8.0 us on" in trace.launches.note[0]
    assert "blocks: none" in trace.launches.note[1]


def of_launch(number):
    """Return a launch that launches nothing, and enters."""
    entered = [block_record(number, b, 1000 + b, 0, sm=at(CODE)) for b in (0, 1)]
    return [*entered, *(exit_record(number, b, 32, 1100) for b in (0, 1))]


def test_children_that_the_host_launched_too_have_names(trace_of):
    child = {**KERNEL, "id": 1, "name": "child(int*)", "launches": 1, "code": [CHILD, 0x400]}
    own = [exit_record(2, b, 32, 1100, code=CHILD) for b in (0, 1)]
    trace, _ = trace_of([ALLOC, PARENT, child, launch(1), launch(2, kernel=1)], [*of_family(), *own])
    assert "3 of child(int*) from" in trace.launches.note[0]


@pytest.mark.parametrize(
    ("kernel", "entries"),
    [
        ({"launches": 2}, []),  # graphs
        ({"code": [0, 0]}, []),  # code at an unknown place
        ({}, [exit_record(1, 1, 32, 2000)]),  # a kernel that launches itself: more threads exit than it has
        ({}, [exit_record(1, 2, 32, 2000)]),  # or a grid with more blocks
        # loads through maps in another kernel's parameters
        ({}, [(raw.MAP << raw.KIND_SHIFT | 0x7000, 0, 1, (1, 0, 0, 0))]),
    ],
    ids=["graphs", "unknown code", "itself", "a larger itself", "maps"],
)
def test_a_launch_with_unknown_children_covers_all_memory(trace_of, kernel, entries):
    trace, _ = trace_of([ALLOC, {**PARENT, **kernel}, launch(1)], [*of_family(), *entries])
    [coverage_of] = trace.launches.coverage
    assert coverage_of == "conservative"
    assert "stands for all memory" in trace.launches.note[0]


@pytest.mark.parametrize("missing", range(4))
def test_a_parent_with_a_missing_exit_covers_all_memory(trace_of, missing):
    entries = of_family()
    del entries[missing]
    trace, _ = trace_of([ALLOC, PARENT, launch(1)], entries, whole=False)
    assert "not every block of it was seen" in trace.launches.note[0]
    assert "stands for all memory" in trace.launches.note[0]


def test_blocks_of_children_say_nothing_against_where_code_lies(trace_of):
    """Otherwise no node of any graph could be told from another one."""
    other = {**KERNEL, "id": 1, "code": [0x7F0000010000, 0x400]}
    nodes = [launch(5, kernel=1, graph=0, generation=g, ordinal=g + 1) for g in (0, 1)]
    wrong = [block_record(5, b, 1000, 1100, sm=at(CHILD), generation=g) for b in (0, 1) for g in (0, 1)]
    trace, _ = trace_of([ALLOC, PARENT, other, launch(1), *nodes], [*of_family(), *wrong])
    assert set(trace.launches.coverage[1:]) == {"conservative"}  # compared with known code
