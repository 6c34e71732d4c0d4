"""Effects that a kernel's machine code may have in one launch.

Which instructions it can reach, and through which tensor maps it stores.

The instructions come from ``nvdisasm``, which Triton and the CUDA toolkit bring along. They are followed from the entry
with the launch's own constants (parameters, grid, block): a branch on a parameter goes one way. Everything that is not
understood is unknown, both ways of a branch on it are followed, and what is returned is a superset of what runs.

A store through a tensor map names the map by an address. Where that is the parameters' own address plus a constant, the
map is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tileprof.record.cuda.code.disassembly import disassembled
from tileprof.record.cuda.code.instructions import Instruction, written_registers

Constants = Callable[[int], int | None]
"""The 32-bit word at an offset of constant bank 0; None where it is not known."""

ARCHITECTURE: Final = 90
"""The architecture for which the constants below hold: offsets in constant bank 0, and how instructions are spelled."""
PARAMETERS_ADDRESS: Final = 0x198
"""Place of the parameters' address in constant bank 0."""
MOST_SILENT: Final = 4
"""Launches of a kernel whose code did not say where they store, after which the rest of them is not looked at."""
STORES: Final = ("UTMASTG", "UTMAREDG")
_MASK: Final = 0xFFFFFFFF
_BANK: Final = re.compile(r"^c\[0x0\]\[0x([0-9a-f]+)\]$")

Value = int | tuple[str, int]
"""A word: a number; or ("low" or "high", offset), of the parameters' address plus an offset."""
State = dict[str, "Value | bool"]
"""Known values of registers and predicates."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The instructions that a launch may execute.

    ``maps``: offsets in the parameters of the maps that it stores through; None where one of them is not known.
    """

    instructions: frozenset[int]
    maps: frozenset[int] | None


def reached(code: list[Instruction], constants: Constants) -> Reached | None:
    """Return what a launch with these constants may execute; None where that is unknown."""
    place = {instruction.address: n for n, instruction in enumerate(code)}
    joins = _joins(code)
    states: dict[int, State] = {0: {}}
    work = [0]
    maps: dict[int, int | None] = {}
    while work:
        n = work.pop()
        state = dict(states[n])
        while True:
            if n >= len(code):
                return None
            instruction = code[n]
            if instruction.name in STORES and _is_executed(instruction, state) is not False:
                maps[n] = _map_of(instruction, state)
            following = _step(instruction, state, constants, place, joins, n)
            if following is None:
                return None
            ahead = [(m, s) for m, s in following if _enter(states, m, s)]
            if not ahead:
                break
            work += [m for m, _ in ahead[1:]]
            n, state = ahead[0][0], dict(states[ahead[0][0]])
    map_offsets = [m for m in maps.values() if m is not None]
    whole = len(map_offsets) == len(maps)
    return Reached(frozenset(code[n].address for n in states), frozenset(map_offsets) if whole else None)


def _joins(code: list[Instruction]) -> dict[str, list[int]]:
    """Return where threads that wait at each convergence barrier continue; at any's place where one is copied."""
    out: dict[str, list[int]] = {}
    for instruction in code:
        if instruction.name == "BSSY":
            out.setdefault(instruction.operands[0], []).append(_target(instruction))
    if any(instruction.name == "BMOV" for instruction in code):
        everywhere = [address for addresses in out.values() for address in addresses]
        return {i.operands[0]: everywhere for i in code if i.name == "BSYNC"}
    return out


def _target(instruction: Instruction) -> int:
    """Return the address that an instruction names last, -1 where it names none."""
    last = instruction.operands[-1] if instruction.operands else ""
    return int(last, 16) if re.fullmatch(r"0x[0-9a-f]+", last) else -1


def _enter(states: dict[int, State], n: int, state: State) -> bool:
    """Join a state into that of an instruction; whether it knows less now, or is new."""
    before = states.get(n)
    if before is None:
        states[n] = dict(state)
        return True
    common = {k: v for k, v in before.items() if state.get(k) == v and type(state.get(k)) is type(v)}
    if len(common) == len(before):
        return False
    states[n] = common
    return True


def _is_executed(instruction: Instruction, state: State) -> bool | None:
    """Return whether an instruction is executed; None where that is not known."""
    if instruction.guard is None:
        return True
    value = _predicate(instruction.guard[0], state)
    return None if value is None else value != instruction.guard[1]


def _predicate(word: str, state: State) -> bool | None:
    negated, name = word.startswith("!"), word.lstrip("!")
    if name in {"PT", "UPT"}:
        return not negated
    value = state.get(name)
    return (value != negated) if isinstance(value, bool) else None


_ENDS: Final = {"EXIT", "KILL"}
_LOST: Final = ("J", "BRX", "CALL", "RET", "RTT", "UBR")
"""First words of operations that continue at an address in a register, or elsewhere."""


def _step(
    instruction: Instruction,
    state: State,
    constants: Constants,
    place: dict[int, int],
    joins: dict[str, list[int]],
    n: int,
) -> list[tuple[int, State]] | None:
    """Return where execution continues, and with what; None where that is unknown. ``state`` is changed."""
    runs, name = _is_executed(instruction, state), instruction.name
    if name.startswith(_LOST) and runs is not False:
        return None
    if name in _ENDS:
        return [] if runs is True else [(n + 1, state)]
    if name == "BRA" and runs is not False:
        target = place.get(_target(instruction))
        if target is None:
            return None
        only = runs is True and len(instruction.operands) == 1 and instruction.operation in {"BRA", "BRA.U"}
        return [(target, state)] if only else [(n + 1, state), (target, state)]
    if name == "WARPSYNC" and (target := place.get(_target(instruction))) is not None:
        return [(n + 1, state), (target, state)]  # of a collective: lanes that are not in it continue there
    if name == "BSYNC":
        targets = [place[a] for a in joins.get(instruction.operands[0], []) if a in place]
        return [(n + 1, state), *((t, state) for t in targets)]
    if runs is False:
        return [(n + 1, state)]
    before = dict(state) if runs is None else None
    _execute(instruction, state, constants)
    if before is not None:
        for key in [k for k in state if before.get(k) != state[k]]:
            del state[key]
    return [(n + 1, state)]


def _execute(instruction: Instruction, state: State, constants: Constants) -> None:
    rule = _RULES.get(instruction.name)
    results = rule(instruction, state, constants) if rule is not None else None
    for key in written_registers(instruction):
        state.pop(key, None)
    if results is None:
        return
    for key, value in results.items():
        if value is not None and not key.endswith(("Z", "PT")):
            state[key] = value


def _word(operand: str, state: State, constants: Constants) -> Value | None:
    operand = operand.removesuffix(".reuse")
    if match := re.fullmatch(r"(-?)(0x[0-9a-f]+)", operand):
        return (-int(match[2], 16) if match[1] else int(match[2], 16)) & _MASK
    if match := _BANK.match(operand):
        return _bank(int(match[1], 16), constants)
    if operand in {"RZ", "URZ"}:
        return 0
    value = state.get(operand)
    return None if isinstance(value, bool) else value


def _bank(offset: int, constants: Constants) -> Value | None:
    if offset in {PARAMETERS_ADDRESS, PARAMETERS_ADDRESS + 4}:
        return ("low" if offset == PARAMETERS_ADDRESS else "high", 0)
    return constants(offset)


def _next(register: str) -> str:
    kind = register.rstrip("0123456789")
    return f"{kind}{int(register[len(kind) :]) + 1}"


def _move(instruction: Instruction, state: State, constants: Constants) -> State | None:
    if instruction.name == "IMAD" and not instruction.operation.startswith("IMAD.MOV"):
        return None
    value = _word(instruction.operands[-1], state, constants)
    return None if value is None else {instruction.operands[0]: value}


def _copy(instruction: Instruction, state: State, constants: Constants) -> State | None:
    if len(instruction.operands) != 2:
        return None
    value = _word(instruction.operands[1], state, constants)
    return None if value is None else {instruction.operands[0]: value}


def _select(instruction: Instruction, state: State, constants: Constants) -> State | None:
    if len(instruction.operands) != 4:
        return None
    target, first, second, condition = instruction.operands
    condition_value = _predicate(condition, state)
    value = None if condition_value is None else _word(first if condition_value else second, state, constants)
    return None if value is None else {target: value}


def _load(instruction: Instruction, _: State, constants: Constants) -> State | None:
    match = _BANK.match(instruction.operands[1]) if len(instruction.operands) == 2 else None
    if match is None or instruction.operation not in {"LDC", "ULDC", "LDC.64", "ULDC.64"}:
        return None
    target, offset = instruction.operands[0], int(match[1], 16)
    out: State = {}
    pairs = [(target, offset)] + ([(_next(target), offset + 4)] if instruction.operation.endswith(".64") else [])
    for register, at in pairs:
        if register[-1] != "Z" and (value := _bank(at, constants)) is not None:
            out[register] = value
    return out


def _add(instruction: Instruction, state: State, constants: Constants) -> State | None:
    """Sums of three words, of which one may be a half of an address; the carry between its halves is not looked at."""
    if instruction.operation == "UIADD3.64":
        return _add_pairs(instruction, state)
    target, words = _parts(instruction)
    if target is None or len(words) != 3 or instruction.operation not in {"IADD3", "UIADD3", "IADD3.X", "UIADD3.X"}:
        return None
    values = [_word(w, state, constants) for w in words]
    halves = [v for v in values if isinstance(v, tuple)]
    numbers = [v for v in values if isinstance(v, int)]
    if len(halves) + len(numbers) != 3 or len(halves) > 1:
        return None
    if instruction.operation.endswith(".X"):
        high = halves and halves[0][0] == "high" and not any(numbers)
        return {target: halves[0]} if high else None
    if not halves:
        return {target: sum(numbers) & _MASK}
    kind, offset = halves[0]
    return {target: (kind, (offset + sum(numbers)) & _MASK)} if kind == "low" else None


def _add_pairs(instruction: Instruction, state: State) -> State | None:
    """An address and offsets, each in a pair of registers."""
    target, *words = instruction.operands
    total, address = 0, False
    for word in (w for w in words if w != "URZ"):
        low, high = state.get(word), state.get(_next(word)) if re.fullmatch(r"UR\d+", word) else None
        if isinstance(low, tuple) and low[0] == "low" and high == ("high", 0) and not address:
            address, total = True, total + low[1]
        elif isinstance(low, int) and not isinstance(low, bool) and high == 0:
            total += low
        else:
            return None
    return {target: ("low", total & _MASK), _next(target): ("high", 0)} if address else None


def _parts(instruction: Instruction) -> tuple[str | None, list[str]]:
    """Return an instruction's register and the words that it is made of."""
    if not instruction.operands or not re.fullmatch(r"U?R\d+", instruction.operands[0]):
        return None, []
    return instruction.operands[0], [o for o in instruction.operands[1:] if not re.fullmatch(r"!?U?P(\d|T)", o)]


def _logic(instruction: Instruction, state: State, constants: Constants) -> State | None:
    """LOP3 with a table: ``LOP3.LUT [P,] R, a, b, c, table, P``."""
    operands = list(instruction.operands)
    predicate = operands.pop(0) if operands and re.fullmatch(r"U?P(\d|T)", operands[0]) else None
    if not instruction.operation.endswith(".LUT") or len(operands) != 6:
        return None
    target, *words, table, condition = operands
    values = [_word(w, state, constants) for w in words]
    lut = _word(table, state, constants)
    if len(values) != 3 or not isinstance(lut, int):
        return None
    result: int | None = 0
    for bits in range(8):
        if not lut >> bits & 1:
            continue
        term: int | None = _MASK
        for n, value in enumerate(values):
            positive = bits >> (2 - n) & 1
            if value == 0 and positive:
                term = 0
                break
            if not isinstance(value, int):
                term = None
            elif term is not None:
                term &= value if positive else ~value & _MASK
        if term != 0:
            result = None if term is None or result is None else result | term
    if result is None:
        return None
    out: State = {target: result} if target[-1] != "Z" else {}
    if predicate not in {None, "PT", "UPT"} and _predicate(condition, state) is False:
        out[str(predicate)] = result != 0
    return out


_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "LT": lambda a, b: a < b, "EQ": lambda a, b: a == b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b,
    "NE": lambda a, b: a != b, "GE": lambda a, b: a >= b,
}  # fmt: skip


def _compare(instruction: Instruction, state: State, constants: Constants) -> State | None:
    """``ISETP.NE.U32.AND P0, P1, a, b, P2``: P0 is the comparison and P2, P1 its opposite and P2."""
    kinds = instruction.operation.split(".")[1:]
    if len(instruction.operands) != 5 or "EX" in kinds or kinds[0] not in _COMPARE or _twice(instruction):
        return None
    first, second, *words, condition = instruction.operands
    values = [_word(w, state, constants) for w in words]
    other = _predicate(condition, state)
    holds: bool | None = None
    if all(isinstance(v, int) for v in values):
        a, b = (v if "U32" in kinds or v < 1 << 31 else v - (1 << 32) for v in values if isinstance(v, int))
        holds = _COMPARE[kinds[0]](a, b)
    out: State = {}
    for name, value in ((first, holds), (second, None if holds is None else not holds)):
        both = _combined(kinds[-1], value, other)
        if both is not None and name not in {"PT", "UPT"}:
            out[name] = both
    return out


def _twice(instruction: Instruction) -> bool:
    """Return whether both results of an instruction are the same predicate."""
    return instruction.operands[0] == instruction.operands[1]


def _combined(how: str, a: bool | None, b: bool | None) -> bool | None:
    if how == "AND":
        return False if a is False or b is False else None if a is None or b is None else True
    if how == "OR":
        return True if a is True or b is True else None if a is None or b is None else False
    return None


def _predicates(instruction: Instruction, state: State, _: Constants) -> State | None:
    """``PLOP3.LUT P0, P1, a, b, c, table, other``."""
    if len(instruction.operands) != 7 or not instruction.operation.endswith(".LUT") or _twice(instruction):
        return None
    first, second, *words, table, other = instruction.operands
    values = [_predicate(w, state) for w in words]
    out: State = {}
    for name, text in ((first, table), (second, other)):
        lut, results = int(text, 16), set()
        for bits in range(8):
            if all(v is None or v == bool(bits >> (2 - n) & 1) for n, v in enumerate(values)):
                results.add(bool(lut >> bits & 1))
        if len(results) == 1 and name not in {"PT", "UPT"}:
            out[name] = results.pop()
    return out


_RULES: Final[dict[str, Callable[[Instruction, State, Constants], State | None]]] = {
    "MOV": _copy, "UMOV": _copy, "IMAD": _move, "R2UR": _copy, "LDC": _load, "ULDC": _load, "IADD3": _add,
    "UIADD3": _add, "LOP3": _logic, "ULOP3": _logic, "ISETP": _compare, "UISETP": _compare, "PLOP3": _predicates,
    "UPLOP3": _predicates, "SEL": _select, "USEL": _select,
}  # fmt: skip


def _map_of(instruction: Instruction, state: State) -> int | None:
    """Return the offset in the parameters of the map that a store names by the pair of its second operand."""
    match = re.fullmatch(r"\[(UR\d+)\]", instruction.operands[1]) if len(instruction.operands) > 1 else None
    if match is None:
        return None
    low, high = state.get(match[1]), state.get(_next(match[1]))
    if not isinstance(low, tuple) or not isinstance(high, tuple) or low[0] != "low" or high != ("high", 0):
        return None
    return low[1]


@dataclass(slots=True)
class Kernels:
    """The machine code of a process's kernels, by id, where the recorder left it and a disassembler reads it; not of
    kernels whose instructions are changed when they are loaded.
    """

    folder: Path
    tool: Path | None
    _code: dict[int, list[Instruction]] = field(default_factory=dict)
    _reached: dict[tuple[int, frozenset[tuple[int, int]]], Reached | None] = field(default_factory=dict)

    def reached(self, kernel: int, constants: dict[int, int]) -> Reached | None:
        """Return what a launch of a kernel with these words of its constant bank may execute; None where that cannot
        be told.
        """
        key = (kernel, frozenset(constants.items()))
        if key not in self._reached:
            outcomes = [outcome for (other, _), outcome in self._reached.items() if other == kernel]
            silent = sum(outcome is None or outcome.maps is None for outcome in outcomes)
            code = self._of(kernel) if silent < MOST_SILENT else []
            self._reached[key] = reached(code, constants.get) if code else None
        return self._reached[key]

    def parameters(self, launch: int) -> bytes:
        """Return a launch's parameters, where the host wrote them down."""
        path = self.folder / f"parameters-{launch}.bin"
        return path.read_bytes() if path.is_file() else b""

    def _of(self, kernel: int) -> list[Instruction]:
        if kernel not in self._code:
            path, relocated = (self.folder / f"{name}-{kernel}.bin" for name in ("code", "relocated"))
            there = self.tool is not None and path.is_file() and not relocated.is_file()
            self._code[kernel] = disassembled(self.tool, path.read_bytes()) if there and self.tool else []
        return self._code[kernel]
