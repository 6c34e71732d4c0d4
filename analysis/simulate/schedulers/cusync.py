"""``cusync``: tiles of dependent kernels wait for each other inside, through semaphores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.problem import Problem
from tileprof.analysis.simulate.engine.plan import INSIDE, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option
from tileprof.arrays.ragged import group_starts, ragged

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph


@dataclass(frozen=True)
class CuSync(Options):
    """Kernels on streams of their own; a consumer's tiles are dispatched once all tiles of the launches that it depends
    on have been (the wait kernel), hold their slots, and wait there until the producer's tiles have posted (Jangda et
    al., "A Framework for Fine-Grained Synchronization of Dependent GPU Kernels", CGO 2024).

    Waits are exact: every tile waits for its own parents (the finest policy). ``inside`` 0: for all of them before it
    begins, as RowSync and our own runtime do; 1: where it needs them, as TileSync does in the main loop; 2: whichever
    of both is faster on the whole, as cuSync's users find out by timing.

    ``wait_ns`` is what each wait after a tile's first costs it even where the producer has long posted: its threads
    meet at a barrier, and loads run no further ahead. At entry a tile waits once per producer; in the main loop as
    often as there are moments at which it needs tiles of a producer that it has not awaited yet. 600 ns is the A100's,
    880 ns a V100's: what makes TileSync as much slower than RowSync as published at one token count of the GPT-3 MLP;
    at nine of the A100's ten others TileSync is then right within 1.3% (notebooks/studies/cusync_gains.py). ``post_ns``
    lengthens every tile, ``poll_ns`` passes between a post and the tile that waits: fence and atomic, and an L2 round
    trip (see `tileprof.analysis.inorder.Costs`); RowSync's published times do not tell them from 0. ``window`` bounds
    the launches under way, since semaphores guard pairs of neighbours. ``issue_ns`` as in ``stream``.

    | rule | source | here | worth |
    |---|---|---|---|
    | RowSync's wait | at entry | the faster | +13.5, +0.3, 0% |
    | TileSync's wait | in the main loop | the faster | 0, 0, 0% |
    | kernels under way | a pair | the same; `window=0` | +8.7, +8.7, 0% |
    """

    name: ClassVar[str] = "cusync"

    post_ns: float = option(200.0, "ns a tile needs to post and to check its first semaphore")
    poll_ns: float = option(700.0, "ns from a post to a tile that polls for it")
    wait_ns: float = option(600.0, "ns that each wait after the first costs a tile, whether or not it has to wait")
    issue_ns: float | None = option(None, "ns of host time per launch; the device's figure for one thread by default")
    inside: int = option(2, "0: wait for all parents at entry, 1: where bytes are needed, 2: the faster", most=2)
    window: int = option(2, "launches under way, 0: any number")

    def choices(self) -> dict[str, CuSync]:
        """Return both places to wait, where the faster is asked for."""
        ways = {"waits at entry": 0, "waits where bytes are needed": 1}
        return (
            {name: replace(self, inside=n) for name, n in ways.items()} if self.inside == 2 else {}
        )  # an option's value

    def draft(self, program: Program) -> Draft:
        n = program.count
        draft = Draft(n, gate=[INSIDE] * n, overhead_ns=[self.post_ns] * n, signal_ns=self.poll_ns, window=self.window)
        draft.issue_ns, draft.period_ns = program.issued(self.issue_ns), program.device.graph_issue_ns
        for launch in range(n):
            draft.started[launch] = program.all_parents(launch)
        return draft

    def rewired(self, graph: TileGraph, p: Problem) -> tuple[Problem, list[str]]:  # noqa: ARG002  # as others are asked
        """Return the same dependencies; tiles live longer by their waits in the loop."""
        if not self.inside:
            p = p._replace(first=np.zeros_like(p.first))
        return (_longer(p, self.wait_ns * np.maximum(stops(p) - 1, 0)) if self.wait_ns else p), []


def stops(p: Problem) -> NDArray[np.int64]:
    """Return ``[launches]`` how often a tile of a launch waits, of the tile with most.

    A tile waits once for each moment in its life at which it needs tiles of a producer that it has not awaited yet:
    several hazards with the same producer share their waits.
    """
    relations: dict[tuple[int, int], list[int]] = {}
    for producer, consumer, r in zip(p.producer.tolist(), p.consumer.tolist(), p.relation.tolist(), strict=True):
        relations.setdefault((consumer, producer), []).append(r)
    cache: dict[tuple[int, ...], int] = {}
    total = np.zeros(len(p.launch), np.int64)
    for (consumer, _), chosen in relations.items():
        key = tuple(sorted(set(chosen)))
        if key not in cache:
            cache[key] = _moments(p, key, int(p.tile_base[consumer + 1] - p.tile_base[consumer]))
        total[consumer] += cache[key]
    return total


def _moments(p: Problem, relations: tuple[int, ...], tiles: int) -> int:
    """Return moments at which the tile with most of them needs producer tiles for the first time, over all relations to
    one producer.
    """
    of_tile = np.stack([p.set_of[p.tile_at[r] : p.tile_at[r] + tiles] for r in relations], axis=1)
    sets = np.unique(of_tile, axis=0)  # tiles with the same sets wait alike
    parts = []
    for column, r in enumerate(relations):
        some = np.flatnonzero(sets[:, column] >= 0)
        begin = p.indptr[p.set_at[r] + sets[some, column]]
        counts = p.indptr[p.set_at[r] + sets[some, column] + 1] - begin
        owner, place = ragged(counts)
        entry = p.entry_at[r] + begin[owner] + place
        parts.append((some[owner], p.parent[entry], p.first[entry]))
    of, parent, first = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if not len(of):
        return 0
    order = np.lexsort((first, parent, of))
    of, parent, first = of[order], parent[order], first[order]
    earliest = group_starts(of, parent)
    moments = np.unique(of[earliest] << 32 | first[earliest].view(np.uint32))
    return int(np.bincount(moments >> 32).max())


def _longer(p: Problem, by_ns: NDArray[np.float64]) -> Problem:
    """Return lives of each launch's tiles longer by so much; shared where both were."""
    cache: dict[tuple[int, int, float], int] = {}
    parts: list[NDArray[np.float64]] = []
    begins = np.zeros(len(p.launch), np.int64)
    end = 0
    for i, key in enumerate(zip(p.ns_at.tolist(), np.diff(p.tile_base).tolist(), by_ns.tolist(), strict=True)):
        if key not in cache:
            cache[key] = end
            parts.append(p.ns[key[0] : key[0] + key[1]] + key[2])
            end += key[1]
        begins[i] = cache[key]
    return p._replace(ns=np.concatenate([*parts, np.empty(0)]), ns_at=begins)
