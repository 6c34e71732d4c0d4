"""Joining the passes: the same program ran several times, and launch n of one run is launch n of another.

Launches agree when their place in issue order, kernel, grid and block agree. Where places shift, the n-th launch of a
kernel and grid is taken for the n-th of the other run if both ran it equally often. A recording of a part of the
program is looked for as a whole. Whatever is left is reported.
"""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.graphs import Attribution, Graphs
from tileprof.record.cuda.records.tiles import Geometry, Times, times

Key = tuple[str, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Matched:
    """``found[ordinal]`` is the row of the other pass for a launch of this one; ``report`` says how they differ."""

    row_of: dict[int, int]
    report: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """The launches of the pass that the trace is made from: ordinals and keys; whether they are all of the program.

    ``ranged``: launches outside captured ranges were not even counted, so ordinals mean nothing to a pass that counts
    them. ``begins``: where in ``keys`` the launches of another range begin; those of one range follow each other in
    every pass. ``regions``: the program marked regions, and its launches after the first of them, outside of any, are
    not here.
    """

    ordinals: list[int]
    keys: list[Key]
    names: dict[str, str] = field(default_factory=dict)
    whole: bool = True
    ranged: bool = False
    begins: tuple[int, ...] = (0,)
    regions: bool = False

    @classmethod
    def of(cls, process: raw.Process) -> Reference:
        """Return the reference of a process's events."""
        kernels = {e["id"]: e for e in process.events if e["e"] == "kernel"}
        launches = [e for e in process.events if e["e"] == "launch"]
        ordinals = [e["ordinal"] for e in launches]
        keys = [key_of(kernels[e["kernel"]]["symbol"], e) for e in launches]
        names = {k["symbol"]: k["name"] for k in kernels.values()}
        ranged = any(e["e"] == "start" and e.get("ranged") for e in process.events)
        whole = sorted(ordinals) == list(range(len(ordinals))) and not ranged  # threads may log theirs in another order
        regions = any(e["e"] == "capture" for e in process.events)
        return cls(ordinals, keys, names, whole=whole, ranged=ranged, begins=_begins(process.events), regions=regions)


def _begins(events: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """Return how many launches there were when ranges began."""
    begins, launches = {0: None}, 0
    for event in events:
        launches += event["e"] == "launch"
        if (event["e"] == "capture" and event["on"]) or (event["e"] == "benchmark" and not event["on"]):
            begins[launches] = None
    return tuple(begins)


def key_of(symbol: str, row: dict[str, Any]) -> Key:
    """Return what two runs of a launch have in common."""
    return symbol, tuple(row["grid"]), tuple(row["block"])


def match(reference: Reference, other: Sequence[Key], name: str, ordinals: Sequence[int] | None = None) -> Matched:
    """Return the rows of another pass that belong to the launches of ``reference``.

    ``ordinals`` are the places of its rows in issue order; without them the rows are all launches of the program.
    """
    row_of = {o: row for row, o in enumerate(range(len(other)) if ordinals is None else ordinals)}
    if reference.ranged and ordinals is None:
        row_of = {}
    rows_of_launch = {
        o: row_of[o]
        for o, key in zip(reference.ordinals, reference.keys, strict=True)
        if o in row_of and other[row_of[o]] == key
    }
    missing = [(o, key) for o, key in zip(reference.ordinals, reference.keys, strict=True) if o not in rows_of_launch]
    part = not reference.whole or (reference.regions and len(other) > len(reference.keys))
    same_length = len(other) == len(reference.keys) or (ordinals is None and part)
    if not missing and same_length:
        return Matched(rows_of_launch)
    if missing and not reference.whole and (places := windows(reference.keys, reference.begins, other)):
        return Matched(dict(zip(reference.ordinals, places, strict=True)))  # it may warm up differently
    rows = defaultdict(list)
    for row, key in enumerate(other):
        rows[key].append(row)
    ordinals_of = defaultdict(list)
    for ordinal, key in sorted(zip(reference.ordinals, reference.keys, strict=True)):
        ordinals_of[key].append(ordinal)
    if reference.whole or ordinals is not None:
        for key in {key for _, key in missing}:
            if len(ordinals_of[key]) == len(rows[key]):
                rows_of_launch.update(zip(ordinals_of[key], rows[key], strict=True))
    unmatched = [(o, key) for o, key in missing if o not in rows_of_launch]
    names_there = {o: other[row][0] for o, row in row_of.items()}
    return Matched(rows_of_launch, _report(reference, names_there, name, missing, unmatched))


def windows(keys: Sequence[object], begins: Sequence[int], other: Sequence[object]) -> list[int]:
    """Return the places in ``other`` of the stretches of ``keys`` that begin there, each whole, the last ones in that
    order; or none.
    """
    places: list[int] = []
    for begin, end in reversed(list(zip(begins, [*begins[1:], len(keys)], strict=True))):
        if begin == end:
            continue
        start = window(keys[begin:end], other[: places[0] if places else len(other)])
        if start is None:
            return []
        places[:0] = range(start, start + end - begin)
    return places


def window(keys: Sequence[object], other: Sequence[object]) -> int | None:
    """Return where the whole sequence of ``keys`` last stands in ``other``, None where it does not."""
    for start in range(len(other) - len(keys), -1, -1):
        if other[start] == keys[0] and list(other[start : start + len(keys)]) == list(keys):
            return start
    return None


def captured(kernels: Sequence[int], launches: Sequence[int], begins: Sequence[int]) -> list[int]:
    """Return for each kernel node of a graph the launch that was captured for it, -1 for none.

    The nodes' order is that of the whole of a capture, the last that fits; a launch of -1, of a kernel that never ran
    by itself, fits any node. Where a library adds nodes to the graph without a launch, no capture fits as a whole: then
    the last one, of those that begin at ``begins``, that holds at least half of the nodes in their order.
    """
    for start in range(len(launches) - len(kernels), -1, -1):
        if all(launch_node in (-1, node) for node, launch_node in zip(kernels, launches[start:], strict=False)):
            return list(range(start, start + len(kernels)))
    begins = begins or [0]
    for begin, end in reversed(list(zip(begins, [*begins[1:], len(launches)], strict=True))):
        matched = difflib.SequenceMatcher(None, list(kernels), list(launches[begin:end]), autojunk=False)
        places = [-1] * len(kernels)
        for at, there, count in matched.get_matching_blocks():
            places[at : at + count] = range(begin + there, begin + there + count)
        if sum(place >= 0 for place in places) * 2 >= len(kernels):
            return places
    return [-1] * len(kernels)


def _report(reference: Reference, other: dict[int, str], name: str, missing: list[Any], unmatched: list[Any]) -> str:
    text = (
        f"the program is not repeatable: the {name} pass saw {len(other)} launches, the accesses pass "
        f"{len(reference.keys)}"
    )
    if missing:
        ordinal, (symbol, grid, _) = missing[0]
        other_name = other.get(ordinal, "no launch")
        here, there = (reference.names.get(each, each) for each in (symbol, other_name))
        text += f"; they first differ at launch {ordinal}: {here} {grid} against {there}"
    return (
        f"{text}; {len(unmatched)} launches have no {name}"
        if unmatched
        else f"{text}; all launches were found by kernel and grid"
    )


@dataclass(slots=True)
class TimePass:
    """The measurements of CUPTI: its rows in issue order. ``failure`` says why there are none."""

    rows: list[dict[str, Any]]
    failure: str = ""

    @property
    def keys(self) -> list[Key]:
        return [key_of(row["name"], row) for row in self.rows]


def time_passes(folder: Path) -> list[TimePass]:
    """Return the time pass of each process that left one, most kernels first."""
    passes = []
    for process in sorted(folder.glob("process-*")):
        rows, failure_file = process / "kernels.jsonl", process / "failed.txt"
        if rows.exists():
            passes.append(_read_times(rows))
        elif failure_file.exists():
            passes.append(TimePass([], failure_file.read_text(encoding="utf-8")))
    return sorted(passes, key=lambda p: -len(p.rows))


def _read_times(path: Path) -> TimePass:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError:
        return TimePass([], "the program ended while its times were written")
    return TimePass(sorted(lines, key=lambda r: (r["correlation"], r["begin"])))


def block_times(process: raw.Process) -> tuple[Reference, list[Times]]:
    """Return the launches of a blocks pass, and when their tiles ran."""
    reference = Reference.of(process)
    block_rows = []
    graphs = Graphs(process)
    for event in process.events:
        if event["e"] == "launch":
            entries, attribution = graphs.entries(event)
            block_rows.append(times(entries if attribution is Attribution.EXACT else entries[:0], Geometry.of(event)))
    return reference, block_rows
