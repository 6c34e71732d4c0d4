"""Bloom filters that thread blocks filled while they ran, held against the exact dependencies of the same run.

Kuper, Pati and Sinclair's proposal gives a waiting block's address ranges to a filter as hints. Here the hints are what
the block was recorded to touch, and the filters are what earlier blocks inserted on the device
(`tileprof.record.source`, ``tileprof record --filters``), so that every false or missed dependency is the filters' own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.simulate.filters.bloom import (
    Bits,
    Filters,
    Side,
    Touched,
    bits_after,
    conflicts,
    count,
    marks,
    numbered,
    touched,
)
from tileprof.errors import TraceError, UserError
from tileprof.trace.filters import StoredFilters, read
from tileprof.trace.footprint import READ

if TYPE_CHECKING:
    from tileprof.trace import Recording

WINDOW = 4
"""Launches behind one that may be under way beside it, unless asked otherwise."""
ELEMENT = 4
"""Bytes within which two accesses conflict: exact for elements of four bytes and more."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Pairs of an earlier and a later block of different launches, by what filters and exact footprints say."""

    pairs: int
    dependent: int
    """They touch the same bytes, and one of them writes."""
    answered: int
    """The filters say that they may."""
    missed: int
    """Dependent, and the filters deny it: must be 0."""
    granular: int
    """False answers that share a granule, which no filter of this granule tells apart."""
    unequal: int
    """Filters whose bits differ from those that the recorded accesses stand for, but full ones: 0 where a tile is a
    thread block whose accesses are exact.
    """
    lacking: int = 0
    """Filters that lack a bit that the recorded accesses stand for: must be 0."""
    full: int = 0
    """Filters of all bits: of blocks that may touch anything."""
    filters: int = 0
    """All filters that were asked."""
    declared: int = 0
    """Answers of yes where a block asks with the ranges of its kernel's arguments, not with its own."""

    @property
    def false(self) -> int:
        """Pairs that would wait for nothing."""
        return self.answered - (self.dependent - self.missed)


def answers(
    trace: Recording, words: Mapping[int, NDArray[np.uint32]], filters: Filters, granule: int, window: int
) -> Answers:
    """Ask the filters of each launch about all blocks of the next ``window`` launches.

    ``words`` ``[blocks, 2, words of 32 bits]`` per launch, reads first. Raises UserError where they are not of this
    trace.
    """
    launches = sorted(words)
    for launch in launches:
        tiles = trace.footprint(int(trace.launches["footprint"].iloc[launch])).tiles
        if words[launch].shape != (tiles, 2, filters.bits // 32):
            raise UserError(
                f"launch {launch} has {tiles} tiles and filters of {filters.bits} bits, but words of shape "
                f"{words[launch].shape}"
            )
    pairs = dependent = answered = missed = granular = unequal = lacking = full = declared = 0
    near: deque[tuple[Touched, Touched, Touched]] = deque()  # of a launch and those of its window
    for p in range(len(launches)):
        for launch in launches[p + len(near) : p + 1 + window]:
            own, bytes_of = (touched(trace, launch, size) for size in (granule, ELEMENT))
            near.append((own, bytes_of, arguments(trace, launch, granule)))
        hints, elements, ranges = (list(sides) for sides in zip(*near, strict=True))
        near.popleft()
        before = hints[0]
        table = tuple(_rows(words[launches[p]][:, side]) for side in (0, 1))
        expected = [marks(side, filters, slice(None)) for side in (before.read, before.written)]
        for actual, bits in zip(table, expected, strict=True):
            all_set = np.bitwise_and.reduce(actual, axis=0)
            full += count(all_set)
            unequal += count(np.bitwise_or.reduce(actual ^ bits, axis=0) & ~all_set)
            lacking += count(np.bitwise_or.reduce(bits & ~actual, axis=0))
        exact, shared = (bits_of_later(*numbered(sides)) for sides in (elements, hints))
        for after, whole, true, same in zip(hints[1:], ranges[1:], exact, shared, strict=True):
            answer = conflicts((table[0], table[1]), after, filters)
            pairs += before.read.tiles * after.read.tiles
            dependent, answered = dependent + count(true), answered + count(answer)
            missed += count(true & ~answer)
            granular += count(answer & ~true & same)
            declared += count(conflicts((table[0], table[1]), whole, filters)) * after.read.tiles
    query_count = sum(2 * len(words[launch]) for launch in launches)
    return Answers(pairs, dependent, answered, missed, granular, unequal, lacking, full, query_count, declared)


def bits_of_later(launches: list[Touched], filters: Filters) -> list[Bits]:
    """Return what the launches behind the first one have in common with it, by launch."""
    return bits_after(launches[0], launches[1:], filters)


def arguments(trace: Recording, launch: int, granule: int) -> Touched:
    """Return the granules of a launch's arguments, from the first to the last byte that it reads or writes of each, as
    those of one tile: hints that a program can give before a kernel runs.
    """
    boxes = trace.footprint(int(trace.launches["footprint"].iloc[launch])).boxes.normalised()
    buffer, offset = trace.operands_of(launch)
    begin = trace.buffers["base"].to_numpy(np.int64)[buffer][boxes.operand] + offset[boxes.operand] + boxes.offset
    levels = (boxes.count_0, boxes.stride_0), (boxes.count_1, boxes.stride_1)
    end = begin + boxes.length + sum((count.astype(np.int64) - 1) * stride for count, stride in levels)
    sides = []
    for is_of_mode in (boxes.mode == READ, boxes.mode != READ):
        granules = [
            np.arange(begin[mine].min() // granule, (end[mine].max() - 1) // granule + 1)
            for operand in np.unique(boxes.operand[is_of_mode])
            for mine in [is_of_mode & (boxes.operand == operand)]
        ]
        joined = np.concatenate([np.empty(0, np.int64), *granules])
        none = np.zeros(min(len(joined), 1), np.int64)
        sides.append(Side(1, joined, np.zeros(len(joined), np.int64), none, none, len(none)))
    return Touched(*sides)


@dataclass(frozen=True, slots=True)
class Filling:
    """Median lives of the thread blocks of a kernel's launches, ns: as they run, and while they fill filters."""

    kernel: str
    launches: int
    plain_ns: float
    filling_ns: float


@dataclass(frozen=True, slots=True)
class InsertedReport:
    """The filters that a trace holds, what they answer about blocks of the next ``window`` launches, and their cost."""

    bits: int
    hashes: int
    granule: int
    window: int
    launches: int
    answers: Answers
    filling: tuple[Filling, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, and the false answers, as JSON values."""
        return asdict(self) | {"false": self.answers.false}


def inserted_report(trace: Recording, window: int = WINDOW) -> InsertedReport | None:
    """Return what is known of the filters of a trace, None where it holds none. Raises TraceError where they are not
    of this trace.
    """
    stored = read(trace.path)
    if stored is None:
        return None
    words = {f.launch: f.words for f in stored.launches}
    if words and max(words) >= trace.count("launches"):
        raise TraceError(f"{trace.path}: its filters are of launch {max(words)}, which is not there: record it again")
    result = answers(trace, words, Filters(stored.bits, stored.hashes), stored.granule, window)
    sizes = stored.bits, stored.hashes, stored.granule
    return InsertedReport(*sizes, window, len(words), result, tuple(_filling(trace, stored)))


def _filling(trace: Recording, stored: StoredFilters) -> Iterator[Filling]:
    times = trace.columns("times")
    medians: dict[str, list[tuple[float, float]]] = defaultdict(list)
    kernels = trace.launches["kernel"].tolist()
    for launch in stored.launches:
        rows = slice(*np.searchsorted(times["launch"], [launch.launch, launch.launch + 1]).tolist())
        plain = np.full(len(launch.words), -1, np.int64)
        plain[times["tile"][rows]] = times["end_ns"][rows] - times["begin_ns"][rows]
        both = (plain >= 0) & (launch.filling_ns >= 0)
        if both.any():
            medians[kernels[launch.launch]].append(
                (float(np.median(plain[both])), float(np.median(launch.filling_ns[both])))
            )
    for kernel, rows_of_kernel in medians.items():
        plain_ns, filling_ns = np.median(np.array(rows_of_kernel), axis=0).tolist()
        yield Filling(kernel, len(rows_of_kernel), plain_ns, filling_ns)


def _rows(words: NDArray[np.uint32]) -> Bits:
    """Return ``[bits, words of 64 tiles]`` of filters ``[tiles, words of 32 bits]``, as `marks` has them."""
    tiles = len(words)
    flags = np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), axis=1, bitorder="little")
    padded = np.zeros((flags.shape[1], -(-tiles // 64) * 64), np.uint8)
    padded[:, :tiles] = flags.T
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)
