"""``pdl``: programmatic dependent launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import GRID, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Pdl(Options):
    """A launch is dispatched when every tile of the one before it in its stream has been, and its tiles wait inside
    until that launch has ended (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization":
    griddepcontrol).

    Blocks trigger at their entry, or after a share ``trigger`` of their work, or with ``recorded=1`` where the last
    bytes that the next launch needs are written as recorded (at the end where that is unknown). Since all that is
    dispatched early waits for the end of the launch before, triggers at entry are safe; a later one keeps slots free
    that waiting tiles would hold. `tileprof.analysis.simulate.triggers` says for each pair what a trigger and a
    prologue are worth. A tile waits where its recorded accesses first need what an earlier launch touched
    (``prologue``: another share of its work, the same for all), at its entry where that is unknown, and at its end
    where it needs nothing, since the launch after it counts on that. ``signal_ns``, from the end of the launch to the
    waiting tiles, is assumed, not measured. ``issue_ns`` as in ``stream``.

    | rule | source | here | worth |
    |---|---|---|---|
    | trigger | at a block's end | at its entry | +0.4, 0, +0.2% |
    | wait | where the kernel says | where bytes are needed | +5.8, 0, +0.5% |
    """

    name: ClassVar[str] = "pdl"

    gap_ns: float = option(0.0, "ns from the trigger to the dispatch")
    signal_ns: float = option(500.0, "ns from the end of a launch to tiles that wait for it")
    issue_ns: float | None = option(None, "ns of host time per launch; the device's figure for one thread by default")
    prologue: float | None = option(None, "share of a tile's work before it waits; as recorded by default", most=1.0)
    trigger: float = option(0.0, "share of a tile's work before it triggers, 0: at entry", most=1.0)
    recorded: int = option(0, "1: triggers where the last bytes that the next launch needs are written", most=1)

    def draft(self, program: Program) -> Draft:
        draft = Draft(
            program.count,
            signal_ns=self.signal_ns,
            issue_ns=program.issued(self.issue_ns),
            period_ns=program.device.graph_issue_ns,
        )
        early = []
        unsafe = 0
        stream = program.launches["stream"].tolist()
        for launch, before in enumerate(program.stream_predecessor()):
            draft.gap_ns[launch] = self.gap_ns
            if before < 0:
                draft.after[launch] = program.all_parents(launch)
                continue
            draft.after[launch] = {p for p in program.all_parents(launch) if stream[p] != stream[launch]}
            draft.started[launch] = {before}
            draft.gate[launch], draft.waits_for[launch] = GRID, before
            draft.prologue[launch] = self.prologue_of(program, launch)
            unsafe += draft.prologue[launch] > _safe_prologue(program, launch)
            draft.trigger[before] = program.written[launch].get(before, 0.0) if self.recorded else self.trigger
            if draft.prologue[launch] > 0:
                early.append(draft.prologue[launch])
        if early:
            draft.notes.append(
                f"{len(early):,} of {program.count:,} launches have work before they must wait, "
                f"{sum(early) / len(early):.0%} of a tile's on average. "
                "Triggering at the entry of the launch before is safe, since all wait for its end."
            )
        if unsafe:
            draft.notes.append(
                f"No valid schedule of the program as recorded: with prologue={self.prologue:g} tiles of {unsafe:,} of "
                f"{program.count:,} launches go on "
                "beyond what is known to need nothing of earlier launches. It says what kernels written so would gain."
            )
        return draft

    def prologue_of(self, program: Program, launch: int) -> float:
        """Return share of the work of a launch's tiles that needs nothing of any launch before it."""
        return _safe_prologue(program, launch) if self.prologue is None else self.prologue


def _safe_prologue(program: Program, launch: int) -> float:
    """Return the prologue as recorded; 0 where it is unknown."""
    return 0.0 if program.recycled[launch] else min(program.parents[launch].values(), default=1.0)
