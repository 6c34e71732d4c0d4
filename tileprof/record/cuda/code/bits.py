"""Words of which only some bits are known: compilers pack predicates into a register that nothing has set before."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tileprof.record.cuda.code.instructions import Instruction
from tileprof.record.cuda.code.knowledge import CLEAN, MASK, NEVER, NOTHING, Bits, State, Value

_ZEROS: Final = Bits(MASK, MASK, 0)
_ONES: Final = Bits(MASK, MASK, MASK)
_ONE: Final = Bits(MASK, MASK, 1)
Look = Callable[[str], Bits]
"""What is known of an operand: a register or a predicate (its lowest bit), a number or a word of the constant bank."""


def may_tell(instruction: Instruction, results: Sequence[Value], state: State) -> bool:
    """Return whether an instruction's operands may say more than its results as a whole."""
    if instruction.name not in _RULES:
        return False
    if any(isinstance(result, frozenset) for result in results) or instruction.name in {"P2R", "SEL"}:
        return True
    return any(operand.removesuffix(".reuse").partition(".")[0] in state.partial for operand in instruction.operands)


def results(instruction: Instruction, look: Look) -> dict[str, Bits]:
    """Return what is known of results where an operand is known in part; only of instructions that move bits."""
    rule = _RULES.get(instruction.name)
    return rule(instruction, look) if rule is not None else {}


def _logic(instruction: Instruction, look: Look) -> dict[str, Bits]:
    """``LOP3.LUT P0, R0, a, b, c, table, !PT``: the predicate is whether the result is other than zero."""
    operands = list(instruction.operands)
    predicate = operands.pop(0) if re.fullmatch(r"U?P(\d|T)", operands[0]) else None
    if not instruction.operation.endswith(".LUT") or len(operands) != 6 or operands[5] not in {"!PT", "!UPT"}:
        return {}
    words, table = [look(word) for word in operands[1:4]], int(operands[4], 16)
    result = _by_table(words, table)
    tagged = [n for n, word in enumerate(words) if word.tags]
    if len(tagged) == 1:
        (n,) = tagged
        zeros, ones = (_by_table([*words[:n], other, *words[n + 1 :]], table) for other in (_ZEROS, _ONES))
        same, opposite = (
            zeros.known & ones.known & (ones.value ^ zeros.value) & part for part in (ones.value, zeros.value)
        )
        tags = {(i, literal) for i, literal in words[n].tags if same >> i & 1}
        tags |= {(i, literal ^ 1) for i, literal in words[n].tags if opposite >> i & 1}
        result = replace(result, tags=frozenset(tags))
    out = {operands[0]: result}
    if predicate is not None:
        out[predicate] = _is_not_zero(result)
    return out


def _by_table(words: Sequence[Bits], table: int) -> Bits:
    """Return what is known of the bits that a table makes of three words'."""
    rows = range(8)
    possible = [MASK] * 8
    for row in rows:
        for n, word in enumerate(words):
            possible[row] &= ~word.known | (word.value if row >> (2 - n) & 1 else ~word.value)
    ones = zeros = vague = 0
    for row in rows:
        if table >> row & 1:
            ones |= possible[row]
        else:
            zeros |= possible[row]
        for other in range(row):
            if (table >> row ^ table >> other) & 1:
                differs = possible[row] & possible[other]
                for n, word in enumerate(words):
                    if (row ^ other) >> (2 - n) & 1:
                        differs &= ~word.clean
                vague |= differs
    known = ~(ones & zeros) & ~vague & MASK
    return Bits(~vague & MASK, known, ones & known)


def _is_not_zero(word: Bits) -> Bits:
    """Return what is known of a predicate that tells whether a word is other than zero."""
    if word.value:
        return _ONE
    if word.clean != MASK:
        return NOTHING
    return _ZEROS if word.known == MASK else Bits(MASK, tags=frozenset({(0, word.nonzero)} if word.nonzero else ()))


def _permute(instruction: Instruction, look: Look) -> dict[str, Bits]:
    """``PRMT R0, a, 0x7610, b``: bytes of ``b:a`` by a selector of four bits each."""
    if instruction.operation not in {"PRMT", "UPRMT"} or len(instruction.operands) != 4:
        return {}
    target, low, selector, high = instruction.operands
    choice = look(selector)
    if choice.known & 0xFFFF != 0xFFFF or choice.value & 0x8888:
        return {}
    a, b = look(low), look(high)
    parts = [0, 0, 0]
    tags = set()
    for n in range(4):
        byte = choice.value >> 4 * n & 7
        source = b if byte >= 4 else a
        tags |= {(8 * n + i % 8, literal) for i, literal in source.tags if i // 8 == byte & 3}
        for i, word in enumerate((source.clean, source.known, source.value)):
            parts[i] |= (word >> 8 * (byte & 3) & 0xFF) << 8 * n
    return {target: Bits(parts[0], parts[1], parts[2], frozenset(tags))}


def _pack(instruction: Instruction, look: Look) -> dict[str, Bits]:
    """``P2R.B1 R0, PR, a, 0xf``: ``a`` with predicates in the bits of one byte that the mask names."""
    match = re.fullmatch(r"P2R(?:\.B([0-3]))?", instruction.operation)
    if match is None or len(instruction.operands) != 4 or instruction.operands[1] != "PR":
        return {}
    target, _, source, text = instruction.operands
    mask = look(text)
    if mask.known != MASK or mask.value > 0x7F:
        return {}
    word = look(source)
    clean, known, value, tags = word.clean, word.known, word.value, dict(word.tags)
    for n in range(7):
        if mask.value >> n & 1:
            predicate, at = look(f"P{n}"), 8 * int(match[1] or 0) + n
            clean = clean & ~(1 << at) | (predicate.clean & 1) << at
            known = known & ~(1 << at) | (predicate.known & 1) << at
            value = value & ~(1 << at) | (predicate.known & predicate.value & 1) << at
            tags[at] = dict(predicate.tags).get(0, 0)
    return {target: Bits(clean, known, value, frozenset((n, literal) for n, literal in tags.items() if literal))}


def _unpack(instruction: Instruction, look: Look) -> dict[str, Bits]:
    """``R2P PR, R0.B1, 0x7f``: predicates from the bits of one byte that the mask names."""
    match = re.fullmatch(r"(R\d+)(?:\.B([0-3]))?", instruction.operands[1]) if len(instruction.operands) == 3 else None
    if match is None or instruction.operation != "R2P" or instruction.operands[0] != "PR":
        return {}
    word, mask = look(match[1]), look(instruction.operands[2])
    if mask.known != MASK or mask.value > 0x7F:
        return {}
    out = {}
    for n in range(7):
        if mask.value >> n & 1:
            at = 8 * int(match[2] or 0) + n
            clean, known = (MASK if part >> at & 1 else 0 for part in (word.clean, word.known))
            tag = dict(word.tags).get(at, 0)
            out[f"P{n}"] = Bits(clean, known, known & (word.value >> at & 1), frozenset({(0, tag)} if tag else ()))
    return out


def _select(instruction: Instruction, look: Look) -> dict[str, Bits]:
    """``SEL R0, a, b, !P0``: one of two words."""
    if instruction.operation not in {"SEL", "USEL"} or len(instruction.operands) != 4:
        return {}
    target, first, second, condition = instruction.operands
    choice = look(condition.lstrip("!"))
    words = look(first), look(second)
    a, b = words[::-1] if condition.startswith("!") else words
    if choice.known & 1:
        return {target: a if choice.value & 1 else b}
    tag = dict(choice.tags).get(0)
    return {target: a.either(b, tag)} if choice.clean & 1 else {}


def _copy(instruction: Instruction, look: Look) -> dict[str, Bits]:
    operands = instruction.operands
    is_move = instruction.operation in {"MOV", "UMOV"} and len(operands) == 2
    if instruction.operation in {"IMAD.MOV.U32", "IMAD.U32"} and operands[1:3] == ("RZ", "RZ") and len(operands) == 4:
        is_move = True
    return {operands[0]: look(operands[-1])} if is_move else {}


def value(name: str, word: Bits) -> Value:
    """Return the bits of a register or predicate as what is known of it."""
    if not name.removeprefix("U").startswith("P"):
        return NEVER if (whole := word.whole) is None else whole
    if not word.clean & 1:
        return NEVER
    return bool(word.value & 1) if word.known & 1 else CLEAN


_RULES: Final[dict[str, Callable[[Instruction, Look], dict[str, Bits]]]] = {
    "LOP3": _logic, "ULOP3": _logic, "PRMT": _permute, "UPRMT": _permute, "P2R": _pack, "R2P": _unpack, "MOV": _copy,
    "UMOV": _copy, "IMAD": _copy, "SEL": _select, "USEL": _select,
}  # fmt: skip
