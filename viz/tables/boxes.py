"""Boxes of bytes that each tile reads and writes, packed for the browser, which draws them on the tensor's axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tileprof.viz.tables.page_values import Packed, pack, packed_bytes

if TYPE_CHECKING:
    from tileprof.trace import Recording

_COLUMNS = ("operand", "mode", "length", "count_0", "stride_0", "count_1", "stride_1")
_TOO_MANY = 1_000_000
"""Boxes of one footprint that are not even tried to pack."""
_NO_TABLE = -1


def box_tables(trace: Recording, launches: pd.DataFrame, *, budget: int, notes: list[str]) -> dict[str, Any]:
    """Return ``boxes``, a table per footprint, and ``box_of``, a launch's place in it (-1: left out), within ``budget``
    bytes.

    Rows are sorted by ``tile``; offsets and strides are bytes, offsets from the operand's begin; mode 0 reads, 1 writes
    and 2 does both atomically. Small footprints come first.
    """
    footprints = [int(footprint) for footprint in launches["footprint"].unique()]
    place: dict[int, int] = {}
    tables: list[dict[str, Packed]] = []
    for footprint in sorted(footprints, key=lambda f: len(trace.footprint(f).boxes)):
        if len(trace.footprint(footprint).boxes) > _TOO_MANY:
            break
        table = _table(trace, footprint)
        size = sum(packed_bytes(column) for column in table.values())
        if size > budget:
            break
        budget -= size
        place[footprint] = len(tables)
        tables.append(table)
    if missing := len(footprints) - len(place):
        notes.append(f"Bytes of single tiles of {missing:,} large kernels are left out: their tensors are not drawn.")
    return {"boxes": tables, "box_of": pack([place.get(int(f), _NO_TABLE) for f in launches["footprint"]])}


def boxes_of(trace: Recording, launch: int) -> dict[str, Packed]:
    """Return the boxes of all tiles of one launch, whatever their number."""
    return _table(trace, int(trace.launches["footprint"].iloc[launch]))


def _table(trace: Recording, footprint: int) -> dict[str, Packed]:
    boxes = trace.footprint(footprint).boxes
    order = np.argsort(boxes.tile, kind="stable")
    table = {name: pack(np.asarray(getattr(boxes, name), np.int64)[order], delta=True) for name in _COLUMNS}
    table["tile"] = pack(boxes.tile[order], delta=True)
    table["offset"] = pack(boxes.offset[order], delta=True)
    return table
