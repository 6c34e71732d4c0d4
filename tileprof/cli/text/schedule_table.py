"""The table of `tileprof simulate`: a row per scheduler, printed as soon as it is known, and the bounds below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from tileprof.analysis.times_and_counts import duration, signed_percent
from tileprof.cli.text.console import plain
from tileprof.cli.text.guidance_text import percent

if TYPE_CHECKING:
    from rich.console import Console

    from tileprof.analysis.bounds import Bounds
    from tileprof.analysis.simulate import Schedule

READY = ("ready-gated path", "head and tail")
MARKS = "¹²"
_BOUND = "bound, any schedule¹"
_COLUMNS = {"time": 7, "saved": 6, "busy": 4, "idle ends": 9, "waits": 7}
"""Names of columns and their widths in characters: wide enough for nearly every value, because rows are not known
beforehand.
"""
_LAST = "overheads"


class ScheduleTable:
    """Prints rows one by one; ``names`` are those of all rows to come, ``stream`` is what savings are against."""

    def __init__(self, console: Console, names: Sequence[str], stream: Schedule) -> None:
        self._console, self._stream = console, stream
        self._first = min(max(len(_BOUND), *(len(plain(name)) for name in names)), 2 * len(_BOUND))
        columns_width = self._first + sum(2 + width for width in _COLUMNS.values())
        self._room = max(console.width - columns_width - 2, len(_LAST))

    def head(self) -> None:
        """Print the names of the columns."""
        self._line("scheduler", tuple(_COLUMNS), _LAST, "bold")

    def row(self, schedule: Schedule) -> None:
        """Print one scheduler; an overhead that the line has no room for goes below."""
        name = plain(schedule.scheduler)
        if schedule.deadlock:
            self._line(name, (), "deadlock", "bold red")
            return
        overheads = schedule.overheads_ns
        kind = max(overheads, key=overheads.__getitem__, default="")
        most = f"{kind} {duration(overheads[kind])}" if kind else "-"
        fits = len(most) <= self._room
        values = (
            duration(schedule.time_ns),
            saved(schedule.time_ns, self._stream),
            percent(schedule.busy),
            duration(schedule.boundary_ns),
            duration(schedule.waiting_ns),
        )
        self._line(name, values, most if fits else kind)
        if not fits:
            self._line("", ("",) * len(_COLUMNS), duration(overheads[kind]))

    def bounds(self, bounds: Bounds) -> None:
        """Print the bounds, with marks that the notes explain."""
        for mark, name in zip(MARKS, bound_names(bounds), strict=False):
            whose = "ready-gated" if name in READY else "any schedule"
            values = (duration(bounds.ns[name]), saved(bounds.ns[name], self._stream))
            self._line(f"bound, {whose}{mark}", values, "", "dim")

    def _line(self, first: str, values: Sequence[str], last: str, style: str = "") -> None:
        """One line, or more where a scheduler's options make its name longer than its column; values are never cut."""
        names = [first[at : at + self._first] for at in range(0, max(len(first), 1), self._first)]
        cells = "".join(f"  {value:>{width}}" for value, width in zip(values, _COLUMNS.values(), strict=False))
        line = f"{names[0]:<{self._first}}{cells}" + (f"  {last:>{self._room}}" if last else "")
        for text in (line.rstrip(), *names[1:]):
            self._console.print(Text(text, style=style), crop=False, soft_wrap=True)


def saved(ns: float, stream: Schedule) -> str:
    """Return what a time in ns saves of stream order's, as a signed percentage."""
    return signed_percent(1 - ns / stream.time_ns) if stream.time_ns > 0 else "-"


def bound_names(bounds: Bounds) -> list[str]:
    """Return the largest bound of any schedule, and of ready-gated ones where that is larger."""
    ready = max(READY, key=lambda name: bounds.ns[name])
    return [bounds.binding] if bounds.ns[ready] <= bounds.bound_ns else [bounds.binding, ready]
