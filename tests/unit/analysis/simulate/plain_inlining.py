"""Inline or spawned tiles in plain Python over expanded edges: the oracle of
`tileprof.analysis.simulate.inlining.run`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np

from tests.unit.analysis.simulate.engine.plain_engine import _edges
from tileprof.analysis.bounds.problem import Problem
from tileprof.analysis.simulate.inlining import INLINE, PRINTED, RULE, Inlining, Ran


class Plain:
    """One run."""

    def __init__(self, p: Problem, costs: Inlining) -> None:
        self.costs, self.tiles = costs, p.tiles
        self.life = [
            float(p.ns[p.ns_at[i] + t])
            for i in range(len(p.launch))
            for t in range(p.tile_base[i + 1] - p.tile_base[i])
        ]
        self.parents: list[set[int]] = [set() for _ in range(self.tiles)]
        self.children: list[set[int]] = [set() for _ in range(self.tiles)]
        for parent, child, _ in _edges(p):
            self.parents[child].add(parent)
            self.children[parent].add(child)
        self.begin, self.end = [math.inf] * self.tiles, [math.inf] * self.tiles
        self.worker = [-1] * self.tiles
        self.inline: set[int] = set()
        self.lists: list[deque[int]] = [deque() for _ in range(costs.workers)]
        self.listed_ns = [0.0] * costs.workers
        self.free = list(reversed(range(costs.workers)))
        self.queue = [(0.0, t) for t in range(self.tiles) if not self.parents[t]]
        self.waiting = len(self.queue)
        self.running = self.ended = 0
        self.busy_ns = self.since = self.now = 0.0
        self.events: list[tuple[float, int]] = []

    def run(self) -> Ran:
        while True:
            while self.free and self.queue:
                tile = heapq.heappop(self.queue)[1]
                self.waiting -= 1
                if not self.running:
                    self.since = self.now
                self.running += 1
                self.begins(self.now + self.costs.fetch_ns, tile, self.free.pop(), self.life[tile])
            if not self.events:
                break
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                item = heapq.heappop(self.events)[1]
                if item >= self.tiles:
                    heapq.heappush(self.queue, (self.now, item - self.tiles))
                else:
                    self.ends(item)
        inline = np.array([t in self.inline for t in range(self.tiles)], np.bool_)
        return Ran(np.array(self.begin), np.array(self.end), np.array(self.worker, np.int32), inline)

    def begins(self, when: float, tile: int, worker: int, life: float) -> None:
        self.begin[tile], self.end[tile], self.worker[tile] = when, when + life, worker
        heapq.heappush(self.events, (self.end[tile], tile))

    def ends(self, tile: int) -> None:
        worker = self.worker[tile]
        if tile not in self.inline:
            self.ended += 1
            self.running -= 1
            if not self.running:
                self.busy_ns += self.now - self.since
        for child in sorted(self.children[tile]):
            self.parents[child].discard(tile)
            if not self.parents[child]:
                self.is_ready(child, worker)
        if not self.lists[worker]:
            self.free.append(worker)
            return
        following = self.lists[worker].popleft()
        self.listed_ns[worker] = self.listed_ns[worker] - self.spared(following) if self.lists[worker] else 0.0
        self.begins(self.now, following, worker, self.spared(following))

    def is_ready(self, child: int, worker: int) -> None:
        """The worker whose tile was the last that ``child`` waited for decides about ``child``."""
        if self.runs_inline(child, worker):
            self.inline.add(child)
            self.lists[worker].append(child)
            self.listed_ns[worker] += self.spared(child)
        else:
            self.waiting += 1
            heapq.heappush(self.events, (self.now + self.costs.spawn_ns, self.tiles + child))

    def runs_inline(self, child: int, worker: int) -> bool:
        if self.costs.policy not in {RULE, PRINTED}:
            return self.costs.policy == INLINE
        each = self.life[child] / self.costs.workers
        if self.ended:
            each = (self.busy_ns + (self.now - self.since if self.running else 0.0)) / self.ended
        free = 0 if self.costs.policy == PRINTED else len(self.free)
        ahead = max(self.waiting - free, 0)
        spawned = self.costs.spawn_ns + self.costs.fetch_ns + ahead * each + self.life[child]
        return spawned >= self.listed_ns[worker] + self.spared(child)

    def spared(self, tile: int) -> float:
        return max(self.life[tile] - self.costs.reload_ns, 0.0)
