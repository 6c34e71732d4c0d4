"""Child grids in plain Python, meant to be read: what `tileprof.analysis.simulate.spawning.run` must equal where rules
know all at once and launches do not hold each other up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from tileprof.analysis.simulate.spawning import ALWAYS, BY_WARP, FLAT, SPAWN, Ran, Spawning, Spawns

Event = tuple[float, int, int, Callable[[], None]]
"""When, which kind and number decide who is first, what happens. Kinds: a child tile without sites ends, a warp has
done the items without sites that it keeps, a grid arrives, a parent tile may start, a warp decides, a warp comes to
sites among its items or to their end, a warp begins with the items that it keeps.
"""
CHILD_ENDS, PART_ENDS, ARRIVES, MAY_START, DECIDES, COMES, KEEPS = range(7)


class Tile:
    """A tile that runs: its grid, None for a parent's, when it started, and warps that have not ended."""

    def __init__(self, grid: int | None, begin: float, warps: int) -> None:
        self.grid, self.begin, self.warps = grid, begin, warps


class Warp:
    """Its tile, parts that have not ended, when its threads without sites have ended, and items that it has done
    inline since it came to a site, with their time.
    """

    def __init__(self, tile: Tile, others_end: float) -> None:
        self.tile, self.parts, self.others_end = tile, 1, others_end
        self.due: list[tuple[int, float]] = []


class Plain:
    """One run of one policy."""

    def __init__(self, work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> None:
        self.work, self.options, self.policy, self.threshold = work, options, policy, threshold
        self.assumed_first_ns = options.assumed_first_ns or options.launch_ns
        self.assumed_another_ns = options.assumed_another_ns or options.another_ns
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
        self.reaches, self.number = 0.0, 0
        self.done = [0, 0.0]
        """Items done inline, and their time."""
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
            gap_ns = o.gap_ns if self.work.gap_ns is None else self.work.gap_ns[number]
            self.now += gap_ns if number else 0.0
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
        return Ran(self.now, *columns, self.lived_ns / self.ended if self.ended else np.nan)

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
            begin += self.work.beside_ns * (self.children - 1)
            self.later(begin + self.longest_ns[grid], CHILD_ENDS, self.number, lambda: self.tile_ends(tile))
        for warp in warps:
            longest = max(self.own_ns[t] for t in warp)
            when = begin + max((self.own_ns[t] for t in warp if self.work.items[t]), default=longest)
            new_warp = Warp(tile, begin + longest)
            self.later(when, DECIDES, warp[0], lambda warp=warp, made=new_warp: self.decides(warp, made))  # type: ignore[misc]

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
        begin, launching = self.launched(list(threads))
        own_threads = [t for t in threads if self.work.items[t] and t not in launching]
        plain = [t for t in own_threads if not self.threads_of(t)]
        longest = self.longest(plain)

        def ends(took: float = longest) -> None:
            if own_threads and own_threads[0] in plain:
                self.count(int(self.work.items[own_threads[0]]), took)
            self.part_ends(warp)

        def keeps() -> None:
            self.progress += (self.now - self.until) / self.slowness()
            self.until = self.now
            items_per_ns = sum(int(self.work.items[t]) for t in plain) / longest
            entry = self.progress + longest, threads[0], items_per_ns, self.now, warp.others_end, ends
            heapq.heappush(self.keeping, entry)
            self.demand += items_per_ns

        deep = [t for t in own_threads if t not in plain]
        if deep:
            warp.parts += 1
            self.goes_on(threads[0], self.in_step(deep, deep[0] == own_threads[0], warp), begin, warp)
        if o.issue_ns and longest:
            self.later(begin, KEEPS, threads[0], keeps)
        else:
            self.later(max(begin + longest, warp.others_end), PART_ENDS, threads[0], ends)

    def launched(self, threads: list[int]) -> tuple[float, list[int]]:
        """Threads of a warp decide at a time and launch together; when they have, and which did."""
        o = self.options
        some = [t for t in threads if self.work.items[t]]
        before = [sum(int(self.work.items[u]) >= self.threshold for u in some[:i]) for i in range(len(some))]
        chosen = (
            self.chosen(threads)
            if self.policy == BY_WARP
            else {t for t, turn in zip(some, before, strict=True) if self.launches(t, turn)}
        )
        launching = [t for t in threads if t in chosen]
        for turn, t in enumerate(launching):
            self.launch(t, turn)
        begin = self.now + (o.launch_ns + len(launching) * o.another_ns if launching else 0.0)
        for t in launching:
            self.arrives(t, begin)
        return begin, launching

    def longest(self, plain: list[int], in_step: int = 0) -> float:
        """Return when the last of a warp's threads has done its items without sites, of which this many are done in
        step.
        """
        alone = {t: self.work.items[t] * self.stepped(t, in_step) for t in plain}
        beside = self.work.together
        return max(
            (alone[t] + sum(beside * min(alone[t], alone[u]) for u in plain if u != t) for t in plain), default=0.0
        )

    def stepped(self, t: int, threads: int) -> float:
        """Return an item's time where this many threads do theirs in step: the longest of a child tile, or next to
        none.
        """
        mean, longest = float(self.work.item_ns[t]), self.longest_ns[t]
        return mean if threads == 0 or longest <= mean else longest * (1 - (1 - mean / longest) ** threads)

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

    def in_step(self, owners: list[int], timed: bool, warp: Warp) -> Iterator[tuple[float, list[int]]]:
        """What a warp does whose threads keep items that have sites: for each step how long it takes, as long as the
        longest of its threads, and the sites behind it.
        """
        begin = yield 0.0, []
        for step in range(max(int(self.work.items[t]) for t in owners)):
            some = [t for t in owners if step < self.work.items[t]]
            items = [u[step] for t in some if (u := self.threads_of(t))]
            yield (
                max([self.work.item_ns[t] for t in some if not self.threads_of(t)] + [self.own_ns[u] for u in items]),
                [],
            )
            sites = [u for u in items if self.work.items[u]]
            if not sites:
                continue
            yield 0.0, sites
            ready, launching = self.launched(sites)
            inline_sites = [u for u in sites if u not in launching]
            yield ready - self.now, []
            if any(self.threads_of(u) for u in inline_sites):
                yield from self.in_step(inline_sites, True, warp)
            elif inline_sites:
                took = self.longest(inline_sites, len(inline_sites))
                warp.due.append((int(self.work.items[inline_sites[0]]), took))
                yield took, []
        end = yield 0.0, []
        if timed:
            warp.due.append((int(self.work.items[owners[0]]), end - begin))

    def goes_on(self, first: int, steps: Iterator[tuple[float, list[int]]], when: float, warp: Warp) -> None:
        """A warp does items from a time on until some have sites."""
        sites, step = [], next(steps, None)
        while step is not None:
            took, sites = step
            if sites:
                break
            when += took
            try:
                step = steps.send(when)  # type: ignore[attr-defined]
            except StopIteration:
                step = None

        def comes() -> None:
            for items, took in warp.due:
                self.count(items, took)
            warp.due = []
            if sites:
                self.goes_on(first, steps, self.now, warp)
            else:
                self.part_ends(warp)

        self.later(when, COMES, first, comes)

    def alone(self, t: int) -> float:
        return float(self.work.items[t] * self.work.item_ns[t])

    def launch(self, t: int, turn: int) -> None:
        own = -(-int(self.work.items[t]) // self.options.child)
        self.asked[t], self.estimate[t] = self.now, self.expected(t, turn)
        self.left[t], self.tile[t] = own, 0

    def arrives(self, t: int, when: float) -> None:
        self.served = max(when, self.served + self.options.serve_ns)
        self.later(self.served if self.options.serve_ns else when, ARRIVES, t, lambda: self.waiting.append(t))

    def throughput(self, t: int) -> tuple[float, float]:
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
        """Child tiles in the system."""
        return sum(self.left.values())

    def expected(self, t: int, turn: int) -> float:
        """The time of thread t's items as a grid; not a number while nothing is known."""
        o = self.options
        own = -(-int(self.work.items[t]) // o.child)
        each, _ = self.throughput(t)
        return float(
            self.assumed_first_ns + (turn + 1) * self.assumed_another_ns + (sum(self.left.values()) + own) * each
        )

    def chosen(self, warp: list[int]) -> set[int]:
        """The largest sites of a warp, as many as make the later of the warp and its children end first, of these the
        ones with enough items.
        """
        o = self.options
        sites = sorted((t for t in warp if self.known(t)), key=lambda t: (-self.known(t), t))
        each, _ = self.throughput(warp[0])
        ends = []
        for n in range(len(sites) + 1):
            longest = self.known(sites[n]) if n < len(sites) else 0.0
            tiles = (self.queued() if n else 0) + sum(-(-int(self.work.items[t]) // o.child) for t in sites[:n])
            queued_ns = tiles * (self.assumed_another_ns if np.isnan(each) else each)
            ends.append(self.assumed_first_ns + n * self.assumed_another_ns + max(longest, queued_ns) if n else longest)
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
        o, (each, warp_ns) = self.options, self.throughput(t)
        tiles = self.queued() - (-n // o.child)
        if np.isnan(each):
            return tiles <= o.untried
        return self.assumed_first_ns + (turn + 1) * self.assumed_another_ns + tiles * each < n * warp_ns
