"""The co-pilot's dealing, simulated: which cluster gets which task when, as pilot.cpp decides it.

`Simulator` gives a tile to whichever worker is free. The co-pilot gives each cluster up to ``depth`` tasks, which stay
there: a task that waits behind another one in a cluster's ring is not taken by an idle cluster. With ``overwrite`` a
command that is not known to be taken is overwritten, as in pilot.cpp; a cluster takes its next command when the task
before has ended, and the claim takes one way over the link.
"""

import heapq
from dataclasses import dataclass
from itertools import count

from tileprof.arrays.ragged import owners
from tileprof.runtime.copilot.choices import grades, places, programs
from tileprof.runtime.persistent.cost import SIGNAL_US, rest_us
from tileprof.runtime.persistent.dealing import COMMANDS

ARRIVES, ENDS, HEARD, CLAIMED, OVERWRITES = range(5)


@dataclass
class Command:
    """A place of a cluster's ring. ``task`` and ``ahead``: as the cluster sees it now; ``new`` is the task that was
    written over it, None for none. ``taken``: by the cluster; ``claimed``: as the co-pilot knows.
    """

    task: int
    ahead: bool
    arrival: float
    new: int | None = None
    taken: bool = False
    claimed: bool = False


class Dealt:
    """One run of a plan; times in microseconds.

    ``lives``: of a task of each stage alone; ``trip``: completion, answer and pick-up, of which ``read`` and
    ``release`` are the cluster's own time.
    """

    def __init__(self, plan, lives, choices, *, trip, read, release, decide):
        self.plan, self.lives, self.choices = plan, lives, choices
        self.way, self.read, self.release, self.decide = (trip - read - release) / 2, read, release, decide
        tasks = len(plan.tasks)
        posters = [[] for _ in range(plan.semaphores)]
        for task, semaphore in zip(owners(plan.post_ptr), plan.posts, strict=True):
            posters[semaphore].append(int(task))
        self.parents = [set() for _ in range(tasks)]
        for task, wait in zip(owners(plan.wait_ptr), plan.waits, strict=True):
            self.parents[task].update(posters[wait[2]])
        self.waiters = [[] for _ in range(tasks)]
        for task, some in enumerate(self.parents):
            for parent in some:
                self.waiters[parent].append(task)
        self.place, self.grade = places(plan, choices), grades(plan, choices)
        self.program = programs(plan)[plan.tasks[:, 0]]
        self.commands = [
            [] for _ in range(plan.clusters)
        ]  # that were sent and not completed, as the co-pilot sees them
        self.heard_at = [0] * plan.clusters
        self.heard, self.first_us, self.ended_us = 0, 0.0, [0.0] * (int(self.program.max()) + 1)
        self.overwritten = self.too_late = 0
        self.not_done, self.not_sent = ([len(some) for some in self.parents] for _ in range(2))
        self.send_flags, self.end = [False] * tasks, [None] * tasks
        self.ready, self.sendable = [], []
        self.outstanding = [0] * plan.clusters
        self.ring = [[] for _ in range(plan.clusters)]
        self.busy, self.free = [False] * plan.clusters, [0.0] * plan.clusters
        self.blocked_since = {}
        self.events, self.number, self.turn, self.cpu = [], count(), 0, 0.0

    def run(self):
        """The time from the begin to the end of the last task."""
        for task, needs in enumerate(self.not_done):
            if not needs:
                heapq.heappush(self.ready, (self.place[task], task))
        self.deal(begin=True)
        last = 0.0
        while self.events:
            now, kind, _, cluster, task = heapq.heappop(self.events)
            if kind == ARRIVES:
                command = task
                command.arrival = now
                self.ring[cluster].append(command)
                self.start(cluster, now)
            elif kind == OVERWRITES:
                command = task
                if not command.taken:
                    command.task, command.ahead, command.new = command.new, False, command.task
            elif kind == ENDS:
                last = max(last, now)
                self.busy[cluster], self.free[cluster] = False, now
                self.start(cluster, now)
                self.push(now + self.way, HEARD, cluster, task)
            elif kind == CLAIMED:
                self.settle(cluster, task)
                self.cpu = max(self.cpu, now)
                self.deal()
            else:
                self.cpu = max(self.cpu, now)
                batch = [(cluster, task)]
                while self.events and self.events[0][0] <= self.cpu and self.events[0][1] == HEARD:
                    batch.append(heapq.heappop(self.events)[3:5])
                for one in batch:
                    self.hear(now, *one)
                self.deal()
        assert None not in self.end
        return last

    def push(self, when, kind, cluster, task):
        heapq.heappush(self.events, (when, kind, next(self.number), cluster, task))

    def hear(self, now, cluster, task):
        self.outstanding[cluster] -= 1
        self.commands[cluster].pop(0)
        self.heard += 1
        self.heard_at[cluster] = self.heard
        self.first_us = self.first_us or now
        self.ended_us[self.program[task]] = now - self.first_us
        for waiter in self.waiters[task]:
            self.not_done[waiter] -= 1
            if not self.not_done[waiter] and not self.send_flags[waiter]:
                heapq.heappush(self.ready, (self.place[waiter], waiter))

    def deal(self, *, begin=False):
        if self.choices.overwrite and not begin:
            self.overwrite()
        self.fill(begin=begin)
        if self.choices.overwrite and not begin:
            self.overwrite()

    def fill(self, *, begin):
        for level in range(self.choices.depth):
            first = self.turn
            for i in range(self.plan.clusters):
                cluster = (first + i) % self.plan.clusters
                if self.outstanding[cluster] != level:
                    continue
                task, ahead = self.take(self.ready), False
                if task is None and self.choices.speculate:
                    task, ahead = self.take_ahead(), True
                if task is None:
                    return
                self.cpu += 0.0 if begin else self.decide
                self.send(cluster, task, 0.0 if begin else self.cpu + self.way, ahead=ahead)
                self.turn = (cluster + 1) % self.plan.clusters

    def overwrite(self):
        """Send ready tasks in place of others where they come earlier than in a new command."""
        while (task := self.take(self.ready)) is not None:
            least = min(self.outstanding)
            if not self.replace(task, least - 1 if least < self.choices.depth else COMMANDS):
                heapq.heappush(self.ready, (self.place[task], task))
                return

    def take_ahead(self):
        while (task := self.take(self.sendable)) is not None and self.not_sent[task]:
            pass  # an input was overwritten
        return task

    def replace(self, task, before):
        """Write a task over the command that will be taken first of those that it should overwrite, with fewer than
        ``before`` in front of it. Return whether there is one.
        """
        best = None
        for cluster, commands in enumerate(self.commands):
            unclaimed = [command for command in commands if not command.claimed]
            for behind, command in enumerate(unclaimed[: max(before, 0)]):
                if command.new is None and self.better(task, command.task) and self.withdrawable(command.task):
                    mine = behind, self.heard_at[cluster], cluster
                    best = min(best or mine, mine)
                    break
        if best is None:
            return False
        behind, _, cluster = best
        command = [command for command in self.commands[cluster] if not command.claimed][behind]
        command.new = task
        self.overwritten += 1
        self.send_flags[task] = True
        for waiter in self.waiters[command.task]:
            self.not_sent[waiter] += 1
        self.cpu += self.decide
        self.push(self.cpu + self.way, OVERWRITES, cluster, command)
        return True

    def better(self, task, other):
        if self.grade[task] != self.grade[other]:
            return self.grade[task] < self.grade[other]
        return self.not_done[other] > 0

    def withdrawable(self, task):
        return not self.choices.speculate or not any(self.send_flags[waiter] for waiter in self.waiters[task])

    def settle(self, cluster, command):
        """A claim has arrived: the other task of an overwritten command is dealt anew."""
        command.claimed = True
        if command.new is None:
            return
        lost, command.new = command.new, None
        self.too_late += self.place[lost] < self.place[command.task]
        self.count_sent(command.task)
        self.send_flags[lost] = False
        if not self.not_done[lost]:
            heapq.heappush(self.ready, (self.place[lost], lost))
        elif not self.not_sent[lost]:
            heapq.heappush(self.sendable, (self.place[lost], lost))

    def take(self, heap):
        while heap:
            _, task = heapq.heappop(heap)
            if not self.send_flags[task]:
                return task
        return None

    def send(self, cluster, task, when, *, ahead):
        self.send_flags[task] = True
        self.outstanding[cluster] += 1
        command = Command(task, ahead, when)
        self.commands[cluster].append(command)
        self.push(when, ARRIVES, cluster, command)
        self.count_sent(task)

    def count_sent(self, task):
        for waiter in self.waiters[task]:
            self.not_sent[waiter] -= 1
            if not self.not_sent[waiter]:
                heapq.heappush(self.sendable, (self.place[waiter], waiter))

    def start(self, cluster, now):
        """Begin the cluster's next task, if it has one; a task sent ahead waits until its inputs have known ends."""
        if self.busy[cluster] or not self.ring[cluster]:
            return
        command = self.ring[cluster][0]
        task, ahead, arrival = command.task, command.ahead, command.arrival
        if not command.taken:
            command.taken = True
            if self.choices.overwrite:
                self.push(now + self.way, CLAIMED, cluster, command)
        unknown = [parent for parent in self.parents[task] if self.end[parent] is None] if ahead else []
        if unknown:
            self.blocked_since.setdefault(unknown[0], []).append(cluster)
            return
        begin = max(self.free[cluster], arrival) + self.read
        stage = int(self.plan.tasks[task, 0])
        life = self.lives[stage]
        late = max((self.end[p] + SIGNAL_US for p in self.parents[task]), default=0.0) - begin if ahead else 0.0
        rest = rest_us(self.plan.stages[stage], self.plan.split, life, late) if late > 0 else life
        self.ring[cluster].pop(0)
        self.busy[cluster], self.end[task] = True, begin + max(late, 0.0) + rest
        self.push(self.end[task] + self.release, ENDS, cluster, task)
        for waiting in self.blocked_since.pop(task, []):
            self.start(waiting, now)
