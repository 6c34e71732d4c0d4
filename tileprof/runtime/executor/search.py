"""Many executions: the orders that show errors, and what they found, in sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tileprof.policy.format import Policy
from tileprof.runtime.executor.executable import Program
from tileprof.runtime.executor.execute import Deadlock, Execution, execute
from tileprof.runtime.executor.memory import Memory, Race
from tileprof.runtime.executor.orders import PLAIN, orders, stream

_SLOTS = (1, 2, 3, 7)
"""Residency limits tried: a deadlock of held slots shows when few are left."""


@dataclass(slots=True)
class Findings:
    """``executions`` run in all; ``races`` with the order that showed each first; the first deadlock and its order."""

    policy: Policy
    executions: int = 0
    tiles: int = 0
    races: dict[tuple[str, int, int, int, int], tuple[Race, str]] = field(default_factory=dict)
    deadlock: tuple[Deadlock, str] | None = None

    @property
    def clean(self) -> bool:
        """Whether no tile read too early and no order deadlocked."""
        return not self.races and self.deadlock is None

    def add(self, execution: Execution) -> None:
        self.executions += 1
        self.tiles += len(execution.ran)
        for race in execution.races:
            key = race.hazard, race.producer, race.producer_tile, race.consumer, race.consumer_tile
            self.races.setdefault(key, (race, execution.order))
        if execution.deadlock is not None and self.deadlock is None:
            self.deadlock = execution.deadlock, execution.order

    def sentences(self, buffers: dict[int, str] | None = None, first: int = 10) -> list[str]:
        """Return what went wrong, the first few of each; ``buffers`` names buffers."""
        names = buffers or {}
        sentences = []
        for race, order in list(self.races.values())[:first]:
            buffer = names.get(race.buffer, f"buffer {race.buffer}")
            sentences.append(
                f"{race.hazard} race: {self._at(race.consumer, race.consumer_tile)} touched {race.bytes:,} bytes of "
                f"{buffer} (from byte {race.begin:,} to {race.end:,}"
                f"{', and further on' if race.bytes > race.end - race.begin else ''}) before "
                f"{self._at(race.producer, race.producer_tile)} had; order: {order}"
            )
        if len(self.races) > first:
            sentences.append(f"… and {len(self.races) - first:,} more races")
        if self.deadlock is not None:
            deadlock, order = self.deadlock
            sentences.append(f"deadlock: {deadlock.waiting:,} tiles never run; order: {order}")
            sentences += [
                f"  {self._at(m.stage, m.tile)} awaits semaphore {m.semaphore} of array {m.array}: seen {m.actual}, "
                f"expected {m.expected}"
                for m in deadlock.first[:first]
            ]
        return sentences

    def _at(self, stage: int, tile: int) -> str:
        gx, gy, _ = self.policy.stages[stage].grid
        place = f"({tile % gx}, {tile // gx % gy}, {tile // (gx * gy)})"
        return f"tile {place} of stage {stage} ({self.policy.stages[stage].name})"


def search(
    policy: Policy,
    memory: Memory | None,
    *,
    random: int = 4,
    delayed: int = 64,
    seed: int = 0,
    enough: int = 1000,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Findings:
    """Execute ``policy`` over ``memory`` in plain, random and adversarial orders, and with few slots.

    ``delayed`` tiles (a random sample, or all) are each held back as long as the policy allows: with all of them the
    answer is complete, and a policy without findings is sound on these touches. The search ends with the execution that
    brings ``enough`` races. ``progress`` is called before each execution with its number, from 1, and how many there
    are at most.
    """
    program = Program.of(policy)
    findings = Findings(policy)
    most = len(PLAIN) + random + min(delayed, program.nodes) + len(_SLOTS)
    for order in orders(program, random=random, delayed=delayed, seed=seed):
        progress(findings.executions + 1, most)
        findings.add(execute(program, order, memory))
        if findings.deadlock is not None or len(findings.races) >= enough:
            return findings
    for slots in _SLOTS:
        progress(findings.executions + 1, most)
        run = execute(program, stream(program), None, slots=slots)
        run.order = f"stage order, {slots} slots"
        findings.add(run)
    return findings
