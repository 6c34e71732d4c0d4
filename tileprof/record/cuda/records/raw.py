"""Reads the files that the injection library leaves behind: the Python mirror of native/records/records.h.

    <raw>/process-<pid>/events.jsonl     launches, allocations, copies, complaints, in issue order
                        entries.bin      32-byte records of what blocks touched, in no order
                        owners-<n>.bin   who wrote each granule, int32, where replays told

Each process that used CUDA has a folder. A killed process leaves what it had copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.record.cuda.records.events import checked

VERSION: Final = 1

ENTRY: Final = np.dtype([("key", "<u8"), ("block", "<u4"), ("launch", "<u4"), ("payload", "<u4", 4)])

ACCESS, BLOCK, EXIT, TENSOR, TENSOR_TAIL, MAP, RANGE = range(7)
"""Kinds of entries; the top four bits of ``key``."""

MAP_BESIDE, MAP_LOADED, MAP_CONTENTS, MAP_NAME = range(4)
"""Kinds of MAP entries: the part of the map that an entry holds, in place of a block."""

KIND_SHIFT: Final = 60
GENERATION_SHIFT: Final = 48
SM_BITS: Final = 12
_SM_MASK: Final = (1 << SM_BITS) - 1
LOW_MASK: Final = (1 << GENERATION_SHIFT) - 1
LAST_GENERATION: Final = (1 << (KIND_SHIFT - GENERATION_SHIFT)) - 1
LOAD_MODE_SHIFT: Final = 8
TILED, IM2COL = 0, 1
"""Modes of tensor-map loads that are decoded, in word 2 of TENSOR_TAIL."""
SPILL_PAGE_BYTES: Final = 1 << 21
SPILL_PAGES: Final = 1 << 20

NO_OWNER, SEVERAL_OWNERS = -1, -2
"""Owners of granules that no cluster or more than one wrote."""

Entries = NDArray[np.void]


@dataclass(slots=True)
class Process:
    """The records of one process. ``entries`` are sorted by launch and generation."""

    folder: Path
    events: list[dict[str, Any]]
    entries: Entries
    lost: int = 0
    """Launches of a process that ended early whose records never left the device."""
    _starts: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def granule(self) -> int:
        return int(self.events[0].get("granule", 1))

    @property
    def complete(self) -> bool:
        """Whether the process ended by itself, with all records copied."""
        return bool(self.events) and self.events[-1]["e"] == "end"

    @property
    def ended_early(self) -> str:
        """The reason why records are incomplete after a process that did not end by itself; its unwritten events cannot
        be counted.
        """
        count = f"; {self.lost:,} of them are known" if self.lost else ""
        return f"ended early: launches after the records were last copied are not here{count}"

    def of(self, launch: int, generation: int) -> Entries:
        """Return the entries of a launch."""
        first, end = self._starts.get((launch, generation), (0, 0))
        return self.entries[first:end]

    def owners(self, name: str) -> NDArray[np.int32]:
        """Read one file of owners; empty when it is not there."""
        path = self.folder / Path(name).name
        return np.fromfile(path, dtype="<i4") if path.exists() else np.empty(0, np.int32)


def processes(folder: Path) -> list[Process]:
    """Return every process that recorded under ``folder``, in order of process id.

    Raises UserError when there is none.

    That the recorder did not start in some of several is a complaint of the others.
    """
    processes, failures = [], []
    for place in sorted(folder.glob("process-*"), key=lambda p: int(p.name.rpartition("-")[2])):
        try:
            processes.append(read(place))
        except UserError as error:
            failures.append(str(error))
    processes = [p for p in processes if p.events]
    for process in processes:
        process.events[1:1] = [{"e": "complaint", "text": text} for text in failures]
    if not processes:
        if failures:
            raise UserError(failures[0])
        raise UserError(
            "The program ran, but the recorder inside it never started: it used no CUDA, or CUDA was initialised "
            "without CUDA_INJECTION64_PATH (a wrapper that cleans its environment does that). "
            "What a GPU would do with a program that runs without one, --recorder model shows."
        )
    return processes


def hung(folder: Path) -> str:
    """Return the kernel that a process under ``folder`` was ended for, because it did not end; "" where there is
    none.
    """
    for path in sorted(folder.glob("process-*/events.jsonl")):
        last = path.read_bytes().splitlines()[-1:]
        if last and last[0].startswith(b'{"e":"hung"'):
            return str(json.loads(last[0])["kernel"])
    return ""


def read(folder: Path) -> Process:
    """Read one process's records. Raises UserError for records of another version or a recorder that failed to
    start.
    """
    events = list(_events(folder / "events.jsonl"))
    for event in events:
        if event["e"] == "failed":
            raise UserError(f"the CUDA recorder could not start in process {folder.name}: {event['why']}")
        if event["e"] == "start" and event["version"] != VERSION:
            raise UserError(f"{folder} holds records of version {event['version']}; this tileprof reads {VERSION}")
    path = folder / "entries.bin"
    entries = np.fromfile(path, dtype=ENTRY) if path.exists() else np.empty(0, ENTRY)
    events, lost_entries = _copied_records(_of_the_program(events), len(entries))
    process = grouped(folder, events, entries)
    process.lost = lost_entries
    return process


def _of_the_program(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events without what a compiler launched to choose between kernels, and without the pauses that
    it made.
    """
    events_kept, timing = [], False
    for event in events:
        timing = bool(event["on"]) if event["e"] == "benchmark" else timing
        if not timing or event["e"] not in {"launch", "copy", "set", "opaque", "capture"}:
            events_kept.append(event)
    return events_kept


def _copied_records(events: list[dict[str, Any]], entries: int) -> tuple[list[dict[str, Any]], int]:
    """Return what a process that ended early has surely copied from the device, and how many launches come after.

    Records leave the device at a drain. A launch without records looks like one that touches nothing, so what comes
    after the last drain is left out; with several contexts, which drain one by one, everything is. The same where the
    file holds fewer ``entries`` than the drains say: a full disk took no more.
    """
    drains = [n for n, e in enumerate(events) if e["e"] == "drain"]
    drained = np.cumsum([events[n].get("entries", 0) for n in drains])
    whole = [n for n, so_far in zip(drains, drained, strict=True) if so_far <= entries]
    if not events or (events[-1]["e"] == "end" and whole == drains):
        return events, 0
    launches = [n for n, e in enumerate(events) if e["e"] == "launch"]
    several = len({events[n].get("context", 0) for n in launches}) > 1
    stop = whole[-1] + 1 if whole and not several else (launches[0] if launches else len(events))
    why = [event for event in events[stop:] if event["e"] in {"complaint", "ranges"}]
    return [*events[:stop], *why], sum(n >= stop for n in launches)


def grouped(folder: Path, events: list[dict[str, Any]], entries: Entries) -> Process:
    """Return a process with its entries sorted by launch and generation.

    Unused room in the arena (launch 0) is left out.
    """
    entries = entries[entries["launch"] != 0]
    order_of = entries["launch"].astype(np.uint64) << np.uint64(12) | generations(entries)
    order = np.argsort(order_of, kind="stable")
    entries, order_of = entries[order], order_of[order]
    values, firsts = np.unique(order_of, return_index=True)
    ends = np.append(firsts[1:], len(entries))[: len(firsts)]
    starts = {
        (int(v) >> 12, int(v) & LAST_GENERATION): (int(f), int(e)) for v, f, e in zip(values, firsts, ends, strict=True)
    }
    return Process(folder, events, entries, _starts=starts)


def number_sms(processes: list[Process], sms: int) -> int:
    """Give the SMs of blocks the numbers 0 to ``sms`` - 1, where the hardware's go beyond: it numbers those of the
    whole GPU.

    Returns how many there are: more than ``sms`` where a process ran on more (an MPS client may choose its share
    itself).
    """
    for process in processes:
        sm_keys = np.unique(low(process.entries[kinds(process.entries) == BLOCK]) & _SM_MASK)
        if len(sm_keys) and sm_keys[-1] >= sms:
            here = np.isin(kinds(process.entries), (BLOCK, EXIT))
            keys = process.entries["key"][here]
            numbers = np.searchsorted(sm_keys, (keys & np.uint64(_SM_MASK)).astype(np.int64)).clip(max=len(sm_keys) - 1)
            process.entries["key"][here] = (keys & ~np.uint64(_SM_MASK)) | numbers.astype(np.uint64)
            sms = max(sms, len(sm_keys))
    return sms


def kinds(entries: Entries) -> NDArray[np.uint64]:
    """Return the kind of each entry."""
    return np.asarray(entries["key"] >> np.uint64(KIND_SHIFT))


def generations(entries: Entries) -> NDArray[np.uint64]:
    """Return which of the graph's kernel nodes each entry belongs to, in order."""
    return np.asarray(entries["key"] >> np.uint64(GENERATION_SHIFT) & np.uint64(LAST_GENERATION))


def low(entries: Entries) -> NDArray[np.int64]:
    """Return the low key bits of each entry: window, SM or address."""
    return np.asarray(entries["key"] & np.uint64(LOW_MASK)).astype(np.int64)


def _events(path: Path) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if not path.exists():
        return out
    for line in path.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            break  # the last line of a killed process
        out.append(checked(event, str(path)))
    return out
