"""Where a long command is: one line on stderr with the time it has taken; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tileprof.cli.console import terminal


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Within it, call what it gives with the step that begins. The line is gone at the end; stdout is never touched."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - heavy

    columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = terminal(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as shown:
        task = shown.add_task("tileprof")
        yield lambda step: shown.update(task, description=f"tileprof: {step}")
