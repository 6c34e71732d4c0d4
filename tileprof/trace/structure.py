"""Rules that must hold before a table may be used at all: rows refer to rows that are there, boxes lie inside their
buffers.

The reader checks each table when it is first read, so that no later step meets an id beyond an array's end, or a
box that no memory holds.
A broken rule is a TraceError that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import TraceError
from tileprof.trace import schema
from tileprof.trace.extents import FAR, reach, slots_bound, touched

if TYPE_CHECKING:
    from tileprof.trace.recording import Recording

_Broken = Iterator[tuple[str, Any, Any]]
"""A rule, the mask of rows that break it, and their values."""

_MOST_BYTES: Final = 1 << 60
"""Limit of a buffer's size, an offset, an address: sums of a few of them stay in int64."""
_ALWAYS_ALLOWED: Final = 1 << 20
"""Repetitions of a box and coordinates of a tile that cost little, whatever the size of buffers and grids."""
_MOST_REPETITIONS: Final = 1 << 31
_COORDINATES_A_TILE: Final = 64
"""Tiles fill their grid, except for the blocks of a cluster that count as one; a place far beyond that is not a
place."""


MOST_TILES: Final = 1 << 28
"""Most tiles of all launches together: the analysis takes some ten bytes for each."""
_MOST_NS: Final = 1 << 60
"""36 years: sums of a few such times stay in int64."""
_MOST_SMS: Final = 1_000_000
_MOST_BLOCKS: Final = 1 << 60
_MOST_RANK: Final = 64
_COUNT: Final = (1, 2**31 - 1)
_LAUNCH_RANGES: Final = {
    **{f"{what}_{axis}": _COUNT for what in ("grid", "block", "cluster") for axis in "xyz"},
    "stream": (0, 2**31 - 1), "graph": (-1, 2**31 - 1), "registers": (0, 1 << 20), "shared_bytes": (0, 2**31 - 1),
    "blocks_per_sm": (0, 1 << 10), "begin_ns": (-_MOST_NS, _MOST_NS), "duration_ns": (0, _MOST_NS),
    "flops": (0, 1 << 62),
}  # fmt: skip
_TILE_RANGES: Final = {"duration_ns": (0, _MOST_NS), "bytes_read": (0, _MOST_BYTES), "bytes_written": (0, _MOST_BYTES)}


def check(trace: Recording, table: str, columns: dict[str, Any]) -> None:
    """Raise TraceError for the first rule that a table of ``trace`` breaks; ``columns`` are its rows."""
    for rule, broken, values in _RULES[table](trace, columns):
        if np.any(broken):
            row = int(np.argmax(broken))
            raise TraceError(
                f"{trace.path}: row {row} of table {table}: {rule} (it is {values[row]}): the trace is damaged, "
                "record it again"
            )


def _descends(ids: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where ids are less than the one before, or negative at first; differences of int64 could wrap."""
    broken = np.zeros(len(ids), dtype=bool)
    broken[:1] = ids[:1] < 0
    np.less(ids[1:], ids[:-1], out=broken[1:])
    return broken


def _outside(rows: dict[str, Any], ranges: dict[str, tuple[int, int]]) -> _Broken:
    """Return a rule per column whose numbers have a least and a most; unknown ones (NaN) break none."""
    for name, (least, most) in ranges.items():
        yield f"its {name} is not {least} to {most}", (rows[name] < least) | (rows[name] > most), rows[name]


def _launches(trace: Recording, rows: dict[str, Any]) -> _Broken:
    yield "launch ids are not dense from 0", rows["launch"] != np.arange(len(rows["launch"])), rows["launch"]
    yield "a footprint is negative", rows["footprint"] < 0, rows["footprint"]
    yield "it has no tiles", rows["tiles"] < 1, rows["tiles"]
    yield from _outside(rows, _LAUNCH_RANGES)
    for name, words in (("shape_source", schema.SHAPE_SOURCES), ("time_source", schema.TIME_SOURCES)):
        yield f"its {name} is none of {', '.join(words[1:])}", ~rows[name].isin(words).to_numpy(bool), rows[name]
    for what in ("grid", "block", "cluster"):
        x, y, z = (rows[f"{what}_{axis}"].astype(np.float64) for axis in "xyz")
        yield f"its {what} has more than {_MOST_BLOCKS} parts", x * y * z > _MOST_BLOCKS, x * y * z
    tiles = np.cumsum(rows["tiles"].astype(np.float64))
    if len(tiles) and tiles[-1] > MOST_TILES:
        raise TraceError(f"{trace.path}: its launches have {tiles[-1]:,.0f} tiles; at most {MOST_TILES:,} are read")


def _buffers(_: Recording, rows: dict[str, Any]) -> _Broken:
    yield "buffer ids are not dense from 0", rows["buffer"] != np.arange(len(rows["buffer"])), rows["buffer"]
    size, base = rows["bytes"], rows["base"]
    yield f"its size in bytes is not 0 to {_MOST_BYTES}", (size < 0) | (size > _MOST_BYTES), size
    yield f"its base is beyond address {_MOST_BYTES}", (base > _MOST_BYTES) | (base < -_MOST_BYTES), base
    for name in ("shape", "strides"):
        wrong = np.fromiter((_no_layout(values) for values in rows[name]), bool, len(rows[name]))
        yield f"its {name} has more than {_MOST_RANK} numbers, or numbers beyond {_MOST_BYTES}", wrong, rows[name]


def _no_layout(values: tuple[int, ...]) -> bool:
    return len(values) > _MOST_RANK or not all(-_MOST_BYTES <= v <= _MOST_BYTES for v in values)


def _operands(trace: Recording, rows: dict[str, Any]) -> _Broken:
    launch, operand, buffer, offset = rows["launch"], rows["operand"], rows["buffer"], rows["offset"]
    yield "rows are not sorted by launch", _descends(launch), launch
    yield "its launch is not there", launch >= trace.count("launches"), launch
    first = np.searchsorted(launch, launch, side="left")
    yield "operand slots are not dense from 0", operand != np.arange(len(launch)) - first, operand
    yield "its buffer is not there", (buffer < 0) | (buffer >= trace.count("buffers")), buffer
    yield f"its offset is beyond {_MOST_BYTES} bytes", (offset < -_MOST_BYTES) | (offset > _MOST_BYTES), offset
    # Ids ascend in order of allocation; of a buffer from before the start that was met late, the id says when.
    buffers = trace.columns("buffers")
    born, freed = np.maximum.accumulate(buffers["allocated_at"]), buffers["freed_at"][buffer]
    yield "its launch comes before its buffer is allocated", launch < born[buffer], buffer
    yield "its launch comes after its buffer was freed", (freed != schema.NEVER) & (launch >= freed), buffer


def _tiles(trace: Recording, rows: dict[str, Any]) -> _Broken:
    footprint, tile = rows["footprint"], rows["tile"]
    step = np.diff(footprint, prepend=-1)
    yield "footprint ids are not dense from 0", (footprint < 0) | (step < 0) | (step > 1), footprint
    first = np.searchsorted(footprint, footprint, side="left")
    yield "tile ids are not dense from 0", tile != np.arange(len(tile)) - first, tile
    launches = trace.columns("launches")
    sizes = np.bincount(footprint, minlength=1)
    most = np.maximum(_COORDINATES_A_TILE * sizes, _ALWAYS_ALLOWED)[footprint]
    for axis in "xyz":
        at = rows[f"block_{axis}"]
        yield f"block_{axis} is outside any grid of its tiles", (at < 0) | (at > most), at
    yield from _outside(rows, _TILE_RANGES)
    footprint_of = launches["footprint"]
    missing = footprint_of >= (len(sizes) if len(footprint) else 0)
    if np.any(missing):
        launch = int(np.argmax(missing))
        raise TraceError(
            f"{trace.path}: footprint {footprint_of[launch]} of launch {launch} has no tiles: record it again"
        )
    if len(footprint_of) and np.any(sizes[footprint_of] != launches["tiles"]):
        launch = int(np.argmax(sizes[footprint_of] != launches["tiles"]))
        raise TraceError(
            f"{trace.path}: launch {launch} says {launches['tiles'][launch]} tiles, its footprint has "
            f"{sizes[footprint_of[launch]]}: record it again"
        )


def _accesses(trace: Recording, rows: dict[str, Any]) -> _Broken:
    footprint, tile, operand = rows["footprint"], rows["tile"], rows["operand"]
    yield "rows are not sorted by footprint", _descends(footprint), footprint
    yield "its footprint has no tiles", footprint >= trace.footprints, footprint
    tiles = np.bincount(trace.columns("tiles")["footprint"], minlength=1)
    yield "its tile is not there", (tile < 0) | (tile >= tiles[footprint]), tile
    yield (
        "rows of a footprint are not sorted by tile",
        (np.diff(tile, prepend=0) < 0) & (np.diff(footprint, prepend=-1) == 0),
        tile,
    )
    yield "an operand slot is negative", operand < 0, operand
    slots = slots_bound(trace)
    has_launch = np.bincount(trace.columns("launches")["footprint"], minlength=trace.footprints) > 0
    yield "a launch binds no such operand", has_launch[footprint] & (operand >= slots[footprint]), operand
    for name in ("length", "count_0", "count_1"):
        yield f"{name} is below 1", rows[name] < 1, rows[name]
    first, last = rows["first"], rows["last"]
    beyond = (first < 0) | (first > 1) | (last < 0) | (last > 1) | (first > last)
    yield "first and last are not 0 <= first <= last <= 1", beyond, np.stack([first, last], axis=1)
    far = reach(rows)
    yield "its box reaches over more bytes than there are addresses", far > FAR, far
    size = trace.columns("buffers")["bytes"]
    most = min(max(int(size.max(initial=0)), _ALWAYS_ALLOWED), _MOST_REPETITIONS)
    repeated = rows["count_0"].astype(np.int64) * rows["count_1"]
    yield f"its box repeats more than {most} times, more than buffers have bytes", repeated > most, repeated
    extents = touched(trace, rows, slots)
    if np.any(extents.outside):
        row, bound = int(np.argmax(extents.outside)), trace.columns("operands")
        buffer = bound["buffer"][row]
        raise TraceError(
            f"{trace.path}: row {row} of table operands: launch {bound['launch'][row]} touches bytes "
            f"{extents.begin[row]} to {extents.end[row]} of buffer {buffer}, which has {size[buffer]}: the trace "
            "is damaged, record it again"
        )


def _times(trace: Recording, rows: dict[str, Any]) -> _Broken:
    launch, tile = rows["launch"], rows["tile"]
    yield "its launch is not there", (launch < 0) | (launch >= trace.count("launches")), launch
    yield "its tile is not there", (tile < 0) | (tile >= trace.columns("launches")["tiles"][launch]), tile
    yield from _outside(rows, {"begin_ns": (0, _MOST_NS), "end_ns": (0, _MOST_NS), "sm": (0, _MOST_SMS)})
    yield "it ends before it begins", rows["end_ns"] < rows["begin_ns"], rows["end_ns"]


_RULES = {
    "launches": _launches,
    "operands": _operands,
    "tiles": _tiles,
    "accesses": _accesses,
    "times": _times,
    "buffers": _buffers,
}
