"""The text of ``tileprof simulate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tileprof.analysis.bounds import ASSUMPTIONS, ROOFLINE
from tileprof.analysis.simulate.duration_models import SharedRoofline
from tileprof.analysis.times_and_counts import counted, duration, signed_percent
from tileprof.cli.text.console import plain, terminal
from tileprof.cli.text.guidance_text import percent
from tileprof.cli.text.schedule_table import MARKS, bound_names

if TYPE_CHECKING:
    from tileprof.analysis.bounds import Bounds
    from tileprof.analysis.reporting.opportunities import Opportunity
    from tileprof.analysis.simulate import Schedule, Simulator
    from tileprof.analysis.simulate.agreement import Agreement
    from tileprof.analysis.simulate.triggers import Trigger
    from tileprof.trace import Recording, Trace

_TRIGGER_COLUMNS = ("launches", "producer → consumer", "safe trigger", "prologue", "saved")
_MOST_ADVICE, _MOST_TRIGGERS = 6, 20
_COLUMNS = (
    "saved: against stream order as simulated. busy: of the GPU's slots. idle ends: time of the whole GPU left empty "
    "between the last "
    "dispatch of a launch and the first of the next. waits: slot-time held while waiting. overheads: the largest "
    "kind, summed; --json "
    "has all."
)
_TRIGGERS = (
    "safe trigger: share of a producer tile's life after its last store that the consumer needs, for a consumer that "
    "does not wait (in parentheses: when the "
    "last tile is there, from the producer's begin); one that waits (griddepcontrol.wait) may be triggered at entry. "
    "prologue: what a consumer tile does before it first "
    "needs anything that an earlier launch touched. saved: the pair, triggered at entry, against a CUDA graph. ?: no "
    "recorder saw it, so the producer's end and "
    "a wait at entry are all that is safe."
)


_MEASURED_PDL = (
    "Simulated. Where dependent launch with the wait at entry was measured on an H200, GPT-3's MLP at 16 to 256 "
    "tokens, it was slower than stream order: "
    "measure before you rely on a small gain (tests/benchmarks/simulator/bench_h200_chains.py)."
)


def wide_terminal(*, plain: bool = False) -> Console:
    """Return the terminal, at least 80 columns wide."""
    console = terminal(plain=plain)
    console.width = max(console.width, 80)
    return console


def print_standing(console: Console, trace: Trace, name: str = "") -> None:
    """Print why the trace is partial or partly conservative, or print nothing.

    ``name`` distinguishes the trace from others.
    """
    whose = f"{plain(name)}: " if name else ""
    standing = standing_of(trace)
    if not standing["complete"]:
        why = f" ({plain(standing['reason'])})" if standing["reason"] else ""
        console.print(
            Text(
                f"{whose}PARTIAL TRACE{why}: it ends before the program did. The results are for the recorded part.",
                style="bold yellow",
            )
        )
    unsure = standing["conservative_launches"]
    if unsure:
        console.print(
            Text(
                f"{whose}{unsure:,} of {counted(len(trace.launches), 'launch')} {'is' if unsure == 1 else 'are'} "
                "conservative: what they touch is a superset, so some dependencies that are "
                "kept here may not exist.",
                style="bold yellow",
            )
        )


def standing_of(trace: Recording) -> dict[str, Any]:
    """Return whether the trace is complete, the reason if it is not, and the number of conservative launches."""
    return {
        "complete": trace.complete,
        "reason": str(trace.manifest.get("reason") or ""),
        "conservative_launches": int((trace.launches["coverage"] == "conservative").sum()),
    }


def print_table(console: Console, table: Table) -> None:
    """Print a table without cutting values.

    All columns but the first are as wide as their cells, even beyond the terminal's edge; names and headers fold.
    """
    for column in table.columns[1:]:
        column.overflow = "fold"
        column.min_width = max(
            (len(line) for cell in column.cells for line in str(cell).splitlines()[1:] or [str(cell)]), default=0
        )
    console.print(table, crop=False)


def print_notes(
    console: Console,
    simulator: Simulator,
    schedules: list[Schedule],
    stream: Schedule,
    bounds: Bounds,
    agrees: Agreement | None,
) -> None:
    """Print deadlocks, the notes of the schedulers, and the assumptions behind the numbers."""
    for s in schedules:
        if s.deadlock:
            console.print(Text(f"{plain(s.scheduler)}: {s.deadlock}"))
        for note in s.notes:
            console.print(Text(f"{plain(s.scheduler)}: {note}", style="dim"))
    lines = [_COLUMNS]
    lines += [f"{mark} {name}: {ASSUMPTIONS[name]}." for mark, name in zip(MARKS, bound_names(bounds), strict=False)]
    lines += _below_the_bound(schedules, bounds)
    if bounds.listed_ns is not None and bounds.listed_reuse_ns is not None:
        least, most, reused = map(duration, (bounds.ready_ns, bounds.listed_ns, bounds.listed_reuse_ns))
        lies = f"is {most}" if least == most else f"lies between {least} and {most} (list schedule, slots as one pool)"
        recycled = "" if most == reused else f", with hazards of recycled memory at most {reused}"
        lines.append(f"The optimum of ready-gated schedules without costs {lies}{recycled}.")
    if agrees is not None:
        lines += _agreement(simulator, stream, agrees)
    lines += _without_flops(simulator)
    lines.append(
        f"{simulator.lives.says} Costs of signals, posts and checks are assumed where no source is named: "
        "tileprof.analysis.simulate.schedulers "
        "lists each scheduler's options and sources."
    )
    for line in lines:
        console.print(Text(line, style="dim"))


def _below_the_bound(schedules: list[Schedule], bounds: Bounds) -> list[str]:
    below = [s.scheduler for s in schedules if s.time_ns < bounds.bound_ns * (1 - 1e-9)]
    if not below:
        return []
    sentence = f"Simulated faster than the {bounds.binding} bound: {', '.join(map(plain, below))}."
    remedy = "Recorded durations do not model shared bandwidth and arithmetic; --durations shared-roofline does."
    return [f"{sentence} {remedy}"]


def _without_flops(simulator: Simulator) -> list[str]:
    """Return a sentence if the model of durations needs FLOPs that the trace does not have."""
    launches = simulator.graph.launches
    unknown = int((launches["flops"] <= 0).sum())
    if simulator.lives.name != SharedRoofline.name or not unknown:
        return []
    if unknown == len(launches):
        return ["The trace has no FLOPs: its launches share only DRAM bandwidth here, not arithmetic."]
    share = f"{unknown:,} of {counted(len(launches), 'launch')}"
    return [f"{share} have no FLOPs in the trace: they share only DRAM bandwidth here, not arithmetic."]


def _agreement(simulator: Simulator, stream: Schedule, agrees: Agreement) -> list[str]:
    calibrated = simulator.recorded.calibration
    lines = []
    unknown = simulator.recorded.source.count(ROOFLINE)
    if unknown:
        lines.append(
            f"The trace has no duration for {counted(unknown, 'launch')}: a roofline of the recorded device gives one."
        )
    if not agrees.launches:
        return lines
    lines.append(_agreement_sentence(agrees))
    if calibrated:
        least, most = min(calibrated.values()), max(calibrated.values())
        lines.append(
            f"Blocks of {counted(len(calibrated), 'launch')} were timed in a slower pass: their durations are "
            "scaled, by "
            f"{f'{least:.2f}' if f'{least:.2f}' == f'{most:.2f}' else f'{least:.2f} to {most:.2f}'}, so that each "
            "launch alone takes its uninstrumented time."
        )
    recorded = agrees.recorded_running_ns + agrees.recorded_between_ns
    issue_ns = simulator.machine.device.issue_ns()
    held_up = (
        f", since the simulated host takes {duration(issue_ns)} per launch, and kernels wait for it (stream:issue=0ns: "
        "a host that is far ahead)"
        if agrees.simulated_between_ns > 1.1 * agrees.recorded_between_ns
        and issue_ns * agrees.launches > 0.9 * stream.time_ns
        else ""
    )
    error = signed_percent(stream.time_ns / max(recorded, 1e-9) - 1, plus=True)
    lines.append(
        f"The program took {duration(recorded)} as recorded, {duration(stream.time_ns)} as simulated "
        f"({error}){held_up}."
    )
    if agrees.recorded_between_ns > 1.1 * agrees.simulated_between_ns:
        lines.append(
            f"No kernel ran for {duration(agrees.recorded_between_ns)} as recorded, for "
            f"{duration(agrees.simulated_between_ns)} as simulated, since the simulated host takes "
            f"{duration(issue_ns)} per launch (stream:issue=5us: a slower host)."
        )
    return lines


def _agreement_sentence(agrees: Agreement) -> str:
    constructed, free = agrees.by_construction, agrees.launches - agrees.by_construction
    if agrees.off:
        return (
            f"Stream order as simulated is more than 5% off the recorded time of {agrees.off:,} of "
            f"{counted(agrees.launches, 'launch')}, the most for "
            f"launch {agrees.worst} ({agrees.worst_off:.0%}). The simulator dispatches its tiles in another order or "
            "beside other tiles than the GPU did."
        )
    fitted = (
        f"{counted(constructed, 'launch')} by construction (tile durations are scaled so that each launch alone takes "
        "its recorded time)"
    )
    if not free:
        return f"Stream order as simulated takes the recorded time of its {fitted}."
    sentence = f"Stream order as simulated reproduces the recorded time of {counted(free, 'launch')} within 5%"
    return f"{sentence}, and of {fitted}." if constructed else f"{sentence}."


def print_triggers(console: Console, pairs: list[Trigger]) -> None:
    """Programmatic dependent launch, one row per kind of neighbours."""
    console.print(Text("\nDependent launch, pair by pair", style="bold"))
    rows = [_trigger(t) for t in pairs[:_MOST_TRIGGERS]]
    others = sum(2 + max(len(row[i]) for row in [*rows, _TRIGGER_COLUMNS]) for i in (0, 2, 3, 4))
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(_TRIGGER_COLUMNS):
        names = {"width": max(console.width - others, 12), "overflow": "ellipsis"} if i == 1 else {}
        table.add_column(name, no_wrap=True, justify="left" if i < 2 else "right", **names)  # type: ignore[arg-type]  # of two kinds
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table, crop=False)
    unknown = sum(t.prologue is None for t in pairs)
    more = f"{len(pairs) - _MOST_TRIGGERS:,} more kinds of pairs are in --json. " if len(pairs) > _MOST_TRIGGERS else ""
    of_all = f"{unknown:,} of {len(pairs):,} kinds have no recorded prologue. " if unknown else ""
    console.print(Text(more + of_all + _TRIGGERS, style="dim"))


def _trigger(t: Trigger) -> tuple[str, ...]:
    times = f" ×{t.times}" if t.times > 1 else ""  # noqa: RUF001 - the sign
    share = "?" if t.last_store is None else percent(t.last_store)
    safe = f"{share} ({duration(t.last_store_ns)})" if t.dependent else "at once"
    prologue = "?" if t.prologue is None else f"{percent(t.prologue)} ({duration(t.prologue_ns)})"
    names = " → ".join(plain(name) for name in t.names)
    return f"{t.producer} → {t.consumer}{times}", names, safe, prologue, duration(t.saves_ns)


def print_advice(console: Console, advice: list[Opportunity], page: str | None) -> None:
    """Print what to do first, with links into a page where there is one."""
    from tileprof.viz import link  # noqa: PLC0415 - heavy

    title = "\nWhat to do first" if advice else "\nNothing that could be done today saves 0.1% of the program."
    console.print(Text(title, style="bold"))
    for rank, o in enumerate(advice[:_MOST_ADVICE], 1):
        where = "the whole program"
        if o.producers:
            times = f" (×{o.times})" if o.times > 1 else ""  # noqa: RUF001 - the sign
            where = f"launches {o.producers[0]} → {o.consumers[0]}{times}: {plain(o.names[0])} → {plain(o.names[1])}"
        saves = f"{o.scheduler} saves {duration(o.saves_ns)} (at most {duration(o.bound_ns)})"
        console.print(Text(f"{rank}. {saves}: {where}"))
        console.print(Text(f"    because {o.because}; held back: {o.held_back}", style="dim"))
        if page is not None:
            pair = (o.producers[0], o.consumers[0]) if o.producers else None
            address = link(page, pair=pair, scheduler=o.scheduler.partition(":")[0])
            console.print(Text(f"    {address}", style="dim"), soft_wrap=True)
    if any(o.scheduler == "pdl" for o in advice):
        console.print(Text(_MEASURED_PDL, style="dim"))
    if advice and page is None:
        console.print(
            Text(
                "With --page FILE, or once `tileprof view` has written its page here, each line links into it.",
                style="dim",
            )
        )
