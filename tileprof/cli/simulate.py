"""``tileprof simulate``: what each scheduler would make of a recorded program."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from tileprof.cli.verb import Verb
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.bounds import Bounds
    from tileprof.analysis.simulate import Schedule

SCHEMA, VERSION = "tileprof simulation", 1


def _prepare(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="folder that `tileprof record` wrote")
    parser.add_argument(
        "--scheduler", action="append", default=[], metavar="NAME[:key=value,…]", help="may be repeated (default: all)"
    )
    parser.add_argument("--device", metavar="NAME", help="another GPU, tile durations as recorded")
    parser.add_argument("--sms", type=int, metavar="N", help="a GPU with so many SMs")
    parser.add_argument("--json", action="store_true", help="for programs; keys as in Schedule.to_json, with bounds")


def _run(options: Namespace) -> int:
    if options.sms is not None and options.sms < 1:
        raise UserError(f"--sms {options.sms}: a GPU has at least one SM")

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
    schedules = [simulator.run(chosen, text) for text, chosen in wanted]
    bounds = bounder.of(stream.time_ns)
    if options.json:
        json.dump(
            _json(options.trace, machine.device.name, machine.sms, schedules, bounds),
            sys.stdout,
            indent=1,
            allow_nan=False,
        )
        print()
    else:
        _print(schedules, stream, bounds, None if bounder.replayed else _recorded_ns(trace.launches))
    return 1 if any(s.deadlock for s in schedules) else 0


def _recorded_ns(launches: Any) -> float:
    from tileprof.analysis.report import recorded_ns  # noqa: PLC0415 - heavy

    return recorded_ns(launches)


def _json(trace: str, device: str, sms: int, schedules: list[Schedule], bounds: Bounds) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "trace": trace,
        "device": {"name": device, "sms": sms},
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
    table.add_column("scheduler", no_wrap=True, max_width=console.width - 50)
    for name in ("time", "saved", "GPU busy", "waits inside", "no tile runs"):
        table.add_column(name, justify="right", no_wrap=True)
    for s in schedules:
        if s.deadlock:
            table.add_row(Text(plain(s.scheduler)), Text("deadlock", style="bold red"))
            continue
        saved = percent(1 - s.time_ns / stream.time_ns) if stream.time_ns > 0 else "-"
        cells = (duration(s.time_ns), saved, percent(s.busy), duration(s.waiting_ns), duration(s.gap_ns))
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
    lines = ["saved: against stream order as simulated. waits inside: slot-time held while waiting, summed over tiles."]
    if recorded_ns:
        off = stream.time_ns / recorded_ns - 1
        lines.append(
            f"Stream order as simulated is {duration(stream.time_ns)}; recorded were {duration(recorded_ns)} ({off:+.1%})."
        )
    lines.append(
        "Tiles last as recorded, whatever runs beside them. Costs of signals, posts and checks are assumed where no source"
    )
    lines.append("is named: each scheduler's options and sources are in tileprof.analysis.simulate.schedulers.")
    for line in lines:
        console.print(Text(line, style="dim"))


VERB = Verb("simulate", "run schedulers on a recorded program", _prepare, _run)
