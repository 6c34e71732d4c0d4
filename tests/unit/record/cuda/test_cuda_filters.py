"""Bloom filters that patches fill: device code on the CPU, the host code that sizes and copies them, the reader."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.runtime.planted import changed
from tests.unit.record.cuda.cuda_records import ALLOC, H200, KERNEL, WINDOW, access, launch, process
from tests.unit.record.cuda.native.fake_libraries import events, needs_tools
from tests.unit.record.cuda.optional_tools import path_or_none
from tileprof.analysis.simulate.filters.inserted import inserted_report
from tileprof.arrays.filter_bits import filter_bits
from tileprof.cli.arguments import cuda_options
from tileprof.cli.verbs import record
from tileprof.errors import TraceError, UserError
from tileprof.record.cuda.decode import Decoder
from tileprof.record.cuda.filters import Inserted
from tileprof.record.cuda.installation import locate, recorder_build
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.tiles import Geometry, Times
from tileprof.record.cuda.settings import Settings
from tileprof.record.filter_settings import FilterSettings
from tileprof.trace import TraceWriter, filters, load

EMULATED = Path(__file__).parents[3] / "support" / "emulated" / "patched"
READ, WRITE, ATOMIC = range(3)
SHIFT = 5
"""log2 of the bytes of a granule of entries."""
BLOCKS = 3
needs_compiler = pytest.mark.skipif(path_or_none(locate.host_compiler) is None, reason="no C++ compiler here")


# ---- the patches


def compiled(folder: Path, *, with_faults: bool = False) -> Path:
    """Build the patches' accesses for the CPU, perhaps with all `FAULTS`, of which a run may activate one."""
    native, shared, more = recorder_build.SOURCES, recorder_build.SHARED, []
    if with_faults:
        native, shared, more = folder / "cuda" / "native", folder, ["-include", str(folder / "planted.h")]
        shutil.copytree(recorder_build.SOURCES.parents[1] / "source" / "native", folder / "source" / "native")
        shutil.copytree(recorder_build.SOURCES, native)
        (folder / "planted.h").write_text(PLANTED)
        for number, (file, old, new) in enumerate((*FAULTS_OF_ENTRIES, *FAULTS)):
            text = (folder / file).read_text()
            (folder / file).write_text(changed(text, old, new.replace("planted", f"planted({number})")))
    program = folder / "patched"
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-Wno-unused-function", "-fno-strict-aliasing", *more]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover"]
    includes = [f"-I{place}" for place in (EMULATED, native, shared)]
    source = Path(__file__).with_name("patched_accesses.cpp")
    subprocess.run([str(locate.host_compiler()), *flags, *includes, source, "-o", program], check=True)
    return program


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("patched"))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("faulty"), with_faults=True)


PLANTED = """
#include <stdlib.h>
inline bool planted(int number) {
    static const int active = getenv("PATCHES_FAULT") ? atoi(getenv("PATCHES_FAULT")) : -1;
    return active == number;
}
"""
"""Whether a fault of `FAULTS_OF_ENTRIES` and `FAULTS`, by its place among both, is active in a run."""


def warps(rng: np.random.Generator, number: int) -> list[list[int]]:
    """Draw accesses of warps, bulk copies, and few loads through tensor maps, of blocks with and without filters."""
    rows = []
    for _ in range(number):
        kind = int(rng.choice([0, 0, 0, 0, 1]))
        size = int(rng.choice([1, 2, 4, 8, 16])) if kind == 0 else int(rng.choice([16, 48, 4096]))
        # Places are touched again, from other bytes on; those 2^20 granules or windows apart share a fact's place.
        base, lane = int(rng.integers(1, 9)) * 4096 + size * int(rng.integers(0, 40)), np.arange(32)
        base += int(rng.integers(0, 4)) << 29
        step = int(rng.choice([0, 1, 1, 2, 33]))
        places = [lane, lane * step, lane // 8 * 100 + lane % 8, rng.integers(0, 500, 32)][rng.integers(0, 4)]
        lanes = [0xFFFFFFFF, int(rng.integers(1, 1 << 32)), 1 << int(rng.integers(0, 32))][rng.integers(0, 3)]
        block, mode = int(rng.integers(0, BLOCKS + 2)), int(rng.integers(0, 3))
        rows.append([kind, block, mode, size, lanes, *(base + places * size).tolist()])
    return rows


def run(
    program: Path, how: FilterSettings, rows: list[list[int]], *,
    only=0, capacity=400, in_graph=0, hashes=-1, keeps=0, fault=-1,
):  # fmt: skip
    """Return the entries, and words ``[2, blocks, words]``; the memory behind them must stay clear."""
    request = [SHIFT, how.granule.bit_length() - 1, how.bits.bit_length() - 1, how.hashes if hashes < 0 else hashes]
    request += [only, BLOCKS, capacity]
    data = np.array([*request, in_graph, keeps], "<u8").tobytes() + np.array(rows, "<u8").tobytes()
    variables = os.environ | {"PATCHES_FAULT": str(fault)}
    out = subprocess.run([program], input=data, capture_output=True, check=True, env=variables).stdout
    number = int(np.frombuffer(out[:8], "<u8")[0])
    words = np.frombuffer(out[8 + number * raw.ENTRY.itemsize :], "<u4")
    assert not words[-64:].any(), "memory behind the filters was written"
    return np.frombuffer(out[8:], raw.ENTRY, number), words[:-64].reshape(2, BLOCKS, -1)


def recorded(entries: np.ndarray) -> set[tuple[int, int, int]]:
    """Return block, mode and granule of everything that the entries contain."""
    out = set()
    for entry in entries:
        low, block, payload = int(entry["key"]) & (1 << 48) - 1, int(entry["block"]), entry["payload"].tolist()
        if int(entry["key"]) >> 60 == raw.ACCESS:
            out |= {(block, m, low * 32 + i) for m in range(3) for i in range(32) if payload[m] >> i & 1}
        else:
            granules = range(low >> SHIFT, (low + payload[0] - 1 >> SHIFT) + 1)
            out |= {(block, payload[1], granule) for granule in granules}
    return out


def touched_granules(rows: list[list[int]]) -> set[tuple[int, int, int]]:
    """Return the same by brute force: every byte of every lane."""
    out = set()
    for kind, block, mode, size, lanes, *address in rows:
        if kind == 5:
            continue
        starts = [address[i] for i in range(32) if lanes >> i & 1] if kind == 0 else address[:1]
        granules = {at >> SHIFT for start in starts for at in range(start, start + size)}
        out |= {(block, mode, granule) for granule in granules}
    return out


def touched_bits(how: FilterSettings, rows: list[list[int]]) -> np.ndarray:
    """Return the set bits by brute force: every byte of every lane."""
    bits = np.zeros((2, BLOCKS, how.bits), bool)
    for kind, block, mode, size, lanes, *address in rows:
        if block >= BLOCKS:
            continue
        at = [address[i] for i in range(32) if lanes >> i & 1] if kind == 0 else [address[0]]
        granules = np.unique((np.array(at)[:, None] + np.arange(size)).ravel() // how.granule)
        bits[int(mode != READ), block, filter_bits(granules, how.bits, how.hashes).ravel()] = True
        if kind == 2 or granules[-1] - granules[0] == len(granules) - 1 >= how.bits:
            bits[int(mode != READ), block] = True
    return np.packbits(bits, axis=2, bitorder="little").view("<u4")


HOW = [FilterSettings(4096, 2, 512), FilterSettings(1 << 16, 3, 32), FilterSettings(32, 1, 64)]


@needs_compiler
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("options", [{}, {"only": 1}, {"capacity": 70}, {"in_graph": 1}])
def test_patches_set_the_bits_of_every_byte_that_a_block_touches_and_no_others(patched, how, options):
    rows = warps(np.random.default_rng(7), 60)
    entries, words = run(patched, how, rows, **options)
    assert np.array_equal(words, touched_bits(how, rows))
    assert words.any()
    assert (len(entries) == 0) == ("only" in options), "a pass that only fills filters leaves no entries"


@needs_compiler
@pytest.mark.parametrize("hashes", [0, 2])
@pytest.mark.parametrize("in_graph", [0, 1])
def test_patches_record_the_granules_that_a_block_touches_and_no_others(patched, hashes, in_graph):
    rows = warps(np.random.default_rng(8), 300)
    entries, _ = run(patched, HOW[0], rows, capacity=100_000, in_graph=in_graph, hashes=hashes)
    assert recorded(entries) == touched_granules(rows)
    keys = entries[["key", "block"]][entries["key"] >> 60 == raw.ACCESS]
    assert len(keys) < 1.3 * len(np.unique(keys)), "most windows of a block have one entry"


def with_facts(rows: list[list[int]]) -> list[list[int]]:
    """Repeat the last launch, after launches that left facts in the places of its windows."""
    rng, out = np.random.default_rng(9), []
    for kind, block, mode, size, lanes, *address in rows:
        if kind == 0 and rng.integers(0, 2):
            out.append([5, block, 0, 0, int(rng.integers(1, 1 << 32)), *address])
        out.append([kind, block, mode, size, lanes, *address])
    return out


@needs_compiler
def test_a_fact_that_says_nothing_of_a_window_loses_none_of_its_granules(patched):
    rows = with_facts(warps(np.random.default_rng(8), 300))
    entries, _ = run(patched, HOW[0], rows, capacity=100_000, hashes=0)
    assert recorded(entries) == touched_granules(rows)


FAULTS_OF_ENTRIES = [
    ("cuda/native/patches/accesses.cuh", "fact.launch != launch ||", "(!planted && fact.launch != launch) ||"),
    (
        "cuda/native/patches/accesses.cuh",
        " || fact.above != fact_above(window, 0)) return",
        " || (!planted && fact.above != fact_above(window, 0))) return",
    ),
    (
        "cuda/native/patches/accesses.cuh",
        "end >> fields.granule_shift) & 31);",
        "(planted ? address : end) >> fields.granule_shift) & 31);",
    ),
    (
        "cuda/native/patches/accesses.cuh",
        "bits_of(first & 31, last >> 5",
        "bits_of(planted ? 0 : first & 31, last >> 5",
    ),
    ("cuda/native/patches/share.h", "bytes * (behind + 1)", "bytes * (behind + (planted ? 2 : 1))"),
]


@needs_compiler
@pytest.mark.parametrize("fault", range(-1, len(FAULTS_OF_ENTRIES)))
def test_a_granule_that_patches_lose_or_invent_is_seen(faulty, fault):
    """And without a fault, the same program records what is touched."""
    rows = with_facts(warps(np.random.default_rng(8), 1500))
    entries, _ = run(faulty, HOW[0], rows, capacity=100_000, hashes=0, fault=fault)
    assert (recorded(entries) == touched_granules(rows)) == (fault < 0)


ALL = 0xFFFFFFFF
CODE, CHILD = 0x7F0000004000, 0x7F0000008000


@needs_compiler
@pytest.mark.parametrize("keeps", [0, 1])
def test_threads_that_exit_are_counted_where_grids_share_a_launch_and_otherwise_end_their_block(patched, keeps):
    """The launched block has no entry of its own, and another grid's block has its number."""
    rows = [[3, 1, 0, 0, ALL, *[CHILD] * 32], [4, 1, 0, 0, 0xFFFFFFFE, *[CODE + 48] * 32]]
    rows += [[4, 1, 0, 0, 1, *[CODE + 96] * 32], [4, 2, 0, 0, ALL, *[CODE + 96] * 32]]
    entries, _ = run(patched, HOW[0], rows, keeps=keeps)
    exits = entries[raw.kinds(entries) == raw.EXIT]
    places = ((raw.low(exits) >> raw.SM_BITS) << 4).tolist()
    exit_records = [
        (int(e["block"]), place & 0xFFF, int(e["payload"][0])) for e, place in zip(exits, places, strict=True)
    ]
    assert exit_records == ([(1, 48, 31), (1, 96, 1), (2, 96, 32)] if keeps else [(2, 96, 32)])
    [entered] = entries[raw.kinds(entries) == raw.BLOCK]
    assert entered["payload"].tolist() == [5, 0, 0 if keeps else 5, 0]


@needs_compiler
def test_a_load_through_a_tensor_map_may_read_anything_and_so_does_a_copy_of_more_than_a_filter_holds(patched):
    how = HOW[0]
    _, words = run(patched, how, [[2, 1, READ, 0, 0xFFFFFFFF, *[64] * 32]])
    assert (words[0, 1] == 0xFFFFFFFF).all()
    assert words.sum() == words[0, 1].sum()
    long = [1, 2, WRITE, 512 * 4200, 0xFFFFFFFF, *[1 << 20] * 32]
    _, words = run(patched, how, [long])
    assert (words[1, 2] == 0xFFFFFFFF).all()


FAULTS = [
    (
        "cuda/native/patches/accesses.cuh",
        "insert_into_filter(h, address, bytes, mode);\n    if (h->filters_only) return;\n    touch",
        "if (!planted) insert_into_filter(h, address, bytes, mode);\n    if (h->filters_only) return;\n    touch",
    ),
    (
        "cuda/native/patches/filters.cuh",
        "(address + bytes - 1) >> h->",
        "(planted ? address : address + bytes - 1) >> h->",
    ),
    ("cuda/native/patches/filters.cuh", "mode == kRead ? 0 : 1", "(planted ? mode != kWrite : mode == kRead) ? 0 : 1"),
    ("cuda/native/patches/filters.cuh", "bool one = first == last && ", "bool one = (planted || first == last) && "),
    ("cuda/native/records/facts.h", "a.entry == b.entry && a.block", "(planted || a.entry == b.entry) && a.block"),
    ("source/native/filter.h", "hash < hashes", "hash + (planted ? 1 : 0) < hashes"),
]


@needs_compiler
@pytest.mark.parametrize("fault", [-1, *range(len(FAULTS))])
def test_a_bit_that_patches_do_not_set_is_seen(faulty, fault):
    """And without a fault, the same program sets all bits."""
    rows = warps(np.random.default_rng(7), 1500)
    _, words = run(faulty, HOW[0], rows, fault=fault if fault < 0 else len(FAULTS_OF_ENTRIES) + fault)
    assert (touched_bits(HOW[0], rows) & ~words).any() == (fault >= 0)


# ---- the host side


@needs_tools
def test_the_library_gives_each_launch_filters_and_copies_them_before_they_are_used_again(runner):
    """A fake kernel's code is never read, so its blocks may touch anything."""
    recorded, _ = runner(
        "inject(); module(); launch(); launch(blocks=3); library.tileprof_drain(); launch(blocks=1)",
        TILEPROF_FILTERS="2048,2,512",
        TILEPROF_FILTER_BYTES="4096",
    )
    filter_events = events(recorded, "filters")
    assert [(e["file"], e["first"], e["blocks"]) for e in filter_events] == [
        ("filters-0.bin", 0, 2), ("filters-0.bin", 256, 3), ("filters-1.bin", 0, 1),
    ]  # fmt: skip
    assert [e["launch"] for e in filter_events] == [e["launch"] for e in events(recorded, "launch")]
    for event in filter_events:
        words = np.fromfile(recorded.folder / event["file"], "<u4")[event["first"] :][: event["blocks"] * 128]
        assert (words == 0xFFFFFFFF).all()


@needs_tools
def test_a_launch_that_finds_no_room_for_filters_has_none_and_the_next_does(runner):
    recorded, _ = runner(
        "inject(); module(); launch(blocks=9); launch(blocks=2); launch(blocks=4)",
        TILEPROF_FILTERS="2048,2,512",
        TILEPROF_FILTER_BYTES="4096",
    )
    launches, filter_events = events(recorded, "launch"), events(recorded, "filters")
    assert {e["launch"] for e in filter_events} == {launches[1]["launch"], launches[2]["launch"]}
    inserted = Inserted(FilterSettings(), recorded)
    for number, event in enumerate(launches):
        inserted.add(number, event, Geometry.of(event), None, [], one_tile=False, coverage="exact")
    assert [len(f.words) for f in inserted.launches] == [9, 2, 4]
    assert all((f.words == 0xFFFFFFFF).all() for f in inserted.launches)


@needs_tools
@pytest.mark.parametrize("text", ["100,2,512", "2048,0,512", "2048,2,16", "2048,2", "x"])
def test_the_library_refuses_filters_that_it_cannot_make(runner, text):
    with pytest.raises(UserError):
        runner("inject()", 1, "expected bits, hashes and a granule", TILEPROF_FILTERS=text)


# ---- settings


def test_filters_add_a_pass_and_are_set_for_the_two_passes_that_fill_them():
    parser = argparse.ArgumentParser()
    record.prepare(parser)
    settings = cuda_options.settings(parser.parse_args(["--filters", "8192,3,128"]))
    assert settings.runs == ["accesses", "filters", "blocks", "time"]
    variables = {pass_: settings.environment(pass_, skip=0, count=None) for pass_ in settings.runs}
    assert {p for p, v in variables.items() if v.get("TILEPROF_FILTERS") == "8192,3,128"} == {"accesses", "filters"}
    only = cuda_options.settings(parser.parse_args(["--filters", "8192", "--passes", "accesses"]))
    assert only.runs == ["accesses"]
    assert Settings().runs == ["accesses", "blocks", "time"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"passes": ("blocks",)}, {"granule": 1024}, {"filters": FilterSettings(2048, 2, 96)},
        {"filters": FilterSettings(2048, 300, 512)}, {"filters": None, "passes": ("accesses", "filters")},
    ],
)  # fmt: skip
def test_settings_refuse_filters_that_patches_cannot_fill(wrong):
    with pytest.raises(UserError):
        Settings(**{"filters": FilterSettings(), **wrong})


@pytest.mark.parametrize(
    ("text", "how"), [("512", (512, 2, 512)), ("512,3", (512, 3, 512)), ("512,3,64", (512, 3, 64))]
)
def test_sizes_are_read_from_the_command_line(text, how):
    assert FilterSettings.parse(text) == FilterSettings(*how)


@pytest.mark.parametrize("text", ["", "8k", "512,2,64,1", "-512", "100"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UserError):
        FilterSettings.parse(text)


# ---- the reader

SIZES = FilterSettings(1024, 2, 512)


def filters_of(blocks: list[tuple[list[int], list[int]]]) -> np.ndarray:
    """Return words ``[2, blocks, words]`` of the granules of 512 bytes that each block reads and writes."""
    words = np.zeros((2, len(blocks), SIZES.bits // 32), np.uint32)
    for block, sides in enumerate(blocks):
        for side, granules in enumerate(sides):
            bits = filter_bits(np.array(granules, np.int64) + 0x100000 // 512, SIZES.bits, SIZES.hashes).ravel()
            np.bitwise_or.at(words[side, block], bits // 32, np.uint32(1) << (bits % 32).astype(np.uint32))
    return words


PROGRAM = [ALLOC, KERNEL, launch(1), launch(2), launch(3)]
"""Blocks write a KiB each; then block 0 reads both and writes a third; then both read the third."""
ENTRIES = [
    access(1, 0, WINDOW, write=0xFFFFFFFF), access(1, 1, WINDOW + 1, write=0xFFFFFFFF),
    access(2, 0, WINDOW, read=0xFFFFFFFF), access(2, 0, WINDOW + 1, read=0xFFFFFFFF),
    access(2, 0, WINDOW + 2, write=1), access(2, 1, WINDOW + 8, write=1),
    access(3, 0, WINDOW + 2, read=1), access(3, 1, WINDOW + 2, read=1),
]  # fmt: skip
FILTERS = [
    filters_of([([], [0, 1]), ([], [2, 3])]), filters_of([([0, 1, 2, 3], [4]), ([], [16])]),
    filters_of([([4], []), ([4], [])]),
]  # fmt: skip


def recorded_trace(folder: Path, words: list[np.ndarray], program=PROGRAM, entries=ENTRIES):
    data = np.concatenate([w.ravel() for w in words])
    data.astype("<u4").tofile(folder / "filters-0.bin")
    firsts = np.cumsum([0, *(w.size for w in words)])
    filter_events = [
        {"e": "filters", "launch": n + 1, "file": "filters-0.bin", "first": int(first), "blocks": w.shape[1]}
        for n, (first, w) in enumerate(zip(firsts, words, strict=False))
    ]
    lives = Times(np.array([10, 20]), np.array([110, 220]), np.zeros(2, np.int64), np.ones(2, np.int64))
    raw_process = process(folder, [*program, *filter_events], entries)
    inserted = Inserted(SIZES, raw_process, {0: lives})
    name = folder / "t.tileprof"
    with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(raw_process, writer, H200, inserted=inserted).run()
        filters.write(writer.partial_path, inserted.stored())
    return load(name)


def test_a_trace_holds_its_filters_and_they_answer_as_the_exact_graph_does(tmp_path):
    trace = recorded_trace(tmp_path, FILTERS)
    stored = filters.read(trace.path)
    assert (stored.bits, stored.hashes, stored.granule) == (1024, 2, 512)
    for words, of_launch in zip(FILTERS, stored.launches, strict=True):
        assert np.array_equal(of_launch.words, words.transpose(1, 0, 2))
    assert stored.launches[0].filling_ns.tolist() == [100, 200]
    assert stored.launches[1].filling_ns.tolist() == [-1, -1]
    report = inserted_report(trace)
    assert (report.answers.dependent, report.answers.missed, report.answers.lacking) == (4, 0, 0)
    assert (report.answers.unequal, report.answers.false, report.answers.full) == (0, 0, 0)
    assert report.to_json()["answers"]["pairs"] == 12
    # Both blocks of the second launch ask about granules 0 to 3 and 4 to 16, those of the third about 4.
    assert report.answers.declared == 4 + 2


@pytest.mark.parametrize("which", [0, -1])
def test_a_bit_that_is_not_set_is_a_missed_dependency(tmp_path, which):
    """Clear one of the two bits of the granule that block 0 of the second launch writes and all blocks of the third
    read.
    """
    words = [w.copy() for w in FILTERS]
    written = words[1][1, 0]
    bit = np.flatnonzero(np.unpackbits(written.view(np.uint8), bitorder="little"))[which]
    written[bit // 32] ^= np.uint32(1) << np.uint32(bit % 32)
    answers = inserted_report(recorded_trace(tmp_path, words)).answers
    assert answers.missed == 2
    assert answers.lacking == 1


def test_launches_whose_records_fall_short_have_filters_of_all_bits(tmp_path):
    """One launch had no room; one counts as touching all memory, since a block of it was not seen."""
    unseen = [e for e in ENTRIES if e[2] != 2]
    program = [ALLOC, KERNEL, launch(1), launch(2, grid=(2, 1, 1)), launch(3), {"e": "unfinished", "launch": 2}]
    trace = recorded_trace(tmp_path, FILTERS[:2], program, unseen)
    assert trace.launches.coverage.tolist() == ["exact", "conservative", "exact"]
    stored = filters.read(trace.path)
    assert [bool((f.words == 0xFFFFFFFF).all()) for f in stored.launches] == [False, True, True]
    assert inserted_report(trace).answers.missed == 0


def test_variables_in_constant_memory_are_read_by_every_block(tmp_path):
    event = launch(1)
    inserted = Inserted(SIZES, process(tmp_path, [event], []))
    inserted._events = {1: {"file": "filters-0.bin", "first": 0, "blocks": 2}}
    filters_of([([], []), ([], [])]).tofile(tmp_path / "filters-0.bin")
    constants = [[0x100000 + 500, 24], [0x100000 + 512 * 9, 0]]
    inserted.add(0, event, Geometry.of(event), None, constants, one_tile=False, coverage="exact")
    assert np.array_equal(inserted.launches[0].words[:, 0], filters_of([([0, 1, 9], []), ([0, 1, 9], [])])[0])


def test_a_cluster_touches_what_its_blocks_touch(tmp_path):
    event = launch(1, grid=(4, 1, 1), cluster=(2, 1, 1))
    inserted = Inserted(SIZES, process(tmp_path, [event], []))
    inserted._events = {1: {"file": "filters-0.bin", "first": 0, "blocks": 4}}
    filters_of([([0], []), ([1], [5]), ([2], []), ([3], [6])]).tofile(tmp_path / "filters-0.bin")
    inserted.add(0, event, Geometry.of(event), None, [], one_tile=False, coverage="exact")
    expected = filters_of([([0, 1], [5]), ([2, 3], [6])])
    assert np.array_equal(inserted.launches[0].words, expected.transpose(1, 0, 2))
    inserted.add(1, event, Geometry.of(event), None, [], one_tile=True, coverage="exact")
    assert np.array_equal(inserted.launches[1].words[0], filters_of([([0, 1, 2, 3], [5, 6])])[:, 0])


def test_damaged_filters_are_named(tmp_path):
    trace = recorded_trace(tmp_path, FILTERS)
    (trace.path / filters.FILE).write_bytes(b"PAR1 no more")
    with pytest.raises(TraceError, match=r"filters\.parquet cannot be read"):
        inserted_report(trace)
    (trace.path / filters.FILE).unlink()
    assert inserted_report(trace) is None
