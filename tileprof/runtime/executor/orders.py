"""Orders in which tiles run: a rank a tile; of the tiles that may run, the one of least rank runs next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.runtime.executor.executable import Program


@dataclass(frozen=True, slots=True)
class Order:
    """``rank`` ``[nodes]``, and a name for reports."""

    name: str
    rank: NDArray[np.float64]


def stream(program: Program) -> Order:
    """Return stage by stage, as blocks take tiles: what a stream would do."""
    rank = np.empty(program.nodes)
    rank[program.dispatch] = np.arange(program.nodes)
    return Order("stream", rank)


def reversed_(program: Program) -> Order:
    """Return the last tile first."""
    return Order("reversed", -stream(program).rank)


def latest_first(program: Program) -> Order:
    """Return tiles of later stages as early as they may, each stage in its own order."""
    return Order("latest stage first", stream(program).rank - 2.0 * program.nodes * program.stage_of())


def randomly(program: Program, seed: int) -> Order:
    """Return an order by random priorities of tiles, the same for the same seed."""
    return Order(f"random, seed {seed}", np.random.default_rng(seed).permutation(program.nodes).astype(np.float64))


def delaying(program: Program, node: int) -> Order:
    """Return the order in which everything that can run without one tile runs before it."""
    rank = stream(program).rank
    rank[node] = np.inf
    stage, tile = program.place(node)
    return Order(f"tile {tile} of {program.policy.stages[stage].name} last", rank)


PLAIN: Final = (stream, reversed_, latest_first)
"""Orders that take nothing but a program, in the order in which they are tried."""


def orders(program: Program, *, random: int, delayed: int, seed: int) -> Iterator[Order]:
    """Yield the orders worth trying: the plain ones, ``random`` random ones, and one for each of ``delayed`` tiles.

    With at least as many ``delayed`` as tiles each tile is delayed once, which finds every race that any order has.
    """
    for plain in PLAIN:
        yield plain(program)
    for number in range(random):
        yield randomly(program, seed + number)
    every = np.arange(program.nodes)
    if delayed < program.nodes:
        every = np.sort(np.random.default_rng(seed).choice(every, delayed, replace=False))
    for node in every.tolist():
        yield delaying(program, node)
