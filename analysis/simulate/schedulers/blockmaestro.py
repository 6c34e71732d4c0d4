"""``blockmaestro``: kernels launched early, their blocks held back by a hardware scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tileprof.analysis.simulate.engine.plan import READY, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option
from tileprof.analysis.simulate.schedulers.bloom import Relation, with_links

if TYPE_CHECKING:
    from tileprof.analysis.bounds.problem import Problem
    from tileprof.analysis.dependencies.graph import TileGraph


@dataclass(frozen=True)
class BlockMaestro(Options):
    """Kernels are launched while the ones before them still run, so that launch costs are hidden; a block is dispatched
    when the counter of its parents is down to zero; kernels complete in order (Abdolrashidi et al., "BlockMaestro:
    Enabling Programmer-Transparent Task-based Execution in GPU Systems", ISCA 2021).

    The paper finds dependencies by static analysis of PTX; here they are the recorded ones, except for pairs of
    launches in no regular pattern (gathers, data-dependent indices), where that analysis gives up and the whole launch
    is awaited (``static``). Tiles of launches of which one has more than ``counter`` parents wait for all tiles that
    their launch depends on, since a counter has no more values (they are launched ahead nevertheless); where a launch
    has more than ``entries`` dependencies, their lists lie in memory, and an update takes ``memory_ns`` instead of
    ``update_ns``. ``window`` 2 is a kernel and the one launched ahead of it, 4 is the most that the paper's kernel
    numbers tell apart; ``gap_ns`` (the device's launch gap) is paid from a launch's entry into the window. With
    ``priority=1`` ready tiles of the latest kernel go first (the paper's consumer priority), else those of the
    earliest.

    The paper hides launch costs; here ``gap_ns`` and ``issue_ns`` run beside the kernel before, and a host that is late
    is not hidden.

    The counter of six bits and the buffer, 896 entries of four children, are the paper's; the times are assumed.

    | rule | source | here | worth |
    |---|---|---|---|
    | dependencies | RAW of neighbours | all in the window | 0, +0.2, 0% |
    | gathers | whole kernel | the same; `static=0` | 0, 0, 0% |
    """

    name: ClassVar[str] = "blockmaestro"

    window: int = option(2, "launches under way, the running one included", least=1)
    counter: int = option(63, "most parents that a tile's counter holds")
    entries: int = option(3584, "dependencies of a launch that the buffer on the chip holds")
    update_ns: float = option(20.0, "ns from the end of a parent to a tile that waits for it")
    memory_ns: float = option(600.0, "the same for a launch whose dependencies are in memory")
    gap_ns: float | None = option(None, "ns to launch a kernel ahead; the device's launch gap by default")
    issue_ns: float | None = option(None, "ns of host time per launch; the device's figure for one thread by default")
    static: int = option(1, "1: pairs in no regular pattern wait for whole launches, 0: for recorded bytes", most=1)
    priority: int = option(0, "ready tiles that go first: 0 of the earliest launch, 1 of the latest", most=1)

    def draft(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = Draft(program.count, window=self.window, in_order=True, gate=[READY] * program.count)
        draft.gap_ns = [gap if launch else 0.0 for launch in range(program.count)]
        draft.issue_ns, draft.period_ns = program.issued(self.issue_ns), program.device.graph_issue_ns
        in_memory = [
            edges > self.entries and widest <= self.counter
            for edges, widest in zip(program.edges, program.fan_in, strict=True)
        ]
        draft.signal_ns = [self.memory_ns if slow else self.update_ns for slow in in_memory]
        if self.priority:
            draft.rank = list(range(program.count - 1, -1, -1))
        if any(in_memory):
            draft.notes.append(
                f"{sum(in_memory):,} launches have their dependencies in memory: more than {self.entries:,}."
            )
        return draft

    def rewired(self, graph: TileGraph, p: Problem) -> tuple[Problem, list[str]]:
        """Return the problem with every tile behind all tiles that its launch depends on, where counters would overflow
        or the analysis gives up.
        """
        widest = np.array([int(np.diff(b.indptr).max(initial=0)) for b in graph.blocks], np.int64)
        names = ("producer", "consumer", "block")
        producer, consumer, block = (graph.links[name].to_numpy(np.int64) for name in names)
        inside = np.isin(producer, p.launch) & np.isin(consumer, p.launch)
        place = np.searchsorted(p.launch, consumer[inside])
        fan_in = np.bincount(place, widest[block[inside]], len(p.launch))
        coarse = np.flatnonzero(fan_in > self.counter)
        coarse_links = np.isin(p.consumer, coarse)
        pairs = set(zip(p.producer[coarse_links].tolist(), p.consumer[coarse_links].tolist(), strict=True))
        unknown = _irregular(graph, p) if self.static else set()
        notes = []
        if len(coarse):
            notes.append(
                f"{len(coarse):,} launches wait for whole launches: a tile has more than {self.counter} parents."
            )
        if unknown:
            notes.append(
                f"{len(unknown):,} pairs of launches have no map that a static analysis could find: whole "
                "launches wait."
            )
        if not pairs | unknown:
            return p, []
        tiles = np.diff(p.tile_base)
        ordered = sorted(pairs | unknown)
        relations = [_all_to_all(int(tiles[before]), int(tiles[after])) for before, after in ordered]
        return with_links(p, ordered, relations), notes


def _irregular(graph: TileGraph, p: Problem) -> set[tuple[int, int]]:
    """Return dependent pairs of launches, by place, whose tiles depend on each other in no pattern that has a name."""
    pairs = graph.pairs[graph.pairs["pattern"] == "irregular"]
    local = {launch: place for place, launch in enumerate(p.launch.tolist())}
    rows = zip(pairs["producer"].tolist(), pairs["consumer"].tolist(), strict=True)
    return {(local[a], local[b]) for a, b in rows if a in local and b in local}


def _all_to_all(producers: int, consumers: int) -> Relation:
    return np.zeros(consumers, np.int32), np.array([0, producers], np.int64), np.arange(producers, dtype=np.int32)
