"""Finds the reach of footprints' boxes on each operand, and checks that the buffers that launches bind hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64

if TYPE_CHECKING:
    from tileprof.trace.recording import Recording

FAR: Final = 2.0**60
"""No address, offset or extent in bytes is that large; beyond it int64 sums may wrap."""


def reach(rows: dict[str, Any]) -> NDArray[np.float64]:
    """Return ``[boxes]``: at least as many bytes as each box of the table ``accesses`` reaches from byte 0 of its
    operand.
    """
    extent: NDArray[np.float64] = np.abs(rows["offset"].astype(np.float64)) + rows["length"]
    for level in (0, 1):
        extent += rows[f"count_{level}"] * np.abs(rows[f"stride_{level}"].astype(np.float64))
    return extent


def slots_bound(trace: Recording) -> I64:
    """Return ``[footprints]``: operand slots that every launch of a footprint binds; 0 for a footprint without
    launches.
    """
    launches, operands = trace.columns("launches"), trace.columns("operands")
    operand_counts = np.bincount(operands["launch"], minlength=len(launches["launch"]))
    most = int(operand_counts.max(initial=0)) + 1
    slots = np.full(trace.footprints, most, dtype=np.int64)
    np.minimum.at(slots, launches["footprint"], operand_counts)
    slots[slots == most] = 0
    return slots


@dataclass(frozen=True, slots=True)
class Touched:
    """The bytes of their operands that launches touch: ``[begin, end)`` of the buffer of each row of the table
    ``operands``, and ``outside``, whether some of them are not the buffer's.
    """

    begin: I64
    end: I64
    outside: NDArray[np.bool_]


def touched(trace: Recording, rows: dict[str, Any], slots: I64) -> Touched:
    """Return each footprint's extent on an operand, laid into the buffer that each launch binds.

    ``rows`` are those of the table ``accesses``, whose `reach` is below `FAR`; ``slots`` as of `slots_bound`: boxes
    on other slots are passed over.
    """
    base = np.concatenate([np.zeros(1, np.int64), np.cumsum(slots)])
    low, high = _extents(rows, slots, base)
    bound, launches, buffers = trace.columns("operands"), trace.columns("launches"), trace.columns("buffers")
    footprint = launches["footprint"][bound["launch"]]
    bound_rows = np.flatnonzero(bound["operand"] < slots[footprint])
    key = base[footprint[bound_rows]] + bound["operand"][bound_rows]
    bound_rows, key = bound_rows[high[key] > low[key]], key[high[key] > low[key]]
    begin, end = np.zeros((2, len(footprint)), dtype=np.int64)
    begin[bound_rows], end[bound_rows] = low[key] + bound["offset"][bound_rows], high[key] + bound["offset"][bound_rows]
    size = buffers["bytes"][bound["buffer"]]
    return Touched(begin, end, (end > begin) & ((begin < 0) | (end > size)))


def _extents(rows: dict[str, Any], slots: I64, base: I64) -> tuple[I64, I64]:
    """Return lowest byte and end of what boxes touch on slot ``s`` of footprint ``f``, at ``base[f] + s``;
    else 0, 0.
    """
    begin, end = rows["offset"].copy(), rows["offset"] + rows["length"]
    for level in (0, 1):
        span = (rows[f"count_{level}"].astype(np.int64) - 1) * rows[f"stride_{level}"]
        begin += np.minimum(span, 0)
        end += np.maximum(span, 0)
    key = base[rows["footprint"]] + rows["operand"]
    has_slot = rows["operand"] < slots[rows["footprint"]]
    if not has_slot.all():
        key, begin, end = key[has_slot], begin[has_slot], end[has_slot]
    far = np.iinfo(np.int64)
    low, high = np.full(base[-1], far.max), np.full(base[-1], far.min)
    np.minimum.at(low, key, begin)
    np.maximum.at(high, key, end)
    untouched = low > high
    low[untouched] = high[untouched] = 0
    return low, high
