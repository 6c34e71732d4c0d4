"""Machine code as `traced` runs it: its instructions, where branches meet again, and what is worth to compute.

Worth to compute are the registers that decide an address, a predicate, or a word of shared memory that does; sums of
floats are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tileprof.record.cuda.code import flow
from tileprof.record.cuda.code.flow import End, Kind
from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES, Instruction, written_registers
from tileprof.record.cuda.code.semantics import Access, Step, access, estimate, is_harmless, step

TENSORS: Final = frozenset(("UTMALDG", "UTMASTG"))
"""Operations that load and store boxes through tensor maps."""
ACROSS: Final = frozenset(("VOTE", "VOTEU", "ELECT", "R2UR"))
"""Operations whose result depends on the warp's other threads."""
STORES_SHARED: Final = frozenset(("STS", "STSM", "STAS", "ATOMS", "SYNCS", "ARRIVES", "LDGSTS"))
GENERIC: Final = frozenset(("ST", "ATOM", "RED"))
"""Operations whose addresses may also lie in shared memory."""
_SHARED: Final = re.compile(r"\[(U?R\d+|U?RZ)?(?:\.64|\.U32)?(?:\+?(UR\d+|URZ))?(?:\+?(-?)0x([0-9a-f]+))?\]")
_NEAR: Final = 16
"""Instructions before a call among which the address behind it is moved to a register."""
_TENSOR: Final = re.compile(r"(UTMALDG|UTMASTG)\.([1-5])D(\.MULTICAST)?")


@dataclass(frozen=True, slots=True)
class SharedAddress:
    """An address in shared memory: a sum of registers and an offset."""

    registers: tuple[str, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A load or store through a tensor map: its first uniform register, that of the map's address, and coordinates."""

    loads: bool
    box: int
    map: int
    dimensions: int
    multicast: bool

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Registers of the coordinates: behind the places in shared memory, of a load of its barrier too."""
        begin = self.box + (2 if self.loads else 1)
        return tuple(f"UR{begin + n}" for n in range(self.dimensions))

    @property
    def address(self) -> tuple[str, str]:
        """Registers of the map's address."""
        return f"UR{self.map}", f"UR{self.map + 1}"


@dataclass(slots=True)
class Part:
    """One instruction. ``written``: all that it may write. ``worth``: whether something depends on its result.

    ``shared``: the address in shared memory that it names first, if that is one.
    """

    instruction: Instruction
    step: Step | None
    access: Access | None
    end: End | None
    written: tuple[str, ...]
    uniform: bool
    harmless: bool
    shared: SharedAddress | None
    tensor: Tensor | None
    worth: bool = False

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.instruction.name

    @property
    def loads_word(self) -> bool:
        """Whether it loads one word of shared memory."""
        return self.instruction.operation == "LDS" and len(self.instruction.operands) == 2 and self.shared is not None

    @property
    def stores_shared(self) -> bool:
        """Whether it may change shared memory, as far as instructions for that do."""
        kind = self.instruction.operation
        return (self.name in STORES_SHARED and not kind.startswith("SYNCS.PHASECHK")) or self.name in GENERIC

    @property
    def stored(self) -> str | None:
        """The register of which it stores one word in shared memory, if it does no more than that."""
        operands = self.instruction.operands
        if self.instruction.operation in {"STS", "STAS"} and len(operands) == 2:
            return operands[1].removesuffix(".reuse")
        return None


class Kernel:
    """Machine code, read for `traced.trace`."""

    def __init__(self, code: Sequence[Instruction], relocated: frozenset[int] = frozenset()) -> None:
        """Read code; ``relocated``: offsets of instructions that the loader changed in ways that are not known."""
        self.code = list(code)
        self.ends = flow.ends(self.code)
        moved = {at // INSTRUCTION_BYTES for at in relocated}
        self.parts = [_part(i, self.ends.get(n), n in moved) for n, i in enumerate(self.code)]
        self.understood = all(0 <= n < len(self.code) for n in moved)
        self._blocks = flow.blocks(self.code, self.ends)
        self._behind_calls = [n + 1 for n, end in self.ends.items() if end.kind is Kind.CALL]
        self._returning: dict[int, frozenset[int]] = {}
        self._returning = self._calls()
        self._repeats: dict[int, bool] = {}
        self._joins: dict[int, tuple[int, frozenset[int]] | None] = {}
        self._graph: tuple[dict[int, list[int]], dict[int, int | None]] | None = None
        self.slots = False
        self.live = self._liveness()
        if any(p.loads_word and p.worth for p in self.parts):
            self.slots = True
            self.live = self._liveness()
        self.next = self._next()

    def join(self, n: int) -> tuple[int, frozenset[int]] | None:
        """Return where both ways from a branch have met, and what may run in between; None if that is not harmless."""
        if n not in self._joins:
            self._joins[n] = self._joined(n)
        return self._joins[n]

    def _joined(self, n: int) -> tuple[int, frozenset[int]] | None:
        ends = self._blocks
        if self._graph is None:
            successors = {b: [m for m in self._goes(e - 1) if m < len(self.code)] for b, e in ends.items()}
            leaving = [b for b, e in ends.items() if not successors[b] or self._may_end(e - 1)]
            self._graph = successors, flow.post_dominators(successors, leaving)
        successors, over = self._graph
        block = max(b for b in ends if b <= n)
        join = over.get(block)
        if join is None:
            return None
        region = flow.region(successors, block, join)
        inside = {m for b in region for m in range(b, ends[b])}
        for call in [m for m in inside if m in self._returning]:
            inside |= self._returning[call]
        if not all(self._is_quiet(m) for m in inside):
            return None
        return (join, frozenset(inside)) if self._stays(region, {join}, successors[block]) else None

    def _stays(self, region: set[int], joins: set[int], entries: Sequence[int]) -> bool:
        """Return whether threads that wait for others in a region go on in it, or where it is left.

        They do where the barrier was set there, before, and wherever it was set there, it leads there.
        """
        ends = self._blocks
        waits = {self.code[ends[b] - 1].operands[0] for b in region if self._waits(ends[b] - 1)}
        for barrier in waits:
            set_in = set()
            for b in region:
                for m in range(b, ends[b]):
                    target = flow.barrier_target(self.code[m])
                    if target is not None and target[0] == barrier:
                        set_in.add(b)
                        if flow.index_of(target[1], self.code) not in region | joins:
                            return False
            seen: set[int] = set()
            stack = [b for b in entries if b not in joins]
            while stack:
                b = stack.pop()
                if b in seen or b in set_in:
                    continue
                seen.add(b)
                if self._waits(ends[b] - 1) and self.code[ends[b] - 1].operands[0] == barrier:
                    return False
                stack += [m for m in self._goes(ends[b] - 1) if m in region]
        return True

    def _waits(self, n: int) -> bool:
        end = self.ends.get(n)
        return end is not None and end.kind is Kind.SYNC

    def _may_end(self, n: int) -> bool:
        end = self.ends.get(n)
        return end is not None and end.kind in {Kind.EXIT, Kind.LOST}

    def _goes(self, n: int) -> list[int]:
        """Return instructions that may follow one, where a call that returns behind itself is one step."""
        return [n + 1] if n in self._returning else self.after(n)

    def _calls(self) -> dict[int, frozenset[int]]:
        """Return, per call that returns behind itself, the instructions that it may execute.

        It does where the address behind it was moved to the register of every return just before, and stays there.
        """
        out = {}
        for n, end in self.ends.items():
            if end.kind is not Kind.CALL or end.conditions:
                continue
            inside: set[int] = set()
            stack = [end.target]
            while stack:
                m = stack.pop()
                if m not in inside and m < len(self.code):
                    inside.add(m)
                    other = self.ends.get(m)
                    stack += [] if other is not None and other.kind is Kind.RETURN else self.after(m)
            registers = {self._came_from(self.ends[m].register, m) for m in inside if self._returns(m)}
            conditional = any(self.ends[m].conditions for m in inside if self._returns(m))
            address = self.code[n].address + INSTRUCTION_BYTES
            if len(registers) != 1 or conditional or not self._holds(n, next(iter(registers)), address):
                continue
            nested = any(self.ends[m].kind is Kind.CALL for m in inside if m in self.ends)
            kept = not any(next(iter(registers)) in self.parts[m].written for m in inside)
            heads = {m for m in inside if m in self._blocks}
            if kept and not nested and self._stays(heads, set(), [end.target]):
                out[n] = frozenset(inside)
        return out

    def _returns(self, n: int) -> bool:
        end = self.ends.get(n)
        return end is not None and end.kind is Kind.RETURN

    def _came_from(self, register: str, n: int) -> str:
        """Return the register from which one was moved before an instruction, as far as that is sure."""
        for m in range(n - 1, max(n - _NEAR, 0) - 1, -1):
            part = self.parts[m]
            if part.end is not None or m + 1 in self._blocks:
                break
            if register in part.written:
                words = [o.removesuffix(".reuse") for o in part.instruction.operands]
                if part.instruction.guard is not None or part.step is None or words[0] != register:
                    break
                if part.instruction.operation == "MOV" or (
                    part.instruction.operation in {"IMAD.MOV.U32", "IMAD.MOV"} and words[1:3] == ["RZ", "RZ"]
                ):
                    return words[-1]
                break
        return register

    def _holds(self, n: int, register: str, number: int) -> bool:
        """Return whether a register was given a number just before an instruction, in any case."""
        for m in range(n - 1, max(n - _NEAR, 0) - 1, -1):
            part = self.parts[m]
            if part.end is not None or m + 1 in self._blocks:
                return False
            if register in part.written:
                words = part.instruction.operands
                moved = part.instruction.operation == "MOV" and part.instruction.guard is None
                return moved and part.step is not None and words == (register, f"{number:#x}")
        return False

    def after(self, n: int) -> list[int]:
        """Return instructions that may follow one."""
        end = self.ends.get(n)
        if end is None or end.kind is Kind.SYNC:
            return [n + 1]
        always = not end.conditions and end.decided
        if end.kind is Kind.RETURN:
            return [*self._behind_calls, *([] if always else [n + 1])]
        if end.kind in {Kind.BRANCH, Kind.CALL}:
            return [end.target] if always else [end.target, n + 1]
        return [] if always else [n + 1]

    def _is_quiet(self, n: int) -> bool:
        """Return whether an instruction touches nothing but registers, and goes nowhere but to others in its region."""
        part = self.parts[n]
        goes = part.end is not None and (
            (part.end.kind not in {Kind.BRANCH, Kind.CALL, Kind.RETURN, Kind.SYNC})
            or (part.end.kind is Kind.BRANCH and part.end.target < 0)
            or (part.end.kind is Kind.CALL and n not in self._returning)
            or (part.end.kind is Kind.SYNC and bool(part.end.conditions))
        )
        calls = part.end is not None and part.end.kind in {Kind.CALL, Kind.RETURN}
        return not goes and part.access is None and (part.harmless or calls) and not part.stores_shared

    def repeats(self, n: int) -> bool:
        """Return whether a branch repeats only what does the same again: nothing depends on what it writes.

        Compilers execute an instruction with uniform operands so, once for each thread that is there.
        """
        if n not in self._repeats:
            self._repeats[n] = self._repeated(n)
        return self._repeats[n]

    def _repeated(self, n: int) -> bool:
        end = self.ends[n]
        body = range(end.target, n)
        if end.kind is not Kind.BRANCH or end.target < 0 or not body:
            return False
        if any(m in self.ends or (m > end.target and m in self._blocks) for m in body):
            return False
        written = {name for m in body for name in self.parts[m].written}
        for m in body:
            part = self.parts[m]
            guard = {part.instruction.guard[0]} if part.instruction.guard is not None else set()
            if self._has_effect(part) and written & {*self._effect(part), *guard}:
                return False
        return True

    # What is worth to compute

    def _liveness(self) -> list[frozenset[str]]:
        """Return names that matter before each instruction, and mark instructions that are worth to compute."""
        bit: dict[str, int] = {}

        def bits(names: Sequence[str]) -> int:
            out = 0
            for name in names:
                if name[0] in "RPUB" and name not in {"RZ", "URZ", "PT", "UPT"}:
                    out |= 1 << bit.setdefault(name, len(bit))
            return out

        effect, reads, writes, sure = [], [], [], []
        for part in self.parts:
            guard = [part.instruction.guard[0]] if part.instruction.guard is not None else []
            reads.append(bits([*self._reads(part), *guard]))
            effect.append(bits([*self._effect(part), *guard]) if self._has_effect(part) else 0)
            writes.append(bits(part.written))
            sure.append(0 if guard or part.end is not None else ~bits(part.written))
        following = [self.after(n) for n in range(len(self.code))]
        live = [0] * (len(self.code) + 1)
        changed = True
        while changed:
            changed = False
            for n in range(len(self.code) - 1, -1, -1):
                later = 0
                for m in following[n]:
                    later |= live[m]
                now = later & sure[n] if sure[n] else later
                now |= effect[n] | (reads[n] if later & writes[n] else 0)
                if now != live[n]:
                    live[n], changed = now, True
        for n, part in enumerate(self.parts):
            later = 0
            for m in following[n]:
                later |= live[m]
            part.worth = bool(later & writes[n])
        names = list(bit)
        cache: dict[int, frozenset[str]] = {}
        for value in live:
            if value not in cache:
                cache[value] = frozenset(name for k, name in enumerate(names) if value >> k & 1)
        return [cache[value] for value in live]

    def _has_effect(self, part: Part) -> bool:
        return (
            part.end is not None
            or part.access is not None
            or part.tensor is not None
            or not part.harmless
            or (self.slots and part.stores_shared)
        )

    def _effect(self, part: Part) -> list[str]:
        """Return names that decide what an instruction does other than to write registers."""
        out: list[str] = []
        if part.end is not None:
            out += [name for name, _ in part.end.conditions]
            if part.end.kind in {Kind.RETURN, Kind.SYNC}:
                out.append(part.end.register)
            if part.end.kind is Kind.RETURN:
                out.append(following(part.end.register))
        if part.access is not None:
            out += part.access.reads
            if part.access.condition is not None:
                out.append(part.access.condition[0])
        if part.tensor is not None:
            out += [*part.tensor.address, *part.tensor.coordinates]
            if self.slots and part.tensor.loads:
                out += [f"UR{part.tensor.box}", f"UR{part.tensor.box + 1}"]
        if self.slots and part.stores_shared:
            out += part.shared.registers if part.shared is not None else ()
            out += [part.stored] if part.stored is not None else []
            if part.name == "STAS" and part.shared is not None and part.shared.registers:
                out.append(following(part.shared.registers[0]))
        return out

    def _reads(self, part: Part) -> list[str]:
        """Return names that decide the registers that an instruction writes."""
        if part.step is not None:
            return list(part.step.reads)
        if part.loads_word and part.shared is not None:
            return list(part.shared.registers)
        if part.name in ACROSS:
            return [o.lstrip("!") for o in part.instruction.operands[1:]]
        return []

    def _next(self) -> list[int]:
        """Return, per instruction, the first from it on that has to be looked at."""
        out = [len(self.code)] * (len(self.code) + 1)
        for n in range(len(self.code) - 1, -1, -1):
            part = self.parts[n]
            looked = part.worth or self._has_effect(part) or part.name == "BSSY"
            out[n] = n if looked else out[n + 1]
        return out


def following(register: str) -> str:
    """Return the name of the register after one."""
    kind = register.rstrip("0123456789")
    return f"{kind}{int(register[len(kind) :]) + 1}" if register[len(kind) :] else register


def _part(i: Instruction, end: End | None, moved: bool) -> Part:
    harmless = is_harmless(i)
    lost = moved and (end is not None or not harmless or i.name in STORES_SHARED | ACROSS | {"LDS"})
    known = None if moved else step(i) or estimate(i)
    written = tuple(() if end is not None else _written(i) if known is None else known.writes)
    found = None if moved else access(i)
    tensor = None if moved else _tensor(i)
    return Part(i, known, found, End(Kind.LOST) if lost else end, written, _is_uniform(i), harmless, _shared(i), tensor)


def _is_uniform(instruction: Instruction) -> bool:
    """Return whether an instruction works on uniform registers alone, or writes one."""
    name = instruction.name
    return (name[0] == "U" and name not in TENSORS) or name in {"R2UR", "S2UR"}


def _shared(instruction: Instruction) -> SharedAddress | None:
    operand = next((o for o in instruction.operands if o.startswith("[")), "")
    match = _SHARED.fullmatch(operand)
    if match is None:
        return None
    registers = tuple(name for name in (match[1], match[2]) if name and not name.endswith("Z"))
    return SharedAddress(registers, (-1 if match[3] else 1) * int(match[4] or "0", 16))


def _tensor(instruction: Instruction) -> Tensor | None:
    match = _TENSOR.fullmatch(instruction.operation)
    registers = [re.fullmatch(r"\[UR(\d+)\]", o) for o in instruction.operands[:2]]
    if match is None or len(registers) != 2 or registers[0] is None or registers[1] is None:
        return None
    return Tensor(match[1] == "UTMALDG", int(registers[0][1]), int(registers[1][1]), int(match[2]), bool(match[3]))


_GROUP_PRODUCT: Final = re.compile(r"[HQIB]GMMA(?:\.SP)?\.64x(\d+)x\d+\.(F32|F16|S32)\b.*")


def _written(instruction: Instruction) -> list[str]:
    """Return all registers, predicates and barriers that an instruction may write, or more."""
    name, operands = instruction.name, instruction.operands
    if (match := _GROUP_PRODUCT.fullmatch(instruction.operation)) and operands:
        target = re.fullmatch(r"R(\d+)", operands[0])
        if target is not None:
            words = int(match[1]) // (4 if match[2] == "F16" else 2)
            return [f"R{int(target[1]) + n}" for n in range(words)]
    if name == "USETMAXREG":
        return [o for o in operands if re.fullmatch(r"UP\d", o)]
    barriers = [o for o in operands if re.fullmatch(r"B\d+", o)]
    if name == "BSSY":
        return barriers
    if name in {"VOTE", "VOTEU", "ELECT"} and operands:  # the last one is read
        return [o for o in operands[:-1] if re.fullmatch(r"U?[RP]\d+", o)]
    if name in {"SYNCS", "LDG", "LDS"} and operands:
        kinds = instruction.operation.split(".")
        words = 4 if "128" in kinds else 2 if "64" in kinds else 1
        target = re.fullmatch(r"(UR|R|UP|P)(\d+)", operands[0])
        if target is None and operands[0] in {"RZ", "URZ", "PT", "UPT"}:
            return []
        if target is not None and ("R" in target[1] or name == "SYNCS"):
            return [f"{target[1]}{int(target[2]) + n}" for n in range(words if "R" in target[1] else 1)]
    return [*written_registers(instruction), *(barriers if name == "BMOV" else [])]
