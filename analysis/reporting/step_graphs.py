"""Counts the iterations of a loop after which its graph of thread blocks repeats, modulo addresses.

A scheduler that stores the graph of an iteration may use it again for the next one when both launch the same kernels
with the same footprints and depend in the same way (Kuper, Pati and Sinclair ask how often that holds). Producers are
compared by their place relative to the iteration, or as the same launch, such as one that made a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.analysis.reporting.layers import loop_steps

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.blocks import EdgeBlock
    from tileprof.analysis.dependencies.graph import TileGraph

_Link = tuple[bool, int, int, str, int]
"""A flag, set if the producer is a place relative to the iteration; the producer; the consumer's place; the hazard; the
block.
"""


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """The iterations of a program's loop and what a stored graph would save.

    ``settled``: the first iteration, from 0, whose graph all later ones share; None where the last two differ.
    ``settled_renamed``: the same without dependencies of recycled memory. ``changes``: iterations whose graph is not
    that of the one before. ``first_kinds``: launches in the whole program whose footprint is seen for the first time,
    which is what a scheduler that stores graphs per kind of launch runs behind barriers (``dataflow:first=1``).
    ``reused_share``: share of the program's dependencies that end in iterations after ``settled``.
    """

    steps: int
    launches: int
    settled: int | None
    settled_renamed: int | None
    changes: int
    first_kinds: int
    reused_share: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def step_graphs(graph: TileGraph) -> StepGraphs | None:
    """Return what repeats in the loop of a program; None where most of its launches are no loop.

    Iterations run the same kernels, operators and modules; their footprints may differ, as where a cache grows.
    """
    spans = loop_steps(graph.launches) or loop_steps(graph.launches, same_footprints=False)
    if not spans:
        return None
    footprints = graph.launches["footprint"].to_numpy(np.int64)
    kinds = [footprints[first : last + 1].tobytes() for first, last in spans]
    same = [False, *(a == b for a, b in pairwise(kinds))]
    every = _alike(graph, spans, same, reuse=True)
    edges = graph.links["edges"].to_numpy(np.int64)
    settled = _first_equal_step(every)
    share = 0.0
    if settled is not None and edges.sum():
        consumer = graph.links["consumer"].to_numpy(np.int64)
        inside = (consumer > spans[settled][1]) & (consumer <= spans[-1][1])
        share = float(edges[inside].sum() / edges.sum())
    return StepGraphs(
        steps=len(spans),
        launches=spans[0][1] - spans[0][0] + 1,
        settled=settled,
        settled_renamed=_first_equal_step(_alike(graph, spans, same, reuse=False)),
        changes=len(every) - 1 - sum(every),
        first_kinds=len(np.unique(footprints)),
        reused_share=share,
    )


def _first_equal_step(same: list[bool]) -> int | None:
    """Return the first iteration of the run of equal ones that lasts to the end."""
    if not same[-1]:
        return None
    return max(n for n, equal in enumerate(same) if not equal)


def _alike(graph: TileGraph, spans: list[tuple[int, int]], same: list[bool], *, reuse: bool) -> list[bool]:
    """Return for each iteration whether it is as the one before; ``same`` says whether their footprints are."""
    relative, absolute = _links(graph, spans, reuse=reuse)
    return [
        equal
        and len(relative[n]) == len(relative[n - 1])
        and all(
            near in relative[n - 1] or far in absolute[n - 1]
            for near, far in zip(relative[n], absolute[n], strict=True)
        )
        for n, equal in enumerate(same)
    ]


def _links(
    graph: TileGraph, spans: list[tuple[int, int]], *, reuse: bool
) -> tuple[list[dict[_Link, None]], list[dict[_Link, None]]]:
    """Return the dependencies of each iteration, with producers relative to its first launch and as they are."""
    numbers: dict[bytes, int] = {}
    contents: dict[int, int] = {}
    begins = np.array([first for first, _ in spans], np.int64)
    relative: list[dict[_Link, None]] = [{} for _ in spans]
    absolute: list[dict[_Link, None]] = [{} for _ in spans]
    links = graph.links if reuse else graph.links[~graph.links["reuse"].to_numpy(bool)]
    columns = (links[name].tolist() for name in ("producer", "consumer", "hazard", "block"))
    for producer, consumer, hazard, block in zip(*columns, strict=True):
        step = int(np.searchsorted(begins, consumer, side="right")) - 1
        if step < 0 or consumer > spans[step][1]:
            continue
        if block not in contents:
            contents[block] = numbers.setdefault(_digest(graph.blocks[block]), len(numbers))
        first = spans[step][0]
        relative[step][True, producer - first, consumer - first, hazard, contents[block]] = None
        absolute[step][False, producer, consumer - first, hazard, contents[block]] = None
    return relative, absolute


def _digest(block: EdgeBlock) -> bytes:
    """Return a digest that is equal for blocks with the same edges."""
    digest = blake2b(digest_size=16)
    for column in (block.set_of, block.indptr, block.parent):
        digest.update(str(len(column)).encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()
