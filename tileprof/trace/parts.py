"""Reading the Parquet parts of one table, trusting nothing that stands in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tileprof.errors import TraceError
from tileprof.trace.arrow import arrow_type
from tileprof.trace.schema import Column, Table

MOST_ROWS: Final = 1 << 26
"""Most rows of a table. Equal rows compress to nothing, so a file of a kilobyte may claim more rows than there is
memory.
"""

_Result = TypeVar("_Result")


def parts_of(folder: Path, table: Table) -> list[Path]:
    """Return the table's parts in order; none when its folder is missing."""
    return sorted((folder / table.name).glob("[0-9]*.parquet"))


def checked_rows(parts: list[Path], table: Table) -> int:
    """Return rows in the parts, from their footers. Raises TraceError for a damaged part or one of other columns."""
    rows = sum(_or_damaged(part, _rows, table) for part in parts)
    if rows > MOST_ROWS:
        raise TraceError(f"{parts[0].parent} has {rows:,} rows; at most {MOST_ROWS:,} are read")
    return rows


@contextmanager
def _opened(part: Path) -> Iterator[pq.ParquetFile]:
    """Yield a part, read by Arrow itself rather than through a Python file.

    Arrow's threads outlive a read for a moment. One of them that lets go of a Python object while the interpreter ends
    aborts the process (4 of 100 short commands on two busy cores).
    """
    try:
        str(part).encode()
    except UnicodeEncodeError:  # Arrow takes no name that is not UTF-8
        with part.open("rb") as bytes_, pq.ParquetFile(bytes_) as file:
            yield file
    else:
        with pa.OSFile(str(part)) as bytes_, pq.ParquetFile(bytes_) as file:
            yield file


def _rows(part: Path, table: Table) -> int:
    with _opened(part) as file:
        _check_types(part, table, file.schema_arrow)
        return int(file.metadata.num_rows)


def _check_types(part: Path, table: Table, file_schema: pa.Schema) -> None:
    for column in table.columns:
        at = file_schema.get_field_index(column.name)
        if at < 0 and column.optional:
            continue
        if at < 0:
            raise TraceError(f"{part} has no column {column.name}: the trace is damaged, record it again")
        actual, expected = file_schema.field(at).type, arrow_type(column)
        if column.type == "enum":
            actual, expected = actual.value_type if pa.types.is_dictionary(actual) else actual, pa.string()
        if actual != expected:
            raise TraceError(
                f"{part}: column {column.name} is {actual}, expected {expected}: the trace is damaged, record it again"
            )


def read_columns(parts: list[Path], table: Table) -> dict[str, Any]:
    """Return all rows, one value per column: arrays; enum codes as int8; strings as a pandas Series; lists as tuples.

    Unknown numbers are NaN. Raises TraceError for a damaged part, a missing value or an unknown enum value.
    """
    return joined_columns([_or_damaged(part, _read, table) for part in parts], table)


def joined_columns(tables: Sequence[pa.Table], table: Table) -> dict[str, Any]:
    """Return the columns of Arrow tables as `read_columns` does."""
    return {
        c.name: _column(table, c, [chunk for t in tables for chunk in t.column(c.name).chunks]) for c in table.columns
    }


def _read(part: Path, table: Table) -> pa.Table:
    with _opened(part) as file:
        present = set(file.schema_arrow.names)
        read = file.read(columns=[c.name for c in table.columns if c.name in present])
        for column in table.columns:
            if column.name not in present:  # optional, or the door would have refused the part
                empty = pa.repeat(pa.scalar("", arrow_type(column)), read.num_rows)
                read = read.append_column(column.name, empty)
        read.validate(full=True)  # text that is not UTF-8, dictionaries and lists that end early
        return read


def _column(table: Table, column: Column, chunks: list[pa.Array]) -> Any:
    if not column.nullable and any(chunk.null_count for chunk in chunks):
        raise TraceError(f"table {table.name}: {column.name} has missing values: the trace is damaged, record it again")
    if column.type == "enum":
        codes = [_codes(table, column, chunk) for chunk in chunks]
        return _frozen(np.concatenate(codes) if codes else np.empty(0, np.int8))
    joined = pa.chunked_array(chunks, arrow_type(column))
    if column.type == "string":
        return joined.to_pandas()
    if column.type == "list<int64>":
        return [tuple(values) for values in joined.to_pylist()]
    return _frozen(joined.to_numpy())


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False  # shared by everyone who reads the trace
    return values


def _codes(table: Table, column: Column, chunk: pa.Array) -> NDArray[np.int8]:
    """Return the chunk's values as places in ``column.values``; the file's own dictionary may be in any order."""
    if not pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_encode()
    place = {value: code for code, value in enumerate(column.values)}
    words = chunk.dictionary.to_pylist()
    codes = np.array([place.get(word, -1) for word in words] or [-1], dtype=np.int8)[chunk.indices.to_numpy()]
    if (codes < 0).any():
        word = words[chunk.indices[int(codes.argmin())].as_py()]
        raise TraceError(
            f"table {table.name}: {column.name} is {word!r:.40}, expected one of {', '.join(column.values)}: "
            "the trace is damaged, record it again"
        )
    return np.asarray(codes)


def _or_damaged(part: Path, read: Callable[[Path, Table], _Result], table: Table) -> _Result:
    if part.is_symlink() or part.parent.is_symlink() or not part.is_file():
        raise TraceError(f"{part} is damaged (it is a link, or no file): record the trace again")
    try:
        return read(part, table)
    except MemoryError:  # ArrowMemoryError is also an ArrowException
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        why = " ".join(str(error).split())  # Parquet's messages have line ends
        raise TraceError(f"{part} is damaged ({why}): record the trace again") from error
