"""Programs with nested parallelism, as spawn events: what each parent thread would have to do, or could spawn.

The item times are assumed: 20 ns is about an uncached load behind others of its warp; what matters is their ratio to the cost
of a launch, which is an option of the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.ranges import ragged
from tileprof.analysis.simulate.spawning import Spawns
from tileprof.analysis.workloads.graphs import Graph, power_law, rmat

ITEM_NS, BASE_NS = 20.0, 1000.0


def spawns(
    name: str, rounds: Sequence[NDArray[np.int64]], item_ns: float = ITEM_NS, base_ns: float = BASE_NS
) -> Spawns:
    """A workload from the items of every round's threads."""
    at = np.cumsum([0, *(len(r) for r in rounds)]).astype(np.int64)
    return Spawns(name, at, np.concatenate([np.empty(0, np.int64), *rounds]).astype(np.int64), item_ns, base_ns)


def bfs(scale: int = 14, seed: int = 0, graph: Graph | None = None) -> Spawns:
    """Breadth-first search on R-MAT (or a given graph), from the vertex of most edges: a round a level, a thread a vertex of the
    frontier, an item an edge.
    """
    g = graph or rmat(scale, seed=seed)
    seen = np.zeros(len(g.degree), np.bool_)
    frontier = np.array([int(np.argmax(g.degree))])
    rounds = []
    while len(frontier):
        seen[frontier] = True
        rounds.append(g.degree[frontier])
        found = np.unique(_neighbours(g, frontier)[0])
        frontier = found[~seen[found]]
    return spawns("bfs", rounds)


def sssp(scale: int = 14, seed: int = 0, graph: Graph | None = None) -> Spawns:
    """Single-source shortest paths after Bellman and Ford, weights 1 to 100: a round relaxes the edges of all vertices whose distance has
    changed in the round before.
    """
    g = graph or rmat(scale, seed=seed)
    weight = np.random.default_rng(seed + 1).integers(1, 101, len(g.target))
    distance = np.full(len(g.degree), np.iinfo(np.int64).max)
    frontier = np.array([int(np.argmax(g.degree))])
    distance[frontier] = 0
    rounds = []
    while len(frontier):
        rounds.append(g.degree[frontier])
        target, owner, edge = _neighbours(g, frontier)
        before = distance.copy()
        np.minimum.at(distance, target, before[frontier][owner] + weight[edge])
        frontier = np.flatnonzero(distance < before)
    return spawns("sssp", rounds)


def _neighbours(
    g: Graph, frontier: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(target, place of the source in the frontier, edge) of every edge out of it."""
    owner, place = ragged(g.degree[frontier])
    edge = g.indptr[frontier][owner] + place
    return g.target[edge], owner, edge


def join(scale: int = 14, seed: int = 0) -> Spawns:
    """A join whose keys follow a power law: a thread a probing row, an item a matching row."""
    return spawns("join", [power_law(1 << scale, 8, exponent=2.0, seed=seed).degree])


def amr(scale: int = 14, seed: int = 0, levels: int = 4) -> Spawns:
    """Adaptive mesh refinement: in every round, cells near a moving front refine; a thread a cell, 64 items for a refined one, 512 at the front
    itself. The front is a random walk on a ring of ``2 ** scale`` cells.
    """
    random = np.random.default_rng(seed)
    n = 1 << scale
    front, rounds = n // 2, []
    for _ in range(levels):
        front = (front + int(random.integers(-n // 16, n // 16 + 1))) % n
        away = np.abs((np.arange(n) - front + n // 2) % n - n // 2)
        refined = random.random(n) < np.exp(-away / (n / 64))
        rounds.append(np.where(away < n // 512, 512, np.where(refined, 64, 0)).astype(np.int64))
    return spawns("amr", rounds)


def mandelbrot(scale: int = 14, seed: int = 0, most: int = 2048) -> Spawns:
    """Escape times of the Mandelbrot set at ``2 ** scale`` points: a thread a point, an item an iteration. The window is
    the set's own, moved by at most a tenth by the seed.
    """
    random = np.random.default_rng(seed)
    side = 1 << (scale // 2)
    x, y = np.meshgrid(np.linspace(-2.0, 0.6, side), np.linspace(-1.3, 1.3, (1 << scale) // side))
    c = (x + random.uniform(-0.1, 0.1) + 1j * (y + random.uniform(-0.1, 0.1))).ravel()
    z, steps = np.zeros_like(c), np.zeros(len(c), np.int64)
    inside = np.arange(len(c))
    for _ in range(most):
        z[inside] = z[inside] ** 2 + c[inside]
        inside = inside[np.abs(z[inside]) <= 2.0]
        steps[inside] += 1
        if not len(inside):
            break
    return spawns("mandelbrot", [steps])
