"""The schema's tables as Arrow types, and how each column is encoded on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tileprof.trace.schema import Column, Table

_TYPES: Final = {
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "enum": pa.dictionary(pa.int8(), pa.string()),
    "list<int64>": pa.list_(pa.int64()),
}

_DELTA: Final = {"launch", "footprint", "tile", "offset", "buffer", "base", "begin_ns", "end_ns"}
"""Integer columns that rise or step evenly: delta encoding beats a dictionary there, and loses elsewhere."""

ROW_GROUP_ROWS: Final = 1 << 20


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column; an enum is a dictionary of strings."""
    return _TYPES[column.type]


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema that every part of a table has."""
    return pa.schema([pa.field(c.name, arrow_type(c), nullable=c.nullable) for c in table.columns])


def arrow_table(table: Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return an Arrow table from one sequence (array or list) per column; enums come as codes, unknown
    numbers as NaN.
    """
    return pa.Table.from_arrays([_array(c, columns[c.name]) for c in table.columns], schema=arrow_schema(table))


def _array(column: Column, values: Any) -> pa.Array:
    """Return the Arrow array of a column. It is made of buffers: `pyarrow.array` imports pandas, and each recorded
    program would wait for that.
    """
    if column.type == "enum":
        return pa.DictionaryArray.from_arrays(_numbers(values, "int8"), _strings(column.values))
    if column.type == "string":
        return _strings(values)
    if column.type == "list<int64>":
        rows = list(values)
        return pa.ListArray.from_arrays(_offsets(rows), _numbers([number for row in rows for number in row], "int64"))
    return _numbers(values, column.type, unknown_is_null=column.nullable)


def _numbers(values: Any, name: str, *, unknown_is_null: bool = False) -> pa.Array:
    """Return an array of the type ``name``; NaN becomes null where ``unknown_is_null``.

    Raises ValueError for an integer that the type does not hold.
    """
    plain = np.asarray(values) if len(values) else np.empty(0, name)
    numbers = np.ascontiguousarray(plain, dtype=name)
    if numbers is not plain and numbers.dtype.kind == "i" and not np.array_equal(numbers, plain):
        raise ValueError(f"the range {plain.min()} to {plain.max()} is beyond {name}")
    unknown = np.isnan(numbers) if unknown_is_null else np.zeros(1, bool)
    valid = pa.py_buffer(np.packbits(~unknown, bitorder="little")) if unknown.any() else None
    return pa.Array.from_buffers(_TYPES[name], len(numbers), [valid, pa.py_buffer(numbers)])


def _strings(values: Sequence[str]) -> pa.Array:
    texts = [text.encode() for text in values]
    offsets = _offsets(texts).buffers()[1]
    return pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(b"".join(texts)))


def _offsets(rows: Sequence[Sized]) -> pa.Array:
    """Return where each row begins, and where the last one ends: ``[rows + 1]``."""
    return _numbers(np.cumsum([0, *map(len, rows)]), "int32")


def write_part(path: Path, table: Table, columns: Mapping[str, Any]) -> None:
    """Write one Parquet part: under a temporary name first, so that a part is whole or not there.

    Raises OSError when it cannot be written; nothing is left behind then.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    names = {c.name: c for c in table.columns}
    delta = {name for name, c in names.items() if name in _DELTA and c.type.startswith("int")}
    dictionary = [name for name, c in names.items() if name not in delta and c.type != "list<int64>"]
    try:
        with temporary.open("wb") as file:  # Arrow itself takes no name that is not UTF-8
            pq.write_table(
                arrow_table(table, columns),
                file,
                row_group_size=ROW_GROUP_ROWS,
                compression="zstd",
                use_dictionary=dictionary,
                column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
