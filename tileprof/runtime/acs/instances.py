"""Recorded launches joined with their parameters: what was touched, relative to the pointers among them.

A trace says what launches touched, in buffers; the log that the preloaded library made in the same process says with
which parameters they were made. A launch of the recorder's event log was announced while the logged call was under way,
which joins the two. A word of the parameters is a pointer where it is an address in a buffer that was live.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.ragged import ragged
from tileprof.runtime.acs.launch_log import Logged
from tileprof.runtime.acs.table import Instance, Range, united, words_of, words_of_pointers
from tileprof.runtime.acs.varying import varying_words
from tileprof.trace.footprint import ATOMIC, READ, WRITE

if TYPE_CHECKING:
    from tileprof.trace import Boxes, Trace

BY_DATA: Final = re.compile(
    r"index|gather|scatter|embedding|take|masked|nonzero|unique|sort|topk|select|bucket|histogram|put_|where_scan|cub",
    re.IGNORECASE,
)
"""Kernels that may write where their data says: they count as the whole buffer that they wrote into."""

_MOST_RUNS: Final = 1 << 18
"""Pieces of memory per operand that are told apart for a fine table."""

_POINTER_BYTES: Final = 8
_SINGLES: Final = ("memcpy", "memset", "stream write value", "stream wait value")
_OPAQUE: Final = frozenset({"child graph", "batch memory operations", "conditional node"})
"""Rows of a trace that are no launches of kernels begin with, or are, these."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The outcome of a recording: instances, and how many launches count as touching all memory, by reason."""

    instances: list[Instance]
    without: dict[str, int]
    captured: list[Instance]
    """Launches that were captured into a graph, with what a launch touched that is equal in all that decides."""


def instances(
    trace: Trace,
    events: Iterable[Mapping[str, Any]],
    logged: Sequence[Logged],
    others: Mapping[int, Sequence[bytes]] | None = None,
    *,
    fine: bool = False,
) -> Joined:
    """Return an instance for each launch of the trace whose parameters are in the log and explain what it touched.

    ``events``: the recorder's log of the process. ``others``: by place in ``logged``, parameters of the same launch in
    other runs.
    ``fine``: the bytes that were touched; otherwise the range around what was written, and whole buffers for reads.
    """
    others = others or {}
    place_of = {id(call): place for place, call in enumerate(logged)}
    places: set[int] = set()
    without: dict[str, int] = {}
    out: list[Instance] = []
    columns = trace.columns("launches")
    reader = _Footprints(trace, fine=fine)
    for row, call, replayed in _pairs(columns, events, logged):
        why = "" if call is not None and call.whole else "its call may not be moved"
        if call is None:
            why = (
                "a graph replays it, and it is looked up when it is captured" if replayed else "its call was not logged"
            )
        if not why and str(columns["coverage"][row]) == "conservative":
            why = "the recorder does not know what it touches"
        place = place_of[id(call)] if call is not None else -1
        places.add(place)
        runs = others.get(place, ())
        instance = reader.instance(row, call, runs) if not why and call is not None else None
        if instance is None:
            why = why or "it reaches memory that none of its parameters points to"
        if isinstance(instance, str):
            why = instance
        if why:
            key = f"{why}: {columns['kernel'][row]}"
            without[key] = without.get(key, 0) + 1
        elif isinstance(instance, Instance):
            out.append(instance)
    missing = [
        (call, varying_words(call.parameters, others.get(place, ())))
        for place, call in enumerate(logged)
        if place not in places and call.whole
    ]
    return Joined(out, without, list(_like(missing, out)))


def _like(missing: Sequence[tuple[Logged, tuple[int, ...]]], examples: Sequence[Instance]) -> Iterator[Instance]:
    """Yield launches of which no row says what they touched, as known ones that differ from them in words alone that
    differ between runs, too.
    """
    by_key: dict[tuple[str, tuple[int, ...], int], dict[Instance, None]] = {}
    for instance in examples:
        by_key.setdefault((instance.symbol, instance.shape, len(instance.parameters)), {})[instance] = None
    decides: dict[tuple[str, tuple[int, ...], int], tuple[NDArray[np.uint32], NDArray[np.bool_]]] = {}
    for key, known_of_kind in by_key.items():
        words_by_instance = np.array([words_of(instance.parameters) for instance in known_of_kind])
        compared = np.ones(words_by_instance.shape, bool)
        for row, instance in enumerate(known_of_kind):
            compared[row, [*instance.varying, *words_of_pointers(instance)]] = False
        decides[key] = words_by_instance, compared
    for call, varying in missing:
        key = (call.symbol, call.shape, len(call.parameters))
        if key not in by_key:
            continue
        words_by_instance, compared = decides[key]
        differs = (words_by_instance != words_of(call.parameters)) & compared
        differs[:, list(varying)] = False
        agrees = ~differs.any(axis=1)
        alike: dict[tuple[object, ...], dict[tuple[int, ...], Instance]] = {}
        for instance in itertools.compress(by_key[key], agrees.tolist()):
            words = tuple(sorted({*varying, *instance.varying}))
            instance_now = replace(instance, parameters=call.parameters, varying=words)
            footprint = (
                instance_now.slots,
                instance_now.reads,
                instance_now.writes,
                instance_now.apart,
                instance_now.unused,
                instance_now.loose,
            )
            alike.setdefault(footprint, {})[words] = instance_now
        for by_words in alike.values():  # an entry that leaves more words out stands for one that leaves fewer out
            sets = {words: set(words) for words in by_words}
            yield from (
                instance_now
                for words, instance_now in by_words.items()
                if not any(sets[words] < other for other in sets.values())
            )


def _pairs(
    columns: Mapping[str, Any], events: Iterable[Mapping[str, Any]], logged: Sequence[Logged]
) -> Iterator[tuple[int, Logged | None, bool]]:
    """Yield rows of kernels in the trace, each with the call that made it, and whether a graph did."""
    launches = stored_events(list(events))
    rows = [row for row, name in enumerate(columns["kernel"]) if not _is_single(str(name))]
    calls = sorted(logged, key=lambda call: call.begin)
    begins = [call.begin for call in calls]
    for row, event in zip(rows, launches, strict=False):
        at = bisect.bisect_right(begins, event["t"]) - 1
        while at >= 0 and calls[at].end < event["t"] and at > bisect.bisect_right(begins, event["t"]) - 4:
            at -= 1
        call = calls[at] if at >= 0 and calls[at].begin <= event["t"] <= calls[at].end else None
        same = call is not None and list(call.shape[:6]) == [*event["grid"], *event["block"]]
        yield row, call if same and event["graph"] < 0 else None, event["graph"] >= 0


def _is_single(name: str) -> bool:
    return name.startswith(_SINGLES) or name in _OPAQUE


def stored_events(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return launches that are in the trace: all, or those of marked regions where there are any."""
    keeping = not any(event["e"] == "capture" for event in events)
    out = []
    for event in events:
        if event["e"] == "capture":
            keeping = bool(event["on"])
        elif event["e"] == "launch" and keeping:
            out.append(event)
    return out


class _Footprints:
    """The bytes that launches of a trace touched, by buffer, at absolute addresses."""

    def __init__(self, trace: Trace, *, fine: bool) -> None:
        self._trace = trace
        self._fine = fine
        buffers = trace.columns("buffers")
        self._base = np.asarray(buffers["base"], np.int64)
        self._end = self._base + np.asarray(buffers["bytes"], np.int64)
        self._born = np.asarray(buffers["allocated_at"], np.int64)
        freed_at = np.asarray(buffers["freed_at"], np.int64)
        self._died = np.where(freed_at < 0, np.iinfo(np.int64).max, freed_at)
        self._footprint = np.asarray(trace.columns("launches")["footprint"], np.int64)
        self._hulls: dict[int, list[tuple[int, int, int, int]]] = {}

    def instance(self, row: int, call: Logged, runs: Sequence[bytes]) -> Instance | str:
        """Return the launch relative to the pointers among its parameters, or why it cannot be determined.

        ``runs``: its parameters in other runs. Where the distance of two pointers into one buffer differs there,
        one of them is old, in memory that the kernel does not look at; which one is not known, and what was touched
        counts from each.
        """
        boxes_touched = self._touched(row)
        pointers = self._pointers(row, call.parameters)
        buffers = {buffer for buffer, *_ in boxes_touched}
        slots = tuple(offset for offset, (_, buffer) in pointers.items() if buffer in buffers)
        if buffers - {pointers[offset][1] for offset in slots}:
            return "it reaches memory that none of its parameters points to"
        unused = tuple(
            offset for offset in pointers if offset not in slots and all(_word(other, offset) for other in runs)
        )
        address = [pointers[offset][0] for offset in slots]
        of_buffer: dict[int, list[int]] = {}
        for slot, offset in enumerate(slots):
            of_buffer.setdefault(pointers[offset][1], []).append(slot)
        apart = tuple(
            (group[0], other, address[other] - address[group[0]]) for group in of_buffer.values() for other in group[1:]
        )
        loose = {
            other
            for one, other, distance in apart
            if any(_word(run, slots[other]) - _word(run, slots[one]) != distance for run in runs)
        }
        reads: list[Range] = []
        writes: list[Range] = []
        by_data = BY_DATA.search(call.symbol) is not None
        for buffer, mode, first, last in boxes_touched:
            base, end = int(self._base[buffer]), int(self._end[buffer])
            low, high = max(first, base), min(last, end)
            # The nearest pointer below what was touched, else the nearest above: slots of a buffer keep their
            # distances.
            here = of_buffer[buffer]
            near = max(set(here) - loose, key=lambda s: (address[s] <= low, -abs(address[s] - low), -s))
            for slot in (near, *(slot for slot in here if slot in loose)):
                if mode in {READ, ATOMIC}:
                    begin, stop = (low, high) if self._fine and not by_data else (base, end)
                    reads.append((slot, begin - address[slot], stop - address[slot]))
                if mode in {WRITE, ATOMIC}:
                    begin, stop = (base, end) if by_data else (low, high)
                    writes.append((slot, begin - address[slot], stop - address[slot]))
        read, written = united(reads, fine=self._fine), united(writes, fine=self._fine)
        lost_words = [offset // 4 + half for offset in pointers if offset not in (*slots, *unused) for half in (0, 1)]
        return Instance(
            call.symbol,
            call.shape,
            call.parameters,
            slots,
            read,
            written,
            tuple(entry for entry in apart if entry[1] not in loose),
            unused,
            tuple(sorted({*varying_words(call.parameters, runs), *lost_words})),
            tuple(sorted(loose)),
        )

    def _touched(self, row: int) -> list[tuple[int, int, int, int]]:
        """Return buffer, mode, first address and end: a row for each buffer and mode, in a fine table one per range."""
        buffers, offsets = self._trace.operands_of(row)
        return [
            (
                int(buffers[slot]),
                mode,
                int(self._base[buffers[slot]] + offsets[slot]) + low,
                int(self._base[buffers[slot]] + offsets[slot]) + high,
            )
            for slot, mode, low, high in self._hull(int(self._footprint[row]))
        ]

    def _hull(self, footprint: int) -> list[tuple[int, int, int, int]]:
        """Return slot, mode, first byte and end of what a footprint touches."""
        if footprint not in self._hulls:
            boxes = self._trace.footprint(footprint).boxes
            reach = [
                (count.astype(np.int64) - 1) * stride
                for count, stride in ((boxes.count_0, boxes.stride_0), (boxes.count_1, boxes.stride_1))
            ]
            low = boxes.offset + sum(np.minimum(r, 0) for r in reach)
            high = boxes.offset + boxes.length + sum(np.maximum(r, 0) for r in reach)
            rows = []
            for slot in np.unique(boxes.operand):
                for mode in (READ, WRITE, ATOMIC):
                    here = (boxes.operand == slot) & (boxes.mode == mode)
                    if not here.any():
                        continue
                    if self._fine and (runs := _runs(boxes.take(here))) is not None:
                        rows += [(int(slot), mode, first, last) for first, last in runs]
                    else:
                        rows.append((int(slot), mode, int(low[here].min()), int(high[here].max())))
            self._hulls[footprint] = rows
        return self._hulls[footprint]

    def _pointers(self, row: int, parameters: bytes) -> dict[int, tuple[int, int]]:
        """Return offset in the parameters to address and buffer, of the words that are addresses in live buffers."""
        whole = len(parameters) // _POINTER_BYTES * _POINTER_BYTES
        words = np.frombuffer(parameters[:whole], "<i8")
        live = np.flatnonzero((self._born <= row) & (row < self._died))
        order = live[np.argsort(self._base[live])]
        at = np.searchsorted(self._base[order], words, side="right") - 1
        out: dict[int, tuple[int, int]] = {}
        for number, (word, place) in enumerate(zip(words.tolist(), at.tolist(), strict=True)):
            if place >= 0 and word < self._end[order[place]] and word > 0:
                out[number * _POINTER_BYTES] = (word, int(order[place]))
        return out


def _word(parameters: bytes, offset: int) -> int:
    return int.from_bytes(parameters[offset : offset + _POINTER_BYTES], "little")


def _runs(boxes: Boxes) -> list[tuple[int, int]] | None:
    """Return first byte and end of what boxes of one operand cover, as a fine table keeps it; None where they are
    more than `_MOST_RUNS`.
    """
    count_0, count_1 = boxes.count_0.astype(np.int64), boxes.count_1.astype(np.int64)
    if int((count_0 * count_1).sum()) > _MOST_RUNS:
        return None
    box, number = ragged(count_0 * count_1)
    inner, outer = number % count_0[box], number // count_0[box]
    low = boxes.offset[box] + inner * boxes.stride_0[box] + outer * boxes.stride_1[box]
    pairs = np.unique(np.stack([low, low + boxes.length[box]], axis=1), axis=0).tolist()
    return [(first, last) for _, first, last in united([(0, first, last) for first, last in pairs], fine=True)]
