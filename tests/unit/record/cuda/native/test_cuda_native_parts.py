"""Decisions of the native side: what is a tensor map, what identifies a fact, which lane records what."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tileprof.errors import UserError
from tileprof.record.cuda.installation import locate, recorder_build
from tileprof.record.cuda.tensor_maps import tensormap

try:
    COMPILER = locate.host_compiler()
except UserError:
    COMPILER = None
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")

ADDRESSES = 1 << 48


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Ask the compiled functions: pass a question's name and its bytes, get numbers."""
    program = tmp_path_factory.mktemp("native") / "parts"
    source = Path(__file__).with_name("native_parts.cpp")
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover"]
    subprocess.run([COMPILER, *flags, f"-I{recorder_build.SOURCES}", source, "-o", program], check=True)

    def query(name, data):
        result = subprocess.run([program, name], input=data, capture_output=True, check=True)
        return np.array([line.split() for line in result.stdout.splitlines()]).astype(np.uint64)

    return query


def words(rng, number):
    """Return words that are maps, nearly maps, parameters of other kinds, and noise."""
    out = rng.integers(0, 1 << 32, (number, 16), dtype=np.uint32)
    small = rng.random((number, 16)) < rng.random((number, 1))
    out[small] = rng.integers(0, 70, small.sum(), dtype=np.uint32)
    out[:, 2] = rng.integers(0, 13, number) << 7 | rng.integers(0, 6, number) << 4
    out[::2, 0] &= 0xFFFFFFF0
    out[::3, 1] = rng.integers(0, 1 << 16, len(out[::3]))
    repeats = out[::7]  # outside of a matrix, whose rows may overlap
    repeats[:, 1] &= 0xFFFF
    repeats[:, 5:8] = 0
    repeats[:, 8] = rng.integers(0, 70, len(repeats))
    repeats[:, 3:5] = rng.integers(0, 1 << 12, (len(repeats), 2))
    repeats[::3, 4] = 0
    repeats[1::3, 5] = rng.integers(0, 1 << 20, len(repeats[1::3]))
    return out


def test_both_sides_take_the_same_words_for_tensor_maps(ask):
    rng = np.random.default_rng(1)
    all_words = words(rng, 20_000)
    loaded = rng.random(len(all_words)) < 0.5
    data = b"".join(bytes([flag]) + row.tobytes() for flag, row in zip(loaded.tolist(), all_words, strict=True))
    answers = ask("maps", data)
    for (is_accepted, base, size), row, flag in zip(answers.tolist(), all_words, loaded.tolist(), strict=True):
        map_ = tensormap.decode(row, loaded=flag)
        fits = map_ is not None and map_.base + map_.bytes <= ADDRESSES
        assert is_accepted == fits, (row, flag)
        assert not fits or (base, size) == (map_.base, map_.bytes)
    assert 1_000 < answers[:, 0].sum() < 19_000
    assert 100 < answers[~loaded][(np.arange(len(all_words)) % 7 == 0)[~loaded], 0].sum() < 1_000


def test_what_lies_beyond_the_address_space_is_no_tensor(ask):
    """Words of a convolution's parameters on an H200, whose end wrapped around to an address that was mapped."""
    base = 9223372036854775808
    row = np.array([0, base >> 32, 7 << 7 | 1 << 4, 64, 0, 0, 0, 0, 63, 63, 0, 0, 0, 0, 0, 0], np.uint32)
    assert ask("maps", b"\0" + row.tobytes()).tolist() == [[0, 0, 0]]
    assert tensormap.decode(row) is None


def test_no_two_keys_have_the_same_fact(ask):
    rng = np.random.default_rng(2)
    number = 200_000
    launch, block = rng.integers(1, 5, number), rng.integers(0, 40, number)
    in_graph = launch % 2  # a launch id belongs to a graph or not
    generation = np.where(in_graph, rng.choice([0, 1, 2, 4095], number), 0)
    window = rng.integers(0, 64, number) << rng.choice([0, 14, 20, 30, 36], number)
    window = np.where(rng.random(number) < 0.5, window + rng.integers(0, 4, number), window)
    kind = np.where(in_graph, 0, rng.integers(0, 3, number))  # graphs have no filters
    keys = np.column_stack([launch, block, generation, window, in_graph, kind]).astype("<u8")
    (mixed_bits, fact_count) = ask("facts", keys.tobytes())[0]
    assert mixed_bits == 0
    assert number * 0.8 < fact_count < number, "windows of single bytes in graphs go beyond a fact"


@pytest.mark.parametrize(("sms", "threads", "capacity"), [(1, 1, 1000), (1, 40, 4000), (3, 40, 4000), (4, 200, 300)])
def test_no_entry_is_handed_out_twice_however_threads_interleave(ask, sms, threads, capacity):
    rng = np.random.default_rng(5)
    steps = 6_000
    runs = rng.choice([1, 1, 2, 30], steps)  # some continue for a while, others stand still meanwhile
    order = np.repeat(rng.integers(0, threads, steps), runs)
    query = np.concatenate([[sms, threads, capacity], order]).astype("<u8")
    pieces, wrong, entry_count, full = ask("pieces", query.tobytes())[0]
    assert wrong == 0
    assert pieces > capacity * 0.5
    assert (full > 0) == (entry_count > capacity)
    assert pieces <= min(entry_count, capacity)


def test_only_a_threads_own_note_of_room_and_a_maps_own_fact_are_used(ask):
    """Facts of windows, other threads, blocks, launches and maps share these places."""
    rng = np.random.default_rng(4)
    number = 50_000
    launch, block = rng.integers(1, 4, number), rng.integers(0, 3, number)
    thread, map_ = rng.integers(0, 1024, number), (0x7F00 << 32) + 64 * rng.integers(0, 3, number)
    of = rng.integers(0, number, number)  # whose note is at this place: mostly another thread's
    of = np.where(rng.random(number) < 0.2, np.arange(number), of)
    window_above, entries_left = rng.integers(0, 1 << 23, number), rng.integers(0, 31, number)
    kind = rng.integers(0, 3, number)
    room, map_fact = (1 << 31) + (thread[of] << 8) + entries_left, np.full(number, 1 << 30)
    fact = np.column_stack(
        [
            np.where(kind == 2, map_[of] & 0xFFFFFFFF, rng.integers(0, 1 << 32, number)),
            np.where(kind == 2, map_[of] >> 32, block[of]),
            launch[of],
            np.choose(kind, [window_above, room, map_fact]),
        ]
    )
    query = np.column_stack([fact, launch, block, thread, map_]).astype("<u8")
    answers = ask("others", query.tobytes())
    same_thread = (thread[of] == thread) & (block[of] == block) & (launch[of] == launch)
    assert np.array_equal(answers[:, 0], np.where((kind == 1) & same_thread, entries_left, 0))
    assert np.array_equal(answers[:, 1] == 1, (kind == 2) & (map_[of] == map_) & (launch[of] == launch))
    assert (answers[:, 2:] == [30, 1, 0]).all()


def test_what_lanes_record_are_the_granules_that_they_touch(ask):
    rng = np.random.default_rng(3)
    accesses = []
    for _ in range(20_000):
        size = int(rng.choice([1, 2, 4, 8, 16]))
        base = int(rng.integers(1, 1 << 40)) * 16
        lane = np.arange(32)
        places = [
            lane,  # side by side
            lane * int(rng.integers(0, 5)),
            lane // int(rng.choice([2, 4, 8])) * int(rng.integers(1, 300)) + lane % 8,
            lane ^ int(rng.integers(0, 32)),
            rng.integers(0, int(rng.choice([2, 40, 1000])), 32),
            -lane,
        ][rng.integers(0, 6)]
        lanes = int(rng.integers(1, 1 << 32))
        lanes = [0xFFFFFFFF, lanes, lanes & 0xFFF0, (1 << int(rng.integers(1, 33))) - 1][rng.integers(0, 4)] or 1
        shift = int(rng.choice([0, 2, 5, 9]))
        accesses.append([lanes, size, shift, *(base + places * size).tolist()])
    answers = ask("shares", np.array(accesses, np.uint64).tobytes())
    assert not answers[:, 0].any()
    full = np.array([a[0] for a in accesses]) == 0xFFFFFFFF
    assert (answers[full, 1] == 1).mean() > 0.2, "lanes side by side record once"


def test_lanes_at_one_place_leave_it_to_the_first_and_rows_to_their_first_ones(ask):
    same, rows = [0x7F0000001000] * 32, [0x7F0000001000 + 4096 * (i // 8) + 4 * (i % 8) for i in range(32)]
    wide_rows = [0x7F0000001000 + 4096 * (i // 8) + 16 * (i % 8) for i in range(32)]
    packed = np.array(
        [[0xFFFFFFFF, 4, 5, *same], [0xFFFFFFFF, 4, 5, *rows], [0xFFFFFFFF, 16, 5, *wide_rows]], np.uint64
    )
    assert ask("shares", packed.tobytes()).tolist() == [[0, 1], [0, 4], [0, 4]]
