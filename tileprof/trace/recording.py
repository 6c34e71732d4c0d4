"""The tables of a recording: all that the analysis computes from, whether they lie in a folder or in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
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
from tileprof.trace import schema, structure
from tileprof.trace.arrow import arrow_table
from tileprof.trace.columns import buffer_columns, footprint_columns, operand_rows, row_columns
from tileprof.trace.footprint import Boxes, Footprint, Launch
from tileprof.trace.parts import joined_columns
from tileprof.trace.values import checked_footprint, launch_row

EXPANDED_ROWS_LIMIT: Final = 50_000_000
"""Above this many rows `Recording.expanded_accesses` refuses: about 4 GB."""

_FOOTPRINTS_KEPT: Final = 4096


class Recording(ABC):
    """A recorded program. Tables are pandas frames with the columns of `tileprof.trace.schema`, in its order.

    Frames and arrays are shared and read-only: copy before changing. ``path`` is where the recording lies, a mere name
    for one in memory; ``complete`` is False for one that was killed or abandoned.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], device: Device) -> None:
        self.path: Final = path
        self.manifest: Final = manifest
        self.complete: Final[bool] = manifest["complete"]
        self.device: Final = device
        self._columns: dict[str, dict[str, Any]] = {}
        self._footprint_cache: OrderedDict[int, Footprint] = OrderedDict()

    # ---- tables

    @cached_property
    def launches(self) -> pd.DataFrame:
        """The table ``launches`` of the schema."""
        return self._frame(schema.LAUNCHES)

    @cached_property
    def operands(self) -> pd.DataFrame:
        """The table ``operands`` of the schema."""
        return self._frame(schema.OPERANDS)

    @cached_property
    def tiles(self) -> pd.DataFrame:
        """The table ``tiles`` of the schema."""
        return self._frame(schema.TILES)

    @cached_property
    def accesses(self) -> pd.DataFrame:
        """The table ``accesses`` of the schema."""
        return self._frame(schema.ACCESSES)

    @cached_property
    def times(self) -> pd.DataFrame:
        """The table ``times`` of the schema."""
        return self._frame(schema.TIMES)

    @cached_property
    def buffers(self) -> pd.DataFrame:
        """The table ``buffers`` of the schema."""
        return self._frame(schema.BUFFERS)

    def columns(self, table: str) -> dict[str, Any]:
        """Return a table's columns as arrays (enums as int8 codes, see ``schema``), without building a frame."""
        if table not in self._columns:
            self._columns[table] = self._read(table)
        return self._columns[table]

    def count(self, table: str) -> int:
        """Return rows of a table."""
        return len(self.columns(table)[schema.TABLES[table].key[0]])

    @abstractmethod
    def _read(self, table: str) -> dict[str, Any]:
        """Return the columns of a table, as `columns` gives them."""

    # ---- one launch

    @cached_property
    def footprints(self) -> int:
        """Number of footprints; their ids are dense from 0."""
        last = self.columns("tiles")["footprint"]
        return int(last[-1]) + 1 if len(last) else 0

    def footprint(self, number: int) -> Footprint:
        """Return the tiles and boxes of a footprint, as views of the tables. Raises IndexError for an unknown one."""
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
        result = Footprint(
            block,
            Boxes(*(accesses[c.name][boxes] for c in schema.ACCESSES.columns[1:])),
            None if np.isnan(duration).all() else duration,
        )
        self._footprint_cache[number] = result
        if len(self._footprint_cache) > _FOOTPRINTS_KEPT:
            self._footprint_cache.popitem(last=False)
        return result

    def operands_of(self, launch: int) -> tuple[I64, I64]:
        """Return what a launch's operand slots are bound to: ``(buffer, offset in bytes)``, int64, by slot."""
        operands = self.columns("operands")
        rows = _rows_of(operands["launch"], launch)
        return operands["buffer"][rows], operands["offset"][rows]

    def expanded_accesses(self) -> pd.DataFrame:
        """Return every launch's accesses, with buffers for operands: one row per box of a tile of a launch.

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

    def _frame(self, table: schema.Table) -> pd.DataFrame:
        columns = dict(self.columns(table.name))
        for column in table.columns:
            if column.type == "enum":
                columns[column.name] = _categorical(columns[column.name], column.values)
        return pd.DataFrame(columns, copy=False)


class MemoryRecording(Recording):
    """A recording that was never written: its launches, and what they touch and are bound to."""

    def __init__(
        self,
        name: str,
        device: Device,
        *,
        buffers: Sequence[Mapping[str, Any]],
        footprints: Sequence[Footprint],
        launches: Sequence[Launch],
        recorder: str,
    ) -> None:
        """``buffers``: rows of `tileprof.trace.columns.buffer_row`, whose places are the numbers that launches bind.

        Raises TraceError, at the first use of a table, for rows that no trace may hold; ValueError for such footprints.
        """
        manifest = {"complete": True, "recorder": recorder, "granule": 1, "command": [], "notes": []}
        super().__init__(Path(name), manifest, device)
        tiles, accesses = footprint_columns(0, [checked_footprint(footprint) for footprint in footprints])
        rows = [launch_row(n, launch, footprints[launch.footprint].tiles) for n, launch in enumerate(launches)]
        self._columns_by_table = {
            "launches": row_columns(schema.LAUNCHES, rows),
            "operands": row_columns(schema.OPERANDS, operand_rows(0, (launch.operands for launch in launches))),
            "tiles": tiles,
            "accesses": accesses,
            "times": row_columns(schema.TIMES, []),
            "buffers": buffer_columns(buffers),
        }

    def __repr__(self) -> str:
        return f"<MemoryRecording {self.path}: {self.count('launches')} launches on {self.device.name}>"

    def _read(self, table: str) -> dict[str, Any]:
        columns = joined_columns(
            [arrow_table(schema.TABLES[table], self._columns_by_table[table])], schema.TABLES[table]
        )
        structure.check(self, table, columns)
        return columns


def _categorical(codes: NDArray[np.int8], values: tuple[str, ...]) -> pd.Categorical[Any]:
    return pd.Categorical.from_codes(codes, pd.Index(values))


def _rows_of(sorted_ids: I64, id_number: int) -> slice:
    return slice(
        int(np.searchsorted(sorted_ids, id_number, side="left")),
        int(np.searchsorted(sorted_ids, id_number, side="right")),
    )
