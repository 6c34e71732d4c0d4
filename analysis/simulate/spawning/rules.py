"""Rules that decide whether a thread launches at a site: for each thread by itself, and for whole warps."""

from __future__ import annotations

import numpy as np

from tileprof.analysis.bounds.compiled import apart
from tileprof.analysis.simulate.spawning.state import (
    ALWAYS,
    AREA,
    BEGUN,
    BUSY,
    BY_WARP,
    CHILDREN,
    CLOSES,
    ENDED,
    LIVED,
    MEAN,
    OWN_ITEMS,
    OWN_NS,
    QUEUED,
    SEEN,
    SINCE,
    THRESHOLD,
    TICKED,
    WINDOWS,
    Costs,
    State,
    Work,
)


@apart
def launches_by_rule(w: Work, o: Costs, z: State, t: int, before: int, now: float) -> bool:
    """Return whether a thread launches, by a rule for each thread of its own; ``before``: threads of its warp before it
    that are asked with it, of which it cannot know whether they launch.
    """
    if w.policy < THRESHOLD:
        return w.policy == ALWAYS
    if w.items[t] < w.threshold:
        return False
    if w.policy == THRESHOLD:
        return True
    if o.prior == 0 and z.c[ENDED] == 0:
        return bool(queued(z, o) + tiles_of(o, w.items[t]) <= o.untried)
    each, warp_ns = throughput(w, o, z, t, now)
    expected = (
        o.assumed_first_ns + (before + 1) * o.assumed_another_ns + (queued(z, o) + tiles_of(o, w.items[t])) * each
    )
    return not expected >= w.items[t] * warp_ns


@apart
def queued(z: State, o: Costs) -> int:
    """Child tiles launched and not ended, as a rule sees them."""
    return int(z.c[SEEN] if o.read_ns > 0 else z.c[QUEUED])


@apart
def decide(w: Work, o: Costs, z: State, count: int, now: float) -> None:
    """Let the first ``count`` of ``z.lanes``, threads of a warp that are asked together, decide whether they launch."""
    z.chosen[:] = False
    if w.policy == BY_WARP:
        _choose(w, o, z, count, now)
        return
    before = 0
    for i in range(count):
        t = z.lanes[i]
        z.chosen[i] = w.items[t] > 0 and launches_by_rule(w, o, z, t, before, now)
        before += w.items[t] >= w.threshold


@apart
def _choose(w: Work, o: Costs, z: State, count: int, now: float) -> None:
    """Choose the sites of a warp to launch: the largest, as many as make the later of warp and children end first, of
    these the ones with enough items.
    """
    best_ns, best, tiles = 0.0, 0, 0
    for launches in range(count + 1):
        largest, longest = -1, 0.0
        for i in range(count):
            took = w.items[z.lanes[i]] * _item_ns(w, o, z, z.lanes[i])
            if not z.chosen[i] and took > longest:
                largest, longest = i, took
        ends_ns = longest
        if launches > 0:
            warp_ns = o.assumed_first_ns + launches * o.assumed_another_ns
            each, _ = throughput(w, o, z, z.lanes[0], now)
            queued_ns = (queued(z, o) + tiles) * (o.assumed_another_ns if np.isnan(each) else each)
            ends_ns = warp_ns + max(longest, queued_ns)
        if launches == 0 or ends_ns < best_ns:
            best_ns, best = ends_ns, launches
        if largest < 0:
            break
        z.chosen[largest] = True
        z.picked[launches] = largest
        tiles += tiles_of(o, w.items[z.lanes[largest]])
    for launch in range(z.chosen.sum()):
        if launch >= best or w.items[z.lanes[z.picked[launch]]] < w.threshold:
            z.chosen[z.picked[launch]] = False


@apart
def _item_ns(w: Work, o: Costs, z: State, t: int) -> float:
    """Return the time of an item of thread t as the rule for warps knows it."""
    if o.guess_ns <= 0:
        return float(w.item_ns[t])
    return float(z.ns[OWN_NS] / z.ns[OWN_ITEMS]) if z.ns[OWN_ITEMS] > 0 else o.guess_ns


@apart
def throughput(w: Work, o: Costs, z: State, t: int, now: float) -> tuple[float, float]:
    """Return one over the throughput of child tiles, and the time of a child warp; not a number while nothing
    is known.
    """
    each, warp_ns = np.nan, np.nan
    if o.prior:
        warp_ns = w.child_ns + w.item_ns[t]
        each = warp_ns / min(o.slots, o.resident // o.child)
    if o.ended > 0:
        return _throughput_of_window(o, z, now) if z.c[ENDED] > 0 else (each, warp_ns)
    if z.c[ENDED] > 0:
        busy = z.ns[BUSY] + (now - z.ns[SINCE] if z.c[CHILDREN] > 0 else 0.0)
        each = busy / z.c[ENDED]
        warp_ns = z.ns[LIVED] / z.c[ENDED]
        if o.window_ns > 0:
            tick(z, o, now)
            each = warp_ns / max(z.ns[MEAN], 1.0)
    return each, warp_ns


@apart
def _throughput_of_window(o: Costs, z: State, now: float) -> tuple[float, float]:
    """Return `throughput` as spawn.cuh has it: of the last whole window in which child tiles ended, else of all since
    the first of them started.
    """
    current = int(now // o.window_ns)
    for back in range(1, WINDOWS - 1):
        slot = (current - back) % WINDOWS
        if current >= back and z.window[slot] == current - back:
            count = z.window_ended[slot]
            return o.window_ns / count, z.window_lived[slot] / count
    return (now - z.ns[BEGUN]) / z.c[ENDED], z.ns[LIVED] / z.c[ENDED]


@apart
def count_end(z: State, o: Costs, now: float, life: float) -> None:
    """Count the end of a child tile in its window, which takes the place of the one that is `WINDOWS` older."""
    number = int(now // o.window_ns)
    slot = number % WINDOWS
    if z.window[slot] != number:
        z.window[slot], z.window_ended[slot], z.window_lived[slot] = number, 0, 0.0
    z.window_ended[slot] += 1
    z.window_lived[slot] += life


@apart
def tick(z: State, o: Costs, now: float) -> None:
    """Count child tiles over the window, before the number of those that run changes or is asked for."""
    if o.window_ns <= 0:
        return
    running = float(z.c[CHILDREN])
    if now >= z.ns[CLOSES]:
        skipped = np.floor((now - z.ns[CLOSES]) / o.window_ns)
        area = z.ns[AREA] + running * (z.ns[CLOSES] - z.ns[TICKED])
        z.ns[MEAN] = running if skipped > 0 else area / o.window_ns
        z.ns[TICKED] = z.ns[CLOSES] + skipped * o.window_ns
        z.ns[CLOSES] = z.ns[TICKED] + o.window_ns
        z.ns[AREA] = 0.0
    z.ns[AREA] += running * (now - z.ns[TICKED])
    z.ns[TICKED] = now


@apart
def tiles_of(o: Costs, items: int) -> int:
    """Return the number of child tiles that this many items take."""
    return (items + o.child - 1) // o.child
