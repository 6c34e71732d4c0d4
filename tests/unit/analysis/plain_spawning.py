"""Child grids in plain Python, meant to be read: what `tileprof.analysis.simulate.spawning.run` must equal."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import pairwise

import numpy as np

from tileprof.analysis.simulate.spawning import ALWAYS, FLAT, SPAWN, Ran, Spawning, Spawns

Event = tuple[float, int, int]
"""When; 0 a parent tile ends, 1 a child tile ends, 2 a grid arrives; the grid."""


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
        self.events: list[Event] = []
        self.free, self.room = options.slots, options.resident
        self.children = self.ended = 0
        self.busy_ns = self.since = self.lived_ns = self.now = self.served = 0.0
        self.ran: list[tuple[float, int]] = [(0.0, 0)]
        """From when on so many child tiles ran."""

    def run(self) -> Ran:
        o = self.options
        for number, (begin, end) in enumerate(pairwise(self.work.round_at.tolist())):
            self.now += o.gap_ns if number else 0.0
            parents = deque(range(begin, end, o.parent))
            while True:
                while len(self.active) < o.queues and self.waiting:
                    grid = self.waiting.popleft()
                    self.active.add(grid)
                    self.tiles.extend([grid] * self.left[grid])
                while parents and self.free and self.room >= o.parent:
                    self.starts(o.parent, self.parent_life(parents.popleft(), end), 0, 0)
                while not parents and self.tiles and self.free and self.room >= o.child:
                    grid = self.tiles.popleft()
                    self.child_starts(grid)
                if not self.events:
                    break
                self.now = self.events[0][0]
                while self.events and self.events[0][0] == self.now:
                    self.happens(*heapq.heappop(self.events)[1:])
        n = len(self.work.items)
        columns = [np.array([d.get(t, np.nan) for t in range(n)], np.float64) for d in (self.took, self.estimate)]
        return Ran(self.now, *columns)

    def starts(self, threads: int, life: float, kind: int, grid: int) -> None:
        self.free -= 1
        self.room -= threads
        heapq.heappush(self.events, (self.now + life, kind, grid))

    def happens(self, kind: int, grid: int) -> None:
        if kind == 2:
            self.waiting.append(grid)
            return
        self.free += 1
        self.room += self.options.child if kind == 1 else self.options.parent
        if kind == 1:
            self.ended += 1
            self.lived_ns += self.child_ns(grid)
            self.children -= 1
            self.ran.append((self.now, self.children))
            if self.children == 0:
                self.busy_ns += self.now - self.since
            self.left[grid] -= 1
            if self.left[grid] == 0:
                self.active.discard(grid)
                self.took[grid] = self.now - self.asked[grid]

    def child_starts(self, grid: int) -> None:
        if self.children == 0:
            self.since = self.now
        self.children += 1
        self.ran.append((self.now, self.children))
        self.starts(self.options.child, self.child_ns(grid), 1, grid)

    def child_ns(self, grid: int) -> float:
        return float(self.work.child_ns + self.work.item_ns[grid])

    def parent_life(self, first: int, end: int) -> float:
        """The longest of the tile's warps."""
        o = self.options
        last = min(first + o.parent, end)
        return max(self.warp_life(t, min(t + o.warp, last)) for t in range(first, last, o.warp))

    def warp_life(self, first: int, last: int) -> float:
        """Its threads decide one after the other, launch together, and do the rest together."""
        o, inline_ns = self.options, 0.0
        launching: list[int] = []
        for t in range(first, last):
            n = int(self.work.items[t])
            if not n:
                continue
            expected, alone = self.estimates(t, len(launching))
            if self.launches(n, expected, alone):
                launching.append(t)
                self.asked[t], self.estimate[t], self.left[t] = self.now + self.work.base_ns, expected, -(-n // o.child)
            else:
                inline_ns = max(inline_ns, float(n * self.work.item_ns[t]))
        spent = self.work.base_ns + (o.launch_ns + len(launching) * o.another_ns if launching else 0.0)
        for t in launching:
            self.served = max(self.now + spent, self.served + o.serve_ns)
            heapq.heappush(self.events, (self.served if o.serve_ns else self.now + spent, 2, t))
        return spent + inline_ns

    def estimates(self, t: int, launched: int) -> tuple[float, float]:
        """Of the time of thread t's items as a grid, and inline; not a number while nothing is known."""
        o, n = self.options, int(self.work.items[t])
        own = -(-n // o.child)
        each = warp_ns = np.nan
        if o.prior:
            warp_ns = self.child_ns(t)
            each = warp_ns / min(o.slots, o.resident // o.child)
        if self.ended:
            each = (self.busy_ns + (self.now - self.since if self.children else 0.0)) / self.ended
            warp_ns = self.lived_ns / self.ended
            if o.window_ns:
                each = warp_ns / max(self.mean_running(), 1.0)
        return o.launch_ns + (launched + 1) * o.another_ns + (sum(self.left.values()) + own) * each, n * warp_ns

    def mean_running(self) -> float:
        """Child tiles at a time in the last whole window."""
        window = self.options.window_ns
        end = np.floor(self.now / window) * window
        times = [*self.ran, (np.inf, 0)]
        inside = (
            running * max(0.0, min(later, end) - max(when, end - window))
            for (when, running), (later, _) in pairwise(times)
        )
        return sum(inside) / window if end > 0 else 0.0

    def launches(self, n: int, expected: float, alone: float) -> bool:
        if self.policy in (FLAT, ALWAYS):
            return self.policy == ALWAYS
        if n < self.threshold:
            return False
        if self.policy != SPAWN:
            return True
        if np.isnan(expected):
            return sum(self.left.values()) - (-n // self.options.child) <= self.options.untried
        return expected < alone
