"""The state of the compiled loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FLAT, ALWAYS, THRESHOLD, SPAWN, BY_WARP = range(5)
POLICIES = ("flat", "always", "threshold", "spawn", "warp")

(
    PARENT,  # next parent thread
    CURRENT,  # round
    RUNNING,  # parent tiles that run
    HELD,  # free slots
    ROOM,  # free threads
    QUEUED,  # child tiles launched and not ended
    CHILDREN,  # of these running
    ENDED,  # child tiles ended
    ACTIVE,  # grids in execution
    ENTERED,  # grids that have entered execution
    ARRIVED,  # grids arrived
    FRONT,  # first grid with tiles to start
    SIZE,  # events
    SEEN,  # child tiles in the queue as the warp that decides has read it
    KEEPING,  # warps that do items inline, by the progress at which they end
    VISIBLE,  # child tiles in the queue as anyone can read it
    STANDING,  # warps that launch
    PENDING,  # grids that are not complete
    COMPLETED,  # grids of the round that are complete
) = range(19)
"""Counters (`State.c`)."""

(
    BUSY,  # in which some child tile ran
    SINCE,  # since when one runs
    LIVED,  # of all child tiles that have ended
    SERVED,  # when the last launch has been served
    AREA,  # of the window: child tiles times time so far
    TICKED,  # of the window: until when `AREA` counts
    CLOSES,  # when the window ends
    MEAN,  # child tiles that ran at a time in the window before
    LINE,  # when the last read or update of the controller's words is done
    DONE,  # when the last grid that has ended is complete
    REACHES,  # when the next parent tile may start
    OWN_ITEMS,  # items done inline by tiles that have ended
    OWN_NS,  # time of these items
    BEGUN,  # when the first child tile started
    PROGRESS,  # how far a warp has come that has done items inline since the beginning, as far as alone
    UNTIL,  # until when `PROGRESS` is counted
    DEMAND,  # items per time that such warps would do alone
) = range(17)
"""Times in nanoseconds, and sums of them (`State.ns`)."""

(
    DECIDES,  # its warp decides
    COMES,  # its warp comes to sites among its items or to their end
    KEEPS,  # its warp begins with the items without sites that it keeps
    READS,  # its read comes to the controller's words
    SAMPLES,  # its last read comes to these words
    UPDATES,  # what it has launched comes to these words
    SHOWS,  # what it has launched can be read
    GOES_ON,  # it has launched
    COMPLETES,  # its grid is complete
) = range(9)
"""Events of a thread."""

TOP, UNTIMED = -1, -2
"""No owner above; and the time of the owner's items is not measured, since another thread of its warp measures."""

SMS = 132
"""SMs over which tiles are dealt."""
GROUPS = 8
"""GPCs of these."""
FIRST = 32
"""Queues whose first grid takes longer."""

WINDOWS = 8
"""Number of windows that are kept; the last six whole ones are read (spawn.cuh)."""


class State(NamedTuple):
    """What changes in a simulation of launches from kernels; nanoseconds in floats."""

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
    group: NDArray[np.int64]
    """``[slots]`` GPC of the SM where the tile there runs."""
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
    at: NDArray[np.int64]
    """``[threads]`` by the first thread of a warp that does items with sites inline, the first of the owners whose
    items it does now, and of the threads whose sites it reaches next, or -1 for its end.
    """
    site: NDArray[np.int64]
    peer: NDArray[np.int64]
    """``[threads]`` the next thread of the same warp that is at its site, too, or whose items the warp does; -1: none.
    """
    up: NDArray[np.int64]
    """``[threads]`` of the first of such owners, the first of those whose items these are (`TOP` or `UNTIMED` for
    none), the next of their own items, and when these began.
    """
    next: NDArray[np.int64]
    since: NDArray[np.float64]
    due_items: NDArray[np.int64]
    """``[threads]`` by the first thread of a warp, items that its first owners have done inline since it came to a
    site, and their time.
    """
    due_ns: NDArray[np.float64]
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
    words: NDArray[np.int64]
    """``[threads]`` by the first thread of a warp that decides, words of the controller that it has yet to read, -1
    when it has; child tiles in the queue when it read their number; and tiles that it has launched since, which cannot
    be read yet, of how many grids.
    """
    looked: NDArray[np.int64]
    adds: NDArray[np.int64]
    lanes_of: NDArray[np.int64]
    over: NDArray[np.int64]
    """``[threads]`` of a launched grid, that whose thread launched it, -1 for a parent tile's; and what keeps it from
    being complete: its own tiles, as one, and grids that these have launched.
    """
    open: NDArray[np.int64]
    lanes: NDArray[np.int64]
    """``[warp]`` threads of a warp that decide together, and which of these launch."""
    chosen: NDArray[np.bool_]
    picked: NDArray[np.int64]
    """``[warp]`` those, the largest first."""
    kept: NDArray[np.float64]
    """``[warp]`` time of each thread of a warp for what it does inline, by itself."""
    window: NDArray[np.int64]
    """``[WINDOWS]`` number of each window in which child tiles ended, -1 for none; how many did, and their lives."""
    window_ended: NDArray[np.int64]
    window_lived: NDArray[np.float64]


class Work(NamedTuple):
    """What parent threads and their children have to do; see `Spawns`."""

    items: NDArray[np.int64]
    item_ns: NDArray[np.float64]
    longest_ns: NDArray[np.float64]
    first_child: NDArray[np.int64]
    own_ns: NDArray[np.float64]
    child_ns: float
    beside_ns: float
    policy: int
    threshold: int
    together: float
    gap_ns: NDArray[np.float64]


class Costs(NamedTuple):
    """What launches and decisions cost, from `Spawning`; nanoseconds in floats."""

    slots: int
    resident: int
    parent: int
    child: int
    warp: int
    launch_ns: float
    assumed_first_ns: float
    another_ns: float
    assumed_another_ns: float
    serve_ns: float
    window_ns: float
    ended: int
    queues: int
    prior: int
    untried: int
    children: int
    read_ns: float
    think_ns: float
    weigh_ns: float
    word_ns: float
    update_ns: float
    lane_ns: float
    far_ns: float
    near: int
    crowd_ns: float
    crowded_ns: float
    submit_ns: float
    complete_ns: float
    first_ns: float
    settle_ns: float
    jitter_ns: float
    seed: int
    stagger_ns: float
    guess_ns: float
    issue_ns: float


def fresh_state(threads: int, o: Costs) -> State:
    """Return the state before the first event."""
    n, events = threads, o.slots + 7 * threads + 1

    def numbers(count: int) -> NDArray[np.int64]:
        return np.zeros(count, np.int64)

    z = State(
        c=numbers(19), ns=np.zeros(17), keys=np.empty(events), events=numbers(events), runs=numbers(o.slots),
        began=np.zeros(o.slots), warps=numbers(o.slots), group=numbers(o.slots), free=np.arange(o.slots),
        arrived=numbers(n + 1), to_start=numbers(n), to_end=numbers(n), asked=np.full(n, np.nan),
        took=np.full(n, np.nan), estimate=np.full(n, np.nan), slot=numbers(n), stop=numbers(n), parts=numbers(n),
        at=numbers(n),
        site=numbers(n), peer=numbers(n), up=numbers(n), next=numbers(n), since=np.zeros(n), due_items=numbers(n),
        due_ns=np.zeros(n), others_end=np.zeros(n), own_items=numbers(n), own_ns=np.zeros(n), demand=np.zeros(n),
        progress=np.zeros(n), keeping=numbers(n), words=numbers(n), looked=numbers(n), adds=numbers(n),
        lanes_of=numbers(n), over=numbers(n), open=numbers(n), lanes=numbers(o.warp), chosen=np.zeros(o.warp, np.bool_),
        picked=numbers(o.warp), kept=np.zeros(o.warp), window=np.full(WINDOWS, -1), window_ended=numbers(WINDOWS),
        window_lived=np.zeros(WINDOWS),
    )  # fmt: skip
    z.c[HELD], z.c[ROOM] = o.slots, o.resident
    z.ns[CLOSES] = o.window_ns
    return z
