"""Sums of pointers, half by half: which words of a register are halves of an address, and which carries belong to them.

Addresses have two words, which instructions add up one after the other. Both must be halves of one sum, and a carry
that of its lower half; then the sum is the pointer and an offset, whatever the pointer is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tileprof.record.cuda.code.computing.operands import Step
from tileprof.record.cuda.code.lanes import (
    ADDITION_SHIFT,
    CARRY,
    HIGH,
    KIND,
    LOW,
    NUMBER_SHIFT,
    PLACE,
    SUM_SHIFT,
    UNEVEN,
    UNKNOWN,
    Array,
    Level,
    Value,
    added,
    is_flag,
    sum_of,
)
from tileprof.record.cuda.code.reading import Part, following

_MOVES: Final = frozenset(("MOV", "UMOV", "R2UR", "LDC", "ULDC"))
_SUMS: Final = frozenset(("IADD3", "UIADD3", "VIADD"))
_ADDENDS: Final = {"IMAD": 2, "UIMAD": 2, "LEA": 1, "ULEA": 1}
"""Operations that add to an address, and which of their words it may be then."""


def _unless(bad: Value, level: Level) -> Level:
    out = np.where(bad, np.uint64(UNKNOWN), np.asarray(level, np.uint64))
    return int(out) if out.ndim == 0 else out


def pointer_of(low: Level, high: Level, kind: int) -> tuple[Array, Array]:
    """Return the number of the pointer that two halves are of, 0 for none, and where they are neither."""
    low, high = np.asarray(low, np.uint64), np.asarray(high, np.uint64)
    number = (low & KIND) >> NUMBER_SHIFT
    pointer = (low & 0xFF == kind) & (high & 0xFF == (kind | HIGH))
    # Constant banks are aligned so that sums with their addresses have no carry, and cuBLAS adds to the low half alone.
    pointer &= ((high & KIND) >> NUMBER_SHIFT == number) & ((kind == PLACE) | (sum_of(low) == sum_of(high)))
    return number.astype(np.int64), ~pointer & ((low != 0) | (high != 0))


def level_of(plan: tuple[str, ...], moved: Mapping[str, Level], addition: int) -> Level:
    """Return the level of one result by its plan (`_plan`)."""
    what, *names = plan
    if what == "none":
        return 0
    levels = [moved[name] for name in names]
    first = levels[0]
    if what == "same":
        return first
    sums = added(sum_of(first), addition)
    if what in {"low", "carry"}:
        carry = CARRY | addition << ADDITION_SHIFT if what == "carry" else 0
        return (first & KIND) | sums << SUM_SHIFT | carry
    if what in {"low of pair", "high of pair"}:
        half = levels[what == "high of pair"]
        return _unless(sum_of(levels[0]) != sum_of(levels[1]), (half & KIND) | sums << SUM_SHIFT)
    return _with_carries(first, levels[1:])


def _with_carries(high: Level, carries: Sequence[Level]) -> Level:
    """Return the level of a high half and the carries of one or two additions to the low one, in either order."""
    out: Level = UNKNOWN
    for ordered in {tuple(range(len(carries))), tuple(reversed(range(len(carries))))}:
        bad: Value = False
        now = sum_of(high)
        for n in ordered:
            addition, total = carries[n] >> ADDITION_SHIFT, sum_of(carries[n])
            same = (total == now) & (addition == carries[ordered[0]] >> ADDITION_SHIFT) & (n != ordered[0])
            bad = bad | ((added(now, addition) != total) & ~np.asarray(same))
            now = total
        level = _unless(bad, (high & KIND) | now << SUM_SHIFT)
        out = level if isinstance(out, int) and out == UNKNOWN else np.where(out == UNKNOWN, level, out)
    return int(out) if np.ndim(out) == 0 else out


def plan_of(part: Part, step: Step, kinds: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return what each result of an instruction is that reads halves of pointers and carries of their sums.

    ``kinds``: of what it reads that are some, their levels without the sum; in threads where it is none, that is 0.
    """
    bad: list[tuple[str, ...]] = [("bad",)] * len(step.writes)
    carries = [n for n, kind in kinds.items() if kind and is_flag(n)]
    halves = [n for n, kind in kinds.items() if kind and not is_flag(n)]
    if any(kinds[n] & (LOW | UNKNOWN | UNEVEN) or bool(kinds[n] & CARRY) != is_flag(n) for n in (*carries, *halves)):
        return bad
    if not halves and not carries:
        return [("none",)] * len(step.writes)
    name, operation = part.name, part.instruction.operation
    if name in _MOVES:
        same: list[tuple[str, ...]] = [("same", n) if n in halves else ("none",) for n in step.reads]
        return same if len(same) == len(step.writes) and not carries else bad
    operands = [o.removesuffix(".reuse") for o in part.instruction.operands]
    words = [n for n, o in enumerate(operands) if n and not re.fullmatch(r"!?U?P(\d|T)", o)]
    pairs = words[2:3] if ".WIDE" in operation else words if ".64" in operation else []
    places = [n for n in words if any(names_half(operands[n], half, pair=n in pairs) for half in halves)]
    if len(places) != 1 or operands[places[0]].startswith(("-", "~")):
        return bad
    if not _is_addend(name, operation, operands, words, places[0]):
        return bad
    if any(operands.count(n) != 1 or f"!{n}" in operands for n in carries):
        return bad
    high = [bool(kinds[n] & HIGH) for n in halves]
    of = {kinds[n] & ~(HIGH | CARRY) for n in (*halves, *carries)}
    if len(of) != 1:
        return bad
    if pairs:
        registers = [n for n in step.writes if not is_flag(n)]
        if high != [False, True] or carries or len(registers) != 2 or registers != list(step.writes[:2]):
            return bad
        return [("low of pair", *halves), ("high of pair", *halves), *bad[2:]]
    if len(halves) != 1 or (carries and (".X" not in operation or not high[0])):
        return bad
    unchanged = high[0] or _adds_nothing(name, operation, [operands[n] for n in words if n != places[0]])
    what = ("high", halves[0], *carries) if carries else ("same" if unchanged else "low", halves[0])
    # Three addends have two carries, of which the other may be forgotten.
    addends = [operands[n] for n in words if operands[n] not in {"RZ", "URZ", "0x0"}]
    single = (name not in _SUMS or len(addends) <= 2) and sum(is_flag(n) for n in step.writes) == 1
    carry = ("bad",) if high[0] or ".X" in operation or not single else ("carry", halves[0])
    return [carry if is_flag(n) else what for n in step.writes]


def _adds_nothing(name: str, operation: str, others: Sequence[str]) -> bool:
    """Return whether an instruction with these other words moves a half alone: ``IMAD.MOV.U32 R0, RZ, RZ, R1``."""
    zeros = [o for o in others if o in {"RZ", "URZ"}]
    return ".X" not in operation and (len(zeros) == len(others) or (name in {"IMAD", "UIMAD"} and bool(zeros)))


def _is_addend(name: str, operation: str, operands: Sequence[str], words: Sequence[int], place: int) -> bool:
    """Return whether an instruction adds its operand at a place to something."""
    if name in _SUMS:
        return True
    addend = _ADDENDS.get(name)
    if addend is None or len(words) <= addend:
        return False
    if place == words[addend]:
        return ".HI" not in operation or name not in {"IMAD", "UIMAD"}
    factors = {operands[n] for n in words[:2]} - {operands[place]}  # R4 * 1 + R6
    return name in {"IMAD", "UIMAD"} and ".WIDE" not in operation and ".HI" not in operation and factors == {"0x1"}


def names_half(operand: str, register: str, *, pair: bool) -> bool:
    """Return whether an operand names a register, or a pair that it belongs to."""
    word = operand.lstrip("-~")
    if register.startswith("c["):
        offset = int(register[2:-1], 16)
        return word == f"c[0x0][{offset:#x}]" or (pair and word == f"c[0x0][{offset - 4:#x}]")
    return word == register or (pair and re.fullmatch(r"U?R\d+", word) is not None and following(word) == register)
