"""``tileprof simulate`` with ``--sweep``, ``--dask`` or several traces: curves and tables of times."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tileprof.analysis.simulate.sweeps.sweep import Point, Sweep

SCHEMA, VERSION = "tileprof simulation", 1
_USUAL = ("stream", "graph", "pdl", "cusync", "dataflow", "list")
"""The schedulers that a table over several traces has room for."""


def run(options: Namespace) -> int:
    """Simulate, print, and say whether anything ran into a deadlock.

    Raises `UserError` for options that do not go together.
    """
    from tileprof.analysis.simulate import Source, fleet, life_model, scheduler, sweep_of  # noqa: PLC0415 - heavy
    from tileprof.cli.arguments.trace_argument import load_launches  # noqa: PLC0415 - as above

    if options.sweep is not None and not options.scheduler:
        raise UserError("--sweep needs the --scheduler to sweep, such as --scheduler streams --sweep queues=1:16:16")
    if options.advice:
        raise UserError("--advice cannot be combined with --sweep, --dask or several traces; give one trace")
    if options.dask and Path(options.dask).exists():
        raise UserError(
            f"--dask takes the address of a scheduler, and {options.dask} is a folder; put --dask after the traces"
        )
    if options.occupancy is not None:
        raise UserError("--occupancy is for one trace at one setting, without --sweep and --dask")
    swept = sweep_of(options.sweep) if options.sweep is not None else None
    names = list(options.scheduler or _USUAL)
    for name in names:
        scheduler(name)
    life_model(options.durations)
    for trace in options.trace:
        load_launches(trace)  # before minutes of simulation, and not as a row of zeros
    paths = [str(Path(trace).resolve()) if options.dask is not None else trace for trace in options.trace]
    sources = [Source(path, options.device or "", options.sms or 0, options.durations) for path in paths]
    results = fleet(sources, names, swept, options.dask)
    if options.json:
        _print_json(options.trace, swept, results)
    else:
        _print(options.trace, names, swept, results)
    return 1 if any(s["deadlock"] for points in results for point in points for s in point) else 0


def _print_json(traces: list[str], swept: Sweep | None, results: list[list[Point]]) -> None:
    from tileprof.cli.text.simulate_text import standing_of  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.trace import load  # noqa: PLC0415 - as above

    answers: list[dict[str, Any]] = []
    for trace, points in zip(traces, results, strict=True):
        answer: dict[str, Any] = {"schema": SCHEMA, "version": VERSION, "trace": trace, **standing_of(load(trace))}
        if swept is None:
            answer["schedules"] = points[0]
        else:
            answer["sweep"] = swept.key
            answer["points"] = [{"value": v, "schedules": p} for v, p in zip(swept.values, points, strict=True)]
        answers.append(answer)
    json.dump(answers if len(answers) > 1 else answers[0], sys.stdout, indent=1, allow_nan=False)
    print()


def _print(traces: list[str], names: list[str], swept: Sweep | None, results: list[list[Point]]) -> None:
    from tileprof.analysis.simulate.sweeps.sweep import without  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.cli.text.simulate_text import print_standing, wide_terminal  # noqa: PLC0415 - as above
    from tileprof.trace import load  # noqa: PLC0415 - as above

    console = wide_terminal()
    if swept is None:
        for trace in traces:
            print_standing(console, load(trace), Path(trace).name)
        _table(console, "trace", names, [Path(trace).name for trace in traces], [points[0] for points in results])
        return
    heads = [without(name, swept.key) for name in names]
    for trace, points in zip(traces, results, strict=True):
        if len(traces) > 1:
            console.print(f"\n{Path(trace).name}", style="bold", markup=False)
        print_standing(console, load(trace))
        _table(console, swept.key, heads, [f"{value:.10g}" for value in swept.values], points)


def _table(console: Console, key: str, names: list[str], rows: Sequence[str], points: Sequence[Point]) -> None:
    from rich.table import Table  # noqa: PLC0415 - heavy, and not needed for --help
    from rich.text import Text  # noqa: PLC0415 - as above

    from tileprof.analysis.times_and_counts import duration  # noqa: PLC0415 - as above
    from tileprof.cli.text.console import plain  # noqa: PLC0415 - as above
    from tileprof.cli.text.simulate_text import print_table  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False)
    for name in (key, *names):
        table.add_column(Text(plain(name)), justify="right", overflow="fold")
    refusal_reasons: dict[str, list[str]] = {}
    for row, schedules in zip(rows, points, strict=True):
        cells = []
        for name, s in zip(names, schedules, strict=True):
            if s.get("refused"):
                refusal_reasons.setdefault(s["refused"], []).append(f"{name} at {row}")
            cells.append("-" if s.get("refused") else "deadlock" if s["deadlock"] else duration(s["time_ns"]))
        table.add_row(Text(plain(row)), *map(Text, cells))
    print_table(console, table)
    if refusal_reasons:
        count, why = sum(map(len, refusal_reasons.values())), next(iter(refusal_reasons))
        more = f" (of {count:,} that cannot run, --json has all reasons)" if count > 1 else ""
        console.print(Text(plain(f"- {refusal_reasons[why][0]}: {why}{more}"), style="dim"))
