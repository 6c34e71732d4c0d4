import json
import os
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tileprof import devices
from tileprof.errors import UserError
from tileprof.trace import ATOMIC, READ, Boxes, Footprint, load, schema, validate
from tileprof.trace import writer as writing


def test_every_table_has_the_schemas_columns_in_order(whole_trace):
    for table in schema.TABLES.values():
        frame = getattr(whole_trace, table.name)
        assert list(frame.columns) == [c.name for c in table.columns]
        assert len(frame) == whole_trace.manifest["rows"][table.name] > 0
        for column in table.columns:
            if column.type == "enum":
                assert tuple(frame[column.name].cat.categories) == column.values
            elif column.type.startswith(("int", "float")):
                assert frame[column.name].dtype == column.type


def test_a_valid_trace_breaks_no_rule(whole_trace):
    assert validate(whole_trace) == []
    assert whole_trace.complete


def test_a_launch_comes_back_field_by_field(writer, footprint, launch):
    trace_writer = writer()
    buffer = trace_writer.add_buffer(base=64, bytes=4096, kind="parameter")
    values = {
        "kernel": "void gemm<128>(float*)",
        "grid": (2, 3, 4),
        "block": (32, 2, 1),
        "cluster": (2, 1, 1),
        "duration_ns": 7,
        "begin_ns": 5,
        "timing": "measured",
        "coverage": "inferred",
        "fingerprint": "abc",
        "op": "aten::mm",
        "module": "h.0",
        "stream": 1,
        "graph": 2,
        "registers": 40,
        "shared_bytes": 1024,
        "blocks_per_sm": 3,
        "flops": 1 << 40,
        "note": "inferred from descriptors",
        "call": '{"operands": [], "arguments": {"dim": 1}}',
        "device": "1",
        "shape_source": "neighbour",
        "time_source": "interpolated",
    }
    trace_writer.add_launch(launch(trace_writer.add_footprint(footprint()), (buffer, buffer), **values))
    row = load(trace_writer.close()).launches.iloc[0].to_dict()
    for key in ("grid", "block", "cluster"):
        values.update(zip((f"{key}_x", f"{key}_y", f"{key}_z"), values.pop(key), strict=True))
    assert row == {**values, "launch": 0, "footprint": 0, "tiles": 4}


def test_a_footprint_comes_back_with_its_boxes_sorted_by_tile(writer, launch):
    trace_writer = writer()
    buffer = trace_writer.add_buffer(base=0, bytes=4096, kind="unknown")
    boxes = Boxes.of(
        tile=[1, 0, 1],
        operand=0,
        mode=[ATOMIC, READ, READ],
        offset=[-8, 16, 24],
        length=[4, 8, 2],
        count_0=[1, 2, 3],
        stride_0=[0, 64, -4],
        count_1=[1, 1, 2],
        stride_1=[0, 0, 100],
        first=[0, np.nan, 0.5],
        last=[1, np.nan, 0.75],
    )
    block = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    trace_writer.add_footprint(Footprint(block, boxes, np.array([1.5, np.nan])))
    trace_writer.add_launch(launch(0, [buffer], operands=((buffer, 8),)))
    actual = load(trace_writer.close()).footprint(0)
    np.testing.assert_array_equal(actual.block, block)
    np.testing.assert_array_equal(actual.duration_ns, [1.5, np.nan])
    for column in schema.ACCESSES.columns[1:]:
        values, inputs = getattr(actual.boxes, column.name), getattr(boxes, column.name)
        assert values.dtype == inputs.dtype
        np.testing.assert_array_equal(values, inputs[[1, 0, 2]])


def test_footprints_without_modelled_durations_say_none(whole_trace):
    assert whole_trace.footprint(1).duration_ns is None
    assert whole_trace.footprint(1) is whole_trace.footprint(1)
    with pytest.raises(IndexError, match="no footprint 3"):
        whole_trace.footprint(3)
    with pytest.raises(IndexError):
        whole_trace.footprint(-1)


def test_operands_of_a_launch_are_its_bindings(whole_trace):
    buffer, offset = whole_trace.operands_of(5)
    np.testing.assert_array_equal(buffer, [5, 6])
    np.testing.assert_array_equal(offset, [0, 0])


def test_buffers_live_from_allocation_to_free(whole_trace):
    frame = whole_trace.buffers
    assert list(frame["allocated_at"]) == [-1, 0, 1, 2, 3, 4, 5]
    assert list(frame["freed_at"]) == [-1, 2, 3, 4, 5, 6, -1]
    assert frame["kind"].tolist() == ["input"] + ["activation"] * 6


def test_later_facts_about_a_buffer_are_kept(writer):
    trace_writer = writer()
    buffer = trace_writer.add_buffer(base=0, bytes=8, kind="unknown")
    trace_writer.describe_buffer(
        buffer, kind="parameter", name="h.0.weight", dtype="float16", shape=(2, 2), strides=(2, 1)
    )
    row = load(trace_writer.close()).buffers.iloc[0]
    assert (row["kind"], row["name"], row["dtype"]) == ("parameter", "h.0.weight", "float16")
    assert (row["shape"], row["strides"]) == ((2, 2), (2, 1))


def test_times_added_in_any_order_are_sorted(writer, footprint, launch):
    trace_writer = writer()
    buffer = trace_writer.add_buffer(base=0, bytes=4096, kind="unknown")
    trace_writer.add_footprint(footprint())
    for _ in range(2):
        trace_writer.add_launch(launch(0, (buffer, buffer)))
    trace_writer.add_times(1, [3, 1], [0, 1], [5, 6], [7, 8])
    trace_writer.add_times(0, [2], [9], [1], [2])
    frame = load(trace_writer.close()).times
    assert frame[["launch", "tile", "begin_ns"]].to_numpy().tolist() == [[0, 2, 1], [1, 1, 6], [1, 3, 5]]


def test_expanded_accesses_join_launches_to_buffers(whole_trace):
    frame = whole_trace.expanded_accesses()
    join = (
        whole_trace.launches[["launch", "footprint"]]
        .merge(whole_trace.accesses, on="footprint")
        .merge(whole_trace.operands, on=["launch", "operand"], suffixes=("", "_bound"))
    )
    join["offset"] += join["offset_bound"]
    columns = ["launch", "tile", "buffer", "mode", "offset", "length", "first", "last"]
    pd.testing.assert_frame_equal(
        frame[columns].sort_values(columns[:4], ignore_index=True),
        join[columns].sort_values(columns[:4], ignore_index=True),
    )


def test_expanded_accesses_refuse_to_fill_the_memory(whole_trace, monkeypatch):
    monkeypatch.setattr("tileprof.trace.recording.EXPANDED_ROWS_LIMIT", 47)
    with pytest.raises(UserError, match="48 accesses over all launches, more than 47"):
        whole_trace.expanded_accesses()


def test_the_tables_are_the_same_in_one_part_and_in_many(writer, layers, monkeypatch):
    one = writer("one")
    layers(one, 5)
    monkeypatch.setattr(writing, "CHECKPOINT_ROWS", 7)
    many = writer("many")
    layers(many, 5)
    one, many = load(one.close()), load(many.close())
    assert len(list(many.path.glob("tiles/*.parquet"))) > 3
    assert not list(many.path.rglob("*.tmp"))
    for name in schema.TABLES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(many, name))


def test_plain_parquet_readers_see_the_same_rows(whole_trace):
    frame = pq.read_table(whole_trace.path / "accesses").to_pandas()
    assert frame["mode"].astype(str).tolist() == whole_trace.accesses["mode"].astype(str).tolist()


def test_shared_arrays_cannot_be_changed_by_accident(whole_trace):
    with pytest.raises(ValueError, match="read-only"):
        whole_trace.footprint(0).boxes.offset[0] = 1


def test_the_manifest_says_how_the_trace_was_recorded(writer, layers):
    trace_writer = writer(granule=32)
    first_manifest = json.loads((trace_writer.partial_path / "manifest.json").read_text())
    assert (first_manifest["complete"], first_manifest["writer"]["pid"]) == (False, os.getpid())
    layers(trace_writer)
    trace_writer.note("2 kernels had no model")
    trace_writer.note("2 kernels had no model")
    manifest = load(trace_writer.close(exit_code=3)).manifest
    assert abs((datetime.now(UTC) - datetime.fromisoformat(manifest["created"])).total_seconds()) < 60
    assert (manifest["recorder"], manifest["command"], manifest["granule"]) == ("test", ["infer.py"], 32)
    assert (manifest["exit_code"], manifest["writer"], manifest["complete"]) == (3, None, True)
    assert manifest["coverage"] == {"exact": 6, "inferred": 0, "conservative": 0}
    assert manifest["notes"] == ["2 kernels had no model"]
    assert manifest["libraries"]["numpy"] == np.__version__
    assert manifest["device"] == devices.get("H200").to_dict()


def test_an_empty_recording_is_a_trace(writer):
    trace = load(writer().close())
    assert validate(trace) == []
    assert trace.footprints == 0
    assert [len(getattr(trace, name)) for name in schema.TABLES] == [0] * 6
    assert trace.expanded_accesses().empty


def test_text_that_utf8_cannot_hold_is_replaced(writer, footprint, launch):
    trace_writer = writer(command=["run\udcff.py"])
    buffer = trace_writer.add_buffer(base=0, bytes=4096, kind="unknown", name="x\ud800")
    trace_writer.add_launch(launch(trace_writer.add_footprint(footprint()), (buffer, buffer), module="m\udcff"))
    trace_writer.note("n\udcff")
    trace = load(trace_writer.close())
    assert (trace.launches["module"][0], trace.buffers["name"][0]) == ("m?", "x?")
    assert trace.manifest["notes"] == ["n?"]


@pytest.mark.parametrize("path", ["run", "run.tileprof"])
def test_a_trace_is_found_with_and_without_its_suffix(whole_trace, path):
    assert load(whole_trace.path.parent / path).path == whole_trace.path
    assert load(str(whole_trace.path.parent / path) + "/").path == whole_trace.path
