"""How long each tile lives: measured where it was, modelled otherwise, each said by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tileprof.trace import Trace


MEASURED, MODELLED, SPREAD = "measured", "modelled", "spread"
"""Where a launch's tile durations come from: its blocks were timed; the footprint's model; nothing is known of
single tiles, and the launch's duration is spread evenly over its waves."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Tile durations in nanoseconds, stored once for launches that share them.

    ``begins[i]`` is where launch i's tiles begin in ``ns``; ``source[i]`` is one of the words above.
    """

    ns: NDArray[np.float64]
    begins: NDArray[np.int64]
    source: list[str]

    def of(self, launch: int, tiles: int) -> NDArray[np.float64]:
        """``[tiles]`` durations of one launch."""
        begin = int(self.begins[launch])
        return self.ns[begin : begin + tiles]


def tile_durations(trace: Trace, slots: NDArray[np.int64]) -> Durations:
    """Durations of all tiles of all launches; ``slots`` as `Machine.slots` of the recorded device gives them."""
    launches = trace.launches
    footprints = launches["footprint"].to_numpy(np.int64)
    tiles = launches["tiles"].to_numpy(np.int64)
    whole_ns = launches["duration_ns"].to_numpy(np.float64)
    modelled = (launches["timing"] == "modelled").to_numpy()
    timed = _timed(trace)
    arrays: list[NDArray[np.float64]] = []
    known: dict[tuple[object, ...], int] = {}
    begins = np.zeros(len(launches), np.int64)
    source: list[str] = []
    end = 0
    for i in range(len(launches)):
        life = None
        key: tuple[object, ...]
        if i in timed:
            key, word = (MEASURED, i), MEASURED
        elif modelled[i] and (life := _footprint_ns(trace, int(footprints[i]))) is not None:
            key, word = (MODELLED, int(footprints[i])), MODELLED
        else:
            key, word = (int(tiles[i]), int(slots[i]), whole_ns[i]), SPREAD
        source.append(word)
        if key not in known:
            if word == MEASURED:
                life = _measured_ns(trace, timed[i], int(tiles[i]))
            elif life is None:
                life = np.full(tiles[i], whole_ns[i] / max(-(-tiles[i] // slots[i]), 1))
            known[key] = end
            arrays.append(life)
            end += len(life)
        begins[i] = known[key]
    return Durations(np.concatenate([*arrays, np.empty(0)]), begins, source)


def _timed(trace: Trace) -> dict[int, slice]:
    """Launches whose blocks were timed, and their rows of ``trace.times`` (sorted by launch)."""
    launch = trace.times["launch"].to_numpy(np.int64)
    found, begin, count = np.unique(launch, return_index=True, return_counts=True)
    rows = zip(found.tolist(), begin.tolist(), count.tolist(), strict=True)
    return {i: slice(first, first + many) for i, first, many in rows}


def _measured_ns(trace: Trace, rows: slice, tiles: int) -> NDArray[np.float64]:
    times = trace.times
    life = np.full(tiles, np.nan)
    life[times["tile"].to_numpy()[rows]] = (times["end_ns"].to_numpy() - times["begin_ns"].to_numpy())[rows]
    return _without_holes(life)


def _footprint_ns(trace: Trace, footprint: int) -> NDArray[np.float64] | None:
    life = trace.footprint(footprint).duration_ns
    if life is None or not np.isfinite(life).any():
        return None
    return _without_holes(life)


def _without_holes(life: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tiles without a time of their own live as long as the others do on average."""
    known = np.isfinite(life)
    return np.maximum(life if known.all() else np.where(known, life, life[known].mean()), 0.0)
