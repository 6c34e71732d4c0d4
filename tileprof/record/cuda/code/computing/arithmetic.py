"""Sums, products and comparisons of integers on sm_90, rule by rule.

Every rule takes an instruction whose name it is listed under, and raises `UnknownOperand` for a spelling that it does
not know. Sources: the PTX manual, for instructions that translate one of PTX's; programs that nvcc compiled and whose
results are known; for carries, Mesa's compiler for this hardware, which is tested on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from tileprof.record.cuda.code.computing.operands import (
    MASK,
    MASK_64,
    Condition,
    Flag,
    Number,
    Operands,
    Step,
    UnknownOperand,
    Values,
    Wide,
    Word,
    add,
    as_word,
    high,
    inverse,
    is_predicate,
    joined,
    kinds_of,
    low,
    multiply,
    operands_of,
    predicate,
    register,
    select,
    signed,
    step_of,
    wide,
)
from tileprof.record.cuda.code.instructions import Instruction


def _with_carries(instruction: Instruction) -> tuple[str, list[str], list[str]]:
    """Return an instruction's register, the predicates that it writes, and what it reads."""
    target, *rest = instruction.operands
    flags: list[str] = []
    while rest and is_predicate(rest[0]):
        flags.append(predicate(rest.pop(0)))
    return target, flags, rest


def _add_two(instruction: Instruction) -> Step:
    kinds_of(instruction)
    target, *words = operands_of(instruction, 3)
    operands = Operands()
    a, b = (operands.number(w, "-") for w in words)
    return step_of(operands, register(target), lambda v: [add(a.word(v), b.word(v))])


def _add_three(instruction: Instruction) -> Step:
    """``IADD3 R0, P0, P1, a, b, c``; ``.X``: ``IADD3.X R0, P0, P1, a, b, c, P2, P3`` adds P2 and P3."""
    if instruction.operation == "UIADD3.64":
        return _add_pairs(instruction)
    kinds = kinds_of(instruction, "X")
    target, flags, rest = _with_carries(instruction)
    if len(flags) > 2 or len(rest) != (5 if kinds else 3):
        raise UnknownOperand(str(instruction))
    operands = Operands()
    numbers = [operands.number(w, "~" if kinds else "-") for w in rest[:3]]
    carries = [operands.condition(w) for w in rest[3:]]
    numbers = [n for n in numbers if not n.is_zero]
    carries = [c for c in carries if c.index is not None or c.constant]
    if flags and any(f != "RZ" for f in flags):
        return step_of(operands, [*register(target), *flags], _sum_with_carries(numbers, carries, len(flags)))

    def run(values: Values) -> Values:
        total: Word = 0
        for number in numbers:
            total = add(total, number.word(values))
        for carry in carries:
            total = add(total, as_word(carry.flag(values)))
        return [total]

    return step_of(operands, register(target), run)


def _sum_with_carries(numbers: list[Number], carries: list[Condition], flags: int) -> Callable[[Values], Values]:
    """Return the sum and whether it reaches 2^32, and 2 * 2^32."""
    simple = len(numbers) == 2 and not carries and flags == 1 and not any(n.sign for n in numbers)

    def run(values: Values) -> Values:
        if simple:
            a, b = numbers[0].word(values), numbers[1].word(values)
            total = add(a, b)
            return [total, total < b]
        exact: Wide = 0
        for number in numbers:
            exact = exact + number.addend(values)
        for carry in carries:
            exact = exact + wide(as_word(carry.flag(values)))
        return [low(exact), *(exact >= (n + 1) << 32 for n in range(flags))]

    return run


def _add_pairs(instruction: Instruction) -> Step:
    target, *words = operands_of(instruction, 4)
    operands = Operands()
    pairs = [_pair(operands, w) for w in words]

    def run(values: Values) -> Values:
        total: Wide = 0
        for a, b in pairs:
            total = _sum_64(total, joined(a.word(values), b.word(values)))
        return [low(total), high(total)]

    return step_of(operands, register(target, 2), run)


def _pair(operands: Operands, text: str) -> tuple[Number, Number]:
    """Return 64 bits that may also be a number, whose sign is continued."""
    match = re.fullmatch(r"(-?)0x([0-9a-f]{1,7})", text)
    if match is None:
        return operands.pair(text)
    value = -int(match[2], 16) if match[1] else int(match[2], 16)
    return Number(None, value & MASK), Number(None, value >> 32 & MASK)


def _sum_64(a: Wide, b: Wide) -> Wide:
    total = a + b
    return total & MASK_64 if isinstance(total, int) else total


def _multiply_add(instruction: Instruction) -> Step:
    """``IMAD R0, a, b, c``: a * b + c; ``.X`` adds a carry; ``.WIDE`` and ``.HI`` take c from two registers."""
    kinds = kinds_of(instruction, "MOV", "IADD", "SHL", "U32", "X", "WIDE", "HI")
    if kinds & {"WIDE", "HI"}:
        return _multiply_wide(instruction, kinds)
    target, *words = operands_of(instruction, 5 if "X" in kinds else 4)
    operands = Operands()
    a, b = (operands.number(w, "-") for w in words[:2])
    c = operands.number(words[2], "~" if "X" in kinds else "-")
    carry = operands.condition(words[3]) if "X" in kinds else None

    def run(values: Values) -> Values:
        total = c.word(values)
        if not (a.is_zero or b.is_zero):
            total = add(_product(a, b, values), total)
        return [total if carry is None else add(total, as_word(carry.flag(values)))]

    return step_of(operands, register(target), run)


def _product(a: Number, b: Number, values: Values) -> Word:
    for one, other in ((a, b), (b, a)):
        if one.index is None and one.constant == 1 and not one.sign:
            return other.word(values)
    return multiply(a.word(values), b.word(values))


def _multiply_wide(instruction: Instruction, kinds: set[str]) -> Step:
    if kinds & {"WIDE", "HI"} == {"WIDE", "HI"} or not kinds <= {"WIDE", "HI", "U32", "X"}:
        raise UnknownOperand(instruction.operation)
    unsigned, wide_result = "U32" in kinds, "WIDE" in kinds
    target, flags, rest = _with_carries(instruction)
    if len(flags) > 1 or len(rest) != (4 if "X" in kinds else 3) or ((flags or "X" in kinds) and not unsigned):
        raise UnknownOperand(str(instruction))
    operands = Operands()
    a, b = (operands.number(w, "") for w in rest[:2])
    negated = rest[2].startswith("-") and not flags and "X" not in kinds
    c_low, c_high = operands.pair(rest[2][negated:])
    carry = operands.condition(rest[3]) if "X" in kinds else None

    def run(values: Values) -> Values:
        product = (_product_64 if unsigned else _signed_product_64)(a.word(values), b.word(values))
        if carry is not None:  # a product of 32 bits by 32 leaves room for it
            product = product + wide(as_word(carry.flag(values)))
        if c_low.is_zero and c_high.is_zero:
            total, overflow = product, _nothing(product)
        else:
            summand = joined(c_low.word(values), c_high.word(values))
            total = _sum_64(product, MASK_64 - summand + 1 if negated else summand)
            overflow = total < product
        halves = [low(total), high(total)]
        return [*(halves if wide_result else halves[1:]), *([overflow] if flags else [])]

    return step_of(operands, [*register(target, 2 if wide_result else 1), *flags], run)


def _nothing(like: Wide) -> Flag:
    return False if isinstance(like, int) else np.zeros(like.shape, bool)


def _product_64(a: Word, b: Word) -> Wide:
    return wide(a) * wide(b)


def _signed_product_64(a: Word, b: Word) -> Wide:
    first, second = signed(a), signed(b)
    if isinstance(first, int) and isinstance(second, int):
        return first * second & MASK_64
    parts = [x if isinstance(x, int) else x.astype(np.int64) for x in (first, second)]
    return np.asarray(parts[0] * parts[1]).view(np.uint64)


def _scaled(instruction: Instruction) -> Step:
    """``LEA R0, P0, a, b, shift``: (a << shift) + b; ``.HI``: ``LEA.HI R0, a, b, high, shift`` adds the part of the
    shifted ``high:a`` that leaves the low word; ``.SX32``: high is a's sign; ``.X``: a carry follows.
    """
    kinds = kinds_of(instruction, "HI", "X", "SX32")
    if "SX32" in kinds and "HI" not in kinds:
        raise UnknownOperand(instruction.operation)
    target, flags, rest = _with_carries(instruction)
    has_high = "HI" in kinds and "SX32" not in kinds
    if len(flags) > 1 or len(rest) != 3 + has_high + ("X" in kinds):
        raise UnknownOperand(str(instruction))
    operands = Operands()
    a = operands.number(rest.pop(0), "" if "HI" in kinds or "X" in kinds else "-")
    b = operands.number(rest.pop(0), "~" if "X" in kinds else "-")
    top = operands.number(rest.pop(0), "") if has_high else None
    shift = operands.number(rest.pop(0), "")
    if shift.index is not None or shift.constant > 31:
        raise UnknownOperand(str(instruction))
    carry = operands.condition(rest.pop(0)) if rest else None
    count = shift.constant

    def shifted(values: Values) -> Word:
        plain = a.plain(values)
        if "HI" not in kinds:
            return plain << count & MASK if isinstance(plain, int) else plain << count
        if top is None:
            whole = signed(plain) >> 32 - count if count else signed(plain) >> 31
            return whole & MASK if isinstance(whole, int) else whole.view(np.uint32)
        upper = top.word(values)
        if not count:
            return upper
        beginning = upper << count & MASK if isinstance(upper, int) else upper << count
        rest_of_low = plain >> 32 - count
        return beginning | rest_of_low

    def run(values: Values) -> Values:
        first = shifted(values)
        if not flags:
            total = add(
                -first & MASK if isinstance(first, int) and a.sign else -first if a.sign else first, b.word(values)
            )
            return [total if carry is None else add(total, as_word(carry.flag(values)))]
        if not a.sign and not b.sign and carry is None:
            other = b.word(values)
            total = add(first, other)
            return [total, total < other]
        exact = (MASK - wide(first) + 1 if a.sign else wide(first)) + b.addend(values)
        if carry is not None:
            exact = exact + wide(as_word(carry.flag(values)))
        return [low(exact), exact >= 1 << 32]

    return step_of(operands, [*register(target), *flags], run)


_COMPARISONS: Final[dict[str, Callable[[Word, Word], Flag]]] = {
    "LT": lambda a, b: a < b, "EQ": lambda a, b: a == b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "NE": lambda a, b: a != b, "GE": lambda a, b: a >= b,
}  # fmt: skip
_COMBINATIONS: Final[dict[str, Callable[[Flag, Flag], Flag]]] = {
    "AND": lambda a, b: a & b, "OR": lambda a, b: a | b, "XOR": lambda a, b: a ^ b,
}  # fmt: skip


def _compare(instruction: Instruction) -> Step:
    """``ISETP.GE.U32.AND.EX P0, P1, a, b, P2, P3``: P0 is a >= b and P2, P1 its opposite and P2; with ``.EX`` P3 says
    it where a and b, the high words, are equal.
    """
    kinds = kinds_of(instruction, *_COMPARISONS, *_COMBINATIONS, "U32", "EX")
    comparisons, combinations = kinds & set(_COMPARISONS), kinds & set(_COMBINATIONS)
    extended = "EX" in kinds
    first, second, *words = operands_of(instruction, 5 + extended)
    if len(comparisons) != 1 or len(combinations) != 1:
        raise UnknownOperand(instruction.operation)
    compares, combines = _COMPARISONS[comparisons.pop()], _COMBINATIONS[combinations.pop()]
    operands = Operands()
    a, b = (operands.number(w, "") for w in words[:2])
    other = operands.condition(words[2])
    below = operands.condition(words[3]) if extended else None
    targets = [predicate(first), predicate(second)]
    unsigned = "U32" in kinds

    def run(values: Values) -> Values:
        x, y = a.word(values), b.word(values)
        holds = compares(x, y) if unsigned else compares(signed(x), signed(y))
        if below is not None:
            equal = x == y
            holds = (equal & below.flag(values)) | (inverse(equal) & holds)
        third = other.flag(values)
        results = [combines(holds, third)]
        return [*results, combines(inverse(holds), third)] if targets[1] != "RZ" else [*results, False]

    return step_of(operands, targets, run)


def _extreme(a: Word, b: Word, least: Flag, *, unsigned: bool) -> Word:
    smaller = a < b if unsigned else signed(a) < signed(b)
    return select(smaller == least if isinstance(smaller, bool) else smaller ^ inverse(least), a, b)


def _minimum(instruction: Instruction) -> Step:
    """``VIMNMX R0, a, b, P0``: the smaller where P0, else the larger; ``VIADDMNMX R0, a, b, c, P0``: of a + b and c.

    ``.RELU``: at least zero.
    """
    kinds = kinds_of(instruction, "U32", "RELU")
    unsigned, clamps = "U32" in kinds, "RELU" in kinds
    if unsigned and clamps:
        raise UnknownOperand(instruction.operation)
    adds = instruction.name == "VIADDMNMX"
    target, *words, condition = operands_of(instruction, 5 if adds else 4)
    operands = Operands()
    numbers = [operands.number(w, "-" if adds and n < 2 else "") for n, w in enumerate(words)]
    least = operands.condition(condition)

    def run(values: Values) -> Values:
        first, *others = (n.word(values) for n in numbers)
        if adds:
            first = add(first, others.pop(0))
        first = _extreme(first, others[0], least.flag(values), unsigned=unsigned)
        return [_extreme(first, 0, least=False, unsigned=False) if clamps else first]

    return step_of(operands, register(target), run)


def _absolute(instruction: Instruction) -> Step:
    kinds_of(instruction)
    target, source = operands_of(instruction, 2)
    operands = Operands()
    number = operands.number(source, "")

    def run(values: Values) -> Values:
        value = signed(number.word(values))
        return [abs(value) if isinstance(value, int) else np.abs(value).view(np.uint32)]

    return step_of(operands, register(target), run)


RULES: Final[dict[str, Callable[[Instruction], Step]]] = {
    "IADD3": _add_three, "UIADD3": _add_three, "VIADD": _add_two, "IMAD": _multiply_add, "UIMAD": _multiply_add,
    "LEA": _scaled, "ULEA": _scaled, "ISETP": _compare, "UISETP": _compare, "IMNMX": _minimum, "UIMNMX": _minimum,
    "VIMNMX": _minimum, "VIADDMNMX": _minimum, "IABS": _absolute,
}  # fmt: skip
"""How to read the instructions of each name. VIMNMX3 has none: nvdisasm 13.1 does not print that an operand is
negated.
"""
