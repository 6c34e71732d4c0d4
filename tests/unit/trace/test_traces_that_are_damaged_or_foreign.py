import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tileprof.errors import TraceError
from tileprof.trace import load, manifest, schema, validate


def refusal(path):
    """Return the message with which a trace is refused when it is opened or when its tables are read."""
    with pytest.raises(TraceError) as error:  # noqa: PT012 - lazily read tables are refused when they are read
        trace = load(path)
        for name in schema.TABLES:
            getattr(trace, name)
    return str(error.value)


def change_manifest(trace, **changed):
    path = trace.path / manifest.FILE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def change_table(trace, name, change):
    """Rewrite a table's only part with ``change`` applied to its dict of columns."""
    path = trace.path / name / "000000.parquet"
    table = pq.read_table(path, partitioning=None)
    columns = {c: table.column(c) for c in table.column_names}
    pq.write_table(pa.table(change(columns)), path)


@pytest.mark.parametrize(("version", "advice"), [(2, "use a newer tileprof"), (0, "record it again"), ("1", "record")])
def test_another_format_version_is_refused_with_both_numbers(whole_trace, version, advice):
    change_manifest(whole_trace, version=version)
    message = refusal(whole_trace.path)
    assert f"trace format {version!r}" in message
    assert "reads 1" in message
    assert advice in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "does not say 'tileprof trace'"),
        ('{"format": "something"}', "does not say 'tileprof trace'"),
        (" " * (17 << 20), "larger than"),
    ],
)
def test_a_broken_manifest_is_named(whole_trace, text, words):
    (whole_trace.path / manifest.FILE_NAME).write_text(text)
    message = refusal(whole_trace.path)
    assert words in message
    assert str(whole_trace.path) in message


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("complete", "yes", "complete is 'yes'"),
        ("rows", None, "rows is None"),
        ("granule", "1", "granule is '1'"),
        ("device", {"name": "H200"}, "its device: missing architecture"),
        ("rows", {"launches": 10**30}, "table launches has 6 rows, its manifest says 1000000"),
        ("rows", {}, "its manifest says None"),
        ("granule", 10**40, "granule is 1000000"),
        ("granule", 0, "granule is 0"),
        ("command", [1], "command is [1]"),
        ("coverage", {"exact": -1}, "coverage is {'exact': -1}"),
        ("exit_code", 10**40, "exit_code is 1000000"),
    ],
)
def test_a_manifest_of_a_wrong_shape_is_refused(whole_trace, key, value, words):
    change_manifest(whole_trace, **{key: value})
    assert words in refusal(whole_trace.path)


@pytest.mark.parametrize("value", [10**40, 10**400, -1, 0, "4", None, 1e300])
@pytest.mark.parametrize("key", ["registers_per_sm", "sms", "clock_mhz", "dram_bytes_per_s"])
def test_a_number_that_no_device_has_is_refused(whole_trace, key, value):
    change_manifest(whole_trace, device={**whole_trace.manifest["device"], key: value})
    assert f"its device: {key} is " in refusal(whole_trace.path)


def test_more_rows_than_there_is_memory_are_refused_unread(whole_trace, monkeypatch):
    monkeypatch.setattr("tileprof.trace.parts.MOST_ROWS", 20)
    assert "accesses has 24 rows; at most 20 are read" in refusal(whole_trace.path)


def test_more_tiles_than_there_is_memory_are_refused(whole_trace, monkeypatch):
    monkeypatch.setattr("tileprof.trace.structure.MOST_TILES", 20)
    assert "its launches have 24 tiles; at most 20 are read" in refusal(whole_trace.path)


def test_a_folder_whose_name_is_not_utf_8_holds_a_trace(whole_trace, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff.tileprof")
    before = whole_trace.launches
    shutil.move(whole_trace.path, folder)
    assert load(folder).launches.equals(before)


@pytest.mark.parametrize("name", schema.TABLES)
@pytest.mark.parametrize("records", [0, 3, 0.5, 0.99])
def test_a_truncated_part_is_named(whole_trace, name, records):
    path = whole_trace.path / name / "000000.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: records if isinstance(records, int) else int(len(data) * records)])
    message = refusal(whole_trace.path)
    assert f"{name}/000000.parquet is damaged" in message
    assert "record the trace again" in message


def test_an_error_of_parquet_in_several_lines_becomes_one_sentence(whole_trace, monkeypatch):
    def fail(*_, **__):
        raise pa.ArrowInvalid("Couldn't deserialize thrift: Negative size\nDeserializing page header failed.\n")

    monkeypatch.setattr(pq.ParquetFile, "__init__", fail)
    assert "thrift: Negative size Deserializing page header failed.): record" in refusal(whole_trace.path)


@pytest.mark.parametrize("name", schema.TABLES)
def test_noise_in_a_part_is_refused_or_read_but_never_crashes(whole_trace, name):
    path = whole_trace.path / name / "000000.parquet"
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(5)
    for _ in range(40):
        noisy = bytearray(data)
        for at in random.integers(4, len(data) - 4, 3):
            noisy[at] = random.integers(256)
        path.write_bytes(noisy)
        try:
            validate(load(whole_trace.path))
        except TraceError as error:
            assert str(whole_trace.path) in str(error)  # noqa: PT017 - some noise is harmless


@pytest.mark.parametrize("name", schema.TABLES)
def test_a_missing_table_is_named(whole_trace, name):
    shutil.rmtree(whole_trace.path / name)
    assert f"has no table {name}" in refusal(whole_trace.path)


@pytest.mark.parametrize("name", ["manifest.json", "tiles/000000.parquet", "tiles"])
def test_a_trace_does_not_lead_to_other_files(whole_trace, tmp_path, name):
    here = whole_trace.path / name
    elsewhere = here.rename(tmp_path / "elsewhere")
    here.symlink_to(elsewhere)
    assert "link" in refusal(whole_trace.path)


def test_a_missing_part_is_noticed(writer, layers, monkeypatch):
    monkeypatch.setattr("tileprof.trace.writer.CHECKPOINT_ROWS", 20)
    trace_writer = writer()
    layers(trace_writer)
    path = trace_writer.close()
    (path / "launches" / "000001.parquet").unlink()
    assert "a part is missing" in refusal(path)


def test_a_missing_column_is_named(whole_trace):
    change_table(whole_trace, "tiles", lambda c: {k: v for k, v in c.items() if k != "block_y"})
    assert "has no column block_y" in refusal(whole_trace.path)


def test_a_column_of_another_type_is_named(whole_trace):
    change_table(whole_trace, "tiles", lambda c: {**c, "tile": c["tile"].cast(pa.int64())})
    assert "column tile is int64, expected int32" in refusal(whole_trace.path)


def test_an_unknown_mode_is_named(whole_trace):
    rows = whole_trace.manifest["rows"]["accesses"]
    change_table(whole_trace, "accesses", lambda c: {**c, "mode": pa.array(["read"] * (rows - 1) + ["erase"])})
    assert "mode is 'erase', expected one of read, write, atomic" in refusal(whole_trace.path)


def test_modes_as_plain_strings_are_read(whole_trace):
    before = whole_trace.accesses["mode"].tolist()
    change_table(whole_trace, "accesses", lambda c: {**c, "mode": c["mode"].cast(pa.string())})
    assert load(whole_trace.path).accesses["mode"].tolist() == before


def test_a_null_where_there_may_be_none_is_refused(whole_trace):
    rows = whole_trace.manifest["rows"]["accesses"]
    change_table(whole_trace, "accesses", lambda c: {**c, "length": pa.array([None] * rows, pa.int64())})
    assert "length has missing values" in refusal(whole_trace.path)


STRUCTURE = [
    ("launches", "launch", 2, 7, "launch ids are not dense"),
    ("launches", "footprint", 0, -1, "a footprint is negative"),
    ("launches", "footprint", 0, 1 << 60, "footprint 1152921504606846976 of launch 0 has no tiles"),
    ("launches", "tiles", 1, 5, "launch 1 says 5 tiles, its footprint has 4"),
    ("launches", "tiles", 1, 0, "it has no tiles"),
    ("operands", "launch", 1, 3, "not sorted by launch"),
    ("operands", "launch", 11, 1 << 40, "its launch is not there"),
    ("operands", "operand", 1, 2, "operand slots are not dense"),
    ("operands", "buffer", 0, 99, "its buffer is not there"),
    ("operands", "buffer", 0, -1, "its buffer is not there"),
    ("tiles", "footprint", 11, 5, "footprint ids are not dense"),
    ("tiles", "footprint", 0, -1, "footprint ids are not dense"),
    ("tiles", "tile", 3, 2, "tile ids are not dense"),
    ("accesses", "footprint", 0, 2, "not sorted by footprint"),
    ("accesses", "footprint", 23, 9, "its footprint has no tiles"),
    ("accesses", "footprint", 0, -1, "not sorted by footprint"),
    ("accesses", "tile", 7, 4, "its tile is not there"),
    ("accesses", "tile", 0, 3, "not sorted by tile"),
    ("accesses", "operand", 0, -1, "an operand slot is negative"),
    ("accesses", "footprint", 5, -(1 << 63), "not sorted by footprint (it is -9223372036854775808)"),
    ("accesses", "operand", 3, 2, "a launch binds no such operand (it is 2)"),
    ("accesses", "operand", 3, 2**31 - 1, "a launch binds no such operand (it is 2147483647)"),
    ("accesses", "length", 3, 0, "row 3 of table accesses: length is below 1 (it is 0)"),
    ("accesses", "length", 3, 2**63 - 1, "its box reaches over more bytes"),
    ("accesses", "length", 3, 1025, "launch 0 touches bytes 0 to 1281 of buffer 1, which has 1024"),
    ("accesses", "count_0", 3, 0, "count_0 is below 1"),
    ("accesses", "count_1", 3, -1, "count_1 is below 1"),
    ("accesses", "count_0", 3, 2**31 - 1, "its box repeats more than 1048576 times"),
    ("accesses", "offset", 3, -1, "launch 0 touches bytes -1 to"),
    ("accesses", "stride_1", 3, -(1 << 63), "its box reaches over more bytes"),
    ("operands", "offset", 3, 8, "launch 1 touches bytes 8 to 1032 of buffer 2"),
    ("operands", "offset", 3, 1 << 62, "its offset is beyond"),
    ("operands", "buffer", 0, 6, "its launch comes before its buffer is allocated (it is 6)"),
    ("buffers", "allocated_at", 2, 5, "its launch comes before its buffer is allocated (it is 2)"),
    ("buffers", "freed_at", 2, 2, "its launch comes after its buffer was freed (it is 2)"),
    ("buffers", "freed_at", 2, -2, "its launch comes after its buffer was freed (it is 2)"),
    ("buffers", "bytes", 2, 1000, "of buffer 2, which has 1000"),
    ("buffers", "bytes", 2, 2**63 - 1, "its size in bytes is not 0 to"),
    ("buffers", "base", 2, 2**63 - 1, "its base is beyond address"),
    ("tiles", "block_x", 1, 2**31 - 1, "block_x is outside any grid of its tiles (it is 2147483647)"),
    ("tiles", "block_z", 1, -1, "block_z is outside any grid"),
    ("times", "launch", 0, -2, "its launch is not there"),
    ("times", "launch", 23, 6, "its launch is not there"),
    ("times", "tile", 2, 4, "its tile is not there"),
    ("buffers", "buffer", 0, 1, "buffer ids are not dense"),
    ("buffers", "base", 0, -(1 << 63), "its base is beyond address"),
    ("launches", "duration_ns", 0, -1, "its duration_ns is not 0 to"),
    ("launches", "begin_ns", 0, 1 << 62, "its begin_ns is not"),
    ("launches", "flops", 0, 2**63 - 1, "its flops is not 0 to"),
    ("launches", "grid_x", 0, 0, "its grid_x is not 1 to"),
    ("launches", "blocks_per_sm", 0, 2**31 - 1, "its blocks_per_sm is not 0 to 1024"),
    ("launches", "registers", 0, -5, "its registers is not 0 to"),
    ("tiles", "duration_ns", 0, float("inf"), "its duration_ns is not 0 to"),
    ("tiles", "bytes_read", 0, -1, "its bytes_read is not 0 to"),
    ("accesses", "first", 0, float("inf"), "first and last are not 0 <= first <= last <= 1"),
    ("accesses", "last", 0, 9e18, "first and last are not"),
    ("accesses", "first", 0, 0.75, "first and last are not"),
    ("times", "begin_ns", 0, -1, "its begin_ns is not 0 to"),
    ("times", "begin_ns", 0, 501, "it ends before it begins"),
    ("times", "end_ns", 0, 1 << 62, "its end_ns is not 0 to"),
    ("times", "sm", 0, -1, "its sm is not 0 to"),
]


@pytest.mark.parametrize(("table", "column", "row", "value", "words"), STRUCTURE)
def test_rows_that_refer_to_nothing_are_refused(whole_trace, table, column, row, value, words):
    def change(columns):
        values = columns[column].to_numpy().copy()
        values[row] = value
        return {**columns, column: pa.array(values)}

    change_table(whole_trace, table, change)
    assert words in refusal(whole_trace.path)
    [violation, *_] = validate(load(whole_trace.path))
    assert violation.rule == "structure"


# ---- paths


def test_a_path_that_does_not_exist_offers_the_nearest_trace(whole_trace):
    assert "did you mean" in refusal(whole_trace.path.parent / "rum")
    assert "run.tileprof" in refusal(whole_trace.path.parent / "rum")


def test_the_suffix_alone_makes_no_trace_near(whole_trace):
    assert "did you mean" not in refusal(whole_trace.path.parent / "elsewhere")


def test_a_path_that_does_not_exist_says_how_to_record(tmp_path):
    assert "record one with: tileprof record" in refusal(tmp_path / "nowhere" / "run")


def test_a_file_or_a_foreign_folder_is_no_trace(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert "is not a trace" in refusal(tmp_path / "notes.txt")
    assert "is not a trace" in refusal(tmp_path)


def test_what_a_complete_folder_is_called_does_not_matter(whole_trace):
    new_path = whole_trace.path.rename(whole_trace.path.with_name("renamed"))
    assert load(new_path).complete
