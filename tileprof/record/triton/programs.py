"""The bytes that one Triton program touches, collected access by access and reduced when the program ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.intervals import union
from tileprof.record.runs import boxes, runs
from tileprof.trace.footprint import Boxes

_CHUNKS = 8
"""Parts of a program's life that are told apart: enough for a consumer's wait inside its main loop."""


@dataclass(frozen=True, slots=True)
class Span:
    """Memory behind a tensor argument: addresses ``[low, high)``; byte 0 of slot ``operand`` is at ``origin``."""

    low: int
    high: int
    origin: int
    operand: int


@dataclass(slots=True)
class ProgramLog:
    """The accesses of one program, in order, and the floating point operations of its dot products."""

    accesses: list[tuple[int, I64, I64]] = field(default_factory=list)
    flops: int = 0

    def add(self, mode: int, addresses: NDArray[np.uint64], active: NDArray[np.bool_] | None, itemsize: int) -> None:
        self.accesses.append((mode, *runs(addresses, active, itemsize)))

    def boxes(self, tile: int, spans: list[Span]) -> Boxes:
        """Return the program's boxes, relative to operands.

        ``first`` and ``last`` are places in the sequence of the program's memory accesses: an order, not a clock.
        Raises `ValueError` for an address outside every span.
        """
        total = max(1, len(self.accesses))
        grouped: dict[tuple[int, int], list[int]] = {}
        for place, (mode, _, _) in enumerate(self.accesses):
            grouped.setdefault((mode, place * _CHUNKS // total), []).append(place)
        parts = []
        for (mode, _), places in grouped.items():
            begin = np.concatenate([self.accesses[p][1] for p in places])
            end = np.concatenate([self.accesses[p][2] for p in places])
            order = np.argsort(begin, kind="stable")
            times = places[0] / total, (places[-1] + 1) / total
            parts += _by_operand(tile, mode, union(begin[order], end[order]), spans, times)
        return Boxes.concat(parts)


def _by_operand(
    tile: int, mode: int, touched: tuple[I64, I64], spans: list[Span], times: tuple[float, float]
) -> list[Boxes]:
    begin, end = touched
    parts = []
    bytes_total = 0
    for span in spans:
        # Runs are joined across tensors that lie next to each other: each span takes its part.
        inside = slice(int(np.searchsorted(end, span.low, "right")), int(np.searchsorted(begin, span.high)))
        low, high = np.maximum(begin[inside], span.low), np.minimum(end[inside], span.high)
        if len(low) == 0:
            continue
        bytes_total += int((high - low).sum())
        rows = boxes(low - span.origin, high - span.origin)
        columns = dict(zip(("offset", "length", "count_0", "stride_0", "count_1", "stride_1"), rows, strict=True))
        parts.append(Boxes.of(tile=tile, operand=span.operand, mode=mode, **columns, first=times[0], last=times[1]))
    if bytes_total != int((end - begin).sum()):
        raise ValueError("an address lies in no tensor argument's memory")
    return parts
