"""The example in the docstring of ``tileprof.trace.schema``, written and compared with what stands there."""

import numpy as np
import pandas as pd
import pytest

from tileprof.trace import READ, WRITE, Boxes, Footprint, Launch, load, schema, validate


@pytest.fixture
def example(writer):
    made = writer()
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
    footprint = made.add_footprint(Footprint(np.array([[0, 0, 0], [1, 0, 0]], np.int32), boxes))
    tensor = {"bytes": 128, "dtype": "float32", "shape": (4, 8), "strides": (8, 1)}
    x = made.add_buffer(base=4096, kind="input", name="x", before_start=True, **tensor)
    first = made.add_buffer(base=8192, kind="activation", **tensor)
    square = {"kernel": "square", "grid": (2, 1, 1), "block": (128, 1, 1), "duration_ns": 1400}
    known = {"timing": "modelled", "coverage": "exact"}
    made.add_launch(Launch(footprint, ((x, 0), (first, 0)), **square, **known))
    second = made.add_buffer(base=8320, kind="activation", **tensor)
    made.add_launch(Launch(footprint, ((first, 0), (second, 0)), **square, **known))
    made.free_buffer(first)
    return load(made.close())


def printed(table):
    """The rows that the docstring prints for a table, as lists of words."""
    lines = schema.__doc__.split("**A worked example.**")[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"    {table} "))
    header = lines[start].split()[1:]
    header = [name for name in header if name != "..."]
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith(" " * 15):
            break
        rows.append(line.split("   the ")[0].split("... the")[0])
    return header, rows


@pytest.mark.parametrize("table", ["launches", "operands", "tiles", "accesses"])
def test_the_docstring_shows_what_is_written(example, table):
    header, rows = printed(table)
    frame = getattr(example, table)
    shown = [line.split() for line in rows]
    written = [[str(v) for v in row] for row in frame[header].astype(object).to_numpy()]
    as_numbers = [[f"{float(w):g}" if w.replace(".", "").isdigit() else w for w in row] for row in written]
    assert [[f"{float(w):.6g}" if w.replace(".", "").isdigit() else w for w in row] for row in shown] == [
        [f"{float(w):.6g}" if w.replace(".", "").isdigit() else w for w in row] for row in as_numbers
    ]


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
