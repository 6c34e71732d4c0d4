"""The boxes of a log hold exactly the bytes of its entries, compared with a byte-by-byte oracle."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.record.source import decode, layout
from tileprof.record.source.decode import Span
from tileprof.record.source.write_check import unrecorded
from tileprof.trace import READ, WRITE

BASE = 1 << 40
SPANS = [
    Span(BASE, BASE + 300, BASE + 8),
    Span(BASE + 1000, BASE + 1500, BASE + 1000),
    Span(BASE + 300, BASE + 640, BASE + 300),
]


def entries(*rows: tuple[int, ...]) -> np.ndarray:
    """Draw rows of (address, stride_0, stride_1, length, count_0, count_1, block, mode, clock)."""
    return np.array([(*row, 0) for row in rows], layout.ENTRY).reshape(-1)


def lives(count: int, begin: int = 100, end: int = 900) -> np.ndarray:
    blocks = layout.fresh_blocks(count)
    blocks["begin_clock"], blocks["end_clock"], blocks["begin_ns"], blocks["end_ns"] = begin, end, 0, 800
    return blocks


def bytes_of_entries(rows: np.ndarray) -> dict[tuple[int, int, int], set[int]]:
    matches = defaultdict(set)
    for row in rows.tolist():
        address, stride_0, stride_1, length, count_0, count_1, block, mode, *_ = row
        for i in range(count_0):
            for j in range(count_1):
                begin = address + i * stride_0 + j * stride_1
                for byte in range(begin, begin + length):
                    for operand, span in enumerate(SPANS):
                        if span.low <= byte < span.high:
                            matches[block, operand, mode].add(byte - span.origin)
    return dict(matches)


def bytes_of_boxes(boxes) -> dict[tuple[int, int, int], set[int]]:
    matches = defaultdict(set)
    for row in range(len(boxes)):
        key = int(boxes.tile[row]), int(boxes.operand[row]), int(boxes.mode[row])
        for i in range(boxes.count_0[row]):
            for j in range(boxes.count_1[row]):
                begin = int(boxes.offset[row] + i * boxes.stride_0[row] + j * boxes.stride_1[row])
                matches[key].update(range(begin, begin + int(boxes.length[row])))
    return dict(matches)


rows = st.tuples(
    st.integers(BASE + 60, BASE + 560),
    st.integers(-20, 20),
    st.integers(-40, 40),
    st.integers(1, 24),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(100, 900),
)


def lies_inside(row: tuple[int, ...]) -> bool:
    low, high = decode.extents(entries(row))
    return low[0] >= BASE and high[0] <= BASE + 640


@settings(deadline=None)  # the first call compiles
@given(st.lists(rows.filter(lies_inside), max_size=25))
def test_boxes_hold_the_bytes_of_the_entries(given_rows: list[tuple[int, ...]]) -> None:
    log = entries(*given_rows)
    assert decode.stray(log, SPANS) is None
    boxes = decode.boxes(log, lives(4), SPANS)
    assert bytes_of_boxes(boxes) == bytes_of_entries(log)


@settings(deadline=None)  # the first call compiles
@given(st.lists(rows.filter(lies_inside), min_size=1, max_size=25))
def test_batches_of_few_runs_give_the_same_bytes(given_rows: list[tuple[int, ...]]) -> None:
    log = entries(*given_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_RUNS_AT_ONCE", 5)
        assert bytes_of_boxes(decode.boxes(log, lives(4), SPANS)) == bytes_of_entries(log)


@settings(deadline=None)  # the first call compiles
@given(st.lists(rows.filter(lies_inside), min_size=1, max_size=25), st.integers(0, 1 << 33))
def test_an_access_lies_in_its_boxs_part_of_life(given_rows: list[tuple[int, ...]], start: int) -> None:
    # The clock's low word wraps while the block runs.
    log = entries(*((*row[:8], (start + row[8]) % (1 << 32)) for row in given_rows))
    boxes = decode.boxes(log, lives(4, start + 100, start + 900), SPANS)
    assert ((boxes.last - boxes.first) == 1 / decode.PARTS).all()
    for row in given_rows:
        when = (row[8] - 100) / 800
        mine = (boxes.tile == row[6]) & (boxes.mode == row[7])
        assert ((boxes.first[mine] <= when) & (when <= boxes.last[mine])).any()


def test_strides_become_one_box() -> None:
    log = entries((BASE + 1000, 64, 0, 16, 4, 1, 0, READ, 500), (BASE + 1016, 64, 0, 16, 4, 1, 0, READ, 510))
    boxes = decode.boxes(log, lives(1), SPANS)
    assert (boxes.operand[0], boxes.offset[0], boxes.length[0], boxes.count_0[0], boxes.stride_0[0]) == (
        1,
        0,
        32,
        4,
        64,
    )
    assert len(boxes) == 1


def test_a_block_that_did_not_say_when_it_lived_has_no_parts() -> None:
    boxes = decode.boxes(entries((BASE, 0, 0, 4, 1, 1, 0, WRITE, 5)), layout.fresh_blocks(1), SPANS)
    assert np.isnan(boxes.first).all()
    assert np.isnan(boxes.last).all()


@pytest.mark.parametrize(
    "row",
    [
        (BASE - 1, 0, 0, 4, 1, 1, 2, READ, 0),
        (BASE + 638, 0, 0, 4, 1, 1, 2, READ, 0),
        (BASE + 700, 0, 0, 4, 1, 1, 2, READ, 0),
        (BASE + 8, -8, 0, 4, 3, 1, 2, READ, 0),
    ],
)
def test_an_entry_outside_all_buffers_is_found(row: tuple[int, ...]) -> None:
    inside = (BASE + 4, 0, 0, 4, 1, 1, 0, READ, 0)
    assert decode.stray(entries(inside, row), SPANS).block == 2
    assert decode.stray(entries(inside), SPANS) is None


def test_the_write_check_counts_bytes_outside_recorded_writes() -> None:
    before, after = np.zeros(100, np.uint8), np.zeros(100, np.uint8)
    after[10:20] = 1
    write, read = (BASE + 10, 4, 0, 2, 2, 1, 0, WRITE, 0), (BASE + 10, 0, 0, 10, 1, 1, 0, READ, 0)
    assert unrecorded(before, before, BASE, entries(read)) == 0
    assert unrecorded(before, after, BASE, entries(read)) == 10
    assert unrecorded(before, after, BASE, entries(write, read)) == 6
    assert unrecorded(before, after, BASE, entries((BASE + 9, 0, 0, 11, 1, 1, 0, WRITE, 0))) == 0
