"""Warps that decide at their sites, and threads that come to sites among items which they do inline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import internal
from tileprof.analysis.heaps import pop, push
from tileprof.analysis.simulate.spawning.rules import choose, launches_by_rule, pace, tiles_of
from tileprof.analysis.simulate.spawning.state import (
    DEMAND,
    KEEPING,
    OWN_ITEMS,
    OWN_NS,
    PROGRESS,
    QUEUED,
    SERVED,
    SIZE,
    TOP,
    UNTIL,
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
    for t in range(first, last):
        z.deep[first] += w.items[t] > 0 and z.to_end[t] == 0 and w.first_child[t] >= 0
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
    if o.issue_ns > 0 and longest > 0:
        z.own_ns[first] = longest
        z.demand[first] = _kept_items(w, z, first, last) / longest
        schedule(z, begin, o.slots + 4 * len(w.items) + 1 + first)
    else:
        schedule(z, max(begin + longest, z.others_end[first]), o.slots + first)


@internal
def _kept_items(w: Work, z: State, first: int, last: int) -> int:
    items = 0
    for t in range(first, last):
        if z.kept[t - first] > 0:
            items += w.items[t]
    return items


@internal
def begins_keeping(z: State, o: Costs, now: float, first: int) -> None:
    """A warp begins with the items without sites that it keeps. All such warps come forward alike: as fast as alone
    while the GPU can do as many items as they would, else slower by what it lacks.
    """
    z.ns[PROGRESS] += (now - z.ns[UNTIL]) / _slowness(z, o)
    z.ns[UNTIL] = now
    push(z.progress, z.keeping, z.c[KEEPING], z.ns[PROGRESS] + z.own_ns[first], first)
    z.c[KEEPING] += 1
    z.ns[DEMAND] += z.demand[first]
    z.own_ns[first] = now


@internal
def next_end(z: State, o: Costs) -> float:
    """Return when the first such warp ends."""
    return float(z.ns[UNTIL] + (z.progress[0] - z.ns[PROGRESS]) * _slowness(z, o))


@internal
def ends_keeping(z: State, o: Costs, now: float) -> None:
    """The first such warp ends, with the end of its threads without sites."""
    first = z.keeping[0]
    z.ns[PROGRESS], z.ns[UNTIL] = z.progress[0], now
    pop(z.progress, z.keeping, z.c[KEEPING])
    z.c[KEEPING] -= 1
    z.ns[DEMAND] = z.ns[DEMAND] - z.demand[first] if z.c[KEEPING] > 0 else 0.0
    z.own_ns[first] = now - z.own_ns[first] if z.own_items[first] > 0 else 0.0
    schedule(z, max(now, z.others_end[first]), o.slots + first)


@internal
def _slowness(z: State, o: Costs) -> float:
    return max(1.0, float(z.ns[DEMAND] * o.issue_ns))


@internal
def comes_to_site(w: Work, o: Costs, z: State, now: float, t: int) -> bool:
    """A thread that does items with sites launches there or continues; return whether it has not come to its end."""
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
        took = w.items[u] * w.item_ns[u] * _slowed(w, z, t)
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
        when += w.own_ns[u] * _slowed(w, z, t)
        if w.items[u] > 0:
            z.site[t] = u
            break
    z.at[t] = owner
    schedule(z, when, o.slots + 3 * len(w.items) + 1 + t)


@internal
def _slowed(w: Work, z: State, t: int) -> float:
    """Return how many times as long thread t takes beside the others of its warp that do items with sites."""
    return float(1 + w.together * (z.deep[z.warp[t]] - 1))


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
    z.estimate[t] = o.told_ns + (launches + 1) * o.told_another_ns + (z.c[QUEUED] + tiles) * each
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
