"""Reading a trace: checked at the door, tables read when they are first asked for."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.devices import Device
from tileprof.errors import TraceError, UserError
from tileprof.trace import folder, manifest, parts, schema, structure
from tileprof.trace.recording import Recording


def load(path: str | os.PathLike[str]) -> Trace:
    """Return the trace in a folder, with or without its suffix; also a partial one, when it is named in full.

    Raises TraceError when the path is not a trace, of another format version, damaged, or incomplete without
    saying so; the message says what to do.
    """
    if not os.fspath(path):
        raise TraceError("the name of the trace is empty; give the folder that `tileprof record` wrote")
    try:
        return Trace(_trace_folder(Path(path)))
    except OSError as error:
        raise TraceError(f"cannot read the trace {str(path)[:300]}: {error.strerror or error}") from error


def _trace_folder(path: Path) -> Path:
    nameless = path.name in ("", "..")  # the folder where we are, or the one above it, may be a trace
    whole, partial = (path, path) if nameless else folder.places(path)
    for candidate in (path, whole):
        if (candidate / manifest.FILE_NAME).exists():
            return candidate
    if path.exists():
        raise TraceError(f"{path} is not a trace: expected a folder with a {manifest.FILE_NAME}")
    if partial.exists():
        raise TraceError(f"there is no {whole}, only a recording that did not end: open {partial}")
    beside = [p.name for p in path.parent.glob(f"*{schema.SUFFIX}*")] if path.parent.is_dir() else []
    names = {name.partition(schema.SUFFIX)[0]: name for name in sorted(beside, reverse=True)}
    close = difflib.get_close_matches(whole.name.removesuffix(schema.SUFFIX), names, n=1)
    hint = (
        f"did you mean {path.parent / names[close[0]]}?"
        if close
        else "record one with: tileprof record python your_script.py"
    )
    raise TraceError(f"there is no trace {path}; {hint}")


class Trace(Recording):
    """A recording in a folder, whose tables are read when they are first asked for.

    A partial trace holds every launch up to its last checkpoint.
    """

    def __init__(self, path: Path) -> None:
        values = manifest.read(path)
        super().__init__(path, values, _device(path, values["device"]))
        self._parts = {name: parts.parts_of(path, table) for name, table in schema.TABLES.items()}
        self._check_rows()

    def __repr__(self) -> str:
        state = "" if self.complete else ", partial"
        return f"<Trace {self.path.name}: {self.count('launches')} launches on {self.device.name}{state}>"

    # ---- what is checked and dropped at the door

    def _check_rows(self) -> None:
        """Footers only: cheap for any trace, and enough to see a part cut short or lost."""
        self._row_counts = {name: parts.checked_rows(self._parts[name], table) for name, table in schema.TABLES.items()}
        if not self.complete:
            return
        for name, rows in self._row_counts.items():
            expected = self.manifest["rows"].get(name)
            if not self._parts[name]:
                raise TraceError(f"{self.path} has no table {name}: the trace is damaged, record it again")
            if rows != expected:
                raise TraceError(
                    f"{self.path}: table {name} has {rows} rows, its manifest says {expected!r:.40}: a part is "
                    "missing, record it again"
                )

    def count(self, table: str) -> int:
        """Return the number of rows of a table, without reading it where the files say it."""
        if table in self._columns:
            return len(self._columns[table][schema.TABLES[table].key[0]])
        return (
            len(self.columns(table)["buffer"]) if table == "buffers" and not self.complete else self._row_counts[table]
        )

    def _read(self, table: str) -> dict[str, Any]:
        return self._settled(table, parts.read_columns(self._parts[table], schema.TABLES[table]))

    def _settled(self, name: str, columns: dict[str, Any]) -> dict[str, Any]:
        if name == "times":
            columns = _chosen_rows(columns, np.lexsort((columns["tile"], columns["launch"])))
        if not self.complete:
            columns = self._rows_before_end(name, columns)
        structure.check(self, name, columns)
        return columns

    def _rows_before_end(self, name: str, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a partial trace that launches before its end refer to."""
        if name == "launches":
            return columns
        launches = self.count("launches")
        if name in ("operands", "times"):
            return _chosen_rows(columns, columns["launch"] < launches)
        if name == "buffers":
            visible = _chosen_rows(columns, columns["allocated_at"] <= launches)
            freed = visible["freed_at"]
            return {**visible, "freed_at": np.where(freed > launches, schema.NEVER, freed)}
        footprints = self.columns("launches")["footprint"]
        return _chosen_rows(columns, columns["footprint"] <= footprints.max(initial=-1))


def _device(path: Path, values: dict[str, Any]) -> Device:
    try:
        return Device.from_dict(values, "its device")
    except UserError as error:
        raise TraceError(f"{path / manifest.FILE_NAME}: {error}: the trace is damaged, record it again") from error


def _chosen_rows(columns: dict[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
    if rows.dtype == np.bool_:
        if rows.all():
            return columns
        rows = np.flatnonzero(rows)
    return {
        name: [values[row] for row in rows] if isinstance(values, list) else _take_one(values, rows)
        for name, values in columns.items()
    }


def _take_one(values: Any, rows: NDArray[Any]) -> Any:
    return values.take(rows).reset_index(drop=True) if isinstance(values, pd.Series) else values[rows]
