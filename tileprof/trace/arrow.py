"""The schema's tables as Arrow types, and how each column is encoded on disk."""

from __future__ import annotations

from collections.abc import Mapping
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
    if column.type == "enum":
        codes = pa.array(np.asarray(values, dtype=np.int8))
        return pa.DictionaryArray.from_arrays(codes, pa.array(column.values))
    return pa.array(values, type=arrow_type(column), from_pandas=column.nullable)


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
