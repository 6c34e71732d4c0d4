"""Measures how much of a program is independent, which matters before its kernels are spread over streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tileprof.analysis.simulate.scheduler import Program

WINDOW: Final = 32
"""Launches that are looked at together, as in ACS."""


@dataclass(frozen=True, slots=True)
class Independence:
    """``share``: of the launches, those that need not wait for the launch before them. ``width``: launches over the
    longest chain of launches that wait for each other, in windows of ``window``, weighed by launches.
    """

    window: int
    share: float
    width: float


def independence(program: Program, window: int = WINDOW) -> Independence:
    """Return the independence of a program's launches by the bytes that they touch, recycled memory included."""
    count = program.count
    if count < 2:
        return Independence(window, 0.0, 1.0)
    free = sum(launch - 1 not in program.all_parents(launch) for launch in range(1, count))
    chains = 0
    for first in range(0, count, window):
        depth: list[int] = []
        for launch in range(first, min(first + window, count)):
            before = [depth[p - first] for p in program.all_parents(launch) if p >= first]
            depth.append(1 + max(before, default=0))
        chains += max(depth)
    return Independence(window, free / (count - 1), count / chains)
