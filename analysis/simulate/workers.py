"""Workers of schedulers that have event loops of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tileprof.arrays import F64
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.bounds.problem import Problem
    from tileprof.analysis.simulate.engine.event_loop import Room


def first_begins(p: Problem, begin_ns: F64) -> F64:
    """Return ``[launches]`` when the first tile of each began; 0 for launches without tiles."""
    first = np.zeros(len(p.launch))
    filled = np.flatnonzero(np.diff(p.tile_base))
    first[filled] = np.minimum.reduceat(begin_ns, p.tile_base[filled]) if len(filled) else 0.0
    return first


def workers(p: Problem, room: Room) -> int:
    """Return tiles that fit on the machine at once; none where there are no tiles. The blocks of a cluster may lie on
    several SMs, as the engine places them.

    Raises UserError where not one tile fits.
    """
    filled = np.flatnonzero(np.diff(p.tile_base))
    if not len(filled):
        return 0
    blocks = room.sms * (room.capacity // np.maximum(room.demand[filled], 1)).min(axis=1)
    fits = blocks // room.cluster[filled]
    if fits.min() < 1:
        raise UserError(
            f"a worker as large as a tile of launch {p.launch[filled[fits.argmin()]]} does not fit on the GPU"
        )
    return int(fits.min())
