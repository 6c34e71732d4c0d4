"""``list``: what greedy list scheduling achieves when nothing but tiles costs time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import READY, Draft
from tileprof.analysis.simulate.scheduler import Options, Program


@dataclass(frozen=True)
class Listing(Options):
    """Graham's list scheduling (1966) on real SMs: no gaps, no signals, memory renamed. Whenever a ready tile fits on
    an SM, the first such tile in issue order begins; a tile that fits nowhere holds back none of another launch.
    """

    name: ClassVar[str] = "list"
    renames: ClassVar[bool] = True

    def draft(self, program: Program) -> Draft:
        return Draft(program.count, gate=[READY] * program.count, greedy=True)
