"""The state of the compiled loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FLAT, ALWAYS, THRESHOLD, SPAWN, WARP = range(5)
POLICIES = ("flat", "always", "threshold", "spawn", "warp")

(
    PARENT, CURRENT, RUNNING, HELD, ROOM, QUEUED, CHILDREN, ENDED, ACTIVE, ENTERED, ARRIVED, FRONT, SIZE,
    SEEN, KEEPING,
) = range(15)  # fmt: skip
"""Counters: next parent thread, round, parent tiles that run, free slots, free threads, child tiles launched and not
ended, of these running, child tiles ended, grids in execution, grids that have entered execution, grids arrived, first
grid with tiles to start, events, child tiles in the queue when a rule last looked, and warps that do items inline, by
the progress at which they end.
"""

(
    BUSY, SINCE, LIVED, SERVED, AREA, TICKED, CLOSES, MEAN, LOOKED, REACHES, OWN_ITEMS, OWN_NS, BEGUN,
    PROGRESS, UNTIL, DEMAND,
) = range(16)  # fmt: skip
"""Times: in which some child tile ran, since when one does, of all child tiles that have ended; when the last launch
has been served. Of the window: child tiles times time so far, until when, when it ends, and how many ran at a time in
the one before. When a rule looked at the queue; when the next parent tile may start; items done inline by tiles that
have ended, and their time. When the first child tile started. How far a warp has come that has done items inline
since the beginning, as far as it would alone, until when this is counted, and items per time that such warps would do
alone.
"""

TOP, UNTIMED = -1, -2
"""No owner above; and the time of the thread's items is not measured, since another thread of its warp measures."""

WINDOWS = 8
"""That are kept, of which the last six whole ones are read (spawn.cuh)."""


class State(NamedTuple):
    c: NDArray[np.int64]
    ns: NDArray[np.float64]
    keys: NDArray[np.float64]
    events: NDArray[np.int64]
    runs: NDArray[np.int64]
    """``[slots]`` -1 a parent tile, else a grid."""
    began: NDArray[np.float64]
    """``[slots]`` when the tile there started."""
    warps: NDArray[np.int64]
    """``[slots]`` warps of the tile there that have not ended."""
    free: NDArray[np.int64]
    """Free slots, a stack."""
    arrived: NDArray[np.int64]
    """Grids in order of arrival."""
    to_start: NDArray[np.int64]
    to_end: NDArray[np.int64]
    asked: NDArray[np.float64]
    took: NDArray[np.float64]
    estimate: NDArray[np.float64]
    slot: NDArray[np.int64]
    """``[threads]`` by the first thread of a warp, where its tile runs; the end of its threads; and its parts that have
    not ended: threads whose items have sites, and the others together.
    """
    stop: NDArray[np.int64]
    parts: NDArray[np.int64]
    warp: NDArray[np.int64]
    """``[threads]`` first thread of the warp of a thread that does items with sites inline."""
    at: NDArray[np.int64]
    """``[threads]`` of such a thread, the owner of the items that it does now, and the site that it reaches next, or -1
    for its end.
    """
    site: NDArray[np.int64]
    up: NDArray[np.int64]
    """``[threads]`` of an owner, the owner whose item it is (`TOP` or `UNTIMED` for none), the next of its own items,
    and when these began.
    """
    next: NDArray[np.int64]
    since: NDArray[np.float64]
    due_items: NDArray[np.int64]
    """``[threads]`` items that such a thread has done inline since it came to a site, and their time."""
    due_ns: NDArray[np.float64]
    deep: NDArray[np.int64]
    """``[threads]`` by the first thread of a warp, its threads that do items with sites inline."""
    others_end: NDArray[np.float64]
    """``[threads]`` by the first thread of a warp, when its threads without sites have ended."""
    own_items: NDArray[np.int64]
    """``[threads]`` by the first thread of a warp, items of the first thread that keeps its own, if they have no sites,
    and how long the warp takes for all that it keeps.
    """
    own_ns: NDArray[np.float64]
    demand: NDArray[np.float64]
    """``[threads]`` by the first thread of a warp, items that its threads keep over the time they take alone."""
    progress: NDArray[np.float64]
    """Progress at which warps that do items inline end, and their first threads: a heap."""
    keeping: NDArray[np.int64]
    chosen: NDArray[np.bool_]
    """``[warp]`` which threads of a warp launch."""
    picked: NDArray[np.int64]
    """``[warp]`` those, the largest first."""
    kept: NDArray[np.float64]
    """``[warp]`` time of each thread of a warp for what it does inline, by itself."""
    window: NDArray[np.int64]
    """``[WINDOWS]`` number of each window in which child tiles ended, -1 for none; how many did, and their lives."""
    window_ended: NDArray[np.int64]
    window_lived: NDArray[np.float64]


class Work(NamedTuple):
    items: NDArray[np.int64]
    item_ns: NDArray[np.float64]
    longest_ns: NDArray[np.float64]
    first_child: NDArray[np.int64]
    own_ns: NDArray[np.float64]
    child_ns: float
    policy: int
    threshold: int
    together: float


class Costs(NamedTuple):
    slots: int
    resident: int
    parent: int
    child: int
    warp: int
    launch_ns: float
    told_ns: float
    another_ns: float
    told_another_ns: float
    serve_ns: float
    window_ns: float
    ended: int
    queues: int
    gap_ns: float
    prior: int
    untried: int
    children: int
    lag_ns: float
    stagger_ns: float
    guess_ns: float
    issue_ns: float
