"""Threads of several warps at the same instruction, and what is known of their registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64

POINTER: Final = 1
UNKNOWN: Final = 2
UNEVEN: Final = 4
PLACE: Final = 8
LOW: Final = 16
HIGH: Final = 32
CARRY: Final = 64
"""Bits of a level, which is 0 for a value that is known: it is the low half of a pointer plus something; it is not
known; it is in a uniform register, and threads of a warp would have different ones; as POINTER, of the parameters' own
address; it is a pointer that was shifted, of which the lowest bits are known; with POINTER or PLACE: it is the high
half; it is the carry of such a sum.

In the bits above are the number of the pointer, the sum that it is, so that only halves of the same sum are an address,
and of a carry the addition.
"""
NUMBER_SHIFT: Final = 8
SUM_SHIFT: Final = 20
ADDITION_SHIFT: Final = 42
MOST_POINTERS: Final = 1 << SUM_SHIFT - NUMBER_SHIFT
KIND: Final = (1 << SUM_SHIFT) - 1
"""What a value is, without the sum."""
SUM: Final = (1 << ADDITION_SHIFT - SUM_SHIFT) - 1
WARP: Final = 32

Level = int | NDArray[Any]
Array = NDArray[Any]
Value = Any
"""A number or bool for all threads of a group, or an array of one each. While it depends on an estimate of the hardware
that has not been corrected yet, an array ``[estimates, threads]``."""


@dataclass(slots=True)
class Held:
    """What a register holds. ``origin``: the estimate that it depends on, -1 where there is none."""

    value: Value
    level: Level
    origin: int = -1

    @property
    def is_known(self) -> bool:
        """Whether it is known for all threads."""
        return not isinstance(self.level, np.ndarray) and self.level == 0 and self.origin < 0

    def kept(self) -> Held:
        """Return it with one number in place of an array of equal ones."""
        value, level, origin = self.value, self.level, self.origin
        if origin >= 0 and (value == value[0]).all():
            value, origin = value[0], -1
        if origin < 0 and isinstance(value, (np.ndarray, np.generic)):
            value = shrunk(np.atleast_1d(value))
        if isinstance(level, np.ndarray):
            level = shrunk(level)
        return Held(value, level, origin)

    def part(self, chosen: Array) -> Held:
        """Return what some of the threads hold."""
        value = self.value[..., chosen] if isinstance(self.value, np.ndarray) else self.value
        level = self.level[chosen] if isinstance(self.level, np.ndarray) else self.level
        return Held(value, level, self.origin)


def shrunk(array: Array) -> Value:
    """Return the number that an array has everywhere, or the array."""
    if len(array) and array[0] == array[-1] and (array == array[0]).all():
        return array[0].item()
    return array


def is_flag(name: str) -> bool:
    """Return whether a name is that of a predicate."""
    return name.startswith(("P", "UP"))


def nothing(name: str) -> Held:
    """Return what a register holds of which nothing is known."""
    return Held(value=False if is_flag(name) else 0, level=UNKNOWN)


def worse(level: Level, bits: int) -> Level:
    """Return a level that is unknown where it has one of some bits."""
    if isinstance(level, np.ndarray):
        return np.where(level & bits, np.uint64(UNKNOWN), level) if (level & bits).any() else level
    return UNKNOWN if level & bits else level


def without(level: Level, bits: int) -> Level:
    """Return a level without some bits."""
    return level & np.uint64(~bits & (1 << 64) - 1) if isinstance(level, np.ndarray) else level & ~bits


def unknown_where(flags: Array) -> Array:
    """Return levels that are unknown where a flag is set."""
    return np.where(flags, np.uint64(UNKNOWN), np.uint64(0))


def added(sums: Level, addition: Level) -> Level:
    """Return which sum another becomes by an addition."""
    return (sums * 0x9E3779 + addition * 0x85EBCB + 1) & SUM


def sum_of(level: Level) -> Level:
    """Return the sum that a level tells of."""
    return level >> SUM_SHIFT & SUM


@dataclass(slots=True, eq=False)
class Group:
    """Threads at the same instruction. ``lanes``: their numbers, ascending. ``registers``: what they hold; those that
    are not there are unknown. ``steps``: instructions that they have passed.
    """

    at: int
    lanes: I64
    registers: dict[str, Held]
    steps: int = 0

    def part(self, chosen: Array, names: frozenset[str]) -> Group:
        """Return some of the threads, with the registers that are among ``names``."""
        registers = {name: held.part(chosen) for name, held in self.registers.items() if name in names}
        return Group(self.at, self.lanes[chosen], registers, self.steps)


def merged(groups: list[Group], names: frozenset[str]) -> Group:
    """Return the threads of groups that are at the same instruction as one, with registers that are among ``names``."""
    lanes = np.concatenate([g.lanes for g in groups])
    order = np.argsort(lanes, kind="stable")
    counts = [len(g.lanes) for g in groups]
    registers: dict[str, Held] = {}
    for name in dict.fromkeys(name for g in groups for name in g.registers if name in names):
        held = [g.registers.get(name) or nothing(name) for g in groups]
        if any(h.origin >= 0 for h in held):
            continue
        first = held[0]
        value, level = first.value, first.level
        if not all(not isinstance(h.value, np.ndarray) and h.value == value for h in held):
            kind = bool if is_flag(name) else np.uint32
            value = np.concatenate([np.full(n, h.value, kind) for h, n in zip(held, counts, strict=True)])[order]
        if not all(not isinstance(h.level, np.ndarray) and h.level == level for h in held):
            level = np.concatenate([np.full(n, h.level, np.uint64) for h, n in zip(held, counts, strict=True)])[order]
        registers[name] = Held(value, level)
    return Group(groups[0].at, lanes[order], registers, max(g.steps for g in groups))


@dataclass(frozen=True, slots=True)
class Layout:
    """How threads of some blocks are numbered: by block, warp, copy, and place in the warp.

    ``copies``: 2 where a thread of each warp is elected, and each is followed as elected, first, and as not elected.
    """

    threads: int
    copies: int

    @property
    def of_warp(self) -> int:
        """Numbers of a warp."""
        return WARP * self.copies

    @property
    def of_block(self) -> int:
        """Numbers of a block, of which some stand for no thread where its last warp is not full."""
        return -(-self.threads // WARP) * self.of_warp

    def thread(self, lanes: I64) -> I64:
        """Return the numbers of threads in their blocks."""
        return lanes % self.of_block // self.of_warp * WARP + lanes % WARP

    def all(self, blocks: int) -> I64:
        """Return the numbers of all threads of some blocks."""
        lanes = np.arange(blocks * self.of_block)
        return lanes[self.thread(lanes) < self.threads]

    def is_even(self, lanes: I64, value: Value) -> bool:
        """Return whether the threads of each warp have the same value."""
        if not isinstance(value, np.ndarray):
            return True
        differ = value[..., 1:] != value[..., :-1]
        if value.ndim > 1:
            differ = differ.any(axis=0)
        at = np.flatnonzero(differ)
        return not (lanes[at] // self.of_warp == lanes[at + 1] // self.of_warp).any()


class Warps:
    """The warps of a group's threads. ``living``: whether each number stands for a thread that has not ended."""

    def __init__(self, layout: Layout, group: Group, living: Array) -> None:
        """Find where each warp's threads begin."""
        warp = group.lanes // layout.of_warp
        self.heads = np.flatnonzero(np.concatenate([[True], warp[1:] != warp[:-1]]))
        self.sizes = np.diff(np.append(self.heads, len(warp)))
        self.warp = warp[self.heads]
        self.copies = layout.copies
        self.copy, self.place = group.lanes % layout.of_warp // WARP, group.lanes % WARP
        self.living = living.reshape(-1, layout.of_warp)
        first = self.warp * layout.of_warp % layout.of_block // layout.copies
        self.threads = np.minimum(layout.threads - first, WARP)

    def spread(self, of_warp: Array) -> Array:
        """Return a value of each warp for each of its threads."""
        return np.repeat(of_warp, self.sizes)

    def any(self, flags: Array) -> Array:
        """Return whether a flag may hold in any thread of each warp."""
        return np.asarray(np.logical_or.reduceat(flags, self.heads))

    def some(self, flags: Array) -> Array:
        """Return whether a flag holds in some thread of each warp, whichever thread is elected.

        Of those that are followed as elected one is there, and its other self is not.
        """
        if self.copies == 1:
            return self.any(flags)
        table = np.zeros((len(self.warp), 2, WARP), bool)
        table[self.spread(np.arange(len(self.warp))), self.copy, self.place] = flags
        elected, others = table[:, 0].sum(axis=1), table[:, 1].sum(axis=1)
        return np.asarray((others > 1) | (elected == self.threads) | table.all(axis=1).max(axis=1))

    def whole(self) -> Array:
        """Return whether all threads of each warp that have not ended are in the group."""
        return np.asarray(self.sizes == self.living[self.warp].sum(axis=1))
