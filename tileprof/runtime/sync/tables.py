"""A policy as the integer tables that kernels read: which semaphores a tile posts and awaits, and in which order tiles
are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.ragged import owners
from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import lower

I32 = NDArray[np.int32]

FLAG_BYTES: Final = 128
"""A semaphore fills a cache line of its own: neighbours that are polled do not slow each other's posts."""

_MOST_WAITS: Final = 512
"""Waits of a tile that a block polls at once; beyond it a coarser policy is the better answer."""


@dataclass(frozen=True, slots=True)
class StageTables:
    """One stage. All int32.

    ``waits`` ``[tiles, width, 3]``: semaphore (-1: none), the value awaited, and how many tiles post it in a run;
    ``width`` is a power of two, or 0 for a stage that awaits nothing. ``posts`` ``[tiles, arrays]``: semaphores to add
    1 to. ``order`` ``[tiles]``: the tile that a block takes, or None for its own number.
    """

    waits: I32
    posts: I32
    order: I32 | None

    @property
    def width(self) -> int:
        return int(self.waits.shape[1])


@dataclass(frozen=True, slots=True)
class Tables:
    """All stages, and how many ``semaphores`` they share."""

    stages: tuple[StageTables, ...]
    semaphores: int

    @classmethod
    def of(cls, policy: Policy) -> Tables:
        """Raises `UserError` where a tile awaits more semaphores than a block polls."""
        arrays = sorted({edge.semaphores for edge in policy.edges})
        first = dict(zip(arrays, np.cumsum([0] + [policy.semaphores[a].count for a in arrays]).tolist(), strict=False))
        lowered = lower(policy)
        posted = {waits.edge.semaphores: waits.of for waits in lowered}
        stages = []
        for number, stage in enumerate(policy.stages):
            stage_waits = [w for w in lowered if w.edge.consumer == number]
            rows = [
                (
                    owners(w.indptr),
                    first[w.edge.semaphores] + w.semaphore,
                    w.value,
                    w.posts[w.semaphore],
                )
                for w in stage_waits
            ]
            posts = [first[a] + of for a, of in posted.items() if policy.semaphores[a].producer == number]
            order = None if stage.order is None else np.array(stage.order, np.int32)
            table = np.stack(posts, axis=1) if posts else np.empty((stage.tiles, 0))
            stages.append(StageTables(_padded(rows, stage.tiles, stage.name), table.astype(np.int32), order))
        return cls(tuple(stages), sum(policy.semaphores[a].count for a in arrays))


def _padded(rows: Sequence[tuple[NDArray[np.int64], ...]], tiles: int, name: str) -> I32:
    if not rows:
        return np.empty((tiles, 0, 3), np.int32)
    tile, semaphore, value, posts = (np.concatenate(c) for c in zip(*rows, strict=True))
    some = value > 0
    tile, semaphore, value, posts = tile[some], semaphore[some], value[some], posts[some]
    order = np.argsort(tile, kind="stable")
    tile = tile[order]
    place = np.arange(len(tile)) - np.searchsorted(tile, tile)
    widest = int(place.max(initial=0)) + 1
    if widest > _MOST_WAITS:
        raise UserError(
            f"a tile of {name} awaits {widest} semaphores; a block polls at most {_MOST_WAITS}: take a coarser policy "
            "(row, strided or grid)"
        )
    table = np.full((tiles, 1 << (widest - 1).bit_length(), 3), (-1, 0, 0), np.int32)
    table[tile, place] = np.stack([semaphore, value, posts], axis=1)[order]
    return table
