"""Comparisons of floats and choices between them: what numpy computes as the hardware does, bit by bit.

Parameters that are floats decide what products touch: whether they read the matrix that is to be added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda.code.computing.operands import (
    Flag,
    Number,
    Operands,
    Step,
    UnknownOperand,
    Values,
    Word,
    predicate,
    register,
    select,
    step_of,
)
from tileprof.record.cuda.code.instructions import Instruction

_SIGN: Final = 0x80000000
_SIZE: Final = 0x7FFFFFFF
_SMALLEST_NORMAL: Final = 0x00800000
_OPERAND: Final = re.compile(r"(-?)(\|?)(U?R(?:\d+|Z)|c\[0x0\]\[0x[0-9a-f]+\])(\|?)(?:\.reuse)?")
_DECIMAL: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|INF)")

Floats = NDArray[np.float32]

_ORDERED: Final[dict[str, Callable[[Floats, Floats], NDArray[np.bool_]]]] = {
    "LT": np.less, "EQ": np.equal, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "NE": lambda a, b: (a < b) | (a > b),
}  # fmt: skip
"""Comparisons that do not hold where an operand is no number. Followed by U, they hold there."""
_COMBINATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "AND": lambda a, b: a & b, "OR": lambda a, b: a | b, "XOR": lambda a, b: a ^ b,
}  # fmt: skip


def _operand(operands: Operands, text: str) -> Callable[[Values], Word]:
    """Return what reads the bits of a float: a register, a word of the constant bank or a number, with its sign."""
    match = _OPERAND.fullmatch(text)
    if match is None:
        if not _DECIMAL.fullmatch(text):
            raise UnknownOperand(text)
        with np.errstate(over="ignore"):
            constant = int(np.float32(float(text)).view(np.uint32))
        return lambda _: constant
    if bool(match[2]) != bool(match[4]):
        raise UnknownOperand(text)
    number: Number = operands.number(match[3], "")
    negative, size = bool(match[1]), bool(match[2])

    def read(values: Values) -> Word:
        word = number.word(values)
        word = word & (_SIZE if size else _SIZE | _SIGN)
        return word ^ (_SIGN if negative else 0)

    return read


def _floats(word: Word, *, flushes: bool) -> Floats:
    bits = np.atleast_1d(np.asarray(word, np.uint32))
    if flushes:
        bits = np.where(bits & np.uint32(_SIZE) < _SMALLEST_NORMAL, bits & np.uint32(_SIGN), bits)
    return bits.view(np.float32)


def _compare(instruction: Instruction) -> Step:
    """``FSETP.NEU.FTZ.AND P0, PT, a, b, P1``: whether a and b differ or are no numbers, and P1."""
    name, *kinds = instruction.operation.split(".")[1:]
    flushes = "FTZ" in kinds
    combinations = [k for k in kinds if k != "FTZ"]
    ordered = name.removesuffix("U")
    if ordered not in _ORDERED or len(combinations) != 1 or combinations[0] not in _COMBINATIONS:
        raise UnknownOperand(instruction.operation)
    if len(instruction.operands) != 5 or instruction.operands[1] != "PT":
        raise UnknownOperand(str(instruction))
    first, _, *words, condition = instruction.operands
    operands = Operands()
    a, b = (_operand(operands, word) for word in words)
    other = operands.condition(condition)
    compares, combines = _ORDERED[ordered], _COMBINATIONS[combinations[0]]

    def run(values: Values) -> Values:
        words = a(values), b(values)
        x, y = (_floats(word, flushes=flushes) for word in words)
        holds = compares(x, y)
        if name != ordered:
            holds |= np.isnan(x) | np.isnan(y)
        result: Flag = bool(holds[0]) if all(isinstance(word, int) for word in words) else holds
        return [combines(result, other.flag(values)), False]

    return step_of(operands, [predicate(first), "RZ"], run)


def _select(instruction: Instruction) -> Step:
    """``FSEL R0, a, b, P0``: a where P0, else b."""
    if instruction.operation != "FSEL" or len(instruction.operands) != 4:
        raise UnknownOperand(instruction.operation)
    target, first, second, condition = instruction.operands
    operands = Operands()
    a, b = (_operand(operands, word) for word in (first, second))
    which = operands.condition(condition)
    return step_of(operands, register(target), lambda v: [select(which.flag(v), a(v), b(v))])


FLOATS: Final[dict[str, Callable[[Instruction], Step]]] = {"FSETP": _compare, "FSEL": _select}
"""How to read the instructions of each name."""
