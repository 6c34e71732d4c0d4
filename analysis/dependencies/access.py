"""Finds the buffers that each launch of a trace touches, and how; looked up once per distinct footprint and binding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.dependencies.touched_bytes import Access, access
from tileprof.arrays.ragged import owners
from tileprof.trace.footprint import READ
from tileprof.trace.schema import NEVER

if TYPE_CHECKING:
    from tileprof.trace import Recording


class Accesses:
    """The accesses of a trace, launch by launch.

    Buffers that nothing in the trace writes and that are never freed (weights) cannot carry a dependency; they are left
    out before any box is looked at.
    """

    def __init__(self, trace: Recording, granule: int = 1) -> None:
        self._trace, self._granule = trace, granule
        operands = trace.operands
        launch = operands["launch"].to_numpy()
        self._slot = operands["operand"].to_numpy()
        self._buffer = operands["buffer"].to_numpy()
        self._offset = operands["offset"].to_numpy()
        self._footprint = trace.launches["footprint"].to_numpy()
        self._starts = np.searchsorted(launch, np.arange(len(self._footprint) + 1))
        self._accesses: dict[tuple[int, tuple[tuple[int, int], ...]], Access] = {}
        self._tracked = self._tracked_buffers()

    def of(self, launch: int) -> list[tuple[int, Access]]:
        """Return ``(buffer, access)`` for each tracked buffer that the launch touches."""
        rows = slice(self._starts[launch], self._starts[launch + 1])
        bound: dict[int, list[tuple[int, int]]] = {}
        for slot, buffer, offset in zip(
            self._slot[rows].tolist(), self._buffer[rows].tolist(), self._offset[rows].tolist(), strict=True
        ):
            if self._tracked[buffer]:
                bound.setdefault(buffer, []).append((slot, offset))
        footprint = int(self._footprint[launch])
        accesses = ((buffer, self._access(footprint, tuple(bindings))) for buffer, bindings in bound.items())
        return [(buffer, a) for buffer, a in accesses if a.read or a.write or a.atomic]

    def _access(self, footprint: int, bindings: tuple[tuple[int, int], ...]) -> Access:
        key = (footprint, bindings)
        cached = self._accesses.get(key)
        if cached is None:
            cached = access(len(self._accesses), self._trace.footprint(footprint), bindings, self._granule)
            self._accesses[key] = cached
        return cached

    def _tracked_buffers(self) -> NDArray[np.bool_]:
        buffers = self._trace.buffers
        tracked: NDArray[np.bool_] = buffers["freed_at"].to_numpy() != NEVER
        launches = owners(self._starts)
        footprint = self._footprint[launches]
        for number in np.unique(footprint):
            boxes = self._trace.footprint(int(number)).boxes
            written_operands = np.unique(boxes.operand[boxes.mode != READ])
            rows = footprint == number
            tracked[self._buffer[rows][np.isin(self._slot[rows], written_operands)]] = True
        return tracked
