"""``dataflow``: tiles start when their own parents have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import READY, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Dataflow(Options):
    """A hardware scheduler that holds the tile graph and dispatches a thread block when its parents are done, producers first
    (Kuper, Pati and Sinclair's proposal for thread-block-level dependencies).

    ``window`` bounds the launches under way (0: no bound); ``signal_ns`` is what the scheduler takes to see an end, ``gap_ns`` to
    begin with a launch; both default to 0, as in the proposal.
    """

    name: ClassVar[str] = "dataflow"

    window: int = option(0, "launches under way, 0: any number")
    signal_ns: float = option(0.0, "ns from the end of a parent to a tile that waits for it")
    gap_ns: float = option(0.0, "ns to begin with a launch")

    def draft(self, program: Program) -> Draft:
        n = program.count
        return Draft(n, gate=[READY] * n, gap_ns=[self.gap_ns] * n, signal_ns=self.signal_ns, window=self.window)
