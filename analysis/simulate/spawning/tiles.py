"""Warps that decide at their sites, and threads that come to sites among items which they do inline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import internal
from tileprof.analysis.heaps import push
from tileprof.analysis.simulate.spawning.rules import choose, launches_by_rule, pace, tiles_of
from tileprof.analysis.simulate.spawning.state import (
    OWN_ITEMS,
    OWN_NS,
    QUEUED,
    SERVED,
    SIZE,
    TOP,
    UNTIMED,
    WARP,
    Costs,
    State,
    Work,
)


@internal
def warp_decides(w: Work, o: Costs, z: State, now: float, first: int) -> None:
    """The threads of a warp decide, launch together, and begin with what they keep."""
    last = z.stop[first]
    if w.policy == WARP:
        choose(w, o, z, first, last, now)
    launches = sites = 0
    for t in range(first, last):
        if w.items[t] > 0 and (z.chosen[t - first] if w.policy == WARP else launches_by_rule(w, o, z, t, sites, now)):
            _launch(w, o, z, t, launches, now)
            launches += 1
        sites += w.items[t] >= w.threshold
    begin = now + (o.launch_ns + launches * o.another_ns if launches > 0 else 0.0)
    z.parts[first] = 1
    timed = -1
    for t in range(first, last):
        z.kept[t - first] = 0.0
        if z.to_end[t] > 0:
            _arrive(w, o, z, t, begin)
        elif w.items[t] > 0:
            timed = t if timed < 0 else timed
            if w.first_child[t] < 0:
                z.kept[t - first] = w.items[t] * w.item_ns[t]
            else:
                z.parts[first] += 1
                z.warp[t], z.at[t] = first, t
                _begin_items(w, z, t, TOP if timed == t else UNTIMED, begin)
                _go_on(w, o, z, t, begin)
    longest = 0.0
    for t in range(first, last):
        if z.kept[t - first] > 0:
            longest = max(longest, _beside(z.kept[: last - first], t - first, w.together))
    timed = timed if timed >= 0 and w.first_child[timed] < 0 else -1
    z.own_items[first], z.own_ns[first] = (w.items[timed], longest) if timed >= 0 else (0, 0.0)
    schedule(z, begin + longest, o.slots + first)


@internal
def comes_to_site(w: Work, o: Costs, z: State, now: float, t: int) -> bool:
    """A thread that does items with sites launches there or goes on; return whether it has not come to its end."""
    u = z.site[t]
    z.ns[OWN_ITEMS] += z.due_items[t]
    z.ns[OWN_NS] += z.due_ns[t]
    z.due_items[t], z.due_ns[t] = 0, 0.0
    if u < 0:
        return False
    launched = w.policy != WARP and launches_by_rule(w, o, z, u, 0, now)
    if w.policy == WARP:
        choose(w, o, z, u, u + 1, now)
        launched = z.chosen[0]
    if launched:
        _launch(w, o, z, u, 0, now)
        _arrive(w, o, z, u, now + o.launch_ns + o.another_ns)
        _go_on(w, o, z, t, now + o.launch_ns + o.another_ns)
    elif w.first_child[u] < 0:
        took = w.items[u] * w.item_ns[u]
        z.due_items[t], z.due_ns[t] = w.items[u], took
        _go_on(w, o, z, t, now + took)
    else:
        _begin_items(w, z, u, z.at[t], now)
        z.at[t] = u
        _go_on(w, o, z, t, now)
    return True


@internal
def _begin_items(w: Work, z: State, owner: int, up: int, when: float) -> None:
    z.up[owner], z.next[owner], z.since[owner] = up, w.first_child[owner], when


@internal
def _go_on(w: Work, o: Costs, z: State, t: int, when: float) -> None:
    """Let a thread do items from a time on until one has a site."""
    owner = z.at[t]
    z.site[t] = -1
    while owner >= 0:
        u = z.next[owner]
        if u == w.first_child[owner] + w.items[owner]:
            if z.up[owner] != UNTIMED:
                z.due_items[t] += w.items[owner]
                z.due_ns[t] += when - z.since[owner]
            owner = z.up[owner]
            continue
        z.next[owner] += 1
        when += w.item_ns[owner]
        if w.items[u] > 0:
            z.site[t] = u
            break
    z.at[t] = owner
    schedule(z, when, o.slots + 3 * len(w.items) + 1 + t)


@internal
def _beside(own_ns: NDArray[np.float64], t: int, together: float) -> float:
    """Return a thread's time for what it keeps, beside the others of its warp, which slow it while they are busy."""
    took = own_ns[t]
    if together > 0:
        for other in range(len(own_ns)):
            if other != t:
                took += together * min(own_ns[other], own_ns[t])
    return float(took)


@internal
def _launch(w: Work, o: Costs, z: State, t: int, launches: int, now: float) -> None:
    """Count a launch of thread t, the number ``launches`` of its warp."""
    tiles = tiles_of(o, w.items[t])
    each, _ = pace(w, o, z, t, now)
    z.asked[t] = now
    z.estimate[t] = o.told_ns + (launches + 1) * o.another_ns + (z.c[QUEUED] + tiles) * each
    z.to_end[t] = z.to_start[t] = tiles
    z.c[QUEUED] += tiles


@internal
def _arrive(w: Work, o: Costs, z: State, t: int, when: float) -> None:
    z.ns[SERVED] = max(when, z.ns[SERVED] + o.serve_ns)
    schedule(z, z.ns[SERVED] if o.serve_ns > 0 else when, o.slots + len(w.items) + t)


@internal
def schedule(z: State, when: float, item: int) -> None:
    push(z.keys, z.events, z.c[SIZE], when, item)
    z.c[SIZE] += 1
