"""Warps whose threads keep items with sites: they do these in step, and decide where they come to sites."""

from __future__ import annotations

from tileprof.analysis.bounds.compiled import apart
from tileprof.analysis.simulate.spawning.launches import arrive, beside, later, launch, stands
from tileprof.analysis.simulate.spawning.rules import decide
from tileprof.analysis.simulate.spawning.state import COMES, OWN_ITEMS, OWN_NS, UNTIMED, Costs, State, Work
from tileprof.analysis.simulate.spawning.words import will_update


@apart
def begin_group(z: State, first: int, head: int, up: int, when: float) -> None:
    """Let the warp of thread ``first`` begin with the items of the owners from ``head`` on, inside those of ``up``."""
    z.up[head], z.next[head], z.since[head] = up, 0, when
    z.at[first] = head


@apart
def go_on(w: Work, o: Costs, z: State, first: int, when: float) -> None:
    """Let a warp do items from a time on until some have sites: of each owner of a group one at a time, each as long as
    the longest of them.
    """
    head = z.at[first]
    z.site[first] = -1
    while head >= 0:
        longest, last, all_ended = 0.0, -1, True
        owner, step = head, z.next[head]
        while owner >= 0:
            if step < w.items[owner]:
                all_ended = False
                u = w.first_child[owner] + step
                if w.first_child[owner] < 0:
                    longest = max(longest, w.item_ns[owner])
                else:
                    longest = max(longest, w.own_ns[u])
                    if w.items[u] > 0:
                        last = append(z, first, last, u)
            owner = z.peer[owner]
        if all_ended:
            if z.up[head] != UNTIMED:
                z.due_items[first] += w.items[head]
                z.due_ns[first] += when - z.since[head]
            head = z.up[head]
            continue
        z.next[head] += 1
        when += longest
        if last >= 0:
            break
    z.at[first] = head
    later(w, o, z, COMES, first, when)


@apart
def in_step(w: Work, t: int, threads: int) -> float:
    """Return how long an item of thread t takes where ``threads`` threads of a warp do theirs at a time: as long as the
    longest.

    Items take the longest time of a child tile or next to none, with the mean of one thread.
    """
    if w.longest_ns[t] <= w.item_ns[t]:
        return float(w.item_ns[t])
    return float(w.longest_ns[t] * (1 - (1 - w.item_ns[t] / w.longest_ns[t]) ** threads))


@apart
def append(z: State, first: int, last: int, u: int) -> int:
    """Put a thread behind the sites that its warp has come to; return it."""
    z.peer[u] = -1
    if last < 0:
        z.site[first] = u
    else:
        z.peer[last] = u
    return u


@apart
def comes_to_end(z: State, first: int) -> None:
    """Count what a warp has done inline since it came to a site."""
    z.ns[OWN_ITEMS] += z.due_items[first]
    z.ns[OWN_NS] += z.due_ns[first]
    z.due_items[first], z.due_ns[first] = 0, 0.0


@apart
def comes_to_sites(w: Work, o: Costs, z: State, now: float, first: int) -> None:
    """The threads of a warp that have come to sites decide, launch together, and begin with what they keep."""
    comes_to_end(z, first)
    u, count = z.site[first], 0
    while u >= 0:
        z.lanes[count] = u
        count += 1
        u = z.peer[u]
    decide(w, o, z, count, now)
    launches = tiles = 0
    for i in range(count):
        if z.chosen[i]:
            tiles += launch(w, o, z, first, z.lanes[i], launches, now)
            launches += 1
    will_update(w, o, z, now, first, launches, tiles)
    begin = stands(w, o, z, first, launches, now)
    head, last, deep = -1, -1, False
    site = 0
    for i in range(count):
        site += not z.chosen[i]
    for i in range(count):
        u = z.lanes[i]
        z.kept[i] = 0.0
        if z.chosen[i]:
            arrive(w, o, z, u, begin)
            continue
        z.kept[i] = w.items[u] * in_step(w, u, site)
        deep = deep or w.first_child[u] >= 0
        last = append(z, first, last, u)
        head = u if head < 0 else head
    if head >= 0 and deep:
        begin_group(z, first, head, z.at[first], begin)
    elif head >= 0:
        longest = beside(w, z, count)
        z.due_items[first], z.due_ns[first] = w.items[head], longest
        begin += longest
    go_on(w, o, z, first, begin)
