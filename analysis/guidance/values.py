"""The values that guidance consists of, with their JSON form.

`Guidance.to_json`, which ``tileprof report --json`` holds under ``guidance``; times are nanoseconds, shares 0 to 1. ::

    verdict    kind, sentence, saves_ns, saves_share     of the first action; 0 where there is none
    schedules  [name, label, time_ns, saves_share]        from what is recorded down to the bound
    actions    [kind, title, saves_ns, saves_share, basis, effort, reason, command, launches, beyond]
    operators  [name, launches, tiles, time_ns, share, filled]
    modules    the same, by module
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tileprof.analysis.times_and_counts import duration

Basis = Literal["simulated", "estimated", "at most"]
Effort = Literal["minutes", "hours", "days"]


@dataclass(frozen=True, slots=True)
class ScheduleTime:
    """One schedule of the whole program; ``saves_share`` is against the recorded time, negative where it is slower."""

    name: str
    label: str
    time_ns: float
    saves_share: float


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    ``saves_ns``: over all repetitions, beyond what ``beyond`` saves ("a CUDA graph", "a CUDA graph with dependent
    launch"; empty: against the recorded time); actions overlap, so do not add them. ``saves_share``: of the recorded
    time. ``basis``: a simulation, an estimate that ``reason`` states, or an upper bound. ``launches``: an example,
    ascending; empty for the whole program. ``command``: to copy, shell or Python.
    """

    kind: str
    title: str
    saves_ns: float
    saves_share: float
    basis: Basis
    effort: Effort
    reason: str
    command: str
    launches: tuple[int, ...] = ()
    beyond: str = ""

    @property
    def saving(self) -> str:
        """The saved time in words, without its share."""
        most = "at most " if self.basis == "at most" else ""
        beyond = f" beyond {self.beyond}" if self.beyond else ""
        return f"{most}{duration(self.saves_ns)}{beyond}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The limit of the program, in a word (``kind``) and in a sentence that ends with the first action."""

    kind: str
    sentence: str
    saves_ns: float
    saves_share: float


@dataclass(frozen=True, slots=True)
class Share:
    """Launches of one operator or module.

    ``time_ns``: sum of their durations; ``share``: of the recorded time; ``filled``: mean share of slot-time that has a
    tile while they run, weighed by time.
    """

    name: str
    launches: int
    tiles: int
    time_ns: float
    share: float
    filled: float


@dataclass(frozen=True, slots=True)
class Guidance:
    """The answer to "what should I do first?"; ``actions`` are sorted, the most useful first."""

    verdict: Verdict
    schedules: tuple[ScheduleTime, ...]
    actions: tuple[Action, ...]
    operators: tuple[Share, ...]
    modules: tuple[Share, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON types, as in the module's docstring."""
        value = asdict(self)
        for action in value["actions"]:
            action["launches"] = list(action["launches"])
        return {name: list(part) if isinstance(part, tuple) else part for name, part in value.items()}
