"""The memory of one buffer as dependencies see it: who last wrote each byte, and who has read it since.

A `Shadow` is immutable and knows launches only as *slots* 0, 1, ... in order of age. The effect of an access on a
shadow (`step`) therefore depends on nothing but the two, and is computed once however often a model repeats its layers.

Per byte, a shadow holds the last plain write, the atomic updates since it, and the reads since it:

* a read depends (RAW) on the atomic updates since the last write, or on that write where there are none;
* an atomic update depends (RAW) on the last write and (WAR) on the reads since it; atomic updates commute;
* a write depends (WAW) on the atomic updates since the last write, or on that write where there are none, and (WAR) on
  all reads since it.

Within one launch reads come before writes, and a tile that reads and writes a byte is represented by its write.
Events that a buffer inherits from the one that was there before are *foreign*: they give no RAW (the bytes a recycled
buffer starts with mean nothing) and their WAR and WAW are marked ``reuse``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.dependencies.blocks import EdgeBlock, edge_block
from tileprof.analysis.dependencies.touched_bytes import Access, Touch
from tileprof.arrays.intervals import subtract, union
from tileprof.trace.footprint import ATOMIC, READ, WRITE


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """Bytes of a shadow that the launch in ``slot`` read, wrote or updated; sorted by ``lo``.

    ``last`` says when in the tile's life, NaN unknown; ``touch`` names the tiles behind each class.
    """

    mode: int
    slot: int
    foreign: bool
    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    cls: NDArray[np.int32]
    last: NDArray[np.float32]
    touch: Touch

    def at(self, slot: int) -> Event:
        return self if slot == self.slot else self._with(slot, self.foreign, self.lo, self.hi, slice(None))

    def without(self, hole_lo: NDArray[np.int64], hole_hi: NDArray[np.int64]) -> Event:
        """Return the event outside disjoint sorted holes."""
        if len(hole_lo) == 0 or hole_hi[-1] <= self.lo[0] or hole_lo[0] >= self.hi.max(initial=0):
            return self
        lo, hi, row = subtract(self.lo, self.hi, hole_lo, hole_hi)
        return self._with(self.slot, self.foreign, lo, hi, row)

    def inherited(self, slot: int, shift: int, begin: int, end: int) -> Event:
        """Return the event in another buffer at the same addresses: moved by ``shift``, cut to ``[begin, end)``."""
        lo, hi = np.maximum(self.lo + shift, begin), np.minimum(self.hi + shift, end)
        inside = np.flatnonzero(lo < hi)
        lo, hi = lo[inside], hi[inside]
        order = np.argsort(lo, kind="stable")
        return self._with(slot, True, lo[order], hi[order], inside[order])

    def _with(
        self,
        slot: int,
        foreign: bool,
        lo: NDArray[np.int64],
        hi: NDArray[np.int64],
        row: NDArray[np.int64] | slice,
    ) -> Event:
        return Event(self.mode, slot, foreign, lo, hi, self.cls[row], self.last[row], self.touch)


@dataclass(frozen=True, slots=True, eq=False)
class Shadow:
    """Events in order of age; ``slots`` launches are alive in it."""

    events: tuple[Event, ...]
    slots: int

    def digest(self, numbers: dict[int, int]) -> bytes:
        """Return a digest that is equal for equal contents; ``numbers`` names touches (by identity) across shadows."""
        total = blake2b(digest_size=16)
        for event in self.events:
            touch = numbers.setdefault(id(event.touch), len(numbers))
            total.update(repr((event.mode, event.slot, event.foreign, touch, len(event.lo))).encode())
            for column in (event.lo, event.hi, event.cls, event.last):
                total.update(np.ascontiguousarray(column).data)
        return total.digest()


Join = Callable[[Event, Touch, int], EdgeBlock | None]
_Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]

EMPTY = Shadow((), 0)


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """Edges from the launch in ``slot`` of the old shadow to the launch that stepped."""

    slot: int
    hazard: str
    reuse: bool
    block: EdgeBlock


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """``old_slots[new slot]`` is the old slot of a launch, or -1 for the launch that stepped."""

    relations: tuple[Relation, ...]
    shadow: Shadow
    old_slots: tuple[int, ...]


def step(shadow: Shadow, access: Access, join: Join = edge_block) -> Step:
    """Return what ``access`` depends on in ``shadow``, and the shadow after it; ``join`` as `edge_block`."""
    relations: list[Relation] = []
    updated = tuple(_covered(e for e in shadow.events if e.mode == ATOMIC and e.foreign == f) for f in (False, True))
    for touch, mode in ((access.read, READ), (access.atomic, ATOMIC), (access.write, WRITE)):
        if touch is not None:
            relations += _relations(shadow, touch, mode, updated, access.tiles, join)
    events = list(shadow.events)
    if access.write is not None:
        holes = union(access.write.lo, access.write.hi)
        events = [e.without(*holes) for e in events]
    for touch, mode in ((access.write, WRITE), (access.atomic, ATOMIC), (access.read, READ)):
        if touch is not None:
            event = Event(mode, shadow.slots, False, touch.lo, touch.hi, touch.cls, touch.last, touch)
            if mode == READ and access.write is not None:
                event = _without_own_writes(event, access.write)
            events.append(event)
    after, alive = _renumbered([e for e in events if len(e.lo)])
    return Step(tuple(relations), after, tuple(-1 if slot == shadow.slots else slot for slot in alive))


def inherit(parts: Iterable[tuple[Shadow, int, int, int, tuple[int, ...]]]) -> tuple[Shadow, tuple[int, ...]]:
    """Return the shadow that a new buffer starts with, and which of the given slots its slots are.

    ``parts``: the shadow of a freed buffer, how far its bytes move, the range of the new buffer that it covers, and the
    given slot of each of its slots (in order of age across all parts).
    """
    events = []
    for shadow, shift, begin, end, new_slots in parts:
        inherited_events = (event.inherited(new_slots[event.slot], shift, begin, end) for event in shadow.events)
        events += [event for event in inherited_events if len(event.lo)]
    return _renumbered(events)


def _renumbered(events: list[Event]) -> tuple[Shadow, tuple[int, ...]]:
    alive = sorted({e.slot for e in events})
    number = {slot: new for new, slot in enumerate(alive)}
    return Shadow(tuple(e.at(number[e.slot]) for e in events), len(alive)), tuple(alive)


def _covered(events: Iterable[Event]) -> _Ranges:
    events = list(events)
    if not events:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    lo = np.concatenate([e.lo for e in events])
    order = np.argsort(lo, kind="stable")
    return union(lo[order], np.concatenate([e.hi for e in events])[order])


def _relations(
    shadow: Shadow, touch: Touch, mode: int, updated: tuple[_Ranges, ...], tiles: int, join: Join
) -> list[Relation]:
    """``updated``: where there are atomic updates, own and foreign; they hide the write before them."""
    relations = []
    for event in shadow.events:
        hazard = _hazard(event, mode)
        if hazard is None:
            continue
        hidden = event.mode == WRITE and (event.foreign or mode != ATOMIC)
        source = event.without(*updated[event.foreign]) if hidden else event
        if len(source.lo) == 0:
            continue
        block = join(source, touch, tiles)
        if block is not None:
            relations.append(Relation(event.slot, hazard, event.foreign, block))
    return relations


def _hazard(event: Event, mode: int) -> str | None:
    if mode == READ:
        return "RAW" if event.mode != READ and not event.foreign else None
    if event.mode == READ:
        return "WAR"
    if mode == ATOMIC and not event.foreign:
        return "RAW" if event.mode == WRITE else None
    return "WAW"


def _without_own_writes(event: Event, write: Touch) -> Event:
    """Represent reads by a tile of bytes that the same tile writes by the write.

    Done where classes have one tile each, as in-place kernels have; elsewhere the reads stay, and a later write gets a
    WAR beside its WAW on the same pair of tiles.
    """
    alone_read, alone_write = np.diff(event.touch.indptr) == 1, np.diff(write.indptr) == 1
    rows, own = alone_read[event.cls], alone_write[write.cls]
    if not rows.any() or not own.any():
        return event
    reader = event.touch.tiles[event.touch.indptr[event.cls[rows]]].astype(np.int64)
    writer = write.tiles[write.indptr[write.cls[own]]].astype(np.int64)
    floor = min(int(event.lo.min()), int(write.lo.min()))
    span = max(int(event.hi.max()), int(write.hi.max())) - floor + 1
    if (max(int(reader.max()), int(writer.max())) + 1) * span >= 2**62:
        return event
    hole_lo = write.lo[own] - floor + writer * span
    order = np.argsort(hole_lo, kind="stable")
    holes = union(hole_lo[order], (write.hi[own] - floor + writer * span)[order])
    begin = event.lo[rows] - floor + reader * span
    order = np.argsort(begin, kind="stable")
    lo, hi, piece = subtract(begin[order], (event.hi[rows] - floor + reader * span)[order], *holes)
    piece = order[piece]
    base = reader[piece] * span - floor
    rows_left = np.concatenate([np.flatnonzero(rows)[piece], np.flatnonzero(~rows)])
    lo = np.concatenate([lo - base, event.lo[~rows]])
    hi = np.concatenate([hi - base, event.hi[~rows]])
    order = np.argsort(lo, kind="stable")
    return event._with(event.slot, event.foreign, lo[order], hi[order], rows_left[order])  # noqa: SLF001 (same module)
