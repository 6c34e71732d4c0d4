"""Mutants of whole-model policies, and an oracle that runs them: each tile around the change is held back in turn, and
the tiles that need it must not run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.policy.format import Policy, WaitTable
from tileprof.policy.format.lowering import Waits, lower_edge
from tileprof.policy.verification.verifier import verify
from tileprof.runtime.programs.whole_policy import WholePlan

KINDS = ("drop", "drop", "shift", "lower", "raise", "edge", "alias", "order")
"""Kinds of mutants: a wait dropped; a wait for another tile's semaphore; a value lowered, or raised above the number of
posts; an edge dropped; a tile that posts another semaphore; tiles in another order, which is harmless.
"""


def mutants(policy: Policy, dice: random.Random, count: int) -> Iterator[tuple[str, int, Policy]]:
    """Yield kind, changed stage and policy of ``count`` mutants, of every kind in turn."""
    result = 0
    while result < count:
        kind = KINDS[result % len(KINDS)]
        number = dice.randrange(len(policy.edges))
        mutant = _mutant(policy, kind, number, dice)
        if mutant is not None:
            result += 1
            yield kind, policy.edges[number].consumer, mutant


def _mutant(policy: Policy, kind: str, number: int, dice: random.Random) -> Policy | None:
    edge = policy.edges[number]
    if kind == "edge":
        return replace(policy, edges=policy.edges[:number] + policy.edges[number + 1 :])
    if kind == "order":
        tiles = policy.stages[edge.consumer].tiles
        shuffled = replace(policy.stages[edge.consumer], order=tuple(dice.sample(range(tiles), tiles)))
        return replace(policy, stages=(*policy.stages[: edge.consumer], shuffled, *policy.stages[edge.consumer + 1 :]))
    waits = lower_edge(policy, number)
    if kind == "alias":
        of, count = waits.of.copy(), len(waits.posts)
        if count < 2:
            return None
        tile = dice.randrange(len(of))
        of[tile] = (of[tile] + dice.randrange(1, count)) % count
        arrays = list(policy.semaphores)
        arrays[edge.semaphores] = replace(arrays[edge.semaphores], of=tuple(of.tolist()))
        return replace(policy, semaphores=tuple(arrays))
    return _of_waits(policy, number, waits, kind, dice)


def _of_waits(policy: Policy, number: int, waits: Waits, kind: str, dice: random.Random) -> Policy | None:
    indptr, semaphore, value = waits.indptr.copy(), waits.semaphore.copy(), waits.value.copy()
    place = dice.randrange(len(semaphore))
    if kind == "drop":
        indptr -= indptr > place
        semaphore, value = np.delete(semaphore, place), np.delete(value, place)
    elif kind == "shift":
        if len(waits.posts) < 2:
            return None
        semaphore[place] = (semaphore[place] + dice.randrange(1, len(waits.posts))) % len(waits.posts)
    else:
        value[place] += dice.randint(1, 3) if kind == "raise" else -1
    table = WaitTable(tuple(indptr.tolist()), tuple(semaphore.tolist()))
    edge = replace(policy.edges[number], waits=table, value=tuple(value.tolist()))
    return replace(policy, edges=(*policy.edges[:number], edge, *policy.edges[number + 1 :]))


class Oracle:
    """Runs mutants of one plan's policy near the changed stage; no dependency is longer than ``span`` stages."""

    def __init__(self, plan: WholePlan, policy: Policy) -> None:
        self._plan, self._policy = plan, policy
        self._span = max(consumer - producer for producer, consumer in plan.needed)
        self._waits_of_edge: dict[int, Waits] = {}

    def harmful(self, policy: Policy, stage: int) -> bool:
        """Return whether a tile can run before one that it needs, or never runs.

        ``stage`` is the stage whose waits changed, or that waits for changed posts.
        """
        begin, end = max(0, stage - 2 * self._span), min(len(self._plan.tiles), stage + self._span + 1)
        starts = np.cumsum([0, *self._plan.tiles[begin:end]])
        rows = int(starts[-1]) + 1  # row n holds tile n of the window back; the last row holds none
        finished_rows = {s: np.ones((rows, self._plan.tiles[s]), bool) for s in range(begin, end)}
        for s in range(begin, end):
            tiles = np.arange(self._plan.tiles[s])
            finished_rows[s][starts[s - begin] + tiles, tiles] = False
        edges = [(n, e) for n, e in enumerate(policy.edges) if e.producer >= begin and e.consumer < end]
        for number, edge in sorted(edges, key=lambda item: item[1].consumer):
            finished_rows[edge.consumer] &= self._ready(finished_rows[edge.producer], self._lower(policy, number))
        if not all(d[-1].all() for d in finished_rows.values()):
            return True
        for (producer, consumer), (parent, child) in self._plan.needed.items():
            if (
                producer >= begin
                and consumer < end
                and finished_rows[consumer][starts[producer - begin] + parent, child].any()
            ):
                return True
        return False

    def _lower(self, policy: Policy, number: int) -> Waits:
        edge = policy.edges[number]
        same = number < len(self._policy.edges) and edge is self._policy.edges[number]
        if not same or policy.semaphores[edge.semaphores] is not self._policy.semaphores[edge.semaphores]:
            return lower_edge(policy, number)
        if number not in self._waits_of_edge:
            self._waits_of_edge[number] = lower_edge(policy, number)
        return self._waits_of_edge[number]

    @staticmethod
    def _ready(producer_rows, waits: Waits):
        post_counts = np.zeros((len(producer_rows), len(waits.posts)), np.int32)
        for column in range(producer_rows.shape[1]) if len(waits.posts) < producer_rows.shape[1] else ():
            post_counts[:, waits.of[column]] += producer_rows[:, column]
        if len(waits.posts) >= producer_rows.shape[1]:
            np.add.at(post_counts.T, waits.of, producer_rows.T)
        group, first = equal_lists(waits.indptr, (waits.semaphore, waits.value))
        ready = np.empty((len(producer_rows), len(first)), bool)
        for n, tile in enumerate(first):
            of = slice(waits.indptr[tile], waits.indptr[tile + 1])
            ready[:, n] = (post_counts[:, waits.semaphore[of]] >= waits.value[of]).all(axis=1)
        return ready[:, group]


@dataclass
class Tally:
    """Count the results of mutants by kind."""

    counts: Counter[str] = field(default_factory=Counter)
    harmful: Counter[str] = field(default_factory=Counter)
    escapes: Counter[str] = field(default_factory=Counter)
    cautious: Counter[str] = field(default_factory=Counter)

    def add(self, plan: WholePlan, count: int, seed: int = 0) -> None:
        policy, graph = plan.policy(), plan.graph()
        oracle = Oracle(plan, policy)
        for kind, stage, mutant in mutants(policy, random.Random(seed), count):
            is_refused = not verify(mutant, graph, range(len(plan.names)), excess=False).sound
            harmful = oracle.harmful(mutant, stage)
            self.counts[kind] += 1
            self.harmful[kind] += harmful
            self.escapes[kind] += harmful and not is_refused
            self.cautious[kind] += is_refused and not harmful

    def __str__(self) -> str:
        harmful, result = self.harmful.total(), self.counts.total()
        parts = ", ".join(f"{kind} {self.harmful[kind]} of {n}" for kind, n in self.counts.items())
        return (
            f"{result} mutants, {harmful} harmful ({parts}); {self.escapes.total()} of them accepted, "
            f"{self.cautious.total()} of {result - harmful} harmless refused {dict(+self.cautious) or ''}"
        )
