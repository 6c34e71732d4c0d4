"""Joining the passes: the same program ran several times, and launch n of one run is launch n of another.

Launches agree when their place in issue order, kernel, grid and block agree. Where places shift, the n-th launch of a
kernel and grid is taken for the n-th of the other run if both ran it equally often; whatever is left is reported.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tileprof.record.cuda import raw
from tileprof.record.cuda.tiles import Geometry, Times, times

Key = tuple[str, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Matched:
    """``found[ordinal]`` is the row of the other pass for a launch of this one; ``report`` says how they differ."""

    found: dict[int, int]
    report: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """The launches of the pass that the trace is made from: ordinals and keys; whether they are all of the program."""

    ordinals: list[int]
    keys: list[Key]
    names: dict[str, str] = field(default_factory=dict)
    whole: bool = True

    @classmethod
    def of(cls, process: raw.Process) -> Reference:
        """Of a process's events."""
        kernels = {e["id"]: e for e in process.events if e["e"] == "kernel"}
        launches = [e for e in process.events if e["e"] == "launch"]
        ordinals = [e["ordinal"] for e in launches]
        keys = [key_of(kernels[e["kernel"]]["symbol"], e) for e in launches]
        names = {k["symbol"]: k["name"] for k in kernels.values()}
        return cls(ordinals, keys, names, whole=ordinals == list(range(len(ordinals))))


def key_of(symbol: str, row: dict[str, Any]) -> Key:
    """What two runs of a launch have in common."""
    return symbol, tuple(row["grid"]), tuple(row["block"])


def match(reference: Reference, other: Sequence[Key], name: str) -> Matched:
    """The rows of another pass, in its issue order, that belong to the launches of ``reference``."""
    found = {
        o: o for o, key in zip(reference.ordinals, reference.keys, strict=True) if o < len(other) and other[o] == key
    }
    missing = [(o, key) for o, key in zip(reference.ordinals, reference.keys, strict=True) if o not in found]
    same_length = not reference.whole or len(other) == len(reference.keys)
    if not missing and same_length:
        return Matched(found)
    rows = defaultdict(list)
    for row, key in enumerate(other):
        rows[key].append(row)
    mine = defaultdict(list)
    for ordinal, key in zip(reference.ordinals, reference.keys, strict=True):
        mine[key].append(ordinal)
    if reference.whole:
        for key in {key for _, key in missing}:
            if len(mine[key]) == len(rows[key]):
                found.update(zip(mine[key], rows[key], strict=True))
    left = [(o, key) for o, key in missing if o not in found]
    return Matched(found, _report(reference, other, name, missing, left))


def _report(reference: Reference, other: Sequence[Key], name: str, missing: list[Any], left: list[Any]) -> str:
    text = f"the program is not repeatable: the {name} pass saw {len(other)} launches, the accesses pass {len(reference.keys)}"
    if missing:
        ordinal, (symbol, grid, _) = missing[0]
        seen = other[ordinal][0] if ordinal < len(other) else "no launch"
        here = reference.names.get(symbol, symbol)
        text += f"; they first differ at launch {ordinal}: {here} {grid} against {reference.names.get(seen, seen)}"
    return (
        f"{text}; {len(left)} launches have no {name}"
        if left
        else f"{text}; all launches were found by kernel and grid"
    )


@dataclass(slots=True)
class TimePass:
    """What CUPTI said: its rows in issue order. ``failure`` says why there are none."""

    rows: list[dict[str, Any]]
    failure: str = ""

    @property
    def keys(self) -> list[Key]:
        return [key_of(row["name"], row) for row in self.rows]


def time_passes(folder: Path) -> list[TimePass]:
    """The time pass of each process that left one, most kernels first."""
    found = []
    for process in sorted(folder.glob("process-*")):
        rows, failed = process / "kernels.jsonl", process / "failed.txt"
        if rows.exists():
            lines = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
            found.append(TimePass(sorted(lines, key=lambda r: (r["correlation"], r["begin"]))))
        elif failed.exists():
            found.append(TimePass([], failed.read_text(encoding="utf-8")))
    return sorted(found, key=lambda p: -len(p.rows))


def block_times(process: raw.Process) -> tuple[list[Key], list[Times]]:
    """The launches of a blocks pass, and when their tiles ran."""
    reference = Reference.of(process)
    found = []
    for event in process.events:
        if event["e"] == "launch":
            entries = process.of(event["launch"], min(event["generation"], raw.LAST_GENERATION))
            found.append(times(entries, Geometry.of(event)))
    return reference.keys, found
