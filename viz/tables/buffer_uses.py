"""The buffers that each launch reads and writes, and the bytes of each of its tiles, packed for the browser."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.trace.footprint import READ
from tileprof.viz.tables.page_values import Packed, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from tileprof.trace import Recording

_TIMES = "\N{MULTIPLICATION SIGN}"
_READS, _WRITES = 1, 2
"""Bits of ``how``."""

MOST_USES = 100_000


def use_tables(
    trace: Recording, launches: pd.DataFrame, codes: Callable[[pd.Series[Any]], list[int]], notes: list[str]
) -> dict[str, Any]:
    """Return ``uses`` and the ``buffers`` that they name; ``codes`` turns texts into numbers.

    A use is an operand slot of a launch: launch, operand, buffer, the ``offset`` of its begin in the buffer (bytes),
    how (1 reads, 2 writes or updates, 3 both), and the tensor that begins there: dtype, shape (sizes with a
    multiplication sign between them) and strides (``3,1``, in elements); of the operator's call where the recorder
    knows it, else the buffer's own.
    """
    operands = trace.operands[trace.operands["launch"].isin(launches["launch"])]
    if len(operands) > MOST_USES:
        notes.append(f"Buffers are named for the first launches only: {MOST_USES:,} of {len(operands):,} operands.")
        operands = operands.head(MOST_USES)
    how = _how(trace, launches, operands)
    numbers, buffer = np.unique(operands["buffer"].to_numpy(np.int64), return_inverse=True)
    buffers = trace.buffers.set_index("buffer").loc[numbers]
    shape = pd.Series([_TIMES.join(map(str, s)) if s is not None else "" for s in buffers["shape"]], dtype=object)
    tensors = _tensors(launches, operands, buffers, buffer)
    return {
        "uses": {
            "launch": pack(operands["launch"].to_numpy(np.int64), delta=True),
            "operand": pack(operands["operand"].to_numpy(np.int64), delta=True),
            "offset": pack(operands["offset"].to_numpy(np.int64), delta=True),
            **{name: pack(codes(pd.Series(tensors[name], dtype=object))) for name in ("dtype", "shape", "strides")},
            "buffer": pack(buffer, delta=True),
            "how": pack(how),
        },
        "buffers": {
            "bytes": pack(buffers["bytes"].to_numpy(np.int64), delta=True),
            "name": pack(codes(buffers["name"])),
            "kind": pack(codes(buffers["kind"])),
            "dtype": pack(codes(buffers["dtype"])),
            "shape": pack(codes(shape)),
        },
    }


@cache
def _operands_of(call: str) -> tuple[tuple[str, str, str] | None, ...]:
    """Return (dtype, shape, strides) of each operand slot, as a launch's ``call`` says; nothing of a call that is no
    JSON.
    """
    try:
        record = json.loads(call) if call else None
    except ValueError:
        return ()
    slots = record.get("operands") if isinstance(record, dict) else None
    return tuple(_tensor(slot) for slot in slots) if isinstance(slots, list) else ()


def _tensor(slot: Any) -> tuple[str, str, str] | None:
    if not isinstance(slot, dict):
        return None
    shape, strides = slot.get("shape"), slot.get("strides")
    if not isinstance(shape, list) or not isinstance(strides, list) or len(shape) != len(strides):
        return None
    return str(slot.get("dtype", "")), _TIMES.join(map(str, shape)), ",".join(map(str, strides))


def _tensors(
    launches: pd.DataFrame, operands: pd.DataFrame, buffers: pd.DataFrame, buffer: NDArray[np.int64]
) -> dict[str, list[str]]:
    """Return dtype, shape and strides of each operand; "" where neither the call nor the buffer says."""
    call_of = dict(zip(launches["launch"].tolist(), launches["call"].fillna("").astype(str), strict=True))
    words = [
        (str(dtype), _TIMES.join(map(str, shape)), ",".join(map(str, strides)))
        if shape is not None and strides is not None
        else ("", "", "")
        for dtype, shape, strides in zip(buffers["dtype"], buffers["shape"], buffers["strides"], strict=True)
    ]
    rows = []
    for launch, operand, offset, at in zip(
        operands["launch"].tolist(), operands["operand"].tolist(), operands["offset"].tolist(), buffer, strict=True
    ):
        slots = _operands_of(call_of[launch])
        slot = slots[operand] if operand < len(slots) else None
        rows.append(slot or (words[at] if offset == 0 else ("", "", "")))
    return {name: [row[k] for row in rows] for k, name in enumerate(("dtype", "shape", "strides"))}


def _how(trace: Recording, launches: pd.DataFrame, operands: pd.DataFrame) -> NDArray[np.int64]:
    """Return how each operand is used; 0 where its launch's footprint never touches it."""
    footprints = launches["footprint"].to_numpy(np.int64)
    place = {int(launch): int(f) for launch, f in zip(launches["launch"].tolist(), footprints.tolist(), strict=True)}
    modes: dict[int, dict[int, int]] = {}
    rows = []
    for launch, operand in zip(operands["launch"].tolist(), operands["operand"].tolist(), strict=True):
        footprint = place[int(launch)]
        if footprint not in modes:
            modes[footprint] = _modes_by_operand(trace, footprint)
        rows.append(modes[footprint].get(int(operand), 0))
    return np.array(rows, np.int64)


def _modes_by_operand(trace: Recording, footprint: int) -> dict[int, int]:
    boxes = trace.footprint(footprint).boxes
    modes: dict[int, int] = {}
    for key in np.unique(boxes.operand.astype(np.int64) * 2 + (boxes.mode == READ)).tolist():
        modes[key // 2] = modes.get(key // 2, 0) | (_READS if key % 2 else _WRITES)
    return modes


def tile_bytes(trace: Recording) -> dict[int, dict[str, Packed]]:
    """Return, by footprint, the ``read`` and ``written`` bytes of each tile."""
    return {int(str(footprint)): moved_bytes(rows) for footprint, rows in trace.tiles.groupby("footprint")}


def moved_bytes(tiles: pd.DataFrame) -> dict[str, Packed]:
    """Return ``read`` and ``written`` bytes of some rows of the table of tiles."""
    names = {"read": "bytes_read", "written": "bytes_written"}
    return {short: pack(tiles[name].to_numpy(np.int64), delta=True) for short, name in names.items()}
