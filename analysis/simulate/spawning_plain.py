"""Child grids in plain Python, meant to be read: what `tileprof.analysis.simulate.spawning.run` must equal."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import pairwise

import numpy as np

from tileprof.analysis.simulate.spawning import ALWAYS, SPAWN, THRESHOLD, Ran, Spawning, Spawns


class Plain:
    """One run of one policy."""

    def __init__(self, work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> None:
        self.work, self.options, self.policy, self.threshold = work, options, policy, threshold
        self.asked: dict[int, float] = {}
        self.estimate: dict[int, float] = {}
        self.took: dict[int, float] = {}
        self.left: dict[int, int] = {}
        """Tiles of launched grids that have not ended."""
        self.waiting: deque[int] = deque()
        self.active: set[int] = set()
        self.tiles: deque[int] = deque()
        """A grid for each child tile that may start."""
        self.free = options.slots
        self.children = self.ended = 0
        self.child_ns = self.since = self.now = 0.0

    def run(self) -> Ran:
        events: list[
            tuple[float, int, int]
        ] = []  # when; 0 a parent tile ends, 1 a child tile ends, 2 a grid arrives; the grid
        bounds = self.work.round_at.tolist()
        for number, (begin, end) in enumerate(pairwise(bounds)):
            self.now += self.options.gap_ns if number else 0.0
            parents = deque(range(begin, end, self.options.threads))
            while True:
                while len(self.active) < self.options.queues and self.waiting:
                    grid = self.waiting.popleft()
                    self.active.add(grid)
                    self.tiles.extend([grid] * self.left[grid])
                while self.free and (parents or self.tiles):
                    self.free -= 1
                    if parents:
                        first = parents.popleft()
                        heapq.heappush(events, (self.now + self.parent_life(events, first, end), 0, 0))
                    else:
                        heapq.heappush(events, (self.now + self.child_life(), 1, self.tiles.popleft()))
                if not events:
                    break
                self.now = events[0][0]
                while events and events[0][0] == self.now:
                    self.happens(*heapq.heappop(events)[1:])
        n = len(self.work.items)
        columns = [np.array([d.get(t, np.nan) for t in range(n)], np.float64) for d in (self.took, self.estimate)]
        return Ran(self.now, *columns)

    def happens(self, kind: int, grid: int) -> None:
        if kind == 2:
            self.waiting.append(grid)
            return
        self.free += 1
        if kind == 1:
            self.ended += 1
            self.children -= 1
            if self.children == 0:
                self.child_ns += self.now - self.since
            self.left[grid] -= 1
            if self.left[grid] == 0:
                self.active.discard(grid)
                self.took[grid] = self.now - self.asked[grid]

    def child_life(self) -> float:
        if self.children == 0:
            self.since = self.now
        self.children += 1
        return self.work.base_ns + self.work.item_ns

    def parent_life(self, events: list[tuple[float, int, int]], first: int, end: int) -> float:
        life, launches, o = 0.0, 0, self.options
        for t in range(first, min(first + o.threads, end)):
            n = int(self.work.items[t])
            own = -(-n // o.threads)
            each = (self.work.base_ns + self.work.item_ns) / o.slots if o.prior else np.nan
            if self.ended:
                spent = self.child_ns + (self.now - self.since if self.children else 0.0)
                each = spent / self.ended
            expected = o.launch_ns + launches * o.another_ns + (sum(self.left.values()) + own) * each
            if n and self.launches(n, expected):
                self.asked[t], self.estimate[t], self.left[t] = self.now, expected, own
                heapq.heappush(events, (self.now + o.launch_ns + launches * o.another_ns, 2, t))
                launches += 1
                life = max(life, self.work.base_ns)
            else:
                life = max(life, self.work.base_ns + n * self.work.item_ns)
        return life

    def launches(self, n: int, expected: float) -> bool:
        if self.policy == SPAWN:
            return bool(np.isnan(expected)) or expected < n * self.work.item_ns
        return self.policy == ALWAYS or (self.policy == THRESHOLD and n >= self.threshold)
