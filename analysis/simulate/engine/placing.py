"""Places a tile's blocks: on the SM with the most free block slots among those that they fit; ties go to the lowest
number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import inlined, internal
from tileprof.analysis.simulate.engine.state import BLOCKED, FREED, State
from tileprof.arrays import I64


@internal
def _take(free: I64, sm: int, demand: I64, times: int) -> None:
    for r in range(len(demand)):
        free[sm, r] -= times * demand[r]


@internal
def _best_sm(free: I64, demand: I64) -> int:
    best, most = -1, -1
    for sm in range(free.shape[0]):
        if free[sm, 0] > most:
            fits = True
            for r in range(free.shape[1]):
                if free[sm, r] < demand[r]:
                    fits = False
                    break
            if fits:
                best, most = sm, free[sm, 0]
    return best


@internal
def _place_anywhere(free: I64, demand: I64, blocks: int, places: NDArray[np.int32]) -> bool:
    """Reserve room for all blocks of a tile, or for none."""
    for b in range(blocks):
        sm = _best_sm(free, demand)
        if sm < 0:
            for placed_blocks in range(b):
                _take(free, places[placed_blocks], demand, -1)
            return False
        _take(free, sm, demand, 1)
        places[b] = sm
    return True


@internal
def _best_freed_sm(z: State, demand: I64) -> int:
    """Return the same as `_best_sm`, when no SM but those freed since can have room."""
    best, most = -1, -1
    for k in range(z.n[FREED]):
        sm = z.freed[k]
        if z.free[sm, 0] > most or (z.free[sm, 0] == most and sm < best):
            fits = True
            for r in range(len(demand)):
                fits = fits and z.free[sm, r] >= demand[r]
            if fits:
                best, most = sm, z.free[sm, 0]
    return best


@inlined
def place(z: State, launch: int, demand: I64, blocks: int, places: NDArray[np.int32]) -> bool:
    """Reserve room for all blocks of a tile, or for none.

    After a launch's tile has found no room, the next attempt looks at the SMs that were freed since only.
    """
    if blocks == 1 and z.n[BLOCKED] == launch:
        sm = _best_freed_sm(z, demand)
        if sm < 0:
            z.n[FREED] = 0
            return False
        _take(z.free, sm, demand, 1)
        places[0] = sm
        return True
    if _place_anywhere(z.free, demand, blocks, places):
        return True
    z.n[BLOCKED], z.n[FREED] = launch, 0
    return False


@internal
def free(z: State, sm: int, demand: I64) -> None:
    """Give back what a tile had on an SM (``demand``, ``[resources]``), and note it for tiles that wait for room."""
    _take(z.free, sm, demand, -1)
    if z.n[FREED] == len(z.freed):
        z.n[BLOCKED], z.n[FREED] = -1, 0  # too many to remember: look at all
    z.freed[z.n[FREED]] = sm
    z.n[FREED] += 1
