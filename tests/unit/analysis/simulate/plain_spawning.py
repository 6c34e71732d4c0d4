"""Child grids in plain Python, meant to be read: what `tileprof.analysis.simulate.spawning.run` must equal."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from tileprof.analysis.simulate.spawning import ALWAYS, FLAT, SPAWN, WARP, Ran, Spawning, Spawns

Event = tuple[float, int, int, Callable[[], None]]
"""When, which kind and number decide who is first, what happens. Kinds: a child tile without sites ends, a warp has
done the items without sites that it keeps, a grid arrives, a parent tile may start, a warp decides, a thread comes to a
site among its items or to their end, a warp begins with the items that it keeps.
"""
CHILD_ENDS, PART_ENDS, ARRIVES, MAY_START, DECIDES, COMES, KEEPS = range(7)


class Tile:
    """A tile that runs: its grid, None for a parent's, when it started, and warps that have not ended."""

    def __init__(self, grid: int | None, begin: float, warps: int) -> None:
        self.grid, self.begin, self.warps = grid, begin, warps


class Warp:
    """Its tile, parts that have not ended, when its threads without sites have ended, and how many of its threads do
    items with sites inline.
    """

    def __init__(self, tile: Tile, others_end: float) -> None:
        self.tile, self.parts, self.others_end, self.deep = tile, 1, others_end, 0


class Plain:
    """One run of one policy."""

    def __init__(self, work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> None:
        self.work, self.options, self.policy, self.threshold = work, options, policy, threshold
        self.told_ns = options.told_ns or options.launch_ns
        self.told_another_ns = options.told_another_ns or options.another_ns
        longest = work.item_ns if work.longest_ns is None else work.longest_ns
        self.longest_ns: dict[int | None, float] = dict(enumerate(longest.tolist()))
        self.own_ns = dict.fromkeys(range(work.round_at[-1]), work.base_ns)
        self.own_ns |= {u: work.item_ns[t] for t in range(len(work.items)) for u in self.threads_of(t)}
        if work.own_ns is not None:
            self.own_ns = dict(enumerate(work.own_ns.tolist()))
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
        self.seen, self.looked, self.reaches, self.number = 0, -np.inf, 0.0, 0
        self.done = [0, 0.0]
        """Items done inline, and their time."""
        self.due: dict[int, list[tuple[int, float]]] = {}
        """The same of a thread since it came to a site."""
        self.ran: list[tuple[float, int]] = [(0.0, 0)]
        """From when on this number of child tiles ran."""
        self.keeping: list[tuple[float, int, float, float, float, Callable[[float], None]]] = []
        """Warps that do items inline: progress at which they end, first thread, items per time alone, when they began,
        when their threads without sites end, and what happens at their end, after some time.
        """
        self.progress = self.until = self.demand = 0.0
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
                    self.starts(range(first, min(first + o.parent, end)), self.now)
                    if o.stagger_ns and parents:
                        self.reaches = self.now + o.stagger_ns
                        self.later(self.reaches, MAY_START, 0, lambda: None)
                while not parents and self.tiles and self.free and self.room >= o.child:
                    self.child_starts(self.tiles.popleft())
                if not self.events and not self.keeping:
                    break
                if self.keeping and (not self.events or self.next_end() < self.events[0][0]):
                    self.now = self.next_end()
                    self.ends_keeping()
                    continue
                self.now = self.events[0][0]
                while self.events and self.events[0][0] == self.now:
                    heapq.heappop(self.events)[3]()
        n = len(self.work.items)
        columns = [np.array([d.get(t, np.nan) for t in range(n)], np.float64) for d in (self.took, self.estimate)]
        return Ran(self.now, *columns)

    def later(self, when: float, kind: int, number: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, kind, number, what))

    def starts(self, threads: range, begin: float, grid: int | None = None) -> None:
        """A tile takes its place; its warps decide when their last thread has come to its site."""
        o = self.options
        self.free -= 1
        self.room -= o.parent if grid is None else o.child
        warps = [threads[i : i + o.warp] for i in range(0, len(threads), o.warp)]
        tile = Tile(grid, self.now, len(warps))
        if not warps:
            self.number += 1
            self.later(begin + self.longest_ns[grid], CHILD_ENDS, self.number, lambda: self.tile_ends(tile))
        for warp in warps:
            longest = max(self.own_ns[t] for t in warp)
            when = begin + max((self.own_ns[t] for t in warp if self.work.items[t]), default=longest)
            made = Warp(tile, begin + longest)
            self.later(when, DECIDES, warp[0], lambda warp=warp, made=made: self.decides(warp, made))  # type: ignore[misc]

    def part_ends(self, warp: Warp) -> None:
        warp.parts -= 1
        if warp.parts == 0:
            warp.tile.warps -= 1
            if warp.tile.warps == 0:
                self.tile_ends(warp.tile)

    def tile_ends(self, tile: Tile) -> None:
        self.free += 1
        if tile.grid is None:
            self.room += self.options.parent
            return
        life = self.now - tile.begin
        self.room += self.options.child
        self.ended += 1
        self.lived_ns += life
        self.ends.append((self.now, life))
        self.children -= 1
        self.ran.append((self.now, self.children))
        if self.children == 0:
            self.busy_ns += self.now - self.since
        self.left[tile.grid] -= 1
        if self.left[tile.grid] == 0:
            self.active.discard(tile.grid)
            self.took[tile.grid] = self.now - self.asked[tile.grid]

    def child_starts(self, grid: int) -> None:
        if self.children == 0:
            self.since = self.now
        if self.begun < 0:
            self.begun = self.now
        self.children += 1
        self.ran.append((self.now, self.children))
        child, items, place = self.options.child, int(self.work.items[grid]), self.tile[grid]
        self.tile[grid] += 1
        own = self.threads_of(grid)[place * child : min((place + 1) * child, items)]
        self.starts(own, self.now + self.work.child_ns, grid)

    def threads_of(self, t: int) -> range:
        """The threads that a thread's items are; none for items that have no items."""
        nested = self.work.first_child is not None and self.work.first_child[t] >= 0
        first = int(self.work.first_child[t]) if nested else 0
        return range(first, first + int(self.work.items[t])) if nested else range(0)

    def decides(self, threads: range, warp: Warp) -> None:
        """Its threads decide one after the other, launch together, and do the rest together."""
        o = self.options
        chosen = self.chosen(threads) if self.policy == WARP else set()
        launching: list[int] = []
        for t in threads:
            before = sum(int(self.work.items[u]) >= self.threshold for u in threads if u < t)
            if self.work.items[t] and (t in chosen if self.policy == WARP else self.launches(t, before)):
                self.launch(t, len(launching))
                launching.append(t)
        begin = self.now + (o.launch_ns + len(launching) * o.another_ns if launching else 0.0)
        for t in launching:
            self.arrives(t, begin)
        kept = [t for t in threads if self.work.items[t] and t not in launching]
        plain = [t for t in kept if not self.threads_of(t)]
        longest = max(
            (
                self.alone(t)
                + sum(self.work.together * min(self.alone(t), self.alone(other)) for other in plain if other != t)
                for t in plain
            ),
            default=0.0,
        )

        def ends(took: float = longest) -> None:
            if kept and kept[0] in plain:
                self.count(int(self.work.items[kept[0]]), took)
            self.part_ends(warp)

        def keeps() -> None:
            self.progress += (self.now - self.until) / self.slowness()
            self.until = self.now
            items_per_ns = sum(int(self.work.items[t]) for t in plain) / longest
            entry = self.progress + longest, threads[0], items_per_ns, self.now, warp.others_end, ends
            heapq.heappush(self.keeping, entry)
            self.demand += items_per_ns

        warp.deep = len(kept) - len(plain)
        for t in kept:
            if t not in plain:
                warp.parts += 1
                self.goes_on(t, self.inline(t, t == kept[0], warp), begin, warp)
        if o.issue_ns and longest:
            self.later(begin, KEEPS, threads[0], keeps)
        else:
            self.later(max(begin + longest, warp.others_end), PART_ENDS, threads[0], ends)

    def slowness(self) -> float:
        """How many times as long all items inline take as alone."""
        return max(1.0, self.demand * self.options.issue_ns)

    def next_end(self) -> float:
        return self.until + (self.keeping[0][0] - self.progress) * self.slowness()

    def ends_keeping(self) -> None:
        self.progress, first, items_per_ns, begun, others_end, ends = heapq.heappop(self.keeping)
        self.until = self.now
        self.demand = self.demand - items_per_ns if self.keeping else 0.0
        took = self.now - begun
        self.later(max(self.now, others_end), PART_ENDS, first, lambda: ends(took))

    def count(self, items: int, took: float) -> None:
        self.done = [self.done[0] + items, self.done[1] + took]

    def inline(self, t: int, timed: bool, warp: Warp) -> Iterator[tuple[float, int]]:
        """What a thread does that keeps items which have sites: for each step how long it takes, and the site behind
        it, -1 for none. Threads of a warp slow each other.
        """

        def slowed(took: float) -> float:
            return took * (1 + self.work.together * (warp.deep - 1))

        def descend(owner: int, timed: bool) -> Iterator[tuple[float, int]]:
            begin = yield 0.0, -1
            for u in self.threads_of(owner):
                yield slowed(self.own_ns[u]), -1
                if not self.work.items[u]:
                    continue
                yield 0.0, u
                if u in self.chosen(range(u, u + 1)) if self.policy == WARP else self.launches(u, 0):
                    self.launch(u, 0)
                    overhead = self.options.launch_ns + self.options.another_ns
                    self.arrives(u, self.now + overhead)
                    yield overhead, -1
                elif self.threads_of(u):
                    yield from descend(u, True)
                else:
                    took = slowed(self.alone(u))
                    self.due.setdefault(t, []).append((int(self.work.items[u]), took))
                    yield took, -1
            end = yield 0.0, -1
            if timed:
                self.due.setdefault(t, []).append((int(self.work.items[owner]), end - begin))

        return descend(t, timed)

    def goes_on(self, t: int, steps: Iterator[tuple[float, int]], when: float, warp: Warp) -> None:
        """A thread does items from a time on until one has a site."""
        site, step = -1, next(steps, None)
        while step is not None:
            took, site = step
            if site >= 0:
                break
            when += took
            try:
                step = steps.send(when)  # type: ignore[attr-defined]
            except StopIteration:
                step = None

        def comes() -> None:
            for items, took in self.due.pop(t, []):
                self.count(items, took)
            if site < 0:
                warp.deep -= 1
                self.part_ends(warp)
            else:
                self.goes_on(t, steps, self.now, warp)

        self.later(when, COMES, t, comes)

    def alone(self, t: int) -> float:
        return float(self.work.items[t] * self.work.item_ns[t])

    def launch(self, t: int, turn: int) -> None:
        own = -(-int(self.work.items[t]) // self.options.child)
        self.asked[t], self.estimate[t] = self.now, self.expected(t, turn)
        self.left[t], self.tile[t] = own, 0

    def arrives(self, t: int, when: float) -> None:
        self.served = max(when, self.served + self.options.serve_ns)
        self.later(self.served if self.options.serve_ns else when, ARRIVES, t, lambda: self.waiting.append(t))

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
        return float(self.told_ns + (turn + 1) * self.told_another_ns + (sum(self.left.values()) + own) * each)

    def chosen(self, warp: range) -> set[int]:
        """The largest sites of a warp, as many as make the later of the warp and its children end first, of these the
        ones with enough items.
        """
        o = self.options
        sites = sorted((t for t in warp if self.known(t)), key=lambda t: (-self.known(t), t))
        each, _ = self.pace(warp[0])
        ends = []
        for n in range(len(sites) + 1):
            longest = self.known(sites[n]) if n < len(sites) else 0.0
            tiles = (self.queued() if n else 0) + sum(-(-int(self.work.items[t]) // o.child) for t in sites[:n])
            queued_ns = tiles * (self.told_another_ns if np.isnan(each) else each)
            ends.append(self.told_ns + n * self.told_another_ns + max(longest, queued_ns) if n else longest)
        return {t for t in sites[: ends.index(min(ends))] if self.work.items[t] >= self.threshold}

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
        return self.told_ns + (turn + 1) * self.told_another_ns + tiles * each < n * warp_ns
