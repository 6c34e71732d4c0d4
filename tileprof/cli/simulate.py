"""``tileprof simulate``: what each scheduler would make of a recorded program."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from tileprof.cli import spawning
from tileprof.cli.verb import Verb
from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.analysis.bounds import Bounds, Machine
    from tileprof.analysis.opportunities import Opportunity
    from tileprof.analysis.simulate import Schedule, Simulator
    from tileprof.analysis.simulate.scheduler import Scheduler

SCHEMA, VERSION = "tileprof simulation", 1
_MOST_ADVICE = 6
_COLUMNS = (
    "saved: against stream order as simulated. busy: of the GPU's slots. idle ends: time of the whole GPU left empty between the last "
    "dispatch of a launch and the first of the next. waits: slot-time held while waiting. overheads: the largest kind, summed; --json "
    "has all."
)


def _prepare(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="folder that `tileprof record` wrote, or workload:NAME")
    parser.add_argument(
        "--scheduler", action="append", default=[], metavar="NAME[:key=value,…]", help="may be repeated (default: all)"
    )
    parser.add_argument("--device", metavar="NAME", help="another GPU, tile durations as recorded")
    parser.add_argument("--sms", type=int, metavar="N", help="a GPU with so many SMs")
    parser.add_argument(
        "--sweep",
        metavar="KEY=A:B:N",
        help="the --scheduler with an option (or sms) at N values from A to B, on all cores",
    )
    parser.add_argument("--advice", action="store_true", help="simulate dependent pairs too and say what to do first")
    parser.add_argument("--json", action="store_true", help="for programs; keys as in Schedule.to_json, with bounds")


def _run(options: Namespace) -> int:
    if options.sms is not None and options.sms < 1:
        raise UserError(f"--sms {options.sms}: a GPU has at least one SM")

    if options.trace.startswith(spawning.PREFIX):
        return spawning.run(options)
    if options.sweep is not None:
        return _sweep(options)

    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.bounds import Bounder, machine_of  # noqa: PLC0415 - likewise
    from tileprof.analysis.simulate import SCHEDULERS, Simulator, scheduler  # noqa: PLC0415 - likewise
    from tileprof.devices import get  # noqa: PLC0415 - likewise
    from tileprof.trace import load  # noqa: PLC0415 - likewise

    wanted = [(text, scheduler(text)) for text in options.scheduler or SCHEDULERS]
    trace = load(options.trace)
    machine = machine_of(trace, get(options.device) if options.device else None, options.sms or 0)
    graph = build_graph(trace)
    simulator, bounder = Simulator(graph, machine), Bounder(graph, machine)
    stream = simulator.run(SCHEDULERS["stream"])
    schedules = _schedules(simulator, wanted, all_asked=bool(options.scheduler))
    bounds = bounder.of(stream.time_ns)
    advice = None
    if options.advice:
        from tileprof.analysis.opportunities import opportunities  # noqa: PLC0415 - heavy
        from tileprof.analysis.report import build_report  # noqa: PLC0415 - heavy

        advice = opportunities(build_report(graph, machine), simulator)
    if options.json:
        answer = _json(options.trace, machine, schedules, bounds)
        if advice is not None:
            answer["opportunities"] = [o.to_json() for o in advice]
        json.dump(answer, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        _print(schedules, stream, bounds, None if bounder.replayed else _recorded_ns(trace.launches))
        if advice is not None:
            _print_advice(advice)
    return 1 if any(s.deadlock for s in schedules) else 0


def _schedules(simulator: Simulator, wanted: list[tuple[str, Scheduler]], *, all_asked: bool) -> list[Schedule]:
    """What was asked for by name must run; of the others, those that cannot are named."""
    schedules = []
    for text, chosen in wanted:
        try:
            schedules.append(simulator.run(chosen, text))
        except UserError as refused:
            if all_asked:
                raise
            print(f"tileprof: {text} is left out: {refused}", file=sys.stderr)
    return schedules


def _sweep(options: Namespace) -> int:
    from tileprof.analysis.simulate import Source, curve, sweep_of  # noqa: PLC0415 - heavy, and not needed for --help

    if not options.scheduler:
        raise UserError("--sweep needs the --scheduler to sweep, such as --scheduler streams --sweep queues=1:16:16")
    if options.advice:
        raise UserError("--sweep and --advice are two questions; ask one at a time")
    swept = sweep_of(options.sweep)
    points = curve(Source(options.trace, options.device or "", options.sms or 0), options.scheduler, swept)
    if options.json:
        answer = {"schema": SCHEMA, "version": VERSION, "trace": options.trace, "sweep": swept.key}
        answer["points"] = [{"value": v, "schedules": p} for v, p in zip(swept.values, points, strict=True)]
        json.dump(answer, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        _print_curve(swept.key, options.scheduler, swept.values, points)
    return 1 if any(s["deadlock"] for p in points for s in p) else 0


def _print_curve(key: str, names: list[str], values: Sequence[float], points: list[list[dict[str, Any]]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - heavy, and not needed for --help
    from rich.table import Table  # noqa: PLC0415 - likewise
    from rich.text import Text  # noqa: PLC0415 - likewise

    from tileprof.cli.report_text import duration, plain  # noqa: PLC0415 - likewise

    console = Console(highlight=False)
    console.width = max(console.width, 80)
    table = Table(box=None, pad_edge=False)
    for name in (key, *names):
        table.add_column(Text(plain(name)), justify="right", no_wrap=True)
    for value, schedules in zip(values, points, strict=True):
        cells = ["deadlock" if s["deadlock"] else duration(s["time_ns"]) for s in schedules]
        table.add_row(f"{value:g}", *cells)
    console.print(table)


def _recorded_ns(launches: Any) -> float:
    from tileprof.analysis.report import recorded_ns  # noqa: PLC0415 - heavy

    return recorded_ns(launches)


def _json(trace: str, machine: Machine, schedules: list[Schedule], bounds: Bounds) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "trace": trace,
        "device": {"name": machine.device.name, "sms": machine.sms},
        "stream_ns": bounds.recorded_ns,
        "schedules": [s.to_json() for s in schedules],
        "bounds": bounds.to_json(),
    }


def _print(schedules: list[Schedule], stream: Schedule, bounds: Bounds, recorded_ns: float | None) -> None:
    from rich.console import Console  # noqa: PLC0415 - heavy, and not needed for --help
    from rich.table import Table  # noqa: PLC0415 - likewise
    from rich.text import Text  # noqa: PLC0415 - likewise

    from tileprof.cli.report_text import duration, percent, plain  # noqa: PLC0415 - likewise

    console = Console(highlight=False)
    console.width = max(console.width, 80)
    table = Table(box=None, pad_edge=False)
    table.add_column("scheduler", no_wrap=True, max_width=console.width - 54)
    for name in ("time", "saved", "busy", "idle ends", "waits", "overheads"):
        table.add_column(name, justify="right", no_wrap=True)
    for s in schedules:
        if s.deadlock:
            table.add_row(Text(plain(s.scheduler)), Text("deadlock", style="bold red"))
            continue
        saved = f"{100 * (1 - s.time_ns / stream.time_ns):.1f}%" if stream.time_ns > 0 else "-"
        kind = max(s.overheads_ns, key=s.overheads_ns.__getitem__, default="")
        most = f"{kind} {duration(s.overheads_ns[kind])}" if kind else "-"
        cells = (duration(s.time_ns), saved, percent(s.busy), duration(s.boundary_ns), duration(s.waiting_ns), most)
        table.add_row(*map(Text, (plain(s.scheduler), *cells)))
    for name, ns in ((f"bound: {bounds.binding}", bounds.bound_ns), ("bound, ready-gated", bounds.ready_ns)):
        table.add_row(
            name,
            duration(ns),
            percent(bounds.gain if ns == bounds.bound_ns else max(0.0, 1 - ns / stream.time_ns)),
            style="dim",
        )
    console.print(table)
    for s in schedules:
        if s.deadlock:
            console.print(Text(f"{plain(s.scheduler)}: {s.deadlock}"))
        for note in s.notes:
            console.print(Text(f"{plain(s.scheduler)}: {note}", style="dim"))
    lines = [_COLUMNS]
    if recorded_ns:
        off = stream.time_ns / recorded_ns - 1
        lines.append(
            f"Stream order as simulated is {duration(stream.time_ns)}; recorded were {duration(recorded_ns)} ({off:+.1%})."
        )
    lines.append(
        "Tiles last as recorded, whatever runs beside them. Costs of signals, posts and checks are assumed where no source is "
        "named: tileprof.analysis.simulate.schedulers lists each scheduler's options and sources."
    )
    for line in lines:
        console.print(Text(line, style="dim"))


def _print_advice(advice: list[Opportunity]) -> None:
    from rich.console import Console  # noqa: PLC0415 - heavy, and not needed for --help
    from rich.text import Text  # noqa: PLC0415 - likewise

    from tileprof.cli.report_text import duration, plain  # noqa: PLC0415 - likewise

    console = Console(highlight=False)
    console.print(
        Text("\nWhat to do first" if advice else "\nNothing that could be done today saves 0.1% of the program."),
        style="bold",
    )
    for o in advice[:_MOST_ADVICE]:
        where = "the whole program"
        if o.producers:
            times = f" (\N{MULTIPLICATION SIGN}{o.times})" if o.times > 1 else ""
            where = f"launches {o.producers[0]} → {o.consumers[0]}{times}: {plain(o.names[0])} → {plain(o.names[1])}"
        console.print(Text(f"{o.scheduler} saves {duration(o.saves_ns)} (at most {duration(o.bound_ns)}): {where}"))
        console.print(Text(f"    because {o.because}; held back: {o.held_back}", style="dim"))


VERB = Verb("simulate", "run schedulers on a recorded program", _prepare, _run)
