"""Raw records to traces: what is said about each launch, and that nothing is lost silently."""

import numpy as np
import pytest
from cuda_records import KERNEL, access, entry, launch, process, ran

from tileprof.analysis import build_graph
from tileprof.devices import get
from tileprof.record.cuda import coverage, decode, raw, writes
from tileprof.record.cuda.decode import Decoder, Timed
from tileprof.record.cuda.selftest import granules
from tileprof.trace import ATOMIC, READ, WRITE, TraceWriter, load, validate

H200 = get("H200")
ALLOC = {"e": "alloc", "address": 0x100000, "bytes": 0x10000, "device": 0, "flags": 0}
WINDOW = 0x100000 // 1024  # of 32 granules of 32 bytes


@pytest.fixture
def decoded(tmp_path):
    def make(events, entries, **options):
        name = tmp_path / "t.tileprof"
        timed = options.pop("timed", {})
        with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
            decoder = Decoder(process(tmp_path, events, entries, **options), writer, H200, timed)
            decoder.run()
        trace = load(name)
        assert validate(trace) == []
        return trace, decoder

    return make


def test_bits_become_the_granules_of_their_tiles_with_modes(decoded):
    entries = [
        ran(1, 0, 1000, 2000), ran(1, 1, 1500, 2500),
        access(1, 0, WINDOW, read=0b0110, first=1500), access(1, 1, WINDOW + 1, write=1, atomic=1 << 31, first=2000),
        access(1, 0, WINDOW, read=0b1000, first=1250),  # the same key again: the index had forgotten it
    ]  # fmt: skip
    trace, _ = decoded([ALLOC, KERNEL, launch(1)], entries)
    first = 0x100000 // 32
    want = {(0, READ, first + g) for g in (1, 2, 3)} | {(1, WRITE, first + 32), (1, ATOMIC, first + 63)}
    assert granules(trace, 0, 32) == want
    assert trace.accesses["first"][trace.accesses.tile == 0].tolist() == [0.25]
    assert trace.times[["sm", "begin_ns", "end_ns"]].to_numpy().tolist() == [[3, 0, 1000], [3, 500, 1500]]
    assert trace.launches.coverage.tolist() == ["exact"]


def test_equal_launches_on_other_buffers_share_a_footprint(decoded):
    events = [ALLOC, {**ALLOC, "address": 0x200000}, KERNEL, launch(1), launch(2)]
    other = 0x200000 // 1024
    entries = [access(n, b, w + b, write=0xFF, first=n) for n, w in ((1, WINDOW), (2, other)) for b in (0, 1)]
    trace, _ = decoded(events, entries)
    assert trace.launches.footprint.tolist() == [0, 0]
    assert trace.operands.buffer.tolist() == [0, 1]


def test_a_launch_on_swapped_operands_has_the_same_footprint_and_swapped_bindings(decoded):
    events = [ALLOC, {**ALLOC, "address": 0x200000}, KERNEL, launch(1), launch(2)]
    other = 0x200000 // 1024
    entries = [access(1, 0, WINDOW, read=1), access(1, 0, other, write=1), access(2, 0, other, read=1)]
    entries.append(access(2, 0, WINDOW, write=1))
    trace, _ = decoded(events, entries)
    assert trace.launches.footprint.tolist() == [0, 0]
    first, second = (trace.operands.buffer[trace.operands.launch == n].tolist() for n in (0, 1))
    assert first == second[::-1]


def test_bytes_beyond_a_buffer_and_granules_across_two_are_cut_at_the_edge(decoded):
    events = [{**ALLOC, "bytes": 48}, {**ALLOC, "address": 0x100000 + 48, "bytes": 8}, KERNEL, launch(1)]
    trace, _ = decoded(events, [access(1, 0, WINDOW, write=0b11)])
    rows = trace.accesses.merge(trace.operands, on="operand")
    assert sorted(zip(rows.buffer, rows.length, strict=True)) == [(0, 48), (1, 8)]


def test_nodes_of_a_graph_that_share_a_kernel_are_told_apart(decoded):
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in (0, 1)]
    entries = [
        item
        for g in (0, 1)
        for b in (0, 1)
        for item in (ran(5, b, 1000, 1100, generation=g), access(5, b, WINDOW + g, write=1 << b, generation=g))
    ]
    trace, _ = decoded([ALLOC, KERNEL, *nodes], entries)
    assert [sorted(g for *_, g in granules(trace, n, 32)) for n in (0, 1)] == [
        [0x8000, 0x8001],
        [0x8000 + 32, 0x8000 + 33],
    ]
    assert set(trace.launches.coverage) == {"exact"}


def test_from_where_nodes_overlapped_each_stands_for_all_that_follow(decoded):
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in range(4)]
    entries = [ran(5, b, 1000, 1100) for b in (0, 1)]
    entries += [access(5, b, WINDOW, write=1 << b) for b in (0, 1)]
    entries += [ran(5, b, 2000, 2100, generation=1) for b in (0, 1, 0, 1)]  # the second and the third at once
    entries += [access(5, 0, WINDOW + 1, write=1, generation=1), access(5, 1, WINDOW + 2, read=1, generation=1)]
    entries += [ran(5, b, 3000, 3100, generation=2) for b in (0, 1)]  # the fourth, out of place
    trace, _ = decoded([ALLOC, KERNEL, *nodes], entries)
    assert granules(trace, 0, 32) == {(0, WRITE, 0x8000), (1, WRITE, 0x8001)}
    rest = {(0, WRITE, 0x8000 + 32), (1, READ, 0x8000 + 64)}
    assert [granules(trace, n, 32) for n in (1, 2, 3)] == [rest] * 3
    assert trace.launches.coverage.tolist() == ["exact"] + ["conservative"] * 3
    assert "overlapped" in trace.launches.note[1]
    assert set(trace.times.launch) == {0}


def test_a_place_with_the_code_of_another_kernel_is_not_trusted(decoded):
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in (0, 1)]
    code = 1 << raw.SM_BITS
    entries = [ran(5, b, 1000, 1100, sm=code | 3, generation=0) for b in (0, 1)]
    entries += [ran(5, b, 2000, 2100, sm=2 * code | 3, generation=1) for b in (0, 1)]
    trace, _ = decoded([ALLOC, KERNEL, *nodes], entries)
    assert trace.launches.coverage.tolist() == ["exact", "conservative"]
    assert trace.times.sm.tolist() == [3, 3]


def test_a_full_arena_makes_the_launch_a_superset_in_whole_pages(decoded):
    big = {**ALLOC, "address": 0x40000000, "bytes": 3 << 21}
    page = (0x40000000 >> 21) + 1
    events = [big, KERNEL, launch(1), {"e": "spill", "launch": 1, "accesses": 7}]
    events.append({"e": "spilled_page", "page": page % raw.SPILL_PAGES, "read": 1, "written": 0, "until": 9})
    trace, _ = decoded(events, [])
    assert trace.launches.coverage.tolist() == ["conservative"]
    rows = trace.accesses
    assert rows["mode"].tolist() == ["read", "read"]
    assert rows.length.tolist() == [1 << 21] * 2
    assert trace.operands.offset.tolist() == [1 << 21]


def test_a_killed_process_leaves_a_trace_that_says_so(decoded):
    trace, _ = decoded([ALLOC, KERNEL, launch(1)], [access(1, 0, WINDOW, write=1)], ended=False)
    assert any("ended early" in note for note in trace.manifest["notes"])


def test_a_program_that_marks_a_region_keeps_nothing_else(decoded):
    on, off = {"e": "capture", "on": 1}, {"e": "capture", "on": 0}
    events = [ALLOC, KERNEL, launch(1), on, launch(2), off]
    trace, _ = decoded(events, [access(n, 0, WINDOW, write=n) for n in (1, 2)])
    assert granules(trace, 0, 32) == {(0, WRITE, 0x8001)}
    assert len(trace.launches) == 1


def test_copies_and_memsets_are_launches_of_one_tile(decoded):
    copy = {
        "e": "copy", "from": 0x100000, "to": 0x108000, "bytes": 4096, "width": 4096, "height": 1, "depth": 1,
        "from_pitch": 4096, "to_pitch": 4096, "direction": 4, "stream": "0x1", "graph": -1, "t": 1,
    }  # fmt: skip
    pitched = {**copy, "width": 64, "height": 3, "bytes": 192, "from_pitch": 256, "to_pitch": 128}
    cleared = {
        "e": "set", "to": 0x100000, "width": 10, "height": 1, "to_pitch": 0, "element": 4, "stream": "0x1",
        "graph": -1, "t": 1,
    }  # fmt: skip
    host = {**copy, "direction": 2, "from": 0x7FFF00000000}
    trace, _ = decoded([ALLOC, copy, pitched, cleared, host], [])
    assert trace.launches.tiles.tolist() == [1] * 4
    assert granules(trace, 0, 4096) == {(0, READ, 0x100), (0, WRITE, 0x108)}
    assert {(m, g * 64) for _, m, g in granules(trace, 1, 64)} == {
        *((READ, 0x100000 + r * 256) for r in range(3)),
        *((WRITE, 0x108000 + r * 128) for r in range(3)),
    }
    assert {g for *_, g in granules(trace, 2, 1)} == set(range(0x100000, 0x100000 + 40))
    assert {m for _, m, _ in granules(trace, 3, 4096)} == {WRITE}


def test_uninstrumented_times_win_over_block_times(decoded):
    timed = {0: Timed(begin_ns=5, duration_ns=77, registers=40, shared_bytes=2048)}
    trace, _ = decoded([ALLOC, KERNEL, launch(1), launch(2)], [ran(1, 0, 10, 900), ran(2, 0, 1000, 1300)], timed=timed)
    assert trace.launches.duration_ns.tolist() == [77, 300]
    assert trace.launches.registers.tolist() == [40, 32]


def test_the_write_check_counts_what_changed_outside_recorded_writes(decoded):
    changed = {"e": "changed", "launch": 1, "ranges": [[0x100000, 0x100010], [0x100020, 0x100030]]}
    trace, decoder = decoded([ALLOC, KERNEL, launch(1), changed], [access(1, 0, WINDOW, write=1)])
    assert decoder.checked == 32
    assert decoder.unrecorded == {0: 16}
    assert any("16 bytes changed" in note for note in trace.manifest["notes"])


# ---- tensor maps

PAGE = 0x7FF000000000


def map_entries(number, slot, base, *, loaded, rows=64):
    """A map of ``rows`` rows of 128 bytes (32 floats), boxes of 16 rows."""
    words = np.zeros(16, "<u4")
    words[0], words[1], words[2] = base & 0xFFFFFFFF, base >> 32, 1 << 4 | 7 << 7
    words[3], words[8], words[9] = 128 >> 4, 31, rows - 1
    words[13], words[14] = 31 << 24, 15
    parts = words.reshape(4, 4).tolist()
    return [entry(raw.MAP, slot + 16 * i, int(loaded), number, tuple(p)) for i, p in enumerate(parts)]


def load_entries(number, slot, block, row, *, first=0):
    return [
        entry(raw.TENSOR, slot, block, number, (0, row, 0, 0)),
        entry(raw.TENSOR_TAIL, slot, block, number, (0, 0, 2, first)),
    ]


STORES = {**KERNEL, "tensor_load": 1, "tensor_store": 1, "parameters": [528, 256]}
LOADED, STORED = PAGE + 576, PAGE + 640


def test_loads_through_maps_are_boxes_of_their_tiles(decoded):
    entries = [*map_entries(1, LOADED, 0x100000, loaded=True)]
    entries += [e for b, row in ((0, 0), (1, 56), (1, 56)) for e in load_entries(1, LOADED, b, row)]
    trace, _ = decoded([ALLOC, {**KERNEL, "tensor_load": 1}, launch(1)], entries)
    assert sorted(zip(trace.accesses.tile, trace.accesses.length, trace.accesses.count_0, strict=True)) == [
        (0, 128, 16),
        (1, 128, 8),
    ], "contiguous rows, clipped at the last"


def test_replays_name_the_writer_of_every_granule(decoded, tmp_path):
    owners = np.full(0x2000 // 16, 0, "<i4")
    owners[256:] = 1
    owners[0] = raw.NOBODY
    owners.tofile(tmp_path / "owners-0.bin")
    found = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    found |= {"regions": [[112, 0x2000]], "refused": ""}
    events = [ALLOC, STORES, launch(1), found, {"e": "owned", "launch": 1, "id": 0, "bases": [0x104000]}]
    entries = map_entries(1, STORED, 0x104000, loaded=False)
    # A node of a graph cannot be replayed: it takes what the equal launch taught.
    events.append(launch(2, graph=0))
    entries += [ran(2, b, 1, 2) for b in (0, 1)] + map_entries(2, STORED, 0x108000, loaded=False)
    trace, _ = decoded(events, entries)
    assert trace.launches.coverage.tolist() == ["exact", "inferred"]
    for number, base in ((0, 0x104000), (1, 0x108000)):
        seen = granules(trace, number, 16)
        assert {g for tile, _, g in seen if tile == 1} == set(range((base + 0x1000) // 16, (base + 0x2000) // 16))
        assert {g for tile, _, g in seen if tile == 0} == set(range(base // 16 + 1, (base + 0x1000) // 16))


@pytest.mark.parametrize("left_over", [0xBF80_0000_3F80_0000, 0x7000_0000_0000], ids=["no address", "nobody's memory"])
def test_left_overs_of_other_maps_are_no_outputs(decoded, tmp_path, left_over):
    np.array([0] * 256 + [1] * 256, "<i4").tofile(tmp_path / "owners-0.bin")
    found = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    found |= {"regions": [[112, 0x2000]], "refused": ""}
    events = [ALLOC, STORES, launch(1), found, {"e": "owned", "launch": 1, "id": 0, "bases": [0x104000]}]
    entries = map_entries(1, STORED, 0x104000, loaded=False)
    entries += [ran(2, b, 1, 2) for b in (0, 1)] + map_entries(2, STORED, 0x108000, loaded=False)
    entries += map_entries(2, STORED + 64, left_over, loaded=False)
    trace, _ = decoded([*events, launch(2, graph=0)], entries)
    assert trace.launches.coverage.tolist() == ["exact", "inferred"]
    assert {g for *_, g in granules(trace, 1, 4096)} == {0x108, 0x109}


def test_a_graph_takes_what_a_launch_outside_the_recording_taught(decoded, tmp_path):
    np.array([0] * 128 + [1] * 128, "<i4").tofile(tmp_path / "owners-0.bin")
    found = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    found |= {"regions": [[112, 0x1000]], "refused": ""}
    learnt = [{**launch(1), "e": "learn"}, found, {"e": "owned", "launch": 1, "id": 0, "bases": [0x104000]}]
    entries = map_entries(1, STORED, 0x104000, loaded=False) + map_entries(2, STORED, 0x108000, loaded=False)
    entries += [ran(2, b, 1, 2) for b in (0, 1)]
    trace, _ = decoded([ALLOC, STORES, *learnt, launch(2, graph=0)], entries)
    assert trace.launches.coverage.tolist() == ["inferred"]
    assert {(t, g - 0x1080) for t, _, g in granules(trace, 0, 256)} == {
        (t, t * 8 + g) for t in (0, 1) for g in range(8)
    }


def lesson(tmp_path, number, launch_id, owners, regions):
    """A launch outside of what is recorded, and what replays of it told."""
    np.array(owners, "<i4").tofile(tmp_path / f"owners-{number}.bin")
    found = {
        "e": "owners",
        "id": number,
        "launch": launch_id,
        "file": f"owners-{number}.bin",
        "granule": 16,
        "clusters": 2,
    }
    found |= {"regions": [[112, size] for _, size in regions], "refused": ""}
    bases = [base for base, _ in regions]
    return [
        {**launch(launch_id), "e": "learn"},
        found,
        {"e": "owned", "launch": launch_id, "id": number, "bases": bases},
    ]


def loading(number, rows):
    """Entries of a launch whose blocks load these rows and store through a map at 0x104000 + 0x4000 * number."""
    entries = map_entries(number, LOADED, 0x100000, loaded=True)
    entries += map_entries(number, STORED, 0x104000 + 0x4000 * number, loaded=False)
    entries += [e for b, row in rows for e in load_entries(number, LOADED, b, row)]
    return entries + [ran(number, b, 1, 2) for b in (0, 1)]


def test_of_several_launches_that_taught_the_one_that_loads_alike_is_believed(decoded, tmp_path):
    """Products of different depth: kernel, grid and the shape of the result are the same."""
    shallow, deep = [(0, 0), (1, 0)], [(0, 0), (0, 16), (1, 0), (1, 16)]
    events = lesson(tmp_path, 0, 1, [0] * 128 + [1] * 128, [(0x108000, 0x1000)])
    events += lesson(tmp_path, 1, 2, [1] * 128 + [0] * 128, [(0x10C000, 0x1000)])
    entries = loading(1, shallow) + loading(2, deep) + loading(3, deep) + loading(4, [(0, 32), (1, 0)])
    graph = [{**launch(n), "graph": 0} for n in (3, 4)]
    trace, _ = decoded([{**ALLOC, "bytes": 0x20000}, STORES, *events, *graph], entries)
    assert trace.launches.coverage.tolist() == ["inferred", "conservative"]
    assert {(t, g - 0x1100) for t, m, g in granules(trace, 0, 256) if m == WRITE} == {
        (t, (1 - t) * 8 + g) for t in (0, 1) for g in range(8)
    }


def test_two_results_of_the_same_shape_are_not_told_apart_in_a_graph(decoded, tmp_path):
    events = lesson(tmp_path, 0, 1, [0] * 256 + [1] * 256, [(0x108000, 0x1000), (0x109000, 0x1000)])
    rows = [(0, 0), (0, 32), (1, 0), (1, 32)]
    entries = loading(1, rows) + map_entries(1, STORED + 64, 0x109000, loaded=False)
    entries += loading(3, rows) + map_entries(3, STORED + 64, 0x111000, loaded=False)
    trace, _ = decoded([{**ALLOC, "bytes": 0x20000}, STORES, *events, {**launch(3), "graph": 0}], entries)
    assert trace.launches.coverage.tolist() == ["conservative"]


def test_bytes_that_several_clusters_wrote_belong_to_all_of_them(decoded, tmp_path):
    np.array([0, raw.SEVERAL, 1, 1], "<i4").tofile(tmp_path / "owners-0.bin")
    found = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    found |= {"regions": [[112, 64]], "refused": ""}
    events = [ALLOC, STORES, launch(1), found, {"e": "owned", "launch": 1, "id": 0, "bases": [0x100000]}]
    trace, _ = decoded(events, [])
    assert {(t, g - 0x10000) for t, _, g in granules(trace, 0, 16)} == {(0, 0), (0, 1), (1, 1), (1, 2), (1, 3)}
    assert trace.launches.coverage.tolist() == ["conservative"]


def test_a_tile_that_alone_loads_a_place_of_an_equal_input_is_taken_for_its_writer(decoded):
    entries = map_entries(1, LOADED, 0x100000, loaded=True) + map_entries(1, STORED, 0x104000, loaded=False)
    entries += [e for row in (0, 16, 32, 48) for e in load_entries(1, LOADED, row // 32, row)]
    trace, _ = decoded([ALLOC, STORES, launch(1)], entries)
    assert trace.launches.coverage.tolist() == ["inferred"]
    writes = {(t, g) for t, m, g in granules(trace, 0, 4096) if m == WRITE}
    assert writes == {(0, 0x104), (1, 0x105)}


@pytest.mark.parametrize("side_by_side", [[ALLOC], [{**ALLOC, "bytes": 0x5000}, {**ALLOC, "address": 0x105000}]])
def test_otherwise_every_tile_stands_as_writer_of_the_whole_tensor(decoded, side_by_side):
    """Which may lie in several mappings side by side, as those of expandable segments."""
    entries = map_entries(1, LOADED, 0x100000, loaded=True) + map_entries(1, STORED, 0x104000, loaded=False)
    entries += [e for b in (0, 1) for row in (0, 16, 32, 48) for e in load_entries(1, LOADED, b, row)]
    trace, _ = decoded([*side_by_side, STORES, launch(1)], entries)
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {(t, g) for t, m, g in granules(trace, 0, 4096) if m == WRITE} == {
        (t, g) for t in (0, 1) for g in (0x104, 0x105)
    }


def test_what_earlier_launches_left_behind_the_parameters_is_no_tensor_of_this_one(decoded):
    entries = map_entries(1, LOADED, 0x100000, loaded=True) + map_entries(1, STORED, 0x104000, loaded=False)
    entries += map_entries(1, PAGE + 1024, 0x108000, loaded=False)
    entries += [e for row in (0, 16, 32, 48) for e in load_entries(1, LOADED, 0, row)]
    trace, _ = decoded([ALLOC, STORES, launch(1)], entries)
    assert {g for _, m, g in granules(trace, 0, 4096) if m == WRITE} == {0x104, 0x105}


def test_a_map_that_was_not_copied_makes_reads_a_superset(decoded):
    trace, _ = decoded([ALLOC, {**KERNEL, "tensor_load": 1}, launch(1)], load_entries(1, LOADED, 0, 0))
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert trace.accesses.length.tolist() == [0x10000] * 2


@pytest.mark.parametrize("mode", [1, 4])
def test_a_load_in_a_mode_that_is_not_decoded_stands_for_its_tensor(decoded, mode):
    entries = [*map_entries(1, LOADED, 0x100000, loaded=True), entry(raw.TENSOR, LOADED, 0, 1, (0, 0, 0, 0))]
    entries.append(entry(raw.TENSOR_TAIL, LOADED, 0, 1, (0, 0, 2 | mode << raw.LOAD_MODE_SHIFT, 0)))
    trace, _ = decoded([ALLOC, {**KERNEL, "tensor_load": 1}, launch(1)], entries)
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert trace.accesses.length.tolist() == [64 * 128]


def test_graph_nodes_have_the_names_under_which_they_were_captured(decoded):
    names = [{"e": "mark", "op": f"aten::{n}", "module": "m"} for n in ("mm", "add")]
    captured = {"e": "captured", "kernel": 0}
    graph = {"e": "graph", "graph": 0, "exec": "0x1", "stream": "0x1"}
    nodes = [launch(5, graph=0, generation=g, ordinal=g) for g in (0, 1)]
    events = [ALLOC, names[0], captured, names[1], captured, graph, KERNEL, *nodes]
    trace, _ = decoded(events, [ran(5, b, 1, 2, generation=g) for g in (0, 1) for b in (0, 1)])
    assert trace.launches.op.tolist() == ["aten::mm", "aten::add"]


def test_a_products_inputs_that_are_among_the_parameters_again_are_not_its_results(decoded):
    """As cuBLAS has them: the maps of both inputs twice, and the result's."""
    seen = writes.maps(np.array(ENTRIES_OF_A_PRODUCT, raw.ENTRY))
    assert [hex(m.base) for m in writes._outputs(seen.others, seen)] == ["0x108000"]
    only = writes.Maps(seen.loaded, [m for m in seen.others if m.base != 0x108000])
    assert writes._outputs(only.others, only) == only.others, "in place: what it loads may be what it stores"


ENTRIES_OF_A_PRODUCT = [
    *map_entries(1, PAGE + 576, 0x100000, loaded=True),
    *map_entries(1, PAGE + 640, 0x104000, loaded=True),
    *map_entries(1, PAGE + 704, 0x108000, loaded=False),
    *map_entries(1, PAGE + 768, 0x100000, loaded=False),
    *map_entries(1, PAGE + 832, 0x104000, loaded=False),
]


def filled(number, low, high):
    """Parameters that hold nothing, in parts of 16 bytes."""
    return [entry(raw.MAP, address, 0, number, (0, 0, 0, 0)) for address in range(low, high, 16)]


def test_parameters_that_were_copied_by_their_bounds_are_complete_wherever_they_lie():
    begin = PAGE + 2304 + 528
    entries = filled(1, begin, begin + 48) + filled(1, begin + 112, begin + 4000)
    entries += map_entries(1, begin + 48, 0x104000, loaded=False)
    seen = writes.maps(np.array(entries, raw.ENTRY), (528, 4000), graph=True)
    assert seen.complete
    assert [m.base for m in seen.others] == [0x104000]


def test_a_nodes_page_may_lack_some_of_its_parameters_and_hold_others_of_its_neighbours():
    entries = filled(1, PAGE, PAGE + 4096)
    entries += map_entries(1, PAGE + 2048, 0x100000, loaded=True) + map_entries(1, PAGE + 2112, 0x104000, loaded=False)
    entries += map_entries(1, PAGE + 3584, 0x108000, loaded=False)
    seen = writes.maps(np.array(entries, raw.ENTRY), (528, 1024), graph=True)
    assert not seen.complete
    assert [m.base for m in seen.others] == [0x104000]


TENSOR = {"e": "tensor", "address": 0x100000, "bytes": 500, "kind": "activation"}


def test_bytes_beside_a_tensor_that_nobody_named_are_not_lost_where_a_run_begins_inside_it(decoded):
    """As in a graph's own memory: the run goes on past the tensor; only its last granule may be overhang."""
    trace, _ = decoded([ALLOC, TENSOR, KERNEL, launch(1)], [access(1, 0, WINDOW, write=0xFFFFF)])
    assert granules(trace, 0, 32) == {(0, WRITE, 0x8000 + g) for g in range(20)}
    assert trace.launches.coverage.tolist() == ["exact"]


def test_granules_that_only_hang_over_the_end_of_a_tensor_make_no_buffer(decoded):
    trace, _ = decoded([ALLOC, TENSOR, KERNEL, launch(1)], [access(1, 0, WINDOW, write=0xFFFF)])
    assert trace.buffers.bytes.tolist() == [500]


def test_what_stands_for_all_memory_covers_what_lies_between_tensors_too(decoded):
    """The records of its blocks are missing; a later launch reads memory that had no name until then."""
    events = [ALLOC, TENSOR, KERNEL, launch(1), launch(2)]
    entries = [ran(2, b, 5, 9) for b in (0, 1)] + [access(2, 0, WINDOW + 8, read=1)]
    trace, _ = decoded(events, entries, whole=False)
    assert trace.launches.coverage.tolist() == ["conservative", "exact"]
    [read] = {g for _, _, g in granules(trace, 1, 32)}
    assert (0, WRITE, read) in granules(trace, 0, 32)
    assert len(granules(trace, 0, 32)) == 2 * 2 * 0x10000 // 32


COPY = {
    "e": "copy", "from": 0x100000, "to": 0x108000, "bytes": 64, "width": 64, "height": 1, "depth": 1,
    "from_pitch": 64, "to_pitch": 64, "direction": 4, "stream": "0x1", "graph": -1, "t": 1,
}  # fmt: skip
PINNED = {"e": "alloc", "address": 0x700000, "bytes": 0x1000, "host": 1}


@pytest.mark.parametrize("direction", [1, 2, 3])
def test_copies_touch_pinned_memory_which_kernels_reach(decoded, direction):
    sides = {"from": 0x700000 if direction != 3 else 0x100000, "to": 0x100000 if direction == 2 else 0x700400}
    trace, _ = decoded([ALLOC, PINNED, {**COPY, **sides, "direction": direction}], [])
    assert granules(trace, 0, 64) == {(0, READ, sides["from"] // 64), (0, WRITE, sides["to"] // 64)}


def test_a_copy_of_unknown_direction_touches_both_sides(decoded):
    trace, _ = decoded([ALLOC, {**COPY, "direction": 0}], [])
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert granules(trace, 0, 64) == {(0, READ, 0x100000 // 64), (0, WRITE, 0x108000 // 64)}


def owned(tmp_path, owners, launches):
    owners.astype("<i4").tofile(tmp_path / "owners-0.bin")
    found = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    found |= {"regions": [[112, 0x2000]], "refused": ""}
    return [found, *({"e": "owned", "launch": n, "id": 0, "bases": [0x104000]} for n in launches)]


def test_owners_that_were_not_written_whole_are_none(decoded, tmp_path):
    events = [ALLOC, STORES, launch(1), *owned(tmp_path, np.zeros(0x1000 // 16), [1])]
    trace, _ = decoded(events, map_entries(1, STORED, 0x104000, loaded=False))
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {g for _, _, g in granules(trace, 0, 16)} >= set(range(0x104000 // 16, 0x104000 // 16 + 128))


def test_a_launch_that_loads_otherwise_than_the_replayed_one_takes_none_of_its_writers(decoded, tmp_path):
    """Equal parameters, but sizes that lie in memory, as in a grouped product."""
    events = [ALLOC, STORES, launch(1), launch(2), launch(3), *owned(tmp_path, np.zeros(0x2000 // 16), [1, 2, 3])]
    entries = []
    for number, rows in ((1, (0, 16)), (2, (0, 16)), (3, (16, 0))):
        entries += map_entries(number, LOADED, 0x100000, loaded=True) + map_entries(
            number, STORED, 0x104000, loaded=False
        )
        entries += [e for block, row in enumerate(rows) for e in load_entries(number, LOADED, block, row)]
    trace, _ = decoded(events, entries)
    assert trace.launches.coverage.tolist() == ["exact", "exact", "conservative"]
    assert "loads other pieces" in trace.launches.note[2]


@pytest.mark.parametrize(
    ("what", "modes"), [("texture", {READ}), ("surface", {READ, WRITE}), ("launches", {READ, WRITE})]
)
def test_what_textures_surfaces_and_launches_from_kernels_reach_is_not_seen_and_stands_for_all_memory(
    decoded, what, modes
):
    trace, _ = decoded([ALLOC, TENSOR, {**KERNEL, what: 1}, launch(1)], [access(1, 0, WINDOW, read=1)])
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {m for _, m, _ in granules(trace, 0, 32)} == modes
    assert {g for t, m, g in granules(trace, 0, 32) if t == 1 and m == READ} == set(
        range(0x8000, 0x8000 + 0x10000 // 32)
    )


def test_loads_through_a_map_that_is_unknown_read_all_tensors_and_what_lies_between(decoded):
    trace, _ = decoded([ALLOC, TENSOR, {**KERNEL, "tensor_load": 1}, launch(1)], load_entries(1, LOADED, 0, 0))
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {g for _, _, g in granules(trace, 0, 32)} == set(range(0x8000, 0x8000 + 0x10000 // 32))


def test_nodes_that_write_nobody_knows_where_are_launches_that_do(decoded):
    opaque = {"e": "opaque", "node": 13, "graph": 0, "stream": "graph"}
    trace, _ = decoded([ALLOC, TENSOR, {"e": "graph", "graph": 0}, opaque], [])
    assert trace.launches[["kernel", "coverage"]].to_numpy().tolist() == [["conditional node", "conservative"]]
    assert len(granules(trace, 0, 32)) == 2 * 0x10000 // 32


@pytest.mark.parametrize(("graph", "launches"), [(0, ["memcpy in a graph"]), (-1, [])])
def test_a_copy_without_a_size_is_one_of_anything_in_a_graph_and_nothing_elsewhere(decoded, graph, launches):
    nothing = {
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
    trace, _ = decoded([ALLOC, TENSOR, {"e": "graph", "graph": 0}, {**nothing, "graph": graph, "t": 0}], [])
    assert trace.launches.kernel.tolist() == launches
    assert set(trace.launches.coverage) <= {"conservative"}


def test_a_large_launch_that_stands_for_all_memory_is_one_tile_where_there_are_many_buffers(decoded, monkeypatch):
    """Each tile by each buffer would be more rows than fit into memory."""
    monkeypatch.setattr(decode, "MOST_ROWS", 100)
    tensors = [{**TENSOR, "address": 0x100000 + 1024 * n, "bytes": 1024} for n in range(64)]
    trace, _ = decoded([ALLOC, *tensors, KERNEL, launch(1, grid=(5, 2, 1))], [ran(1, 0, 5, 9)], whole=False)
    row = trace.launches.iloc[0]
    assert (row.coverage, row.tiles, row.grid_x, row.grid_y) == ("conservative", 1, 5, 2)
    assert row.note.endswith("its 10 tiles stand as one")
    assert granules(trace, 0, 32) == {(0, mode, 0x8000 + g) for mode in (READ, WRITE) for g in range(0x10000 // 32)}


def test_launches_that_were_not_wanted_are_counted(decoded):
    """By --kernel, --exclude or --skip: dependencies through them are not there."""
    trace, _ = decoded([ALLOC, KERNEL, launch(1, ordinal=2), launch(2, ordinal=5)], [])
    assert any(note.startswith("4 launches among these were left out") for note in trace.manifest["notes"])


def test_code_that_could_not_be_patched_makes_its_launches_conservative_unless_this_gpu_has_no_such_code(decoded):
    refused = {**launch(2), "unpatched": ["tileprof_access"]}
    newer = {**launch(3), "unpatched": ["tileprof_newer"]}
    with_newer = pytest.MonkeyPatch()
    with_newer.setitem(coverage.SINCE, "tileprof_newer", 100)
    trace, _ = decoded([ALLOC, KERNEL, launch(1), refused, newer], [access(n, 0, WINDOW, write=1) for n in (1, 2, 3)])
    with_newer.undo()
    assert trace.launches.coverage.tolist() == ["exact", "conservative", "exact"]
    assert "refused to patch some of its code (tileprof_access)" in trace.launches.note[1]


def test_accesses_beyond_48_bits_are_counted_and_their_launch_is_not_exact(decoded):
    spilt = {"e": "spill", "launch": 1, "accesses": 0, "beyond": 7}
    trace, _ = decoded([ALLOC, KERNEL, launch(1), spilt], [access(1, 0, WINDOW, write=1)])
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert "7 accesses at addresses of more than 48 bits" in trace.launches.note[0]
    assert "arena" not in trace.launches.note[0]


def test_constant_variables_are_read_whole_by_every_tile_where_something_wrote_them(decoded):
    kernel = {**KERNEL, "constants": 2}
    told = {"e": "constants", "kernel": 0, "ranges": [[0xC00040, 64], [0xF000000, 64]]}
    copy = {
        "e": "copy", "from": 0, "to": 0xC00040, "bytes": 64, "width": 64, "height": 1, "depth": 1, "from_pitch": 64,
        "to_pitch": 64, "direction": 2, "stream": "0x1", "graph": -1, "t": 0,
    }  # fmt: skip
    trace, _ = decoded([ALLOC, kernel, told, copy, launch(1)], [access(1, 0, WINDOW, write=1)])
    assert trace.launches.coverage.tolist() == ["exact", "exact"]
    reads = {(t, g) for t, m, g in granules(trace, 1, 32) if m == READ}
    assert reads == {(t, 0xC00040 // 32 + g) for t in (0, 1) for g in (0, 1)}
    trace, _ = decoded([ALLOC, kernel, launch(1)], [access(1, 0, WINDOW, write=1)])
    assert trace.launches.coverage.tolist() == ["conservative"], "where they lie was never told"


def test_words_of_streams_are_launches_of_one_tile(decoded):
    word = {"e": "value", "to": 0x100040, "bytes": 4, "stream": "0x1", "graph": -1, "t": 0}
    trace, _ = decoded([ALLOC, KERNEL, {**word, "writes": 1}, {**word, "writes": 0}], [])
    assert trace.launches.kernel.tolist() == ["stream write value", "stream wait value"]
    assert [(m, n) for m, n in zip(trace.accesses["mode"], trace.accesses.length, strict=True)] == [
        ("write", 4), ("read", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("tensors", [[], [{"e": "tensor", "address": 0x100000, "bytes": 0x4000, "kind": "activation"}]])
def test_what_is_copied_through_an_array_depends_on_what_went_into_it(decoded, tensors):
    copy = {"e": "array_copy", "width": 64, "height": 4, "depth": 1, "stream": "0x1", "graph": -1, "t": 0}
    linear = {"bytes": 3 * 256 + 64, "pitch": 256, "array": 0, "device": 1}
    array = {"bytes": 0, "pitch": 0, "array": 1, "device": 1}
    sides = {"from_": linear, "to_": array}
    into = {**copy, "from": 0x100000, "to": 0x5500A000} | {k + n: v for k, s in sides.items() for n, v in s.items()}
    sides = {"from_": array, "to_": linear}
    out = {**copy, "from": 0x5500A000, "to": 0x102000} | {k + n: v for k, s in sides.items() for n, v in s.items()}
    trace, _ = decoded([ALLOC, *tensors, KERNEL, into, out, {**out, "depth": 2}], [])
    assert set(trace.launches.kernel) == {"memcpy of an array"}
    pairs = build_graph(trace).pairs
    assert (0, 1) in set(zip(pairs.producer, pairs.consumer, strict=True))
    assert {g for _, m, g in granules(trace, 1, 64) if m == WRITE} == {0x102000 // 64 + 4 * row for row in range(4)}
    assert trace.launches.coverage.tolist() == ["exact", "exact", "conservative"]
