"""Finds the buffer that an address belongs to at a launch: allocations in, disjoint buffers of a trace out.

The driver hands out segments. Without a framework each segment is a buffer. Where a framework's allocator cuts
segments up, its tensors are the buffers, and what it leaves between them becomes one when it is first touched: a
workspace without a name, or memory that a CUDA graph kept after its tensors were gone. Memory that no segment holds
(it was there before recording began) becomes buffers of a page each.

Physical memory that a program maps several times, at once or one after another, is one buffer however it is reached. It
has no address of its own and stands in the trace beyond all that there are (`SHARED_BASE`).
"""

from __future__ import annotations

import bisect
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.trace import TraceWriter

UNKNOWN_BYTES: Final = 2 << 20
"""Unknown memory is cut into buffers at multiples of this, the driver's page."""


SHARED_BASE: Final = 1 << 56
"""Buffers of memory that is mapped several times stand from here on: recorded addresses have 48 bits."""

Ranges = tuple[tuple[int, int], ...]
"""``[base, end)`` each."""


@dataclass(slots=True)
class _Ranges:
    """Ranges that do not overlap, sorted, with a number each."""

    bases: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def overlapping(self, base: int, end: int) -> tuple[int, int]:
        first = bisect.bisect_right(self.bases, base)
        if first and self.ends[first - 1] > base:
            first -= 1
        return first, bisect.bisect_left(self.bases, end, lo=first)

    def remove(self, first: int, last: int) -> list[int]:
        numbers = self.numbers[first:last]
        del self.bases[first:last], self.ends[first:last], self.numbers[first:last]
        return numbers

    def insert(self, base: int, end: int, number: int) -> None:
        at = bisect.bisect_left(self.bases, base)
        self.bases.insert(at, base)
        self.ends.insert(at, end)
        self.numbers.insert(at, number)

    def holding(self, address: int) -> int:
        """Return index of the range that holds an address, -1 for none."""
        at = bisect.bisect_right(self.bases, address) - 1
        return at if at >= 0 and address < self.ends[at] else -1

    def gap(self, address: int, low: int, high: int) -> tuple[int, int]:
        """Return the part of ``[low, high)`` around an address that no range holds."""
        after = bisect.bisect_right(self.bases, address)
        if after:
            low = max(low, self.ends[after - 1])
        if after < len(self.bases):
            high = min(high, self.bases[after])
        return low, high


@dataclass(frozen=True, slots=True)
class Leaves:
    """The address space now: piece i is ``[edges[i], edges[i + 1])`` and belongs to ``buffer[i]``, -1 for none.

    ``base[i]`` is the address of that buffer's byte 0.
    """

    edges: NDArray[np.int64]
    buffer: NDArray[np.int64]
    base: NDArray[np.int64]

    def find(self, address: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the piece of each address; -1 below the first."""
        return np.asarray(np.searchsorted(self.edges, address, side="right") - 1)


class Lifetimes:
    """Adds buffers to a trace as they are allocated, frees them, and tells whose an address is.

    ``tensors``: a framework's allocator will say what it makes of the segments.
    """

    def __init__(self, writer: TraceWriter, *, tensors: bool = False) -> None:
        self._writer = writer
        self._tensors = tensors
        self._segments, self._buffers = _Ranges(), _Ranges()
        self._of_tensors: set[tuple[int, int]] = set()
        self._tensors_now: Ranges | None = ()
        self._leaves: Leaves | None = None
        self._beside: list[tuple[int, int]] = []
        """Buffers outside of every segment."""
        self._shared: dict[int, tuple[int, int]] = {}
        """Number and base of the buffer of each memory that is mapped several times."""
        self._next_shared = SHARED_BASE
        self._views: dict[int, int] = {}
        """Current mappings of such memory: the position of its byte 0, by address."""

    def allocate(self, base: int, size: int, kind: str = "unknown") -> None:
        """The driver hands out memory; ``kind`` is its buffer's where no framework cuts it up. What is shared stays so
        until it is unmapped.
        """
        if size > 0 and not self._in_view(base, base + size):
            self._segments.remove(*self._segments.overlapping(base, base + size))
            self._segments.insert(base, base + size, 0)
            self._beside = [(low, high) for low, high in self._beside if high <= base or base + size <= low]
            if not self._tensors:
                self._add(base, base + size, kind)

    def free(self, base: int) -> None:
        """The driver takes memory back, with all that lay in it; what is shared only when it is unmapped."""
        if base not in self._views:
            self._free(base)

    def _free(self, base: int) -> None:
        at = self._segments.holding(base)
        if at >= 0 and self._segments.bases[at] == base:
            self._drop(base, self._segments.ends[at])
            self._segments.remove(at, at + 1)

    def share(self, base: int, size: int, memory: int, offset: int, whole: int) -> None:
        """The driver maps ``[offset, offset + size)`` of a physical memory of ``whole`` bytes that it maps elsewhere,
        too.

        It stays one buffer until the end. What a framework makes of it is not told apart.
        """
        self._drop(base, base + size)
        if memory not in self._shared:
            number = self._writer.add_buffer(base=self._next_shared, bytes=whole, kind="unknown")
            self._shared[memory] = number, self._next_shared
            self._next_shared += whole
        self._views[base] = base - offset
        self._buffers.insert(base, base + size, self._shared[memory][0])
        self._leaves = None

    def unshare(self, base: int) -> None:
        """The driver unmaps what it has mapped there, if that was shared."""
        if base in self._views:
            self._drop(base, base + 1)
            self._free(base)

    def in_trace(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where these stand in the trace, which is elsewhere where memory has several addresses."""
        trace_addresses = addresses.copy()
        leaves = self.leaves()
        if self._views and len(leaves.edges):
            piece = leaves.find(addresses)
            for number, base in self._shared.values():
                in_buffer = (piece >= 0) & (leaves.buffer[piece] == number)
                trace_addresses[in_buffer] += base - leaves.base[piece[in_buffer]]
        return trace_addresses

    def allocate_tensor(self, base: int, size: int, kind: str) -> None:
        """A framework's allocator hands out a part of a segment."""
        if size > 0 and not self._in_view(base, base + size):
            self._add(base, base + size, kind)
            self._of_tensors.add((base, base + size))
            self._tensors_now = None

    def free_tensor(self, base: int) -> None:
        """A framework's allocator takes a part back."""
        at = self._buffers.holding(base)
        if at >= 0 and self._buffers.bases[at] == base and base not in self._views:
            self._drop(base, self._buffers.ends[at])

    def keep_tensors(self, ranges: list[tuple[int, int]], kind: str) -> None:
        """A framework's allocator says all that it has handed out now, ``[base, end)``; in between nothing listened.

        What lies where it lay is taken for the same buffer.
        """
        recorded_ranges = set(zip(self._buffers.bases, self._buffers.ends, strict=True))
        for base, end in sorted(recorded_ranges & self._of_tensors - set(ranges)):
            self._drop(base, end)
        for base, end in sorted(set(ranges) - recorded_ranges):
            self.allocate_tensor(base, end - base, kind)

    def tensors(self) -> Ranges:
        """Return what a framework has handed out now, ``[base, end)``, in order."""
        if self._tensors_now is None:
            self._tensors_now = tuple(sorted(self._of_tensors))
        return self._tensors_now

    def return_to(self, ranges: Ranges, addresses: NDArray[np.int64], own: AbstractSet[tuple[int, int]]) -> None:
        """Make those of ``ranges`` buffers again in which an address lies.

        For memory that a CUDA graph keeps: its nodes use the tensors that were there when they were captured, one after
        another in the same places, long after the framework has taken them back. ``own`` are all tensors that any of
        its nodes was captured with; tensors beside them live now and stay as they are.
        """
        if not ranges:
            return
        bases, ends = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
        at = np.searchsorted(bases, addresses, side="right") - 1
        inside = (at >= 0) & (addresses < ends[at])
        for i in np.unique(at[inside]).tolist():
            base, end = ranges[i]
            if self._in_view(base, end):
                continue
            first, last = self._buffers.overlapping(base, end)
            there = list(zip(self._buffers.bases[first:last], self._buffers.ends[first:last], strict=True))
            if there != [ranges[i]] and self._of_tensors.intersection(there) <= own:
                self._add(base, end, "activation")

    def describe(self, address: int, *, name: str, kind: str) -> None:
        """Say what the buffer at an address holds; ignored where nothing is known to be there."""
        at = self._buffers.holding(address)
        if at >= 0 and self._buffers.bases[at] not in self._views:
            self._writer.describe_buffer(self._buffers.numbers[at], name=name, kind=kind)

    def leaves(self) -> Leaves:
        """Return the address space as it is now."""
        if self._leaves is None:
            self._leaves = self._build()
        return self._leaves

    def adopt(self, addresses: NDArray[np.int64]) -> None:
        """Make buffers for what lies at ``addresses``, which no buffer holds."""
        for address in np.unique(addresses).tolist():
            if self._buffers.holding(address) >= 0:
                continue  # in a buffer made for another of them
            at = self._segments.holding(address)
            if at >= 0:
                low, high = self._segments.bases[at], self._segments.ends[at]
            else:
                page = address // UNKNOWN_BYTES * UNKNOWN_BYTES
                low, high = self._segments.gap(address, page, page + UNKNOWN_BYTES)
            low, high = self._buffers.gap(address, low, high)
            self._beside += [] if at >= 0 else [(low, high)]
            self._add(low, high, "workspace" if at >= 0 else "unknown", before_start=at < 0)

    def live(self) -> list[tuple[int, int]]:
        """Return ``[base, end)`` of everything that the driver has handed out, and of what was touched besides."""
        return [*zip(self._segments.bases, self._segments.ends, strict=True), *self._beside]

    def holds(self, base: int, end: int) -> bool:
        """Return whether all of ``[base, end)`` is `live`.

        It may be several mappings side by side, as with expandable segments.
        """
        at = base
        while at < end:
            segment = self._segments.holding(at)
            beside = next((high for low, high in self._beside if low <= at < high), at)
            segment_end = self._segments.ends[segment] if segment >= 0 else beside
            if segment_end == at:
                return False
            at = segment_end
        return base < end

    def _add(self, base: int, end: int, kind: str, *, before_start: bool = False) -> None:
        self._drop(base, end)
        buffer = self._writer.add_buffer(base=base, bytes=end - base, kind=kind, before_start=before_start)
        self._buffers.insert(base, end, buffer)
        self._leaves = None

    def _in_view(self, base: int, end: int) -> bool:
        if not self._views:
            return False
        first, last = self._buffers.overlapping(base, end)
        return not self._views.keys().isdisjoint(self._buffers.bases[first:last])

    def _drop(self, base: int, end: int) -> None:
        first, last = self._buffers.overlapping(base, end)
        views = [self._views.pop(b, None) is not None for b in self._buffers.bases[first:last]]
        self._of_tensors.difference_update(
            zip(self._buffers.bases[first:last], self._buffers.ends[first:last], strict=True)
        )
        self._tensors_now = None
        for buffer, view in zip(self._buffers.remove(first, last), views, strict=True):
            if not view:
                self._writer.free_buffer(buffer)
            self._leaves = None

    def _build(self) -> Leaves:
        starts, ends = np.array(self._buffers.bases, np.int64), np.array(self._buffers.ends, np.int64)
        numbers = np.array(self._buffers.numbers, np.int64)
        edges = np.unique(np.concatenate([starts, ends]))
        buffer, base = np.full(len(edges), -1, np.int64), np.zeros(len(edges), np.int64)
        at = np.searchsorted(edges, starts)
        buffer[at], base[at] = numbers, [self._views.get(b, b) for b in self._buffers.bases]
        return Leaves(edges, buffer, base)
