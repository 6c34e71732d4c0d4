import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tileprof.trace import ATOMIC, READ, WRITE, Boxes, distinct
from tileprof.trace.distinct import bytes_by_tile

box = st.fixed_dictionaries(
    {
        "tile": st.integers(0, 2),
        "operand": st.integers(0, 1),
        "mode": st.sampled_from([READ, WRITE, ATOMIC]),
        "offset": st.integers(-40, 40),
        "length": st.integers(1, 6),
        "count_0": st.integers(1, 4),
        "stride_0": st.integers(-12, 12),
        "count_1": st.integers(1, 4),
        "stride_1": st.integers(-30, 30),
    }
)


def boxes_of(rows):
    return Boxes.of(**{name: [row[name] for row in rows] for name in rows[0]})


def touched_bytes(boxes, row):
    """Return the bytes of one box, one by one."""
    return {
        int(boxes.offset[row] + i * boxes.stride_0[row] + j * boxes.stride_1[row] + byte)
        for i in range(boxes.count_0[row])
        for j in range(boxes.count_1[row])
        for byte in range(boxes.length[row])
    }


def counted_byte_by_byte(boxes, tiles):
    actual = {(tile, kind): set() for tile in range(tiles) for kind in (0, 1)}
    for row in range(len(boxes)):
        kind = int(boxes.mode[row] != READ)
        actual[boxes.tile[row], kind] |= {(boxes.operand[row], byte) for byte in touched_bytes(boxes, row)}
    return [[len(actual[tile, kind]) for tile in range(tiles)] for kind in (0, 1)]


@given(st.lists(box, min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_distinct_bytes_are_those_counted_one_by_one(rows):
    boxes = boxes_of(rows)
    read, written = bytes_by_tile(boxes.tile, boxes, 3)
    assert [read.tolist(), written.tolist()] == counted_byte_by_byte(boxes, 3)


@given(st.lists(box, min_size=1, max_size=12), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_small_batches_give_the_same(rows, runs):
    boxes = boxes_of(rows)
    before = distinct._RUNS_AT_ONCE
    distinct._RUNS_AT_ONCE = runs
    try:
        read, written = bytes_by_tile(boxes.tile, boxes, 3)
    finally:
        distinct._RUNS_AT_ONCE = before
    assert [read.tolist(), written.tolist()] == counted_byte_by_byte(boxes, 3)


@given(box)
@settings(max_examples=400, deadline=None)
def test_a_normalised_box_holds_the_same_bytes_in_ordered_levels(row):
    boxes = boxes_of([row])
    normal = boxes.normalised()
    assert touched_bytes(normal, 0) == touched_bytes(boxes, 0)
    c0, s0, c1, s1 = (int(getattr(normal, n)[0]) for n in ("count_0", "stride_0", "count_1", "stride_1"))
    assert (s0 > normal.length[0]) if c0 > 1 else s0 == 0
    assert (s1 >= s0 and c0 > 1) if c1 > 1 else s1 == 0


def test_normalising_leaves_the_original_alone():
    boxes = Boxes.of(tile=0, operand=0, mode=READ, offset=0, length=4, count_0=3, stride_0=4, count_1=2, stride_1=-12)
    normal = boxes.normalised()
    assert (normal.offset[0], normal.length[0], normal.count_0[0], normal.count_1[0]) == (-12, 24, 1, 1)
    assert (boxes.offset[0], boxes.length[0], boxes.count_0[0], boxes.stride_1[0]) == (0, 4, 3, -12)


def test_chunks_of_huge_strided_tiles_need_no_expansion():
    # 64 chunks of a column of 2^30 rows: 2^36 runs if they were written out.
    boxes = Boxes.of(tile=0, operand=0, mode=READ, offset=np.arange(64) * 8, length=8, count_0=1 << 30, stride_0=4096)
    assert bytes_by_tile(boxes.tile, boxes, 1)[0][0] == (64 * 8) << 30


def test_no_boxes_are_no_bytes():
    none = Boxes.concat([])
    read, written = bytes_by_tile(none.tile, none, 2)
    assert read.tolist() == written.tolist() == [0, 0]
