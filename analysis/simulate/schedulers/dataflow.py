"""``dataflow``: tiles start when their own parents have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import READY, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option

PRODUCER, CONSUMER, CRITICAL = range(3)


@dataclass(frozen=True)
class Dataflow(Options):
    """A hardware scheduler that holds the tile graph and dispatches a thread block when its parents are done (Kuper,
    Pati and Sinclair's proposal for thread-block-level dependencies).

    ``priority`` says which ready tiles go first: 0 those of the producer, in issue order; 1 those of the consumer, the
    latest launch; 2 those of the launch with the longest path of launches behind it. With ``first=1`` the graph is
    recorded as the program runs: a launch of a kind that has not been seen yet waits for all before it, and those after
    wait for it; repeated layers then use what was stored.

    ``window`` bounds the launches under way (0: no bound); ``signal_ns`` is what the scheduler takes to see an end,
    ``gap_ns`` to begin with a launch; both default to 0, as in the proposal.

    | rule | source | here | worth |
    |---|---|---|---|
    | graph | stored at first run | known; `first=1` | +8.2, +8.7, +6.0% |
    """

    name: ClassVar[str] = "dataflow"

    window: int = option(0, "launches under way, 0: any number")
    signal_ns: float = option(0.0, "ns from the end of a parent to a tile that waits for it")
    gap_ns: float = option(0.0, "ns to begin with a launch")
    priority: int = option(PRODUCER, "0 producer, 1 consumer, 2 critical path", most=CRITICAL)
    first: int = option(0, "1: the first launch of each kind runs behind barriers", most=1)

    def draft(self, program: Program) -> Draft:
        n = program.count
        draft = Draft(n, gate=[READY] * n, gap_ns=[self.gap_ns] * n, signal_ns=self.signal_ns, window=self.window)
        if self.priority == CONSUMER:
            draft.rank = list(range(n - 1, -1, -1))
        elif self.priority == CRITICAL:
            behind = longest_behind(program)
            order = sorted(range(n), key=lambda launch: (-behind[launch], launch))
            draft.rank = _places(order)
        if self.first:
            draft.after, firsts = barriers(program)
            draft.notes.append(f"{firsts:,} of {n:,} launches are the first of their kind and run behind barriers.")
        return draft


def longest_behind(program: Program) -> list[float]:
    """Return, by launch, the ns of the longest path of dependent launches that begins with it."""
    own = program.launches["duration_ns"].tolist()
    behind = [float(ns) for ns in own]
    for launch in range(program.count - 1, -1, -1):
        for parent in program.all_parents(launch):
            behind[parent] = max(behind[parent], own[parent] + behind[launch])
    return behind


def barriers(program: Program) -> tuple[list[set[int]], int]:
    """Return ``after`` of a draft in which the first launch of each footprint runs alone, and how many these are."""
    kinds: set[int] = set()
    after: list[set[int]] = []
    barrier, since = -1, 0
    for launch, kind in enumerate(program.launches["footprint"].tolist()):
        if kind in kinds:
            after.append({barrier})
            continue
        kinds.add(kind)
        after.append(set(range(since, launch)))
        barrier, since = launch, launch
    return after, len(kinds)


def _places(order: list[int]) -> list[int]:
    places = [0] * len(order)
    for place, launch in enumerate(order):
        places[launch] = place
    return places
