"""``list``: what greedy list scheduling achieves when nothing but tiles costs time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import READY, Draft
from tileprof.analysis.simulate.scheduler import Options, Program


@dataclass(frozen=True)
class Listing(Options):
    """Graham's list scheduling (1966) in issue order on real SMs: no gaps, no signals, memory renamed."""

    name: ClassVar[str] = "list"
    renames: ClassVar[bool] = True

    def draft(self, program: Program) -> Draft:
        return Draft(program.count, gate=[READY] * program.count)
