"""What instructions for sm_90 compute and which memory they touch: for integers, exactly as the hardware does.

What is not known for certain has no `Step` or `Access`: its results are unknown, and no proof is built on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tileprof.record.cuda.code.computing import arithmetic, bitwise, moves
from tileprof.record.cuda.code.computing.conversions import CONVERSIONS, reciprocal
from tileprof.record.cuda.code.computing.floats import FLOATS
from tileprof.record.cuda.code.computing.operands import (
    MASK_64,
    Flag,
    Indexed,
    Operands,
    Step,
    UnknownOperand,
    Values,
    Wide,
    Word,
    joined,
)
from tileprof.record.cuda.code.instructions import Instruction
from tileprof.trace import ATOMIC, READ, WRITE

__all__ = ["Access", "Flag", "Indexed", "Step", "Values", "Wide", "Word", "access", "estimate", "is_harmless", "step"]


_RULES: Final = arithmetic.RULES | bitwise.RULES | moves.RULES | CONVERSIONS | FLOATS


@dataclass(frozen=True, slots=True)
class Access:
    """An access of global memory: ``size`` bytes per lane at ``address`` of the values that ``reads`` names.

    ``mode``: READ, WRITE or ATOMIC of `tileprof.trace`. ``condition``: a predicate, and whether it is negated; lanes
    where it is false touch nothing. It is no part of ``reads``, and neither is the guard. ``missing``: how many of the
    bytes are not touched, the last ones; None where that is 0.
    """

    mode: int
    size: int
    reads: tuple[str, ...]
    address: Callable[[Values], Wide]
    condition: tuple[str, bool] | None = None
    missing: Callable[[Values], Wide] | None = None


def step(instruction: Instruction) -> Step | None:
    """Return how an instruction computes what it writes; None where that is not known or depends on memory."""
    rule = _RULES.get(instruction.name)
    try:
        return rule(instruction) if rule is not None else None
    except UnknownOperand:
        return None


_ADDRESS: Final = re.compile(r"(desc\[UR\d+\])?\[(R\d+|RZ)(\.64)?(?:\+(UR\d+))?(?:\+(-?)0x([0-9a-f]+))?\]")
_WIDTHS: Final = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_HINTS: Final = frozenset((
    "E", "EF", "EL", "LU", "NA", "CONSTANT", "STRONG", "WEAK", "GPU", "SYS", "SM", "CTA", "LTC64B", "LTC128B",
    "LTC256B",
))  # fmt: skip
_LOAD: Final = _HINTS | set(_WIDTHS)
_ATOMIC_TYPES: Final = {
    "64": 8, "U64": 8, "S64": 8, "S32": 4, "F32": 4, "F64": 8, "F16x2": 4, "BF16x2": 4, "F32x2": 8, "F32x4": 16,
}  # fmt: skip
_ATOMIC: Final = frozenset(
    ("E", "ADD", "MIN", "MAX", "INC", "DEC", "AND", "OR", "XOR", "EXCH", "CAS", "FTZ", "RN", *_ATOMIC_TYPES, "STRONG",
     "WEAK", "GPU", "SYS", "SM", "CTA")
)  # fmt: skip
_COPY: Final = frozenset(("E", "BYPASS", "ACCESS", "LTC64B", "LTC128B", "LTC256B", "64", "128", "ZFILL"))


def estimate(instruction: Instruction) -> Step | None:
    """Return how an instruction computes something that the hardware only estimates; None where it does not.

    The compiler divides integers by a reciprocal of which it knows the error, and corrects the quotient.
    """
    try:
        return reciprocal(instruction) if instruction.name == "MUFU" else None
    except UnknownOperand:
        return None


def access(instruction: Instruction) -> Access | None:
    """Return the access of global memory that an instruction is; None where it is none, or not a known one."""
    reader = _ACCESSES.get(instruction.name)
    try:
        return reader(instruction) if reader is not None else None
    except UnknownOperand:
        return None


def _size(instruction: Instruction, allowed: frozenset[str], sizes: dict[str, int]) -> int:
    kinds = instruction.operation.split(".")[1:]
    widths = [sizes[k] for k in kinds if k in sizes]
    # nvdisasm prints ADD.S64 for sums of other types.
    if not set(kinds) <= allowed or "E" not in kinds or len(widths) > 1 or {"ADD", "S64"} <= set(kinds):
        raise UnknownOperand(instruction.operation)
    return widths[0] if widths else 4


def _made(mode: int, size: int, address: str, condition: str | None = None) -> Access:
    match = _ADDRESS.fullmatch(address)
    if match is None or (match[3] is None and (match[1] or match[4])):
        raise UnknownOperand(address)
    offset = int(match[6] or "0", 16) * (-1 if match[5] else 1)
    operands = Operands()
    pairs = [operands.pair(word) for word in (match[2], match[4]) if word is not None]

    def place(values: Values) -> Wide:
        base: Wide = 0
        for low_word, high_word in pairs:
            base = base + joined(low_word.word(values), high_word.word(values))
            base = base & MASK_64 if isinstance(base, int) else base
        return base + offset & MASK_64 if isinstance(base, int) else base + (offset & MASK_64)

    if condition is None:
        return Access(mode, size, operands.reads, place)
    Operands().condition(condition)
    return Access(mode, size, operands.reads, place, (condition.removeprefix("!"), condition.startswith("!")))


def _load(instruction: Instruction) -> Access:
    if len(instruction.operands) != 2:
        raise UnknownOperand(str(instruction))
    return _made(READ, _size(instruction, _LOAD, _WIDTHS), instruction.operands[1])


def _store(instruction: Instruction) -> Access:
    if len(instruction.operands) != 2:
        raise UnknownOperand(str(instruction))
    return _made(WRITE, _size(instruction, _LOAD, _WIDTHS), instruction.operands[0])


def _copy(instruction: Instruction) -> Access:
    """``LDGSTS.E.128 [R0], desc[UR4][R2.64], P0``: from global to shared memory; zeros where P0 is false.

    With ``.ZFILL`` the address lies behind a multiple of the size by as many bytes as are not read.
    """
    _, address, *condition = instruction.operands
    if len(condition) > 1:
        raise UnknownOperand(str(instruction))
    size = _size(instruction, _COPY, _WIDTHS)
    plain = _made(READ, size, address, *condition)
    if "ZFILL" not in instruction.operation.split("."):
        return plain
    below = MASK_64 - (size - 1)
    return replace(
        plain,
        address=lambda values: plain.address(values) & below,
        missing=lambda values: plain.address(values) & size - 1,
    )


def _atomic(instruction: Instruction) -> Access:
    exchanges = "CAS" in instruction.operation.split(".")
    if len(instruction.operands) != 4 + exchanges:
        raise UnknownOperand(str(instruction))
    return _made(ATOMIC, _size(instruction, _ATOMIC, _ATOMIC_TYPES), instruction.operands[2])


def _reduction(instruction: Instruction) -> Access:
    if len(instruction.operands) != 2:
        raise UnknownOperand(str(instruction))
    return _made(ATOMIC, _size(instruction, _ATOMIC, _ATOMIC_TYPES), instruction.operands[0])


_ACCESSES: Final[dict[str, Callable[[Instruction], Access]]] = {
    "LDG": _load, "LD": _load, "STG": _store, "ST": _store, "LDGSTS": _copy, "ATOM": _atomic, "ATOMG": _atomic,
    "RED": _reduction, "REDG": _reduction,
}  # fmt: skip

_HARMLESS: Final = frozenset((
    *_RULES, "HADD2", "HMUL2", "HSET2", "HSETP2", "HMNMX2", "FADD", "FMUL", "FFMA", "FSEL", "FSET", "FSETP", "FMNMX",
    "FCHK", "FRND", "FSWZADD", "MUFU", "DADD", "DMUL", "DFMA", "DSETP", "F2F", "F2I", "F2FP", "I2F", "I2FP", "I2I",
    "I2IP", "HMMA", "IMMA", "DMMA", "BMMA", "HGMMA", "QGMMA", "IGMMA", "BGMMA", "IDP", "BMSK", "UBMSK", "VABSDIFF",
    "VABSDIFF4", "VIMNMX3", "MOVM", "REDUX", "MATCH", "VOTE", "VOTEU", "ELECT", "LEPC", "QSPC", "B2R", "R2B", "UR2UP",
    "BMOV", "GETLMEMBASE", "LDS", "STS", "LDSM", "STSM", "ATOMS", "STAS", "LDL", "STL", "SYNCS", "NOP", "BAR", "MEMBAR",
    "FENCE", "ERRBAR", "CGAERRBAR", "DEPBAR", "LDGDEPBAR", "ARRIVES", "CCTL", "NANOSLEEP", "YIELD", "WARPSYNC",
    "WARPGROUP", "USETMAXREG", "USETSHMSZ", "UCGABAR_ARV", "UCGABAR_WAIT", "ACQBULK", "PREEXIT", "BSSY", "BSYNC",
    "BREAK", "BRA", "EXIT", "BPT", "ENDCOLLECTIVE", "UTMACMDFLUSH",
))  # fmt: skip


def is_harmless(instruction: Instruction) -> bool:
    """Return whether an instruction certainly touches no global memory, whatever its operands hold.

    Branches and exits are harmless; calls, returns and jumps to addresses in registers are not.
    """
    return instruction.name in _HARMLESS
