"""``tileprof report``: what overlap could gain, in the terminal or as JSON, also of a trace that is still being
recorded.
"""

from __future__ import annotations

import gc
import json
import sys
from argparse import ArgumentParser, Namespace
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tileprof.cli.arguments.dependencies import add_by_filters, graph_of
from tileprof.cli.text.epilogs import devices
from tileprof.cli.text.messages import say
from tileprof.cli.verb import Verb
from tileprof.errors import TraceError, UserError

if TYPE_CHECKING:
    from tileprof.analysis.simulate.filters.inserted import InsertedReport
    from tileprof.trace import Trace

TOP = 10


def _prepare(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="folder that `tileprof record` wrote, or still writes")
    parser.add_argument(
        "--json", action="store_true", help="print every number as JSON; schema in tileprof.analysis.reporting.report"
    )
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"pairs to show (default {TOP}; 0: all)")
    parser.add_argument(
        "--device", metavar="NAME", help="compute bounds for another GPU, with tile durations as recorded"
    )
    parser.add_argument("--sms", type=int, metavar="N", help="compute bounds for a GPU with N SMs")
    parser.add_argument("--occupancy", type=int, metavar="N", help="compute bounds for N resident blocks per SM")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if the condition holds: gap>30%%, time>1.5ms, launches>200, conservative>0%%; may be "
        "repeated",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="print a new report as the recording grows, until it ends",
    )
    add_by_filters(parser)


def _run(options: Namespace) -> int:
    if options.top < 0:
        raise UserError(f"--top {options.top}: give the number of pairs to show, or 0 for all")
    if options.sms is not None and options.sms < 1:
        raise UserError(f"--sms {options.sms}: a GPU has at least one SM")
    if options.watch and options.json:
        raise UserError("--watch and --json exclude each other; choose one of them")

    from tileprof.cli.arguments.trace_argument import load_trace  # noqa: PLC0415 - as above
    from tileprof.cli.verbs.report_watch import watch  # noqa: PLC0415 - heavy, and not needed for --help

    def show(trace: Trace) -> None:
        _print(trace, options)

    if options.watch:
        return watch(options.trace, show, plain=options.plain)
    return _print(load_trace(options.trace), options)


def _print(trace: Trace, options: Namespace) -> int:
    """Print one report; 1 where a condition of --fail-if holds."""
    from tileprof.analysis.bounds import machine_of  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.guidance import guide, simulated_times  # noqa: PLC0415 - as above
    from tileprof.analysis.reporting.comparison import facts  # noqa: PLC0415 - as above
    from tileprof.analysis.reporting.report import build_report  # noqa: PLC0415 - as above
    from tileprof.analysis.simulate import Simulator  # noqa: PLC0415 - as above
    from tileprof.cli.arguments.fail_if import condition, fact_text  # noqa: PLC0415 - as above
    from tileprof.cli.text.console import terminal  # noqa: PLC0415 - as above
    from tileprof.cli.text.inserted_text import print_inserted  # noqa: PLC0415 - as above
    from tileprof.cli.text.progress import first_time, steps  # noqa: PLC0415 - as above
    from tileprof.cli.text.report_text import print_report  # noqa: PLC0415 - as above
    from tileprof.devices import get  # noqa: PLC0415 - as above
    from tileprof.trace import manifest  # noqa: PLC0415 - as above
    from tileprof.viz.figures.report_curves import Curves  # noqa: PLC0415 - as above

    gc.set_threshold(50_000)  # a report makes many small arrays and hardly a cycle: a tenth of its time
    conditions = [condition(text, changes=False) for text in options.fail_if]
    device = get(options.device) if options.device else None
    machine = machine_of(trace, device, options.sms or 0, options.occupancy)
    with steps() as step:
        step("finding dependencies")
        graph = graph_of(trace, options)
        step(f"bounding pairs, simulating{first_time()}")
        simulator = Simulator(graph, machine)
        with ThreadPoolExecutor(1) as beside:  # most of a simulation needs no interpreter
            times = beside.submit(simulated_times, simulator)
            report = build_report(graph, machine)
            guidance = guide(report, simulator, times.result())
        curves = Curves(graph)
        step("reading the filters of blocks, if any")
        inserted = _filter_answers(trace)
    if options.json:
        parts: dict[str, object] = {"guidance": guidance.to_json()}
        parts |= {"filters": inserted.to_json()} if inserted is not None else {}
        parts |= {"dependencies": graph.basis} if graph.basis else {}
        json.dump(report.to_json() | parts, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        recording = not trace.complete and manifest.live_writer(trace.path) is not None
        console = terminal(plain=options.plain)
        print_report(report, options.top, console, curves, guidance=guidance, recording=recording)
        if inserted is not None:
            print_inserted(inserted, console)
    values = facts(report)
    failures = [c for c in conditions if c.holds(values[c.name])]
    for c in failures:
        say(f"tileprof: {c.text} holds: {c.name} is {fact_text(c.name, values[c.name])}")
    return 1 if failures else 0


def _filter_answers(trace: Trace) -> InsertedReport | None:
    """Return what filters answer that blocks filled; None where there are none or too many pairs of blocks."""
    from tileprof.analysis.simulate.filters.inserted import inserted_report  # noqa: PLC0415 - as above

    try:
        return inserted_report(trace)
    except TraceError:
        raise
    except UserError as error:
        say(f"tileprof: the filters of the trace are not queried: {error}")
        return None


VERB = Verb(
    "report",
    "show what limits a program, what to do first, and what overlap could gain",
    _prepare,
    _run,
    epilog=devices,
)
