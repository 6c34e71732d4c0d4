"""A trace that is being recorded, shown again whenever more of it is on the disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tileprof.cli.text.messages import say
from tileprof.errors import TraceError
from tileprof.trace import folder, load, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tileprof.trace import Trace

LOOK_AGAIN_S = 1.0
"""A recording writes what it has every ten seconds, or every million rows."""


def watch(path: str, show: Callable[[Trace], None], *, plain: bool) -> int:
    """Show the trace now and after every checkpoint of its recording, until that has ended: the exit code, 0.

    On a terminal each report takes the place of the one before; elsewhere they follow each other, and only what changed
    is printed. A trace that is complete is shown once. Ctrl-C ends it. Raises TraceError where there is no trace
    at all.
    """
    whole, partial = folder.places(path)
    last_state: tuple[object, ...] | None = None
    try:
        while True:
            recording = manifest.live_writer(partial) is not None
            trace = _newest_trace(partial, whole, recording=recording)
            if trace is not None:
                state = (recording, trace.count("launches"), trace.count("times"))
                clear = sys.stdout.isatty() and not plain and (recording or last_state is not None)
                if state != last_state and _try_to_show(trace, show, recording=recording, clear=clear):
                    last_state = state
                if not recording:
                    return 0
                if sys.stderr.isatty():
                    line = (
                        f"recording: {trace.count('launches'):,} launches so far; Ctrl-C ends the watch, not the "
                        "recording"
                    )
                    say(line, end="\r")
            time.sleep(LOOK_AGAIN_S)
    except KeyboardInterrupt:
        say("")
        return 0


def _newest_trace(partial: Path, whole: Path, *, recording: bool) -> Trace | None:
    """Return what there is; None while the recording's end moves it from one name to the other."""
    if recording:
        with suppress(TraceError):
            return load(partial)
        return None
    return load(whole if whole.exists() or not partial.exists() else partial)


def _try_to_show(trace: Trace, show: Callable[[Trace], None], *, recording: bool, clear: bool) -> bool:
    """Return whether it could be: the end of a recording may move a trace away while it is read."""
    if clear:
        sys.stdout.write("\x1b[H\x1b[2J\x1b[3J")
    try:
        show(trace)
    except TraceError:
        if not recording:
            raise
        return False
    sys.stdout.flush()
    return True
