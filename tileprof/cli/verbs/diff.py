"""``tileprof diff``: what changed between two traces, for people, for programs and for a gate."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from tileprof.cli.text.messages import say
from tileprof.cli.verb import Verb
from tileprof.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from tileprof.analysis.reporting.comparison import Comparison

TOP = 12


def _prepare(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("first", metavar="A", help="the trace before the change")
    add("second", metavar="B", help="the trace after the change")
    add("--top", type=int, default=TOP, metavar="N", help=f"modules and operators to show (default {TOP}; 0: all)")
    add(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 1 if the condition holds: time>+5%%, gap>30%%, launches>+0, conservative>1%%; may be repeated",
    )
    add("--json", action="store_true", help="print JSON; schema in tileprof.analysis.reporting.comparison")


def _run(options: Namespace) -> int:
    if options.top < 0:
        raise UserError(f"--top {options.top}: give the number of rows to show, or 0 for all")
    from tileprof.analysis import build_graph  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.analysis.reporting.comparison import compare  # noqa: PLC0415 - as above
    from tileprof.analysis.reporting.report import build_report  # noqa: PLC0415 - as above
    from tileprof.cli.arguments.fail_if import condition, fact_text  # noqa: PLC0415 - as above
    from tileprof.cli.arguments.trace_argument import load_trace  # noqa: PLC0415 - as above
    from tileprof.cli.text.console import terminal  # noqa: PLC0415 - as above
    from tileprof.cli.text.progress import steps  # noqa: PLC0415 - as above

    conditions = [condition(text, changes=True) for text in options.fail_if]
    traces = [load_trace(path) for path in (options.first, options.second)]
    sides = []
    with steps() as step:
        for path, trace in zip((options.first, options.second), traces, strict=True):
            step(f"reading {path}")
            graph = build_graph(trace)
            sides.append((graph, build_report(graph)))
    comparison = compare(sides[0], sides[1])
    if options.json:
        json.dump(comparison.to_json(), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        _print(comparison, options, terminal(plain=options.plain))
    failures = [c for c in conditions if c.holds(comparison.facts[c.name][1], comparison.facts[c.name][0])]
    for c in failures:
        before, after = (fact_text(c.name, value) for value in comparison.facts[c.name])
        say(f"tileprof: {c.text} holds: {c.name} was {before} and is {after}")
    return 1 if failures else 0


def _print(comparison: Comparison, options: Namespace, console: Console) -> None:
    from rich.table import Table  # noqa: PLC0415 - heavy, and not needed for --help
    from rich.text import Text  # noqa: PLC0415 - as above

    from tileprof.analysis.reporting.comparison import UNITS  # noqa: PLC0415 - as above
    from tileprof.analysis.times_and_counts import duration, signed_percent  # noqa: PLC0415 - as above
    from tileprof.cli.arguments.fail_if import fact_text  # noqa: PLC0415 - as above
    from tileprof.cli.text.console import plain  # noqa: PLC0415 - as above

    def change(before: float | None, after: float | None) -> str:
        if before is None or after is None or before == after:
            return ""
        return signed_percent(after / before - 1, plus=True) if before else "new"

    def table(*columns: str) -> Table:
        grid = Table(box=None, pad_edge=False)
        for n, name in enumerate(columns):
            grid.add_column(name, justify="left" if n == 0 else "right", no_wrap=True)
        return grid

    console.width = max(console.width, 80)
    program = table("", "A", "B", "change")
    for name, (before, after) in comparison.facts.items():
        if UNITS[name] == "share" and before is not None and after is not None:
            difference = f"{100 * (after - before):+.1f} points" if after != before else ""
        else:
            difference = change(before, after)
        program.add_row(name, fact_text(name, before), fact_text(name, after), difference)
    for kind, counts in (("pairs", comparison.patterns), ("kernels", comparison.kernels)):
        for name, (was, is_) in counts.items():
            if was != is_:
                program.add_row(f"{kind}: {name}", f"{was:,}", f"{is_:,}", change(was, is_))
    console.print(program)
    if (own := comparison.heuristics_of_one()) is not None:
        one, other = ("A", "B") if own[0] else ("B", "A")
        console.print(
            Text(
                f"\nNVIDIA's heuristics chose the kernels of {sum(own):,} launches of {one} and of none of {other}. If "
                f"{other} was recorded without the extra `heuristics`, part of the difference is the choice of "
                "kernels, not the program: record both alike."
            )
        )
    rows = [row for row in comparison.rows if row.time_ns[0] != row.time_ns[1] or row.launches[0] != row.launches[1]]
    if not rows:
        console.print(Text("\nEvery module and operator takes the same number of launches and the same time."))
        return
    console.print()
    change_table = table("module and operator", "launches A", "B", "time A", "B", "change")
    room = max(console.width - 52, 24)
    for row in rows[: options.top] if options.top else rows:
        name = plain(f"{row.module} {row.operator}".strip(), room)
        times = (*map(duration, row.time_ns), change(*row.time_ns))
        change_table.add_row(*map(Text, (name, f"{row.launches[0]:,}", f"{row.launches[1]:,}", *times)))
    console.print(change_table)
    if options.top and len(rows) > options.top:
        console.print(Text(f"{len(rows) - options.top} more changed; --top 0 shows all.", style="dim"))


VERB = Verb("diff", "show what changed between two traces", _prepare, _run)
