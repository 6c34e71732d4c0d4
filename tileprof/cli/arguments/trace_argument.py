"""The TRACE that a verb is given: read, or refused with the names of traces that may have been meant."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tileprof.cli.text.messages import why_empty
from tileprof.errors import TraceError, UserError

if TYPE_CHECKING:
    from tileprof.trace import Trace

_MOST_NAMED = 8


def load_trace(path: str | Path) -> Trace:
    """Return `tileprof.load`, but a folder that holds traces and is none itself is answered with their names
    (`UserError`).
    """
    from tileprof.trace import load, manifest  # noqa: PLC0415 - heavy, and not needed for --help
    from tileprof.trace.schema import SUFFIX  # noqa: PLC0415 - as above

    try:
        return load(path)
    except TraceError:
        inside: list[Path] = []
        with suppress(OSError):  # a name too long for the system, say: what `load` said stands
            inside = sorted(p for p in Path(path).glob(f"*{SUFFIX}") if (p / manifest.FILE_NAME).exists())
        if not inside:
            raise
    more = f" and {len(inside) - _MOST_NAMED} more" if len(inside) > _MOST_NAMED else ""
    names = ", ".join(folder.name for folder in inside[:_MOST_NAMED])
    raise UserError(f"{path} is not a trace, but holds {names}{more}: name one, {inside[0]}")


def load_launches(path: str | Path) -> Trace:
    """Return `load_trace`, for a verb that simulates; raises `UserError` where the trace holds no launches."""
    trace = load_trace(path)
    if not len(trace.launches):
        raise UserError(f"{path} holds no launches to simulate: {why_empty(complete=trace.complete)}")
    return trace
