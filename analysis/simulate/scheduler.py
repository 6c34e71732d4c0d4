"""The interface of schedulers; reads their options from ``name:key=value,key=value``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds.machine import Machine
from tileprof.analysis.bounds.problem import Links, Problem
from tileprof.analysis.simulate.address_ranges import range_hazards
from tileprof.analysis.simulate.engine.plan import Draft, Plan
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph
    from tileprof.analysis.simulate.engine.event_loop import Outcome, Room
    from tileprof.devices import Device


@dataclass(frozen=True, slots=True)
class Program:
    """The part of a program that a scheduler may look at: launches and their dependencies on each other, not single
    tiles.

    ``parents[c]`` maps each launch that c depends on to when in the work of c's tiles its bytes are first needed (0 to
    1, the least over all tiles; 0 where unknown), ``written[c]`` to when in the work of that launch's tiles they are
    last touched (the most; 1 where unknown). ``recycled[c]`` holds launches that c depends on through recycled memory
    alone. ``hazards[c]`` maps each launch that c depends on (recycled memory included) to its hazards; ``edges[c]`` and
    ``fan_in[c]`` count the dependencies of c's tiles on tiles, in sum and of the tile with most; ``segments[c]`` the
    operands of c. ``overlaps(window, whole)`` gives hazards as ``hazards`` does, found by comparing address ranges with
    those of the last ``window`` launches; ``whole``: reads count as whole buffers.
    """

    launches: pd.DataFrame
    device: Device
    parents: list[dict[int, float]]
    written: list[dict[int, float]]
    recycled: list[set[int]]
    hazards: list[dict[int, set[str]]]
    edges: list[int]
    fan_in: list[int]
    segments: list[int]
    sms: int
    overlaps: Callable[[int, bool], list[dict[int, set[str]]]]

    @property
    def count(self) -> int:
        return len(self.launches)

    def issued(self, issue_ns: float | None) -> list[float]:
        """Return when a host thread that takes so long per launch (the device's figure unless given) has issued each
        launch.
        """
        each = self.device.issue_ns() if issue_ns is None else issue_ns
        return [launch * each for launch in range(self.count)]

    def all_parents(self, launch: int) -> set[int]:
        """Return all parents, those through recycled memory too, which a scheduler that reorders launches must keep."""
        return set(self.parents[launch]) | self.recycled[launch]

    def stream_predecessor(self) -> list[int]:
        """Return ``[launches]`` the launch before in the same recorded stream; -1 for none."""
        last: dict[int, int] = {}
        predecessors = []
        for launch, stream in enumerate(self.launches["stream"].tolist()):
            predecessors.append(last.get(stream, -1))
            last[stream] = launch
        return predecessors


def program_of(graph: TileGraph, selection: Sequence[int] | None = None, machine: Machine | None = None) -> Program:
    """Return launch-level dependencies of a tile graph, or between some of its launches (ascending), then numbered from
    0.

    ``machine`` it is to run on: its device's launch gaps and rates of issue count, and its SMs; the recorded device's
    without.
    """
    machine = machine or Machine(graph.device)
    launches = graph.launches if selection is None else graph.launches.iloc[list(selection)]
    links = Links.of(graph).between(launches["launch"].to_numpy(np.int64))
    parents: list[dict[int, float]] = [{} for _ in range(len(launches))]
    recycled: list[set[int]] = [set() for _ in range(len(launches))]
    written: list[dict[int, float]] = [{} for _ in range(len(launches))]
    needs: dict[int, tuple[float, float]] = {}
    rows = zip(*(column.tolist() for column in links), strict=True)
    for p, c, number, reuse in rows:
        if reuse:
            recycled[c].add(p)
            continue
        if number not in needs:
            block = graph.blocks[number]
            first, last = np.nan_to_num(block.first, nan=0.0), np.nan_to_num(block.last, nan=1.0)
            needs[number] = float(first.min(initial=1.0)), float(last.max(initial=0.0))
        parents[c][p] = min(parents[c].get(p, 1.0), needs[number][0])
        written[c][p] = max(written[c].get(p, 0.0), needs[number][1])
    hazards, edges, fan_in = _tile_level(graph, launches["launch"].to_numpy(np.int64))
    operands = graph.recording.operands["launch"].value_counts()
    segments = operands.reindex(launches["launch"]).fillna(0).astype(int).tolist()
    return Program(
        launches,
        machine.device,
        parents,
        written,
        recycled,
        hazards,
        edges,
        fan_in,
        segments,
        machine.sms,
        lambda window, whole: range_hazards(graph.recording, launches["launch"].tolist(), window, whole=whole),
    )


def _tile_level(
    graph: TileGraph, selection: NDArray[np.int64]
) -> tuple[list[dict[int, set[str]]], list[int], list[int]]:
    """Return ``hazards``, ``edges`` and ``fan_in`` of a `Program`; parents that several links name count once each."""
    local = {launch: i for i, launch in enumerate(selection.tolist())}
    hazards: list[dict[int, set[str]]] = [{} for _ in local]
    edges, fan_in = [0] * len(local), [0] * len(local)
    widest = [int(np.diff(b.indptr).max(initial=0)) for b in graph.blocks]
    links = graph.links
    columns = [links[name].tolist() for name in ("producer", "consumer", "hazard", "block", "edges")]
    for producer, consumer, hazard, number, count in zip(*columns, strict=True):
        if producer in local and consumer in local:
            c = local[consumer]
            hazards[c].setdefault(local[producer], set()).add(hazard)
            edges[c] += count
            fan_in[c] += widest[number]
    return hazards, edges, fan_in


@runtime_checkable
class Rewires(Protocol):
    """A scheduler that knows other dependencies than the recorded ones."""

    def rewired(self, graph: TileGraph, p: Problem) -> tuple[Problem, list[str]]:
        """Return the problem with the dependencies that tiles then wait for, and sentences about them."""
        ...


@runtime_checkable
class Chooses(Protocol):
    """A scheduler whose user tries several ways and keeps the fastest."""

    def choices(self) -> Mapping[str, Scheduler]:
        """Return the ways, each by what it is called in a sentence; none where there is nothing to choose."""
        ...


@runtime_checkable
class RunsAlone(Protocol):
    """A scheduler with an event loop of its own, since it decides while tiles run."""

    def alone(self, p: Problem, room: Room, plan: Plan) -> tuple[Outcome, list[str]]:
        """Return what became of all tiles, and sentences about it; ``plan`` is that of its draft."""
        ...


class Scheduler(Protocol):
    """A frozen dataclass of options. ``name`` as on the command line; ``renames``: it frees itself of hazards of
    recycled memory (its own memory plan), so tiles do not wait for those.
    """

    name: ClassVar[str]
    renames: ClassVar[bool]

    def draft(self, program: Program) -> Draft:
        """Return the decisions for a program."""
        ...

    def with_options(self, options: Mapping[str, str]) -> Self:
        """Return a copy with options given as text."""
        ...

    def options(self) -> dict[str, bool]:
        """Return names of the options, and whether each is a whole number."""
        ...


@dataclass(frozen=True)
class Options:
    """Base of schedulers: options are dataclass fields; their ``metadata["least"]`` and ``["most"]`` are checked."""

    kind: ClassVar[str] = "scheduler"
    name: ClassVar[str] = ""
    renames: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for f in fields(self):
            _check(f"{self.kind} {self.name}", f, getattr(self, f.name))

    def with_options(self, options: Mapping[str, str]) -> Self:
        """Raises UserError for an unknown key (with a close match) and for values that are no numbers or out of
        range.
        """
        by_name = {f.name: f for f in fields(self)}
        values: dict[str, Any] = {}
        for name, value in options.items():
            who = f"{self.kind} {self.name}"
            key, text = plain_key(who, name, value, by_name)
            if key not in by_name:
                raise UserError(f"{who} has no option {key!r}{close(key, by_name)}; it has {_comma_list(by_name)}")
            if key in values:
                raise UserError(f"{who}: {key} is given twice, once with its unit; give it once")
            values[key] = _number(who, by_name[key], text)
        return replace(self, **values)

    def options(self) -> dict[str, bool]:
        """Return names of the options, and whether each is a whole number."""
        return {f.name: f.metadata["whole"] for f in fields(self)}


LONGEST_NS: Final = 1e12
"""A quarter of an hour: what options may ask for of a time, and more than any program takes that is simulated here."""

MOST_COUNTED: Final = 1_000_000
"""Limit of windows, threads, queues, nodes."""


def option(
    default: float | None,
    meaning: str,
    *,
    least: float = 0.0,
    most: float | None = None,
    whole: bool | None = None,
    names: tuple[str, ...] = (),
) -> Any:
    """Return a field of a scheduler: None means that the device's figure is used; whole numbers are those with a whole
    default. Limits are `LONGEST_NS` or `MOST_COUNTED` unless given. ``names``: of the numbers from 0, which users may
    write instead.
    """
    whole = isinstance(default, int) if whole is None else whole
    most = len(names) - 1 if names else (MOST_COUNTED if whole else LONGEST_NS) if most is None else most
    limits = {"meaning": meaning, "least": least, "most": most, "whole": whole, "names": names}
    return field(default=default, metadata=limits)


def _check(who: str, option: Field[Any], value: Any) -> None:
    least, most = option.metadata["least"], option.metadata["most"]
    if value is not None and not least <= value <= most:
        raise UserError(
            f"{who}: {option.name} is {short(value)}, expected at least {least:g} and at most {short(most)} "
            f"({option.metadata['meaning']})"
        )


def short(value: float) -> str:
    """Return a value as typed where that is short; whole numbers may be too large for floating point."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= len(str(MOST_COUNTED)) + 6 else f"{text[:6]}… ({len(text)} digits)"


_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6}


def key_values(text: str, kind: str = "scheduler") -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,…`` into parts. Raises UserError for what is not key=value, and for an option
    given twice.
    """
    name, colon, rest = text.partition(":")
    options: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(
                f"{kind} {text}: {part!r} is not key=value; write {name}:key=value,key=value or {name} alone"
            )
        if key in options:
            raise UserError(f"{kind} {name}: {key} is given twice, as {options[key]} and {value}; give it once")
        options[key] = value
    return name, options


def plain_key(who: str, key: str, text: str, names: Iterable[str]) -> tuple[str, str]:
    """Return ``gap=2us`` as ``gap_ns=2000.0``; what has its unit in its name already is as it was. Raises UserError for
    ``gap=2``.
    """
    if key in names or f"{key}_ns" not in names:
        return key, text
    number = text.rstrip("nums")
    unit = text[len(number) :]
    try:
        if unit in _NS:
            return f"{key}_ns", str(float(number) * _NS[unit])
    except ValueError:
        pass  # said below
    raise UserError(f"{who}: {key}={text} is not a time with a unit; write {key}=2us or {key}_ns=2000")


def _number(who: str, option: Field[Any], text: str) -> float | int:
    whole, names = option.metadata["whole"], option.metadata["names"]
    if text in names:
        return int(names.index(text))
    try:
        return int(text) if whole else float(text)
    except ValueError:
        if names:
            choices = f"{_comma_list(names)}{close(text, names)} ({option.metadata['meaning']})"
            raise UserError(f"{who}: {option.name}={text}; expected one of {choices}") from None
        kind = "a whole number" if whole else "a number"
        raise UserError(f"{who}: {option.name}={text} is not {kind} ({option.metadata['meaning']})") from None


def _comma_list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def close(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the best match of a mistyped word, or nothing."""
    matches = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""
