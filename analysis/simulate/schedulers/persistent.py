"""``persistent``: one kernel for the whole program, whose workers take tiles from static lists and wait for each
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import INSIDE, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Persistent(Options):
    """A persistent kernel whose workers each have a list of tiles, fixed beforehand, and wait inside a tile for
    semaphores of those that it needs: the scheduler ``persistent`` of tileprof's own runtime
    (`tileprof.runtime.persistent`).

    Lists are dealt in launch order, each tile to the worker that is free first by the tiles' durations, as the runtime
    deals them by its model. ``signal_ns``, from a tile's end to a worker that waits for it, was measured on an H200
    inside that kernel (0.7 us: fence, atomic and poll through L2). All launches are tasks of one kernel, whose workers
    are alike and run several small tiles side by side (`tileprof.analysis.simulate.engine.state.Room.of_one_kernel`).
    Kernels that hand tiles out while they run (Cheng et al., arXiv:2512.22219) are ``persistent-dynamic``.

    | rule | source | here | worth |
    |---|---|---|---|
    | lists | dynamic (MPK) | static | +38.8, +22.8, +7.4% |
    """

    name: ClassVar[str] = "persistent"

    signal_ns: float = option(700.0, "ns from the end of a tile to a worker that waits for it")
    fetch_ns: float = option(0.0, "ns of a worker's time per tile; the lists are read ahead")

    def draft(self, program: Program) -> Draft:
        n = program.count
        return Draft(n, gate=[INSIDE] * n, overhead_ns=[self.fetch_ns] * n, signal_ns=self.signal_ns, one_kernel=True)
