"""The persistent kernel on a CPU, as far as its order goes: who loads what when, who has written it by then, and
whether anybody is stuck.

Every block of every cluster is four actors, as in the kernel. One awaits what reaches into the k-blocks of its part,
task by task, up to `MOST_AHEAD` tasks before the loader; that takes what has been awaited, up to ``ahead`` tasks before
the consumer. The consumer meets those of its cluster once their loads are done, and writes its share of the tile; one
posts it, at most `POST_SLOTS` tasks later. In pairs the loader awaits and the consumer posts. In which order actors
step is the test's to choose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tileprof.runtime.persistent.plan import K_BLOCK, Plan, StagePlan
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

MOST_AHEAD = 2
POST_SLOTS = 4

Actor = tuple[int, int, str]
"""Cluster, rank, and the actor's role: await, load, eat or post."""


@dataclass
class Outcome:
    early: list[str] = field(default_factory=list)
    stuck: list[Actor] = field(default_factory=list)
    done: list[int] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.early and not self.stuck


class Layout:
    """What all machines of the same stages share: where views lie in memory, which stage has to have written an element
    when a stage reads it, and the parts that tasks touch, as they are asked for.
    """

    def __init__(self, stages: tuple[StagePlan, ...]) -> None:
        operators = [stage.operator for stage in stages]
        views = [v for o in operators for v in o.views().values()]
        self.sizes = {v.tensor: max(w.elements for w in views if w.tensor == v.tensor) for v in views}
        self.at = [
            {role: view.offset + sum(np.ix_(*(s * np.arange(n) for n, s in zip(view.shape, view.strides, strict=True))))
             for role, view in o.views().items()}
            for o in operators
        ]  # fmt: skip
        self.tensor = [{role: view.tensor for role, view in o.views().items()} for o in operators]
        self.wishes, now = [], {name: np.full(n, -1) for name, n in self.sizes.items()}
        for number in range(len(operators)):
            self.wishes.append({name: now[name].copy() for name in self.tensor[number].values()})
            now[self.tensor[number]["out"]][self.at[number]["out"]] = number
        self.touched: dict[tuple[object, ...], list[Touched]] = {}

    def part(self, stage: int, role: str, part: tuple) -> Touched:
        name, places = self.tensor[stage][role], self.at[stage][role][part]
        return Touched(role, name, places, self.wishes[stage][name][places])


class Touched(NamedTuple):
    """A part of a tensor that a task touches: its places, and which stage should have written each of them last."""

    role: str
    tensor: str
    places: np.ndarray
    writers: np.ndarray


layout_of = lru_cache(maxsize=4)(Layout)


class Memory:
    """Which stage has written each element last."""

    def __init__(self, layout: Layout) -> None:
        self.last = {name: np.full(n, -1) for name, n in layout.sizes.items()}

    def right(self, part: Touched) -> bool:
        return bool((self.last[part.tensor][part.places] == part.writers).all())

    def write(self, stage: int, part: Touched) -> None:
        self.last[part.tensor][part.places] = stage


class Machine:
    def __init__(self, plan: Plan, *, ahead: int = 10**6) -> None:
        self.plan, self.ahead, self.layout = plan, ahead, layout_of(plan.stages)
        self.memory = Memory(self.layout)
        self.flags, self.posted = [0] * plan.semaphores, 0
        halos = [stage.halo(plan.split) for stage in plan.stages]
        self.taps = [halo.taps if halo else 1 for halo in halos]  # k-blocks of a slot, which are loaded at once
        self._parts: dict[tuple[int, int], tuple[int, int]] = {}
        self._waits_of: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        blocks = [(c, r) for c in range(plan.clusters) for r in range(plan.split)]
        self.first = {(c, r): int(plan.task_ptr[c]) for c, r in blocks}
        self.loading = dict(self.first)  # the loader's current task
        self.k = {b: self._part(self.first[b], b[1])[0] for b in blocks}
        self.eating = dict(self.first)  # the consumer's current task
        self.partials: set[tuple[int, int, int]] = set()
        self.awaiting = dict(self.first)  # task and k-block up to which data may be loaded
        self.next_loads = dict(self.k)
        self.posting = dict(self.first)  # the next task to post
        self.outcome = Outcome()
        asks = {"await": self._may_await, "load": self._may_load, "eat": self._may_eat, "post": self._may_post}
        self._asks = {(*b, role): (ask, b) for role, ask in asks.items() for b in blocks}
        self._of_cluster = [[a for a in self._asks if a[0] == c] for c in range(plan.clusters)]
        self._can_step = {actor: ask(block) for actor, (ask, block) in self._asks.items()}

    def run(self, choose: Callable[[list[Actor]], Actor]) -> Outcome:
        while ready := self.ready():
            self.step(choose(ready))
        places = {"await": self.awaiting, "load": self.loading, "eat": self.eating, "post": self.posting}
        self.outcome.stuck = [(*b, role) for role, at in places.items() for b in at if not self._over(b, at)]
        return self.outcome

    def ready(self) -> list[Actor]:
        return [actor for actor, can in self._can_step.items() if can]

    def step(self, actor: Actor) -> None:
        """Step one actor, and check the actors again that may be affected.

        A step changes its own cluster, except for posts and partial sums. More of these never stop an actor of another
        cluster, so only actors of the affected role that cannot step are checked.
        """
        block, partials, posted = actor[:2], len(self.partials), self.posted
        {"await": self._await, "load": self._load, "eat": self._eat, "post": self._post}[actor[2]](block)
        self._ask(self._of_cluster[actor[0]])
        if len(self.partials) > partials:
            self._ask([a for a, can in self._can_step.items() if not can and a[2] == "eat"])
        if self.posted > posted:
            self._ask([a for a, can in self._can_step.items() if not can and a[2] == "await"])

    def _ask(self, actors: list[Actor]) -> None:
        for actor in actors:
            ask, block = self._asks[actor]
            self._can_step[actor] = ask(block)

    def _part(self, task: int, rank: int) -> tuple[int, int]:
        if (task, rank) not in self._parts:
            self._parts[task, rank] = self.plan.part(task, rank) if task < len(self.plan.tasks) else (0, 0)
        return self._parts[task, rank]

    def _over(self, block, at) -> bool:
        return at[block] >= self.plan.task_ptr[block[0] + 1]

    def _waits(self, task: int, rank: int) -> list[tuple[int, int, int]]:
        """Return the waits of a block's part of k: from which k-block, for which semaphore, and for which value."""
        if (task, rank) not in self._waits_of:
            waits = self.plan.waits[self.plan.wait_ptr[task] : self.plan.wait_ptr[task + 1]].tolist()
            low = self._part(task, rank)[0]
            self._waits_of[task, rank] = [(wait[0], wait[2], wait[3]) for wait in waits if wait[1] > low]
        return self._waits_of[task, rank]

    def _may_await(self, block) -> bool:
        task = self.awaiting[block]
        if self._over(block, self.awaiting) or task - self.loading[block] > (0 if self.plan.paired else MOST_AHEAD):
            return False
        ahead = self.next_loads[block]
        return all(self.flags[semaphore] >= value for k, semaphore, value in self._waits(task, block[1]) if k <= ahead)

    def _await(self, block) -> None:
        task, high = self.awaiting[block], self._part(self.awaiting[block], block[1])[1]
        ahead = self.next_loads[block]
        self.next_loads[block] = min([high, *(k for k, *_ in self._waits(task, block[1]) if k > ahead)])
        if self.next_loads[block] >= high:
            self.awaiting[block] += 1
            self.next_loads[block] = self._part(self.awaiting[block], block[1])[0]

    def _may_load(self, block) -> bool:
        task = self.loading[block]
        if self._over(block, self.loading) or task - self.eating[block] > self.ahead:
            return False
        (low, high), k = self._part(task, block[1]), self.k[block]
        taps = self.taps[int(self.plan.tasks[task, 0])]
        last = min(high, (k // taps + 1) * taps) - 1
        return (
            low == high
            or task < self.awaiting[block]
            or (task == self.awaiting[block] and last < self.next_loads[block])
        )

    def _load(self, block) -> None:
        task, (low, high) = self.loading[block], self._part(self.loading[block], block[1])
        if low < high:
            stage, down = (int(n) for n in self.plan.tasks[task, :2])
            for part in self._loaded(stage, down, self.k[block], block[1]):
                if not self.memory.right(part):
                    self.outcome.early.append(f"stage {stage}, row tile {down}, k-block {self.k[block]}")
            self.k[block] += 1
        if self.k[block] >= high or low == high:
            self.loading[block] += 1
            self.k[block] = self._part(self.loading[block], block[1])[0]

    def _loaded(self, stage: int, down: int, k: int, rank: int) -> list[Touched]:
        """Return the activations of a k-block of a tile."""
        key = "loaded", stage, down, k, rank
        if key not in self.layout.touched:
            self.layout.touched[key] = [self.layout.part(stage, *part) for part in self._operands(stage, down, k, rank)]
        return self.layout.touched[key]

    def _operands(self, stage: int, down: int, k: int, rank: int) -> Iterator[tuple[str, tuple]]:
        operator = self.plan.stages[stage].operator
        if isinstance(operator, Gemm):
            yield "a", (self._rows(operator, down, rank), slice(k * K_BLOCK, (k + 1) * K_BLOCK))
            return
        channels, tap = divmod(k, operator.weight.shape[1] * operator.weight.shape[2])
        r, s = divmod(tap, operator.weight.shape[2])
        n, p, q = self._pixels(operator, down)
        row, column = p * operator.stride - operator.padding + r, q * operator.stride - operator.padding + s
        inside = (row >= 0) & (row < operator.x.shape[1]) & (column >= 0) & (column < operator.x.shape[2])
        yield "x", (n[inside], row[inside], column[inside], slice(channels * K_BLOCK, (channels + 1) * K_BLOCK))

    def _rows(self, operator: Gemm, down: int, rank: int) -> slice:
        """Return the rows of a tile that a block takes; without pairs, each block takes all."""
        height = operator.tile[0] // (2 if self.plan.paired else 1)
        first = down * operator.tile[0] + (rank * height if self.plan.paired else 0)
        return slice(first, first + height)

    @staticmethod
    def _pixels(operator: Conv2d, down: int):
        images, p, q, _ = operator.out.shape
        pixel = np.arange(down * operator.tile[0], min(images * p * q, (down + 1) * operator.tile[0]))
        return pixel // (p * q), pixel // q % p, pixel % q

    def _may_eat(self, block) -> bool:
        """The loads of the whole cluster are done: its blocks have met at the barrier, and each finishes by itself."""
        if self._over(block, self.eating):
            return False
        task = self.eating[block]
        if task - self.posting[block] >= POST_SLOTS:
            return False
        stage = self.plan.stages[int(self.plan.tasks[task, 0])] if task < len(self.plan.tasks) else self.plan.stages[0]
        alone = stage.abreast == self.plan.split > 1  # it has all sums of its columns
        cluster = [block] if alone else [(block[0], r) for r in range(self.plan.split)]
        if not self._partial_there(task, block[1]):
            return False
        return all(self.loading[b] > task and self.eating[b] >= task for b in cluster)

    def _partial_there(self, task: int, rank: int) -> bool:
        """Where k is cut, the later task of a tile adds the sums of the same block of the earlier task."""
        stage, tile = int(self.plan.tasks[task, 0]), int(self.plan.tasks[task, 3])
        return not self.plan.stages[stage].cut or bool(self.plan.early[task]) or (stage, tile, rank) in self.partials

    def _eat(self, block) -> None:
        task, rank = self.eating[block], block[1]
        stage, down, across, tile = (int(n) for n in self.plan.tasks[task])
        if self.plan.early[task]:
            self.partials.add((stage, tile, rank))
            self.eating[block] += 1
            return
        for part in self._finished(stage, down, across, tile, rank):
            if not self.memory.right(part):
                what = "residual" if part.role == "residual" else "written too early"
                self.outcome.early.append(f"stage {stage}, tile {tile}, {what}")
        self.memory.write(stage, part)  # the result, which comes last
        self.outcome.done.append(task)
        self.eating[block] += 1
        if self.plan.paired:
            self._post(block)

    def _finished(self, stage: int, down: int, across: int, tile: int, rank: int) -> list[Touched]:
        """Return the residual, if there is one, and the result of a block's share of a tile."""
        key = "finished", stage, tile, rank, self.plan.split
        if key not in self.layout.touched:
            operator = self.plan.stages[stage].operator
            x, y, _ = operator.place(tile)
            assert (down, across) == ((y, x) if operator.rows_along == "y" else (x, y))
            width = operator.tile[1]
            share = (0, 1) if self.plan.paired else (rank, self.plan.split)
            columns = slice(
                across * width + width * share[0] // share[1], across * width + width * (share[0] + 1) // share[1]
            )
            rows = (self._rows(operator, down, rank),) if isinstance(operator, Gemm) else self._pixels(operator, down)
            roles = [role for role in ("residual", "out") if role in self.layout.at[stage]]
            self.layout.touched[key] = [self.layout.part(stage, role, (*rows, columns)) for role in roles]
        return self.layout.touched[key]

    def _may_post(self, block) -> bool:
        return self.posting[block] < self.eating[block]

    def _post(self, block) -> None:
        task = self.posting[block]
        for semaphore in self.plan.posts[self.plan.post_ptr[task] : self.plan.post_ptr[task + 1]].tolist():
            self.flags[semaphore] += 1
            self.posted += 1
        self.posting[block] += 1


def at_random(seed: int) -> Callable[[list[Actor]], Actor]:
    return random.Random(seed).choice


def held_back(clusters: set[int]) -> Callable[[list[Actor]], Actor]:
    """Consumers of some clusters step only when no other thread can."""
    return lambda ready: min(ready, key=lambda a: (a[2] == "eat" and a[0] in clusters, a[2] == "eat", a))
