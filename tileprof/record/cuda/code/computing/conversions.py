"""Conversions between integers and floats, and reciprocals, as the compiler uses them to divide integers.

The compiler takes the reciprocal of the divisor as a float, scales it by adding to its exponent, converts it back, and
corrects the quotient that follows. Only the reciprocal is an estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda.code.computing.operands import (
    MASK,
    Operands,
    Step,
    UnknownOperand,
    Values,
    Word,
    high,
    joined,
    low,
    register,
    step_of,
)
from tileprof.record.cuda.code.instructions import Instruction

_INFINITE: Final = 0x7F800000
_SIGN: Final = 0x80000000
_MANTISSA: Final = 23
_LARGEST: Final = 0x5F800000
"""2^64 as a float: the largest number whose reciprocal is looked at."""
_ONE: Final = 0x3F800000


def _to_float(instruction: Instruction) -> Step:
    """``I2F.U32.RP``: to a float, rounded up."""
    kind = instruction.operation.partition(".")[2]
    if kind not in {"RP", "U32.RP", "U64.RP"} or len(instruction.operands) != 2:
        raise UnknownOperand(str(instruction))
    target, source = instruction.operands
    operands = Operands()
    if kind == "U64.RP":
        low_word, high_word = operands.pair(source)
        return step_of(operands, register(target), lambda v: _rounded(joined(low_word.word(v), high_word.word(v))))
    number = operands.number(source, "")
    is_signed = kind == "RP"
    return step_of(operands, register(target), lambda v: _rounded(number.word(v), signed=is_signed))


def _rounded(value: Word, *, signed: bool = False) -> list[Word]:
    """Return integers as floats, rounded up."""
    words = np.atleast_1d(np.asarray(value, np.uint64))
    negative = np.zeros(words.shape, bool)
    if signed:
        negative = words >> 31 != 0
        words = np.where(negative, (1 << 32) - words, words)
    # Bits beyond the mantissa are cut off; what is positive becomes the next number then.
    length = _bit_length(words)
    beyond = np.maximum(length - (_MANTISSA + 1), 0).astype(np.uint64)
    kept = words >> beyond
    kept = kept + ((words != kept << beyond) & ~negative)
    floats = np.ldexp(kept.astype(np.float32), beyond.astype(np.int32))
    bits = floats.view(np.uint32) | np.where(negative, np.uint32(_SIGN), np.uint32(0))
    return [int(bits[0]) if isinstance(value, int) else bits]


def _bit_length(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of bits of each word, 0 for 0."""
    upper, lower = words >> 32, words & MASK
    parts = [np.frexp(part.astype(np.float64))[1].astype(np.int64) for part in (upper, lower)]
    return np.where(upper != 0, parts[0] + 32, parts[1])


def _to_integer(instruction: Instruction) -> Step:
    """``F2I.U64.TRUNC``: to an integer, towards zero; what is below its range is 0, what is above it the largest."""
    kind = instruction.operation.partition(".")[2]
    if kind not in {"FTZ.U32.TRUNC.NTZ", "U64.TRUNC"} or len(instruction.operands) != 2:
        raise UnknownOperand(str(instruction))
    target, source = instruction.operands
    operands = Operands()
    number = operands.number(source, "")
    bits = 64 if kind == "U64.TRUNC" else 32

    def run(values: Values) -> Values:
        value = number.word(values)
        words = _truncated(np.atleast_1d(np.asarray(value, np.uint32)), bits)
        whole = int(words[0]) if isinstance(value, int) else words
        return [low(whole), high(whole)] if bits == 64 else [low(whole)]

    return step_of(operands, register(target, bits // 32), run)


def _truncated(floats: NDArray[np.uint32], bits: int) -> NDArray[np.uint64]:
    exponent = (floats >> _MANTISSA & 0xFF).astype(np.int64) - (127 + _MANTISSA)
    mantissa = (floats & (1 << _MANTISSA) - 1 | 1 << _MANTISSA).astype(np.uint64)
    shifted_up = mantissa << np.clip(exponent, 0, bits - 1 - _MANTISSA).astype(np.uint64)
    shifted_down = mantissa >> np.clip(-exponent, 0, 63).astype(np.uint64)
    words = np.where(exponent >= 0, shifted_up, shifted_down)
    words = np.where(exponent > bits - 1 - _MANTISSA, np.uint64((1 << bits) - 1), words)
    words = np.where(floats & _SIGN != 0, np.uint64(0), words)
    not_a_number = floats & ~np.uint32(_SIGN) > _INFINITE
    return np.where(not_a_number, np.uint64(1 << 63 if bits == 64 else 0), words)


def reciprocal(instruction: Instruction) -> Step:
    """``MUFU.RCP``: 1 over a float, with an error of at most 1 in the last place (PTX manual, ``rcp.approx.f32``).

    Estimates: the nearest float, the one above, and two below, where the last place may be half as much.
    """
    if instruction.operation != "MUFU.RCP" or len(instruction.operands) != 2:
        raise UnknownOperand(str(instruction))
    target, source = instruction.operands
    operands = Operands()
    number = operands.number(source, "")

    def run(values: Values) -> Values:
        bits = np.atleast_1d(np.asarray(number.word(values), np.uint32))
        size = bits & ~np.uint32(_SIGN)
        regular = (size >= _ONE) & (size <= _LARGEST)
        exact = 1.0 / np.where(regular, size, np.uint32(_ONE)).view(np.float32).astype(np.float64)
        nearest = exact.astype(np.float32).view(np.uint32) | bits & np.uint32(_SIGN)
        rows = [nearest + np.uint32(step & MASK) for step in (0, 1, -1, -2)]
        of_zero = bits | np.uint32(_INFINITE)
        return [np.stack([np.where(regular, row, of_zero) for row in rows]), regular | (size == 0)]

    (written,) = register(target)
    if written == "RZ":
        raise UnknownOperand(target)
    return Step(operands.reads, (written,), run, estimates=True)


CONVERSIONS: Final[dict[str, Callable[[Instruction], Step]]] = {"I2F": _to_float, "F2I": _to_integer}
"""How to read the conversions."""
