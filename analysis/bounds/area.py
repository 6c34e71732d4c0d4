"""Slot-time over slots: what the SMs must hold, however cleverly it is packed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.problem import Problem


def launch_areas(p: Problem, shares: NDArray[np.float64], sms: int) -> NDArray[np.float64]:
    """Return ``[launches, resources, functions]`` ns: how long a launch fills the whole GPU's resource on its own.

    ``shares`` as `Machine.shares` gives them for the problem's launches.
    """
    return launch_work(p)[:, None, None] * shares / sms


def launch_work(p: Problem) -> NDArray[np.float64]:
    """Return ``[launches]`` sum of the durations of a launch's tiles, ns; shared durations are summed once."""
    cache: dict[tuple[int, int], float] = {}
    sums = np.zeros(len(p.launch))
    for i, (at, tiles) in enumerate(zip(p.ns_at.tolist(), np.diff(p.tile_base).tolist(), strict=True)):
        if (at, tiles) not in cache:
            cache[at, tiles] = float(p.ns[at : at + tiles].sum())
        sums[i] = cache[at, tiles]
    return sums


def head_and_tail(areas: NDArray[np.float64], head_ns: NDArray[np.float64], tail_ns: NDArray[np.float64]) -> float:
    """Return energetic bound, ns, ready-gated: launches that cannot begin before t still need their area after t, and
    launches that ``t`` must follow need theirs before the last t.

    The most over all t and resources of t plus the area of all launches whose head (or tail) is at least t.
    """
    if not len(areas):
        return 0.0
    return max(_staircase(areas, head_ns), _staircase(areas, tail_ns))


def _staircase(areas: NDArray[np.float64], from_ns: NDArray[np.float64]) -> float:
    flat = areas.reshape(len(areas), -1)
    order = np.argsort(-from_ns, kind="stable")
    return float((from_ns[order, None] + np.cumsum(flat[order], axis=0)).max())
