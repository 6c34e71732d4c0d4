"""What the instructions for integers and predicates on sm_90 compute, rule by rule.

Every rule takes an instruction whose name it is listed under, and raises `UnknownOperand` for a spelling that it does
not know. Sources: the PTX manual, for instructions that translate one of PTX's; programs that nvcc compiled and whose
results are known; for carries, Mesa's compiler for this hardware, which is tested on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tileprof.record.cuda.code.instructions import Instruction
from tileprof.record.cuda.code.operands import (
    MASK,
    MASK_64,
    Condition,
    Flag,
    Indexed,
    Number,
    Operands,
    Step,
    UnknownOperand,
    Values,
    Wide,
    Word,
    add,
    bank_word,
    high,
    inverse,
    is_predicate,
    joined,
    low,
    multiply,
    predicate,
    register,
    select,
    signed,
    step_of,
    wide,
)


def _kinds(instruction: Instruction, *allowed: str) -> set[str]:
    """Return what follows the operation's name; `UnknownOperand` for anything that is not ``allowed``."""
    kinds = instruction.operation.split(".")[1:]
    if not set(kinds) <= set(allowed) or len(set(kinds)) != len(kinds):
        raise UnknownOperand(instruction.operation)
    return set(kinds)


def _count(instruction: Instruction, *counts: int) -> tuple[str, ...]:
    if len(instruction.operands) not in counts:
        raise UnknownOperand(str(instruction))
    return instruction.operands


def _with_carries(instruction: Instruction) -> tuple[str, list[str], list[str]]:
    """Return an instruction's register, the predicates that it writes, and what it reads."""
    target, *rest = instruction.operands
    flags: list[str] = []
    while rest and is_predicate(rest[0]):
        flags.append(predicate(rest.pop(0)))
    return target, flags, rest


def _move(instruction: Instruction) -> Step:
    _kinds(instruction)
    target, source = _count(instruction, 2)
    operands = Operands()
    number = operands.number(source, "")
    return step_of(operands, register(target), lambda v: [number.word(v)])


def _add_two(instruction: Instruction) -> Step:
    _kinds(instruction)
    target, *words = _count(instruction, 3)
    operands = Operands()
    a, b = (operands.number(w, "-") for w in words)
    return step_of(operands, register(target), lambda v: [add(a.word(v), b.word(v))])


def _add_three(instruction: Instruction) -> Step:
    """``IADD3 R0, P0, P1, a, b, c``; ``.X``: ``IADD3.X R0, P0, P1, a, b, c, P2, P3`` adds P2 and P3."""
    if instruction.operation == "UIADD3.64":
        return _add_pairs(instruction)
    kinds = _kinds(instruction, "X")
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
            total = add(total, _as_word(carry.flag(values)))
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
            exact = exact + wide(_as_word(carry.flag(values)))
        return [low(exact), *(exact >= (n + 1) << 32 for n in range(flags))]

    return run


def _as_word(flag: Flag) -> Word:
    return int(flag) if isinstance(flag, bool) else flag.astype(np.uint32)


def _add_pairs(instruction: Instruction) -> Step:
    target, *words = _count(instruction, 4)
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
    kinds = _kinds(instruction, "MOV", "IADD", "SHL", "U32", "X", "WIDE", "HI")
    if kinds & {"WIDE", "HI"}:
        return _multiply_wide(instruction, kinds)
    target, *words = _count(instruction, 5 if "X" in kinds else 4)
    operands = Operands()
    a, b = (operands.number(w, "-") for w in words[:2])
    c = operands.number(words[2], "~" if "X" in kinds else "-")
    carry = operands.condition(words[3]) if "X" in kinds else None

    def run(values: Values) -> Values:
        total = c.word(values)
        if not (a.is_zero or b.is_zero):
            total = add(_product(a, b, values), total)
        return [total if carry is None else add(total, _as_word(carry.flag(values)))]

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
            product = product + wide(_as_word(carry.flag(values)))
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
    kinds = _kinds(instruction, "HI", "X", "SX32")
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
            return [total if carry is None else add(total, _as_word(carry.flag(values)))]
        if not a.sign and not b.sign and carry is None:
            other = b.word(values)
            total = add(first, other)
            return [total, total < other]
        exact = (MASK - wide(first) + 1 if a.sign else wide(first)) + b.addend(values)
        if carry is not None:
            exact = exact + wide(_as_word(carry.flag(values)))
        return [low(exact), exact >= 1 << 32]

    return step_of(operands, [*register(target), *flags], run)


def _shift(instruction: Instruction) -> Step:
    """``SHF.R.U32.HI R0, low, count, high``: high:low shifted, its low word, or its high one with ``.HI``."""
    kinds = _kinds(instruction, "L", "R", "W", "HI", "U32", "S32", "U64", "S64")
    sizes = kinds & {"U32", "S32", "U64", "S64"}
    target, *words = _count(instruction, 4)
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
    kinds = _kinds(instruction, "LUT", "PAND")
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
    kinds = _kinds(instruction, *_COMPARISONS, *_COMBINATIONS, "U32", "EX")
    comparisons, combinations = kinds & set(_COMPARISONS), kinds & set(_COMBINATIONS)
    extended = "EX" in kinds
    first, second, *words = _count(instruction, 5 + extended)
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


def _predicate_logic(instruction: Instruction) -> Step:
    """``PLOP3.LUT P0, P1, a, b, c, table, table``: each by its table."""
    if _kinds(instruction, "LUT") != {"LUT"}:
        raise UnknownOperand(instruction.operation)
    first, second, *words, table, other_table = _count(instruction, 7)
    operands = Operands()
    conditions = [operands.condition(w) for w in words]
    functions = [_lut_function(int(t, 16), true=True) for t in (table, other_table)]

    def run(values: Values) -> Values:
        flags = [c.flag(values) for c in conditions]
        return [f(*flags) for f in functions]

    return step_of(operands, [predicate(first), predicate(second)], run)


def _select(instruction: Instruction) -> Step:
    _kinds(instruction)
    target, first, second, condition = _count(instruction, 4)
    operands = Operands()
    a, b, which = operands.number(first, ""), operands.number(second, ""), operands.condition(condition)
    return step_of(operands, register(target), lambda v: [select(which.flag(v), a.word(v), b.word(v))])


def _extreme(a: Word, b: Word, least: Flag, *, unsigned: bool) -> Word:
    smaller = a < b if unsigned else signed(a) < signed(b)
    return select(smaller == least if isinstance(smaller, bool) else smaller ^ inverse(least), a, b)


def _minimum(instruction: Instruction) -> Step:
    """``VIMNMX R0, a, b, P0``: the smaller where P0, else the larger; ``VIADDMNMX R0, a, b, c, P0``: of a + b and c.

    ``.RELU``: at least zero.
    """
    kinds = _kinds(instruction, "U32", "RELU")
    unsigned, clamps = "U32" in kinds, "RELU" in kinds
    if unsigned and clamps:
        raise UnknownOperand(instruction.operation)
    adds = instruction.name == "VIADDMNMX"
    target, *words, condition = _count(instruction, 5 if adds else 4)
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
    _kinds(instruction)
    target, source = _count(instruction, 2)
    operands = Operands()
    number = operands.number(source, "")

    def run(values: Values) -> Values:
        value = signed(number.word(values))
        return [abs(value) if isinstance(value, int) else np.abs(value).view(np.uint32)]

    return step_of(operands, register(target), run)


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
    _kinds(instruction)
    target, first, choice, second = _count(instruction, 4)
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
    unsigned = bool(_kinds(instruction, "U32"))
    target, source, width = _count(instruction, 3)
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
    _kinds(instruction)
    target, source = _count(instruction, 2)
    operands = Operands()
    number = operands.number(source, "~")

    def run(values: Values) -> Values:
        value = number.word(values)
        return [value.bit_count() if isinstance(value, int) else np.bitwise_count(value).astype(np.uint32)]

    return step_of(operands, register(target), run)


def _leading_one(instruction: Instruction) -> Step:
    """``FLO.U32``: the place of the highest bit, ``.SH``: 31 less it; -1 if there is none."""
    kinds = _kinds(instruction, "U32", "SH")
    if "U32" not in kinds:
        raise UnknownOperand(instruction.operation)
    target, source = _count(instruction, 2)
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
    _kinds(instruction)
    target, source = _count(instruction, 2)
    operands = Operands()
    number = operands.number(source, "")

    def run(values: Values) -> Values:
        value = number.word(values)
        for by, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
            value = (value >> by & mask) | (value & mask) << by
        return [value]

    return step_of(operands, register(target), run)


_SIZES: Final = {"": (4, False), "64": (8, False), "128": (16, False), "U8": (1, False), "S8": (1, True),
                 "U16": (2, False), "S16": (2, True)}  # fmt: skip
_BANK: Final = re.compile(r"c\[0x0\]\[(?:(UR\d+|R\d+|RZ|URZ))?(?:\+?(-?)0x([0-9a-f]+))?\]")


def _load_constant(instruction: Instruction) -> Step:
    """``LDC.64 R0, c[0x0][R2+0x10]``."""
    kind = instruction.operation.partition(".")[2]
    target, source = _count(instruction, 2)
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
    _kinds(instruction)
    target, source = _count(instruction, 2)
    if source not in _SPECIAL:
        raise UnknownOperand(source)
    operands = Operands()
    operands.index(source)
    return step_of(operands, register(target), lambda v: [v[0]])


def _zeros(instruction: Instruction) -> Step:
    """``CS2R R0, SRZ``: zero to two registers, ``CS2R.32`` to one."""
    words = 1 if _kinds(instruction, "32") else 2
    target, source = _count(instruction, 2)
    if source != "SRZ":
        raise UnknownOperand(source)
    return step_of(Operands(), register(target, words), lambda _: [0] * words)


def _half_constants(instruction: Instruction) -> Step:
    """``HFMA2.MMA R0, -RZ, RZ, 1.5, 0``: how the compiler loads a constant, as two numbers of 16 bits, high first."""
    _kinds(instruction, "MMA")
    target, a, b, *halves = _count(instruction, 5)
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


_MASKED: Final = re.compile(r"(R\d+|RZ|UR\d+|URZ)(?:\.B([123]))?")


def _predicates_to_word(instruction: Instruction) -> Step:
    """``P2R.B1 R0, PR, R1, mask``: R1 with the predicates that the mask has in its byte 1."""
    kinds = _kinds(instruction, "B1", "B2", "B3")
    target, source, base, mask_text = _count(instruction, 4)
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
            bit = _as_word(flag.flag(values))
            word = word | bit << n + by
        return [word]

    return step_of(operands, register(target), run)


def _word_to_predicates(instruction: Instruction) -> Step:
    """``R2P PR, R0.B1, mask``: the predicates that the mask has, from byte 1 of R0."""
    _kinds(instruction)
    target, source, mask_text = _count(instruction, 3)
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


def _from_lane(instruction: Instruction) -> Step:
    """``SHFL.IDX PT, R0, R1, 0x0, 0x1f``: what one lane of the warp has."""
    if _kinds(instruction, "IDX") != {"IDX"}:
        raise UnknownOperand(instruction.operation)
    inside, target, source, lane, clamp = _count(instruction, 5)
    operands = Operands()
    number, which, limit = operands.number(source, ""), operands.number(lane, ""), operands.number(clamp, "")
    if inside != "PT" or limit != Number(None, 31) or which.index is not None or which.constant > 31:
        raise UnknownOperand(str(instruction))
    if number.index is None:
        raise UnknownOperand(source)
    shuffled = step_of(operands, register(target), lambda v: [v[0]])
    return Step(shuffled.reads, shuffled.writes, shuffled.run, source_lane=which.constant)


RULES: Final[dict[str, Callable[[Instruction], Step]]] = {
    "MOV": _move, "UMOV": _move, "R2UR": _move, "IADD3": _add_three, "UIADD3": _add_three, "VIADD": _add_two,
    "IMAD": _multiply_add, "UIMAD": _multiply_add, "LEA": _scaled, "ULEA": _scaled, "SHF": _shift, "USHF": _shift,
    "LOP3": _logic, "ULOP3": _logic, "ISETP": _compare, "UISETP": _compare, "PLOP3": _predicate_logic,
    "UPLOP3": _predicate_logic, "SEL": _select, "USEL": _select, "IMNMX": _minimum, "UIMNMX": _minimum,
    "VIMNMX": _minimum, "VIADDMNMX": _minimum, "IABS": _absolute, "PRMT": _permute,
    "UPRMT": _permute,
    "SGXT": _sign_extend, "USGXT": _sign_extend, "POPC": _count_bits, "UPOPC": _count_bits, "FLO": _leading_one,
    "UFLO": _leading_one, "BREV": _reverse_bits, "UBREV": _reverse_bits, "LDC": _load_constant,
    "ULDC": _load_constant, "S2R": _special, "S2UR": _special, "CS2R": _zeros, "HFMA2": _half_constants,
    "P2R": _predicates_to_word, "UP2UR": _predicates_to_word, "R2P": _word_to_predicates, "SHFL": _from_lane,
}  # fmt: skip
"""How to read the instructions of each name. VIMNMX3 has none: nvdisasm 13.1 does not print that an operand is negated.
"""
