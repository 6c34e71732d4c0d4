"""``tileprof simulate``: what each scheduler would make of a recorded program."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tileprof.cli.arguments.dependencies import add_by_filters, graph_of
from tileprof.cli.arguments.target import check_file
from tileprof.cli.text.epilogs import devices_and_schedulers
from tileprof.cli.text.messages import say
from tileprof.cli.text.progress import first_time, steps
from tileprof.cli.verb import Verb
from tileprof.cli.verbs import simulate_fleet, simulate_spawning
from tileprof.errors import UserError
from tileprof.shell_words import shell_word

if TYPE_CHECKING:
    from tileprof.analysis.bounds import Bounds, Machine
    from tileprof.analysis.dependencies.graph import TileGraph
    from tileprof.analysis.reporting.opportunities import Opportunity
    from tileprof.analysis.simulate import Schedule, Simulator
    from tileprof.analysis.simulate.agreement import Agreement
    from tileprof.analysis.simulate.scheduler import Scheduler
    from tileprof.analysis.simulate.triggers import Trigger
    from tileprof.cli.text.schedule_table import ScheduleTable

SCHEMA, VERSION = "tileprof simulation", 1

_SLOWEST = "dataflow-bloom"

_MOST_SMS, _MOST_BLOCKS = 100_000, 1024
"""Limits of a GPU that one may ask for; the largest there are have some hundreds of SMs, of at most 32 blocks."""


def _prepare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="folders that `tileprof record` wrote, or one workload:NAME")
    add(
        "--scheduler",
        action="append",
        default=[],
        metavar="NAME[:key=value,…]",
        help="scheduler to run; may be repeated (default: all)",
    )
    add("--device", metavar="NAME", help="simulate another GPU, with tile durations as recorded")
    add("--sms", type=int, metavar="N", help="simulate a GPU with N SMs")
    add("--occupancy", type=int, metavar="N", help="simulate N resident blocks of every launch per SM")
    add(
        "--durations",
        default="recorded",
        metavar="MODEL",
        help="model of tile durations beside other tiles: recorded (default), "
        "co-residency-scaled[:sensitivity=X] or shared-roofline",
    )
    add(
        "--sweep",
        metavar="KEY=A:B:N",
        help="the --scheduler with an option (or sms) at N values from A to B, on all cores",
    )
    add(
        "--dask",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="share several traces or a --sweep among the workers of a Dask scheduler (without an address: on this "
        "machine)",
    )
    add("--advice", action="store_true", help="also simulate dependent pairs, and show what to do first")
    add(
        "--page",
        metavar="FILE",
        help="the page that --advice links into (default: the trace's own, if it exists)",
    )
    add("--export", choices=("perfetto",), help="write the timeline of every --scheduler, as Chrome JSON")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file that --export writes (default: TRACE's name, .perfetto.json)",
    )
    add("--force", action="store_true", help="overwrite FILE")
    add("--json", action="store_true", help="print JSON; keys as in Schedule.to_json, with bounds")
    add_by_filters(parser)


def _run(options: Namespace) -> int:
    _check_machine(options)
    _check_export(options)
    if options.page is not None and not options.advice:
        raise UserError("--page names the page that --advice links into; give both")
    traces = options.trace
    if any(trace.startswith(simulate_spawning.PREFIX) for trace in traces):
        _check_workload(options)
        options.trace = traces[0]
        return simulate_spawning.run(options)
    if options.sweep is not None or options.dask is not None or len(traces) > 1:
        if options.by_filters:
            raise UserError("--by-filters is for one trace at one setting, without --sweep and --dask")
        return simulate_fleet.run(options)
    return _one(options, traces[0])


def _check_machine(options: Namespace) -> None:
    for number, flag, most, what in (
        (options.sms, "--sms", _MOST_SMS, "SMs"),
        (options.occupancy, "--occupancy", _MOST_BLOCKS, "resident blocks per SM"),
    ):
        if number is not None and not 1 <= number <= most:
            raise UserError(f"{flag} {number}: expected from 1 to {most:,} {what}")


def _check_export(options: Namespace) -> None:
    if options.export is None and options.output is not None:
        raise UserError("-o names the file of --export perfetto; give both")
    if options.export is None:
        return
    if options.sweep is not None or len(options.trace) > 1:
        raise UserError("--export shows one trace at one setting, without --sweep")
    check_file(_export_path(options, options.trace[0]), force=options.force)


def _check_workload(options: Namespace) -> None:
    if len(options.trace) > 1:
        raise UserError(f"a workload cannot be combined with traces; give {simulate_spawning.PREFIX}NAME alone")
    for value, flag in (
        (options.occupancy, "--occupancy"),
        (options.dask, "--dask"),
        (options.export, "--export"),
        (options.page, "--page"),
        (options.by_filters or None, "--by-filters"),
    ):
        if value is not None:
            raise UserError(f"{flag} needs a trace; workloads of spawn events take --scheduler spawn:key=value,…")
    if options.durations != "recorded":
        raise UserError("--durations needs a trace: work items of a workload take as long as its generator says")


def _one(options: Namespace, path: str) -> int:
    from tileprof.analysis.bounds import Bounder, machine_of  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.simulate import SCHEDULERS, Simulator, life_model, scheduler  # noqa: PLC0415 - as above
    from tileprof.analysis.simulate.agreement import agreement  # noqa: PLC0415 - as above
    from tileprof.analysis.simulate.triggers import triggers  # noqa: PLC0415 - as above
    from tileprof.cli.arguments.trace_argument import load_launches  # noqa: PLC0415 - as above
    from tileprof.cli.text import simulate_text as text  # noqa: PLC0415 - as above
    from tileprof.cli.text.schedule_table import ScheduleTable  # noqa: PLC0415 - as above
    from tileprof.devices import get  # noqa: PLC0415 - as above

    # Bloom filters over all tiles take as long as everything else together: last, unless it was asked for.
    schedulers = [(t, scheduler(t)) for t in options.scheduler or sorted(SCHEDULERS, key=lambda name: name == _SLOWEST)]
    lives = life_model(options.durations)
    trace = load_launches(path)
    machine = machine_of(trace, get(options.device) if options.device else None, options.sms or 0, options.occupancy)
    with steps() as step:
        step("finding dependencies")
        graph = graph_of(trace, options)
        simulator = Simulator(graph, machine, lives)
        bounder = Bounder(graph, machine, lives.shortest(trace, machine, simulator.recorded))
        step(f"simulating stream order{first_time()}")
        stream = simulator.run(SCHEDULERS["stream"])
    console = text.wide_terminal(plain=options.plain)
    table = None if options.json else ScheduleTable(console, [name for name, _ in schedulers], stream)
    if table is not None:
        text.print_standing(console, trace)
        table.head()
    schedules = _schedules(simulator, schedulers, table, all_asked=bool(options.scheduler))
    with steps() as step:
        step("bounding the program")
        bounds = bounder.of(stream.time_ns)
        agrees = None if bounder.replayed else agreement(graph, stream, simulator.recorded)
        pairs = triggers(simulator) if any(name.split(":")[0] == "pdl" for name in options.scheduler) else None
        step("simulating dependent pairs")
        advice = _advice(graph, machine, simulator) if options.advice else None
    if table is not None:
        table.bounds(bounds)
        text.print_notes(console, simulator, schedules, stream, bounds, agrees)
        if pairs is not None:
            text.print_triggers(console, pairs)
        if advice is not None:
            text.print_advice(console, advice, _page(options, path))
    else:
        _print_json(path, machine, simulator, schedules, bounds, agrees, pairs, advice)
    if options.export:
        _export(_export_path(options, path), graph, schedules)
    return 1 if any(s.deadlock for s in schedules) else 0


def _export_path(options: Namespace, path: str) -> Path:
    """Return where --export writes: what -o says, or beside the caller under the trace's name."""
    return options.output or Path(Path(path).resolve().name).with_suffix(".perfetto.json")


def _schedules(
    simulator: Simulator, schedulers: list[tuple[str, Scheduler]], table: ScheduleTable | None, *, all_asked: bool
) -> list[Schedule]:
    """Return each scheduler, printed as it ends. What was asked for by name must run; of the others, those that cannot
    are named.
    """
    schedules = []
    for number, (name, scheduler) in enumerate(schedulers, 1):
        try:
            with steps() as step:
                step(f"simulating {name} ({number} of {len(schedulers)}){first_time()}")
                schedules.append(simulator.run(scheduler, name))
        except UserError as refused:
            if all_asked:
                raise
            say(f"tileprof: {name} is left out: {refused}")
            continue
        if table is not None:
            table.row(schedules[-1])
    return schedules


def _advice(graph: TileGraph, machine: Machine, simulator: Simulator) -> list[Opportunity]:
    from tileprof.analysis.reporting.opportunities import opportunities  # noqa: PLC0415 - heavy
    from tileprof.analysis.reporting.report import build_report  # noqa: PLC0415 - heavy

    return opportunities(build_report(graph, machine), simulator)


def _export(target: Path, graph: TileGraph, schedules: list[Schedule]) -> None:
    from tileprof.policy.emit.perfetto import perfetto_of_schedules  # noqa: PLC0415 - heavy

    by_name: dict[str, Schedule] = {}
    for s in schedules:
        again = sum(n == s.scheduler or n.startswith(f"{s.scheduler} (") for n in by_name)
        by_name[f"{s.scheduler} ({again + 1})" if again else s.scheduler] = s
    text = perfetto_of_schedules(graph, by_name)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"could not write {target}: {error.strerror or error}") from error
    say(f"{target}  ({len(text) / 1e6:.1f} MB; open it at https://ui.perfetto.dev)")


def _print_json(
    path: str,
    machine: Machine,
    simulator: Simulator,
    schedules: list[Schedule],
    bounds: Bounds,
    agrees: Agreement | None,
    pairs: list[Trigger] | None,
    advice: list[Opportunity] | None,
) -> None:
    from tileprof.cli.text.simulate_text import standing_of  # noqa: PLC0415 - heavy, and not needed for --help

    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "trace": path,
        **standing_of(simulator.graph.recording),
        "device": {"name": machine.device.name, "sms": machine.sms},
        "durations": simulator.lives.name,
        "stream_ns": bounds.recorded_ns,
        "schedules": [s.to_json() for s in schedules],
        "bounds": bounds.to_json(),
    }
    if simulator.graph.basis:
        answer["dependencies"] = simulator.graph.basis
    if agrees is not None:
        answer["agreement"] = agrees.to_json()
    if pairs is not None:
        answer["dependent_launch"] = [t.to_json() for t in pairs]
    if advice is not None:
        answer["opportunities"] = [o.to_json() for o in advice]
    json.dump(answer, sys.stdout, indent=1, allow_nan=False)
    print()


def _page(options: Namespace, path: str) -> str | None:
    """Return the page to link into: what was asked for, or what `tileprof view` wrote for the trace, where it has."""
    if options.page is None:
        page = Path(Path(path).resolve().name).with_suffix(".html")
        return str(page) if page.is_file() else None
    if not Path(options.page).exists():
        command = f"tileprof view {shell_word(path)} -o {shell_word(options.page)}"
        say(f"tileprof: {options.page}, which the advice links into, is not written yet; type: {command}")
    return str(options.page)


VERB = Verb("simulate", "run schedulers on a recorded program", _prepare, _run, epilog=devices_and_schedulers)
