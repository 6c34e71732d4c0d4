"""Places the matrices between the stages of a plan: memory that is used again within a run, and from run to run.

A reader takes a matrix as soon as its words are no longer absent. So memory has to be absent before it gets the next
matrix, and it may become absent only when all readers of the matrix before are done. Three things see to that:

- Stages form *generations*. A task of generation g begins when all blocks have ended generation g - `FENCE`; blocks
  post the end of each generation. That is the wait for write after read, and it is hardly ever long.
- Matrices of one size take the slots of a ring in turn. Tasks that write a matrix make the same elements of a slot
  further along absent.
- Sums of parts of k are read once, by one thread, which makes them absent again itself.

The next run continues where a run ends in each ring. `memory_faults` checks all this slot by slot, by the times of
reads, writes and wipes alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, lcm
from typing import Final

import numpy as np

from tileprof.runtime.encoder.plan import Finish, Plan, touches

FENCE: Final = 2
"""Generations between the end of one and the beginning of the one that waits for it: with 1, blocks would stand
still.
"""

_STAGES: Final = 3
"""Fewest stages of a generation: with more, twelve layers of ViT-B/16 need twice the memory."""

_MOST_RUNS: Final = 64
"""Runs after which all matrices lie where they lay: a table of stages is kept for each."""

_ALIGNMENT: Final = 128


@dataclass(frozen=True, slots=True)
class Ring:
    """Matrices of one size, in order of the stages that write them, and their memory.

    ``ahead``: tasks that write a matrix make the slot that is so far along absent; 0: tasks that read it make its own
    slot absent. ``slot_bytes``: distance of slots; ``offset``: of the first one in all memory.
    """

    names: tuple[str, ...]
    slots: int
    ahead: int
    slot_bytes: int
    offset: int

    def slot(self, number: int, run: int) -> int:
        """Return the slot of a matrix in a run."""
        return (number + run * len(self.names)) % self.slots

    def at(self, number: int, run: int) -> int:
        """Return the offset of a matrix in all memory in a run, in bytes."""
        return self.offset + self.slot(number, run) * self.slot_bytes


@dataclass(frozen=True)
class Memory:
    """``generations``: of each stage; ``runs``: after how many runs matrices lie where they lay."""

    generations: tuple[int, ...]
    rings: tuple[Ring, ...]

    @property
    def runs(self) -> int:
        return lcm(1, *(ring.slots // gcd(ring.slots, len(ring.names)) for ring in self.rings))

    @property
    def bytes(self) -> int:
        return sum(ring.slots * ring.slot_bytes for ring in self.rings)

    def places(self, run: int) -> dict[str, int]:
        """Return offsets of matrices in a run, in bytes."""
        return {name: ring.at(number, run) for ring in self.rings for number, name in enumerate(ring.names)}

    def wiped(self, run: int) -> dict[str, int]:
        """Return offsets of what tasks make absent that write a matrix, in bytes, where they do."""
        return {
            name: ring.at(number + ring.ahead, run)
            for ring in self.rings
            if ring.ahead
            for number, name in enumerate(ring.names)
        }


@dataclass(frozen=True, slots=True)
class _Use:
    """Generations in which a matrix is written first and last, and read last."""

    first: int
    last: int
    read: int


def memory_of(plan: Plan, *, reuse: bool = True, stages: int = _STAGES) -> Memory:
    """Return memory for a plan. ``reuse``: within a run, too; ``stages``: of a generation, at least."""
    generations = _generations(plan, stages) if reuse else (0,) * len(plan.stages)
    uses_by_name = _uses(plan, generations)
    classes: dict[tuple[int, int, int], list[str]] = {}
    for name in uses_by_name:
        classes.setdefault(plan.sizes[name], []).append(name)
    rings: list[Ring] = []
    runs, offset = 1, 0
    for (rows, columns, size), names in sorted(classes.items(), key=lambda item: -item[0][0] * item[0][1]):
        slots, ahead = _ring([uses_by_name[name] for name in names], runs, once=_is_sums(size))
        slot_bytes = -(-rows * columns * size // _ALIGNMENT) * _ALIGNMENT
        rings.append(Ring(tuple(names), slots, ahead, slot_bytes, offset))
        offset += slots * slot_bytes
        runs = lcm(runs, slots // gcd(slots, len(names)))
    return Memory(generations, tuple(rings))


def _is_sums(size: int) -> bool:
    return size == 4


def _generations(plan: Plan, least: int) -> tuple[int, ...]:
    """Return the generation of each stage. In all but the last, every block has a task, so that no block passes
    over one.
    """
    of_stage: list[set[int]] = [set() for _ in plan.stages]
    for number, block in enumerate(plan.blocks):
        for task in block:
            of_stage[plan.tasks[task].stage].add(number)
    generations: list[int] = []
    present: set[int] = set()
    generation, stages = 0, 0
    for blocks in of_stage:
        generations.append(generation)
        present |= blocks
        stages += 1
        if stages >= least and len(present) == len(plan.blocks):
            generation, stages, present = generation + 1, 0, set()
    return tuple(generations)


def _uses(plan: Plan, generations: tuple[int, ...]) -> dict[str, _Use]:
    """Return the uses of the matrices between stages, in order of the stages that write them."""
    writers: dict[str, tuple[int, int]] = {}
    read: dict[str, int] = {}
    for task in plan.tasks:
        tile_touches, generation = touches(plan.stages[task.stage], task), generations[task.stage]
        for name, *_ in tile_touches.writes:
            if name in plan.sizes:
                first, last = writers.get(name, (generation, generation))
                writers[name] = min(first, generation), max(last, generation)
        for name, *_ in tile_touches.reads:
            read[name] = max(generation, read.get(name, 0))
    return {name: _Use(first, last, max(last, read.get(name, 0))) for name, (first, last) in writers.items()}


def _ring(uses: list[_Use], runs: int, *, once: bool) -> tuple[int, int]:
    """Return slots, and how far ahead writers wipe: the fewest slots with which memory repeats soon enough."""
    behind = _distance([use.read for use in uses], uses)
    ahead = 0 if once else _distance([use.last for use in uses], uses)
    count = len(uses)
    slots = next(
        slots
        for slots in range(behind + ahead, 2 * (behind + ahead + count))
        if lcm(runs, slots // gcd(slots, count)) <= _MOST_RUNS
    )
    return slots, ahead


def _distance(ends: list[int], uses: list[_Use]) -> int:
    """Return the least distance of matrices in a ring with which what ended with the one is fenced off from
    the first task of the other; the next run's are.
    """
    count = len(uses)
    return next(
        distance
        for distance in range(1, count + 1)
        if all(ends[n] <= uses[n + distance].first - FENCE for n in range(count - distance))
    )


def memory_faults(plan: Plan, memory: Memory) -> list[str]:
    """Return why a plan must not be run in this memory; empty where it may."""
    problems = list(_generation_faults(plan, memory.generations))
    uses_by_name = _uses(plan, memory.generations)
    if sorted(name for ring in memory.rings for name in ring.names) != sorted(plan.sizes):
        problems.append("a matrix between stages has no memory of its own")
    end = 0
    for ring in memory.rings:
        sizes = {plan.sizes[name] for name in ring.names if name in plan.sizes}
        if len(sizes) != 1 or any(rows * columns * size > ring.slot_bytes for rows, columns, size in sizes):
            problems.append(f"the memory of {ring.names[0]} has another size than the matrices in it")
        if ring.offset < end:
            problems.append(f"the memory of {ring.names[0]} begins in that of another matrix")
        end = ring.offset + ring.slots * ring.slot_bytes
        problems += _ring_faults(ring, uses_by_name, memory.runs)
    once = {name for ring in memory.rings if ring.ahead == 0 for name in ring.names}
    return [*problems, *(f"{name} is not read once" for name in _not_read_once(plan, once))]


def _generation_faults(plan: Plan, generations: tuple[int, ...]) -> Iterator[str]:
    if any(a > b for a, b in pairwise(generations)):
        yield "generations are not in order of stages"
    for number, block in enumerate(plan.blocks):
        steps = [-1, *(generations[plan.tasks[task].stage] for task in block)]
        if any(b - a >= FENCE and b >= FENCE for a, b in pairwise(steps)):
            yield f"block {number} passes over a generation whose end it has to post first"


Moment = tuple[int, int]
"""A run and a generation in it."""


def _before(a: Moment, b: Moment) -> bool:
    """Return whether all of a generation has ended when a task of another begins."""
    return a[0] < b[0] or (a[0] == b[0] and a[1] <= b[1] - FENCE)


def _ring_faults(ring: Ring, uses: dict[str, _Use], period: int) -> Iterator[str]:
    """Walk over all matrices of a few runs; each slot is used until a moment, or absent since one."""
    start: Moment = (-1, 0)
    absent: dict[int, Moment] = dict.fromkeys(range(ring.slots), start)
    last_use: dict[int, Moment] = {}
    for run in range(2 * period + 2):
        for number, name in enumerate(ring.names):
            use, slot = uses[name], ring.slot(number, run)
            if slot not in absent or not _before(absent.pop(slot), (run, use.first)):
                yield f"{name} lies where memory is not absent again (run {run}, slot {slot})"
                return
            last_use[slot] = run, use.read
            wiped, since = ring.slot(number + ring.ahead, run), (run, use.last if ring.ahead else use.read)
            if ring.ahead and wiped in last_use and not _before(last_use[wiped], (run, use.first)):
                yield f"{name} makes memory absent that is still read (run {run}, slot {wiped})"
                return
            last_use.pop(wiped, None)
            absent[wiped] = since


def _not_read_once(plan: Plan, names: set[str]) -> list[str]:
    """Return the matrices of which not each element is read once, by ends of rows, which make it absent."""
    count = {name: np.zeros(plan.sizes[name][:2], np.int64) for name in names & plan.sizes.keys()}
    for task in plan.tasks:
        stage = plan.stages[task.stage]
        for name, row, row_end, column, column_end in touches(stage, task).reads:
            if name in count:
                count[name][row:row_end, column:column_end] += 1 if isinstance(stage, Finish) else 2
    return [name for name, reads in count.items() if not (reads == 1).all()]
