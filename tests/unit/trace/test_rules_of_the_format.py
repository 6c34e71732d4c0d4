"""Each rule refuses what it forbids: a valid trace, one changed value, and the rule that names it."""

import numpy as np
import pytest

from tileprof.trace import RULES, schema, validate

CHANGES = [
    ("launch-numbers", "launches", "grid_y", 1, 0, "grid_y is 0, expected at least 1"),
    ("launch-numbers", "launches", "cluster_z", 1, -1, "cluster_z is -1"),
    ("launch-numbers", "launches", "blocks_per_sm", 1, 0, "blocks_per_sm is 0"),
    ("launch-numbers", "launches", "duration_ns", 1, -5, "duration_ns is -5, expected at least 0"),
    ("launch-numbers", "launches", "block_x", 1, 1025, "its block has 1025 threads, H200 takes 1024"),
    ("confession", "launches", "coverage", 1, 2, "coverage is conservative, but its note says nothing"),
    ("box-sizes", "accesses", "length", 3, 0, "length is 0"),
    ("box-sizes", "accesses", "count_0", 3, 0, "count_0 is 0"),
    ("box-sizes", "accesses", "count_1", 3, -1, "count_1 is -1"),
    ("box-range", "accesses", "offset", 3, 1 << 61, "its box reaches over"),
    ("box-range", "accesses", "stride_1", 3, -(1 << 62), "its box reaches over"),
    ("box-life", "accesses", "first", 3, -0.1, "first is -0.1"),
    ("box-life", "accesses", "last", 3, 1.5, "last is 1.5"),
    ("box-life", "accesses", "first", 2, 0.9, "expected 0 <= first <= last <= 1"),
    ("bytes", "tiles", "bytes_read", 3, 255, "bytes_read is 255, its boxes hold 256"),
    ("bytes", "tiles", "bytes_written", 3, 0, "bytes_written is 0, its boxes hold 256"),
    ("inside", "accesses", "offset", 6, 900, "launch 0 touches bytes 0 to 1156 of buffer 0, which has 1024"),
    ("inside", "accesses", "offset", 6, -1, "touches bytes -1 to 768"),
    ("inside", "operands", "offset", 3, 8, "launch 1 touches bytes 8 to 1032 of buffer 2, which has 1024 (operand 1)"),
    ("inside", "buffers", "bytes", 2, 1000, "of buffer 2, which has 1000"),
    ("alive", "buffers", "allocated_at", 2, 2, "launch 1 uses buffer 2, allocated after 2 launches"),
    ("alive", "buffers", "freed_at", 2, 2, "launch 2 uses buffer 2, freed after 2 launches"),
    ("buffer-numbers", "buffers", "bytes", 2, -1, "it has -1 bytes"),
    ("buffer-numbers", "buffers", "allocated_at", 2, -2, "allocated_at is -2, expected -1 to 6"),
    ("buffer-numbers", "buffers", "allocated_at", 6, 7, "allocated_at is 7"),
    ("buffer-numbers", "buffers", "freed_at", 2, 0, "freed_at is 0, expected -1 or 1 to 6"),
    ("buffer-numbers", "buffers", "freed_at", 2, 7, "freed_at is 7"),
    ("apart", "buffers", "base", 2, 1025, "its bytes overlap those of buffer 1"),
    ("apart", "buffers", "base", 2, 1023, "its bytes overlap those of buffer 0"),
    ("times", "times", "begin_ns", 5, 501, "it runs from 501 to 500 ns"),
    ("times", "times", "begin_ns", 5, -1, "it runs from -1 to 500 ns"),
    ("times", "times", "sm", 5, 132, "it ran on SM 132 of 132"),
    ("times", "times", "tile", 5, 0, "tile 0 of launch 1 is timed twice"),
]


def change(trace, table, column, row, value):
    for name in schema.TABLES:  # a table that is read after the change would be refused at once
        trace.columns(name)
    values = trace.columns(table)[column].copy()
    values[row] = value
    trace.columns(table)[column] = values


@pytest.mark.parametrize(("rule", "table", "column", "row", "value", "words"), CHANGES)
def test_a_rule_objects_to_what_it_forbids(whole_trace, rule, table, column, row, value, words):
    change(whole_trace, table, column, row, value)
    messages = [v for v in validate(whole_trace) if v.rule == rule]
    assert any(words in v.message for v in messages), messages
    assert {v.table for v in messages} == {RULES[rule].table}


def test_an_operand_that_is_not_bound_is_found(whole_trace):
    change(whole_trace, "accesses", "operand", 1, 2)
    actual = [v for v in validate(whole_trace) if v.rule == "bound"]
    assert [v.row for v in actual] == [0, 1]
    assert actual[0].message == "its footprint has 3 operands, bound are 2"


def test_every_rule_has_a_change_that_breaks_it():
    assert {rule for rule, *_ in CHANGES} | {"bound"} == set(RULES)


def test_many_broken_rows_are_shown_in_part_and_counted(whole_trace):
    rows = whole_trace.columns("accesses")
    rows["length"] = np.zeros_like(rows["length"])
    actual = [v for v in validate(whole_trace) if v.rule == "box-sizes"]
    assert len(actual) == 5
    assert actual[-1].message.endswith("and 19 more rows")


def test_a_short_lived_buffer_may_share_memory_with_its_neighbours(writer):
    from tileprof.trace import load

    trace_writer = writer()
    for _ in range(3):
        trace_writer.free_buffer(trace_writer.add_buffer(base=0, bytes=64, kind="workspace"))
    trace_writer.add_buffer(base=0, bytes=64, kind="workspace")
    assert validate(load(trace_writer.close())) == []


def test_overlap_is_found_among_many_live_buffers(writer):
    from tileprof.trace import load

    trace_writer = writer()
    for row in range(20):
        trace_writer.add_buffer(base=row * 100, bytes=100, kind="unknown", before_start=True)
    trace_writer.add_buffer(base=550, bytes=1, kind="unknown")
    trace_writer.add_buffer(base=2000, bytes=0, kind="unknown")
    violations = validate(load(trace_writer.close()))
    assert [(v.rule, v.row) for v in violations] == [("apart", 20)]
    assert "buffer 5" in violations[0].message
