"""Ranked advice: which launches, which scheduler, how much time, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tileprof.analysis.reporting.gains import direct_and_known
from tileprof.analysis.reporting.report import Report
from tileprof.analysis.simulate import SCHEDULERS, Schedule, Simulator, scheduler
from tileprof.analysis.simulate.schedulers.pdl import Pdl
from tileprof.analysis.times_and_counts import counted, duration

PAIR_SCHEDULERS = ("pdl", "cusync")
"""Schedulers that can be had today for a pair inside a CUDA graph, the least work for a programmer first. The first is
for neighbours alone.
"""

APART = "graph:dependencies=1"
"""A graph whose edges are dependencies: independent launches run side by side."""

ENOUGH = 0.9
"""The first of `PAIR_SCHEDULERS` that saves this share of what the best one saves is recommended."""

MOST_PAIRS = 24
"""Kinds of pairs that are simulated: the largest gain bounds; the rest is smaller."""


@dataclass(frozen=True, slots=True)
class Opportunity:
    """One line of advice; ``saves_ns`` over all repetitions, simulated: for the whole program against stream order, for
    a pair against the same pair in a CUDA graph.

    ``producers`` and ``consumers`` are launches (empty: the whole program); ``because`` and ``held_back`` are sentences
    with their numbers; ``bound_ns`` is what no schedule can exceed saving.
    """

    scheduler: str
    saves_ns: float
    bound_ns: float
    producers: tuple[int, ...]
    consumers: tuple[int, ...]
    names: tuple[str, str]
    because: str
    held_back: str

    @property
    def times(self) -> int:
        return len(self.producers)

    def to_json(self) -> dict[str, Any]:
        return {
            "scheduler": self.scheduler,
            "saves_ns": self.saves_ns,
            "saves_at_most_ns": self.bound_ns,
            "producers": list(self.producers),
            "consumers": list(self.consumers),
            "because": self.because,
            "held_back": self.held_back,
        }


def opportunities(report: Report, simulator: Simulator) -> list[Opportunity]:
    """Return advice from a report, the largest saving first; nothing that saves less than 0.1% of the program.

    Pairs are simulated in isolation, so the savings of different lines overlap. Pairs of conservative launches and
    pairs that only recycled memory orders are left out: what is not known is not an opportunity.
    """
    total = report.program.recorded_ns
    rows = report.groups[direct_and_known(report.groups)].head(MOST_PAIRS).to_dict("records")
    candidates = [_whole_program(report, simulator), *(pair_opportunity(row, simulator) for row in rows)]
    worth = [o for o in candidates if o is not None and o.saves_ns > 0.001 * total]
    return sorted(worth, key=lambda o: -o.saves_ns)


def _whole_program(report: Report, simulator: Simulator) -> Opportunity | None:
    if report.program.launches < 2:
        return None
    stream, graph = (simulator.run(SCHEDULERS[name]) for name in ("stream", "graph"))
    because = (
        f"no tile runs for {stream.gap_ns / stream.time_ns:.0%} of the time: "
        f"{counted(report.program.launches, 'launch')}, a gap before each"
    )
    apart = simulator.run(scheduler(APART), APART)
    if stream.time_ns - apart.time_ns > (stream.time_ns - graph.time_ns) / ENOUGH:
        graph = apart
        because += (
            f"; {simulator.narrow:.0%} of the launches fill less than half of the GPU, and some do not depend on "
            "each other"
        )
    return Opportunity(
        graph.scheduler,
        stream.time_ns - graph.time_ns,
        stream.time_ns - report.bounds.bound_ns,
        (),
        (),
        ("", ""),
        because,
        f"in such a graph it is still {graph.gap_ns / graph.time_ns:.0%}",
    )


def pair_opportunity(row: dict[Any, Any], simulator: Simulator) -> Opportunity | None:
    """Return advice on one row of `fold`: the first of `PAIR_SCHEDULERS` that is worth it; None where none saves
    anything.
    """
    middle = len(row["producers"]) // 2
    pair = [row["producers"][middle], row["consumers"][middle]]
    stream, graph = (simulator.run(SCHEDULERS[name], launches=pair) for name in ("stream", "graph"))
    # Alone, the pair does not know what else the consumer needs.
    prologue = Pdl().prologue_of(simulator.program, pair[1])
    waits = {"pdl": Pdl(prologue=prologue), "cusync": SCHEDULERS["cusync"]}
    schedules = {
        name: simulator.run(waits[name], launches=pair) for name in PAIR_SCHEDULERS if name != "pdl" or not row["apart"]
    }
    saved = {name: graph.time_ns - s.time_ns for name, s in schedules.items()}
    best = max(saved.values())
    if best <= 0:
        return None
    name = next(n for n in schedules if saved[n] >= ENOUGH * best)
    names = tuple(f"{row[f'{side}_op']} {row[f'{side}_module']}".strip() for side in ("producer", "consumer"))
    return Opportunity(
        name,
        saved[name] * row["times"],
        float(row["gain_ns"]),
        row["producers"],
        row["consumers"],
        (names[0], names[1]),
        _because(row, graph, prologue if name == "pdl" else 0.0),
        _held_back(row, schedules[name], stream),
    )


def _because(row: dict[Any, Any], graph: Schedule, prologue: float) -> str:
    partial = row["stream_waves"] - row["overlapped_waves"]
    reasons = []
    if row["early"] > 0:
        reasons.append(
            f"{row['early']:.0%} of the consumer's tiles could start {duration(row['lead_ns'])} early on average"
        )
    if prologue > 0:
        reasons.append(
            f"the consumer's tiles do {prologue:.0%} of their work before they need anything of an earlier launch"
        )
    if partial >= 0.1:
        reasons.append(
            f"{counted(row['stream_waves'], 'wave')} {'holds' if row['stream_waves'] == 1 else 'hold'} "
            f"{row['overlapped_waves']:.2g} waves of tiles"
        )
    reasons.append(f"no tile runs for {duration(graph.gap_ns)} between the two in a graph")
    return "; ".join(reasons)


def _held_back(row: dict[Any, Any], then: Schedule, stream: Schedule) -> str:
    remaining = float(row["gain_ns"]) / row["times"] - (stream.time_ns - then.time_ns)
    if remaining <= 0.1 * max(float(row["gain_ns"]) / row["times"], 1.0):
        return "next to nothing: the bound is reached"
    if row["early"] == 0:
        return f"{row['pattern']}: no tile's inputs are complete before the producer's last wave ends"
    if then.waiting_ns > 0:
        return f"tiles hold their slots for {duration(then.waiting_ns)} in sum while they wait"
    return f"{1 - row['early']:.0%} of the consumer's tiles need the producer's last wave"
