"""Runs and boxes cover exactly the bytes of the addresses they come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileprof.record.runs import boxes, runs
from tileprof.record.triton.programs import ProgramLog, Span
from tileprof.trace.footprint import READ


def bytes_of(columns: tuple[np.ndarray, ...]) -> list[int]:
    matches = []
    for offset, length, count_0, stride_0, count_1, stride_1 in zip(*(c.tolist() for c in columns), strict=True):
        for j in range(count_1):
            for i in range(count_0):
                start = offset + i * stride_0 + j * stride_1
                matches += range(start, start + length)
    return sorted(matches)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.sampled_from([1, 2, 4]))
def test_boxes_hold_each_byte_once(slots: list[int], itemsize: int) -> None:
    addresses = np.array(slots, np.uint64) * np.uint64(itemsize)
    actual = bytes_of(boxes(*runs(addresses, None, itemsize)))
    assert actual == sorted({a * itemsize + b for a in slots for b in range(itemsize)})


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 30), st.booleans(), st.sampled_from([1, 2, 4]))
def test_a_block_read_by_rows_or_columns_holds_the_bytes_of_its_lanes(
    m: int, n: int, stride: int, is_transposed: bool, itemsize: int
) -> None:
    lanes = (np.arange(m)[:, None] * stride + np.arange(n) * itemsize).astype(np.uint64)
    actual = bytes_of(boxes(*runs(lanes.T if is_transposed else lanes, np.ones((1, 1), bool), itemsize)))
    assert actual == sorted({int(a) + b for a in lanes.ravel() for b in range(itemsize)})


def test_a_block_of_a_matrix_is_one_box() -> None:
    address = (
        np.uint64(1000)
        + np.arange(16, dtype=np.uint64)[:, None] * np.uint64(512)
        + np.arange(32, dtype=np.uint64) * np.uint64(2)
    )
    offset, length, count_0, stride_0, count_1, _ = boxes(*runs(address, None, 2))
    assert [c.tolist() for c in (offset, length, count_0, stride_0, count_1)] == [[1000], [64], [16], [512], [1]]


def test_planes_of_rows_are_one_box() -> None:
    plane, row, column = np.meshgrid(np.arange(3), np.arange(4), np.arange(8), indexing="ij")
    address = (plane * 4096 + row * 128 + column * 4).astype(np.uint64)
    assert [c.tolist() for c in boxes(*runs(address, None, 4))] == [[0], [32], [4], [128], [3], [4096]]


def test_masked_lanes_touch_nothing() -> None:
    begin, end = runs(np.arange(8, dtype=np.uint64) * np.uint64(4), np.arange(8) < 3, 4)
    assert (begin.tolist(), end.tolist()) == ([0], [12])


def test_tensors_that_lie_next_to_each_other_are_told_apart() -> None:
    log = ProgramLog()
    log.add(READ, np.arange(100, 132, 4, dtype=np.uint64), None, 4)
    actual = log.boxes(0, [Span(100, 116, 100, 0), Span(116, 132, 116, 1)])
    assert (actual.operand.tolist(), actual.offset.tolist(), actual.length.tolist()) == ([0, 1], [0, 0], [16, 16])
    with pytest.raises(ValueError, match="no tensor argument"):
        log.boxes(0, [Span(100, 116, 100, 0)])
