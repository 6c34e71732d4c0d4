"""Writing a trace as a stream: rows are kept until there are many, then written as one Parquet part per table.

Memory is bounded by `CHECKPOINT_ROWS` rows, the largest single footprint, and the list of buffers. At a
checkpoint the tables are written in an order in which nothing refers to what is not there yet: buffers, tiles,
accesses, operands, times, and launches last. A killed recording therefore holds every launch up to its last
checkpoint; the reader drops what was written beyond it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tileprof.devices import Device
from tileprof.errors import UserError
from tileprof.trace import arrow, folder, manifest, schema
from tileprof.trace.columns import buffer_columns, buffer_row, footprint_columns, operand_rows, row_columns
from tileprof.trace.footprint import Footprint, Launch
from tileprof.trace.values import LaunchRows, checked_footprint, enum_code, ints, utf8

CHECKPOINT_ROWS: Final = 1 << 20
CHECKPOINT_SECONDS: Final = 10.0
"""A slow recording loses at most this much when it is killed."""

_OP, _CALL = ([c.name for c in schema.LAUNCHES.columns].index(name) for name in ("op", "call"))
_DESCRIPTION: Final = ("name", "kind", "dtype", "shape", "strides")


@dataclass(slots=True)
class _Rows:
    """The rows added since the last checkpoint, and the facts about all rows before it.

    An interrupt may come between any two steps of Python. So each addition is one append to one list, and a checkpoint
    replaces the whole: the trace then holds an addition or does not, and never half of one.
    """

    part: int = 0
    written: Counter[str] = field(default_factory=Counter)
    """Rows on the disk, by table."""
    coverage: Counter[str] = field(default_factory=Counter)
    known_footprints: list[tuple[int, int]] = field(default_factory=list)
    """Tiles and operands of those on the disk."""
    known_tiles: list[int] = field(default_factory=list)
    """Tiles of the launches on the disk."""
    footprints: list[Footprint] = field(default_factory=list)
    launches: list[tuple[tuple[tuple[int, int], ...], LaunchRows, tuple[Any, ...]]] = field(default_factory=list)
    """Bound operands, what is shared with launches alike, and the row."""
    times: list[tuple[NDArray[Any], ...]] = field(default_factory=list)

    @property
    def footprint_count(self) -> int:
        return len(self.known_footprints) + len(self.footprints)

    def tiles_of(self, launch: int) -> int:
        before = len(self.known_tiles)
        return self.known_tiles[launch] if launch < before else self.launches[launch - before][1].tiles

    def footprint(self, number: int) -> tuple[int, int]:
        """Return tiles and operands."""
        before = len(self.known_footprints)
        return self.known_footprints[number] if number < before else _sizes(self.footprints[number - before])

    def after(self, rows: Mapping[str, int]) -> _Rows:
        """Return the state once all of it is on the disk: ``rows`` of each table in this part."""
        return _Rows(
            self.part + 1,
            self.written + Counter(rows),
            self.coverage + Counter(alike.launch.coverage for _, alike, _ in self.launches),
            self.known_footprints + [_sizes(footprint) for footprint in self.footprints],
            self.known_tiles + [alike.tiles for _, alike, _ in self.launches],
        )


def _sizes(footprint: Footprint) -> tuple[int, int]:
    return footprint.tiles, int(footprint.boxes.operand.max(initial=-1)) + 1


class TraceWriter:
    """Writes ``<path>.tileprof``; until `close` it is ``<path>.tileprof.partial``.

    Ids are handed out densely in the order of the calls. Arrays are kept until the next checkpoint: do not
    change them after handing them over. All methods may be called from any thread; in a forked child they do
    nothing, the trace is the parent's. As a context manager it closes, or abandons on an exception.

    Raises UserError from any method when the disk does not take the trace (what was written stays and loads,
    and every later call raises again), and ValueError for calls that would make an invalid trace.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        recorder: str,
        command: Sequence[str],
        device: Device,
        granule: int = 1,
        force: bool = False,
    ) -> None:
        self.path, self.partial_path = folder.places(path)
        self._force = force
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._failure: str | None = None
        self._ended = False
        self._new = _Rows()
        self._notes: dict[str, None] = {}
        self._buffers: list[dict[str, Any]] = []
        self._waiting_rows = 0
        self._checkpoint_at = time.monotonic() + CHECKPOINT_SECONDS
        self._manifest = manifest.initial(
            recorder=recorder, command=list(command), device=device.to_dict(), granule=granule
        )
        with self._disk():
            folder.claim(self.path, self.partial_path, self._manifest, force=force)

    # ---- what a recorder says

    @property
    def launches(self) -> int:
        """Launches added so far: the id of the next one."""
        new = self._new
        return len(new.known_tiles) + len(new.launches)

    def add_buffer(
        self,
        *,
        base: int,
        bytes: int,  # noqa: A002 - the column's name
        kind: str,
        name: str = "",
        dtype: str = "",
        shape: Sequence[int] = (),
        strides: Sequence[int] = (),
        before_start: bool = False,
    ) -> int:
        """Return a buffer allocated now (or before recording began): its id."""
        with self._lock:
            self._check_open()
            self._buffers.append(
                buffer_row(
                    len(self._buffers),
                    allocated_at=-1 if before_start else self.launches,
                    base=base,
                    size=bytes,
                    kind=kind,
                    name=name,
                    dtype=dtype,
                    shape=shape,
                    strides=strides,
                )
            )
            return len(self._buffers) - 1

    def free_buffer(self, buffer: int) -> None:
        """The buffer is freed now, before the next launch."""
        with self._lock:
            self._check_open()
            row = self._buffer(buffer)
            if row["freed_at"] != schema.NEVER:
                raise ValueError(f"buffer {buffer} is freed twice")
            row["freed_at"] = self.launches

    def describe_buffer(self, buffer: int, **changed: Any) -> None:
        """Change what is known of a buffer: ``name``, ``kind``, ``dtype``, ``shape``, ``strides``."""
        with self._lock:
            self._check_open()
            row = self._buffer(buffer)
            for key, value in changed.items():
                if key not in _DESCRIPTION:
                    raise ValueError(f"a buffer's {key} cannot be changed")
                if key == "kind":
                    row[key] = enum_code("kind", value, schema.KINDS)
                else:
                    row[key] = ints(value) if key in ("shape", "strides") else utf8(value)

    def add_footprint(self, footprint: Footprint) -> int:
        """Return tiles and accesses that launches can refer to: their id. Boxes may come in any order."""
        footprint = checked_footprint(footprint)
        with self._lock:
            self._check_open()
            number = self._new.footprint_count
            self._new.footprints.append(footprint)
            self._grow(footprint.tiles + len(footprint.boxes))
            return number

    def add_launch(self, launch: Launch) -> int:
        """Return a launch of a footprint on bound operands: its id."""
        rows = self.alike(launch)
        return self.add_alike(rows, launch.operands, launch.module, launch.begin_ns, launch.call)

    def alike(self, launch: Launch) -> LaunchRows:
        """Return what `add_alike` needs to add launches like this one, which is not added; their footprint is there."""
        with self._lock:
            self._check_open()
            if not 0 <= launch.footprint < self._new.footprint_count:
                raise ValueError(f"{launch.kernel}: there is no footprint {launch.footprint}")
            return LaunchRows(launch, *self._new.footprint(launch.footprint))

    def add_alike(
        self, rows: LaunchRows, operands: tuple[tuple[int, int], ...], module: str, begin_ns: int, call: str
    ) -> int:
        """Return a launch that differs from ``rows.launch`` in these arguments alone: its id."""
        with self._lock:
            self._check_open()
            number = self.launches
            self._check_operands(rows, operands)
            self._new.launches.append((operands, rows, rows.row(number, module, begin_ns, call)))
            self._grow(1 + len(operands))
            return number

    def rename_last(self, launch: int, op: str) -> None:
        """Let another operator have issued a launch, whose arguments are then unknown. A launch that is not the last
        one, or is on the disk already, keeps its operator.
        """
        with self._lock:
            self._check_open()
            if launch == self.launches - 1 and self._new.launches:
                operands, rows, row = self._new.launches[-1]
                changed = tuple(utf8(op) if i == _OP else "" if i == _CALL else value for i, value in enumerate(row))
                self._new.launches[-1] = operands, rows, changed

    def add_times(self, launch: int, tile: ArrayLike, sm: ArrayLike, begin_ns: ArrayLike, end_ns: ArrayLike) -> None:
        """Measured times of tiles of a launch, from the launch's begin: arrays of equal length."""
        arrays = zip((tile, sm, begin_ns, end_ns), (np.int32, np.int32, np.int64, np.int64), strict=True)
        tile, sm, begin_ns, end_ns = (np.atleast_1d(np.asarray(values)).astype(type_) for values, type_ in arrays)
        if not len(tile) == len(sm) == len(begin_ns) == len(end_ns):
            raise ValueError("times of a launch must be arrays of equal length")
        with self._lock:
            self._check_open()
            if not 0 <= launch < self.launches:
                raise ValueError(f"times for launch {launch}, but there are {self.launches}")
            tiles = self._new.tiles_of(launch)
            if len(tile) and not (tile.min() >= 0 and tile.max() < tiles):
                raise ValueError(f"times for tiles beyond the {tiles} of launch {launch}")
            order = np.argsort(tile, kind="stable")
            columns = (np.full(len(tile), launch), tile[order], sm[order], begin_ns[order], end_ns[order])
            if len(tile):
                self._new.times.append(columns)
            self._grow(len(tile))

    def note(self, text: str) -> None:
        """Add a note to the trace; equal notes are written once."""
        with self._lock:
            self._check_open()
            self._notes[utf8(text)] = None

    # ---- how it ends

    def close(self, exit_code: int = 0) -> Path:
        """Write the rest and give the trace its name: the path of the whole trace.

        Raises UserError when another trace took its place meanwhile; the partial folder is then whole and loads.
        """
        with self._lock:
            if self._ended or self._is_child():
                return self.path
            if self._failure is not None:
                raise UserError(self._failure)
            self._checkpoint()
            for table in schema.TABLES.values():
                if not self._row_count(table.name):
                    self._write(table, {c.name: [] for c in table.columns}, part=0)
            self._end(complete=True, exit_code=exit_code)
            with self._disk():
                folder.publish(self.partial_path, self.path, force=self._force)
            return self.path

    def abandon(self, reason: str) -> Path:
        """Write what there is and leave it, marked partial with the reason: the path of the partial trace.

        Raises UserError when the rest could not be written; what was written before is still there and loads.
        """
        with self._lock:
            if self._ended or self._is_child():
                return self.partial_path
            self._manifest["reason"] = utf8(reason)
            try:
                self._checkpoint()
            finally:
                self._end(complete=False)
            return self.partial_path

    def _end(self, *, complete: bool, exit_code: int | None = None) -> None:
        self._ended = True
        final = {
            **self._manifest,
            "complete": complete,
            "exit_code": exit_code,
            "libraries": manifest.libraries(),
            "rows": {name: self._row_count(name) for name in schema.TABLES},
            "coverage": {name: self._new.coverage[name] for name in schema.COVERAGES},
            "notes": list(self._notes),
            "writer": None,
        }
        with self._disk():
            manifest.write(self.partial_path, final)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            with suppress(UserError):  # the exception under way is the one to show; the manifest says partial already
                self.abandon(f"{type(error).__name__}: {error}")

    # ---- checkpoints

    def _grow(self, rows: int) -> None:
        self._waiting_rows += rows
        if self._waiting_rows >= CHECKPOINT_ROWS or time.monotonic() >= self._checkpoint_at:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write what waits, as one part of each table.

        Nothing is forgotten before everything is written: after an interruption the same parts are written again.
        """
        new, rows = self._new, {}
        if not self._is_child():
            first = len(new.known_tiles)
            operands = operand_rows(first, (operands for operands, _, _ in new.launches))
            self._write_buffers()
            tiles, boxes = self._write_footprints(len(new.known_footprints), new.footprints)
            self._write_rows(schema.OPERANDS, operands)
            times = self._write_times(new.times)
            self._write_rows(schema.LAUNCHES, [row for _, _, row in new.launches])
            rows = {"tiles": tiles, "accesses": boxes, "operands": len(operands), "times": times}
            rows["launches"] = len(new.launches)
        self._new = new.after(rows)
        self._waiting_rows = 0
        self._checkpoint_at = time.monotonic() + CHECKPOINT_SECONDS

    def _write_buffers(self) -> None:
        """All buffers again, in one step: a buffer is still described and freed long after it was made."""
        if self._buffers:
            self._write(schema.BUFFERS, buffer_columns(self._buffers), part=0)

    def _row_count(self, table: str) -> int:
        return len(self._buffers) if table == "buffers" else self._new.written[table]

    def _write_footprints(self, first: int, new: Sequence[Footprint]) -> tuple[int, int]:
        """Return footprints ``first`` and those after it: how many tiles and boxes they have."""
        if not new:
            return 0, 0
        tiles, accesses = footprint_columns(first, new)
        self._write(schema.TILES, tiles)
        self._write(schema.ACCESSES, accesses)
        return len(tiles["tile"]), len(accesses["tile"])

    def _write_times(self, new: Sequence[tuple[NDArray[Any], ...]]) -> int:
        """Return how many rows they are."""
        if new:
            ascending = sorted(new, key=lambda columns: int(columns[0][0]))
            joined = (np.concatenate(column) for column in zip(*ascending, strict=True))
            self._write(schema.TIMES, dict(zip((c.name for c in schema.TIMES.columns), joined, strict=True)))
        return sum(len(columns[0]) for columns in new)

    def _write_rows(self, table: schema.Table, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._write(table, row_columns(table, rows))

    def _write(self, table: schema.Table, columns: dict[str, Any], part: int | None = None) -> None:
        place = self.partial_path / table.name
        part = self._new.part if part is None else part
        with self._disk():
            place.mkdir(exist_ok=True)
            arrow.write_part(place / f"{part:06d}.parquet", table, columns)

    # ---- guards

    def _is_child(self) -> bool:
        return os.getpid() != self._pid

    def _check_open(self) -> None:
        """Nothing can be added after the end or a failure."""
        if self._failure is not None:
            raise UserError(self._failure)
        if self._ended:
            raise ValueError(f"{self.path} is closed")

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failure = folder.sentence(error, f"writing {self.partial_path}")
            raise UserError(self._failure) from error

    def _buffer(self, buffer: int) -> dict[str, Any]:
        if not 0 <= buffer < len(self._buffers):
            raise ValueError(f"there is no buffer {buffer}, there are {len(self._buffers)}")
        return self._buffers[buffer]

    def _check_operands(self, rows: LaunchRows, operands: tuple[tuple[int, int], ...]) -> None:
        if len(operands) < rows.operands:
            raise ValueError(
                f"{rows.launch.kernel}: its footprint has {rows.operands} operands, bound are {len(operands)}"
            )
        for buffer, _ in operands:
            if self._buffer(buffer)["freed_at"] != schema.NEVER:
                raise ValueError(f"{rows.launch.kernel}: buffer {buffer} is bound after it was freed")
