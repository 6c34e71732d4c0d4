"""Raw records to traces: loads and stores through tensor maps, and what replays tell about the writers."""

import numpy as np
import pytest

from tests.unit.record.cuda.cuda_records import ALLOC, KERNEL, TENSOR, access, block_record, entry, launch
from tileprof.record.cuda import machine_code
from tileprof.record.cuda.installation import locate
from tileprof.record.cuda.installation.selftest import granules
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.tensor_maps import unreported_stores
from tileprof.trace import WRITE

PAGE = 0x7FF000000000
LOADED, STORED = PAGE + 576, PAGE + 640


def map_entries(number, slot, base, *, loaded, rows=64):
    """Return a map of ``rows`` rows of 128 bytes (32 floats), with boxes of 16 rows."""
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


def test_loads_through_maps_are_boxes_of_their_tiles(trace_of):
    entries = [*map_entries(1, LOADED, 0x100000, loaded=True)]
    entries += [e for b, row in ((0, 0), (1, 56), (1, 56)) for e in load_entries(1, LOADED, b, row)]
    trace, _ = trace_of([ALLOC, {**KERNEL, "tensor_load": 1}, launch(1)], entries)
    assert sorted(zip(trace.accesses.tile, trace.accesses.length, trace.accesses.count_0, strict=True)) == [
        (0, 128, 16),
        (1, 128, 8),
    ], "contiguous rows, clipped at the last"


def test_replays_name_the_writer_of_every_granule(trace_of, tmp_path):
    owners = np.full(0x2000 // 16, 0, "<i4")
    owners[256:] = 1
    owners[0] = raw.NO_OWNER
    owners.tofile(tmp_path / "owners-0.bin")
    actual = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    actual |= {"regions": [[112, 0x2000]], "refused": ""}
    events = [ALLOC, STORES, launch(1), actual, {"e": "owned", "launch": 1, "id": 0, "bases": [0x104000]}]
    entries = map_entries(1, STORED, 0x104000, loaded=False)
    # A node of a graph cannot be replayed: it takes the result of an equal launch.
    events.append(launch(2, graph=0))
    entries += [block_record(2, b, 1, 2) for b in (0, 1)] + map_entries(2, STORED, 0x108000, loaded=False)
    trace, _ = trace_of(events, entries)
    assert trace.launches.coverage.tolist() == ["exact", "inferred"]
    for number, base in ((0, 0x104000), (1, 0x108000)):
        observed_value = granules(trace, number, 16)
        assert {g for tile, _, g in observed_value if tile == 1} == set(
            range((base + 0x1000) // 16, (base + 0x2000) // 16)
        )
        assert {g for tile, _, g in observed_value if tile == 0} == set(range(base // 16 + 1, (base + 0x1000) // 16))


@pytest.mark.parametrize("left_over", [0xBF80_0000_3F80_0000, 0x7000_0000_0000], ids=["no address", "nobody's memory"])
def test_left_overs_of_other_maps_are_no_outputs(trace_of, tmp_path, left_over):
    np.array([0] * 256 + [1] * 256, "<i4").tofile(tmp_path / "owners-0.bin")
    actual = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    actual |= {"regions": [[112, 0x2000]], "refused": ""}
    events = [ALLOC, STORES, launch(1), actual, {"e": "owned", "launch": 1, "id": 0, "bases": [0x104000]}]
    entries = map_entries(1, STORED, 0x104000, loaded=False)
    entries += [block_record(2, b, 1, 2) for b in (0, 1)] + map_entries(2, STORED, 0x108000, loaded=False)
    entries += map_entries(2, STORED + 64, left_over, loaded=False)
    trace, _ = trace_of([*events, launch(2, graph=0)], entries)
    assert trace.launches.coverage.tolist() == ["exact", "inferred"]
    assert {g for *_, g in granules(trace, 1, 4096)} == {0x108, 0x109}


def test_a_graph_takes_what_a_launch_outside_the_recording_taught(trace_of, tmp_path):
    np.array([0] * 128 + [1] * 128, "<i4").tofile(tmp_path / "owners-0.bin")
    actual = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    actual |= {"regions": [[112, 0x1000]], "refused": ""}
    learnt = [{**launch(1), "e": "learn"}, actual, {"e": "owned", "launch": 1, "id": 0, "bases": [0x104000]}]
    entries = map_entries(1, STORED, 0x104000, loaded=False) + map_entries(2, STORED, 0x108000, loaded=False)
    entries += [block_record(2, b, 1, 2) for b in (0, 1)]
    trace, _ = trace_of([ALLOC, STORES, *learnt, launch(2, graph=0)], entries)
    assert trace.launches.coverage.tolist() == ["inferred"]
    assert {(t, g - 0x1080) for t, _, g in granules(trace, 0, 256)} == {
        (t, t * 8 + g) for t in (0, 1) for g in range(8)
    }


def lesson(tmp_path, number, launch_id, owners, regions):
    """Return a launch outside of the recorded range, and what its replays told."""
    np.array(owners, "<i4").tofile(tmp_path / f"owners-{number}.bin")
    actual = {
        "e": "owners",
        "id": number,
        "launch": launch_id,
        "file": f"owners-{number}.bin",
        "granule": 16,
        "clusters": 2,
    }
    actual |= {"regions": [[112, size] for _, size in regions], "refused": ""}
    bases = [base for base, _ in regions]
    return [
        {**launch(launch_id), "e": "learn"},
        actual,
        {"e": "owned", "launch": launch_id, "id": number, "bases": bases},
    ]


def loading(number, rows):
    """Return entries of a launch whose blocks load these rows and store through a map at 0x104000 + 0x4000 * number."""
    entries = map_entries(number, LOADED, 0x100000, loaded=True)
    entries += map_entries(number, STORED, 0x104000 + 0x4000 * number, loaded=False)
    entries += [e for b, row in rows for e in load_entries(number, LOADED, b, row)]
    return entries + [block_record(number, b, 1, 2) for b in (0, 1)]


def test_a_node_takes_the_stores_of_the_replayed_launch_with_equal_loads(trace_of, tmp_path):
    """Products of different depth: kernel, grid and the shape of the result are the same."""
    shallow, deep = [(0, 0), (1, 0)], [(0, 0), (0, 16), (1, 0), (1, 16)]
    events = lesson(tmp_path, 0, 1, [0] * 128 + [1] * 128, [(0x108000, 0x1000)])
    events += lesson(tmp_path, 1, 2, [1] * 128 + [0] * 128, [(0x10C000, 0x1000)])
    entries = loading(1, shallow) + loading(2, deep) + loading(3, deep) + loading(4, [(0, 32), (1, 0)])
    graph = [{**launch(n), "graph": 0} for n in (3, 4)]
    trace, _ = trace_of([{**ALLOC, "bytes": 0x20000}, STORES, *events, *graph], entries)
    assert trace.launches.coverage.tolist() == ["inferred", "conservative"]
    assert {(t, g - 0x1100) for t, m, g in granules(trace, 0, 256) if m == WRITE} == {
        (t, (1 - t) * 8 + g) for t in (0, 1) for g in range(8)
    }


def test_two_results_of_the_same_shape_are_not_told_apart_in_a_graph(trace_of, tmp_path):
    events = lesson(tmp_path, 0, 1, [0] * 256 + [1] * 256, [(0x108000, 0x1000), (0x109000, 0x1000)])
    rows = [(0, 0), (0, 32), (1, 0), (1, 32)]
    entries = loading(1, rows) + map_entries(1, STORED + 64, 0x109000, loaded=False)
    entries += loading(3, rows) + map_entries(3, STORED + 64, 0x111000, loaded=False)
    trace, _ = trace_of([{**ALLOC, "bytes": 0x20000}, STORES, *events, {**launch(3), "graph": 0}], entries)
    assert trace.launches.coverage.tolist() == ["conservative"]


def test_bytes_that_several_clusters_wrote_belong_to_all_of_them(trace_of, tmp_path):
    np.array([0, raw.SEVERAL_OWNERS, 1, 1], "<i4").tofile(tmp_path / "owners-0.bin")
    actual = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    actual |= {"regions": [[112, 64]], "refused": ""}
    events = [ALLOC, STORES, launch(1), actual, {"e": "owned", "launch": 1, "id": 0, "bases": [0x100000]}]
    trace, _ = trace_of(events, [])
    assert {(t, g - 0x10000) for t, _, g in granules(trace, 0, 16)} == {(0, 0), (0, 1), (1, 1), (1, 2), (1, 3)}
    assert trace.launches.coverage.tolist() == ["conservative"]


def test_a_tile_that_alone_loads_a_place_of_an_equal_input_is_taken_for_its_writer(trace_of):
    entries = map_entries(1, LOADED, 0x100000, loaded=True) + map_entries(1, STORED, 0x104000, loaded=False)
    entries += [e for row in (0, 16, 32, 48) for e in load_entries(1, LOADED, row // 32, row)]
    trace, _ = trace_of([ALLOC, STORES, launch(1)], entries)
    assert trace.launches.coverage.tolist() == ["inferred"]
    unreported_stores = {(t, g) for t, m, g in granules(trace, 0, 4096) if m == WRITE}
    assert unreported_stores == {(0, 0x104), (1, 0x105)}


@pytest.mark.parametrize("side_by_side", [[ALLOC], [{**ALLOC, "bytes": 0x5000}, {**ALLOC, "address": 0x105000}]])
def test_otherwise_every_tile_stands_as_writer_of_the_whole_tensor(trace_of, side_by_side):
    """A tensor may lie in several adjacent mappings, such as those of expandable segments."""
    entries = map_entries(1, LOADED, 0x100000, loaded=True) + map_entries(1, STORED, 0x104000, loaded=False)
    entries += [e for b in (0, 1) for row in (0, 16, 32, 48) for e in load_entries(1, LOADED, b, row)]
    trace, _ = trace_of([*side_by_side, STORES, launch(1)], entries)
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {(t, g) for t, m, g in granules(trace, 0, 4096) if m == WRITE} == {
        (t, g) for t in (0, 1) for g in (0x104, 0x105)
    }


def test_what_earlier_launches_left_behind_the_parameters_is_no_tensor_of_this_one(trace_of):
    entries = map_entries(1, LOADED, 0x100000, loaded=True) + map_entries(1, STORED, 0x104000, loaded=False)
    entries += map_entries(1, PAGE + 1024, 0x108000, loaded=False)
    entries += [e for row in (0, 16, 32, 48) for e in load_entries(1, LOADED, 0, row)]
    trace, _ = trace_of([ALLOC, STORES, launch(1)], entries)
    assert {g for _, m, g in granules(trace, 0, 4096) if m == WRITE} == {0x104, 0x105}


def test_a_map_that_was_not_copied_makes_reads_a_superset(trace_of):
    trace, _ = trace_of([ALLOC, {**KERNEL, "tensor_load": 1}, launch(1)], load_entries(1, LOADED, 0, 0))
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert trace.accesses.length.tolist() == [0x10000] * 2


@pytest.mark.parametrize("mode", [1, 4])
def test_a_load_in_a_mode_that_is_not_decoded_stands_for_its_tensor(trace_of, mode):
    entries = [*map_entries(1, LOADED, 0x100000, loaded=True), entry(raw.TENSOR, LOADED, 0, 1, (0, 0, 0, 0))]
    entries.append(entry(raw.TENSOR_TAIL, LOADED, 0, 1, (0, 0, 2 | mode << raw.LOAD_MODE_SHIFT, 0)))
    trace, _ = trace_of([ALLOC, {**KERNEL, "tensor_load": 1}, launch(1)], entries)
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert trace.accesses.length.tolist() == [64 * 128]


def test_a_products_inputs_that_are_among_the_parameters_again_are_not_its_results(trace_of):
    """The maps are as cuBLAS has them: those of both inputs twice, and the result's."""
    actual = unreported_stores.maps(np.array(ENTRIES_OF_A_PRODUCT, raw.ENTRY))
    assert [hex(m.base) for m in unreported_stores._outputs(actual.others, actual)] == ["0x108000"]
    only = unreported_stores.Maps(actual.loaded, [m for m in actual.others if m.base != 0x108000])
    assert unreported_stores._outputs(only.others, only) == only.others, "in place: what it loads may be what it stores"


ENTRIES_OF_A_PRODUCT = [
    *map_entries(1, PAGE + 576, 0x100000, loaded=True),
    *map_entries(1, PAGE + 640, 0x104000, loaded=True),
    *map_entries(1, PAGE + 704, 0x108000, loaded=False),
    *map_entries(1, PAGE + 768, 0x100000, loaded=False),
    *map_entries(1, PAGE + 832, 0x104000, loaded=False),
]


def fill_entry(number, low, high):
    """Return unused parameters, in parts of 16 bytes."""
    return [entry(raw.MAP, address, 0, number, (0, 0, 0, 0)) for address in range(low, high, 16)]


def test_parameters_that_were_copied_by_their_bounds_are_complete_wherever_they_lie():
    begin = PAGE + 2304 + 528
    entries = fill_entry(1, begin, begin + 48) + fill_entry(1, begin + 112, begin + 4000)
    entries += map_entries(1, begin + 48, 0x104000, loaded=False)
    actual = unreported_stores.maps(np.array(entries, raw.ENTRY), (528, 4000), graph=True)
    assert actual.complete
    assert [m.base for m in actual.others] == [0x104000]


def test_a_nodes_page_may_lack_some_of_its_parameters_and_hold_others_of_its_neighbours():
    entries = fill_entry(1, PAGE, PAGE + 4096)
    entries += map_entries(1, PAGE + 2048, 0x100000, loaded=True) + map_entries(1, PAGE + 2112, 0x104000, loaded=False)
    entries += map_entries(1, PAGE + 3584, 0x108000, loaded=False)
    actual = unreported_stores.maps(np.array(entries, raw.ENTRY), (528, 1024), graph=True)
    assert not actual.complete
    assert [m.base for m in actual.others] == [0x104000]


def owned_trace(tmp_path, owners, launches):
    owners.astype("<i4").tofile(tmp_path / "owners-0.bin")
    actual = {"e": "owners", "id": 0, "launch": 1, "file": "owners-0.bin", "granule": 16, "clusters": 2}
    actual |= {"regions": [[112, 0x2000]], "refused": ""}
    return [actual, *({"e": "owned", "launch": n, "id": 0, "bases": [0x104000]} for n in launches)]


def test_owners_that_were_not_written_whole_are_none(trace_of, tmp_path):
    events = [ALLOC, STORES, launch(1), *owned_trace(tmp_path, np.zeros(0x1000 // 16), [1])]
    trace, _ = trace_of(events, map_entries(1, STORED, 0x104000, loaded=False))
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {g for _, _, g in granules(trace, 0, 16)} >= set(range(0x104000 // 16, 0x104000 // 16 + 128))


def test_a_launch_that_loads_otherwise_than_the_replayed_one_takes_none_of_its_writers(trace_of, tmp_path):
    """Equal parameters, but sizes that lie in memory, as in a grouped product."""
    events = [ALLOC, STORES, launch(1), launch(2), launch(3), *owned_trace(tmp_path, np.zeros(0x2000 // 16), [1, 2, 3])]
    entries = []
    for number, rows in ((1, (0, 16)), (2, (0, 16)), (3, (16, 0))):
        entries += map_entries(number, LOADED, 0x100000, loaded=True) + map_entries(
            number, STORED, 0x104000, loaded=False
        )
        entries += [e for block, row in enumerate(rows) for e in load_entries(number, LOADED, block, row)]
    trace, _ = trace_of(events, entries)
    assert trace.launches.coverage.tolist() == ["exact", "exact", "conservative"]
    assert "loads other pieces" in trace.launches.note[2]


def test_loads_through_a_map_that_is_unknown_read_all_tensors_and_what_lies_between(trace_of):
    trace, _ = trace_of([ALLOC, TENSOR, {**KERNEL, "tensor_load": 1}, launch(1)], load_entries(1, LOADED, 0, 0))
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert {g for _, _, g in granules(trace, 0, 32)} == set(range(0x8000, 0x8000 + 0x10000 // 32))


BANK = PAGE + 0x40000  # of the launch's constants; parameters begin at 0x210
CODE = [
    "LDC R0, c[0x0][0x310]",
    "ULDC.64 UR6, c[0x0][0x198]",
    "UIADD3 UR8, UP0, UR6, 0x70, URZ",
    "UIADD3.X UR9, URZ, UR7, URZ, UP0, !UPT",
    "ISETP.EQ.AND P0, PT, R0, RZ, PT",
    "@P0 EXIT",
    "UTMASTG.2D [UR4], [UR8]",
    "EXIT",
]


def with_code(tmp_path, monkeypatch, lines):
    """Provide machine code that the recorder left, and a disassembler that reads it so."""
    (tmp_path / "code-0.bin").write_bytes(bytes(16 * len(lines)))
    text = "\n".join(f"/*{16 * n:04x}*/ {line} ;" for n, line in enumerate(lines))
    (tmp_path / "text").write_text(text)
    tool = tmp_path / "nvdisasm"
    tool.write_text(f"#!/bin/sh\ncat '{tmp_path / 'text'}'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(locate, "nvdisasm", lambda: tool)


def parameters(number, mode, base):
    """Return a launch's parameters, copied up to their bounds: a map of 64 rows at 0x280 of the bank, a word at
    0x310.
    """
    words = np.zeros((0x320 - 0x210) // 4, "<u4")
    map_words = [e[3] for e in map_entries(number, 0, base, loaded=False)]
    words[0x70 // 4 : 0x70 // 4 + 16] = np.array(map_words).ravel()
    words[0x100 // 4] = mode
    parts = words.reshape(-1, 4).tolist()
    return [entry(raw.MAP, BANK + 0x210 + 16 * i, 0, number, tuple(p)) for i, p in enumerate(parts)]


BY_CODE = {**STORES, "parameters": [0x210, 0x110]}


def stored_launch(number, mode, *, base=0x104000):
    """Return records of a launch of CODE whose blocks also store directly, so that it could not be repeated."""
    entries = parameters(number, mode, base) + map_entries(number, LOADED, 0x100000, loaded=True)
    entries += [e for b in (0, 1) for e in load_entries(number, LOADED, b, 16 * b)]
    return entries + [access(number, b, 0x10C000 // 1024, write=1 << b) for b in (0, 1)]


@pytest.mark.parametrize("mode", [0, 1])
def test_a_launch_whose_code_reaches_no_store_through_maps_writes_what_was_reported(
    trace_of, tmp_path, monkeypatch, mode
):
    with_code(tmp_path, monkeypatch, CODE)
    trace, _ = trace_of([ALLOC, BY_CODE, launch(1)], stored_launch(1, mode))
    reported_granules = {(b, WRITE, 0x10C000 // 32 + b) for b in (0, 1)}
    write_granules = {g for g in granules(trace, 0, 32) if g[1] == WRITE}
    if mode == 0:
        assert trace.launches.coverage.tolist() == ["exact"]
        assert "reaches no store" in trace.launches.note[0]
        assert write_granules == reported_granules
    else:
        assert trace.launches.coverage.tolist() == ["conservative"]
        assert "stores through a tensor map" in trace.launches.note[0]
        assert write_granules == reported_granules | {
            (t, WRITE, 0x104000 // 32 + g) for t in (0, 1) for g in range(256)
        }


@pytest.mark.parametrize(
    "lines",
    [
        [*CODE[:5], "CALL.REL.NOINC 0x0", *CODE[6:]],  # it may go anywhere
        [*CODE[:2], "LDC.64 R2, c[0x0][0x218]", "R2UR UR8, R2", *CODE[4:]],  # an unknown map
        [*CODE[:2], "UIADD3 UR8, UP0, UR6, 0x1c0, URZ", *CODE[3:]],  # behind the parameters
        CODE[:-1],  # incomplete code: it continues behind its end
    ],
)
def test_code_that_does_not_say_where_it_stores_leaves_a_launch_as_it_was(trace_of, tmp_path, monkeypatch, lines):
    with_code(tmp_path, monkeypatch, lines)
    trace, _ = trace_of([ALLOC, BY_CODE, launch(1)], stored_launch(1, 1))
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert "machine code" not in trace.launches.note[0]


def test_code_for_another_architecture_is_not_read(trace_of, tmp_path, monkeypatch):
    with_code(tmp_path, monkeypatch, CODE)
    monkeypatch.setattr(machine_code, "ARCHITECTURE", 100)
    trace, _ = trace_of([ALLOC, BY_CODE, launch(1)], stored_launch(1, 0))
    assert trace.launches.coverage.tolist() == ["conservative"]


def test_without_a_disassembler_or_all_parameters_code_says_nothing(trace_of, tmp_path, monkeypatch):
    with_code(tmp_path, monkeypatch, CODE)
    lacking = [e for e in stored_launch(1, 0) if e[0] & raw.LOW_MASK != BANK + 0x240]
    trace, _ = trace_of([ALLOC, BY_CODE, launch(1)], lacking)
    assert trace.launches.coverage.tolist() == ["conservative"]
    monkeypatch.setattr(locate, "nvdisasm", lambda: None)
    trace, _ = trace_of([ALLOC, BY_CODE, launch(1)], stored_launch(1, 0))
    assert trace.launches.coverage.tolist() == ["conservative"]
