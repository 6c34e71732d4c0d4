"""What ``tileprof simulate`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tileprof.analysis.bounds import ASSUMPTIONS, ROOFLINE
from tileprof.cli.console import terminal
from tileprof.cli.report_text import duration, percent, plain

if TYPE_CHECKING:
    from tileprof.analysis.bounds import Bounds
    from tileprof.analysis.opportunities import Opportunity
    from tileprof.analysis.simulate import Schedule, Simulator
    from tileprof.analysis.simulate.agreement import Agreement
    from tileprof.analysis.simulate.triggers import Trigger

_MOST_ADVICE, _MOST_TRIGGERS = 6, 20
_READY = ("ready-gated path", "head and tail")
_COLUMNS = (
    "saved: against stream order as simulated. busy: of the GPU's slots. idle ends: time of the whole GPU left empty between the last "
    "dispatch of a launch and the first of the next. waits: slot-time held while waiting. overheads: the largest kind, summed; --json "
    "has all."
)
_TRIGGERS = (
    "safe trigger: share of a producer tile's life after its last store that the consumer needs, for a consumer that does not wait (in parentheses: when the "
    "last tile is there, from the producer's begin); one that waits (griddepcontrol.wait) may be triggered at entry. prologue: what a consumer tile does before it first "
    "needs anything that an earlier launch touched. saved: the pair, triggered at entry, against a CUDA graph. ?: no recorder saw it, so the producer's end and "
    "a wait at entry are all that is safe."
)


_MEASURED_PDL = (
    "Simulated. Where dependent launch with the wait at entry was measured on an H200, GPT-3's MLP at 16 to 256 tokens, it was slower than stream order: "
    "measure before you rely on a small gain (tests/benchmarks/bench_h200_chains.py)."
)


def wide_terminal() -> Console:
    console = terminal()
    console.width = max(console.width, 80)
    return console


def print_schedules(console: Console, schedules: list[Schedule], stream: Schedule, bounds: Bounds) -> None:
    """One row a scheduler, then the bounds."""
    table = Table(box=None, pad_edge=False)
    table.add_column("scheduler", no_wrap=True, max_width=console.width - 54)
    for name in ("time", "saved", "busy", "idle ends", "waits", "overheads"):
        table.add_column(name, justify="right", no_wrap=name != "overheads")
    for s in schedules:
        if s.deadlock:
            table.add_row(Text(plain(s.scheduler)), Text("deadlock", style="bold red"))
            continue
        kind = max(s.overheads_ns, key=s.overheads_ns.__getitem__, default="")
        most = f"{kind} {duration(s.overheads_ns[kind])}" if kind else "-"
        saved = _saved(s.time_ns, stream)
        cells = (duration(s.time_ns), saved, percent(s.busy), duration(s.boundary_ns), duration(s.waiting_ns), most)
        table.add_row(*map(Text, (plain(s.scheduler), *cells)))
    for mark, name in zip("¹²", _bound_names(bounds), strict=False):
        whose = "ready-gated" if name in _READY else "any schedule"
        table.add_row(f"bound, {whose}{mark}", duration(bounds.ns[name]), _saved(bounds.ns[name], stream), style="dim")
    console.print(table)


def _saved(ns: float, stream: Schedule) -> str:
    return f"{100 * (1 - ns / stream.time_ns):.1f}%" if stream.time_ns > 0 else "-"


def _bound_names(bounds: Bounds) -> list[str]:
    """The largest bound of any schedule, and of ready-gated ones where that is larger."""
    ready = max(_READY, key=lambda name: bounds.ns[name])
    return [bounds.binding] if bounds.ns[ready] <= bounds.bound_ns else [bounds.binding, ready]


def print_notes(
    console: Console,
    simulator: Simulator,
    schedules: list[Schedule],
    stream: Schedule,
    bounds: Bounds,
    agrees: Agreement | None,
) -> None:
    """Deadlocks, what schedulers have to say, and what every number assumes."""
    for s in schedules:
        if s.deadlock:
            console.print(Text(f"{plain(s.scheduler)}: {s.deadlock}"))
        for note in s.notes:
            console.print(Text(f"{plain(s.scheduler)}: {note}", style="dim"))
    lines = [_COLUMNS]
    lines += [f"{mark} {name}: {ASSUMPTIONS[name]}." for mark, name in zip("¹²", _bound_names(bounds), strict=False)]
    lines += _below_the_bound(schedules, bounds)
    if bounds.listed_ns is not None and bounds.listed_reuse_ns is not None:
        lines.append(
            f"The optimum of ready-gated schedules without costs lies between {duration(bounds.ready_ns)} and {duration(bounds.listed_ns)} (list "
            f"schedule), with hazards of recycled memory at most {duration(bounds.listed_reuse_ns)}."
        )
    if agrees is not None:
        lines += _agreement(simulator, stream, agrees)
    lines.append(
        f"{simulator.lives.says} Costs of signals, posts and checks are assumed where no source is named: tileprof.analysis.simulate.schedulers "
        "lists each scheduler's options and sources."
    )
    for line in lines:
        console.print(Text(line, style="dim"))


def _below_the_bound(schedules: list[Schedule], bounds: Bounds) -> list[str]:
    below = [s.scheduler for s in schedules if s.time_ns < bounds.bound_ns * (1 - 1e-9)]
    if not below:
        return []
    said = f"Simulated faster than the {bounds.binding} bound: {', '.join(map(plain, below))}."
    return [
        f"{said} Lives as recorded do not share bandwidth and arithmetic; with --durations shared-roofline they do."
    ]


def _agreement(simulator: Simulator, stream: Schedule, agrees: Agreement) -> list[str]:
    calibrated = simulator.recorded.calibration
    lines = []
    unknown = simulator.recorded.source.count(ROOFLINE)
    if unknown:
        lines.append(
            f"{unknown:,} launches have no recorded duration: they are taken to last as a roofline of the recorded device says."
        )
    if not agrees.launches:
        return lines
    if agrees.reproduced:
        lines.append(
            f"Stream order as simulated reproduces the recorded time of all {agrees.launches:,} launches within 5%."
        )
    else:
        lines.append(
            f"Stream order as simulated is more than 5% off the recorded time of {agrees.off:,} of {agrees.launches:,} launches, the most for "
            f"launch {agrees.worst} ({agrees.worst_off:.0%}): dispatched SM by SM or beside others, its tiles take another time together than they did."
        )
    if calibrated:
        least, most = min(calibrated.values()), max(calibrated.values())
        lines.append(
            f"Blocks of {len(calibrated):,} launches were timed in a slower pass: their lives are scaled, by {least:.2f} to {most:.2f}, so that each launch "
            "alone takes its uninstrumented time."
        )
    recorded = agrees.recorded_running_ns + agrees.recorded_between_ns
    said = f"Recorded were {duration(recorded)}"
    if agrees.recorded_between_ns > 1.1 * agrees.simulated_between_ns:
        said += (
            f", of which no kernel ran for {duration(agrees.recorded_between_ns)}; as simulated that is {duration(agrees.simulated_between_ns)}, for the "
            "simulated host is never late (stream:issue=5us makes it so)"
        )
    lines.append(
        f"{said}; as simulated it is {duration(stream.time_ns)} ({stream.time_ns / max(recorded, 1e-9) - 1:+.1%})."
    )
    return lines


def print_triggers(console: Console, pairs: list[Trigger]) -> None:
    """Programmatic dependent launch, one row a kind of neighbours."""
    console.print(Text("\nDependent launch, pair by pair", style="bold"))
    table = Table(box=None, pad_edge=False)
    table.add_column("launches", no_wrap=True)
    table.add_column("producer → consumer", no_wrap=True, width=console.width - 58, overflow="ellipsis")
    for name in ("safe trigger", "prologue", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    for t in pairs[:_MOST_TRIGGERS]:
        times = f" ×{t.times}" if t.times > 1 else ""  # noqa: RUF001 - the sign
        share = "?" if t.last_store is None else percent(t.last_store)
        safe = f"{share} ({duration(t.last_store_ns)})" if t.dependent else "at once"
        prologue = "?" if t.prologue is None else f"{percent(t.prologue)} ({duration(t.prologue_ns)})"
        names = " → ".join(plain(name) for name in t.names)
        table.add_row(*map(Text, (f"{t.producer} → {t.consumer}{times}", names, safe, prologue, duration(t.saves_ns))))
    console.print(table)
    unknown = sum(t.prologue is None for t in pairs)
    more = f"{len(pairs) - _MOST_TRIGGERS:,} more kinds of pairs are in --json. " if len(pairs) > _MOST_TRIGGERS else ""
    of_all = f"Of {len(pairs):,} kinds {unknown:,} have no recorded prologue. " if unknown else ""
    console.print(Text(more + of_all + _TRIGGERS, style="dim"))


def print_advice(console: Console, advice: list[Opportunity], page: str | None) -> None:
    """What to do first, with links into a page where there is one."""
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
