"""The rules of the format, each a small function with a name; recorders' tests run them on every trace.

What a table needs to be usable at all (ids that are there, sorted keys, boxes inside their buffers) is checked by the
reader; here it is the rule ``structure``. The others look at what the rows say.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import TraceError
from tileprof.trace import schema
from tileprof.trace.distinct import bytes_by_tile
from tileprof.trace.extents import FAR, reach, slots_bound, touched
from tileprof.trace.footprint import Boxes
from tileprof.trace.recording import Recording

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a row of a table breaks. ``row`` is its position in the table, -1 for the table as a whole."""

    rule: str
    table: str
    row: int
    message: str


@dataclass(frozen=True, slots=True)
class Rule:
    """``check`` yields ``(row, message)``; ``table`` is the table whose rows they are."""

    table: str
    meaning: str
    check: Callable[[Recording], Iterator[tuple[int, str]]]


def validate(trace: Recording) -> list[Violation]:
    """Return every broken rule of a trace, at most a few rows a rule (the last message counts the rest).

    A rule that computes with what another checks is left out while that one is broken.
    """
    violations = [v for table in schema.TABLES for v in _unreadable(trace, table)]
    if violations:
        return violations
    for name, rule in RULES.items():
        if any(v.rule in _AFTER.get(name, ()) for v in violations):
            continue
        violations += [Violation(name, rule.table, row, message) for row, message in _first_messages(rule.check(trace))]
    return violations


def _unreadable(trace: Recording, table: str) -> list[Violation]:
    try:
        trace.columns(table)
    except TraceError as error:
        return [Violation("structure", table, -1, str(error))]
    return []


def _first_messages(broken: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    messages: list[tuple[int, str]] = []
    more = 0
    for row, message in broken:
        if len(messages) < _SHOWN:
            messages.append((row, message))
        else:
            more += 1
    if more:
        row, message = messages[-1]
        messages[-1] = (row, f"{message}; and {more} more rows")
    yield from messages


def _where(broken: NDArray[np.bool_], message: Callable[[int], str]) -> Iterator[tuple[int, str]]:
    """Yield the broken rows; messages are made for the few that are shown."""
    for nth, row in enumerate(np.flatnonzero(broken).tolist()):
        yield row, message(row) if nth < _SHOWN else ""


def _at_least(least: int, rows: dict[str, Any], names: list[str]) -> Iterator[tuple[int, str]]:
    for name in names:
        yield from _where(rows[name] < least, partial(_too_small, name, rows[name], least))


def _too_small(name: str, values: NDArray[Any], least: int, row: int) -> str:
    return f"{name} is {values[row]}, expected at least {least}"


# ---- launches


def _launch_numbers(trace: Recording) -> Iterator[tuple[int, str]]:
    rows = trace.columns("launches")
    sizes = [f"{what}_{axis}" for what in ("grid", "block", "cluster") for axis in "xyz"]
    yield from _at_least(1, rows, [*sizes, "blocks_per_sm"])
    yield from _at_least(0, rows, ["duration_ns", "flops", "registers", "shared_bytes", "stream"])
    threads = rows["block_x"].astype(np.int64) * rows["block_y"] * rows["block_z"]
    limit = trace.device.threads_per_block
    yield from _where(
        threads > limit, lambda row: f"its block has {threads[row]} threads, {trace.device.name} takes {limit}"
    )


def _confession(trace: Recording) -> Iterator[tuple[int, str]]:
    rows = trace.columns("launches")
    silent = (rows["coverage"] != schema.COVERAGES.index("exact")) & (rows["note"].to_numpy() == "")
    yield from _where(
        silent, lambda row: f"coverage is {schema.COVERAGES[rows['coverage'][row]]}, but its note says nothing"
    )


# ---- boxes


def _box_sizes(trace: Recording) -> Iterator[tuple[int, str]]:
    yield from _at_least(1, trace.columns("accesses"), ["length", "count_0", "count_1"])


def _box_range(trace: Recording) -> Iterator[tuple[int, str]]:
    far = reach(trace.columns("accesses"))
    yield from _where(far > FAR, lambda row: f"its box reaches over {far[row]:.3g} bytes")


def _box_life(trace: Recording) -> Iterator[tuple[int, str]]:
    rows = trace.columns("accesses")
    first, last = rows["first"], rows["last"]
    wrong = (first < 0) | (last > 1) | (first > last) | (first > 1) | (last < 0)
    yield from _where(
        wrong, lambda row: f"first is {first[row]}, last is {last[row]}, expected 0 <= first <= last <= 1"
    )


def _bytes(trace: Recording) -> Iterator[tuple[int, str]]:
    tiles, rows = trace.columns("tiles"), trace.columns("accesses")
    base = np.searchsorted(tiles["footprint"], rows["footprint"], side="left")
    boxes = Boxes(*(rows[c.name] for c in schema.ACCESSES.columns[1:]))
    for name, actual in zip(
        ("bytes_read", "bytes_written"), bytes_by_tile(base + rows["tile"], boxes, len(tiles["tile"])), strict=True
    ):
        yield from _where(tiles[name] != actual, partial(_wrong_count_message, name, tiles[name], actual))


def _wrong_count_message(name: str, stored: NDArray[Any], actual: NDArray[Any], row: int) -> str:
    return f"{name} is {stored[row]}, its boxes hold {actual[row]}"


# ---- operands and buffers


def _bound(trace: Recording) -> Iterator[tuple[int, str]]:
    """Yield launches with fewer operands than their footprint's boxes name."""
    launches, bound = trace.columns("launches"), trace.columns("operands")
    rows = trace.columns("accesses")
    slots = np.zeros(trace.footprints, dtype=np.int64)
    np.maximum.at(slots, rows["footprint"], rows["operand"].astype(np.int64) + 1)
    operand_counts = np.bincount(bound["launch"], minlength=len(launches["launch"]))
    missing = operand_counts < slots[launches["footprint"]]
    yield from _where(
        missing,
        lambda row: f"its footprint has {slots[launches['footprint'][row]]} operands, bound are {operand_counts[row]}",
    )


def _inside(trace: Recording) -> Iterator[tuple[int, str]]:
    bound, size = trace.columns("operands"), trace.columns("buffers")["bytes"]
    extents = touched(trace, trace.columns("accesses"), slots_bound(trace))
    yield from _where(
        extents.outside,
        lambda row: (
            f"launch {bound['launch'][row]} touches bytes {extents.begin[row]} to {extents.end[row]} of buffer "
            f"{bound['buffer'][row]}, which has {size[bound['buffer'][row]]} (operand {bound['operand'][row]})"
        ),
    )


def _alive(trace: Recording) -> Iterator[tuple[int, str]]:
    bound, buffers = trace.columns("operands"), trace.columns("buffers")
    launch, buffer = bound["launch"], bound["buffer"]
    allocated, freed = buffers["allocated_at"][buffer], buffers["freed_at"][buffer]
    early, late = launch < allocated, (freed != schema.NEVER) & (launch >= freed)
    yield from _where(
        early, lambda row: f"launch {launch[row]} uses buffer {buffer[row]}, allocated after {allocated[row]} launches"
    )
    yield from _where(
        late, lambda row: f"launch {launch[row]} uses buffer {buffer[row]}, freed after {freed[row]} launches"
    )


def _buffer_numbers(trace: Recording) -> Iterator[tuple[int, str]]:
    rows = trace.columns("buffers")
    launches = trace.count("launches")
    allocated, freed = rows["allocated_at"], rows["freed_at"]
    yield from _where(rows["bytes"] < 0, lambda row: f"it has {rows['bytes'][row]} bytes")
    wrong = (allocated < -1) | (allocated > launches)
    yield from _where(wrong, lambda row: f"allocated_at is {allocated[row]}, expected -1 to {launches}")
    wrong = (freed != schema.NEVER) & ((freed < allocated) | (freed > launches))
    yield from _where(wrong, lambda row: f"freed_at is {freed[row]}, expected -1 or {allocated[row]} to {launches}")
    ranks = [len(shape) != len(strides) for shape, strides in zip(rows["shape"], rows["strides"], strict=True)]
    yield from _where(
        np.array(ranks, dtype=bool),
        lambda row: f"shape {rows['shape'][row]} and strides {rows['strides'][row]} differ in rank",
    )


def _apart(trace: Recording) -> Iterator[tuple[int, str]]:
    """Yield sweep over allocations and frees, with the live buffers sorted by address.

    Between the same two launches frees come first; a buffer that was made and freed there met no launch.
    """
    rows = trace.columns("buffers")
    allocated_at, freed, base = rows["allocated_at"], rows["freed_at"], rows["base"]
    ends = base + rows["bytes"]
    events = []
    for row in np.flatnonzero(
        (rows["bytes"] > 0) & ((allocated_at != freed) | (allocated_at == schema.NEVER))
    ).tolist():
        events.append((int(allocated_at[row]), 1, row))
        if freed[row] != schema.NEVER:
            events.append((int(freed[row]), 0, row))
    live: list[tuple[int, int]] = []
    for _, allocated, row in sorted(events):
        here = (int(base[row]), row)
        at = bisect_left(live, here)
        if not allocated:
            del live[at]
            continue
        for _, other in live[max(at - 1, 0) : at + 1]:
            if base[row] < ends[other] and base[other] < ends[row]:
                yield row, f"its bytes overlap those of buffer {other}, which lives at the same time"
        insort(live, here)


# ---- times


def _times(trace: Recording) -> Iterator[tuple[int, str]]:
    rows = trace.columns("times")
    begin, end, sm = rows["begin_ns"], rows["end_ns"], rows["sm"]
    yield from _where((begin < 0) | (end < begin), lambda row: f"it runs from {begin[row]} to {end[row]} ns")
    yield from _where((sm < 0) | (sm >= trace.device.sms), lambda row: f"it ran on SM {sm[row]} of {trace.device.sms}")
    again = (np.diff(rows["launch"], prepend=-1) == 0) & (np.diff(rows["tile"], prepend=-1) == 0)
    yield from _where(again, lambda row: f"tile {rows['tile'][row]} of launch {rows['launch'][row]} is timed twice")


RULES: Final = {
    "launch-numbers": Rule(
        "launches", "grids, blocks and clusters are positive, sizes and times not negative", _launch_numbers
    ),
    "confession": Rule("launches", "a launch that is not exact says why in its note", _confession),
    "box-sizes": Rule("accesses", "lengths and counts are at least 1", _box_sizes),
    "box-range": Rule("accesses", "boxes are of a size that memory can have", _box_range),
    "box-life": Rule("accesses", "0 <= first <= last <= 1 where they are known", _box_life),
    "bytes": Rule("tiles", "bytes_read and bytes_written are the distinct bytes of the tile's boxes", _bytes),
    "bound": Rule("launches", "every operand that a footprint touches is bound", _bound),
    "inside": Rule("operands", "boxes lie inside the buffers that launches bind", _inside),
    "alive": Rule("operands", "launches use buffers between allocation and free", _alive),
    "buffer-numbers": Rule("buffers", "sizes are not negative, buffers are freed after they are made", _buffer_numbers),
    "apart": Rule("buffers", "buffers that live at the same time do not overlap", _apart),
    "times": Rule("times", "tiles begin before they end, once, on an SM of the device", _times),
}  # fmt: skip
"""Name to rule. ``structure``, which the reader checks, comes before all of them."""

_AFTER: Final = {
    "bytes": ("box-sizes", "box-range"),
    "inside": ("box-sizes", "box-range"),
    "apart": ("buffer-numbers",),
}
"""Rules that compute with what others check, and say nothing while those are broken."""
