"""Shifts, logic and choices of bits, bytes and predicates on sm_90, rule by rule (`arithmetic`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tileprof.record.cuda.code.computing.operands import (
    MASK,
    MASK_64,
    Condition,
    Operands,
    Step,
    UnknownOperand,
    Values,
    Wide,
    Word,
    as_word,
    high,
    is_predicate,
    joined,
    kinds_of,
    low,
    operands_of,
    predicate,
    register,
    select,
    signed,
    step_of,
    wide,
)
from tileprof.record.cuda.code.instructions import Instruction


def _shift(instruction: Instruction) -> Step:
    """``SHF.R.U32.HI R0, low, count, high``: high:low shifted, its low word, or its high one with ``.HI``."""
    kinds = kinds_of(instruction, "L", "R", "W", "HI", "U32", "S32", "U64", "S64")
    sizes = kinds & {"U32", "S32", "U64", "S64"}
    target, *words = operands_of(instruction, 4)
    if len(sizes) != 1 or len(kinds & {"L", "R"}) != 1:
        raise UnknownOperand(instruction.operation)
    bits = 64 if "64" in next(iter(sizes)) else 32
    arithmetic = next(iter(sizes))[0] == "S"
    operands = Operands()
    low_word, count, high_word = (operands.number(w, "") for w in words)
    right, upper, wraps = "R" in kinds, "HI" in kinds, "W" in kinds

    def amount(values: Values) -> Word:
        value = count.word(values)
        if wraps:
            return value & bits - 1
        return min(value, bits) if isinstance(value, int) else np.minimum(value, bits)

    def run(values: Values) -> Values:
        by = amount(values)
        if isinstance(by, int) and bits == 32 and by < 32 and right == upper:  # one word alone
            word = (high_word if upper else low_word).word(values)
            if not right:
                return [word << by & MASK if isinstance(word, int) else word << by]
            moved = signed(word) >> by if arithmetic else word >> by
            return [moved & MASK if isinstance(moved, int) else moved.view(np.uint32)]
        both = joined(low_word.word(values), high_word.word(values))
        moved_64 = _moved(both, by, right=right, arithmetic=arithmetic)
        return [high(moved_64) if upper else low(moved_64)]

    return step_of(operands, register(target), run)


def _moved(value: Wide, by: Word, *, right: bool, arithmetic: bool) -> Wide:
    """Return 64 bits shifted by 0 to 64."""
    if isinstance(value, int) and isinstance(by, int):
        if not right:
            return value << by & MASK_64
        return (value - (value >> 63 << 64) if arithmetic else value) >> by & MASK_64
    shape = np.broadcast_shapes(np.shape(value), np.shape(by))
    words = np.broadcast_to(np.asarray(value, np.uint64), shape)
    counts = np.broadcast_to(np.asarray(by, np.uint64), shape)
    inside = np.minimum(counts, np.uint64(63))
    if right and arithmetic:
        # 64 places leave the sign everywhere, as 63 do.
        return (words.view(np.int64) >> inside.view(np.int64)).view(np.uint64)
    moved = words >> inside if right else words << inside
    return np.where(counts > 63, np.uint64(0), moved)


def _logic(instruction: Instruction) -> Step:
    """``LOP3.LUT P0, R0, a, b, c, table, P1``: R0 bit by bit by a table; P0 is R0 != 0 or P1, ``.PAND``: and P1."""
    kinds = kinds_of(instruction, "LUT", "PAND")
    operands = Operands()
    rest = list(instruction.operands)
    flag = predicate(rest.pop(0)) if rest and is_predicate(rest[0]) else None
    if len(rest) != 6 or "LUT" not in kinds:
        raise UnknownOperand(str(instruction))
    target, *words, table, other = rest
    if other.removeprefix("!") in {"PT", "UPT"} and flag is None:
        condition = Condition(None, constant=False)
    else:
        condition = operands.condition(other)
    numbers = [operands.number(w, "~") for w in words]
    lut = int(table, 16)
    for place in (0, 1, 2):
        if numbers[place].index is None and numbers[place].word(()) in {0, MASK}:
            lut = _fixed(lut, place, numbers[place].word(()) == MASK)
    function = _lut_function(lut, true=MASK)

    def run(values: Values) -> Values:
        result = function(*(n.word(values) for n in numbers))
        if flag is None:
            return [result]
        some = result != 0
        return [result, (some & condition.flag(values)) if "PAND" in kinds else (some | condition.flag(values))]

    return step_of(operands, [*register(target), *([flag] if flag else [])], run)


def _fixed(lut: int, place: int, value: bool) -> int:
    """Return a table that does not look at one of its three inputs, which has a value."""
    bit = 4 >> place
    return sum(1 << i for i in range(8) if lut >> (i | bit if value else i & ~bit) & 1)


def _lut_function(lut: int, true: int | bool) -> Callable[[Any, Any, Any], Any]:
    """Return what a table of three inputs computes bit by bit; ``true``: all bits."""

    def of(table: int, inputs: tuple[Any, ...]) -> Any:
        """The table's low half is for a first input of 0."""
        size = 1 << len(inputs)
        if table in {0, (1 << size) - 1}:
            return true if table else true ^ true
        half = size // 2
        first, ones = inputs[0], (1 << half) - 1
        zero_table, one_table = table & ones, table >> half
        if zero_table == one_table:
            return of(one_table, inputs[1:])
        if one_table == zero_table ^ ones:
            return first ^ of(zero_table, inputs[1:])
        if_zero, if_one = of(zero_table, inputs[1:]), of(one_table, inputs[1:])
        if zero_table == 0:
            return first & if_one
        if one_table == 0:
            return (first ^ true) & if_zero
        if zero_table == ones:
            return (first ^ true) | if_one
        if one_table == ones:
            return first | if_zero
        return (first & if_one) | ((first ^ true) & if_zero)

    return lambda a, b, c: of(lut, (a, b, c))


def _predicate_logic(instruction: Instruction) -> Step:
    """``PLOP3.LUT P0, P1, a, b, c, table, table``: each by its table."""
    if kinds_of(instruction, "LUT") != {"LUT"}:
        raise UnknownOperand(instruction.operation)
    first, second, *words, table, other_table = operands_of(instruction, 7)
    operands = Operands()
    conditions = [operands.condition(w) for w in words]
    functions = [_lut_function(int(t, 16), true=True) for t in (table, other_table)]

    def run(values: Values) -> Values:
        flags = [c.flag(values) for c in conditions]
        return [f(*flags) for f in functions]

    return step_of(operands, [predicate(first), predicate(second)], run)


def _select(instruction: Instruction) -> Step:
    kinds_of(instruction)
    target, first, second, condition = operands_of(instruction, 4)
    operands = Operands()
    a, b, which = operands.number(first, ""), operands.number(second, ""), operands.condition(condition)
    return step_of(operands, register(target), lambda v: [select(which.flag(v), a.word(v), b.word(v))])


def _permuted(words: tuple[Word, Word], chosen: int) -> Word:
    """Return four bytes of two words, by four digits."""
    result: Word = 0
    for place in range(4):
        digit = chosen >> 4 * place & 15
        byte = words[digit >> 2 & 1] >> 8 * (digit & 3) & 0xFF
        result = result | ((byte >> 7) * 0xFF if digit & 8 else byte) << 8 * place
    return result


def _permute(instruction: Instruction) -> Step:
    """``PRMT R0, a, selector, c``: each byte one of those of c:a, or its sign."""
    kinds_of(instruction)
    target, first, choice, second = operands_of(instruction, 4)
    operands = Operands()
    a, selector, c = operands.number(first, ""), operands.number(choice, ""), operands.number(second, "")

    def run(values: Values) -> Values:
        words, chosen = (a.word(values), c.word(values)), selector.word(values)
        if isinstance(chosen, int):
            return [_permuted(words, chosen)]
        both = joined(*words)
        result: Word = 0
        for place in range(4):
            digit = wide(chosen >> 4 * place & 15)
            byte = low(both >> (digit & 7) * 8) & 0xFF
            result = result | select(low(digit) >= 8, (byte >> 7) * 0xFF, byte) << 8 * place
        return [result]

    return step_of(operands, register(target), run)


def _sign_extend(instruction: Instruction) -> Step:
    """``SGXT R0, a, bits``: the low bits of a, the highest of them continued; ``.U32``: zeros instead."""
    unsigned = bool(kinds_of(instruction, "U32"))
    target, source, width = operands_of(instruction, 3)
    operands = Operands()
    number, bits = operands.number(source, ""), operands.number(width, "")
    if bits.index is not None or not 0 < bits.constant <= 32:
        raise UnknownOperand(str(instruction))
    left = 32 - bits.constant

    def run(values: Values) -> Values:
        value = number.word(values)
        if unsigned:
            return [value & MASK >> left]
        if isinstance(value, int):
            return [(signed(value << left & MASK) >> left) & MASK]
        return [((value << left).view(np.int32) >> left).view(np.uint32)]

    return step_of(operands, register(target), run)


def _count_bits(instruction: Instruction) -> Step:
    kinds_of(instruction)
    target, source = operands_of(instruction, 2)
    operands = Operands()
    number = operands.number(source, "~")

    def run(values: Values) -> Values:
        value = number.word(values)
        return [value.bit_count() if isinstance(value, int) else np.bitwise_count(value).astype(np.uint32)]

    return step_of(operands, register(target), run)


def _leading_one(instruction: Instruction) -> Step:
    """``FLO.U32``: the place of the highest bit, ``.SH``: 31 less it; -1 if there is none."""
    kinds = kinds_of(instruction, "U32", "SH")
    if "U32" not in kinds:
        raise UnknownOperand(instruction.operation)
    target, source = operands_of(instruction, 2)
    operands = Operands()
    number = operands.number(source, "~")

    def run(values: Values) -> Values:
        value = number.word(values)
        if isinstance(value, int):
            place: Word = value.bit_length() - 1 & MASK
        else:
            place = (np.frexp(value.astype(np.float64))[1] - 1).astype(np.int32).view(np.uint32)
        return [select(place == MASK, MASK, 31 ^ place) if "SH" in kinds else place]

    return step_of(operands, register(target), run)


def _reverse_bits(instruction: Instruction) -> Step:
    kinds_of(instruction)
    target, source = operands_of(instruction, 2)
    operands = Operands()
    number = operands.number(source, "")

    def run(values: Values) -> Values:
        value = number.word(values)
        for by, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
            value = (value >> by & mask) | (value & mask) << by
        return [value]

    return step_of(operands, register(target), run)


_MASKED: Final = re.compile(r"(R\d+|RZ|UR\d+|URZ)(?:\.B([123]))?")


def _predicates_to_word(instruction: Instruction) -> Step:
    """``P2R.B1 R0, PR, R1, mask``: R1 with the predicates that the mask has in its byte 1."""
    kinds = kinds_of(instruction, "B1", "B2", "B3")
    target, source, base, mask_text = operands_of(instruction, 4)
    prefix = {"PR": "P", "UPR": "UP"}.get(source)
    mask = int(mask_text, 16) if re.fullmatch("0x[0-9a-f]+", mask_text) else 0
    if prefix is None or not 0 < mask < 0x80 or len(kinds) > 1:
        raise UnknownOperand(str(instruction))
    by = 8 * int(kinds.pop()[1]) if kinds else 0
    operands = Operands()
    number = operands.number(base, "")
    flags = [(n, operands.condition(f"{prefix}{n}")) for n in range(7) if mask >> n & 1]

    def run(values: Values) -> Values:
        word = number.word(values) & (~(mask << by) & MASK)
        for n, flag in flags:
            bit = as_word(flag.flag(values))
            word = word | bit << n + by
        return [word]

    return step_of(operands, register(target), run)


def _word_to_predicates(instruction: Instruction) -> Step:
    """``R2P PR, R0.B1, mask``: the predicates that the mask has, from byte 1 of R0."""
    kinds_of(instruction)
    target, source, mask_text = operands_of(instruction, 3)
    match = _MASKED.fullmatch(source.replace(".reuse", ""))
    mask = int(mask_text, 16) if re.fullmatch("0x[0-9a-f]+", mask_text) else 0
    if target != "PR" or match is None or not 0 < mask < 0x80:
        raise UnknownOperand(str(instruction))
    operands = Operands()
    number = operands.number(match[1], "")
    by, places = 8 * int(match[2] or 0), [n for n in range(7) if mask >> n & 1]

    def run(values: Values) -> Values:
        word = number.word(values)
        return [(word & 1 << n + by) != 0 for n in places]

    return step_of(operands, [f"P{n}" for n in places], run)


RULES: Final[dict[str, Callable[[Instruction], Step]]] = {
    "SHF": _shift, "USHF": _shift, "LOP3": _logic, "ULOP3": _logic, "PLOP3": _predicate_logic,
    "UPLOP3": _predicate_logic, "SEL": _select, "USEL": _select, "PRMT": _permute, "UPRMT": _permute,
    "SGXT": _sign_extend, "USGXT": _sign_extend, "POPC": _count_bits, "UPOPC": _count_bits, "FLO": _leading_one,
    "UFLO": _leading_one, "BREV": _reverse_bits, "UBREV": _reverse_bits, "P2R": _predicates_to_word,
    "UP2UR": _predicates_to_word, "R2P": _word_to_predicates,
}  # fmt: skip
"""How to read the instructions of each name."""
