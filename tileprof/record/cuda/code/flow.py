"""Control flow of a kernel's machine code: blocks, where each may continue, and where diverging ways meet again."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES, Instruction

Node = TypeVar("Node", bound=Hashable)
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")
_RETURN: Final = re.compile(r"(R\d+) 0x0")
_PREDICATE: Final = re.compile(r"!?UP(\d|T)|!?P(\d|T)")


class Kind(Enum):
    """What an instruction at a block's end does."""

    FALL = "continues with the next instruction"
    EXIT = "ends the thread"
    BRANCH = "goes to a target, or on"
    CALL = "goes to a target; what it calls returns by a register"
    RETURN = "goes to an address in a pair of registers"
    SYNC = "waits for other threads, and goes where its barrier says"
    LOST = "goes somewhere that is not known"


@dataclass(frozen=True, slots=True)
class End:
    """How a block ends.

    ``target``: index of the instruction to which it may go. ``conditions``: predicates, and whether each is negated,
    that must all hold for that. ``decided``: whether they decide it; otherwise something else does as well.
    ``register``: of a return, the first register of the pair; of a SYNC, the barrier.
    """

    kind: Kind
    target: int = -1
    conditions: tuple[tuple[str, bool], ...] = ()
    decided: bool = True
    register: str = ""


_LOST: Final = ("J", "BRX", "RTT", "UBR", "CALL", "RET", "KILL", "BRA", "WARPSYNC")


def ends(code: Sequence[Instruction]) -> dict[int, End]:
    """Return how control may leave each instruction that does not just continue with the next one."""
    place = {instruction.address: n for n, instruction in enumerate(code)}
    out = {}
    for n, instruction in enumerate(code):
        if (end := _end(instruction, place)) is not None:
            out[n] = end
    return out


def _end(instruction: Instruction, place: Mapping[int, int]) -> End | None:
    """Return how control leaves an instruction; None where it continues with the next one."""
    name, operation, operands = instruction.name, instruction.operation, instruction.operands
    guard = () if instruction.guard is None else (instruction.guard,)
    target = place.get(int(operands[-1], 16), -1) if operands and _ADDRESS.fullmatch(operands[-1]) else -1
    if name == "EXIT" or (name == "BRA" and target >= 0):  # ``@!P0 EXIT P1``: where both hold
        conditions, decided = list(guard), operation in {"BRA", "BRA.U", "EXIT"}
        for operand in operands[:-1] if name == "BRA" else operands:
            if _PREDICATE.fullmatch(operand):
                conditions.append((operand.lstrip("!"), operand.startswith("!")))
            else:
                decided = False
        return End(Kind.EXIT if name == "EXIT" else Kind.BRANCH, target, tuple(conditions), decided)
    if name == "WARPSYNC":
        if operands and _ADDRESS.fullmatch(operands[-1]) and len(operands) == 2:
            return End(Kind.BRANCH, target, guard, decided=False) if target >= 0 else End(Kind.LOST)
        return None
    if operation == "CALL.REL.NOINC" and len(operands) == 1 and target >= 0:
        return End(Kind.CALL, target, guard)
    if operation == "RET.REL.NODEC" and len(operands) == 1 and (match := _RETURN.fullmatch(operands[0])):
        return End(Kind.RETURN, conditions=guard, register=match[1])
    if name == "BSYNC" and len(operands) == 1:
        return End(Kind.SYNC, conditions=guard, register=operands[0])
    return End(Kind.LOST, conditions=guard) if name.startswith(_LOST) and name != "UBREV" else None


def barrier_target(instruction: Instruction) -> tuple[str, int] | None:
    """Return the convergence barrier that a BSSY sets, and the address where its threads continue."""
    if instruction.name != "BSSY" or len(instruction.operands) != 2:
        return None
    barrier, address = instruction.operands
    return (barrier, int(address, 16)) if _ADDRESS.fullmatch(address) else None


def blocks(code: Sequence[Instruction], leaving: Mapping[int, End]) -> dict[int, int]:
    """Return the end (exclusive) of each basic block by its beginning: one way in, and a leaving instruction last."""
    places = {instruction.address: n for n, instruction in enumerate(code)}
    heads = {0, *(n + 1 for n in leaving), *(end.target for end in leaving.values() if end.target >= 0)}
    for instruction in code:  # addresses in registers: of calls, and where barriers continue
        for operand in instruction.operands:
            if _ADDRESS.fullmatch(operand) and instruction.name in {"MOV", "BSSY", "IMAD", "UMOV"}:
                heads.add(places.get(int(operand, 16), 0))
    order = sorted(head for head in heads if head < len(code))
    return dict(zip(order, [*order[1:], len(code)], strict=True))


def post_dominators(successors: Mapping[Node, Sequence[Node]], ends: Iterable[Node]) -> dict[Node, Node | None]:
    """Return, per node, the first one through which every way from it to an end goes, other than itself.

    None: there is no such node, because the ways end apart. Nodes from which no end is reached are left out.
    """
    before: dict[Node, list[Node]] = {}
    for node, following in successors.items():
        for other in following:
            before.setdefault(other, []).append(node)
    order: list[Node] = []  # of a walk from the ends against the flow: what is nearer to them comes later
    last, seen = list(dict.fromkeys(ends)), set()
    for node in reversed(last):
        if node in seen:
            continue
        seen.add(node)
        stack = [(node, iter(before.get(node, ())))]
        while stack:
            top, rest = stack[-1]
            for other in rest:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(before.get(other, ()))))
                    break
            else:
                order.append(top)
                stack.pop()
    rank = {node: n for n, node in enumerate(order)}
    virtual = len(order)
    over = {virtual: virtual} | dict.fromkeys((rank[node] for node in last), virtual)
    fixed = set(over)

    def common(a: int, b: int) -> int:
        while a != b:
            if a < b:
                a = over[a]
            else:
                b = over[b]
        return a

    changed = True
    while changed:
        changed = False
        for n in range(virtual - 1, -1, -1):
            if n in fixed:
                continue
            best = -1
            for other in successors.get(order[n], ()):
                m = rank.get(other, -1)
                if m in over:
                    best = m if best < 0 else common(best, m)
            if over.get(n) != best:
                over[n], changed = best, True
    return {node: order[over[n]] if over[n] < virtual else None for node, n in rank.items()}


def region(successors: Mapping[Node, Sequence[Node]], node: Node, join: Node) -> set[Node]:
    """Return the nodes that may run after ``node`` and before ``join``: itself too where it lies on a cycle."""
    out: set[Node] = set()
    stack = [other for other in successors.get(node, ()) if other != join]
    while stack:
        top = stack.pop()
        if top not in out:
            out.add(top)
            stack += [other for other in successors.get(top, ()) if other != join and other not in out]
    return out


def index_of(address: int, code: Sequence[Instruction]) -> int | None:
    """Return the index of the instruction at an address."""
    index, rest = divmod(address, INSTRUCTION_BYTES)
    return index if rest == 0 and index < len(code) else None
