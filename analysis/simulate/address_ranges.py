"""Dependencies of launches by the address ranges of their operands, as a window of kernels finds them at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.ragged import owners, pointers
from tileprof.trace.footprint import READ, WRITE, Boxes

if TYPE_CHECKING:
    from tileprof.trace import Recording


def range_hazards(
    trace: Recording, launches: list[int], window: int, *, whole: bool = False
) -> list[dict[int, set[str]]]:
    """Return, by place in ``launches``, earlier places of the last ``window``, each with the hazards of overlapping
    ranges.

    A range is all that lies between the first and the last byte that a launch reads, or writes, through one operand;
    ranges of recycled memory count, since they are compared by address. ``whole``: a launch that reads of a buffer
    reads all of it.
    """
    low, high, written, at = _segments(trace, launches, whole=whole)
    hazards_of: list[dict[int, set[str]]] = []
    place = owners(at)
    for i in range(len(launches)):
        current, before = slice(at[i], at[i + 1]), slice(at[max(i - window, 0)], at[i])
        meets = (low[current, None] < high[None, before]) & (low[None, before] < high[current, None])
        own, other = np.nonzero(meets & (written[current, None] | written[None, before]))
        hazards: dict[int, set[str]] = {}
        columns = (place[before][other], written[current][own], written[before][other])
        for p, writes, wrote in {*zip(*(column.tolist() for column in columns), strict=True)}:
            hazards.setdefault(p, set()).add("WAW" if writes and wrote else "WAR" if writes else "RAW")
        hazards_of.append(hazards)
    return hazards_of


def _segments(trace: Recording, launches: list[int], *, whole: bool) -> tuple[I64, I64, NDArray[np.bool_], I64]:
    """Return address ranges ``[low, high)`` of all launches, whether each is written, and where those of a launch
    begin.
    """
    base, size = (trace.buffers[name].to_numpy(np.int64) for name in ("base", "bytes"))
    footprint = trace.launches["footprint"].to_numpy(np.int64)
    extents: dict[int, tuple[I64, I64, I64, NDArray[np.bool_]]] = {}
    lows, highs, kinds, counts = [], [], [], []
    for launch in launches:
        number = int(footprint[launch])
        if number not in extents:
            extents[number] = _extents(trace.footprint(number).boxes)
        slot, low, high, written = extents[number]
        buffer, offset = trace.operands_of(launch)
        start = (base[buffer] + offset)[slot]
        widened = ~written & whole
        lows.append(np.where(widened, base[buffer][slot], start + low))
        highs.append(np.where(widened, (base + size)[buffer][slot], start + high))
        kinds.append(written)
        counts.append(len(slot))
    none = np.empty(0, np.int64)
    return (
        np.concatenate([none, *lows]),
        np.concatenate([none, *highs]),
        np.concatenate([none.astype(bool), *kinds]),
        pointers(counts),
    )


def _extents(boxes: Boxes) -> tuple[I64, I64, I64, NDArray[np.bool_]]:
    """Return, by operand slot and by whether it is read or written: slot, first byte, end, written. An update
    is both.
    """
    begin, end = boxes.offset.copy(), boxes.offset + boxes.length
    for count, stride in ((boxes.count_0, boxes.stride_0), (boxes.count_1, boxes.stride_1)):
        span = (count.astype(np.int64) - 1) * stride
        begin += np.minimum(span, 0)
        end += np.maximum(span, 0)
    parts = []
    for written in (False, True):
        rows = boxes.mode != (READ if written else WRITE)
        for slot in np.unique(boxes.operand[rows]).tolist():
            here = rows & (boxes.operand == slot)
            parts.append((slot, begin[here].min(), end[here].max(), written))
    slots, low, high, kinds = zip(*parts, strict=True) if parts else ((), (), (), ())
    return np.array(slots, np.int64), np.array(low, np.int64), np.array(high, np.int64), np.array(kinds, bool)
