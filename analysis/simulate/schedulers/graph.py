"""``graph``: the program captured into a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Graph(Options):
    """Stream order with the gap between dependent nodes of a CUDA graph (CUDA C++ Programming Guide, "CUDA Graphs").

    The GPU launches nodes at the device's measured rate (`Device.graph_issue_ns`) where many are free at once. Capture
    keeps the order of the streams; with ``dependencies=1`` a node waits only for the launches that it depends on
    (through recycled memory too), as a graph does whose edges were drawn from a trace.

    | rule | source | here | worth |
    |---|---|---|---|
    | many free nodes | not stated | one per `issue_ns` | 0, 0, 0% |
    """

    name: ClassVar[str] = "graph"

    gap_ns: float | None = option(None, "ns between dependent nodes; the device's by default")
    issue_ns: float | None = option(None, "least ns between the starts of two nodes; the device's by default")
    dependencies: int = option(0, "1: edges from dependencies, 0: from stream order", most=1)

    def draft(self, program: Program) -> Draft:
        gap = program.device.graph_gap_ns if self.gap_ns is None else self.gap_ns
        period = program.device.graph_issue_ns if self.issue_ns is None else self.issue_ns
        draft = Draft(program.count, period_ns=period)
        for launch, before in enumerate(program.stream_predecessor()):
            draft.after[launch] = program.all_parents(launch)
            if not self.dependencies and before >= 0:
                draft.after[launch].add(before)
            draft.gap_ns[launch] = gap if draft.after[launch] else 0.0
        return draft
