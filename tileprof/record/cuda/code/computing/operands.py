"""How an instruction computes what it writes: values of all lanes at once, and its operands as names of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda.code.instructions import Instruction

Word = int | NDArray[Any]
"""A register of all lanes: one number below 2^32 for all, or one per lane (uint32)."""
Flag = bool | NDArray[Any]
"""A predicate of all lanes (bool)."""
Values = Sequence[Any]
"""Words and flags."""
Wide = int | NDArray[Any]
"""A number of 64 bits of all lanes (uint64)."""

MASK: Final = 0xFFFFFFFF
MASK_64: Final = 0xFFFFFFFFFFFFFFFF
_WORD: Final = re.compile(r"([-~]?)(?:(UR|R)(\d+|Z)|c\[0x0\]\[0x([0-9a-f]+)\]|0x([0-9a-f]+))(?:\.reuse)?")
_FLAG: Final = re.compile(r"(!?)(UP|P)(\d+|T)")


class UnknownOperand(ValueError):  # noqa: N818
    """An operand that is not spelled as those that are known."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A load from constant bank 0 at the byte ``value of the only register read + offset`` (mod 2^32), ``size`` bytes
    per lane, at a multiple of ``size``. What is loaded lies in ``words`` words from that byte, rounded down to 4.
    """

    offset: int
    size: int

    @property
    def words(self) -> int:
        """Words of 32 bits that hold what is loaded."""
        return max(1, self.size // 4)


@dataclass(frozen=True, slots=True)
class Step:
    """How an instruction computes what it writes from what it reads; its guard is not part of it.

    ``reads`` names what ``run`` takes, in that order, and ``writes`` what it returns: registers ("R4", "UR5"),
    predicates ("P0", "UP1"), special registers ("SR_TID.X", "SR_CTAID.Z", "SR_LANEID") and words of constant bank 0
    ("c[0x210]", a multiple of 4). Registers and predicates that are constants (RZ, PT) are not among them. ``run`` is
    pure and goes lane by lane; numbers give numbers, arrays (among numbers, perhaps) arrays.

    With ``indexed``, ``run`` takes the words loaded after the register. With ``source_lane`` the instruction hands out
    the value that this lane of the warp has: ``run`` takes it, and returns what each lane gets. With ``estimates`` the
    hardware's result is one of several: ``run`` returns an array of all of them, ``[estimates, lanes]`` (or 1 for all
    lanes), and for which lanes that holds.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Callable[[Values], Values]
    indexed: Indexed | None = None
    source_lane: int | None = None
    estimates: bool = False

    @property
    def crosses_lanes(self) -> bool:
        """Whether what a lane gets depends on other lanes of its warp."""
        return self.source_lane is not None


@dataclass(frozen=True, slots=True)
class Number:
    """A word that an instruction takes: ``values[index]``, or ``constant`` where there is no index. ``sign``: what
    stands before it, "-", "~" or nothing.
    """

    index: int | None
    constant: int
    sign: str = ""

    def word(self, values: Values) -> Word:
        """Return it as 32 bits."""
        value = self.plain(values)
        if not self.sign:
            return value
        if isinstance(value, int):
            return (-value if self.sign == "-" else ~value) & MASK
        return np.negative(value) if self.sign == "-" else ~value

    def addend(self, values: Values) -> Wide:
        """Return it as hardware adds it: the opposite of a number is its complement and one, 2^32 for zero."""
        value = wide(self.plain(values))
        return value if not self.sign else MASK - value + (self.sign == "-")

    def plain(self, values: Values) -> Word:
        """Return it without its sign."""
        return self.constant if self.index is None else values[self.index]

    @property
    def is_zero(self) -> bool:
        """Whether it is zero whatever the values are, and counts as nothing in a sum."""
        return self.index is None and self.constant == 0 and not self.sign


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate that an instruction takes: ``values[index]``, or ``constant`` where there is no index."""

    index: int | None
    constant: bool
    negated: bool = False

    def flag(self, values: Values) -> Flag:
        """Return its value."""
        if self.index is None:
            return self.constant
        value: Flag = values[self.index]
        if isinstance(value, bool):
            return value != self.negated
        return ~value if self.negated else value


@dataclass(slots=True)
class Operands:
    """Collects what an instruction reads, each name once."""

    names: dict[str, int] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of what is read, in order."""
        return tuple(self.names)

    def index(self, name: str) -> int:
        """Return the place of a name."""
        return self.names.setdefault(name, len(self.names))

    def number(self, text: str, signs: str = "-~") -> Number:
        """Return a word; `UnknownOperand` for anything else, or a sign that is not among ``signs``."""
        match = _word(text)
        sign = match[1]
        if match[5] is not None:
            value = int(match[5], 16)
            if value > MASK or sign == "~":
                raise UnknownOperand(text)
            return Number(None, -value & MASK if sign else value)
        if sign and sign not in signs:
            raise UnknownOperand(text)
        if match[4] is not None:
            return Number(self.index(bank_word(int(match[4], 16), text)), 0, sign)
        if match[3] == "Z":
            return Number(None, 0, sign)
        return Number(self.index(match[2] + match[3]), 0, sign)

    def pair(self, text: str) -> tuple[Number, Number]:
        """Return the low and high words of 64 bits: a register and the next, or two words of the constant bank."""
        match = _word(text)
        if match[1] or match[5] is not None:
            raise UnknownOperand(text)
        if match[4] is not None:
            offset = int(match[4], 16)
            return Number(self.index(bank_word(offset, text)), 0), Number(self.index(bank_word(offset + 4, text)), 0)
        if match[3] == "Z":
            return Number(None, 0), Number(None, 0)
        return Number(self.index(match[2] + match[3]), 0), Number(self.index(f"{match[2]}{int(match[3]) + 1}"), 0)

    def condition(self, text: str) -> Condition:
        """Return a predicate, perhaps negated."""
        match = _FLAG.fullmatch(text)
        if match is None:
            raise UnknownOperand(text)
        if match[3] == "T":
            return Condition(None, not match[1])
        return Condition(self.index(match[2] + match[3]), constant=False, negated=bool(match[1]))


def _word(text: str) -> re.Match[str]:
    match = _WORD.fullmatch(text)
    if match is None:
        raise UnknownOperand(text)
    return match


def bank_word(offset: int, text: str) -> str:
    """Return the name of a word of constant bank 0; ``text`` is what is objected to where it is not aligned."""
    if offset % 4:
        raise UnknownOperand(text)
    return f"c[{offset:#x}]"


def register(text: str, words: int = 1) -> list[str]:
    """Return the names of the registers, ``words`` of them, that an instruction writes; "RZ" for each constant one."""
    match = re.fullmatch(r"(UR|R)(\d+|Z)", text)
    if match is None:
        raise UnknownOperand(text)
    return ["RZ"] * words if match[2] == "Z" else [f"{match[1]}{int(match[2]) + i}" for i in range(words)]


def predicate(text: str) -> str:
    """Return the name of a predicate that an instruction writes; "RZ" for a constant one."""
    match = _FLAG.fullmatch(text)
    if match is None or match[1]:
        raise UnknownOperand(text)
    return "RZ" if match[3] == "T" else match[2] + match[3]


def is_predicate(text: str) -> bool:
    """Return whether an operand is a predicate, perhaps negated."""
    return _FLAG.fullmatch(text) is not None


def step_of(operands: Operands, writes: Sequence[str], run: Callable[[Values], Values]) -> Step:
    """Return a step that keeps those of ``run``'s results that are not written to a constant register."""
    kept = [n for n, name in enumerate(writes) if name != "RZ"]
    names = tuple(writes[n] for n in kept)
    if len(set(names)) != len(names):
        raise UnknownOperand(str(names))
    if len(kept) == len(writes):
        return Step(operands.reads, names, run)

    def some(values: Values) -> Values:
        results = run(values)
        return [results[n] for n in kept]

    return Step(operands.reads, names, some)


def wide(word: Word) -> Wide:
    """Return 32 bits as 64."""
    return word if isinstance(word, int) else word.astype(np.uint64)


def low(value: Wide) -> Word:
    """Return the low 32 bits."""
    return value & MASK if isinstance(value, int) else value.astype(np.uint32)


def high(value: Wide) -> Word:
    """Return bits 32 to 63."""
    return value >> 32 & MASK if isinstance(value, int) else (value >> 32).astype(np.uint32)


def joined(low_word: Word, high_word: Word) -> Wide:
    """Return two words as one number of 64 bits."""
    if isinstance(low_word, int) and isinstance(high_word, int):
        return low_word | high_word << 32
    shape = np.broadcast_shapes(np.shape(low_word), np.shape(high_word))
    words = np.empty((*shape, 2), np.uint32)
    words[..., 0], words[..., 1] = low_word, high_word
    return words.view(np.uint64)[..., 0]


def signed(word: Word) -> int | NDArray[Any]:
    """Return 32 bits as a number in two's complement."""
    if isinstance(word, int):
        return word - (word >> 31 << 32)
    return word.view(np.int32)


def add(a: Word, b: Word) -> Word:
    """Return the sum mod 2^32."""
    total = a + b
    return total & MASK if isinstance(total, int) else total


def multiply(a: Word, b: Word) -> Word:
    """Return the product mod 2^32."""
    product = a * b
    return product & MASK if isinstance(product, int) else product


def select(condition: Flag, a: Word, b: Word) -> Word:
    """Return ``a`` where the condition holds and ``b`` elsewhere."""
    if isinstance(condition, bool):
        return a if condition else b
    return np.where(condition, np.asarray(a, np.uint32), np.asarray(b, np.uint32))


def inverse(flag: Flag) -> Flag:
    """Return the opposite of a predicate."""
    return not flag if isinstance(flag, bool) else ~flag


def kinds_of(instruction: Instruction, *allowed: str) -> set[str]:
    """Return what follows the operation's name; `UnknownOperand` for anything that is not ``allowed``."""
    kinds = instruction.operation.split(".")[1:]
    if not set(kinds) <= set(allowed) or len(set(kinds)) != len(kinds):
        raise UnknownOperand(instruction.operation)
    return set(kinds)


def operands_of(instruction: Instruction, *counts: int) -> tuple[str, ...]:
    """Return an instruction's operands; `UnknownOperand` where their number is not among ``counts``."""
    if len(instruction.operands) not in counts:
        raise UnknownOperand(str(instruction))
    return instruction.operands


def as_word(flag: Flag) -> Word:
    """Return 1 where a predicate holds and 0 elsewhere."""
    return int(flag) if isinstance(flag, bool) else flag.astype(np.uint32)
