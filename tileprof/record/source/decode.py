"""Turns the log of a launch into its boxes: pure arithmetic on columns.

Entries become runs of bytes, runs are cut where one buffer ends and another begins, united within a tile, mode and part
of the tile's life, and written as strided boxes. The union of a tile's boxes is exactly the union of its entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.boxes import runs as runs_of
from tileprof.arrays.intervals import grouped_union
from tileprof.record.cuda.footprints import runs as strided
from tileprof.record.source.layout import Blocks, Entries
from tileprof.trace.footprint import Boxes

PARTS: Final = 8
"""Parts of a tile's life that are told apart: enough for a consumer's wait inside its main loop."""

_RUNS_AT_ONCE: Final = 1 << 22  # about 300 MB of work arrays
_CLOCKS: Final = 1 << 32  # an entry keeps the low word of the clock: longer lives have no known parts
_NEVER: Final = np.iinfo(np.uint64).max


@dataclass(frozen=True, slots=True)
class Span:
    """Memory of one operand: addresses ``[low, high)``; byte 0 of the operand is at ``origin``. Spans are disjoint."""

    low: int
    high: int
    origin: int


@dataclass(frozen=True, slots=True)
class Stray:
    """An entry that lies in no span, in whole or in part."""

    address: int
    bytes: int
    block: int


def entered(blocks: Blocks) -> NDArray[np.bool_]:
    """Return which blocks said when they began and ended."""
    return np.asarray((blocks["begin_ns"] != _NEVER) & (blocks["end_clock"] != 0))


def boxes(entries: Entries, blocks: Blocks, spans: list[Span]) -> Boxes:
    """Return the accesses of each tile, relative to operands; operand i is ``spans[i]``.

    Tiles are linear block ids.

    ``first`` and ``last`` are the begin and end of the eighth of the tile's life in which the bytes were touched, NaN
    where the block did not say when it lived. Entries outside all spans are left out: ask `stray` first.
    """
    order = np.argsort(entries["block"], kind="stable")
    entries = entries[order]
    part = _parts(entries, blocks)
    return Boxes.concat(_boxes(entries[rows], part[rows], spans) for rows in _batches(entries))


def stray(entries: Entries, spans: list[Span]) -> Stray | None:
    """Return the first entry that lies outside the spans; None when all of them are inside one each or several adjacent
    ones.
    """
    low, high = extents(entries)
    edges = sorted((s.low, s.high) for s in spans)
    starts = np.array([s for s, _ in edges], np.int64)
    reach = np.array([e for _, e in edges], np.int64)
    for i in range(len(edges) - 2, -1, -1):  # adjacent spans are one piece of memory
        if reach[i] == starts[i + 1]:
            reach[i] = reach[i + 1]
    at = np.searchsorted(starts, low, side="right") - 1
    outside = (at < 0) | (high > reach[at] if edges else True)
    if not outside.any():
        return None
    row = int(outside.argmax())
    return Stray(int(low[row]), int(high[row] - low[row]), int(entries["block"][row]))


def extents(entries: Entries) -> tuple[I64, I64]:
    """Return lowest address and end of each entry."""
    low = entries["address"].astype(np.int64)
    high = low + entries["length"].astype(np.int64)
    for level in (0, 1):
        span = (entries[f"count_{level}"].astype(np.int64) - 1) * entries[f"stride_{level}"]
        low, high = low + np.minimum(span, 0), high + np.maximum(span, 0)
    return low, high


def _parts(entries: Entries, blocks: Blocks) -> I64:
    """Return the part of its block's life that each entry falls into, 0 to PARTS - 1; -1 unknown."""
    row = entries["block"]
    begin = blocks["begin_clock"][row]
    life = np.where(entered(blocks), blocks["end_clock"] - blocks["begin_clock"], 0)[row].astype(np.int64)
    # Unsigned subtraction of low words: right across the wrap of the clock.
    since = (entries["clock"] - (begin & np.uint64(_CLOCKS - 1)).astype(np.uint32)).astype(np.int64)
    measured = (life > 0) & (life < _CLOCKS)
    return np.where(measured, np.minimum(since * PARTS // np.maximum(life, 1), PARTS - 1), -1)


def _batches(entries: Entries) -> Iterator[slice]:
    """Yield slices of entries that end where a block ends, of about as many runs as fit in memory."""
    through = np.cumsum(entries["count_0"].astype(np.int64) * entries["count_1"])
    ends = np.append(np.flatnonzero(np.diff(entries["block"])) + 1, len(entries))
    begin = 0
    while begin < len(entries):
        runs_before = through[begin - 1] if begin else 0
        fits = int(np.searchsorted(through[ends - 1], runs_before + _RUNS_AT_ONCE, side="right"))
        after = int(np.searchsorted(ends, begin, side="right"))
        end = int(ends[max(fits - 1, after)])
        yield slice(begin, end)
        begin = end


def _boxes(entries: Entries, part: I64, spans: list[Span]) -> Boxes:
    entry, start, end = runs(entries)
    cut = strided.cut(strided.Runs(entry, start, end, entry), np.unique([e for s in spans for e in (s.low, s.high)]))
    operand = _operand(cut.start, spans)
    inside = operand >= 0
    entry, start, end, operand = cut.tile[inside], cut.start[inside], cut.end[inside], operand[inside]
    if not len(entry):
        return Boxes.concat([])
    keys = np.stack(
        [entries["block"][entry].astype(np.int64), operand, entries["mode"][entry].astype(np.int64), part[entry]]
    )
    order = np.lexsort((start, *keys[::-1]))
    keys, start, end = keys[:, order], start[order], end[order]
    head = np.flatnonzero(np.append(True, (np.diff(keys) != 0).any(axis=0)))
    group = np.repeat(np.arange(len(head)), np.diff(head, append=len(start)))
    row, begin, end = grouped_union(group, start, end)
    boxes = strided.boxes(strided.Runs(group[row], begin, end, group[row]))
    tile, operand, mode, eighth = keys[:, head[boxes.tile]]
    unknown = eighth < 0
    origin = np.array([s.origin for s in spans], np.int64)
    return Boxes.of(
        tile=tile,
        operand=operand,
        mode=mode,
        offset=boxes.address - origin[operand],
        length=boxes.length,
        count_0=boxes.count[:, 0],
        stride_0=boxes.stride[:, 0],
        count_1=boxes.count[:, 1],
        stride_1=boxes.stride[:, 1],
        first=np.where(unknown, np.nan, eighth / PARTS),
        last=np.where(unknown, np.nan, (eighth + 1) / PARTS),
    )


def runs(entries: Entries) -> tuple[I64, I64, I64]:
    """Return every run of every entry: its entry, begin and end."""
    address = entries["address"].astype(np.int64)
    entry, start = runs_of(address, *(entries[name] for name in ("count_0", "stride_0", "count_1", "stride_1")))
    return entry, start, start + entries["length"][entry].astype(np.int64)


def _operand(start: I64, spans: list[Span]) -> I64:
    """Return the span in which each address lies; -1 for none."""
    order = np.argsort([s.low for s in spans])
    low = np.array([spans[i].low for i in order], np.int64)
    high = np.array([spans[i].high for i in order], np.int64)
    at = np.searchsorted(low, start, side="right") - 1
    inside = at >= 0
    inside[inside] = start[inside] < high[at[inside]]
    return np.where(inside, np.asarray(order)[at], -1) if len(spans) else np.full(len(start), -1)
