"""``tileprof run -- python infer.py``: the program runs as it is; then the models that it called are measured, on
copies of what they were called with.
"""

from __future__ import annotations

import csv
import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tileprof.cli.arguments.target import check_file
from tileprof.cli.text.messages import say
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.runtime.programs.calls import Call
    from tileprof.runtime.programs.compare import Comparison

MODELS: Final = 4
"""Number of models that are measured by default: those called most often."""

_SHOWN: Final = 8
"""Operators that are named as not taken."""

COLUMNS: Final = (
    "model",
    "calls",
    "graph",
    "eager_us",
    "inductor_us",
    "tileprof_us",
    "predicted_us",
    "weights_us",
    "kept",
    "not_taken",
    "failures",
)


def run_program(options: Namespace) -> int:
    """Run ``options.program`` and measure its models; the exit code, stdout and stdin are the program's own. The table
    goes to stderr.

    Raises `UserError` before anything runs, where no GPU is there or an option is about something else.
    """
    from tileprof.record import command as commands  # noqa: PLC0415 - not needed for --help
    from tileprof.record.program import run  # noqa: PLC0415 - as above

    _check(options)
    command = commands.parse(options.program)
    commands.check_target(command)
    if commands.other_interpreter(command) is not None:
        raise UserError(
            f"the program runs in this interpreter, {sys.executable}, without options of its own; type for example "
            "`tileprof run -- infer.py`"
        )
    _check_gpu()
    from tileprof.runtime.programs.calls import noticed  # noqa: PLC0415 - imports PyTorch

    with ExitStack() as noticing:
        calls = noticing.enter_context(noticed())

        def after(code: int, error: BaseException | None) -> None:
            noticing.close()  # measuring calls the models, too, with the noted inputs themselves
            _after(code, error, calls, options)

        try:
            return run(command, after)
        finally:
            sys.stdout.flush()


def _check_gpu() -> None:
    import torch  # noqa: PLC0415 - slow to import

    if not torch.cuda.is_available():
        raise UserError("there is no GPU here that PyTorch can use, so no model can be measured")


def _check(options: Namespace) -> None:
    for name in ("policy", "compare", "trace", "compile", "json"):
        if getattr(options, name):
            what = "a policy" if name == "policy" else f"--{name}"
            why = "; stdout is the program's, --csv FILE keeps the rows" if name == "json" else ""
            raise UserError(f"{what} does not go with a program after --{why}")
    if options.models < 1:
        raise UserError(f"--models {options.models}: give a number from 1")
    if options.csv:
        check_file(options.csv, force=options.force)


def _after(code: int, error: BaseException | None, calls: list[Call], options: Namespace) -> None:
    """Measure once the program has ended, unless it failed."""
    if error is not None or code != 0:
        _say(f"the program ended with exit code {code}: nothing is measured")
        return
    if not calls:
        _say(
            "the program called no module on a GPU without gradients (torch.no_grad() or torch.inference_mode()): "
            "nothing to measure"
        )
        return
    from tileprof.runtime.programs.compare import compare  # noqa: PLC0415 - imports PyTorch

    most_called = sorted(calls, key=lambda call: -call.count)[: options.models]
    rows = []
    for number, call in enumerate(most_called, start=1):
        _say(f"measuring model {number} of {len(most_called)}, {call.name}")
        try:
            rows.append(compare(call, timelines=options.timeline is not None))
        except (RuntimeError, UserError) as failure:  # memory, mostly: the others may fit
            _say(f"{call.name} cannot be measured: {(str(failure) or type(failure).__name__).splitlines()[0]}")
    print_table(rows, left_out=len(calls) - len(most_called))
    if options.timeline:
        write_timelines(rows, options.timeline, options.program, force=options.force)
    if options.csv:
        write_rows(rows, options.csv)


def print_table(rows: list[Comparison], *, left_out: int = 0) -> None:
    """The rows on stderr, and below them what runs in whose kernels."""
    from rich.table import Table  # noqa: PLC0415 - heavy, and not needed for --help
    from rich.text import Text  # noqa: PLC0415 - as above

    from tileprof.cli.text.console import plain, terminal  # noqa: PLC0415 - as above

    console = terminal(file=sys.stderr)
    table = Table(box=None, pad_edge=False)
    for name in (
        "model",
        "calls",
        "eager",
        "Inductor",
        "tileprof",
        "predicted",
        "weights alone",
        "Inductor / tileprof",
    ):
        table.add_column(name, justify="left" if name == "model" else "right")
    for row in rows:
        times = [_us(row.us.get(v)) for v in ("eager", "inductor", "tileprof")]
        gain = f"{row.us['inductor'] / row.us['tileprof']:.2f}x" if {"inductor", "tileprof"} <= set(row.us) else "-"
        table.add_row(
            *map(Text, (plain(row.name), f"{row.count:,}", *times, _us(row.expected_us), _us(row.bound_us), gain))
        )
    console.print(table)
    for row in rows:
        for sentence in sentences(row):
            console.print(Text(f"{plain(row.name)}: {plain(sentence)}"))
    if left_out:
        console.print(
            Text(f"{left_out} more models, or other shapes, were called less often; --models N measures more.")
        )


def write_timelines(rows: list[Comparison], folder: Path, command: list[str], *, force: bool) -> None:
    """A trace per kernel with clocks that ran, under ``folder``."""
    import torch  # noqa: PLC0415 - slow to import

    from tileprof.cli.running.timeline_trace import write_trace  # noqa: PLC0415 - imports pyarrow
    from tileprof.devices import of_driver  # noqa: PLC0415 - as above

    device = of_driver(torch.cuda.get_device_name())
    for number, row in enumerate(rows, start=1):
        for part, timeline in enumerate(row.timelines, start=1):
            path = write_trace(timeline, folder / f"model{number}-{part}.tileprof", device, command, force=force)
            _say(
                f"{row.name}: {timeline.name}, {timeline.span_ns / 1e3:.1f} us with clocks: {path}; next: tileprof view"
            )
        if not row.timelines:
            _say(f"{row.name}: no kernel with clocks ran, so there is no timeline")


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} us"


def sentences(row: Comparison) -> list[str]:
    """Return which parts of a model run in kernels of this package, which do not and why, and what failed."""
    lines = [f"in kernels of tileprof: {row.winners}" if row.winners else "nothing runs in kernels of tileprof"]
    lines += [f"Inductor's program runs: {report.reason}" for report in row.reports if report.reason]
    refusals = [
        f"{name} ({count}, {100 * share:.0f}% of eager PyTorch's time)"
        for name, count, share in row.inductor_operators[:_SHOWN]
        if share > 0
    ]
    if refusals:
        lines.append(f"not taken: {', '.join(refusals)}")
    if not row.graph:
        lines.append("times are those of single calls: it cannot be captured in a CUDA graph")
    lines += [f"{variant} failed: {why}" for variant, why in row.failures.items()]
    return lines


def write_rows(rows: list[Comparison], path: Path) -> None:
    """The rows as CSV, times in microseconds."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in rows:
            writer.writerow(_flat(row))


def _flat(row: Comparison) -> dict[str, Any]:
    return {
        "model": row.name,
        "calls": row.count,
        "graph": row.graph,
        **{f"{v}_us": row.us.get(v) for v in ("eager", "inductor", "tileprof")},
        "predicted_us": row.expected_us,
        "weights_us": row.bound_us,
        "kept": row.winners,
        "not_taken": "; ".join(f"{n} {c} {s:.4f}" for n, c, s in row.inductor_operators),
        "failures": "; ".join(f"{v}: {why}" for v, why in row.failures.items()),
    }


def _say(sentence: str) -> None:
    say(f"tileprof: {sentence}")
