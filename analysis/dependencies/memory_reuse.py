"""Whose bytes a new buffer inherits: the addresses of a trace over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import pandas as pd

from tileprof.errors import TraceError
from tileprof.trace.schema import NEVER


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Bytes ``[begin, end)`` of a new buffer lay at byte ``begin + shift`` of ``buffer``, freed by then."""

    buffer: int
    begin: int
    end: int
    shift: int


def inheritances(buffers: pd.DataFrame) -> dict[int, list[Inheritance]]:
    """Return for each buffer which earlier buffers last had its addresses; buffers without address (base < 0) have
    none.

    Raises `TraceError` where two buffers lie on the same addresses while both live: their accesses would alias unseen.
    """
    inheritances: dict[int, list[Inheritance]] = {}
    # Disjoint occupied intervals, sorted: begins, and (end, buffer) beside each.
    begins: list[int] = []
    spans: list[tuple[int, int]] = []
    base = buffers["base"].to_numpy()
    size = buffers["bytes"].to_numpy()
    born = buffers["allocated_at"].to_numpy()
    died = buffers["freed_at"].to_numpy()
    for buffer in range(len(buffers)):
        low, high = int(base[buffer]), int(base[buffer] + size[buffer])
        if low < 0 or low == high:
            continue
        start = max(0, bisect_right(begins, low) - 1)
        if start < len(begins) and spans[start][0] <= low:
            start += 1
        stop = bisect_left(begins, high)
        parts: list[tuple[int, int, int]] = []
        for begin, (end, earlier) in zip(begins[start:stop], spans[start:stop], strict=True):
            if died[earlier] == NEVER or died[earlier] > max(born[buffer], 0):
                raise TraceError(
                    f"buffers {earlier} and {buffer} overlap at address {max(begin, low):#x} while both live "
                    f"(freed at launch {died[earlier]}, allocated at {born[buffer]}): the trace is not consistent; "
                    "record again"
                )
            overlap = Inheritance(earlier, max(begin, low) - low, min(end, high) - low, low - int(base[earlier]))
            inheritances.setdefault(buffer, []).append(overlap)
            if begin < low:
                parts.append((begin, low, earlier))
            if end > high:
                parts.append((high, end, earlier))
        parts.append((low, high, buffer))
        parts.sort()
        begins[start:stop] = [k[0] for k in parts]
        spans[start:stop] = [(k[1], k[2]) for k in parts]
    return inheritances
