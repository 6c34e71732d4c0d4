"""The trace format: its schema, a streaming writer, a reader and a validator.

The words of recorders are here at once; the writer, the reader and the rules, which need pyarrow and pandas, when
they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes, Footprint, Launch

if TYPE_CHECKING:
    from tileprof.trace.reader import Trace, load
    from tileprof.trace.recording import MemoryRecording, Recording
    from tileprof.trace.rules import RULES, Violation, validate
    from tileprof.trace.writer import TraceWriter

__all__ = [
    "ATOMIC",
    "READ",
    "RULES",
    "WRITE",
    "Boxes",
    "Footprint",
    "Launch",
    "MemoryRecording",
    "Recording",
    "Trace",
    "TraceWriter",
    "Violation",
    "load",
    "validate",
]

_HOMES = {
    "RULES": "rules",
    "MemoryRecording": "recording",
    "Recording": "recording",
    "Trace": "reader",
    "TraceWriter": "writer",
    "Violation": "rules",
    "load": "reader",
    "validate": "rules",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"tileprof.trace.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tileprof.trace' has no attribute {name!r}")
