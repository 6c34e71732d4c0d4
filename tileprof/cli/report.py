"""``tileprof report``: what overlap could gain, in the terminal or as JSON."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace

from tileprof.cli.verb import Verb
from tileprof.errors import UserError

TOP = 10


def _prepare(parser: ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="folder that `tileprof record` wrote")
    parser.add_argument(
        "--json", action="store_true", help="for programs: every number, schema in tileprof.analysis.report"
    )
    parser.add_argument("--top", type=int, default=TOP, metavar="N", help=f"pairs to show (default {TOP}; 0: all)")
    parser.add_argument("--device", metavar="NAME", help="bounds for another GPU, tile durations as recorded")
    parser.add_argument("--sms", type=int, metavar="N", help="bounds for a GPU with so many SMs")
    parser.add_argument("--occupancy", type=int, metavar="N", help="bounds for so many resident blocks an SM")


def _run(options: Namespace) -> int:
    if options.top < 0:
        raise UserError(f"--top {options.top}: give the number of pairs to show, or 0 for all")
    if options.sms is not None and options.sms < 1:
        raise UserError(f"--sms {options.sms}: a GPU has at least one SM")

    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.bounds import machine_of  # noqa: PLC0415 - likewise
    from tileprof.analysis.report import build_report  # noqa: PLC0415 - likewise
    from tileprof.cli.report_text import print_report  # noqa: PLC0415 - likewise
    from tileprof.devices import get  # noqa: PLC0415 - likewise
    from tileprof.trace import load  # noqa: PLC0415 - likewise

    trace = load(options.trace)
    device = get(options.device) if options.device else None
    machine = machine_of(trace, device, options.sms or 0, options.occupancy)
    report = build_report(build_graph(trace), machine)
    if options.json:
        json.dump(report.to_json(), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_report(report, options.top)
    return 0


VERB = Verb("report", "print what a trace holds and what overlap could gain", _prepare, _run)
