"""Clocks: tiles that work at the same rate share one, so that a change of rate costs nothing per tile.

A tile's work is the time it takes at rate 1. A clock counts work: it advances by its rate times the time that passes,
and a tile that begins with ``w`` of work left ends when its clock shows what it showed then plus ``w``. A tile that
works puts a load on its SM or on the whole GPU (`Sharing`), and a clock's rate follows from the largest load among
those it is subject to ::

    rate = FULL / max(FULL, base + load)

Loads are whole numbers, so that their sums do not depend on the order of events, and the plain engine can be held to
the same times to the last bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import internal
from tileprof.analysis.heaps import pop, push
from tileprof.arrays import F64, I64

FULL = 1 << 30
"""A load at which what is shared is just used up (``base`` 0)."""


class Sharing(NamedTuple):
    """Resources that working tiles share. ``clocks`` 0: none, every tile works at rate 1.

    ``by_sm``: every SM has a clock and a load of its own, and ``loads`` ``[launches, 1]`` is what a block adds to its
    SM's. Otherwise loads are the GPU's, ``[launches, resources]`` a tile, and there is a clock for every subset of the
    resources: a tile is subject to those on which it puts a load.
    """

    clocks: int
    by_sm: bool
    base: int
    loads: I64

    def of(self, launches: NDArray[Any]) -> Sharing:
        return self._replace(loads=self.loads[launches]) if self.clocks else self


def alone(launches: int) -> Sharing:
    """Return the sharing of tiles that share nothing."""
    return Sharing(0, False, 0, np.zeros((launches, 1), np.int64))


class Clocks(NamedTuple):
    """``keys``, ``items`` ``[clocks, tiles]``: heaps of what clocks show when tiles stop; ``size`` ``[clocks]``;
    ``load`` by SM or by resource.

    ``state`` ``[clocks, 4]``, by the constants below.
    """

    keys: F64
    items: I64
    size: I64
    state: F64
    load: I64


SHOWN, AT, RATE, UPCOMING = range(4)
"""Columns of a clock: its value, the time of that value, its rate since, and the stop of its first tile (infinite for
none).
"""


@internal
def rate_of(sharing: Sharing, load: I64, clock: int) -> float:
    """Return the speed of tiles on a clock, as a share of what a tile alone has; ``load`` is ``[clocks]``."""
    most = 0
    if sharing.by_sm:
        most = load[clock]
    else:
        for r in range(len(load)):
            if clock >> r & 1:
                most = max(most, load[r])
    rate: float = FULL / max(FULL, sharing.base + most)
    return rate


@internal
def clock_of(sharing: Sharing, launch: int, sm: int) -> int:
    """Return the clock of a launch's tiles: the SM, or the set of resources that the launch loads, as bits."""
    if sharing.by_sm:
        return sm
    clock = 0
    for r in range(sharing.loads.shape[1]):
        if sharing.loads[launch, r] > 0:
            clock |= 1 << r
    return clock


@internal
def _look(c: Clocks, clock: int) -> None:
    if c.size[clock] == 0:
        c.state[clock, UPCOMING] = np.inf
    else:
        c.state[clock, UPCOMING] = (
            c.state[clock, AT] + max(0.0, c.keys[clock, 0] - c.state[clock, SHOWN]) / c.state[clock, RATE]
        )


@internal
def settle(c: Clocks, sharing: Sharing, now: float) -> None:
    """Rates follow the loads."""
    if sharing.clocks > 0:
        for k in range(sharing.clocks):
            rate = rate_of(sharing, c.load, k)
            if rate != c.state[k, RATE]:
                c.state[k, SHOWN] += c.state[k, RATE] * (now - c.state[k, AT])
                c.state[k, AT] = now
                c.state[k, RATE] = rate
                _look(c, k)


@internal
def first(c: Clocks) -> int:
    """Return the clock whose tile stops first."""
    best = 0
    for k in range(1, len(c.size)):
        if c.state[k, UPCOMING] < c.state[best, UPCOMING] or (
            c.state[k, UPCOMING] == c.state[best, UPCOMING] and c.size[k] > 0 and c.items[k, 0] < c.items[best, 0]
        ):
            best = k
    return best


@internal
def start(c: Clocks, clock: int, now: float, until: float, tile: int) -> None:
    """A tile begins with work that takes until then at rate 1."""
    key = until
    if c.state[clock, RATE] != 1.0 or c.state[clock, SHOWN] != c.state[clock, AT]:
        key = c.state[clock, SHOWN] + c.state[clock, RATE] * (now - c.state[clock, AT]) + (until - now)
    push(c.keys[clock], c.items[clock], c.size[clock], key, tile)
    c.size[clock] += 1
    _look(c, clock)


@internal
def stop(c: Clocks, clock: int) -> None:
    """The first tile of a clock stops."""
    pop(c.keys[clock], c.items[clock], c.size[clock])
    c.size[clock] -= 1
    _look(c, clock)
