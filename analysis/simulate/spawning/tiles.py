"""The life of a tile, and the launches of its threads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import internal
from tileprof.analysis.heaps import push
from tileprof.analysis.simulate.spawning.rules import choose, launches_by_rule, pace, tiles_of
from tileprof.analysis.simulate.spawning.state import QUEUED, SERVED, SIZE, WARP, Costs, State, Work


@internal
def tile_life(w: Work, o: Costs, z: State, now: float, begin: int, stop: int, base_ns: float) -> float:
    """The threads of a tile decide, warp by warp, after ``base_ns`` each, and the longest warp is the tile's life."""
    life = 0.0
    for first in range(begin, stop, o.warp):
        last = min(first + o.warp, stop)
        if w.policy == WARP:
            choose(w, o, z, first, last, now)
        launches = 0
        for t in range(first, last):
            if w.items[t] > 0 and (
                z.chosen[t - first] if w.policy == WARP else launches_by_rule(w, o, z, t, launches, now)
            ):
                _launch(w, o, z, t, launches, now, now + base_ns)
                launches += 1
        cost_ns = base_ns + (o.launch_ns + launches * o.another_ns if launches > 0 else 0.0)
        for t in range(first, last):
            if z.to_end[t] > 0:
                arrive(z, o, t, now + cost_ns)
        for t in range(first, last):
            keeps = w.items[t] > 0 and z.to_end[t] == 0
            z.kept[t - first] = _inline(w, o, z, t, now, cost_ns) if keeps else 0.0
        longest = 0.0
        for t in range(first, last):
            if z.kept[t - first] > 0:
                took = _beside(z.kept[: last - first], t - first, w.together)
                longest = max(longest, took)
                z.own_items[-1] += w.items[t]
                z.own_ns[-1] += took
        life = max(life, cost_ns + longest)
    return life


@internal
def _beside(kept: NDArray[np.float64], t: int, together: float) -> float:
    """Return a thread's time for what it keeps, beside the others of its warp, which slow it while they are busy."""
    took = kept[t]
    if together > 0:
        for other in range(len(kept)):
            if other != t:
                took += together * min(kept[other], kept[t])
    return float(took)


@internal
def _launch(w: Work, o: Costs, z: State, t: int, launches: int, now: float, threads: float) -> None:
    """Count a launch of thread t, the number ``launches`` of its warp, that is asked for at a time."""
    tiles = tiles_of(o, w.items[t])
    each, _ = pace(w, o, z, t, now)
    z.asked[t] = threads
    z.estimate[t] = o.launch_ns + (launches + 1) * o.another_ns + (z.c[QUEUED] + tiles) * each
    z.to_end[t] = z.to_start[t] = tiles
    z.c[QUEUED] += tiles


@internal
def arrive(z: State, o: Costs, t: int, when: float) -> None:
    z.ns[SERVED] = max(when, z.ns[SERVED] + o.serve_ns)
    schedule(z, z.ns[SERVED] if o.serve_ns > 0 else when, o.slots + t)


@internal
def _inline(w: Work, o: Costs, z: State, t: int, now: float, begin: float) -> float:
    """Return the time that a thread takes for its items one after the other, and for theirs where these are not
    launched.
    """
    if w.first_child[t] < 0:
        return float(w.items[t] * w.item_ns[t])
    took, depth = 0.0, 0
    z.owner[0], z.next[0] = t, w.first_child[t]
    while depth >= 0:
        owner, u = z.owner[depth], z.next[depth]
        if u == w.first_child[owner] + w.items[owner]:
            depth -= 1
            continue
        z.next[depth] += 1
        took += w.item_ns[owner]
        if w.items[u] == 0:
            continue
        launched = w.policy != WARP and launches_by_rule(w, o, z, u, 0, now)
        if w.policy == WARP:
            choose(w, o, z, u, u + 1, now)
            launched = z.chosen[0]
        if launched:
            _launch(w, o, z, u, 0, now, now + begin + took)
            took += o.launch_ns + o.another_ns
            arrive(z, o, u, now + begin + took)
        elif w.first_child[u] < 0:
            took += w.items[u] * w.item_ns[u]
        else:
            depth += 1
            z.owner[depth], z.next[depth] = u, w.first_child[u]
    return took


@internal
def schedule(z: State, when: float, item: int) -> None:
    push(z.keys, z.events, z.c[SIZE], when, item)
    z.c[SIZE] += 1
