"""Bytes that must cross the DRAM interface at least once, counted as unions of byte ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.dependencies.touched_bytes import MOST_RUNS, too_many_runs
from tileprof.arrays import boxes, intervals
from tileprof.trace.footprint import READ, WRITE, Boxes
from tileprof.trace.schema import NEVER

if TYPE_CHECKING:
    from tileprof.trace import Recording

Ranges = NDArray[np.int64]
"""``[ranges, 2]`` begins and ends of disjoint byte ranges, ascending."""

NONE: Ranges = np.empty((0, 2), np.int64)
_RUNS_AT_ONCE = 4_000_000  # 64 MB of ranges before they are merged


class Traffic:
    """Compulsory DRAM bytes of groups of launches of one trace; what a footprint touches is computed once."""

    def __init__(self, trace: Recording) -> None:
        self._trace = trace
        self._touched: dict[int, dict[int, tuple[Ranges, Ranges]]] = {}
        self._footprint = trace.launches["footprint"].to_numpy(np.int64)
        self._guessed = (trace.launches["coverage"] == "conservative").to_numpy()
        self._lasting = (trace.buffers["freed_at"] == NEVER).to_numpy()

    def compulsory(self, launches: Iterable[int]) -> tuple[int, int]:
        """Return (read, written) bytes: those read before any of these launches wrote them, each once however often
        it is read, and those written to buffers that are never freed, each once.

        Conservative launches may touch less than they say: their reads count as nothing, their writes hide
        later reads nevertheless, and they are not counted as written.
        """
        ranges_of: dict[int, Ranges] = {}
        written: dict[int, Ranges] = {}
        read_bytes = written_bytes = 0
        bindings = [(launch, *self._binding(launch)) for launch in launches]
        use_counts = Counter(
            buffer for _, touched, buffers, _ in bindings for buffer in map(buffers.__getitem__, touched)
        )
        for launch, slot_bytes, buffers, offsets in bindings:
            bound: list[tuple[int, Ranges]] = []
            for slot, (reads, writes) in slot_bytes.items():
                buffer, offset = buffers[slot], offsets[slot]
                if use_counts[buffer] == 1:
                    if not self._guessed[launch]:
                        read_bytes += total(reads)
                        written_bytes += total(writes) if self._lasting[buffer] else 0
                    continue
                before = ranges_of.get(buffer, NONE)
                after = union(before, reads + offset)
                if not self._guessed[launch]:
                    read_bytes += total(after) - total(before)
                ranges_of[buffer] = after
                bound.append((buffer, writes + offset))
            for buffer, ranges in bound:  # a launch reads what was there before it
                if len(ranges):
                    ranges_of[buffer] = union(ranges_of[buffer], ranges)
                    if self._lasting[buffer] and not self._guessed[launch]:
                        written[buffer] = union(written.get(buffer, NONE), ranges)
        return read_bytes, written_bytes + sum(total(r) for r in written.values())

    def _binding(self, launch: int) -> tuple[dict[int, tuple[Ranges, Ranges]], list[int], list[int]]:
        """Return what a launch touches, and the buffer and the offset of each operand slot."""
        buffers, offsets = self._trace.operands_of(launch)
        return self.touched_ranges(int(self._footprint[launch])), buffers.tolist(), offsets.tolist()

    def touched_ranges(self, footprint: int) -> dict[int, tuple[Ranges, Ranges]]:
        """Return, by operand slot, the bytes that are read (or updated), and those that are written (or updated)."""
        if footprint not in self._touched:
            boxes = self._trace.footprint(footprint).boxes
            self._touched[footprint] = {
                int(slot): (
                    covered(boxes, (boxes.operand == slot) & (boxes.mode != WRITE)),
                    covered(boxes, (boxes.operand == slot) & (boxes.mode != READ)),
                )
                for slot in np.unique(boxes.operand)
            }
        return self._touched[footprint]


def distinct_bytes(trace: Recording) -> NDArray[np.float64]:
    """Return ``[launches]`` bytes that a launch reads and bytes that it writes, each once."""
    traffic = Traffic(trace)
    of_launch = trace.launches["footprint"].tolist()
    cache = {}
    for footprint in set(of_launch):
        cache[footprint] = sum(
            total(reads) + total(writes) for reads, writes in traffic.touched_ranges(footprint).values()
        )
    return np.array([cache[footprint] for footprint in of_launch], np.float64)


def covered(boxes: Boxes, rows: NDArray[np.bool_]) -> Ranges:
    """Return the union of the chosen boxes. Boxes that many tiles share are expanded once.

    Raises `TraceError` where they are more runs than `MOST_RUNS`: a small file may claim any number.
    """
    columns = [
        np.asarray(c, np.int64)[rows]
        for c in (boxes.offset, boxes.length, boxes.count_0, boxes.stride_0, boxes.count_1, boxes.stride_1)
    ]
    for count, stride in ((2, 3), (4, 5)):
        columns[count] = np.where(columns[stride] == 0, 1, columns[count])  # the same bytes again
    table = np.unique(np.stack(columns, axis=1), axis=0)
    _lengthen(table, table[:, 3] == table[:, 1], count=2)
    _lengthen(table, (table[:, 2] == 1) & (table[:, 5] == table[:, 1]), count=4)
    runs = table[:, 2] * table[:, 4]
    if (table[:, 2].astype(np.float64) * table[:, 4]).sum() > MOST_RUNS:
        raise too_many_runs(int(runs.astype(object).sum()))
    parts: list[Ranges] = []
    for chunk in np.split(table, np.flatnonzero(np.diff(np.cumsum(runs) // _RUNS_AT_ONCE)) + 1):
        parts.append(union(NONE, _expanded(chunk)))
        while len(parts) > 1 and len(parts[-2]) <= len(parts[-1]):  # what is merged at least doubles
            parts[-2:] = [union(parts[-2], parts[-1])]
    return reduce(union, reversed(parts), NONE)


def _lengthen(table: NDArray[np.int64], dense: NDArray[np.bool_], count: int) -> None:
    """Runs that touch the next become one longer run; ``count`` is the column of their repetitions."""
    table[dense, 1] *= table[dense, count]
    table[dense, count] = 1


def _expanded(table: NDArray[np.int64]) -> Ranges:
    offset, length, count_0, stride_0, count_1, stride_1 = table.T
    box, begin = boxes.runs(offset, count_0, stride_0, count_1, stride_1)
    return np.stack([begin, begin + length[box]], axis=1)


def union(a: Ranges, b: Ranges) -> Ranges:
    """Return the bytes in either; ``a`` is disjoint and ascending, ``b`` need not be."""
    if not len(b):
        return a
    if len(a) == len(b) == 1 and a[0, 0] <= b[0, 0] and b[0, 1] <= a[0, 1]:
        return a
    both = np.concatenate([a, b])
    both = both[np.argsort(both[:, 0], kind="stable")]
    return np.stack(intervals.union(both[:, 0], both[:, 1]), axis=1)


def total(ranges: Ranges) -> int:
    """Return bytes in disjoint ranges."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())
