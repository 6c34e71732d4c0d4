"""``cusync``: tiles of dependent kernels wait for each other inside, through semaphores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import INSIDE, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class CuSync(Options):
    """Kernels on streams of their own; a consumer's tiles are dispatched once all tiles of the launches that it depends on have
    been (the wait kernel), hold their slots, and wait where they need a producer's bytes until its tile has posted
    (Jangda et al., "A Framework for Fine-Grained Synchronization of Dependent GPU Kernels", CGO 2024).

    Waits are exact: every tile waits for its own parents (the finest policy). ``post_ns`` lengthens every tile, ``poll_ns`` passes
    between a post and the tile that waits; both are assumed, not measured. ``window`` bounds the launches under way, since
    semaphores guard pairs of neighbours.
    """

    name: ClassVar[str] = "cusync"

    post_ns: float = option(200.0, "ns a tile needs to post and to check its semaphores")
    poll_ns: float = option(700.0, "ns from a post to a tile that polls for it")
    window: int = option(2, "launches under way, 0: any number")

    def draft(self, program: Program) -> Draft:
        n = program.count
        draft = Draft(n, gate=[INSIDE] * n, overhead_ns=[self.post_ns] * n, signal_ns=self.poll_ns, window=self.window)
        for launch in range(n):
            draft.started[launch] = program.all_parents(launch)
        return draft
