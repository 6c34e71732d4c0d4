"""Runs the address computation of a proven kernel, all threads at once, and says which bytes each block touches.

Threads of whole blocks are taken together, as many as fit a chunk. Threads that are at the same instruction form a
group; the group at the smallest address goes on until its threads part, or reach another group, which they join.
A register is one number while all threads of a group agree on it, else one number per thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.record.cuda.code import flow, semantics
from tileprof.record.cuda.code.computing.operands import MASK, Flag, Step, Values, Word
from tileprof.record.cuda.code.flow import End, Kind
from tileprof.record.cuda.code.instructions import Instruction
from tileprof.record.cuda.code.live import live_names
from tileprof.record.cuda.code.proof import Proven
from tileprof.record.cuda.code.touched import MOST_BLOCKS, Touched, UnplacedError, keys_of
from tileprof.record.cuda.footprints.runs import Runs

Triple = tuple[int, int, int]
LANES: Final = 1 << 16
"""Threads of a chunk: a register of all of them stays in a core's cache."""
WARP: Final = 32
ESTIMATES: Final = 4
"""Results of a step that estimates."""
STALE: Final = -1
"""Origin of a value that depends on an estimate, which has been made anew since."""
UNCLEAR: Final = -2
"""Origin of a value that is not known: two estimates were mixed, or an instruction did something unusual."""
PARAMETERS: Final = 0x210
"""Place of the parameters in constant bank 0."""
GEOMETRY: Final = 0x18
"""Bytes at the beginning of constant bank 0 that hold the block's and the grid's size."""
MOST_WORK: Final = 40_000_000
"""Instructions that are executed, each counted once and once more per 2,048 threads, before a launch is given up."""


class UnexpectedError(ValueError):
    """Something happened that a proof says nothing about."""


class _UnclearError(ValueError):
    """What an instruction computes is not known; it may be that nothing depends on it."""


def run(
    proven: Proven, grid: Triple, block: Triple, bank: bytes, *, lanes: int = LANES, work: int = MOST_WORK
) -> dict[int, Runs] | None:
    """Return the bytes that each block touches, by mode (READ, WRITE or ATOMIC of `tileprof.trace`).

    ``bank``: constant bank 0 from its beginning to the end of the parameters. Tiles are linear block ids, x fastest;
    ``first`` is -1. None: too much ``work``, or something happened that the proof does not cover.
    """
    try:
        return _Emulator(proven, grid, block, bank, work).run(lanes)
    except (UnexpectedError, UnplacedError):
        return None


@dataclass(slots=True)
class _Group:
    """Threads at the same instruction.

    ``lanes``: their numbers in the chunk, ascending. ``keys``: of each thread's block (`Touched`). ``warps``: the
    number in the chunk of each thread's own. ``registers``: what each name holds, one entry per thread in that order,
    or a number for all. While it depends on an estimate that has not been corrected yet, a value is an array
    ``[estimates, threads]``, or 1 for all threads; ``origins`` has the estimate's instruction then, STALE or UNCLEAR.
    """

    lanes: NDArray[np.int64]
    keys: NDArray[np.int64]
    warps: NDArray[np.int64]
    registers: dict[str, Any]
    origins: dict[str, int]

    def part(self, chosen: NDArray[np.bool_], names: frozenset[str]) -> _Group:
        """Return some of its threads, with the values of ``names``."""
        registers = {
            name: value[..., chosen] if isinstance(value, np.ndarray) and value.shape[-1] == len(chosen) else value
            for name, value in self.registers.items()
            if name in names
        }
        origins = {name: origin for name, origin in self.origins.items() if name in names}
        out = _Group(self.lanes[chosen], self.keys[chosen], self.warps[chosen], registers, origins)
        for name in list(origins):
            out.settle(name)
        return out

    def settle(self, name: str) -> bool:
        """Make one of a value that is the same with all estimates; whether it was or is one."""
        value = self.registers[name]
        if self.origins.get(name) == UNCLEAR:
            return False
        if isinstance(value, np.ndarray) and value.ndim > 1:
            if not (value == value[:1]).all():
                return False
            row = value[0]
            self.registers[name] = (bool if _is_flag(name) else int)(row[0]) if len(row) == 1 else row
        self.origins.pop(name, None)
        return True


def _merged(groups: list[_Group], names: frozenset[str]) -> _Group:
    """Return all threads of several groups as one, with ``names``. What only some of them know is zero for others."""
    if len(groups) == 1:
        return groups[0]
    lanes = np.concatenate([g.lanes for g in groups])
    order = np.argsort(lanes, kind="stable")
    counts = [len(g.lanes) for g in groups]
    registers: dict[str, Any] = {}
    origins: dict[str, int] = {}
    for name in dict.fromkeys(name for g in groups for name in g.registers if name in names):
        values = [g.registers.get(name, 0) for g in groups]
        kind = np.bool_ if _is_flag(name) else np.uint32
        if found := {g.origins[name] for g in groups if name in g.origins}:
            origins[name] = UNCLEAR if UNCLEAR in found else STALE if len(found) > 1 else found.pop()
            shapes = [(ESTIMATES, n) for n in counts]
            rows: list[Any] = [
                np.broadcast_to(np.asarray(v, kind), shape) for v, shape in zip(values, shapes, strict=True)
            ]
            registers[name] = np.concatenate(rows, axis=1)[:, order]
            continue
        if not any(isinstance(v, np.ndarray) for v in values) and len(set(values)) == 1:
            registers[name] = values[0]
            continue
        parts = [
            np.full(n, v, kind) if not isinstance(v, np.ndarray) else v for v, n in zip(values, counts, strict=True)
        ]
        registers[name] = np.concatenate(parts)[order]
    keys, warps = (np.concatenate([getattr(g, kind) for g in groups])[order] for kind in ("keys", "warps"))
    return _Group(lanes[order], keys, warps, registers, origins)


def _is_flag(name: str) -> bool:
    return name.startswith(("P", "UP"))


@dataclass(frozen=True, slots=True)
class _Plan:
    """An instruction that has to be executed. ``values``: what its step or access reads, as far as that is constant;
    ``variables``: the places of the others, and their names.
    """

    instruction: Instruction
    values: list[Any]
    variables: tuple[tuple[int, str], ...]
    step: Step | None = None
    access: semantics.Access | None = None
    per_warp: bool = False
    number: int = -1


class _Emulator:
    def __init__(self, proven: Proven, grid: Triple, block: Triple, bank: bytes, work: int) -> None:
        self.code, self.joins, self.grid, self.block = proven.code, proven.joins, grid, block
        self.threads = block[0] * block[1] * block[2]
        self.blocks = grid[0] * grid[1] * grid[2]
        self.bank = np.frombuffer(bank[: len(bank) // 4 * 4], "<u4")
        self.ends = flow.ends(self.code)
        self.plans = {n: plan for n in range(len(self.code)) if (plan := self._plan(n, n in proven.needed)) is not None}
        self.interesting = self._next_interesting()
        self.work = work
        self.live = live_names(self.code, self.ends, self.joins, self._uses())
        self.touched = Touched()

    def run(self, lanes: int) -> dict[int, Runs]:
        """Return what all blocks touch."""
        if not 0 < self.threads <= 1024 or not self.code:
            raise UnexpectedError("no threads, or too many")
        per_chunk = min(max(1, lanes // self.threads), MOST_BLOCKS)
        for begin in range(0, self.blocks, per_chunk):
            self._chunk(begin, min(per_chunk, self.blocks - begin))
        return self.touched.runs()

    # What each instruction is to do.

    def _plan(self, n: int, needed: bool) -> _Plan | None:
        instruction = self.code[n]
        access = semantics.access(instruction)
        if access is None and not needed:
            return None
        step = None if access is not None else semantics.step(instruction) or semantics.estimate(instruction)
        if access is None and step is None:
            if n in self.ends:
                return None
            raise UnexpectedError(f"{instruction} is needed, but what it computes is not known")
        reads = access.reads if access is not None else step.reads if step is not None else ()
        values, variables = [], []
        for place, name in enumerate(reads):
            constant = self._constant(name)
            values.append(constant)
            if constant is None:
                variables.append((place, name))
        uniform = step is not None and any(name.startswith("U") for name in step.writes)
        return _Plan(instruction, values, tuple(variables), step, access, per_warp=uniform, number=n)

    def _constant(self, name: str) -> Word | None:
        """Return the value of a name that no instruction writes and that all threads of the launch share."""
        if name.startswith("c["):
            offset = int(name[2:-1], 16)
            if not self._is_known(offset):
                raise UnexpectedError(f"{name} is not known")
            return int(self.bank[offset // 4])
        if name == "SR_CgaCtaId":
            raise UnexpectedError("a block's place in its cluster is not known")
        if name.startswith("SR_") and name != "SR_LANEID":
            kind, axis = name[3:].split(".")
            if (self.block if kind == "TID" else self.grid)["XYZ".index(axis)] == 1:
                return 0
        return None

    def _is_known(self, offset: int) -> bool:
        return offset + 4 <= 4 * len(self.bank) and (offset + 4 <= GEOMETRY or offset >= PARAMETERS)

    def _next_interesting(self) -> list[int]:
        """Return, per instruction, the first one from it on that does anything."""
        out = [len(self.code)] * (len(self.code) + 1)
        for n in range(len(self.code) - 1, -1, -1):
            out[n] = n if n in self.plans or n in self.ends or n in self.joins else out[n + 1]
        return out

    def _uses(self) -> dict[int, tuple[set[str], set[str]]]:
        """Return which names each instruction reads, and which it gives new values for certain."""
        out: dict[int, tuple[set[str], set[str]]] = {}
        for n in range(len(self.code)):
            plan, end, guard = self.plans.get(n), self.ends.get(n), self.code[n].guard
            reads: set[str] = set()
            writes: set[str] = set()
            if plan is not None:
                reads |= {name for _, name in plan.variables}
                if plan.access is not None and plan.access.condition is not None:
                    reads.add(plan.access.condition[0])
                if plan.step is not None and guard is None:
                    writes |= set(plan.step.writes)
                if plan.step is not None and guard is not None:
                    reads |= set(plan.step.writes)  # threads without it keep what they had
                if guard is not None:
                    reads.add(guard[0])
            if end is not None and n not in self.joins:
                reads |= {name for name, _ in end.conditions}
                if end.kind is Kind.RETURN:
                    reads.add(end.register)
            out[n] = reads, writes
        return out

    # Execution.

    def _chunk(self, begin: int, count: int) -> None:
        """Execute some blocks from number ``begin`` on."""
        self.touched.begin(begin)
        waiting: dict[int, list[_Group]] = {0: [self._entry(begin, count)]}
        heap = [0]
        while heap:
            n = heapq.heappop(heap)
            group = _merged(waiting.pop(n), self.live[n])
            following = heap[0] if heap else len(self.code)
            for m, part in self._advance(n, group, following):
                if m >= len(self.code):
                    raise UnexpectedError("threads ran past the end of the code")
                if m in waiting:
                    waiting[m].append(part)
                else:
                    waiting[m] = [part]
                    heapq.heappush(heap, m)
        self.touched.end()

    def _entry(self, begin: int, count: int) -> _Group:
        """Return all threads of some blocks at the beginning."""
        lanes = np.arange(count * self.threads)
        blocks, threads = lanes // self.threads, lanes % self.threads
        registers: dict[str, Any] = {}
        names = {name for plan in self.plans.values() for _, name in plan.variables if name.startswith("SR_")}
        for name in names:
            if name == "SR_LANEID":
                registers[name] = (threads % WARP).astype(np.uint32)
                continue
            kind, axis = name[3:].split(".")
            sizes, linear = (self.block, threads) if kind == "TID" else (self.grid, begin + blocks)
            place = "XYZ".index(axis)
            below = sizes[0] ** (place > 0) * sizes[1] ** (place > 1)
            value = linear // below % sizes[place]
            registers[name] = int(value[0]) if (value[0] == value).all() else value.astype(np.uint32)
        warps = blocks * -(-self.threads // WARP) + threads // WARP
        return _Group(lanes, keys_of(blocks), warps, registers, {})

    def _advance(self, n: int, group: _Group, following: int) -> list[tuple[int, _Group]]:
        """Execute a group until its threads part, or get as far as another group waits; return where they are then."""
        registers, plans, ends, interesting = group.registers, self.plans, self.ends, self.interesting
        cost = 1 + len(group.lanes) // 2048
        while True:
            m = interesting[n]
            if n < following <= m:
                return [(following, group)]
            n = m
            if n >= len(self.code):
                raise UnexpectedError("threads ran past the end of the code")
            self.work -= cost
            if self.work < 0:
                raise UnexpectedError("too much work")
            if n in self.joins:
                target = self.joins[n]
            elif (end := ends.get(n)) is not None and end.kind is not Kind.SYNC:
                target, rest = self._leave(n, end, group)
                if rest is not None:
                    return rest
            else:
                if (plan := plans.get(n)) is not None:
                    self._execute(plan, group, registers)
                target = n + 1
            if target <= n or target >= following:
                return [(target, group)]
            n = target

    def _leave(self, n: int, end: End, group: _Group) -> tuple[int, list[tuple[int, _Group]] | None]:
        """Return where a group goes on, or the parts that it falls into."""
        taken: Flag = True
        for name, negated in end.conditions:
            taken = taken & self._certain(name, negated, group)
        if isinstance(taken, np.ndarray):
            taken = True if taken.all() else taken if taken.any() else False
        if taken is False:
            return n + 1, None
        if end.kind not in {Kind.EXIT, Kind.BRANCH, Kind.CALL, Kind.RETURN} or not end.decided:
            raise UnexpectedError(f"{self.code[n]}: where it leads is not known")
        if taken is True:
            stay, leave = [], group
        else:
            stay, leave = [(n + 1, group.part(~taken, self.live[n + 1]))], group
        if end.kind is Kind.EXIT:
            return -1, stay
        if end.kind is not Kind.RETURN:
            if taken is True:
                return end.target, None
            return -1, [*stay, (end.target, leave.part(taken, self.live[end.target]))]
        if taken is not True:
            leave = leave.part(taken, frozenset(leave.registers))
        return -1, [*stay, *self._returned(leave, end.register)]

    def _returned(self, group: _Group, register: str) -> list[tuple[int, _Group]]:
        """Return where the threads of a group return to, by an address in a register."""
        if register in group.origins:
            raise UnexpectedError("where it returns to depends on an estimate")
        address = group.registers.get(register, 0)
        out = []
        for place in [address] if isinstance(address, int) else np.unique(address).tolist():
            index = flow.index_of(place, self.code)
            if index is None:
                raise UnexpectedError(f"{place:#x} is no instruction")
            part = group if isinstance(address, int) else group.part(address == place, self.live[index])
            out.append((index, part))
        return out

    def _flag(self, name: str, negated: bool, registers: dict[str, Any]) -> Flag:
        if name in {"PT", "UPT"}:
            return not negated
        value: Flag = registers.get(name, False)
        if isinstance(value, bool):
            return value != negated
        return ~value if negated else value

    def _certain(self, name: str, negated: bool, group: _Group) -> Flag:
        """Return a predicate on which it depends what is executed or touched: no estimate decides that."""
        if name in group.origins:
            raise UnexpectedError(f"{name} depends on an estimate")
        return self._flag(name, negated, group.registers)

    def _execute(self, plan: _Plan, group: _Group, registers: dict[str, Any]) -> None:
        """Execute an instruction for those threads of a group whose guard holds.

        What nothing has computed before is zero: a proof says that nothing depends on it.
        """
        mask: Flag = True
        origin = self._origin(plan, group) if group.origins else None
        if plan.instruction.guard is not None and origin != UNCLEAR:
            mask = self._flag(*plan.instruction.guard, registers)
            if isinstance(mask, np.ndarray):
                mask = True if mask.all() else mask if mask.any() else False
            if mask is False:
                return
        values = plan.values.copy()
        for place, name in plan.variables:
            values[place] = registers.get(name, 0)
        if plan.access is not None:
            if origin is not None:
                raise UnexpectedError("an address depends on an estimate, or on something unclear")
            self._touch(plan.access, values, mask, group)
        elif plan.step is not None:
            try:
                if plan.step.estimates:
                    origin = self._begin_estimate(plan, group, origin)
                self._write(plan, plan.step, self._results(plan, plan.step, values, mask, group), mask, group, origin)
            except _UnclearError:
                origin = UNCLEAR
            if origin == UNCLEAR:
                for name in plan.step.writes:
                    registers.setdefault(name, False if _is_flag(name) else 0)
                    group.origins[name] = UNCLEAR

    def _begin_estimate(self, plan: _Plan, group: _Group, origin: int | None) -> int:
        """Return the origin of what an instruction estimates; nothing is mixed with what it estimated before."""
        for name, before in group.origins.items():
            if before == plan.number:
                group.origins[name] = STALE
        return plan.number if origin is None else UNCLEAR

    def _origin(self, plan: _Plan, group: _Group) -> int | None:
        """Return the only estimate that an instruction's results depend on; None where they depend on none."""
        names = [name for _, name in plan.variables]
        if plan.instruction.guard is not None:
            names.append(plan.instruction.guard[0])
            names += plan.step.writes if plan.step is not None else ()
        found = {group.origins[name] for name in names if name in group.origins}
        if not found:
            return None
        return UNCLEAR if len(found) > 1 or STALE in found else found.pop()

    def _touch(self, access: semantics.Access, values: Values, mask: Flag, group: _Group) -> None:
        if access.condition is not None:
            mask = mask & self._certain(*access.condition, group)
        if mask is False:
            return
        address, keys = access.address(values), group.keys
        missing = 0 if access.missing is None else access.missing(values)
        if isinstance(mask, np.ndarray):
            keys = keys[mask]
            address, missing = (x if isinstance(x, int) else x[mask] for x in (address, missing))
        if isinstance(missing, int):
            self.touched.add(access.mode, access.size - missing, keys, address)
            return
        for count in np.unique(missing).tolist():
            some = missing == count
            place = address if isinstance(address, int) else address[some]
            self.touched.add(access.mode, access.size - count, keys[some], place)

    def _results(self, plan: _Plan, step: Step, values: list[Any], mask: Flag, group: _Group) -> Values:
        if step.estimates:
            rows, holds = step.run(values)
            if not (holds | ~np.asarray(mask)).all():
                raise _UnclearError  # an estimate of something unusual
            return [rows]
        if (step.source_lane is not None or step.indexed is not None) and any(np.ndim(value) > 1 for value in values):
            raise _UnclearError
        if step.source_lane is not None:
            return step.run([self._of_lane(step.source_lane, values[0], mask, group)])
        if step.indexed is not None:
            values += self._loaded(step.indexed, values[0], mask)
        if plan.instruction.name in {"R2UR", "S2UR"}:
            _check_uniform(values[0], mask, group.warps)
        return step.run(values)

    def _of_lane(self, lane: int, value: Word, mask: Flag, group: _Group) -> Word:
        """Return what a lane of each thread's warp has; it must be there, and execute the instruction as well."""
        threads = group.lanes % self.threads % WARP == lane
        if isinstance(mask, np.ndarray):
            threads &= mask
        source = np.flatnonzero(threads)
        place = np.searchsorted(group.warps[source], group.warps)
        there = place < len(source)
        there[there] = group.warps[source][place[there]] == group.warps[there]
        if not (there | ~np.asarray(mask)).all():
            raise _UnclearError
        if isinstance(value, int):
            return value
        return np.where(there, value[source[np.minimum(place, len(source) - 1)]], value)

    def _loaded(self, indexed: semantics.Indexed, register: Word, mask: Flag) -> list[Word]:
        """Return words of the constant bank at offsets in a register."""
        if isinstance(register, int):
            offset = register + indexed.offset & MASK
            base = offset // 4 * 4
            known = offset % indexed.size == 0 and all(self._is_known(base + 4 * i) for i in range(indexed.words))
            if not known:
                raise _UnclearError
            return [int(self.bank[base // 4 + i]) for i in range(indexed.words)]
        offsets = (register + np.uint32(indexed.offset)).astype(np.int64)
        if isinstance(mask, np.ndarray):
            offsets = np.where(mask, offsets, 0)
        begin = offsets // 4 * 4
        end = begin + 4 * indexed.words
        inside = (end <= 4 * len(self.bank)) & ((end <= GEOMETRY) | (begin >= PARAMETERS))
        if not (inside & (offsets % indexed.size == 0)).all():
            raise _UnclearError
        return [self.bank[begin // 4 + i] for i in range(indexed.words)]

    def _write(
        self, plan: _Plan, step: Step, results: Sequence[Any], mask: Flag, group: _Group, origin: int | None
    ) -> None:
        registers = group.registers
        if plan.per_warp:
            _check_uniform(mask, True, group.warps)
        if mask is True:
            registers.update(zip(step.writes, results, strict=True))
            if group.origins or origin is not None:
                self._settle(step, group, origin)
            return
        for name, result in zip(step.writes, results, strict=True):
            flag = _is_flag(name)
            kind: Callable[..., Any] = np.bool_ if flag else np.uint32
            before = registers.get(name, 0)
            pair = [x if isinstance(x, np.ndarray) else kind(x) for x in (result, before)]
            registers[name] = np.where(mask, *pair)
        if group.origins or origin is not None:
            self._settle(step, group, origin)

    def _settle(self, step: Step, group: _Group, origin: int | None) -> None:
        """Note on which estimate results depend, unless they turn out to be the same with all."""
        for name in step.writes:
            group.origins.pop(name, None)
            if not group.settle(name):
                group.origins[name] = UNCLEAR if origin is None else origin


def _check_uniform(value: Word | Flag, mask: Flag, warps: I64) -> None:
    """Raise `_UnclearError` where threads of a warp do not agree on a value, with any estimate."""
    if not isinstance(value, np.ndarray) or value.shape[-1] == 1:
        return
    if isinstance(mask, np.ndarray):
        if mask.ndim > 1:
            raise _UnclearError
        value, warps = value[..., mask], warps[mask]
    if ((value[..., 1:] != value[..., :-1]) & (warps[1:] == warps[:-1])).any():
        raise _UnclearError
