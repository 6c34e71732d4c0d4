"""Programs with nested parallelism, as spawn events: what each parent thread would have to do, or could spawn.

After the benchmarks of SPAWN (Tang et al., HPCA 2017), of which several are dragon_li's (Wang and Yalamanchili, IISWC
2014; its repository): what is a round, a thread and an item, parents of 256 threads, children of 32, and the threshold
of 32 items from which these launch are theirs. The inputs are generated: kron_g500 and CiteSeer were there what
`kronecker` and `citation` imitate.

Times are assumed, in cycles of a K20c: an item of a graph or a join is a load that hits in L2 (200 cycles on Kepler:
Jia et al. 2018, arXiv:1804.06826, table 3.1). What matters is their ratio to the cost of a launch, an option of the
simulation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.simulate.spawning import Spawns
from tileprof.analysis.workloads.graphs import Graph, citation, kronecker
from tileprof.arrays.ragged import ragged

CYCLE_NS = 1e3 / 706
"""Cycle of a K20c."""
ITEM_NS = 200 * CYCLE_NS
BASE_NS = 1000 * CYCLE_NS
"""Five dependent loads and a prefix sum: what a parent thread does before it knows its items."""
CHILD_NS = 100 * CYCLE_NS
THRESHOLD = 32


def spawns(
    name: str, rounds: Sequence[NDArray[np.int64]], item_ns: float | NDArray[np.float64] = ITEM_NS,
    base_ns: float = BASE_NS,
    child_ns: float = CHILD_NS, threshold: int = THRESHOLD, below: Sequence[NDArray[np.int64]] = (),
) -> Spawns:  # fmt: skip
    """Return a workload from the items of every round's threads; ``item_ns`` of all, or of each thread.

    ``below`` holds, for each further level, the items of every item of the level before, in order: nested children.
    """
    at = np.cumsum([0, *(len(r) for r in rounds)]).astype(np.int64)
    items = np.concatenate([np.empty(0, np.int64), *rounds, *below]).astype(np.int64)
    each = np.broadcast_to(np.asarray(item_ns, np.float64), items.shape).copy()
    first_child = None
    if below:
        # Every level's items are numbered in order, and so item i of them all is thread `at[-1] + i`.
        parents = len(items) - len(below[-1])
        first_child = np.full(len(items), -1, np.int64)
        first_child[:parents] = at[-1] + np.cumsum(items[:parents]) - items[:parents]
    return Spawns(name, at, items, each, base_ns, child_ns, threshold, first_child)


def bfs(scale: int = 14, seed: int = 0, graph: Graph | None = None) -> Spawns:
    """Return breadth-first search on `kronecker` (or a given graph), from the vertex of most edges: one round per
    level, one thread per vertex of the frontier, one item per edge.
    """
    g = graph or kronecker(scale, seed)
    visited = np.zeros(len(g.degree), np.bool_)
    frontier = np.array([int(np.argmax(g.degree))])
    rounds = []
    while len(frontier):
        visited[frontier] = True
        rounds.append(g.degree[frontier])
        neighbours = np.unique(_neighbours(g, frontier)[0])
        frontier = neighbours[~visited[neighbours]]
    return spawns("bfs", rounds)


def bfs_citation(scale: int = 14, seed: int = 0) -> Spawns:
    """Return `bfs` on `citation`."""
    return bfs(graph=citation(scale, seed))._replace(name="bfs-citation")


def sssp(scale: int = 14, seed: int = 0, graph: Graph | None = None) -> Spawns:
    """Return single-source shortest paths after Bellman and Ford, weights 1 to 100: a round relaxes the edges of all
    vertices whose distance has changed in the round before.
    """
    g = graph or kronecker(scale, seed)
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


def sssp_citation(scale: int = 14, seed: int = 0) -> Spawns:
    """Return `sssp` on `citation`."""
    return sssp(seed=seed, graph=citation(scale, seed))._replace(name="sssp-citation")


def _neighbours(
    g: Graph, frontier: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (target, place of the source in the frontier, edge) of every edge out of it."""
    owner, place = ragged(g.degree[frontier])
    edge = g.indptr[frontier][owner] + place
    return g.target[edge], owner, edge


MATCHES = 64
"""Rows that match a probing row on average."""


def join(scale: int = 14, seed: int = 0) -> Spawns:
    """Return a join of ``2 ** scale`` rows with as many, keys uniform: one thread per probing row, one item per
    matching row.
    """
    random = np.random.default_rng(seed)
    keys = max(1, (1 << scale) // MATCHES)
    return _joined("join", *random.integers(0, keys, (2, 1 << scale)))


def join_gaussian(scale: int = 14, seed: int = 0) -> Spawns:
    """Return `join` with keys from a normal distribution that spans as many keys within two deviations to
    either side.
    """
    random = np.random.default_rng(seed)
    keys = max(1, (1 << scale) // MATCHES)
    keys_of_sides = np.rint(random.normal(2 * keys, keys / 4, (2, 1 << scale))).astype(np.int64)
    return _joined("join-gaussian", *np.maximum(keys_of_sides, 0))


def _joined(name: str, probe_keys: NDArray[np.int64], build_keys: NDArray[np.int64]) -> Spawns:
    most = int(max(probe_keys.max(), build_keys.max())) + 1
    return spawns(name, [np.bincount(build_keys, minlength=most)[np.sort(probe_keys)]])


def amr(scale: int = 14, seed: int = 0, levels: int = 4) -> Spawns:
    """Return adaptive mesh refinement: in each of ``levels`` rounds, cells near a moving front refine into 32 cells
    (dragon_li's refinement), an item each; a thread a cell. The front is a random walk on a ring of ``2 ** scale``
    cells. An item computes a temperature: two divisions and a square root, assumed to take as long as three loads.
    """
    random = np.random.default_rng(seed)
    n = 1 << scale
    front, rounds = n // 2, []
    for _ in range(levels):
        front = (front + int(random.integers(-n // 16, n // 16 + 1))) % n
        away = np.abs((np.arange(n) - front + n // 2) % n - n // 2)
        refined = random.random(n) < np.exp(-away / (n / 16))
        rounds.append(np.where(refined, 32, 0).astype(np.int64))
    return spawns("amr", rounds, 3 * ITEM_NS)


def amr_nested(scale: int = 14, seed: int = 0) -> Spawns:
    """Return `amr` in one launch: cells near the front refine into 32 parts, and of these the nearer ones again, from
    the thread that computes them.
    """
    random = np.random.default_rng(seed)
    n = 1 << scale
    away = np.abs(np.arange(n) - int(random.integers(n)))
    away = np.minimum(away, n - away)
    coarse = np.where(random.random(n) < np.exp(-away / (n / 16)), 32, 0).astype(np.int64)
    nearer = np.repeat(away, coarse)
    fine = np.where(random.random(len(nearer)) < np.exp(-nearer / (n / 64)), 32, 0).astype(np.int64)
    return spawns("amr-nested", [coarse], 3 * ITEM_NS, below=[fine, np.zeros(int(fine.sum()), np.int64)])


REGION = 8
STEP_NS = 40 * CYCLE_NS
"""An iteration: four dependent instructions of nine to ten cycles each on Kepler."""


def mandelbrot(scale: int = 14, seed: int = 0, most: int = 512) -> Spawns:
    """Return the Mandelbrot set at ``2 ** scale`` points after Mariani and Silver: one thread per square of 8 by 8
    points, which is done with the border where that is of one value, and else has an item for each point inside, which
    lasts as many iterations as they take on average. The window is the set's own, moved by at most a tenth by the seed.
    """
    random = np.random.default_rng(seed)
    high = max(REGION, 1 << (scale // 2))
    wide = max(REGION, (1 << scale) // high)
    x, y = np.meshgrid(np.linspace(-2.0, 0.6, wide), np.linspace(-1.3, 1.3, high))
    steps = _escape(x + random.uniform(-0.1, 0.1) + 1j * (y + random.uniform(-0.1, 0.1)), most)
    squares = steps.reshape(high // REGION, REGION, wide // REGION, REGION).swapaxes(1, 2).reshape(-1, REGION, REGION)
    border = np.concatenate([squares[:, 0], squares[:, -1], squares[:, :, 0], squares[:, :, -1]], axis=1)
    inside = squares[:, 1:-1, 1:-1].reshape(len(squares), -1)
    items = np.where(border.min(axis=1) == border.max(axis=1), 0, inside.shape[1])
    return spawns(
        "mandelbrot",
        [items],
        (1 + inside.mean(axis=1)) * STEP_NS,
        BASE_NS + 4 * REGION * float(border.mean()) * STEP_NS,
    )


def _escape(c: NDArray[np.complex128], most: int) -> NDArray[np.int64]:
    """Return iterations until a point leaves, at most ``most``."""
    flat = c.ravel()
    z, steps = np.zeros_like(flat), np.zeros(len(flat), np.int64)
    inside = np.arange(len(flat))
    for _ in range(most):
        z[inside] = z[inside] ** 2 + flat[inside]
        inside = inside[np.abs(z[inside]) <= 2.0]
        steps[inside] += 1
        if not len(inside):
            break
    return steps.reshape(c.shape)


BENCHMARKS = (bfs, bfs_citation, sssp, sssp_citation, join, join_gaussian, amr, mandelbrot)
"""All, each as ``make(scale, seed)``."""
