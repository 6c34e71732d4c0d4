"""Tables from recorded launches: which words decide, what is united, and how a trace and a log are joined."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from tileprof.devices import get
from tileprof.runtime.acs.instances import instances
from tileprof.runtime.acs.launch_log import Logged, read_log, read_stack
from tileprof.runtime.acs.table import Instance, tabulate, united
from tileprof.runtime.acs.varying import counterparts, repeats, varying_words
from tileprof.trace import READ, WRITE, Boxes, Footprint, Launch, TraceWriter, load

SHAPE = (4, 1, 1, 128, 1, 1, 0)


def instance(pointer: int, size: int, scalar: int, high: int) -> Instance:
    """Return a kernel that writes ``high`` bytes through its only pointer."""
    return Instance("k", SHAPE, struct.pack("<QII", pointer, size, scalar), (0,), (), ((0, 0, high),))


def test_words_that_change_nothing_are_not_compared():
    table = tabulate([instance(4096, 8, 1, 32), instance(8192, 8, 2, 32), instance(4096, 16, 3, 64)], "p")
    entries = table.entries["k"]
    assert sorted(entry.writes for entry in entries) == [((0, 0, 32),), ((0, 0, 64),)]
    assert {entry.mask for entry in entries} == {bytes(8) + b"\xff" * 4 + bytes(4)}


def test_footprints_that_no_argument_tells_apart_are_united():
    table = tabulate([instance(4096, 8, 1, 32), instance(4096, 8, 2, 32), instance(4096, 8, 3, 96)], "p")
    (entry,) = table.entries["k"]
    assert entry.writes == ((0, 0, 96),)
    assert entry.count == 3


def test_a_launch_that_was_recorded_once_only_covers_its_own_arguments():
    (entry,) = tabulate([instance(4096, 8, 1, 32)], "p").entries["k"]
    assert entry.mask == bytes(8) + b"\xff" * 8


def test_many_ranges_become_the_one_around_them():
    assert united([(0, 0, 4), (0, 4, 8), (1, 5, 6)]) == ((0, 0, 8), (1, 5, 6))
    assert united([(0, 16 * i, 16 * i + 4) for i in range(20)]) == ((0, 0, 16 * 19 + 4),)


def test_a_fine_table_keeps_ranges_and_closes_the_narrowest_gaps():
    rows = [(0, 16 * i, 16 * i + 4) for i in range(20)]
    assert united(rows, fine=True) == tuple(rows)
    many = [(0, 16 * i, 16 * i + 4) for i in range(100)] + [(0, 10_000, 10_004)]
    ranges = united(many, fine=True)
    assert len(ranges) == 64
    assert ranges[-1] == (0, 10_000, 10_004)
    assert all(any(low <= first and last <= high for _, low, high in ranges) for _, first, last in many)


def a_trace(folder: Path) -> Path:
    """Return two launches that read x and write the halves of y, then one that touches memory of no parameter."""
    writer = TraceWriter(folder / "t.tileprof", recorder="test", command=["t"], device=get("H200"))
    boxes = Boxes.of(tile=0, operand=[0, 1], mode=[READ, WRITE], offset=0, length=[64, 32])
    footprint = writer.add_footprint(Footprint(np.zeros((1, 3), np.int32), boxes))
    x = writer.add_buffer(base=4096, bytes=128, kind="input", name="x", before_start=True)
    y = writer.add_buffer(base=8192, bytes=64, kind="activation", name="y")
    result = {"grid": (4, 1, 1), "block": (128, 1, 1), "duration_ns": 10, "timing": "modelled", "coverage": "exact"}
    for offset in (0, 32, 0):
        writer.add_launch(Launch(footprint, ((x, 0), (y, offset)), kernel="k", **result))
    return writer.close()


def an_event(t: int) -> dict[str, object]:
    return {"e": "launch", "t": t, "grid": [4, 1, 1], "block": [128, 1, 1], "graph": -1}


def test_a_trace_and_a_log_are_joined_by_time_and_relative_to_pointers(tmp_path: Path):
    calls = [
        Logged(100, 120, "k", SHAPE, whole=True, parameters=struct.pack("<QQQ", 8192, 4096, 7)),
        # a tool's memory, which no event reports
        Logged(130, 131, "other", (9, *SHAPE[1:]), whole=True, parameters=b""),
        Logged(200, 220, "k", SHAPE, whole=True, parameters=struct.pack("<QQQ", 8192 + 32, 4096, 7)),
        Logged(300, 320, "k", SHAPE, whole=True, parameters=struct.pack("<QQQ", 5, 4096, 7)),
    ]
    join = instances(load(a_trace(tmp_path)), [an_event(110), an_event(210), an_event(310)], calls)
    first, second = join.instances
    assert first.slots == second.slots == (0, 8)
    assert first.reads == second.reads == ((1, 0, 128),)  # a read counts as its whole buffer
    assert first.writes == second.writes == ((0, 0, 32),)
    assert sum(join.without.values()) == 1
    (entry,) = tabulate(join.instances, "p").entries["k"]
    assert entry.count == 2


def test_a_fine_table_knows_the_bytes_that_a_launch_read(tmp_path: Path):
    call = Logged(100, 120, "k", SHAPE, whole=True, parameters=struct.pack("<QQ", 8192, 4096))
    trace = load(a_trace(tmp_path))
    (result,) = instances(trace, [an_event(110)], [call], fine=True).instances
    assert result.reads == ((1, 0, 64),)
    assert result.writes == ((0, 0, 32),)
    by_data = replace(call, symbol="gather_kernel")  # its next launch may read elsewhere
    (result,) = instances(trace, [an_event(110)], [by_data], fine=True).instances
    assert result.reads == ((1, 0, 128),)


def test_a_fine_table_distinguishes_the_columns_of_a_matrix(tmp_path: Path):
    writer = TraceWriter(tmp_path / "t.tileprof", recorder="test", command=["t"], device=get("H200"))
    boxes = Boxes.of(tile=0, operand=0, mode=WRITE, offset=16, length=16, count_0=4, stride_0=64)
    y = writer.add_buffer(base=8192, bytes=256, kind="activation", name="y")
    result = {"grid": (4, 1, 1), "block": (128, 1, 1), "duration_ns": 10, "timing": "modelled", "coverage": "exact"}
    footprint = writer.add_footprint(Footprint(np.zeros((1, 3), np.int32), boxes))
    writer.add_launch(Launch(footprint, ((y, 0),), kernel="k", **result))
    trace = load(writer.close())
    call = Logged(100, 120, "k", SHAPE, whole=True, parameters=struct.pack("<Q", 8192))
    (fine,) = instances(trace, [an_event(110)], [call], fine=True).instances
    (coarse,) = instances(trace, [an_event(110)], [call]).instances
    assert fine.writes == tuple((0, 64 * row + 16, 64 * row + 32) for row in range(4))
    assert coarse.writes == ((0, 16, 64 * 3 + 32),)


def test_replays_of_graphs_are_told_apart_from_calls_that_were_missed(tmp_path: Path):
    events = [an_event(110), an_event(210), {**an_event(310), "graph": 1}]
    call = Logged(100, 120, "k", SHAPE, whole=True, parameters=struct.pack("<QQ", 8192, 4096))
    join = instances(load(a_trace(tmp_path)), events, [call])
    assert sorted(join.without.values()) == [1, 1]
    assert sum("a graph replays it" in why for why in join.without) == 1


def test_pointers_into_one_buffer_keep_their_distance(tmp_path: Path):
    call = Logged(100, 120, "k", SHAPE, whole=True, parameters=struct.pack("<QQQQ", 8192, 4096, 4096 + 64, 1))
    (result,) = instances(load(a_trace(tmp_path)), [an_event(110)], [call]).instances
    assert result.apart == ((1, 2, 64),)


def test_an_old_pointer_in_padding_is_known_by_other_runs_and_what_was_touched_counts_from_both(tmp_path: Path):
    parameters = struct.pack("<QQQQ", 8192, 4096, 4096 + 64, 1)
    call = Logged(100, 120, "k", SHAPE, whole=True, parameters=parameters)
    other = struct.pack("<QQQQ", 16384, 12288, 0, 1)
    trace = load(a_trace(tmp_path))
    (one_instance,) = instances(trace, [an_event(110)], [call], {0: [other]}).instances
    assert one_instance.apart == ()
    assert one_instance.loose == (2,)
    assert one_instance.reads == ((1, 0, 128), (2, -64, 64))  # the same bytes, from either
    lines = list(tabulate([one_instance], "p").lines())
    assert lines.index("loose 2") > lines.index("slot 16")
    other_words = struct.pack("<QQQQ", 16384, 12288, 12288 + 64, 1)
    (one_instance,) = instances(trace, [an_event(110)], [call], {0: [other_words]}).instances
    assert (one_instance.apart, one_instance.loose) == (((1, 2, 64),), ())


def test_a_captured_launch_is_known_by_one_that_differs_in_padding_alone(tmp_path: Path):
    ran, captured, decisions = (
        Logged(t, t + 20, "k", SHAPE, whole=True, parameters=struct.pack("<QQII", 8192, 4096, padding, size))
        for t, padding, size in ((100, 7, 1), (200, 9, 1), (300, 9, 2))
    )
    trace, calls = load(a_trace(tmp_path)), [ran, captured, decisions]
    others = {place: [struct.pack("<QQII", 8192, 4096, 11 + place, calls[place].parameters[20])] for place in range(3)}
    join = instances(trace, [an_event(110)], calls, others)
    assert [one_instance.parameters for one_instance in join.captured] == [captured.parameters]
    (one_instance,) = join.captured
    assert (one_instance.reads, one_instance.writes) == (join.instances[0].reads, join.instances[0].writes)
    assert instances(trace, [an_event(110)], calls).captured == []  # without other runs, padding cannot be recognised


def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path):
    path = tmp_path / "launches-1"
    path.write_text("stack 4096\n100 120 k 4 1 1 128 1 1 0 1 8 0010000000000000.\n130 140 k 4 1 1 128 1 1 0 1 8 00")
    (call,) = read_log(path)
    assert read_stack(path) == 4096
    assert call == Logged(100, 120, "k", SHAPE, whole=True, parameters=struct.pack("<Q", 4096))


def test_words_that_other_runs_fill_otherwise_are_not_compared():
    logs = [Logged(0, 1, "k", SHAPE, whole=True, parameters=struct.pack("<QII", 4096, 8, 7)) for _ in range(2)]
    other = [Logged(0, 1, "k", SHAPE, whole=True, parameters=struct.pack("<QII", 8192, 8, 9)) for _ in range(2)]
    assert repeats([logs, other])
    assert counterparts(logs, [other]) == {place: [call.parameters] for place, call in enumerate(other)}
    assert varying_words(logs[0].parameters, [other[0].parameters]) == (0, 3)
    assert counterparts(logs, [other[:1]]) == {}
    (entry,) = tabulate([replace(instance(4096, 8, 7, 32), varying=(0, 3))], "p").entries["k"]
    assert entry.mask == bytes(8) + b"\xff" * 4 + bytes(4)


def test_what_varies_in_one_launch_may_decide_in_another():
    loose = replace(instance(4096, 1, 7, 32), varying=(3,))
    tight = instance(4096, 2, 9, 64)
    entries = tabulate([loose, tight], "p").entries["k"]
    assert [(entry.mask[8:], entry.writes) for entry in entries] == [
        (b"\xff" * 4 + bytes(4), ((0, 0, 32),)),
        (b"\xff" * 8, ((0, 0, 64),)),
    ]


def test_an_entry_that_stands_for_a_launch_covers_what_it_touched():
    loose = replace(instance(4096, 1, 7, 32), varying=(3,))
    (entry,) = tabulate([loose, instance(4096, 1, 9, 64)], "p").entries["k"]
    assert entry.writes == ((0, 0, 64),)


def test_a_launch_of_an_h200_is_known_again_in_another_process():
    """ReLU of PyTorch 2.11 in three processes: pointers at 32 and 40, an upper half of an address in its padding."""
    first, second, third = (
        bytes.fromhex(f"00310000{'00' * 16}{padding}{counter}00000000{result}{image}")
        for padding, counter, result, image in (
            ("037f0000", "d0ed3228", "001cf6d9007f0000", "00e0f6d9007f0000"),
            ("937f0000", "f0e8fe0d", "0000002c917f0000", "00c4002c917f0000"),
            ("4f7f0000", "409fab11", "001cf6414d7f0000", "00e0f6414d7f0000"),
        )
    )
    call = Logged(0, 1, "clamp", SHAPE, whole=True, parameters=first)
    varying = varying_words(call.parameters, [second])
    instance = Instance("clamp", SHAPE, first, (32, 40), ((1, 0, 50176),), ((0, 0, 50176),), varying=varying)
    (entry,) = tabulate([instance], "p").entries["clamp"]
    agree = [a & m == b & m for a, b, m in zip(first, third, entry.mask, strict=True)]
    assert all(agree)
    assert entry.mask[:4] == b"\xff" * 4  # the number of numbers decides
    (alone,) = tabulate([replace(instance, varying=())], "p").entries["clamp"]
    assert any((a ^ b) & m for a, b, m in zip(first, third, alone.mask, strict=True))
