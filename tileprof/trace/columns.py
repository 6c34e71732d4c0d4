"""Takes what recorders hand over as columns of the tables: the one step between their values and a file, or memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tileprof.arrays.ragged import spans
from tileprof.trace import schema
from tileprof.trace.distinct import bytes_by_tile
from tileprof.trace.footprint import Boxes, Footprint
from tileprof.trace.values import enum_code, ints, utf8


def buffer_row(
    number: int,
    *,
    allocated_at: int,
    base: int,
    size: int,
    kind: str,
    name: str = "",
    dtype: str = "",
    shape: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the row of a buffer of ``size`` bytes that is not freed; ``allocated_at`` in launches, -1 before
    recording.
    """
    return {
        "buffer": number,
        "base": int(base),
        "bytes": int(size),
        "allocated_at": allocated_at,
        "freed_at": schema.NEVER,
        "name": utf8(name),
        "kind": enum_code("kind", kind, schema.KINDS),
        "dtype": utf8(dtype),
        "shape": ints(shape),
        "strides": ints(strides),
    }


def buffer_columns(buffers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``schema.BUFFERS`` from rows of `buffer_row`."""
    rows = list(buffers)
    return {c.name: [row[c.name] for row in rows] for c in schema.BUFFERS.columns}


def footprint_columns(first: int, footprints: Sequence[Footprint]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``schema.TILES`` and ``schema.ACCESSES`` of at least one footprint; ``first`` is the number of
    the first.
    """
    number = np.arange(first, first + len(footprints), dtype=np.int64)
    tiles = np.array([f.tiles for f in footprints], dtype=np.int64)
    sizes = np.array([len(f.boxes) for f in footprints], dtype=np.int64)
    boxes = Boxes.concat(f.boxes for f in footprints)
    tiles_before = np.cumsum(tiles) - tiles
    read, written = bytes_by_tile(boxes.tile.astype(np.int64) + np.repeat(tiles_before, sizes), boxes, int(tiles.sum()))
    block = np.concatenate([f.block for f in footprints])
    durations = [np.full(f.tiles, np.nan) if f.duration_ns is None else f.duration_ns for f in footprints]
    tile_columns = {
        "footprint": np.repeat(number, tiles),
        "tile": spans(np.zeros_like(tiles), tiles),
        **{f"block_{axis}": block[:, i] for i, axis in enumerate("xyz")},
        "duration_ns": np.concatenate(durations),
        "bytes_read": read,
        "bytes_written": written,
    }
    accesses = {c.name: getattr(boxes, c.name) for c in schema.ACCESSES.columns[1:]}
    return tile_columns, {"footprint": np.repeat(number, sizes), **accesses}


def operand_rows(first: int, operands: Iterable[Sequence[tuple[int, int]]]) -> list[tuple[int, int, int, int]]:
    """Return the rows of ``schema.OPERANDS`` from the operands of each launch; ``first`` is the first
    launch's number.
    """
    return [
        (number, slot, buffer, offset)
        for number, bound in enumerate(operands, start=first)
        for slot, (buffer, offset) in enumerate(bound)
    ]


def row_columns(table: schema.Table, rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return rows, in the order of the table's columns, as columns."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(table.columns)
    return dict(zip((c.name for c in table.columns), columns, strict=True))
