"""Tasks that are dealt while the persistent kernel runs: which wait for which, as counts that the block that completes
a task adds to.

A task's semaphores each have a value that it waits for. An *event* is a semaphore at such a value; its *waiters* are
counted when it comes, and a task may begin once it was counted as often as it *needs*. A queue on the GPU and a thread
of the CPU count alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from tileprof.arrays.ragged import owners, ragged
from tileprof.errors import UserError
from tileprof.runtime.persistent.plan import I32, Plan
from tileprof.runtime.sync.tables import FLAG_BYTES

COMMANDS: Final = 16
"""Places in the ring from the CPU to a cluster: more than tasks may be sent ahead, and the ends of two runs."""

MOST_AHEAD: Final = COMMANDS - 4
"""Tasks that a cluster may have been sent and not completed."""

MOST_TASKS: Final = (1 << 20) - 2
"""The number of a task stands in 20 bits beside its run's."""

LINK_HEAD: Final = 16
"""Words of the memory that GPU and CPU share before the rings of commands."""

_FLAG_WORDS: Final = FLAG_BYTES // 4


class Dealer(IntEnum):
    """The authority that assigns tasks to clusters, as numbered in common.cuh: the plan's lists, a queue on the GPU, or
    a thread of the CPU.
    """

    LISTS = 0
    QUEUE = 1
    PILOT = 2


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """All arrays int32. ``ready`` ``[R]``: tasks that wait for nothing, in the plan's order of stages. ``needs``
    ``[T]``: events before a task may begin. ``post_counts`` ``[semaphores]``: what all blocks together post in a run.
    Events of semaphore ``m`` are ``events[event_ptr[m]:event_ptr[m+1]]``, rows of a value and where its waiters begin
    and end in ``waiters``.
    """

    ready: I32
    needs: I32
    post_counts: I32
    event_ptr: I32
    events: I32
    waiters: I32

    @classmethod
    def of(cls, plan: Plan) -> TaskGraph:
        """Raises `UserError` where tasks hand over sums, which none of this counts."""
        if plan.early.any() or len(plan.tasks) > MOST_TASKS:
            raise UserError(
                f"tasks are dealt one by one where no tile's k is cut, and at most {MOST_TASKS:,} of them; this plan "
                "has "
                f"{len(plan.tasks):,}"
            )
        tasks, semaphores = len(plan.tasks), plan.semaphores
        waiter = owners(plan.wait_ptr)
        semaphore, value = plan.waits[:, 2].astype(np.int64), plan.waits[:, 3].astype(np.int64)
        order = np.lexsort((value, semaphore, waiter))
        last = np.ones(len(order), bool)  # of the values of a semaphore that a task awaits, the largest
        last[:-1] = (np.diff(waiter[order]) != 0) | (np.diff(semaphore[order]) != 0)
        last_waits = order[last]
        waiter, semaphore, value = waiter[last_waits], semaphore[last_waits], value[last_waits]
        by_event = np.lexsort((waiter, value, semaphore))
        rows = np.stack([semaphore[by_event], value[by_event]], axis=1)
        distinct, begins = np.unique(rows, axis=0, return_index=True)
        ends = np.append(begins[1:], len(rows))
        events = np.stack([distinct[:, 1], begins, ends], axis=1) if len(rows) else np.empty((0, 3), np.int64)
        event_ptr = np.searchsorted(distinct[:, 0] if len(rows) else np.empty(0), np.arange(semaphores + 1))
        needs = np.bincount(waiter, minlength=tasks)
        counts = plan.split * np.bincount(plan.posts, minlength=semaphores)
        idle = np.flatnonzero(needs == 0)
        _, turn = ragged(np.diff(plan.task_ptr))
        ready = idle[np.lexsort((idle, turn[idle], plan.tasks[idle, 0]))]
        return cls(*(_i32(column) for column in (ready, needs, counts, event_ptr, events, waiter[by_event])))

    @property
    def table(self) -> I32:
        """The arrays behind each other, where `constants` says that they begin."""
        return np.concatenate([part.reshape(-1) for part in self._parts().values()])

    def offsets(self) -> dict[str, int]:
        """Return the offset of each array in `table`, by the names of dealing.cuh."""
        sizes = [part.size for part in self._parts().values()]
        return dict(zip(self._parts(), np.cumsum([0, *sizes]).tolist(), strict=False))

    def _parts(self) -> dict[str, I32]:
        return {
            "READY_AT": self.ready, "NEEDS_AT": self.needs, "POSTS_AT": self.post_counts,
            "EVENT_PTR_AT": self.event_ptr, "EVENTS_AT": self.events, "WAITERS_AT": self.waiters,
        }  # fmt: skip


def constants(plan: Plan, dealer: Dealer, *, claims: bool = False) -> dict[str, int]:
    """Return what dealing.cuh asks of stages.h. ``claims``: clusters say which commands they have taken."""
    if dealer is Dealer.LISTS:
        names = ("TASKS", "READY", "CLUSTERS", "COMMANDS", "COMPLETIONS")
        tables = ("READY_AT", "NEEDS_AT", "POSTS_AT", "EVENT_PTR_AT", "EVENTS_AT", "WAITERS_AT", "COUNTS_AT")
        return {"DEALER": 0, "CLAIMS": 0} | dict.fromkeys(names, 1) | dict.fromkeys(tables, 0)
    graph = TaskGraph.of(plan)
    return {
        "DEALER": int(dealer), "CLAIMS": int(claims), "TASKS": len(plan.tasks), "READY": len(graph.ready),
        "CLUSTERS": plan.clusters, "COMMANDS": COMMANDS, "COMPLETIONS": completions(plan),
        "COUNTS_AT": _counts_at(plan),
    } | graph.offsets()  # fmt: skip


def completions(plan: Plan) -> int:
    """Return places in the ring to the CPU: for all that may have been sent."""
    return 1 << (plan.clusters * COMMANDS - 1).bit_length()


def link_words(plan: Plan) -> int:
    """Return 64-bit words of the memory that GPU and CPU share: commands, completions, claims."""
    return LINK_HEAD + 2 * plan.clusters * COMMANDS + completions(plan)


def _counts_at(plan: Plan) -> int:
    """Return where counts begin: at a cache line of their own."""
    return -(-plan.flag_words // _FLAG_WORDS) * _FLAG_WORDS


def flag_words(plan: Plan, dealer: Dealer) -> int:
    """Return 32-bit words of semaphores, sums and counts."""
    if dealer is Dealer.LISTS:
        return plan.flag_words
    own = (
        2 * _FLAG_WORDS + 2 * len(plan.tasks)
        if dealer is Dealer.QUEUE
        else _FLAG_WORDS + plan.clusters + len(plan.tasks)
    )
    return _counts_at(plan) + own


def _i32(values: np.ndarray) -> I32:
    return np.ascontiguousarray(values, np.int32)
