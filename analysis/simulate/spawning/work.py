"""The work of a program with launch sites: rounds of parent threads, and the items of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError


class Spawns(NamedTuple):
    """A workload: ``round_at`` ``[rounds + 1]`` CSR over parent threads; ``items`` and ``item_ns`` ``[threads]`` of
    each; times in nanoseconds. Threads that are items of others follow those of all rounds.
    """

    name: str
    round_at: NDArray[np.int64]
    items: NDArray[np.int64]
    item_ns: NDArray[np.float64]
    """A thread's time for one of its items, inline or as a child."""
    base_ns: float
    """A parent thread's time besides launches and items."""
    child_ns: float
    """A child thread's time besides its item."""
    threshold: int
    """Items from which the program as written launches."""
    first_child: NDArray[np.int64] | None = None
    """``[threads]`` the first of the threads that a thread's items are, a later number than its own; -1 for items that
    have none. None: no child launches.
    """
    together: float = 0.0
    """Share of a thread's time inline that it takes longer for each thread of its warp that is busy beside it: 0 where
    all do the same at a time, 1 where they do nothing side by side.
    """
    beside_ns: float = 0.0
    """What a child tile takes longer for each other one that runs when it starts: they share the memory's bandwidth."""
    own_ns: NDArray[np.float64] | None = None
    """``[threads]`` a thread's time before it comes to its site, or for all that it does where it has none. None:
    ``base_ns`` for threads of rounds, ``item_ns`` of the thread whose item it is for others.
    """
    longest_ns: NDArray[np.float64] | None = None
    """``[threads]`` the longest item of a child tile, in the mean of a thread's tiles, where items have no sites. None:
    ``item_ns``.
    """
    gap_ns: NDArray[np.float64] | None = None
    """``[rounds]`` the time from the end of the round before. None: the option ``gap_ns`` for each."""


def own_times(work: Spawns, first_child: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``own_ns`` with its default."""
    if work.own_ns is not None:
        return work.own_ns
    times = np.full(len(work.items), float(work.base_ns))
    owners = np.flatnonzero((first_child >= 0) & (work.items > 0))
    owner, place = ragged(work.items[owners])
    times[first_child[owners][owner] + place] = work.item_ns[owners][owner]
    return times


def depth_of(work: Spawns, first_child: NDArray[np.int64]) -> int:
    """Return levels of threads below those of the rounds.

    Raises `UserError` where a thread is in no round and no item, or in several.
    """
    roots = int(work.round_at[-1])
    level, count, depth = np.arange(roots), roots, 0
    while True:
        parents = level[(first_child[level] >= 0) & (work.items[level] > 0)]
        if not len(parents):
            break
        owner, place = ragged(work.items[parents])
        level = first_child[parents][owner] + place
        count += len(level)
        depth += 1
        if level.max() >= len(work.items) or level.min() < roots or count > len(work.items):
            raise UserError(
                f"workload {work.name}: items of threads are threads {level.min()} to {level.max()}, expected "
                f"{roots} to {len(work.items) - 1}, each once; number the threads level by level"
            )
    if count != len(work.items):
        raise UserError(f"workload {work.name}: {len(work.items) - count} threads are in no round and no item")
    return depth
