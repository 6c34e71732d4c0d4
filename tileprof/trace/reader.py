"""Reading a trace: checked at the door, tables read when they are first asked for."""

from __future__ import annotations

import difflib
import os
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import spans
from tileprof.devices import Device
from tileprof.errors import TraceError, UserError
from tileprof.trace import folder, manifest, parts, schema, structure
from tileprof.trace.footprint import Boxes, Footprint

EXPANDED_ROWS_LIMIT: Final = 50_000_000
"""Above this many rows `Trace.expanded_accesses` refuses: about 4 GB."""

_FOOTPRINTS_KEPT: Final = 4096


def load(path: str | os.PathLike[str]) -> Trace:
    """The trace in a folder, with or without its suffix; also a partial one, when it is named in full.

    Raises TraceError when the path is no trace, of another format version, damaged, or incomplete without
    saying so; the message says what to do.
    """
    if not os.fspath(path):
        raise TraceError("the name of the trace is empty; give the folder that `tileprof record` wrote")
    try:
        return Trace(_found(Path(path)))
    except OSError as error:
        raise TraceError(f"cannot read the trace {str(path)[:300]}: {error.strerror or error}") from error


def _found(path: Path) -> Path:
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
    close = difflib.get_close_matches(whole.name, beside, n=1)
    hint = (
        f"did you mean {path.parent / close[0]}?" if close else "record one with: tileprof record python your_script.py"
    )
    raise TraceError(f"there is no trace {path}; {hint}")


class Trace:
    """A recorded program. Tables are pandas frames with the columns of `tileprof.trace.schema`, in its order.

    Frames and arrays are shared and read-only: copy before changing. ``complete`` is False for a recording
    that was killed or abandoned; it then holds every launch up to its last checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.manifest: Final = manifest.read(path)
        self.complete: Final[bool] = self.manifest["complete"]
        self.device: Final = _device(path, self.manifest["device"])
        self._parts = {name: parts.parts_of(path, table) for name, table in schema.TABLES.items()}
        self._columns: dict[str, dict[str, Any]] = {}
        self._footprint_cache: OrderedDict[int, Footprint] = OrderedDict()
        self._check_rows()

    def __repr__(self) -> str:
        state = "" if self.complete else ", partial"
        return f"<Trace {self.path.name}: {self.count('launches')} launches on {self.device.name}{state}>"

    # ---- tables

    @cached_property
    def launches(self) -> pd.DataFrame:
        return self._frame(schema.LAUNCHES)

    @cached_property
    def operands(self) -> pd.DataFrame:
        return self._frame(schema.OPERANDS)

    @cached_property
    def tiles(self) -> pd.DataFrame:
        return self._frame(schema.TILES)

    @cached_property
    def accesses(self) -> pd.DataFrame:
        return self._frame(schema.ACCESSES)

    @cached_property
    def times(self) -> pd.DataFrame:
        return self._frame(schema.TIMES)

    @cached_property
    def buffers(self) -> pd.DataFrame:
        return self._frame(schema.BUFFERS)

    def columns(self, table: str) -> dict[str, Any]:
        """A table's columns as arrays (enums as int8 codes, see ``schema``), without building a frame."""
        if table not in self._columns:
            read = parts.read_columns(self._parts[table], schema.TABLES[table])
            self._columns[table] = self._settled(table, read)
        return self._columns[table]

    # ---- one launch

    @cached_property
    def footprints(self) -> int:
        """Number of footprints; their ids are dense from 0."""
        last = self.columns("tiles")["footprint"]
        return int(last[-1]) + 1 if len(last) else 0

    def footprint(self, number: int) -> Footprint:
        """The tiles and boxes of a footprint, as views of the tables. Raises IndexError for an unknown one."""
        if number in self._footprint_cache:
            self._footprint_cache.move_to_end(number)
            return self._footprint_cache[number]
        if number < 0:
            raise IndexError(f"there is no footprint {number}")
        tiles, accesses = self.columns("tiles"), self.columns("accesses")
        rows = _rows_of(tiles["footprint"], number)
        boxes = _rows_of(accesses["footprint"], number)
        if rows.start == rows.stop:
            raise IndexError(f"there is no footprint {number}")
        duration = tiles["duration_ns"][rows]
        block = np.column_stack([tiles[f"block_{axis}"][rows] for axis in "xyz"])
        found = Footprint(
            block,
            Boxes(*(accesses[c.name][boxes] for c in schema.ACCESSES.columns[1:])),
            None if np.isnan(duration).all() else duration,
        )
        self._footprint_cache[number] = found
        if len(self._footprint_cache) > _FOOTPRINTS_KEPT:
            self._footprint_cache.popitem(last=False)
        return found

    def operands_of(self, launch: int) -> tuple[I64, I64]:
        """What a launch's operand slots are bound to: ``(buffer, offset in bytes)``, int64, by slot."""
        operands = self.columns("operands")
        rows = _rows_of(operands["launch"], launch)
        return operands["buffer"][rows], operands["offset"][rows]

    def expanded_accesses(self) -> pd.DataFrame:
        """Every launch's accesses, with buffers for operands: one row a box of a tile of a launch.

        Columns: launch, tile, buffer, mode, offset (in the buffer), length, count_0, stride_0, count_1,
        stride_1, first, last. Raises UserError above `EXPANDED_ROWS_LIMIT` rows.
        """
        accesses, footprint = self.columns("accesses"), self.columns("launches")["footprint"]
        first = np.searchsorted(accesses["footprint"], footprint, side="left")
        sizes = np.searchsorted(accesses["footprint"], footprint, side="right") - first
        if int(sizes.sum()) > EXPANDED_ROWS_LIMIT:
            raise UserError(
                f"{self.path} has {int(sizes.sum()):,} accesses over all launches, more than {EXPANDED_ROWS_LIMIT:,}: "
                "use trace.accesses, which holds each footprint once"
            )
        row = spans(first, sizes)
        launch = np.repeat(self.columns("launches")["launch"], sizes)
        buffer, offset = self._bound(launch, accesses["operand"][row])
        frame = {"launch": launch, "tile": accesses["tile"][row], "buffer": buffer}
        frame["mode"] = _categorical(accesses["mode"][row], schema.MODES)
        frame["offset"] = offset + accesses["offset"][row]
        rest = ("length", "count_0", "stride_0", "count_1", "stride_1", "first", "last")
        return pd.DataFrame({**frame, **{name: accesses[name][row] for name in rest}}, copy=False)

    def _bound(self, launch: I64, operand: I64) -> tuple[I64, I64]:
        table = self.columns("operands")
        at = np.searchsorted(table["launch"], launch, side="left") + operand
        inside = np.minimum(at, max(len(table["launch"]) - 1, 0))
        wrong = np.ones(len(at), dtype=bool)
        if len(table["launch"]):
            wrong = (table["launch"][inside] != launch) | (table["operand"][inside] != operand)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise TraceError(
                f"{self.path}: operand {operand[row]} of launch {launch[row]} is bound to nothing: record it again"
            )
        return table["buffer"][inside], table["offset"][inside]

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
                    f"{self.path}: table {name} has {rows} rows, its manifest says {expected!r:.40}: a part is missing, record it again"
                )

    def count(self, table: str) -> int:
        """Rows of a table, without reading it where the files know."""
        if table in self._columns:
            return len(self._columns[table][schema.TABLES[table].key[0]])
        return (
            len(self.columns(table)["buffer"]) if table == "buffers" and not self.complete else self._row_counts[table]
        )

    def _settled(self, name: str, columns: dict[str, Any]) -> dict[str, Any]:
        if name == "times":
            columns = _taken(columns, np.lexsort((columns["tile"], columns["launch"])))
        if not self.complete:
            columns = self._known(name, columns)
        structure.check(self, name, columns)
        return columns

    def _known(self, name: str, columns: dict[str, Any]) -> dict[str, Any]:
        """The rows of a partial trace that launches before its end refer to."""
        if name == "launches":
            return columns
        launches = self.count("launches")
        if name in ("operands", "times"):
            return _taken(columns, columns["launch"] < launches)
        if name == "buffers":
            kept = _taken(columns, columns["allocated_at"] <= launches)
            freed = kept["freed_at"]
            return {**kept, "freed_at": np.where(freed > launches, schema.NEVER, freed)}
        used = self.columns("launches")["footprint"]
        return _taken(columns, columns["footprint"] <= used.max(initial=-1))

    def _frame(self, table: schema.Table) -> pd.DataFrame:
        columns = dict(self.columns(table.name))
        for column in table.columns:
            if column.type == "enum":
                columns[column.name] = _categorical(columns[column.name], column.values)
        return pd.DataFrame(columns, copy=False)


def _device(path: Path, values: dict[str, Any]) -> Device:
    try:
        return Device.from_dict(values, "its device")
    except UserError as error:
        raise TraceError(f"{path / manifest.FILE_NAME}: {error}: the trace is damaged, record it again") from error


def _categorical(codes: NDArray[np.int8], values: tuple[str, ...]) -> pd.Categorical[Any]:
    return pd.Categorical.from_codes(codes, pd.Index(values))


def _rows_of(sorted_ids: I64, wanted: int) -> slice:
    return slice(
        int(np.searchsorted(sorted_ids, wanted, side="left")), int(np.searchsorted(sorted_ids, wanted, side="right"))
    )


def _taken(columns: dict[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
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
