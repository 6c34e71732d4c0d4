"""The best waits of one pair of stages: orders of tiles first, then semaphores from coarse to fine, ranked by the
simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Final

from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.arrays.ragged import owners
from tileprof.policy.format import Edge, Policy, Semaphores
from tileprof.policy.format.tile_numbers import coordinates
from tileprof.policy.format.tile_orders import ASCENDING, axes_order, choices
from tileprof.policy.synthesis.prediction import Predictor
from tileprof.policy.synthesis.semaphore_groupings import MOST_WAITS, edge_for, groupings, hull_for, waits_of
from tileprof.policy.synthesis.stage_choice import stage_of

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph

TOLERANCE: Final = 0.001
"""Share of the pair's time that a coarser candidate may lose: below what any measurement resolves."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to wait, and the modelled time of the pair under it."""

    time_ns: float
    semaphores: Semaphores
    edge: Edge


def best_orders(
    predict: Predictor, graph: TileGraph, pair: tuple[int, int], fixed: tuple[str | None, str | None], *, renamed: bool
) -> tuple[str, str]:
    """Return axes of the producer's and of the consumer's order: those under which one wait per dependency is fastest,
    ascending where that is as fast. ``fixed`` are those that are decided already.
    """
    grids = [stage_of(graph, launch).grid for launch in pair]
    options = [choices(g) if order is None else (order,) for g, order in zip(grids, fixed, strict=True)]
    if len(options[0]) == len(options[1]) == 1:
        return options[0][0], options[1][0]
    timed = []
    for axes in product(*options):
        orders = [axes_order(grid, one) for grid, one in zip(grids, axes, strict=True)]
        custom = sum(one != ASCENDING for one in axes)
        timed.append((predict.exact_ns(pair, renamed=renamed, orders=orders), custom, axes))
    limit = min(t[0] for t in timed) * (1 + TOLERANCE)
    _, _, axes = min((t for t in timed if t[0] <= limit), key=lambda t: (t[1], t[0]))
    return axes[0], axes[1]


def best_waits(
    predict: Predictor,
    graph: TileGraph,
    pair: tuple[int, int],
    block: EdgeBlock,
    hazards: tuple[str, ...],
    orders: Sequence[str],
) -> tuple[Semaphores, Edge]:
    """Return the coarsest waits that lose no more than `TOLERANCE`, expressions before tables; the edge says why."""
    producer, consumer = (coordinates(graph, launch) for launch in pair)
    owner = owners(block.indptr)
    stages = tuple(
        replace(stage, order=None if axes == ASCENDING else axes_order(stage.grid, axes))
        for stage, axes in zip((stage_of(graph, launch) for launch in pair), orders, strict=True)
    )
    candidates: list[Candidate] = []
    for grouping in groupings(stages[0].grid, producer[block.parent], owner):
        if grouping.count > 1 and waits_of(block, grouping, producer) > MOST_WAITS:
            continue
        edges = [edge_for(block, grouping, producer, consumer, (0, 1), hazards)]
        if edges[0][1].kind == "table":
            edges += filter(None, [hull_for(block, grouping, producer, consumer, (0, 1), hazards)])
        for semaphores, edge in edges:
            time_ns = predict(Policy(stages, (semaphores,), (edge,)), pair).policy_ns
            candidates.append(Candidate(time_ns, semaphores, edge))
    limit = min(c.time_ns for c in candidates) * (1 + TOLERANCE)
    good = [c for c in candidates if c.time_ns <= limit]
    best = min(good, key=lambda c: (c.edge.kind == "table", c.semaphores.count, c.time_ns))
    return best.semaphores, replace(best.edge, reason=_reason(candidates, best, orders))


def _reason(candidates: list[Candidate], best: Candidate, orders: Sequence[str]) -> str:
    """Return what coarser and finer candidates would do to the pair, in the model."""
    count = best.semaphores.count
    words = [f"{best.edge.kind}, {count:,} semaphore{'s' if count > 1 else ''}"]
    coarser = [c.time_ns for c in candidates if c.semaphores.count < count]
    finer = [c.time_ns for c in candidates if c.semaphores.count > count]
    if coarser:
        change = 100 * (min(coarser) / best.time_ns - 1)
        words.append(f"fewer are {change:.1f}% slower" if change > 100 * TOLERANCE else "fewer would take a table")
    if finer:
        change = 100 * (1 - min(finer) / best.time_ns)
        words.append(
            "more are no faster" if change <= 0 else f"more are {change:.2f}% faster, below what is measurable"
        )
    for who, axes in zip(("producer", "consumer"), orders, strict=True):
        if axes != ASCENDING:
            words.append(f"the {who}'s tiles are taken {axes[2]} by {axes[2]}")
    return "; ".join(words)
