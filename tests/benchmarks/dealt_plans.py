"""The co-pilot's dealing, simulated: which cluster gets which task when, as pilot.cpp decides it.

`Simulator` gives a tile to whichever worker is free. The co-pilot gives each cluster up to ``depth`` tasks, which stay
there: a task that waits behind another one in a cluster's ring is not taken by an idle cluster.
"""

import heapq
from itertools import count

from tileprof.arrays.ragged import owners
from tileprof.runtime.copilot.choices import places
from tileprof.runtime.persistent.cost import SIGNAL_US, rest_us

ARRIVES, ENDS, HEARD = range(3)


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
        self.place = places(plan, choices)
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
            now, kind, _, cluster, task, ahead = heapq.heappop(self.events)
            if kind == ARRIVES:
                self.ring[cluster].append((task, ahead, now))
                self.start(cluster)
            elif kind == ENDS:
                last = max(last, now)
                self.busy[cluster], self.free[cluster] = False, now
                self.start(cluster)
                self.push(now + self.way, HEARD, cluster, task)
            else:
                self.cpu = max(self.cpu, now)
                batch = [(cluster, task)]
                while self.events and self.events[0][0] <= self.cpu and self.events[0][1] == HEARD:
                    batch.append(heapq.heappop(self.events)[3:5])
                for one in batch:
                    self.hear(*one)
                self.deal()
        assert None not in self.end
        return last

    def push(self, when, kind, cluster, task, ahead=False):
        heapq.heappush(self.events, (when, kind, next(self.number), cluster, task, ahead))

    def hear(self, cluster, task):
        self.outstanding[cluster] -= 1
        for waiter in self.waiters[task]:
            self.not_done[waiter] -= 1
            if not self.not_done[waiter] and not self.send_flags[waiter]:
                heapq.heappush(self.ready, (self.place[waiter], waiter))

    def deal(self, *, begin=False):
        for level in range(self.choices.depth):
            first = self.turn
            for i in range(self.plan.clusters):
                cluster = (first + i) % self.plan.clusters
                if self.outstanding[cluster] != level:
                    continue
                task, ahead = self.take(self.ready), False
                if task is None and self.choices.speculate:
                    task, ahead = self.take(self.sendable), True
                if task is None:
                    return
                self.cpu += 0.0 if begin else self.decide
                self.send(cluster, task, 0.0 if begin else self.cpu + self.way, ahead=ahead)
                self.turn = (cluster + 1) % self.plan.clusters

    def take(self, heap):
        while heap:
            _, task = heapq.heappop(heap)
            if not self.send_flags[task]:
                return task
        return None

    def send(self, cluster, task, when, *, ahead):
        self.send_flags[task] = True
        self.outstanding[cluster] += 1
        self.push(when, ARRIVES, cluster, task, ahead)
        for waiter in self.waiters[task]:
            self.not_sent[waiter] -= 1
            if not self.not_sent[waiter]:
                heapq.heappush(self.sendable, (self.place[waiter], waiter))

    def start(self, cluster):
        """Begin the cluster's next task, if it has one; a task sent ahead waits until its inputs have known ends."""
        if self.busy[cluster] or not self.ring[cluster]:
            return
        task, ahead, arrival = self.ring[cluster][0]
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
            self.start(waiting)
