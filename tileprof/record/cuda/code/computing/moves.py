"""Copies, constants and special registers on sm_90, rule by rule (`arithmetic`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from tileprof.record.cuda.code.computing.operands import (
    MASK,
    Indexed,
    Number,
    Operands,
    Step,
    UnknownOperand,
    Word,
    bank_word,
    kinds_of,
    operands_of,
    register,
    select,
    step_of,
)
from tileprof.record.cuda.code.instructions import Instruction


def _move(instruction: Instruction) -> Step:
    kinds_of(instruction)
    target, source = operands_of(instruction, 2)
    operands = Operands()
    number = operands.number(source, "")
    return step_of(operands, register(target), lambda v: [number.word(v)])


_SIZES: Final = {"": (4, False), "64": (8, False), "128": (16, False), "U8": (1, False), "S8": (1, True),
                 "U16": (2, False), "S16": (2, True)}  # fmt: skip
_BANK: Final = re.compile(r"c\[0x0\]\[(?:(UR\d+|R\d+|RZ|URZ))?(?:\+?(-?)0x([0-9a-f]+))?\]")


def _load_constant(instruction: Instruction) -> Step:
    """``LDC.64 R0, c[0x0][R2+0x10]``."""
    kind = instruction.operation.partition(".")[2]
    target, source = operands_of(instruction, 2)
    match = _BANK.fullmatch(source)
    if kind not in _SIZES or match is None:
        raise UnknownOperand(str(instruction))
    size, continues_sign = _SIZES[kind]
    offset = int(match[3] or "0", 16) * (-1 if match[2] else 1)
    operands = Operands()
    writes = register(target, max(1, size // 4))
    if match[1] and "Z" not in match[1]:
        operands.index(match[1])
        loaded = step_of(operands, writes, lambda v: [_part(v[1], v[0] + offset & 3, size, continues_sign), *v[2:]])
        return Step(loaded.reads, loaded.writes, loaded.run, Indexed(offset & MASK, size))
    if offset < 0 or offset % size:
        raise UnknownOperand(source)
    for n in range(len(writes)):
        operands.index(bank_word(offset // 4 * 4 + 4 * n, source))
    return step_of(operands, writes, lambda v: [_part(v[0], offset & 3, size, continues_sign), *v[1:]])


def _part(word: Word, byte: Word, size: int, continues_sign: bool) -> Word:
    """Return ``size`` bytes of a word from one of its bytes on."""
    if size >= 4:
        return word
    part = word >> byte * 8 & (1 << 8 * size) - 1
    if not continues_sign:
        return part
    return select((part >> 8 * size - 1) != 0, part | MASK << 8 * size & MASK, part)


_SPECIAL: Final = frozenset(f"SR_{kind}.{axis}" for kind in ("TID", "CTAID") for axis in "XYZ") | {
    "SR_LANEID", "SR_CgaCtaId",
}  # fmt: skip


def _special(instruction: Instruction) -> Step:
    """``S2R R0, SR_TID.X``."""
    kinds_of(instruction)
    target, source = operands_of(instruction, 2)
    if source not in _SPECIAL:
        raise UnknownOperand(source)
    operands = Operands()
    operands.index(source)
    return step_of(operands, register(target), lambda v: [v[0]])


def _zeros(instruction: Instruction) -> Step:
    """``CS2R R0, SRZ``: zero to two registers, ``CS2R.32`` to one."""
    words = 1 if kinds_of(instruction, "32") else 2
    target, source = operands_of(instruction, 2)
    if source != "SRZ":
        raise UnknownOperand(source)
    return step_of(Operands(), register(target, words), lambda _: [0] * words)


def _half_constants(instruction: Instruction) -> Step:
    """``HFMA2.MMA R0, -RZ, RZ, 1.5, 0``: how the compiler loads a constant, as two numbers of 16 bits, high first."""
    kinds_of(instruction, "MMA")
    target, a, b, *halves = operands_of(instruction, 5)
    if (a, b) != ("-RZ", "RZ"):  # -0 * 0 + x is x, also where x is -0
        raise UnknownOperand(str(instruction))
    bits = []
    for text in halves:
        try:
            value = float(text)
        except ValueError:
            raise UnknownOperand(text) from None
        with np.errstate(over="ignore"):
            half = np.float16(value)
        if float(half) != value:
            raise UnknownOperand(text)
        bits.append(int(half.view(np.uint16)))
    constant = bits[0] << 16 | bits[1]
    return step_of(Operands(), register(target), lambda _: [constant])


def _from_lane(instruction: Instruction) -> Step:
    """``SHFL.IDX PT, R0, R1, 0x0, 0x1f``: what one lane of the warp has."""
    if kinds_of(instruction, "IDX") != {"IDX"}:
        raise UnknownOperand(instruction.operation)
    inside, target, source, lane, clamp = operands_of(instruction, 5)
    operands = Operands()
    number, which, limit = operands.number(source, ""), operands.number(lane, ""), operands.number(clamp, "")
    if inside != "PT" or limit != Number(None, 31) or which.index is not None or which.constant > 31:
        raise UnknownOperand(str(instruction))
    if number.index is None:
        raise UnknownOperand(source)
    shuffled = step_of(operands, register(target), lambda v: [v[0]])
    return Step(shuffled.reads, shuffled.writes, shuffled.run, source_lane=which.constant)


RULES: Final[dict[str, Callable[[Instruction], Step]]] = {
    "MOV": _move, "UMOV": _move, "R2UR": _move, "LDC": _load_constant, "ULDC": _load_constant, "S2R": _special,
    "S2UR": _special, "CS2R": _zeros, "HFMA2": _half_constants, "SHFL": _from_lane,
}  # fmt: skip
"""How to read the instructions of each name."""
