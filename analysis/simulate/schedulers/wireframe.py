"""``wireframe``: a task graph in hardware with room for some of its nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import READY, Draft, Nodes
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Wireframe(Options):
    """The whole program is one kernel with a task graph in memory; a hardware scheduler holds a part of the graph and
    dispatches blocks of it whose parents are done (AbdolRashidi et al., "Wireframe: Supporting Data-dependent
    Parallelism through Dependency Graph Execution in GPUs", MICRO 2017, doi:10.1145/3123939.3123976).

    ``nodes`` tiles are on the chip: they enter in issue order and leave when they end. A tile that ends notes its
    children that are not yet there in a buffer of ``pending`` tiles; where there is no room, the note goes to memory
    and the child learns of it ``spill_ns`` later. ``signal_ns`` is what an update takes. The sizes are assumed such
    that two bytes per node and four per pending update fill the 2 KB that the paper adds to the GPU. The order is issue
    order, which is the paper's level-bound order where programs are issued level by level. Being one kernel, it has one
    configuration, as in ``persistent``.

    | rule | source | here | worth |
    |---|---|---|---|
    | order | by level | of issue | 0, 0, 0% |
    """

    name: ClassVar[str] = "wireframe"

    nodes: int = option(512, "tiles in the node buffer", least=1)
    pending: int = option(256, "tiles in the buffer of pending updates")
    signal_ns: float = option(20.0, "ns from the end of a parent to a tile that waits for it")
    spill_ns: float = option(600.0, "additional ns if the update went to memory")

    def draft(self, program: Program) -> Draft:
        n = program.count
        return Draft(
            n,
            gate=[READY] * n,
            signal_ns=self.signal_ns,
            nodes=Nodes(self.nodes, self.pending, self.spill_ns),
            one_kernel=True,
        )
