"""The example in the docstring of ``tileprof.trace.schema``, written and compared with the docstring."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tileprof.trace import READ, WRITE, Boxes, Footprint, Launch, load, schema, validate


@pytest.fixture
def example(writer):
    trace_writer = writer()
    boxes = Boxes.of(
        tile=[0, 0, 1, 1],
        operand=[0, 1, 0, 1],
        mode=[READ, WRITE, READ, WRITE],
        offset=[0, 0, 16, 16],
        length=16,
        count_0=4,
        stride_0=32,
        first=[0, 0.6, 0, 0.6],
        last=[0.4, 1, 0.4, 1],
    )
    footprint = trace_writer.add_footprint(Footprint(np.array([[0, 0, 0], [1, 0, 0]], np.int32), boxes))
    tensor = {"bytes": 128, "dtype": "float32", "shape": (4, 8), "strides": (8, 1)}
    x = trace_writer.add_buffer(base=4096, kind="input", name="x", before_start=True, **tensor)
    first = trace_writer.add_buffer(base=8192, kind="activation", **tensor)
    square = {"kernel": "square", "grid": (2, 1, 1), "block": (128, 1, 1), "duration_ns": 1400}
    reference = {"timing": "modelled", "coverage": "exact"}
    trace_writer.add_launch(Launch(footprint, ((x, 0), (first, 0)), **square, **reference))
    second = trace_writer.add_buffer(base=8320, kind="activation", **tensor)
    trace_writer.add_launch(Launch(footprint, ((first, 0), (second, 0)), **square, **reference))
    trace_writer.free_buffer(first)
    return load(trace_writer.close())


def printed_table(table):
    """Return the column names and rows that the docstring prints for a table, without the remarks beside them."""
    lines = iter(schema.__doc__.split("**A worked example.**")[1].splitlines())
    header = next(line for line in lines if line.startswith(f"    {table} ")).split()[1:]
    header = [name for name in header if name != "..."]
    rows = itertools.takewhile(lambda line: line.startswith(" " * 15), lines)
    return header, [[number_or_word(word) for word in row.split()[: len(header)]] for row in rows]


def number_or_word(word):
    try:
        return round(float(word), 6)
    except ValueError:
        return word


@pytest.mark.parametrize("table", ["launches", "operands", "tiles", "accesses"])
def test_the_docstring_shows_what_is_written(example, table):
    header, rows = printed_table(table)
    written = getattr(example, table)[header].astype(object).to_numpy().tolist()
    assert rows == [[number_or_word(value) for value in row] for row in written]


def test_the_example_is_valid_and_has_the_dependency_it_claims(example):
    assert validate(example) == []
    frame = example.expanded_accesses()
    holds = (frame["buffer"] == 1) & frame["offset"].isin([16])
    assert frame[holds][["launch", "tile", "mode"]].to_numpy().tolist() == [[0, 1, "write"], [1, 1, "read"]]


def test_the_examples_buffers_are_as_printed(example):
    expected = pd.DataFrame(
        {"base": [4096, 8192, 8320], "allocated_at": [-1, 0, 1], "freed_at": [-1, 2, -1], "name": ["x", "", ""]}
    )
    pd.testing.assert_frame_equal(example.buffers[list(expected)], expected, check_dtype=False)
