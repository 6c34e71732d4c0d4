"""What must hold before a table may be used at all: rows refer to rows that are there.

The reader checks each table when it is first read, so that nobody after it meets an id beyond an array's end.
A broken rule is a TraceError that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.errors import TraceError

if TYPE_CHECKING:
    from tileprof.trace.reader import Trace

_Broken = Iterator[tuple[str, Any]]
"""Pairs of a rule and the mask of rows that break it."""


def check(trace: Trace, table: str, columns: dict[str, Any]) -> None:
    """Raise TraceError for the first rule that a table of ``trace`` breaks; ``columns`` are its rows."""
    for rule, broken in _RULES[table](trace, columns):
        if np.any(broken):
            row = int(np.argmax(broken))
            raise TraceError(f"{trace.path}: row {row} of table {table}: {rule}: the trace is damaged, record it again")


def _launches(_: Trace, rows: dict[str, Any]) -> _Broken:
    yield "launch ids are not dense from 0", rows["launch"] != np.arange(len(rows["launch"]))
    yield "a footprint is negative", rows["footprint"] < 0
    yield "it has no tiles", rows["tiles"] < 1


def _buffers(_: Trace, rows: dict[str, Any]) -> _Broken:
    yield "buffer ids are not dense from 0", rows["buffer"] != np.arange(len(rows["buffer"]))


def _operands(trace: Trace, rows: dict[str, Any]) -> _Broken:
    launch, operand = rows["launch"], rows["operand"]
    yield "rows are not sorted by launch", np.diff(launch, prepend=0) < 0
    yield "its launch is not there", launch >= trace.count("launches")
    first = np.searchsorted(launch, launch, side="left")
    yield "operand slots are not dense from 0", operand != np.arange(len(launch)) - first
    yield "its buffer is not there", (rows["buffer"] < 0) | (rows["buffer"] >= trace.count("buffers"))


def _tiles(trace: Trace, rows: dict[str, Any]) -> _Broken:
    footprint, tile = rows["footprint"], rows["tile"]
    step = np.diff(footprint, prepend=-1)
    yield "footprint ids are not dense from 0", (footprint < 0) | (step < 0) | (step > 1)
    first = np.searchsorted(footprint, footprint, side="left")
    yield "tile ids are not dense from 0", tile != np.arange(len(tile)) - first
    launches = trace.columns("launches")
    sizes = np.bincount(footprint, minlength=1)
    wanted = launches["footprint"]
    missing = wanted >= (len(sizes) if len(footprint) else 0)
    if np.any(missing):
        launch = int(np.argmax(missing))
        raise TraceError(f"{trace.path}: footprint {wanted[launch]} of launch {launch} has no tiles: record it again")
    if len(wanted) and np.any(sizes[wanted] != launches["tiles"]):
        launch = int(np.argmax(sizes[wanted] != launches["tiles"]))
        raise TraceError(
            f"{trace.path}: launch {launch} says {launches['tiles'][launch]} tiles, its footprint has "
            f"{sizes[wanted[launch]]}: record it again"
        )


def _accesses(trace: Trace, rows: dict[str, Any]) -> _Broken:
    footprint = rows["footprint"]
    yield "rows are not sorted by footprint", np.diff(footprint, prepend=0) < 0
    yield "its footprint has no tiles", footprint >= trace.footprints
    tiles = np.bincount(trace.columns("tiles")["footprint"], minlength=1)
    tile = rows["tile"]
    yield "its tile is not there", (tile < 0) | (tile >= tiles[footprint])
    yield (
        "rows of a footprint are not sorted by tile",
        (np.diff(tile, prepend=0) < 0) & (np.diff(footprint, prepend=-1) == 0),
    )
    yield "an operand slot is negative", rows["operand"] < 0


def _times(trace: Trace, rows: dict[str, Any]) -> _Broken:
    launch, tile = rows["launch"], rows["tile"]
    yield "its launch is not there", (launch < 0) | (launch >= trace.count("launches"))
    yield "its tile is not there", (tile < 0) | (tile >= trace.columns("launches")["tiles"][launch])


_RULES = {
    "launches": _launches,
    "operands": _operands,
    "tiles": _tiles,
    "accesses": _accesses,
    "times": _times,
    "buffers": _buffers,
}
