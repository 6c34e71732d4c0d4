"""What a launch does to the queue, and times of threads beside each other."""

from __future__ import annotations

import numpy as np

from tileprof.analysis.bounds.compiled import apart
from tileprof.analysis.heaps import push
from tileprof.analysis.simulate.spawning.rules import throughput, tiles_of
from tileprof.analysis.simulate.spawning.state import (
    COMPLETED,
    COMPLETES,
    DONE,
    FIRST,
    GOES_ON,
    PENDING,
    QUEUED,
    SERVED,
    SIZE,
    STANDING,
    Costs,
    State,
    Work,
)


@apart
def beside(w: Work, z: State, count: int) -> float:
    """Return when the first ``count`` threads of a warp have done what they keep without sites, ``z.kept`` by itself:
    threads slow each other while they are busy.
    """
    longest = 0.0
    for t in range(count):
        took = z.kept[t]
        if w.together > 0 and took > 0:
            for other in range(count):
                if other != t:
                    took += w.together * min(z.kept[other], z.kept[t])
        longest = max(longest, took)
    return float(longest)


@apart
def launch(w: Work, o: Costs, z: State, first: int, t: int, launches: int, now: float) -> int:
    """Count a launch of thread t of the warp of thread ``first``, its number ``launches``; return its tiles."""
    tiles = tiles_of(o, w.items[t])
    each, _ = throughput(w, o, z, t, now)
    z.asked[t] = now
    z.estimate[t] = o.assumed_first_ns + (launches + 1) * o.assumed_another_ns + (z.c[QUEUED] + tiles) * each
    z.to_end[t] = z.to_start[t] = tiles
    z.c[QUEUED] += tiles
    z.c[PENDING] += 1
    z.over[t], z.open[t] = z.runs[z.slot[first]], 1
    if z.over[t] >= 0:
        z.open[z.over[t]] += 1
    return int(tiles)


@apart
def stands(w: Work, o: Costs, z: State, first: int, launches: int, now: float) -> float:
    """Return when a warp goes on that launches: each launch takes longer beside other warps that launch."""
    if launches == 0:
        return now
    others = z.c[STANDING]
    each = o.another_ns + min(o.crowd_ns * others, o.crowded_ns)
    until = now + o.launch_ns + launches * max(each, o.submit_ns * (others + 1))
    z.c[STANDING] += 1
    later(w, o, z, GOES_ON, first, until)
    return float(until)


@apart
def arrive(w: Work, o: Costs, z: State, t: int, when: float) -> None:
    """Let a launch be served, after those before it."""
    z.ns[SERVED] = max(when, z.ns[SERVED] + o.serve_ns)
    schedule(z, z.ns[SERVED] if o.serve_ns > 0 else when, o.slots + len(w.items) + t)


@apart
def ends(w: Work, o: Costs, z: State, grid: int, now: float) -> None:
    """Something that keeps a grid from being complete has ended. Grids become complete one after the other."""
    while grid >= 0:
        z.open[grid] -= 1
        if z.open[grid] > 0:
            return
        took = o.complete_ns + (o.first_ns if z.c[COMPLETED] < FIRST else 0.0)
        z.c[COMPLETED] += 1
        z.ns[DONE] = max(z.ns[DONE], now) + took
        if took > 0:
            later(w, o, z, COMPLETES, grid, z.ns[DONE])
            return
        z.c[PENDING] -= 1
        grid = z.over[grid]


@apart
def completes(w: Work, o: Costs, z: State, grid: int, now: float) -> None:
    """A grid is complete, and maybe that which has launched it."""
    z.c[PENDING] -= 1
    ends(w, o, z, z.over[grid], now)


@apart
def later(w: Work, o: Costs, z: State, kind: int, t: int, when: float) -> None:
    """Let an event of a thread happen, which comes after those of `loop.run_events` that have no kind."""
    schedule(z, when, o.slots + (2 + kind) * len(w.items) + 1 + t)


@apart
def schedule(z: State, when: float, item: int) -> None:
    """Let an event happen."""
    push(z.keys, z.events, z.c[SIZE], when, item)
    z.c[SIZE] += 1


@apart
def random_share(seed: int, t: int) -> float:
    """Return a number from 0 to 1 for a thread, by splitmix64."""
    word = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(t) * np.uint64(0xD1B54A32D192ED03)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((word ^ (word >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
