"""``stream``: launches of a stream one after another, as an unmodified program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Stream(Options):
    """A launch begins ``gap_ns`` after the one before it in its recorded stream has ended, and after the launches of
    other streams that it depends on (CUDA C++ Programming Guide, "Streams"). ``gap_ns`` defaults to the device's launch
    gap; ``issue_ns``, the host's time per launch, to the device's for one thread: launch n is issued n times that after
    the first. With ``issue=0ns`` the host is far ahead.

    | rule | source | here | worth |
    |---|---|---|---|
    | host | not stated | time per launch | -9.4, 0, -2.1% |
    """

    name: ClassVar[str] = "stream"

    gap_ns: float | None = option(None, "ns between dependent launches")
    issue_ns: float | None = option(None, "ns of host time per launch; the device's figure for one thread by default")

    def draft(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = Draft(program.count, issue_ns=program.issued(self.issue_ns), period_ns=program.device.graph_issue_ns)
        for launch, before in enumerate(program.stream_predecessor()):
            draft.after[launch] = program.all_parents(launch) | ({before} if before >= 0 else set())
            draft.gap_ns[launch] = gap if draft.after[launch] else 0.0
        return draft
