"""Wave quantisation: how many rounds of tiles a launch needs, and what its last round leaves idle.

A wave is one round over all slots; the last is as long as a full one however few tiles it has. Waves are whole
numbers; the shares beside them are exact fractions. ::

    slots = SMs * resident blocks per SM / blocks per cluster        waves = ceil(tiles / slots)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tileprof.analysis.bounds.durations import Durations


@dataclass(frozen=True, slots=True)
class PairWaves:
    """Waves of two launches one after the other, and if the second one's tiles filled the first one's last wave.

    ``stream`` is the sum of the launches' whole waves; ``overlapped`` is the sum of their fractions of waves
    (tiles over slots), which `overlapped_whole` rounds up.
    """

    stream: int
    overlapped: float

    @property
    def overlapped_whole(self) -> int:
        return whole(self.overlapped)

    @property
    def saved(self) -> float:
        """Share of the stream-order waves that overlap would save at most, 0 to 1."""
        return 1.0 - self.overlapped / self.stream if self.stream else 0.0


def pair_waves(tiles: tuple[int, int], slots: tuple[int, int]) -> PairWaves:
    """Return waves of a producer and a consumer with the given tiles and slots."""
    fractions = [t / s for t, s in zip(tiles, slots, strict=True)]
    return PairWaves(sum(whole(f) for f in fractions), sum(fractions))


def whole(waves: float) -> int:
    """Return waves rounded up; a rounding error of the division is not a wave."""
    return int(np.ceil(waves - 1e-9))


def launch_waves(launches: pd.DataFrame, slots: NDArray[np.int64], durations: Durations) -> pd.DataFrame:
    """Return one row per launch: ``slots``, ``waves`` (whole), ``last_wave`` (how full the last wave is, 0 to 1),
    ``alone_ns`` (how long its tiles take with the GPU to themselves, each taking the next free slot) and ``idle``
    (share of the slot-time until then in which a slot has no tile).

    A launch without tiles has no waves, a full last wave and nothing idle.
    """
    tiles = launches["tiles"].to_numpy(np.int64)
    waves = -(-tiles // slots)
    last = np.where(waves > 0, (tiles - (waves - 1) * slots) / slots, 1.0)
    cache: dict[tuple[int, int, int], tuple[float, float]] = {}
    rows = []
    for i, key in enumerate(zip(durations.begins.tolist(), tiles.tolist(), slots.tolist(), strict=True)):
        if key not in cache:
            cache[key] = _alone(durations.of(i, int(tiles[i])), int(slots[i]))
        rows.append(cache[key])
    alone_ns, idle = zip(*rows, strict=True) if rows else ((), ())
    return pd.DataFrame(
        {
            "slots": slots,
            "waves": waves,
            "last_wave": last,
            "alone_ns": np.array(alone_ns, np.float64),
            "idle": np.array(idle, np.float64),
        }
    )


def _alone(ns: NDArray[np.float64], slots: int) -> tuple[float, float]:
    from tileprof.analysis.bounds.list_schedule import alone  # noqa: PLC0415  # bounds imports this module

    span = float(alone(ns, slots).max(initial=0.0))
    return span, 1.0 - float(ns.sum()) / (span * slots) if span > 0 else 0.0
