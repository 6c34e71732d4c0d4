"""Warps that decide at their first sites, and the items without sites that they keep."""

from __future__ import annotations

from tileprof.analysis.bounds.compiled import apart
from tileprof.analysis.heaps import pop, push
from tileprof.analysis.simulate.spawning.launches import arrive, beside, later, launch, schedule, stands
from tileprof.analysis.simulate.spawning.rules import decide
from tileprof.analysis.simulate.spawning.state import (
    DEMAND,
    KEEPING,
    KEEPS,
    PROGRESS,
    TOP,
    UNTIL,
    UNTIMED,
    Costs,
    State,
    Work,
)
from tileprof.analysis.simulate.spawning.walks import append, begin_group, go_on
from tileprof.analysis.simulate.spawning.words import will_update


@apart
def warp_decides(w: Work, o: Costs, z: State, now: float, first: int) -> None:
    """The threads of a warp decide, launch together, and begin with what they keep."""
    count = z.stop[first] - first
    for i in range(count):
        z.lanes[i] = first + i
    decide(w, o, z, count, now)
    launches = tiles = 0
    for t in range(first, first + count):
        if z.chosen[t - first]:
            tiles += launch(w, o, z, first, t, launches, now)
            launches += 1
    will_update(w, o, z, now, first, launches, tiles)
    begin = stands(w, o, z, first, launches, now)
    z.parts[first] = 1
    timed = head = last = -1
    for t in range(first, first + count):
        z.kept[t - first] = 0.0
        if z.chosen[t - first]:
            arrive(w, o, z, t, begin)
        elif w.items[t] > 0:
            timed = t if timed < 0 else timed
            if w.first_child[t] < 0:
                z.kept[t - first] = w.items[t] * w.item_ns[t]
            else:
                head = t if head < 0 else head
                last = append(z, first, last, t)
    if head >= 0:
        z.parts[first] += 1
        begin_group(z, first, head, TOP if timed == head else UNTIMED, begin)
        go_on(w, o, z, first, begin)
    longest = beside(w, z, count)
    timed = timed if timed >= 0 and w.first_child[timed] < 0 else -1
    z.own_items[first], z.own_ns[first] = (w.items[timed], longest) if timed >= 0 else (0, 0.0)
    if o.issue_ns > 0 and longest > 0:
        z.own_ns[first] = longest
        z.demand[first] = _kept_items(w, z, first, first + count) / longest
        later(w, o, z, KEEPS, first, begin)
    else:
        schedule(z, max(begin + longest, z.others_end[first]), o.slots + first)


@apart
def _kept_items(w: Work, z: State, first: int, last: int) -> int:
    items = 0
    for t in range(first, last):
        if z.kept[t - first] > 0:
            items += w.items[t]
    return items


@apart
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


@apart
def next_end(z: State, o: Costs) -> float:
    """Return when the first such warp ends."""
    return float(z.ns[UNTIL] + (z.progress[0] - z.ns[PROGRESS]) * _slowness(z, o))


@apart
def ends_keeping(z: State, o: Costs, now: float) -> None:
    """The first such warp ends, with the end of its threads without sites."""
    first = z.keeping[0]
    z.ns[PROGRESS], z.ns[UNTIL] = z.progress[0], now
    pop(z.progress, z.keeping, z.c[KEEPING])
    z.c[KEEPING] -= 1
    z.ns[DEMAND] = z.ns[DEMAND] - z.demand[first] if z.c[KEEPING] > 0 else 0.0
    z.own_ns[first] = now - z.own_ns[first] if z.own_items[first] > 0 else 0.0
    schedule(z, max(now, z.others_end[first]), o.slots + first)


@apart
def _slowness(z: State, o: Costs) -> float:
    return max(1.0, float(z.ns[DEMAND] * o.issue_ns))
