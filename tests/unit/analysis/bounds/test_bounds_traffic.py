"""Compulsory bytes, compared with sets of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.synthetic_graphs import footprint, trace
from tileprof.analysis.bounds.traffic import Traffic, covered, total
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes

boxes = st.tuples(
    st.integers(0, 2), st.integers(0, 2), st.integers(0, 40), st.integers(1, 8), st.integers(1, 4), st.integers(0, 12),
    st.integers(1, 3), st.integers(0, 30),
)  # fmt: skip


def as_boxes(rows):
    operand, mode, offset, length, count_0, stride_0, count_1, stride_1 = zip(*rows, strict=True)
    return Boxes.of(
        tile=0, operand=operand, mode=mode, offset=offset, length=length,
        count_0=count_0, stride_0=stride_0, count_1=count_1, stride_1=stride_1,
    )  # fmt: skip


def bytes_of(row):
    _, _, offset, length, count_0, stride_0, count_1, stride_1 = row
    return {
        offset + i * stride_0 + j * stride_1 + k for i in range(count_0) for j in range(count_1) for k in range(length)
    }


@given(st.lists(boxes, min_size=1, max_size=6))
def test_covered_bytes_are_the_union_of_the_boxes(rows):
    b = as_boxes(rows)
    ranges = covered(b, b.operand >= 0)
    actual = {x for begin, end in ranges.tolist() for x in range(begin, end)}
    assert actual == set().union(*map(bytes_of, rows))
    assert total(ranges) == len(actual)


@given(st.lists(st.lists(boxes, min_size=1, max_size=4), min_size=1, max_size=4), st.data())
def test_bytes_cross_when_read_before_written_or_left_behind(launches, data):
    binding = [data.draw(st.tuples(*[st.tuples(st.integers(0, 1), st.integers(0, 20))] * 3)) for _ in launches]
    t = trace(
        [{"footprint": i} for i in range(len(launches))],
        {i: footprint(1, as_boxes(rows)) for i, rows in enumerate(launches)},
        operands=[
            {"launch": i, "operand": slot, "buffer": b, "offset": offset}
            for i, slots in enumerate(binding)
            for slot, (b, offset) in enumerate(slots)
        ],
        buffers=[{"buffer": 0, "freed_at": -1}, {"buffer": 1, "freed_at": 9}],
    )
    read, actual, left_behind = set(), set(), set()
    for rows, slots in zip(launches, binding, strict=True):
        bytes_by_mode = [(row[1], {(slots[row[0]][0], slots[row[0]][1] + x) for x in bytes_of(row)}) for row in rows]
        for mode, row_bytes in bytes_by_mode:
            if mode in (READ, ATOMIC):
                read |= row_bytes - actual
        for mode, row_bytes in bytes_by_mode:
            actual |= row_bytes
            if mode in (WRITE, ATOMIC):
                left_behind |= {x for x in row_bytes if x[0] == 0}
    assert Traffic(t).compulsory(range(len(launches))) == (len(read), len(left_behind))


def test_conservative_launches_hide_reads_and_add_none():
    whole_buffer = footprint(1, Boxes.of(tile=0, operand=0, mode=[READ, WRITE], offset=0, length=100))
    t = trace(
        [{"footprint": 0, "coverage": "conservative"}, {"footprint": 0}],
        {0: whole_buffer},
        operands=[{"launch": i, "operand": 0, "buffer": 0} for i in range(2)],
        buffers=[{"buffer": 0}],
    )
    assert Traffic(t).compulsory([0, 1]) == (0, 100)
    assert Traffic(t).compulsory([1]) == (100, 100)
