"""A GPU as a co-pilot sees it, in Python: workers that take commands, claim and complete them, over a link on which
each word arrives at any later time.

A worker reads its ring in a copy that is renewed now and then. What it writes stands in a queue of its own until it
lands in the co-pilot's memory. It fetches up to ``lead`` tasks ahead of the one on which it works. `Machine.run` lets
workers, link and co-pilot step in a random order and returns what went wrong.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tileprof.runtime.copilot.copilot import Copilot
from tileprof.runtime.persistent.dealing import COMMANDS, LINK_HEAD, completions
from tileprof.runtime.persistent.plan import Plan

AWAITS, NO_MORE = 1 << 30, 0xFFFFFFFF


@dataclass
class Worker:
    ring: np.ndarray
    """The worker's copy of its commands."""
    claims_at: int
    taken_commands: int = 0
    fetched: deque[int] = field(default_factory=deque)
    link: deque[tuple[int, int]] = field(default_factory=deque)
    """Words on their way to the CPU: their destination and value."""
    ended: bool = False


class Machine:
    def __init__(self, plan: Plan, pilot: Copilot) -> None:
        self.plan, self.pilot = plan, pilot
        self.memory = pilot.memory.numpy()
        self.completions_at = LINK_HEAD + plan.clusters * COMMANDS
        self.places, self.completed = completions(plan), 0
        claims_at = self.completions_at + self.places
        self.workers = [
            Worker(self._commands(number).copy(), claims_at + number * COMMANDS) for number in range(plan.clusters)
        ]
        posters: list[list[int]] = [[] for _ in range(plan.semaphores)]
        for task, semaphore in zip(np.repeat(range(len(plan.tasks)), np.diff(plan.post_ptr)), plan.posts, strict=True):
            posters[semaphore].append(int(task))
        self.inputs: list[set[int]] = [set() for _ in plan.tasks]
        for task, wait in zip(np.repeat(range(len(plan.tasks)), np.diff(plan.wait_ptr)), plan.waits, strict=True):
            self.inputs[task].update(posters[wait[2]])

    def _commands(self, worker: int) -> np.ndarray:
        return self.memory[LINK_HEAD + worker * COMMANDS :][:COMMANDS]

    def run(self, seed: int) -> str | None:
        """Run the plan once; the next run continues in the same rings. Return the fault, or None.

        ``seed`` decides the order. Seeds in turn have a late link to a worker, a late link from it, a slow worker or a
        slow co-pilot.
        """
        dice, runs = random.Random(seed), [0] * len(self.plan.tasks)
        lead = dice.choice([1, 1, 2, 4])
        late = dice.choice(["", "arrive", "land", "fetch", "work", "step"])
        late_worker = dice.randrange(len(self.workers))
        for worker in self.workers:
            worker.ended = False
        idle = 0
        while not all(worker.ended and not worker.fetched and not worker.link for worker in self.workers):
            deed, number = dice.choice(["arrive", "land", "fetch", "work", "step"]), dice.randrange(len(self.workers))
            if deed == late and number in {late_worker, 0} and dice.random() < 0.9:  # worker 0: as slow as a whole link
                continue
            if deed == "step":
                progress = self.pilot.step()
            else:
                progress, fault = getattr(self, deed)(self.workers[number], number, lead, runs)
                if fault is not None:
                    return fault
            idle = 0 if progress else idle + 1
            if idle > 400 * len(self.workers) and not self._anything(lead, runs):
                return f"nobody can go on; {runs.count(0)} tasks have not run"
        wrong = [task for task, count in enumerate(runs) if count != 1]
        return f"tasks {wrong} ran {[runs[task] for task in wrong]} times" if wrong else None

    def _anything(self, lead: int, runs: list[int]) -> bool:
        """Return whether anything can continue once everything has arrived."""
        while any(self.land(w, n, lead, runs)[0] for n, w in enumerate(self.workers)):
            pass
        progress = self.pilot.step()
        for number, worker in enumerate(self.workers):
            progress |= self.arrive(worker, number, lead, runs)[0]
            progress |= bool(worker.fetched and self._begins(worker, runs))
            progress |= self._waiting_command(worker) is not None and len(worker.fetched) < lead and not worker.ended
        return progress

    def arrive(self, worker: Worker, number: int, _lead: int, _runs: list[int]) -> tuple[bool, str | None]:
        """The worker sees its commands as they are now."""
        new = not np.array_equal(worker.ring, self._commands(number))
        worker.ring[:] = self._commands(number)
        return new, None

    def land(self, worker: Worker, _number: int, _lead: int, _runs: list[int]) -> tuple[bool, str | None]:
        """The CPU sees the worker's next word."""
        if not worker.link:
            return False, None
        at, word = worker.link.popleft()
        self.memory[at] = np.uint64(word).astype(np.int64)
        return True, None

    def _waiting_command(self, worker: Worker) -> int | None:
        word = int(worker.ring[worker.taken_commands % COMMANDS].astype(np.uint64))
        return word if word >> 32 == worker.taken_commands + 1 else None

    def fetch(self, worker: Worker, _number: int, lead: int, _runs: list[int]) -> tuple[bool, str | None]:
        """The worker takes its next command and claims it."""
        word = self._waiting_command(worker)
        if word is None or worker.ended or len(worker.fetched) >= lead:
            return False, None
        worker.link.append((worker.claims_at + worker.taken_commands % COMMANDS, word))
        worker.taken_commands += 1
        if word & NO_MORE == NO_MORE:
            worker.ended = True
        else:
            worker.fetched.append(word & NO_MORE)
        return True, None

    def _begins(self, worker: Worker, runs: list[int]) -> bool:
        task = worker.fetched[0]
        return not task & AWAITS or all(runs[other] for other in self.inputs[task & ~AWAITS])

    def work(self, worker: Worker, _number: int, _lead: int, runs: list[int]) -> tuple[bool, str | None]:
        """The worker runs a task that it has fetched, and reports it."""
        if not worker.fetched or not self._begins(worker, runs):
            return False, None
        task = worker.fetched.popleft() & ~AWAITS
        if not all(runs[other] for other in self.inputs[task]):
            return True, f"task {task} was said to be ready and is not"
        runs[task] += 1
        if runs[task] > 1:
            return True, f"task {task} ran twice"
        word = (self.completed + 1) << 32 | task
        worker.link.append((self.completions_at + self.completed % self.places, word))
        self.completed += 1
        return True, None
