"""What one launch touches, followed through its machine code, as far as that follows from its parameters.

All threads run through the code in groups that are at the same instruction, with the launch's own parameters. Of each
value it is known how much it is worth (a level of `lanes`): what comes from memory, clocks or floats is unknown, and
what a pointer went into may be an address, but decides nothing. A branch on something unknown is taken in neither
direction: its threads go on where both ways have met, if nothing in between touches memory; what may have been written
there is unknown. So every thread of a real run does what one here does, or the launch is refused. The result holds for
all launches that differ in nothing but their pointers and words that were not read.

Shared memory (`slots`): a thread that loads a word waits until no other can go on. If all stores to this word so far
stored the same known number, it has that one. In the end the stores of the whole run are compared with the numbers that
were relied on: the first load in a real run that had another would have needed a store that is not among them. Not
covered are programs that read shared memory in which nothing was stored.

Uniform registers are followed per thread, because threads that parted execute their ways in any order, and correct code
depends on none. Where threads of a warp would hold different ones (a thread's index was moved to it), nothing but other
uniform registers may depend on it until they are equal again.
"""

from __future__ import annotations

import re
from math import prod
from typing import Final

import numpy as np

from tileprof.arrays import I64
from tileprof.record.cuda.code import flow
from tileprof.record.cuda.code.flow import End, Kind
from tileprof.record.cuda.code.halves import pointer_of
from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES
from tileprof.record.cuda.code.lanes import (
    HIGH,
    MOST_POINTERS,
    PLACE,
    POINTER,
    UNEVEN,
    UNKNOWN,
    WARP,
    Array,
    Group,
    Held,
    Layout,
    Value,
    Warps,
    is_flag,
    merged,
    unknown_where,
)
from tileprof.record.cuda.code.reading import Kernel, Part, Tensor, following
from tileprof.record.cuda.code.slots import PLACE_BITS, Slots
from tileprof.record.cuda.code.traces import (
    MAP_BYTES,
    POINTER_BITS,
    Collected,
    Launch,
    Trace,
    map_at,
)
from tileprof.record.cuda.code.values import ADDRESS, PARAMETERS_ADDRESS, Values
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap
from tileprof.trace import READ, WRITE

_OFFSET_BITS: Final = 49
"""Bits of an offset, or of an address, besides its sign."""
_BARRIER_BYTES: Final = 8
_STORED_BYTES: Final = 16
"""The most bytes that a thread stores in shared memory by one instruction."""
LANES: Final = 1 << 16
"""Threads that are followed together: a register of all of them stays in a core's cache."""
MOST_WORK: Final = 1_000_000
"""Instructions, each counted once and once more per 2,048 threads, before a launch is given up."""


class Refused(Exception):  # noqa: N818
    """Why a launch is not proven."""


def trace(kernel: Kernel, launch: Launch) -> Trace | str:
    """Return everything in global memory that a launch touches; or why that is not known."""
    try:
        return _Run(kernel, launch).run()
    except Refused as refused:
        return str(refused)


class _Run(Values):
    def __init__(self, kernel: Kernel, launch: Launch) -> None:
        self.kernel = kernel
        threads, self.blocks = prod(launch.block), prod(launch.grid)
        if not 0 < threads <= 1024 or not kernel.code or not kernel.understood:
            raise Refused("no threads or no code, or relocations that are not understood")
        if launch.begin % 4 or launch.begin < PARAMETERS_ADDRESS + 8 or any(p < launch.begin for p in launch.pointers):
            raise Refused("parameters in another place than this architecture's")
        if len(launch.pointers) >= MOST_POINTERS - 1:
            raise Refused("too many pointers")
        if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
            raise Refused("a grid that is no whole clusters")
        elects = any(p.name == "ELECT" for p in kernel.parts)
        super().__init__(launch, Layout(threads, 2 if elects else 1))
        self.of_cluster = prod(launch.cluster)
        self.touched = Collected(len(self.places))
        self.maps: dict[int, TensorMap] = {}
        self.steps = np.zeros(self.blocks, np.int64)
        self.work = MOST_WORK

    def run(self) -> Trace:
        """Follow all blocks, some whole clusters at a time."""
        order = self._by_cluster()
        count = max(1, LANES // (self.layout.of_block * self.of_cluster)) * self.of_cluster
        for begin in range(0, self.blocks, count):
            self._follow(order[begin : begin + count])
        rows = {}
        for mode in self.touched.pending:
            rows[mode] = self.touched.unite(mode).copy()
            rows[mode][:, 1] = self.places[rows[mode][:, 1]]
        return Trace(rows, self.touched.boxes(), self.steps, self.used)

    def _by_cluster(self) -> I64:
        """Return all blocks by cluster, and in each by their rank there."""
        block = np.arange(self.blocks)
        cluster, below = np.zeros(self.blocks, np.int64), 1
        for axis in range(3):
            cluster += below * (self._axis(block, self.launch.grid, axis) // self.launch.cluster[axis])
            below *= self.launch.grid[axis] // self.launch.cluster[axis]
        return np.argsort(cluster, kind="stable")

    def _follow(self, blocks: I64) -> None:
        self.block = blocks
        lanes = self.layout.all(len(blocks))
        self.living = np.zeros(len(blocks) * self.layout.of_block, bool)
        self.living[lanes] = True
        self.slots = Slots()
        self.groups = [Group(0, lanes, {})]
        self.waiting: list[Group] = []
        while self.groups or self.waiting:
            if not self.groups:
                self._resume()
            else:
                self._execute(self._next())
        if not self.slots.hold():
            raise Refused("words of shared memory that decide something have several values")

    def _next(self) -> Group:
        """Return the group that is furthest behind, joined with others that are at the same place."""
        at = min(g.at for g in self.groups)
        if len(self.groups) == 1:
            return self.groups[0]
        here = [g for g in self.groups if g.at == at]
        if len(here) == 1:
            return here[0]
        group = merged(here, self.kernel.live[at])
        self.groups = [*(g for g in self.groups if g.at != at), group]
        return group

    # -- one instruction

    def _execute(self, group: Group) -> None:
        n = self.kernel.next[group.at]
        limit = min((g.at for g in self.groups if g is not group), default=n)
        if group.at < limit < n:
            n = limit
        group.steps += n - group.at
        group.at = n
        if n >= len(self.kernel.parts):
            raise Refused("it runs behind its end")
        self.work -= 1 + len(group.lanes) // 2048
        if self.work < 0:
            raise Refused("too many instructions")
        part = self.kernel.parts[n]
        group.steps += 1
        if part.end is not None:
            self._leave(group, part, part.end)
            return
        holds: Value = True
        unknown: Array | bool = False
        if part.instruction.guard is not None:
            holds, unknown = self._condition(group, [part.instruction.guard])
            if not np.any(holds):
                group.at += 1
                return
            if isinstance(holds, np.ndarray) and holds.all():
                holds = True
        if not self._effects(group, part, holds, unknown):
            return
        if part.worth:
            results = self._results(group, part, holds, unknown)
            for name in {*part.written, *results}:
                self._write(group, name, results.get(name), holds, unknown)
        group.at += 1

    def _effects(self, group: Group, part: Part, holds: Value, unknown: Array | bool) -> bool:
        """Do what an instruction does other than to write registers; whether it goes on to those."""
        if part.access is not None:
            self._touch(group, part, holds, unknown)
        elif part.tensor is not None:
            if np.any(unknown):
                raise Refused(f"whether {_words(part)} is executed is unknown")
            self._box(group, part, part.tensor, holds)
        elif not part.harmless:
            raise Refused(f"{_words(part)} is not known")
        if self.kernel.slots and part.stores_shared:
            self._store_shared(group, part, holds)
        if part.loads_word and part.worth and not np.any(unknown):
            return not self._wait(group, part, holds)
        return True

    def _results(self, group: Group, part: Part, holds: Value, unknown: Array | bool) -> dict[str, Held]:
        if (barrier := flow.barrier_target(part.instruction)) is not None:
            return {barrier[0]: Held(barrier[1], 0)}
        if part.name in _ACROSS:
            return {} if np.any(unknown) else _ACROSS[part.name](self, group, part, holds)
        return self._computed(group, part, part.step, holds) if part.step is not None else {}

    # -- control

    def _leave(self, group: Group, part: Part, end: End) -> None:
        if not end.decided and end.kind is Kind.BRANCH and self.kernel.repeats(group.at):
            for m in range(end.target, group.at):
                for name in self.kernel.parts[m].written:
                    group.registers.pop(name, None)
            group.at += 1
            return
        if end.kind is Kind.LOST or not end.decided:
            raise Refused(f"{_words(part)} goes somewhere unknown")
        holds, unknown = self._condition(group, end.conditions)
        index = group.at
        if np.any(unknown):
            if end.kind is not Kind.BRANCH:
                raise Refused(f"whether {_words(part)} is taken is unknown")
            self._skip(group, part, unknown)
            return
        if holds is True or bool(np.all(holds)):
            self._go(group, part, end)
        elif not np.any(holds):
            group.at = index + 1
        else:
            self.groups.remove(group)
            stay = group.part(~holds, self.kernel.live[index + 1])
            stay.at = index + 1
            gone = group.part(holds, self.kernel.live[index])
            self.groups += [stay, gone]
            self._go(gone, part, end)

    def _go(self, group: Group, part: Part, end: End) -> None:
        if end.kind is Kind.EXIT:
            self.living[group.lanes] = False
            np.maximum.at(self.steps, self.block[group.lanes // self.layout.of_block], group.steps)
            self.groups.remove(group)
        elif end.kind is Kind.RETURN:
            self._return(group, part, end.register)
        elif end.kind is Kind.SYNC:
            held = self._read(group, end.register)
            if np.any(np.asarray(held.level, np.uint64)) or np.any(
                held.value != part.instruction.address + INSTRUCTION_BYTES
            ):
                raise Refused(f"where threads continue after {_words(part)} is unknown")
            group.at += 1
        else:
            if end.target < 0:
                raise Refused(f"{_words(part)} goes somewhere unknown")
            group.at = end.target

    def _return(self, group: Group, part: Part, register: str) -> None:
        held = self._read(group, register)
        high = self._read(group, following(register))
        if (
            np.any(np.asarray(held.level | high.level, np.uint64))
            or held.origin >= 0
            or high.origin >= 0
            or np.any(high.value)
        ):
            raise Refused(f"where {_words(part)} goes is unknown")
        self.groups.remove(group)
        address = np.broadcast_to(held.value, len(group.lanes))
        for place in np.unique(address).tolist():
            index = flow.index_of(place, self.kernel.code)
            if index is None:
                raise Refused(f"{_words(part)} goes somewhere unknown")
            returned = group.part(address == place, self.kernel.live[index])
            returned.at = index
            self.groups.append(returned)

    def _skip(self, group: Group, part: Part, unknown: Array | bool) -> None:
        """Let threads of which it is not known where they go continue where both ways have met."""
        found = self.kernel.join(group.at)
        if found is None:
            raise Refused(f"{_words(part)} depends on something unknown, and its ways do more than to compute")
        join, inside = found
        if isinstance(unknown, np.ndarray) and not unknown.all():
            self.groups.remove(group)
            names = self.kernel.live[group.at]
            lost, rest = group.part(unknown, names), group.part(~unknown, names)
            self.groups += [lost, rest]  # the rest comes here again, and all is known of it
            group = lost
        for n in inside:
            for name in self.kernel.parts[n].written:
                group.registers.pop(name, None)
        group.steps += max(0, join - group.at - 1)
        group.at = join

    # -- global memory

    def _touch(self, group: Group, part: Part, holds: Value, unknown: Array | bool) -> None:
        accessed = part.access
        assert accessed is not None
        if accessed.condition is not None:
            also, unknown_too = self._condition(group, [accessed.condition])
            holds, unknown = holds & also, unknown | unknown_too
        if np.any(unknown & holds):
            raise Refused(f"whether {_words(part)} touches memory is unknown")
        if not np.any(holds):
            return
        held = [self._read(group, name) for name in accessed.reads]
        if any(h.origin >= 0 for h in held):
            raise Refused(f"the address of {_words(part)} depends on an estimate")
        n = len(group.lanes)
        number, bad = np.zeros(n, np.int64), np.zeros(n, bool)
        for low, high in zip(held[::2], held[1::2], strict=True):
            own, wrong = pointer_of(low.level, high.level, POINTER)
            bad = bad | wrong | ((own > 0) & (number > 0))
            number = number + own
        if np.any(bad & holds):
            raise Refused(f"the address of {_words(part)} is unknown, or no pointer plus an offset")
        values = [h.value for h in held]
        address = np.broadcast_to(np.asarray(accessed.address(values), np.uint64), n).astype(np.int64)
        missing = np.zeros(n, np.int64)
        if accessed.missing is not None:
            missing = np.broadcast_to(np.asarray(accessed.missing(values), np.uint64), n).astype(np.int64)
        block = self.block[group.lanes // self.layout.of_block]
        if isinstance(holds, np.ndarray):
            address, block, number, missing = address[holds], block[holds], number[holds], missing[holds]
        begin = address - (number << POINTER_BITS) - self.lows[number]
        if ((begin >> _OFFSET_BITS != 0) & (begin >> _OFFSET_BITS != -1)).any():
            raise Refused(f"the address of {_words(part)} is far from its pointer")
        for count in np.unique(missing).tolist():
            rows, size = missing == count, accessed.size - count
            self._add_rows(accessed.mode, size, block[rows], number[rows], begin[rows], group.steps)

    def _add_rows(self, mode: int, size: int, block: I64, number: I64, begin: I64, steps: int) -> None:
        """Add ``size`` bytes from each place on, as runs of those that follow each other."""
        apart = (begin[1:] != begin[:-1] + size) & (begin[1:] != begin[:-1])
        apart |= (block[1:] != block[:-1]) | (number[1:] != number[:-1])
        head = np.flatnonzero(np.concatenate([[True], apart]))
        last = np.append(head[1:], len(block)) - 1
        first = np.full(len(head), steps)
        rows = np.stack([block[head], number[head], begin[head], begin[last] + size, first], axis=1)
        self.touched.add(mode, rows)

    # -- tensor maps

    def _box(self, group: Group, part: Part, tensor: Tensor, holds: Value) -> None:
        """A load or store through a tensor map, once per warp and with the warp's uniform registers."""
        low, high = (self._uniform(group, part, holds, name, PLACE | HIGH) for name in tensor.address)
        low_level, high_level = (self._read(group, name).level for name in tensor.address)
        _, wrong = pointer_of(low_level, high_level, PLACE)
        if np.any(wrong & holds):
            raise Refused(f"the map of {_words(part)} is unknown")
        lanes = group.lanes if holds is True else group.lanes[holds]
        table = np.zeros((len(lanes), 8), np.int64)
        table[:, 0] = (low | high << 32) - ADDRESS
        table[:, 1] = self.block[lanes // self.layout.of_block]
        for n, name in enumerate(tensor.coordinates):
            table[:, 2 + n] = self._uniform(group, part, holds, name, 0).astype(np.uint32).view(np.int32)
        table[:, 7] = group.steps
        table = np.unique(table, axis=0)
        offsets = np.unique(table[:, 0]).tolist()
        for offset in offsets:
            map_ = self._map(offset, part)
            if len(map_.sizes) != tensor.dimensions:
                raise Refused(f"{_words(part)} through a map of {len(map_.sizes)} dimensions")
            rows = table[table[:, 0] == offset, 1:]
            self.touched.tensors.setdefault((offset, READ if tensor.loads else WRITE), []).append(rows)
        if tensor.loads and self.kernel.slots:
            size = max(self.maps[o].element * prod(self.maps[o].box) for o in offsets)
            for name, bytes_ in ((f"UR{tensor.box}", size), (f"UR{tensor.box + 1}", _BARRIER_BYTES)):
                address = self._uniform(group, part, holds, name, 0)
                self._store_unknown(lanes, address, bytes_, everywhere=tensor.multicast)

    def _uniform(self, group: Group, part: Part, holds: Value, name: str, also: int) -> I64:
        held = self._read(group, name)
        n = len(group.lanes)
        level = np.broadcast_to(np.asarray(held.level, np.uint64), n)
        value = np.broadcast_to(held.value[0] if held.origin >= 0 else held.value, n)
        if holds is not True:
            value, level = value[holds], level[holds]
        if (level & (0xFF ^ also)).any() or (level >> 8 != 0).any() > bool(also) or held.origin >= 0:
            raise Refused(f"{name} of {_words(part)} is unknown")
        return value.astype(np.int64)

    def _map(self, offset: int, part: Part) -> TensorMap:
        if offset not in self.maps:
            launch = self.launch
            if offset < launch.begin or offset % 4 or offset + MAP_BYTES > len(launch.bank):
                raise Refused(f"{_words(part)} through a map that is not among the parameters")
            if (self.levels[offset // 4 + 2 : (offset + MAP_BYTES) // 4] != 0).any():
                raise Refused(f"{_words(part)} through a map with pointers in it")
            found = map_at(launch.bank, offset)
            if found is None or found.im2col:
                raise Refused(f"{_words(part)} through a map that is not understood")
            self.maps[offset] = found
            self.used[offset // 4 : (offset + MAP_BYTES) // 4] = True
        return self.maps[offset]

    # -- shared memory

    def _places(self, lanes: I64, address: I64) -> tuple[I64, I64] | None:
        """Return places in shared memory (`slots`), and others that may be meant in their stead; None if unknown.

        Bits from 24 on are the rank of a block in its cluster. Without them the own block is meant, or the first.
        """
        at = lanes // self.layout.of_block
        own, rank = at % self.of_cluster, address >> PLACE_BITS
        if ((rank < 0) | (rank >= self.of_cluster)).any():
            return None
        byte, first = address & (1 << PLACE_BITS) - 1, at - own
        unclear = (rank == 0) & (own != 0)
        return first + rank << PLACE_BITS | byte, (at << PLACE_BITS | byte)[unclear]

    def _store_unknown(self, lanes: I64, address: I64, size: int, *, everywhere: bool = False) -> None:
        """Note a store of something unknown, in all blocks of the cluster if ``everywhere``."""
        places = self._places(lanes, address)
        if places is None:
            self.slots.anywhere = True
            return
        for place in places:
            self.slots.store_unknown(place, size)
            for rank in range(self.of_cluster if everywhere else 0):
                at = place >> PLACE_BITS
                self.slots.store_unknown(
                    place + (at // self.of_cluster * self.of_cluster + rank - at << PLACE_BITS), size
                )

    def _shared_address(self, group: Group, part: Part) -> tuple[I64, Array] | None:
        """Return the address in shared memory that an instruction names, and where it is not known."""
        if part.shared is None:
            return None
        n = len(group.lanes)
        total, bad = np.full(n, part.shared.offset), np.zeros(n, bool)
        for name in part.shared.registers:
            held = self._read(group, name)
            if held.origin >= 0:
                return None
            total, bad = total + np.asarray(held.value, np.int64), bad | (np.asarray(held.level, np.uint64) != 0)
        return total & 0xFFFFFFFF, bad

    def _store_shared(self, group: Group, part: Part, holds: Value) -> None:
        found = self._shared_address(group, part)
        n = len(group.lanes)
        chosen = np.arange(n) if holds is True else np.flatnonzero(holds)
        if part.instruction.operation.startswith("SYNCS.PHASECHK"):
            return
        if found is None or found[1][chosen].any():
            self.slots.anywhere = True
            return
        lanes, address = group.lanes[chosen], found[0][chosen]
        if part.name == "STAS":
            self._signal(group, part, chosen)
        if part.stored is not None:
            held = Held(0, 0) if part.stored == "RZ" else self._read(group, part.stored)
            places = self._places(lanes, address)
            if held.origin < 0 and places is not None and not len(places[1]):
                known = np.broadcast_to(np.asarray(held.level, np.uint64) == 0, n)[chosen] & (address % 4 == 0)
                value = np.broadcast_to(np.asarray(held.value, np.int64), n)[chosen]
                self.slots.store_words(places[0][known], value[known])
                lanes, address = lanes[~known], address[~known]
        if len(lanes):
            barrier = part.name in {"SYNCS", "ARRIVES"}
            self._store_unknown(lanes, address, _BARRIER_BYTES if barrier else _STORED_BYTES)

    def _signal(self, group: Group, part: Part, chosen: I64) -> None:
        """Note the barrier that a store in another block signals: in the register after that of its address."""
        assert part.shared is not None
        held = self._read(group, following(part.shared.registers[0])) if part.shared.registers else Held(0, UNKNOWN)
        n = len(group.lanes)
        if held.origin >= 0 or np.broadcast_to(np.asarray(held.level, np.uint64) != 0, n)[chosen].any():
            self.slots.anywhere = True
            return
        address = np.broadcast_to(np.asarray(held.value, np.int64), n)[chosen]
        for offset in {0, part.shared.offset}:
            self._store_unknown(group.lanes[chosen], address + offset & 0xFFFFFFFF, _BARRIER_BYTES)

    def _wait(self, group: Group, part: Part, holds: Value) -> bool:
        """Let threads wait that load a word of shared memory; whether they do. Others load something unknown."""
        found = self._shared_address(group, part)
        if found is None or self.slots.anywhere or (found[1] & holds).any() or ((found[0] % 4 != 0) & holds).any():
            return False
        self.groups.remove(group)
        if holds is not True:
            rest = group.part(~holds, self.kernel.live[group.at])
            rest.at += 1
            self.groups.append(rest)
            group = group.part(holds, self.kernel.live[group.at])
        self.waiting.append(group)
        return True

    def _resume(self) -> None:
        """Give the threads that wait for shared memory what is there."""
        at = min(g.at for g in self.waiting)
        here = [g for g in self.waiting if g.at == at]
        self.waiting = [g for g in self.waiting if g.at != at]
        part = self.kernel.parts[at]
        for group in here:
            found = self._shared_address(group, part)
            assert found is not None
            places = self._places(group.lanes, found[0])
            loaded = None
            if places is not None and not len(places[1]):
                wanted, inverse = np.unique(places[0], return_inverse=True)
                value, known = self.slots.load(wanted)
                level = unknown_where(~known[inverse])
                loaded = Held(value[inverse].astype(np.uint32), level)
            for name in part.written:
                self._write(group, name, loaded, True, False)
            group.at += 1
            self.groups.append(group)

    # -- across threads

    def vote(self, group: Group, part: Part, holds: Value) -> dict[str, Held]:
        """``VOTEU.ANY UP3, !P5``: whether it holds in any (or all) of the warp's threads."""
        operands = part.instruction.operands
        kind = part.instruction.operation.partition(".")[2]
        if kind not in {"ANY", "ALL"} or len(operands) != 2 or not re.fullmatch(r"U?P\d", operands[0]):
            return {}
        n = len(group.lanes)
        value, unknown = self._flag(group, operands[1].lstrip("!"), negated=operands[1].startswith("!"))
        warps = Warps(self.layout, group, self.living)
        voting = np.broadcast_to(np.asarray(holds), n)
        decides = np.broadcast_to(np.asarray(value), n) == (kind == "ANY")
        known = ~np.broadcast_to(np.asarray(unknown), n)
        sure, never = warps.some(decides & known & voting), ~warps.any((decides | ~known) & voting)
        all_vote = ~warps.any(~voting)
        bad = ~(sure | never) | ~warps.whole() | ~all_vote
        result = sure if kind == "ANY" else ~sure
        return {operands[0]: Held(warps.spread(result), warps.spread(unknown_where(bad)))}

    def elect(self, group: Group, part: Part, holds: Value) -> dict[str, Held]:
        """``ELECT P0, URZ, PT``: true in one thread of the warp."""
        operands = part.instruction.operands
        if holds is not True or len(operands) != 3 or operands[1:] != ("URZ", "PT") or not is_flag(operands[0]):
            return {}
        warps = Warps(self.layout, group, self.living)
        level = warps.spread(unknown_where(~warps.whole()))
        return {operands[0]: Held(group.lanes % self.layout.of_warp < WARP, level)}

    def to_uniform(self, group: Group, part: Part, holds: Value) -> dict[str, Held]:
        """``R2UR UR4, R0``: the value that any of the threads has which execute it; the whole warp has it then."""
        step = part.step
        if step is None or len(step.reads) != 1:
            return {}
        held = self._read(group, step.reads[0])
        if holds is True and (held.origin >= 0 or not isinstance(held.value, np.ndarray)):
            return self._computed(group, part, step, holds)
        if held.origin >= 0:
            return {}
        n = len(group.lanes)
        taking = np.broadcast_to(np.asarray(holds), n)
        value = np.broadcast_to(np.asarray(held.value, np.uint32), n)
        level = np.broadcast_to(np.asarray(held.level, np.uint64), n)
        warps = Warps(self.layout, group, self.living)
        least = np.minimum.reduceat(np.where(taking, value, np.uint32(0xFFFFFFFF)), warps.heads)
        most = np.maximum.reduceat(np.where(taking, value, np.uint32(0)), warps.heads)
        levels = np.maximum.reduceat(np.where(taking, level, np.uint64(0)), warps.heads)
        lowest = np.minimum.reduceat(np.where(taking, level, np.uint64((1 << 64) - 1)), warps.heads)
        written = warps.any(taking)
        levels = np.where(written & (~warps.some(taking) | (lowest != levels)), np.uint64(UNKNOWN), levels)
        even = warps.spread(least == most)
        new = Held(
            np.where(even, warps.spread(least), value),
            warps.spread(levels) | np.where(even, np.uint64(0), np.uint64(UNEVEN)),
        )
        # The register is the warp's: those of its threads that do not execute this have it too.
        self._write(group, step.writes[0], new, _whole(warps.spread(written)), False)
        return {step.writes[0]: group.registers[step.writes[0]]}


_ACROSS: Final = {"VOTE": _Run.vote, "VOTEU": _Run.vote, "ELECT": _Run.elect, "R2UR": _Run.to_uniform}


def _whole(holds: Array) -> Value:
    return True if holds.all() else holds


def _words(part: Part) -> str:
    return f"{part.instruction.operation} at {part.instruction.address:#x}"
