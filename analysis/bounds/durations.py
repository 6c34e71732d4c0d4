"""The lifetime of each tile: measured where the trace has it, else modelled; each source has a name.

Blocks are timed in a pass of their own, which is slower than the plain program: small kernels take about twice as long
in it. So the measured lives of a launch are *calibrated*: all are multiplied by the same factor, such that the launch
alone, its tiles in dispatch order on its slots, takes the time that it took uninstrumented. What is kept of the blocks
pass is how lives differ from each other. That its overhead is a share of each life, and not a constant a block, is
assumed.

Where a trace has no durations at all, a launch is taken to last as the roofline says: its FLOPs or its distinct bytes
at the rates that the recorded device sustains, whichever takes longer, and `WAVE_NS` a wave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.list_schedule import alone
from tileprof.analysis.bounds.rates import compute_ns
from tileprof.analysis.bounds.traffic import distinct_bytes

if TYPE_CHECKING:
    from tileprof.trace import Recording


MEASURED, MODELLED, SPREAD, ROOFLINE = "measured", "modelled", "spread", "roofline"
"""Sources of a launch's tile durations: its blocks were timed (and calibrated, see above); the footprint's model; the
launch's duration spread evenly over its waves, where nothing is known of single tiles; a roofline, where not even that
is known.
"""

WAVE_NS = 1000.0
"""The cost of a block beside its work: start, a load and a store (as in the model recorder; Luo et al. 2024,
arXiv:2402.13499).
"""


@dataclass(frozen=True, slots=True)
class Durations:
    """Tile durations in nanoseconds, stored once for launches that share them.

    ``begins[i]`` is where launch i's tiles begin in ``ns``; ``source[i]`` is one of the words above. ``calibration``
    maps launches whose blocks were timed to the factor between their lives here and those measured.
    """

    ns: NDArray[np.float64]
    begins: NDArray[np.int64]
    source: list[str]
    calibration: Mapping[int, float] = field(default_factory=dict)

    def sums(self, tiles: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ``[launches]`` sum of the lives of each launch's tiles, ns."""
        cache: dict[tuple[int, int], float] = {}
        for key in zip(self.begins.tolist(), tiles.tolist(), strict=True):
            if key not in cache:
                cache[key] = float(self.ns[key[0] : key[0] + key[1]].sum())
        return np.array([cache[key] for key in zip(self.begins.tolist(), tiles.tolist(), strict=True)], np.float64)

    def of(self, launch: int, tiles: int) -> NDArray[np.float64]:
        """Return ``[tiles]`` durations of one launch."""
        begin = int(self.begins[launch])
        return self.ns[begin : begin + tiles]


def tile_durations(trace: Recording, slots: NDArray[np.int64]) -> Durations:
    """Return durations of all tiles of all launches; ``slots`` as `Machine.slots` of the recorded device gives them."""
    launches = trace.launches
    footprints = launches["footprint"].to_numpy(np.int64)
    tiles = launches["tiles"].to_numpy(np.int64)
    whole_ns = launches["duration_ns"].to_numpy(np.float64, copy=True)
    modelled = (launches["timing"] == "modelled").to_numpy()
    timed = timed_rows(trace)
    tile = trace.times["tile"].to_numpy()
    took_ns = trace.times["end_ns"].to_numpy() - trace.times["begin_ns"].to_numpy()
    assumed_ns: NDArray[np.float64] | None = None
    arrays: list[NDArray[np.float64]] = []
    end_of: dict[tuple[object, ...], int] = {}
    begins = np.zeros(len(launches), np.int64)
    source: list[str] = []
    calibration: dict[int, float] = {}
    end = 0
    for i in range(len(launches)):
        life = None
        key: tuple[object, ...]
        if i in timed:
            key, word = (MEASURED, i), MEASURED
        elif modelled[i] and (life := _footprint_ns(trace, int(footprints[i]))) is not None:
            key, word = (MODELLED, int(footprints[i])), MODELLED
        else:
            word = SPREAD if whole_ns[i] > 0 or not tiles[i] else ROOFLINE
            if word == ROOFLINE:
                assumed_ns = roofline_ns(trace) + WAVE_NS * -(-tiles // slots) if assumed_ns is None else assumed_ns
                whole_ns[i] = assumed_ns[i]
            key = int(tiles[i]), int(slots[i]), whole_ns[i]
        source.append(word)
        if key not in end_of:
            if word == MEASURED:
                life = np.full(tiles[i], np.nan)
                life[tile[timed[i]]] = took_ns[timed[i]]
                life = _without_holes(life)
                calibration[i] = _calibration(life, int(slots[i]), float(whole_ns[i]))
                life *= calibration[i]
            elif life is None:
                life = np.full(tiles[i], whole_ns[i] / max(-(-tiles[i] // slots[i]), 1))
            end_of[key] = end
            arrays.append(life)
            end += len(life)
        begins[i] = end_of[key]
    return Durations(np.concatenate([*arrays, np.empty(0)]), begins, source, calibration)


def roofline_ns(trace: Recording) -> NDArray[np.float64]:
    """Return ``[launches]`` the longer of arithmetic and distinct bytes at sustained rates."""
    dram_ns = distinct_bytes(trace) / trace.device.sustained_bytes_per_s * 1e9
    return np.maximum(compute_ns(trace, trace.device, sustained=True), dram_ns)


def _calibration(life: NDArray[np.float64], slots: int, launch_ns: float) -> float:
    span_ns = float(alone(life, slots).max(initial=0.0))
    return launch_ns / span_ns if span_ns > 0 and launch_ns > 0 else 1.0


def timed_rows(trace: Recording) -> dict[int, slice]:
    """Return launches whose blocks were timed, and their rows of ``trace.times`` (sorted by launch)."""
    launch = trace.times["launch"].to_numpy(np.int64)
    launches, begin, count = np.unique(launch, return_index=True, return_counts=True)
    rows = zip(launches.tolist(), begin.tolist(), count.tolist(), strict=True)
    return {i: slice(first, first + many) for i, first, many in rows}


def _footprint_ns(trace: Recording, footprint: int) -> NDArray[np.float64] | None:
    life = trace.footprint(footprint).duration_ns
    if life is None or not np.isfinite(life).any():
        return None
    return _without_holes(life)


def _without_holes(life: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tiles without a time of their own live as long as the others do on average."""
    measured = np.isfinite(life)
    return np.maximum(life if measured.all() else np.where(measured, life, life[measured].mean()), 0.0)
