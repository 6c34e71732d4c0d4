"""One execution: tiles in one order, semaphores counted, races and deadlocks named."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tileprof.runtime.executor.executable import Program
from tileprof.runtime.executor.memory import Memory, Race
from tileprof.runtime.executor.orders import Order

_MOST_RACES = 10_000
"""Races kept of one execution: one is enough to refuse a policy."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A wait that did not end: ``semaphore`` of ``array``, at ``actual`` instead of ``expected``."""

    stage: int
    tile: int
    array: int
    semaphore: int
    actual: int
    expected: int


@dataclass(frozen=True, slots=True)
class Deadlock:
    """No tile can run: how many have not, and the waits that the first of them hang on."""

    waiting: int
    first: tuple[Missing, ...]


@dataclass(slots=True)
class Execution:
    """The outcome of a run: nodes in the order they ran, the races, and the deadlock that ended it, if any."""

    order: str
    ran: list[int] = field(default_factory=list)
    races: list[Race] = field(default_factory=list)
    deadlock: Deadlock | None = None

    @property
    def clean(self) -> bool:
        """Whether no tile read too early and no order deadlocked."""
        return not self.races and self.deadlock is None


def execute(
    program: Program,
    order: Order,
    memory: Memory | None = None,
    *,
    work: Callable[[int, int], None] | None = None,
    slots: int | None = None,
    dispatch: NDArray[np.int64] | None = None,
) -> Execution:
    """Run every tile once, whole, when its waits have ended, and let it post.

    ``work(stage, tile)`` does the arithmetic, ``memory`` watches the bytes; either may be left out. ``slots``: only so
    many tiles are resident at a time, taken in the order of ``dispatch`` (None: stage by stage), and a tile that waits
    keeps its slot; None: no limit.
    """
    return _Run(program, order, memory, work, slots, dispatch).run()


class _Run:
    def __init__(
        self,
        program: Program,
        order: Order,
        memory: Memory | None,
        work: Callable[[int, int], None] | None,
        slots: int | None,
        dispatch: NDArray[np.int64] | None,
    ) -> None:
        self._program, self._memory, self._work = program, memory, work
        self._rank: list[float] = order.rank.tolist()
        self._queue: list[int] = (program.dispatch if dispatch is None else dispatch).tolist()
        self._slots = program.nodes if slots is None else slots
        self._post_counts = [0] * (len(program.waits_of) - 1)
        self._next: list[int] = program.waits_of[:-1].tolist()
        self._open_waits: list[int] = np.bincount(program.waiter, minlength=program.nodes).tolist()
        self._ran = np.zeros(program.nodes, bool)
        self._resident = np.zeros(program.nodes, bool)
        self._ready: list[tuple[float, int]] = []
        self._next_place = 0
        self._left = None if memory is None else memory.start()
        self._result = Execution(order.name)
        # As Python lists: scalar look-ups in numpy arrays are ten times slower.
        self._value, self._waiter = program.value.tolist(), program.waiter.tolist()
        self._ends, self._posts_of, self._posts = (
            program.waits_of.tolist(),
            program.posts_of.tolist(),
            program.posts.tolist(),
        )

    def run(self) -> Execution:
        for semaphore in range(len(self._post_counts)):
            self._wake(semaphore)
        for _ in range(min(self._slots, len(self._queue))):
            self._take()
        while self._ready:
            _, node = heapq.heappop(self._ready)
            self._run_tile(node)
            if self._next_place < len(self._queue):
                self._take()
        if len(self._result.ran) < self._program.nodes:
            self._result.deadlock = self._deadlock()
        return self._result

    def _take(self) -> None:
        node = self._queue[self._next_place]
        self._next_place += 1
        self._resident[node] = True
        if self._open_waits[node] == 0:
            heapq.heappush(self._ready, (self._rank[node], node))

    def _run_tile(self, node: int) -> None:
        if self._memory is not None and self._left is not None:
            broken = self._memory.touch(node, self._left)
            if len(broken) and len(self._result.races) < _MOST_RACES:
                self._result.races += self._memory.races(node, broken, self._ran)
        if self._work is not None:
            self._work(*self._program.place(node))
        self._ran[node] = True
        self._result.ran.append(node)
        for post in range(self._posts_of[node], self._posts_of[node + 1]):
            semaphore = self._posts[post]
            self._post_counts[semaphore] += 1
            self._wake(semaphore)

    def _wake(self, semaphore: int) -> None:
        """End the waits that the semaphore's value now satisfies."""
        at, end = self._next[semaphore], self._ends[semaphore + 1]
        while at < end and self._value[at] <= self._post_counts[semaphore]:
            node = self._waiter[at]
            self._open_waits[node] -= 1
            if self._open_waits[node] == 0 and self._resident[node]:
                heapq.heappush(self._ready, (self._rank[node], node))
            at += 1
        self._next[semaphore] = at

    def _deadlock(self) -> Deadlock:
        program, missing = self._program, []
        for semaphore, posts in enumerate(self._post_counts):
            array = int(np.searchsorted(program.first, semaphore, "right")) - 1
            for wait in range(self._next[semaphore], self._ends[semaphore + 1]):
                stage, tile = program.place(self._waiter[wait])
                if self._resident[self._waiter[wait]]:
                    local = semaphore - int(program.first[array])
                    missing.append(Missing(stage, tile, array, local, posts, self._value[wait]))
        missing.sort(key=lambda m: (m.stage, m.tile))
        return Deadlock(program.nodes - len(self._result.ran), tuple(missing[:16]))
