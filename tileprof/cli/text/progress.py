"""The progress of a long command, on stderr: one line and the elapsed time; without a terminal, a line every half
minute.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tileprof.cli.text.console import terminal

SELDOM_S = 30.0
"""Seconds between lines in a log: a short command writes none. The environment variable `EVERY` overrides it; 0: no
lines.
"""

EVERY = "TILEPROF_PROGRESS_S"


def first_time() -> str:
    """Return what to add to a step that simulates, where compiled code is not in the cache yet."""
    from tileprof.analysis.simulate.engine.event_loop import is_compiled  # noqa: PLC0415 - heavy

    return "" if is_compiled() else " (compiling once, 20 s)"


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Gives a function to call with the step that begins. A terminal's line is gone at the end; stdout is never
    touched.
    """
    if sys.stderr is None:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        seconds = _between_lines()
        if seconds <= 0:
            yield lambda _: None
            return
        with _lines(seconds) as say:
            yield say
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - heavy

    columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = terminal(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task("tileprof")
        yield lambda step: progress.update(task, description=f"tileprof: {step}")


def _between_lines() -> float:
    try:
        return float(os.environ.get(EVERY, SELDOM_S))
    except ValueError:
        return SELDOM_S


@contextmanager
def _lines(seconds: float) -> Iterator[Callable[[str], None]]:
    begin_s, present, over = time.monotonic(), "", threading.Event()

    def begins(step: str) -> None:
        nonlocal present
        present = step

    def tell() -> None:
        while not over.wait(seconds):
            sys.stderr.write(f"tileprof: {present}, {time.monotonic() - begin_s:.0f} s\n")
            sys.stderr.flush()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield begins
    finally:
        over.set()
        thread.join()
