"""Values of registers of many threads, what instructions compute of them, and how much they are worth.

A uniform register is followed per thread. Where threads of a warp would hold different ones, nothing but other uniform
registers may depend on it until they are equal again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np

from tileprof.arrays import I64
from tileprof.record.cuda.code.computing.operands import Step
from tileprof.record.cuda.code.halves import level_of, names_half, plan_of
from tileprof.record.cuda.code.lanes import (
    CARRY,
    HIGH,
    KIND,
    LOW,
    NUMBER_SHIFT,
    PLACE,
    POINTER,
    SUM,
    UNEVEN,
    UNKNOWN,
    WARP,
    Array,
    Group,
    Held,
    Layout,
    Level,
    Value,
    Warps,
    is_flag,
    nothing,
    unknown_where,
    without,
    worse,
)
from tileprof.record.cuda.code.reading import Part
from tileprof.record.cuda.code.traces import LOW_BITS, POINTER_BITS, Launch, has_high_pointers, low_bits

_Kinds = tuple[tuple[str, int], ...]
GEOMETRY_BYTES: Final = 0x18
"""Of constant bank 0: sizes of a block, then of the grid."""
PARAMETERS_ADDRESS: Final = 0x198
"""Place of the address of the first parameter."""
BANK_ADDRESS: Final = 0xC0
"""Place of the address of constant bank 0 itself: cuBLAS's kernels add to it what lies between it and their tensor maps
(seen on an H200, driver 580)."""
ADDRESS: Final = 0x7E12_3456_0000
"""Stands for the address of constant bank 0, which only tells tensor maps apart."""
_NULL: Final = re.compile(r"U?ISETP\.(NE|EQ)(\.U32)?\.(AND|OR|XOR)\.EX")
_BANK: Final = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]")
_SHIFT: Final = re.compile(r"U?SHF\.R\.(U32|U64|S32)")
_MOVED: Final = POINTER | PLACE | LOW | HIGH | CARRY
_WORD_BYTES: Final = 4


def _number(text: str) -> int:
    """Return a number that an operand is; else one that is too large."""
    return int(text, 16) if re.fullmatch("0x[0-9a-f]+", text) else 1 << 32


class Values:
    """The constant bank of a launch, and the registers of groups of its threads.

    ``block``: blocks that are followed now; ``living``: which of their threads have not ended.
    """

    block: I64
    living: Array

    def __init__(self, launch: Launch, layout: Layout) -> None:
        """Read what a launch has in its constant bank."""
        self.launch, self.layout = launch, layout
        self.places = np.array([-1, *sorted(launch.pointers)])
        self.high_pointers = has_high_pointers(launch)
        self.estimates = self.additions = 0
        self.plans: dict[tuple[int, _Kinds], list[tuple[str, ...]]] = {}
        self._read_bank()

    def _read_bank(self) -> None:
        launch = self.launch
        words = len(launch.bank) // 4
        self.lows = np.zeros(len(self.places), np.int64)
        self.words = np.zeros(words + 4, np.uint32)
        self.words[:words] = np.frombuffer(launch.bank[: 4 * words], "<u4")
        self.used = np.zeros(words + 4, np.bool_)
        self.levels = np.full(words + 4, UNKNOWN, np.uint64)
        self.levels[: GEOMETRY_BYTES // 4] = 0
        self.levels[launch.begin // 4 : words] = 0
        for n, pointer in enumerate(sorted(launch.pointers)):
            low = low_bits(launch, pointer)
            self._stand_for(pointer, ((n + 1) << POINTER_BITS) + low, POINTER | n + 1 << NUMBER_SHIFT)
            self.lows[n + 1] = low
        self._stand_for(PARAMETERS_ADDRESS, ADDRESS + launch.begin, PLACE)
        self._stand_for(BANK_ADDRESS, ADDRESS, PLACE)

    def _stand_for(self, at: int, address: int, level: int) -> None:
        for half in (0, 1):
            self.words[at // 4 + half] = address >> 32 * half & 0xFFFFFFFF
            self.levels[at // 4 + half] = level | HIGH * half

    def _read(self, group: Group, name: str) -> Held:
        held = group.registers.get(name)
        if held is not None:
            return held
        if name.startswith("c["):
            n = int(name[2:-1], 16) // 4
            self.used[min(n, len(self.used) - 1)] = True
            return Held(int(self.words[n]), int(self.levels[n])) if n < len(self.words) else Held(0, UNKNOWN)
        if name.startswith("SR_"):
            return self._special_register(name, group.lanes)
        return nothing(name)

    def _special_register(self, name: str, lanes: I64) -> Held:
        block, thread = self.block[lanes // self.layout.of_block], self.layout.thread(lanes)
        if name == "SR_LANEID":
            return Held((thread % WARP).astype(np.uint32), 0)
        if name == "SR_CgaCtaId":
            rank, below = np.zeros(len(lanes), np.int64), 1
            for axis in range(3):
                rank += below * (self._axis(block, self.launch.grid, axis) % self.launch.cluster[axis])
                below *= self.launch.cluster[axis]
            return Held(rank.astype(np.uint32), 0)
        kind, _, axis_name = name.partition(".")
        if kind not in {"SR_TID", "SR_CTAID"} or axis_name not in {"X", "Y", "Z"}:
            return Held(0, UNKNOWN)
        of, sizes = (thread, self.launch.block) if kind == "SR_TID" else (block, self.launch.grid)
        return Held(self._axis(of, sizes, "XYZ".index(axis_name)).astype(np.uint32), 0)

    @staticmethod
    def _axis(linear: I64, sizes: Sequence[int], axis: int) -> I64:
        return linear // prod(sizes[:axis]) % sizes[axis]

    def _flag(self, group: Group, name: str, *, negated: bool) -> tuple[Value, Array | bool]:
        """Return a predicate, and where it is not known."""
        if name in {"PT", "UPT"}:
            return not negated, False
        held = self._read(group, name)
        value, unknown = held.value, held.level != 0
        if held.origin >= 0:
            unknown = unknown | (value != value[0]).any(axis=0)
            value = value[0]
        if negated:
            value = ~value if isinstance(value, np.ndarray) else not value
        return value, unknown

    def _condition(self, group: Group, conditions: Sequence[tuple[str, bool]]) -> tuple[Value, Array | bool]:
        """Return where conditions all hold, or may, and where that is not known.

        One that is known not to hold decides it, whatever the others are.
        """
        holds: Value = True
        unknown: Array | bool = False
        for name, negated in conditions:
            value, unknown_here = self._flag(group, name, negated=negated)
            holds = holds & (value | unknown_here)
            unknown = unknown | unknown_here
        return holds, unknown & holds

    def _computed(self, group: Group, part: Part, step: Step, holds: Value) -> dict[str, Held]:
        if step.source_lane is not None:
            return self._shuffled(group, step, step.source_lane, holds)
        values: list[Value] = []
        level: Level = 0
        origin = -1
        decided = self._is_no_null(group, part)
        for name in step.reads:
            held = self._read(group, name)
            values.append(held.value)
            level = level if name in decided else level | held.level
            if held.origin >= 0:
                if origin not in {-1, held.origin}:
                    return {}
                origin = held.origin
        if not isinstance(level, np.ndarray) and level & UNKNOWN:
            return {}
        levels: list[Level] | None = None
        if step.indexed is not None:
            if origin >= 0 or np.any(np.asarray(level, np.uint64) & _MOVED):
                return {}
            levels = self._load_bank(values, level, step.indexed.offset, step.indexed.size, step.indexed.words)
        elif np.any(np.asarray(level, np.uint64) & _MOVED):
            levels = self._moved(group, part, step, decided, holds)
        else:
            levels = [level] * len(step.writes)
        if not part.uniform:
            levels = [worse(own, UNEVEN) for own in levels]
        if all(not isinstance(own, np.ndarray) and own & UNKNOWN for own in levels):
            return {}
        if step.estimates:
            return {} if origin >= 0 else self._estimated(group, step, values, levels[0])
        out = {}
        for name, value, own in zip(step.writes, step.run(values), levels, strict=True):
            two = origin >= 0 and isinstance(value, np.ndarray) and value.ndim > 1
            out[name] = self._evened(group, part, Held(value, own, origin if two else -1))
        return out

    def _is_no_null(self, group: Group, part: Part) -> tuple[str, ...]:
        """Return what does not decide a comparison of a pointer with zero: it is far from it, whatever it is.

        ``ISETP.NE.AND.EX P0, PT, R3, RZ, PT, P1`` compares the high halves; P1 tells of the low ones.
        """
        operands = [o.removesuffix(".reuse") for o in part.instruction.operands]
        if _NULL.fullmatch(part.instruction.operation) is None or len(operands) != 6 or not self.high_pointers:
            return ()
        words = [o for o in operands[2:4] if o not in {"RZ", "URZ", "0x0"}]
        if len(words) != 1:
            return ()
        match = _BANK.fullmatch(words[0])
        name = f"c[{match[1]}]" if match else words[0]
        held = self._read(group, name)
        number = np.asarray(held.value, np.int64) + 128 >> POINTER_BITS - 32
        kind = np.asarray(held.level, np.uint64) & KIND
        own = kind >> NUMBER_SHIFT
        kind = kind & 0xFF
        if (kind != (POINTER | HIGH)).any() or held.origin >= 0 or (number != own.astype(np.int64)).any():
            return ()
        below = operands[5].lstrip("!")
        return (name,) if below == operands[4].lstrip("!") else (name, below)

    def _evened(self, group: Group, part: Part, held: Held) -> Held:
        """Return a result; one of uniform registers with a note whether threads of a warp have different ones."""
        if not part.uniform:
            return held
        uneven = not self.layout.is_even(group.lanes, held.value)
        return replace(held, level=without(held.level, UNEVEN) | (UNEVEN if uneven else 0))

    def _load_bank(self, values: list[Value], level: Level, offset: int, size: int, words: int) -> list[Level]:
        """Append what lies in the constant bank at a register's offset, and return the level of each word."""
        at = (np.asarray(values[0], np.int64) + offset) & 0xFFFFFFFF
        bad = unknown_where(at % size != 0)
        out: list[Level] = []
        for n in range(words):
            place = np.minimum(at // 4 + n, len(self.words) - 1)
            self.used[place] = True
            loaded, own = self.words[place], self.levels[place] | bad | level
            values.append(int(loaded) if loaded.ndim == 0 else loaded)
            out.append(int(own) if own.ndim == 0 else own)
        return [worse(own, _MOVED) for own in out] if size < _WORD_BYTES else out

    def _estimated(self, group: Group, step: Step, values: list[Value], level: Level) -> dict[str, Held]:
        """Return everything that the hardware may estimate. Nothing that depends on it is known until all are equal."""
        rows, usual = step.run(values)
        n = len(group.lanes)
        level = np.broadcast_to(np.asarray(level, np.uint64), n) | unknown_where(~np.broadcast_to(usual, n))
        self.estimates += 1
        rows = np.broadcast_to(rows, (len(rows), n))
        return {step.writes[0]: Held(rows, level, self.estimates)}

    def _moved(self, group: Group, part: Part, step: Step, decided: Sequence[str], holds: Value) -> list[Level]:
        """Return the levels of what is computed of halves of pointers: no more than sums with one, or its low bits."""
        read = {name: self._read(group, name).level for name in step.reads if name not in decided}
        base: Level = 0
        for level in read.values():
            base = base | np.asarray(level, np.uint64) & (UNKNOWN | UNEVEN)
        base = int(base) if np.ndim(base) == 0 else base
        moved = {name: level for name, level in read.items() if np.any(np.asarray(level, np.uint64) & _MOVED)}
        known = self._low_bits(group, part, list(moved))
        if known is not None or not moved:
            return [base | (known or 0)] * len(step.writes)
        if part.name in {"SEL", "USEL"}:
            return [base | self._chosen(group, part, moved)]
        out: list[Level] = [UNKNOWN] * len(step.writes)
        self.additions += 1
        for kinds, chosen in self._kinds(moved, holds):
            key = group.at, kinds
            if key not in self.plans:
                self.plans[key] = plan_of(part, step, dict(kinds))
            for n, plan in enumerate(self.plans[key]):
                level = base | level_of(plan, moved, self.additions & SUM) if plan[0] != "bad" else UNKNOWN
                out[n] = level if chosen is None else np.where(chosen, level, np.asarray(out[n], np.uint64))
        return out

    def _kinds(self, moved: Mapping[str, Level], holds: Value) -> list[tuple[_Kinds, Array | None]]:
        """Return what kinds of values the threads have for which an instruction is executed, and which threads."""
        kinds = {name: np.asarray(level, np.uint64) & KIND for name, level in moved.items()}
        if holds is not True:
            kinds = {name: kind if kind.ndim == 0 else kind[holds] for name, kind in kinds.items()}
        if all(kind.ndim == 0 or (kind == kind[0]).all() for kind in kinds.values()):
            return [(tuple((name, int(kind.flat[0])) for name, kind in kinds.items()), None)]
        whole = {name: np.asarray(level, np.uint64) & KIND for name, level in moved.items()}
        n = max(kind.size for kind in whole.values())
        table = np.stack([np.broadcast_to(kind, n) for kind in whole.values()])
        rows = np.unique(table if holds is True else table[:, holds], axis=1).T.tolist()
        out: list[tuple[_Kinds, Array | None]] = []
        for row in rows:
            same = (table == np.array(row, np.uint64)[:, None]).all(axis=0)
            out.append((tuple(zip(whole, row, strict=True)), same))
        return out

    def _chosen(self, group: Group, part: Part, moved: Mapping[str, Level]) -> Level:
        """Return the level of one of two values that a known predicate chooses."""
        _, first, second, condition = (o.removesuffix(".reuse") for o in part.instruction.operands)
        which, unknown = self._flag(group, condition.lstrip("!"), negated=condition.startswith("!"))
        if np.any(unknown) or any(is_flag(name) for name in moved):
            return UNKNOWN
        first_level, second_level = (
            next((level for name, level in moved.items() if names_half(word, name, pair=False)), 0)
            for word in (first, second)
        )
        level = np.where(which, np.asarray(first_level, np.uint64), np.asarray(second_level, np.uint64))
        return int(level) if level.ndim == 0 else level

    def _low_bits(self, group: Group, part: Part, names: Sequence[str]) -> int | None:
        """Return the level of a result that depends on a pointer's lowest bits alone, which are known; else None.

        ``SHF.R.U64 R0, R2, 0x2, R3`` and ``LOP3.LUT R0, R0, 0x3, RZ, 0xc0, !PT``: whether it is a multiple of 16.
        """
        operands = [o.removesuffix(".reuse") for o in part.instruction.operands]
        levels = {n: np.asarray(self._read(group, n).level, np.uint64) & 0xFF for n in names}
        if _SHIFT.fullmatch(part.instruction.operation) and len(operands) == 4 and names and names[0] == operands[1]:
            whole = bool((levels[names[0]] & 0xFF == POINTER).all()) and set(names[1:]) <= {operands[3]}
            return LOW if whole and _number(operands[2]) <= LOW_BITS // 2 else None
        if part.name in {"LOP3", "ULOP3"} and len(names) == 1 and operands[-2:-1] == ["0xc0"]:
            words = [o for o in operands[:-2] if not is_flag(o)][1:]
            least = min(int(levels[names[0]].min()), int(levels[names[0]].max()))
            bits = LOW_BITS // 2 if least == LOW else LOW_BITS
            same = bool((levels[names[0]] == least).all()) and least in {LOW, POINTER}
            masks = [_number(w) for w in words if w not in {names[0], "RZ", "URZ"}]
            if same and len(masks) == 1 and masks[0] < 1 << bits and len(words) == 3 and names[0] in words[:2]:
                # The table is for the first two words.
                return 0 if _number(words[1 - words.index(names[0])]) == masks[0] else None
        return None

    def _shuffled(self, group: Group, step: Step, source: int, holds: Value) -> dict[str, Held]:
        """Return what one thread of each warp hands out to all, where all of them are here."""
        held = self._read(group, step.reads[0])
        n, warps = len(group.lanes), Warps(self.layout, group, self.living)
        if held.origin >= 0 or holds is not True:
            return {}
        value, level = np.broadcast_to(held.value, n), np.broadcast_to(np.asarray(held.level, np.uint64), n)
        bad = ~warps.whole()
        given: list[Array] = []
        for copy in range(self.layout.copies):
            lane = warps.warp * self.layout.of_warp + copy * WARP + source
            at = np.minimum(np.searchsorted(group.lanes, lane), n - 1)
            given.append(value[at])
            bad |= (group.lanes[at] != lane) | (level[at] != 0) | (given[0] != given[-1])
        return {step.writes[0]: Held(warps.spread(given[0]), warps.spread(unknown_where(bad)))}

    def _write(self, group: Group, name: str, result: Held | None, holds: Value, unknown: Array | bool) -> None:
        if holds is True and not np.any(unknown):
            if result is None:
                group.registers.pop(name, None)
            else:
                group.registers[name] = result.kept()
            return
        old = group.registers.get(name)
        if old is None and result is None:
            return
        n = len(group.lanes)
        old, new = old or nothing(name), result or nothing(name)
        if old.origin >= 0 and new.origin not in {-1, old.origin}:
            old = nothing(name)  # of another estimate
        kind = bool if is_flag(name) else np.uint32
        value = np.where(holds, np.asarray(new.value, kind), np.asarray(old.value, kind))
        level = np.where(holds, np.asarray(new.level, np.uint64), np.asarray(old.level, np.uint64))
        level = np.broadcast_to(np.where(unknown, np.uint64(UNKNOWN), level), n)
        origin = max(old.origin, new.origin)
        value = np.broadcast_to(value, (value.shape[0], n) if origin >= 0 else n)
        if name.startswith("U") and not self.layout.is_even(group.lanes, value):
            level = level | np.uint64(UNEVEN)
        group.registers[name] = Held(value, level, origin).kept()
