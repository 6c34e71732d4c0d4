"""``inline``: a persistent kernel whose workers run a consumer tile themselves or spawn it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tileprof.analysis.bounds.problem import successors
from tileprof.analysis.simulate.engine.event_loop import Outcome, Room
from tileprof.analysis.simulate.engine.plan import READY, Draft, Plan
from tileprof.analysis.simulate.inlining import PRINTED, Inlining, run
from tileprof.analysis.simulate.scheduler import Options, Program, option
from tileprof.analysis.simulate.workers import first_begins, workers

if TYPE_CHECKING:
    from tileprof.analysis.bounds.problem import Problem


@dataclass(frozen=True)
class Inline(Options):
    """A worker whose tile ends runs the tiles that it has made ready itself, one after the other, or spawns them into
    the queue of all workers: the question of SPAWN (Tang et al., HPCA 2017) on any tile graph, see
    `tileprof.analysis.simulate.inlining`. With ``policy`` 0 the rule after that paper's decides, with 1 every tile is
    spawned, with 2 every tile is run inline by the worker of its last parent.

    A worker is as large as the largest tile and runs one at a time. ``spawn_ns``, from the end of a tile through its
    event counter to the queue, is two L2 round trips (0.35 us each: Luo et al. 2024, arXiv:2402.13499); ``fetch_ns``, a
    worker's time to take a tile from the queue, is assumed. ``reload_ns`` is what an inline tile spares because its
    input is still in its SM: 0, since nothing recorded says how much; with more the program may end before bounds that
    count on recorded lives. Tiles last as recorded: asked for another duration model, the simulator refuses.

    | rule | source | here | worth |
    |---|---|---|---|
    | tiles ahead | all in the queue | without free workers' | -0.2, +56.1, +33.8% |
    """

    name: ClassVar[str] = "inline"

    policy: int = option(
        0,
        "0: the rule decides, 1: spawn every tile, 2: run every tile inline, 3: the rule as the paper prints it",
        most=PRINTED,
    )
    spawn_ns: float = option(700.0, "ns from the end of a tile to the queue of those spawned")
    fetch_ns: float = option(100.0, "ns of a worker's time to take a tile from the queue")
    reload_ns: float = option(0.0, "ns that a tile saves if it runs inline, at most its duration")

    def draft(self, program: Program) -> Draft:
        return Draft(program.count, gate=[READY] * program.count, one_kernel=True)

    def alone(self, p: Problem, room: Room, _plan: Plan) -> tuple[Outcome, list[str]]:
        """Return every tile's times, and a sentence about how many ran inline."""
        costs = Inlining(workers(p, room), self.policy, self.spawn_ns, self.fetch_ns, self.reload_ns)
        outcome = run(p, successors(p), costs)
        first = first_begins(p, outcome.begin_ns)
        inline = f"{int(outcome.inline.sum()):,} of {p.tiles:,} tiles run inline"
        sentence = f"{inline}, by the worker of their last parent; {costs.workers:,} workers."
        fetching_ns = self.fetch_ns * float((~outcome.inline).sum())
        sm = (outcome.worker % room.sms).astype(np.int32)
        return Outcome(outcome.begin_ns, outcome.end_ns, sm, first, p.tiles, fetching_ns, 0), [sentence]
