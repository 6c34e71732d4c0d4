"""A policy in the terms of cuSync: a stage waits for one producer, and a tile for one semaphore of it.

What does not fit waits for more, never for less:

* a tile that awaits several semaphores of a producer gets coarser ones, unless its kernel may call ``wait`` for each of
them. Producer tiles that some consumer tile awaits together share a semaphore, and so do those that others await with
one of them, until no tile awaits two: the finest grouping there is with one wait per tile. Overlapping windows share
all of an axis;
* a producer whose consumers use different arrays of semaphores gets one array for all, by the same rule;
* a stage with several producers keeps the waits on the last of them. The others have to end, whole, before it is
launched: an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.arrays import I64, grids
from tileprof.arrays.ragged import owners
from tileprof.policy.format import Edge, Policy, Range, Semaphores, WaitTable
from tileprof.policy.format.expression import parse
from tileprof.policy.format.lowering import lower
from tileprof.policy.synthesis.semaphore_groupings import edge_for, groupings
from tileprof.policy.verification.relation_graph import graph_of_waits
from tileprof.policy.verification.verifier import verify

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph


@dataclass(frozen=True, slots=True)
class Expressed:
    """A policy that cuSync can express, and how it differs from the one asked for.

    ``events`` are pairs of stages of which the first ends before the second is launched; each is also an edge of
    ``policy`` (one semaphore for the whole grid), so that it can be verified. ``reasons`` are sentences for the user.
    """

    policy: Policy
    events: tuple[tuple[int, int], ...]
    reasons: tuple[str, ...]

    def inside(self) -> Policy:
        """Return the policy without the edges that events replace: what blocks on the device wait for."""
        edges = tuple(e for e in self.policy.edges if (e.producer, e.consumer) not in self.events)
        return replace(self.policy, edges=edges)

    def edge_into(self, stage: int) -> Edge | None:
        """Return the edge that a stage waits on inside its kernel."""
        return next(
            (e for e in self.policy.edges if e.consumer == stage and (e.producer, stage) not in self.events), None
        )

    def edge_from(self, stage: int) -> Edge | None:
        """Return some edge whose semaphores the tiles of a stage post; all such edges share them."""
        return next(
            (e for e in self.policy.edges if e.producer == stage and (stage, e.consumer) not in self.events), None
        )


def express(policy: Policy, *, several: bool = False) -> Expressed:
    """Return the finest policy of that form which waits for everything that ``policy`` waits for, verified.

    ``several``: a tile may wait for several semaphores of its producer, one after the other.
    """
    needs = graph_of_waits(policy)
    blocks = {
        (int(p), int(c)): needs.blocks[int(b)]
        for p, c, b in zip(needs.links["producer"], needs.links["consumer"], needs.links["block"], strict=True)
    }
    pairs, events = _one_producer(sorted(blocks))
    reasons = [_event_reason(policy, pairs, pair) for pair in events]
    replaced_pairs = set(events)
    semaphores: list[Semaphores] = []
    edges: list[Edge] = []
    for producer in sorted({p for p, _ in pairs}):
        consumers = [c for p, c in pairs if p == producer]
        own = _as_it_is(policy, producer, consumers, several=several)
        if own is None:
            own = _merged(policy, producer, [(c, blocks[producer, c]) for c in consumers])
            replaced_pairs |= {(producer, c) for c in consumers}
            reasons.append(_merge_reason(policy, producer, consumers, own[0].count))
        edges += [replace(edge, semaphores=len(semaphores)) for edge in own[1]]
        semaphores.append(own[0])
    for producer, consumer in events:
        array, edge = _whole(policy, producer, consumer)
        edges.append(replace(edge, semaphores=len(semaphores)))
        semaphores.append(array)
    expressed = replace(policy, semaphores=tuple(semaphores), edges=tuple(edges), prediction={})
    _check(expressed, replace(needs, links=needs.links[np.array([pair in replaced_pairs for pair in blocks], bool)]))
    return Expressed(expressed, tuple(events), tuple(reasons))


def _check(expressed: Policy, changed_waits: TileGraph) -> None:
    """``needed``: what the edges that were changed awaited; the others are as they were."""
    verdict = verify(replace(expressed, guard={}), changed_waits, range(len(expressed.stages)))
    if not verdict.sound:
        raise AssertionError(f"over-synchronised to less: {len(verdict.missing)} waits lost, {verdict.never}")


def _one_producer(pairs: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    last = {c: max(p for p, other in pairs if other == c) for _, c in pairs}
    return [(p, c) for p, c in pairs if last[c] == p], [(p, c) for p, c in pairs if last[c] != p]


def _as_it_is(
    policy: Policy, producer: int, consumers: Sequence[int], *, several: bool
) -> tuple[Semaphores, list[Edge]] | None:
    """Return the policy's own semaphores and waits, where cuSync can express them."""
    numbers = [n for n, e in enumerate(policy.edges) if e.producer == producer and e.consumer in consumers]
    edges = [policy.edges[n] for n in numbers]
    arrays = {edge.semaphores for edge in edges}
    if len(arrays) != 1 or len(edges) != len(consumers):
        return None
    array = policy.semaphores[arrays.pop()]
    if array.count > policy.stages[producer].tiles:
        return None
    for waits in lower(replace(policy, edges=tuple(edges))):
        too_many = not several and np.diff(waits.indptr).max(initial=0) > 1
        if too_many or (waits.value != waits.posts[waits.semaphore]).any():
            return None
    return array, edges


def _merged(policy: Policy, producer: int, needs: Sequence[tuple[int, EdgeBlock]]) -> tuple[Semaphores, list[Edge]]:
    grid = policy.stages[producer].grid
    of = _components(policy.stages[producer].tiles, [block for _, block in needs])
    by_axes = _by_axes(policy, producer, needs, int(of.max()) + 1)
    if by_axes is not None:
        return by_axes
    size = np.bincount(of)
    edges = []
    for consumer, block in needs:
        waiting = block.set_of >= 0
        semaphore = of[block.parent[block.indptr[:-1]]][block.set_of[waiting]]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(waiting)])
        table = WaitTable(tuple(ends.tolist()), tuple(semaphore.tolist()))
        edges.append(Edge(producer, consumer, ("RAW",), "table", 0, table, tuple(size[semaphore].tolist())))
    assert grid[0] * grid[1] * grid[2] == len(of)
    return Semaphores(producer, (len(size), 1, 1), tuple(of.tolist())), edges


def _components(tiles: int, blocks: Sequence[EdgeBlock]) -> I64:
    """Return ``[tiles]``: producer tiles that are awaited together, directly or through others, have one number."""
    import networkx as nx  # noqa: PLC0415 (0.2 s that only this needs)

    together = nx.utils.UnionFind(range(tiles))
    for block in blocks:
        for begin, end in zip(block.indptr[:-1].tolist(), block.indptr[1:].tolist(), strict=True):
            together.union(*block.parent[begin:end].tolist())
    root = np.array([together[tile] for tile in range(tiles)], np.int64)
    _, first, number = np.unique(root, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    renumbered: I64 = rank[number]
    return renumbered


def _by_axes(
    policy: Policy, producer: int, needs: Sequence[tuple[int, EdgeBlock]], count: int
) -> tuple[Semaphores, list[Edge]] | None:
    """Return the same semaphores as expressions of the tile's coordinates, if there are such."""
    grid = policy.stages[producer].grid
    at = grids.places(grid)
    parents = np.concatenate([at[block.parent] for _, block in needs])
    owner_of = np.concatenate([owners(b.indptr) for _, b in needs])
    for grouping in groupings(grid, parents, owner_of):
        if grouping.count != count:
            continue
        trials = [
            edge_for(block, grouping, at, grids.places(policy.stages[consumer].grid), (producer, consumer), ("RAW",))
            for consumer, block in needs
        ]
        array = trials[0][0]
        trial = replace(policy, semaphores=(array,), edges=tuple(edge for _, edge in trials))
        if all(np.diff(waits.indptr).max(initial=0) <= 1 for waits in lower(trial)):
            return array, [edge for _, edge in trials]
    return None


def _whole(policy: Policy, producer: int, consumer: int) -> tuple[Semaphores, Edge]:
    zero = parse("0", ("x", "y", "z"))
    value = parse(str(policy.stages[producer].tiles), ("x", "y", "z"))
    span = Range(zero, zero)
    edge = Edge(producer, consumer, ("RAW",), "grid", 0, (span, span, span), value)
    return Semaphores(producer, (1, 1, 1), (zero, zero, zero)), edge


def _event_reason(policy: Policy, pairs: list[tuple[int, int]], pair: tuple[int, int]) -> str:
    producer, consumer = (_label(policy, n) for n in pair)
    other = next(_label(policy, p) for p, c in pairs if c == pair[1])
    return (
        f"{consumer} depends on {producer} and on {other}, and a stage of cuSync waits for one producer: it waits for "
        "tiles of "
        f"{other}, and is launched after all of {producer} (an event)"
    )


def _merge_reason(policy: Policy, producer: int, consumers: Sequence[int], count: int) -> str:
    names = ", ".join(_label(policy, c) for c in consumers)
    kinds = ", ".join(sorted({e.kind for e in policy.edges if e.producer == producer and e.consumer in consumers}))
    total = "one for the whole grid" if count == 1 else f"{count}"
    return (
        f"{names} may await several semaphores of {_label(policy, producer)} at once ({kinds}), and a tile of cuSync "
        "waits for one: "
        f"semaphores that are awaited together are one, {total}; --several-waits keeps them and waits for one after "
        "the other"
    )


def _label(policy: Policy, number: int) -> str:
    stage = policy.stages[number]
    return stage.name if stage.launch is None else f"{stage.name} (launch {stage.launch})"
