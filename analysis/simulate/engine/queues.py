"""Queues that the hardware cannot all watch: which are mapped, and when that changes; see
`tileprof.analysis.simulate.engine.plan`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tileprof.analysis.bounds.compiled import internal
from tileprof.analysis.simulate.engine.plan import Plan
from tileprof.arrays import I64


class Mapping(NamedTuple):
    """``queues`` ``[queues + 1, 5]``: columns by the constants below, the last row for the CSR pointer alone."""

    queues: I64
    launches: I64
    """The launches of each queue, in issue order."""
    n: I64


_MAPPED, _PARKED, _BUSY, _DONE, _AT = range(5)
"""Columns of a queue: 1 if it is mapped; the launch that could start if it were (-1 for none); launches under way;
launches that have ended; the place where its launches begin.
"""

_IN, _OUT, _IDLE, _SWAPS = range(4)


@internal
def _count(m: Mapping) -> int:
    return len(m.queues) - 1


@internal
def _urgency(m: Mapping, plan: Plan, q: int) -> int:
    """Return the urgency of the first launch of a queue that has not ended; the least goes first."""
    return int(plan.urgency[m.launches[m.queues[q, _AT] + m.queues[q, _DONE]]])


@internal
def _tiles_left(m: Mapping, q: int) -> int:
    return int(m.queues[q + 1, _AT] - m.queues[q, _AT] - m.queues[q, _DONE])


@internal
def _incoming(m: Mapping, plan: Plan) -> int:
    best = -1
    for k in range(_count(m)):
        q = int((m.n[_IN] + k) % _count(m))
        if m.queues[q, _MAPPED] == 0 and _tiles_left(m, q) > 0:
            if not plan.queues.by_priority:
                return q
            if best < 0 or _urgency(m, plan, q) < _urgency(m, plan, best):
                best = q
    return best


@internal
def _outgoing(m: Mapping, plan: Plan) -> int:
    """Return a mapped queue with no launch under way."""
    worst = -1
    for k in range(_count(m)):
        q = int((m.n[_OUT] + k) % _count(m))
        if m.queues[q, _MAPPED] == 1 and m.queues[q, _BUSY] == 0:
            if not plan.queues.by_priority:
                return q
            if worst < 0 or _urgency(m, plan, q) > _urgency(m, plan, worst):
                worst = q
    return worst


@internal
def may_start(m: Mapping, plan: Plan, launch: int) -> bool:
    """Return whether its queue is mapped; else the launch is parked."""
    if plan.queues.mapped == 0:
        return True
    q = plan.queue[launch]
    if m.queues[q, _MAPPED] == 0:
        m.queues[q, _PARKED] = launch
        return False
    m.queues[q, _BUSY] += 1
    m.n[_IDLE] = 0  # a launch shorter than a quantum has ended again when the quantum does
    return True


@internal
def map_next(m: Mapping, plan: Plan) -> int:
    """Give a free place to the next queue. Return the launch that was parked there, or -1."""
    q = _incoming(m, plan)
    if q < 0:
        return -1
    m.queues[q, _MAPPED] = 1
    m.n[_IN] = (q + 1) % _count(m)
    launch = int(m.queues[q, _PARKED])
    m.queues[q, _PARKED] = -1
    return launch


def unmapped(plan: Plan) -> Mapping:
    """Return all queues as they are before any is mapped."""
    queues = int(plan.queue.max()) + 1 if plan.queues.mapped > 0 and len(plan.queue) else 0
    table = np.zeros((queues + 1, 5), np.int64)
    table[:, _PARKED] = -1
    table[1:, _AT] = np.cumsum(np.bincount(plan.queue, minlength=queues)[:queues])
    launches = np.argsort(plan.queue, kind="stable") if queues else np.empty(0, np.int64)
    return Mapping(table, launches, np.zeros(4, np.int64))


@internal
def map_first(m: Mapping, plan: Plan) -> None:
    """Map as many queues as can be, before anything starts."""
    for _ in range(min(plan.queues.mapped, _count(m))):
        map_next(m, plan)


@internal
def has_ended(m: Mapping, plan: Plan, launch: int) -> bool:
    """Note the end of a launch; whether its queue has left its place and does not return."""
    q = plan.queue[launch]
    m.queues[q, _BUSY] -= 1
    m.queues[q, _DONE] += 1
    if _tiles_left(m, q) > 0:
        return False
    m.queues[q, _MAPPED] = 0
    return True


@internal
def swap(m: Mapping, plan: Plan, nothing_else: bool) -> int:
    """Make room for another queue where one is idle at the end of a quantum; return the launch parked there, or -1.

    ``nothing_else``: no tile works and no other event is to come.
    """
    m.n[_IDLE] = m.n[_IDLE] + 1 if nothing_else else 0
    into, out = _incoming(m, plan), _outgoing(m, plan)
    if into < 0 or out < 0 or (plan.queues.by_priority and _urgency(m, plan, into) > _urgency(m, plan, out)):
        return -1
    m.queues[out, _MAPPED] = 0
    m.n[_OUT] = (out + 1) % _count(m)
    m.n[_SWAPS] += 1
    return map_next(m, plan)


@internal
def goes_on(m: Mapping, plan: Plan) -> bool:
    """Return whether another quantum can change anything: not after all queues have been mapped in turn and nothing
    started.
    """
    return plan.queues.mapped > 0 and m.n[_IDLE] <= _count(m) and _incoming(m, plan) >= 0
