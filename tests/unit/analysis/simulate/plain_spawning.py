"""Child grids in plain Python, meant to be read: what `tileprof.analysis.simulate.spawning.run` must equal."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import pairwise

import numpy as np

from tileprof.analysis.simulate.spawning import ALWAYS, FLAT, SPAWN, WARP, Ran, Spawning, Spawns

Event = tuple[float, int, int, float, int, float]
"""When; 0 a parent tile ends, 1 a child tile ends, 2 a grid arrives, 3 a parent tile may start; the grid; how long the
tile ran; items that it did inline, and their time.
"""


class Plain:
    """One run of one policy."""

    def __init__(self, work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> None:
        self.work, self.options, self.policy, self.threshold = work, options, policy, threshold
        self.asked: dict[int, float] = {}
        self.estimate: dict[int, float] = {}
        self.took: dict[int, float] = {}
        self.left: dict[int, int] = {}
        """Tiles of launched grids that have not ended."""
        self.tile: dict[int, int] = {}
        """The next tile of a launched grid."""
        self.waiting: deque[int] = deque()
        self.active: set[int] = set()
        self.tiles: deque[int] = deque()
        """A grid for each child tile that may start."""
        self.events: list[Event] = []
        self.free, self.room = options.slots, options.resident
        self.children = self.ended = 0
        self.busy_ns = self.since = self.lived_ns = self.now = self.served = 0.0
        self.seen, self.looked, self.reaches = 0, -np.inf, 0.0
        self.inlined, self.done = [0, 0.0], [0, 0.0]
        """Items done inline, and their time: by the tile that starts, and by all that have ended."""
        self.ran: list[tuple[float, int]] = [(0.0, 0)]
        """From when on so many child tiles ran."""
        self.begun, self.ends = -1.0, []
        """When the first child tile started; when each ended, and its life."""

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
                while o.children and self.tiles and self.free and self.room >= o.child:
                    self.child_starts(self.tiles.popleft())
                while parents and self.free and self.room >= o.parent and self.now >= self.reaches:
                    first = parents.popleft()
                    self.starts(o.parent, self.tile_life(range(first, min(first + o.parent, end)), self.work.base_ns))
                    if o.stagger_ns and parents:
                        self.reaches = self.now + o.stagger_ns
                        heapq.heappush(self.events, (self.reaches, 3, 0, 0.0, 0, 0.0))
                while not parents and self.tiles and self.free and self.room >= o.child:
                    self.child_starts(self.tiles.popleft())
                if not self.events:
                    break
                self.now = self.events[0][0]
                while self.events and self.events[0][0] == self.now:
                    self.happens(*heapq.heappop(self.events)[1:])
        n = len(self.work.items)
        columns = [np.array([d.get(t, np.nan) for t in range(n)], np.float64) for d in (self.took, self.estimate)]
        return Ran(self.now, *columns)

    def starts(self, threads: int, life: float, kind: int = 0, grid: int = 0) -> None:
        self.free -= 1
        self.room -= threads
        heapq.heappush(self.events, (self.now + life, kind, grid, life, *self.inlined))
        self.inlined = [0, 0.0]

    def happens(self, kind: int, grid: int, life: float, items: int, items_ns: float) -> None:
        if kind == 3:
            return
        if kind == 2:
            self.waiting.append(grid)
            return
        self.done = [self.done[0] + items, self.done[1] + items_ns]
        self.free += 1
        self.room += self.options.child if kind == 1 else self.options.parent
        if kind == 1:
            self.ended += 1
            self.lived_ns += life
            self.ends.append((self.now, life))
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
        if self.begun < 0:
            self.begun = self.now
        self.children += 1
        self.ran.append((self.now, self.children))
        child, items, place = self.options.child, int(self.work.items[grid]), self.tile[grid]
        self.tile[grid] += 1
        life = float(self.work.child_ns + self.work.item_ns[grid])
        own = self.threads_of(grid)[place * child : min((place + 1) * child, items)]
        self.starts(child, self.tile_life(own, life) if own else life, 1, grid)

    def threads_of(self, t: int) -> range:
        """The threads that a thread's items are; none for items that have no items."""
        nested = self.work.first_child is not None and self.work.first_child[t] >= 0
        first = int(self.work.first_child[t]) if nested else 0
        return range(first, first + int(self.work.items[t])) if nested else range(0)

    def tile_life(self, threads: range, base_ns: float) -> float:
        """The longest of the tile's warps."""
        warps = [threads[i : i + self.options.warp] for i in range(0, len(threads), self.options.warp)]
        return max(self.warp_life(warp, base_ns) for warp in warps)

    def warp_life(self, warp: range, base_ns: float) -> float:
        """Its threads decide one after the other, launch together, and do the rest together."""
        o = self.options
        chosen = self.chosen(warp) if self.policy == WARP else set()
        launching: list[int] = []
        for t in warp:
            if self.work.items[t] and (t in chosen if self.policy == WARP else self.launches(t, len(launching))):
                self.launch(t, len(launching), self.now + base_ns)
                launching.append(t)
        life_ns = base_ns + (o.launch_ns + len(launching) * o.another_ns if launching else 0.0)
        for t in launching:
            self.arrives(t, self.now + life_ns)
        kept = [t for t in warp if self.work.items[t] and t not in launching]
        alone = [self.inline(t, life_ns) for t in kept]
        rest = [
            took + sum(self.work.together * min(took, other) for v, other in zip(kept, alone, strict=True) if v != t)
            for t, took in zip(kept, alone, strict=True)
        ]
        self.inlined[0] += sum(int(self.work.items[t]) for t in kept)
        for took in rest:
            self.inlined[1] += took
        return life_ns + max(rest, default=0.0)

    def inline(self, t: int, begin: float) -> float:
        """A thread's time for its items and, where these do not launch, for theirs."""
        took = 0.0

        def descend(t: int) -> None:
            nonlocal took
            if not self.threads_of(t):
                took += self.alone(t)
            for u in self.threads_of(t):
                took += float(self.work.item_ns[t])
                if not self.work.items[u]:
                    continue
                if u in self.chosen(range(u, u + 1)) if self.policy == WARP else self.launches(u, 0):
                    self.launch(u, 0, self.now + begin + took)
                    took += self.options.launch_ns + self.options.another_ns
                    self.arrives(u, self.now + begin + took)
                else:
                    descend(u)

        descend(t)
        return took

    def alone(self, t: int) -> float:
        return float(self.work.items[t] * self.work.item_ns[t])

    def launch(self, t: int, turn: int, request: float) -> None:
        own = -(-int(self.work.items[t]) // self.options.child)
        self.asked[t], self.estimate[t] = request, self.expected(t, turn)
        self.left[t], self.tile[t] = own, 0

    def arrives(self, t: int, when: float) -> None:
        self.served = max(when, self.served + self.options.serve_ns)
        heapq.heappush(self.events, (self.served if self.options.serve_ns else when, 2, t, 0.0, 0, 0.0))

    def pace(self, t: int) -> tuple[float, float]:
        """One over the throughput of child tiles, and a child warp's time; not a number while nothing is known."""
        o = self.options
        each = warp_ns = np.nan
        if o.prior:
            warp_ns = float(self.work.child_ns + self.work.item_ns[t])
            each = warp_ns / min(o.slots, o.resident // o.child)
        if self.ended and o.ended:
            return self.windowed()
        if self.ended:
            each = (self.busy_ns + (self.now - self.since if self.children else 0.0)) / self.ended
            warp_ns = self.lived_ns / self.ended
            if o.window_ns:
                each = warp_ns / max(self.mean_running(), 1.0)
        return each, warp_ns

    def windowed(self) -> tuple[float, float]:
        """Window over child tiles that ended in it, and their mean life, of the last with any of six whole ones."""
        current = self.now // self.options.window_ns
        for back in range(1, 7):
            lives = [life for when, life in self.ends if when // self.options.window_ns == current - back]
            if lives:
                return self.options.window_ns / len(lives), sum(lives) / len(lives)
        return (self.now - self.begun) / self.ended, self.lived_ns / self.ended

    def queued(self) -> int:
        """Child tiles in the system, as a rule sees them."""
        if not self.options.lag_ns or self.now > self.looked + self.options.lag_ns:
            self.seen, self.looked = sum(self.left.values()), self.now
        return self.seen

    def expected(self, t: int, turn: int) -> float:
        """The time of thread t's items as a grid; not a number while nothing is known."""
        o = self.options
        own = -(-int(self.work.items[t]) // o.child)
        each, _ = self.pace(t)
        return float(o.launch_ns + (turn + 1) * o.another_ns + (sum(self.left.values()) + own) * each)

    def chosen(self, warp: range) -> set[int]:
        """The largest sites of a warp, as many as make the later of the warp and its children end first."""
        o = self.options
        sites = sorted((t for t in warp if self.known(t)), key=lambda t: (-self.known(t), t))
        few = [n for n, t in enumerate(sites) if self.work.items[t] < self.threshold]
        each, _ = self.pace(warp[0])
        ends = []
        for n in range((few[0] if few else len(sites)) + 1):
            longest = self.known(sites[n]) if n < len(sites) else 0.0
            warp_ns = o.launch_ns + n * o.another_ns
            served_ns = max(0.0, self.served - self.now - warp_ns) + n * o.serve_ns
            tiles = (self.queued() if n else 0) + sum(-(-int(self.work.items[t]) // o.child) for t in sites[:n])
            queued_ns = tiles * (o.serve_ns if np.isnan(each) else each)
            ends.append(warp_ns + max(longest, served_ns + queued_ns) if n else longest)
        return set(sites[: ends.index(min(ends))])

    def known(self, t: int) -> float:
        """A thread's time for its items as the rule for warps knows it."""
        if not self.options.guess_ns:
            return self.alone(t)
        items, items_ns = self.done
        return float(self.work.items[t] * (items_ns / items if items else self.options.guess_ns))

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

    def launches(self, t: int, turn: int) -> bool:
        n = int(self.work.items[t])
        if self.policy in (FLAT, ALWAYS):
            return self.policy == ALWAYS
        if n < self.threshold:
            return False
        if self.policy != SPAWN:
            return True
        o, (each, warp_ns) = self.options, self.pace(t)
        tiles = self.queued() - (-n // o.child)
        if np.isnan(each):
            return tiles <= o.untried
        return o.launch_ns + (turn + 1) * o.another_ns + tiles * each < n * warp_ns
