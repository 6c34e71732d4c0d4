"""Random graphs of tiles, and policies on random devices whose residency is mutated."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.support.policies.graphs import Relation, graph_of
from tests.support.policies.mutants import Tally, exact_policy, harmful, residency_mutants
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.devices import get, occupancy
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.synthesis.stage_choice import stage_of
from tileprof.policy.verification.operand_guard import guard_of


def random_graph(dice: random.Random) -> TileGraph:
    grids = [(dice.randint(1, 5), dice.randint(1, 3), dice.choice([1, 1, 2])) for _ in range(dice.randint(2, 4))]
    tiles = [x * y * z for x, y, z in grids]
    relation: Relation = {}
    for consumer in range(1, len(grids)):
        for producer in range(consumer):
            if dice.random() < 0.6 or consumer == len(grids) - 1 == producer + 1:
                edges = _regular(dice, tiles[producer], tiles[consumer]) if dice.random() < 0.6 else set()
                edges |= {
                    (dice.randrange(tiles[producer]), dice.randrange(tiles[consumer]))
                    for _ in range(dice.randint(1, 6))
                }
                relation[producer, consumer] = edges
    return graph_of(grids, relation, sms=dice.randint(1, 40))


THREADS, REGISTERS, SHARED_BYTES = (
    (128, 256, 512, 1024),
    (32, 48, 64, 96, 128),
    (0, 1024, 20_000, 48_000, 70_000, 96_000),
)
"""Sizes of kernels whose blocks fit beside each other on every device that is tried, one or several per SM."""


def crowded_graph(dice: random.Random) -> tuple[TileGraph, Callable[..., TileGraph]]:
    """Return a graph whose waiting blocks fill a small device nearly or exactly, and a function that puts the same
    launches on other devices.
    """
    grids = [(dice.randint(1, 12), dice.randint(1, 4), 1) for _ in range(dice.randint(2, 4))]
    kernels = []
    while len(kernels) < len(grids):
        kernel = dice.choice(THREADS), dice.choice(REGISTERS), dice.choice(SHARED_BYTES)
        if occupancy(get("H200"), *kernel).blocks_per_sm:
            kernels.append(kernel if dice.random() < 0.7 or not kernels else kernels[0])
    tiles = [x * y * z for x, y, z in grids]
    relation: Relation = {}
    for consumer in range(1, len(grids)):
        for producer in range(consumer):
            if dice.random() < 0.5 or producer == consumer - 1:
                some = dice.sample(range(tiles[consumer]), dice.randint(1, tiles[consumer]))
                relation[producer, consumer] = {(dice.randrange(tiles[producer]), tile) for tile in some}
    on = partial(graph_of, grids, relation, kernels=kernels)
    return on(sms=dice.randint(1, 6)), on


def residency_tally(dice: random.Random, count: int, synthesised: float = 0.2) -> Tally:
    """Yield mutants of what residency relies on, over crowded graphs.

    ``synthesised`` is the share of synthesised policies; the others are exact.
    """
    tally = Tally()
    while tally.total < count:
        graph, on = crowded_graph(dice)
        launches = range(len(graph.launches))
        if dice.random() < synthesised:
            policy = synthesise(graph, launches)
            assert not harmful(policy, graph)
        else:
            stages = tuple(stage_of(graph, launch) for launch in launches)
            policy = exact_policy(graph, stages, launches, renamed=True)
            policy = replace(policy, guard={**policy.guard, **guard_of(graph, launches)})
        for kind, mutant, where in residency_mutants(policy, graph, on, dice):
            tally.add(kind, mutant, where)
    return tally


def _regular(dice: random.Random, producers: int, consumers: int) -> set[tuple[int, int]]:
    width, step = dice.randint(1, 4), dice.randint(1, 3)
    return {((c * step + k) % producers, c) for c in range(consumers) for k in range(width)}
