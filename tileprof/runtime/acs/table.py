"""The footprint table: what launches touch, relative to their pointer arguments, by kernel, shape and other arguments.

`native/order/table.h` describes the file and reads it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_RANGES: Final = 8
"""Ranges per slot and mode; where there are more, one range around all of them stands for them."""

MOST_FINE: Final = 64
"""The limit in a fine table, where the narrowest gaps are closed until no more ranges than these are left."""

Range = tuple[int, int, int]
"""Slot, first byte and end, from the slot's address on."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A recorded launch: its parameters as one block, which of them are pointers, and what was reached through those.

    ``shape`` is grid, block and dynamic shared memory, seven numbers. ``slots`` are offsets of pointers in the
    parameters.
    ``apart``: slots that lay in one buffer, ``(one, other, address of other - address of one)``. ``unused``: offsets of
    words that look like pointers and through which nothing was reached. ``varying``: words (of 4 bytes) that other runs
    of the program filled otherwise at this launch. ``loose``: numbers of slots that other runs filled otherwise with
    regard to the first slot of their buffer, as padding does that holds an old pointer; they may be null.
    """

    symbol: str
    shape: tuple[int, ...]
    parameters: bytes
    slots: tuple[int, ...]
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    apart: tuple[tuple[int, int, int], ...] = ()
    unused: tuple[int, ...] = ()
    varying: tuple[int, ...] = ()
    loose: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """Stands for all launches whose parameters agree with ``parameters`` where ``mask`` has ones."""

    instance: Instance
    mask: bytes
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    count: int


@dataclass(slots=True)
class Table:
    """Entries by kernel symbol, and how many launches had none."""

    program: str
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    launches: int = 0
    """Recorded."""
    without: dict[str, int] = field(default_factory=dict)
    """Launches that count as touching all memory, by why."""

    @property
    def count(self) -> int:
        """Entries."""
        return sum(map(len, self.entries.values()))

    def lines(self) -> Iterable[str]:
        """Yield the file, line by line."""
        yield "tileprof-acs 1"
        yield f"program {' '.join(self.program.split())}"
        for symbol, entries in self.entries.items():
            yield f"kernel {symbol}"
            for entry in entries:
                instance = entry.instance
                yield f"entry {' '.join(map(str, instance.shape))} {len(instance.parameters)}"
                if instance.parameters:
                    yield f"bytes {instance.parameters.hex()} {entry.mask.hex()}"
                yield from (f"slot {offset}" for offset in instance.slots)
                yield from (f"loose {slot}" for slot in instance.loose)
                yield from (f"apart {one} {other} {difference}" for one, other, difference in instance.apart)
                yield from (f"null {offset} 0" for offset in instance.unused)
                yield from (f"read {slot} {low} {high}" for slot, low, high in entry.reads)
                yield from (f"write {slot} {low} {high}" for slot, low, high in entry.writes)

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_text("\n".join(self.lines()) + "\n", encoding="utf-8")


def tabulate(instances: Iterable[Instance], program: str, *, fine: bool = False) -> Table:
    """Return the table of all instances; a ``fine`` one keeps up to `MOST_FINE` ranges per slot and mode.

    Words of the parameters that differ between launches which touch the same bytes (seeds, scalars, padding), or
    between runs of the program, do not decide what is touched and are not compared; where the others do not tell two
    footprints apart, their union stands for both.
    """
    groups: dict[tuple[object, ...], list[Instance]] = defaultdict(list)
    table = Table(program)
    for instance in instances:
        table.launches += 1
        key = (
            instance.symbol,
            instance.shape,
            len(instance.parameters),
            instance.slots,
            instance.apart,
            instance.unused,
            instance.loose,
        )
        groups[key].append(instance)
    for group in groups.values():
        table.entries.setdefault(group[0].symbol, []).extend(_entries(group, fine=fine))
    return table


def _entries(group: Sequence[Instance], *, fine: bool) -> list[Entry]:
    """Return entries of launches of one kernel, shape and structure of parameters, those that compare fewest words
    first.

    What varies in one launch may decide in another, as the second stride of a tensor with two dimensions: each set of
    varying words has entries of its own.
    """
    words = np.array([words_of(instance.parameters) for instance in group])
    words[:, words_of_pointers(group[0])] = 0
    labels: dict[tuple[object, ...], int] = {}
    footprint = np.array([labels.setdefault((instance.reads, instance.writes), len(labels)) for instance in group])
    by_varying: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, instance in enumerate(group):
        by_varying[instance.varying].append(row)
    examples: list[tuple[int, NDArray[np.bool_]]] = []
    for varying, rows in by_varying.items():
        free = _free(words[rows], footprint[rows])
        free[list(varying)] = True
        free[words_of_pointers(group[0])] = True
        _, first = np.unique(words[rows][:, ~free], axis=0, return_index=True)
        examples += [(rows[at], free) for at in first.tolist()]
    out: list[Entry] = []
    covered = np.zeros(len(group), bool)
    for at, free in sorted(examples, key=lambda pair: -int(pair[1].sum())):
        alike = (words[:, ~free] == words[at, ~free]).all(axis=1)
        if covered[alike].all():
            continue
        covered |= alike
        members = [group[row] for row in np.flatnonzero(alike).tolist()]
        reads = united([r for instance in members for r in instance.reads], fine=fine)
        writes = united([r for instance in members for r in instance.writes], fine=fine)
        mask = np.where(free, 0, 0xFFFFFFFF).astype("<u4").tobytes()[: len(group[0].parameters)]
        out.append(Entry(group[at], mask, reads, writes, len(members)))
    return out


def _free(words: NDArray[np.uint32], footprint: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return words in which launches differ that touch the same bytes."""
    free = np.zeros(words.shape[1], bool)
    for label in np.unique(footprint):
        rows = words[footprint == label]
        free |= (rows != rows[0]).any(axis=0)
    return free


def words_of(parameters: bytes) -> NDArray[np.uint32]:
    """Return parameters as words of 4 bytes, zeros behind."""
    return np.frombuffer(parameters + bytes(-len(parameters) % 4), "<u4").astype(np.uint32)


def words_of_pointers(instance: Instance) -> list[int]:
    """Return words of the parameters that pointers take up."""
    return [word for offset in (*instance.slots, *instance.unused) for word in (offset // 4, offset // 4 + 1)]


def united(ranges: Iterable[Range], *, fine: bool = False) -> tuple[Range, ...]:
    """Return the same bytes, and more where there are many ranges, as at most `MOST_RANGES` (`MOST_FINE`) per slot."""
    by_slot: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for slot, low, high in ranges:
        by_slot[slot].append((low, high))
    out: list[Range] = []
    for slot, pairs in sorted(by_slot.items()):
        merged: list[tuple[int, int]] = []
        for low, high in sorted(pairs):
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        if fine:
            merged = _without_narrow_gaps(merged)
        elif len(merged) > MOST_RANGES:
            merged = [(merged[0][0], merged[-1][1])]
        out += [(slot, low, high) for low, high in merged]
    return tuple(out)


def _without_narrow_gaps(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending ranges with their narrowest gaps closed, at most `MOST_FINE` of them."""
    gaps = sorted(range(1, len(ranges)), key=lambda at: ranges[at - 1][1] - ranges[at][0])[: MOST_FINE - 1]
    edges = [0, *sorted(gaps), len(ranges)]
    return [(ranges[first][0], ranges[last - 1][1]) for first, last in itertools.pairwise(edges)]
