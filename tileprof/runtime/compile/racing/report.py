"""The backend's account of a graph, for readers who want more than the log."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tileprof.runtime.compile.regions.region import Region


@dataclass(slots=True)
class Report:
    """The outcome for one graph.

    ``region_counts``: regions by name. ``inductor_operators``: operators that Inductor compiles in our program, by
    their name in ATen. Times in microseconds, of the race.
    """

    region_counts: Counter[str] = field(default_factory=Counter)
    inductor_operators: Counter[str] = field(default_factory=Counter)
    reason: str = ""
    """Why Inductor's program runs; empty while ours does, or nothing has been decided."""
    ours_us: float | None = None
    inductor_us: float | None = None
    winner: str = ""
    """The regions of the program that runs; empty where it is Inductor's."""
    regions: Sequence[Region] = ()
    """All that were found; before anything runs, what predictions are made from."""


_LISTENING: Final[list[list[Report]]] = []
_LOCK: Final = threading.Lock()


@contextmanager
def reports() -> Iterator[list[Report]]:
    """Yield the reports of all graphs that the backend is given meanwhile; a report is completed when its program is
    first called.
    """
    collected: list[Report] = []
    with _LOCK:
        _LISTENING.append(collected)
    try:
        yield collected
    finally:
        with _LOCK:
            _LISTENING[:] = [other for other in _LISTENING if other is not collected]


def announce(report: Report) -> None:
    """Hand a report to all listeners."""
    with _LOCK:
        for collected in _LISTENING:
            collected.append(report)
