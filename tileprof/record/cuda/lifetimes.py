"""Which buffer an address belongs to, at a launch: allocations in, leaves of the address space out.

The driver hands out large segments; a framework's allocator cuts them up. Both kinds of allocation are live at once,
and the innermost one that holds an address is its buffer. What no allocation is known to hold (memory that was
there before recording began, a library's own) becomes a buffer of kind "unknown" when it is first touched.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.trace import TraceWriter

UNKNOWN_BYTES: Final = 2 << 20
"""Unknown memory is cut into buffers at multiples of this, the driver's page."""


@dataclass(slots=True)
class _Layer:
    """Allocations that do not overlap, sorted by base."""

    bases: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)

    def overlapping(self, base: int, end: int) -> tuple[int, int]:
        first = bisect.bisect_right(self.bases, base)
        if first and self.ends[first - 1] > base:
            first -= 1
        return first, bisect.bisect_left(self.bases, end, lo=first)

    def remove(self, first: int, last: int) -> list[int]:
        gone = self.buffers[first:last]
        del self.bases[first:last], self.ends[first:last], self.buffers[first:last]
        return gone

    def insert(self, base: int, end: int, buffer: int) -> None:
        at = bisect.bisect_left(self.bases, base)
        self.bases.insert(at, base)
        self.ends.insert(at, end)
        self.buffers.insert(at, buffer)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The address space now: piece i is ``[edges[i], edges[i + 1])`` and belongs to ``buffer[i]``, -1 for none.

    ``base[i]`` is the address of that buffer's byte 0.
    """

    edges: NDArray[np.int64]
    buffer: NDArray[np.int64]
    base: NDArray[np.int64]

    def find(self, address: NDArray[np.int64]) -> NDArray[np.int64]:
        """The piece of each address; -1 below the first."""
        return np.asarray(np.searchsorted(self.edges, address, side="right") - 1)


class Lifetimes:
    """Adds buffers to a trace as they are allocated, frees them, and tells whose an address is."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._segments, self._tensors, self._unknown = _Layer(), _Layer(), _Layer()
        self._base_of: dict[int, int] = {}
        self._leaves: Leaves | None = None

    def allocate(self, base: int, size: int, *, before_start: bool = False) -> None:
        """The driver hands out memory."""
        self._add(self._segments, base, size, "unknown", "", before_start=before_start)

    def allocate_tensor(self, base: int, size: int, kind: str, name: str = "", *, before_start: bool = False) -> None:
        """A framework's allocator hands out a part of a segment."""
        self._add(self._tensors, base, size, kind, name, before_start=before_start)

    def free(self, base: int) -> None:
        """The driver takes memory back, with all that lay in it."""
        layer = self._segments
        at = bisect.bisect_left(layer.bases, base)
        if at < len(layer.bases) and layer.bases[at] == base:
            end = layer.ends[at]
            for other in (self._tensors, self._unknown):
                self._drop(other, *other.overlapping(base, end))
            self._drop(layer, at, at + 1)

    def free_tensor(self, base: int) -> None:
        """A framework's allocator takes a part back."""
        at = bisect.bisect_left(self._tensors.bases, base)
        if at < len(self._tensors.bases) and self._tensors.bases[at] == base:
            self._drop(self._tensors, at, at + 1)

    def describe(self, address: int, *, name: str, kind: str) -> None:
        """Say what the buffer at an address holds; ignored where nothing is known to be there."""
        for layer in (self._tensors, self._segments):
            at = bisect.bisect_right(layer.bases, address) - 1
            if at >= 0 and address < layer.ends[at]:
                self._writer.describe_buffer(layer.buffers[at], name=name, kind=kind)
                return

    def leaves(self) -> Leaves:
        """The address space as it is now."""
        if self._leaves is None:
            self._leaves = self._build()
        return self._leaves

    def adopt(self, addresses: NDArray[np.int64]) -> None:
        """Make buffers for the pages of ``addresses``, which are nobody's."""
        for page in np.unique(addresses // UNKNOWN_BYTES).tolist():
            base = page * UNKNOWN_BYTES
            end = base + UNKNOWN_BYTES
            first, last = self._unknown.overlapping(base, end)
            if first == last:
                self._add(self._unknown, base, end - base, "unknown", "", before_start=True)

    def live(self) -> list[tuple[int, int]]:
        """``[base, end)`` of everything that the driver has handed out."""
        return list(zip(self._segments.bases, self._segments.ends, strict=True))

    def _add(self, layer: _Layer, base: int, size: int, kind: str, name: str, *, before_start: bool) -> None:
        if size <= 0:
            return
        self._drop(layer, *layer.overlapping(base, base + size))
        buffer = self._writer.add_buffer(base=base, bytes=size, kind=kind, name=name, before_start=before_start)
        self._base_of[buffer] = base
        layer.insert(base, base + size, buffer)
        self._leaves = None

    def _drop(self, layer: _Layer, first: int, last: int) -> None:
        for buffer in layer.remove(first, last):
            self._writer.free_buffer(buffer)
            self._leaves = None

    def _build(self) -> Leaves:
        layers = (self._unknown, self._segments, self._tensors)  # the later ones lie within the earlier
        edges = np.unique(np.concatenate([np.array(x, np.int64) for y in layers for x in (y.bases, y.ends)] or [[0]]))
        buffer = np.full(len(edges), -1, np.int64)
        for layer in layers:
            if not layer.bases:
                continue
            starts, ends = np.array(layer.bases, np.int64), np.array(layer.ends, np.int64)
            holder = np.searchsorted(starts, edges, side="right") - 1
            inside = (holder >= 0) & (edges < ends[holder])
            buffer[inside] = np.array(layer.buffers, np.int64)[holder[inside]]
        base = np.array([self._base_of.get(b, 0) for b in buffer.tolist()], np.int64)
        return Leaves(edges, buffer, base)
