"""``acs-sw``: whole kernels out of order, from a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class AcsSoftware(Options):
    """Launches enter a window in order and start, each on a stream of its own, when the launches in it that they depend on have
    ended (Durvasula et al., "ACS: Concurrent Kernel Execution on Irregular, Input-Dependent Computational Graphs",
    arXiv:2401.12377, software version). All three hazards are kept, recycled memory included.

    ``window`` 32 as in the paper. ``check_ns``, the host's check of a launch's segments against the window, and ``gap_ns`` (the
    device's launch gap) delay every launch; the check is assumed, not measured.
    """

    name: ClassVar[str] = "acs-sw"

    window: int = option(32, "launches in the window", least=1)
    gap_ns: float | None = option(None, "ns from the last dependency to the begin; the device's launch gap by default")
    check_ns: float = option(500.0, "ns of host time to check a launch")

    def draft(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = Draft(program.count, window=self.window)
        for launch in range(program.count):
            draft.after[launch] = program.all_parents(launch)
            draft.gap_ns[launch] = gap if launch else 0.0
            draft.issue_ns[launch] = launch * self.check_ns
        return draft
