"""Sources of a modelled launch's shape and time: written, read, checked, and absent from older traces."""

import pyarrow.parquet as pq
import pytest

from tileprof.errors import TraceError
from tileprof.trace import load, schema, validate
from tileprof.trace.sources import ShapeSource, TimeSource
from tileprof.trace.writer import TraceWriter


def trace_with(writer, launch, **changed):
    trace_writer: TraceWriter = writer()
    buffer = trace_writer.add_buffer(base=0, bytes=4096, kind="unknown")
    footprint = trace_writer.add_footprint(launch.__globals__["build_footprint"]())
    trace_writer.add_launch(launch(footprint, (buffer, buffer), **changed))
    return trace_writer.close()


@pytest.mark.parametrize("source", ShapeSource)
def test_every_source_of_a_shape_comes_back(writer, launch, source):
    trace = load(trace_with(writer, launch, shape_source=source, time_source=TimeSource.CALIBRATED))
    assert trace.launches[["shape_source", "time_source"]].iloc[0].tolist() == [source.value, "calibrated"]
    assert validate(trace) == []


@pytest.mark.parametrize("column", ["shape_source", "time_source"])
def test_a_word_that_is_no_source_is_refused_when_it_is_written(writer, launch, column):
    with pytest.raises(ValueError, match=f"{column} is 'guess'"):
        trace_with(writer, launch, **{column: "guess"})


@pytest.mark.parametrize("column", ["shape_source", "time_source"])
def test_a_word_that_is_no_source_is_refused_when_it_is_read(writer, launch, column):
    path = trace_with(writer, launch)
    change(path, lambda table: table.set_column(table.schema.get_field_index(column), column, [["guess"]]))
    with pytest.raises(TraceError, match=f"its {column} is none of"):
        _ = load(path).launches


def test_a_trace_of_before_the_sources_is_read_without_them(writer, launch):
    path = trace_with(writer, launch, shape_source="table")
    change(path, lambda table: table.drop_columns(["shape_source", "time_source"]))
    trace = load(path)
    assert trace.launches[["shape_source", "time_source"]].iloc[0].tolist() == ["", ""]
    assert validate(trace) == []


def test_the_columns_are_optional_as_older_traces_lack_them():
    assert schema.LAUNCHES.column("shape_source").optional
    assert schema.LAUNCHES.column("time_source").optional


def change(path, changed):
    part = next((path / "launches").iterdir())
    table = changed(pq.read_table(part, partitioning=None))
    pq.write_table(table, part)
