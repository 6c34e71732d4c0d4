"""What is known after an instruction, from what was known before it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from tileprof.record.cuda.code import bits, flow, semantics
from tileprof.record.cuda.code.instructions import Instruction, written_registers
from tileprof.record.cuda.code.knowledge import (
    ALWAYS,
    CLEAN,
    EVEN,
    MASK,
    NEVER,
    NOTHING,
    UNKNOWN,
    Bits,
    Condition,
    Constant,
    Known,
    State,
    Term,
    Value,
    bits_of,
    both,
    chosen,
    condition_of,
    is_uniform,
    same,
)


class RefusedError(Exception):
    """A proof is not possible; its words say why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of an instruction without its operands' values.

    ``reads``: names of what its step reads, or constants. ``writes``: all that it may write, which a step computes.
    """

    step: semantics.Step | None
    access: semantics.Access | None
    reads: tuple[str | Constant, ...]
    writes: tuple[str, ...]
    barrier: tuple[str, int] | None
    harmless: bool


@dataclass(frozen=True, slots=True)
class Guard:
    """A predicate that is no known number: where it is clean, its literal, whether the threads of a warp agree."""

    condition: Condition
    literal: int | None
    even: bool


STORES: Final = frozenset(("STG", "ST", "STL", "STS", "RED", "REDG", "LDGSTS"))
"""Operations that write no register."""
_PER_THREAD: Final = frozenset((*(f"SR_TID.{axis}" for axis in "XYZ"), "SR_LANEID"))
_PER_BLOCK: Final = frozenset(f"SR_CTAID.{axis}" for axis in "XYZ")


@dataclass(slots=True)
class Interpreter:
    """A kernel's code, with the words of its constant bank 0; ``relocated``: offsets of what the loader changes."""

    code: Sequence[Instruction]
    constants: Callable[[int], Constant]
    relocated: frozenset[int]
    plans: dict[int, Plan] = field(default_factory=dict)
    touching: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    """Accesses that were interpreted, with the calls around them."""
    useful: set[int] = field(default_factory=set)
    """Instructions of whose results something is known, somewhere."""
    symbols: dict[tuple[object, ...], int] = field(default_factory=dict)

    def symbol(self, *key: object) -> int:
        """Return the symbol of the values that a predicate gets in one place."""
        return self.symbols.setdefault(key, len(self.symbols) + 1)

    def is_relocated(self, n: int) -> bool:
        """Return whether the loader changes an instruction."""
        return n in self.relocated

    def refused(self, n: int, why: str) -> RefusedError:
        """Return the refusal of an instruction."""
        instruction = self.code[n]
        return RefusedError(f"{instruction.operation} at {instruction.address:#x}: {why}")

    def plan(self, n: int) -> Plan:
        """Return what is known of an instruction in advance."""
        plan = self.plans.get(n)
        if plan is None:
            plan = self.plans[n] = self._planned(n)
        return plan

    def _planned(self, n: int) -> Plan:
        instruction = self.code[n]
        relocated = self.is_relocated(n)
        access = semantics.access(instruction)
        if relocated and access is not None:
            raise self.refused(n, "its address is filled in when the code is loaded")
        step = None
        if not relocated and access is None:
            step = semantics.step(instruction) or semantics.estimate(instruction)
        if step is None and not relocated:
            step = semantics.estimate(instruction)
        reads: tuple[str | Constant, ...] = ()
        if step is not None:
            reads = tuple(self._constant(name) for name in step.reads)
            writes = step.writes
        elif instruction.name in STORES or instruction.name == "BSSY":
            writes = ()
        else:
            writes = tuple(written_registers(instruction))
            if instruction.name == "BMOV":
                writes += tuple(operand for operand in instruction.operands if operand.startswith("B"))
        barrier = flow.barrier_target(instruction)
        return Plan(step, access, reads, writes, barrier, access is None and semantics.is_harmless(instruction))

    def _constant(self, name: str) -> str | Constant:
        """Return what is known of a name that is no register, else the name."""
        if name.startswith("c["):
            value = self.constants(int(name[2:-1], 16))
            return EVEN if value is CLEAN else value  # all threads read the same word
        if name.startswith("SR_"):
            return CLEAN if name in _PER_THREAD else EVEN if name in _PER_BLOCK else UNKNOWN
        return name

    def truth(self, name: str, negated: bool, state: State, facts: Term) -> bool | Guard | None:
        """Return what is known of a predicate (negated, perhaps) where ``facts`` hold; None where that is nothing."""
        if name in {"PT", "UPT"}:
            return not negated
        value = state.value(name, facts)
        if isinstance(value, bool):
            return value != negated
        literal = state.literals.get(name)
        if literal is not None:
            literal ^= negated
            if value and literal in facts:
                return True
            if value and literal ^ 1 in facts:
                return False
        if isinstance(value, frozenset):
            return Guard(value, literal, is_uniform(name)) if value else None
        return Guard(ALWAYS, literal, value is EVEN or is_uniform(name))

    def execute(self, n: int, calls: tuple[int, ...], state: State) -> None:
        """Change a state to what is known after an instruction.

        Raises `RefusedError` where it may touch memory at addresses that are not known.
        """
        instruction, plan = self.code[n], self.plan(n)
        facts, guard = state.facts, None
        if instruction.guard is not None:
            truth = self.truth(*instruction.guard, state, facts)
            if truth is False:
                return
            if truth is not True:
                guard = truth or Guard(NEVER, None, False)
                if guard.literal is not None:
                    facts = state.with_facts([guard.literal])
        if plan.access is not None:
            self.touching.add((n, calls))
            self._check(n, plan.access, state, guard, facts)
        elif not plan.harmless and plan.step is None:
            raise self.refused(n, "what it touches is not known")
        if plan.barrier is not None:
            state.put(plan.barrier[0], plan.barrier[1] if guard is None else NEVER)
        if not plan.writes:
            return
        results = list(self._results(plan, state, facts, guard))
        words: dict[str, Bits] = {}
        if plan.step is not None and bits.may_tell(instruction, results, state):
            words = bits.results(instruction, partial(self._bits, state, facts))
            for i, name in enumerate(plan.writes):
                whole = bits.value(name, words[name]) if name in words else NEVER
                if isinstance(results[i], frozenset) and whole != NEVER:
                    results[i] = whole
        if any(result != NEVER for result in results) or any(word.clean for word in words.values()):
            self.useful.add(n)
        meanings = _meanings(instruction, plan, state) if guard is None and plan.step is not None else {}
        if guard is None:
            meanings |= {n: _Meaning(literal) for n, word in words.items() if (literal := dict(word.tags).get(0, 0))}
        before = {name: state.bits(name, state.facts) for name in plan.writes if name in words or name in state.partial}
        for name, result in zip(plan.writes, results, strict=True):
            self._write(name, result, guard, state)
            if name in before and plan.step is not None:
                self._write_bits(name, words.get(name) or bits_of(result), before[name], guard, state)
        predicates = [name for name in plan.writes if _is_predicate(name)]
        symbols = {name: self.symbol("write", n, calls, name) for name in predicates}
        for symbol in symbols.values():
            state.expire(symbol)
        for name in plan.writes:
            meaning = meanings.get(name, _NO_MEANING)
            if isinstance(state.clean.get(name), bool) or (name not in state.clean and name not in state.conditional):
                continue
            if name not in symbols:
                continue
            if meaning.literal and meaning.literal >> 1 not in symbols.values():
                state.literals[name] = meaning.literal
            else:
                literal = 2 * symbols[name] + 1
                state.literals[name] = literal
                for key, follows in ((literal, meaning.if_true), (literal ^ 1, meaning.if_false)):
                    if follows := frozenset(other for other in follows if other >> 1 not in symbols.values()):
                        state.implied[key] = follows

    def _write_bits(self, name: str, word: Bits, before: Bits, guard: Guard | None, state: State) -> None:
        """Give a register bits, beside what it is as a whole."""
        if guard is not None:
            sure = guard.condition == ALWAYS and (guard.even or not is_uniform(name))
            word = word.either(before, guard.literal) if sure else NOTHING
        if word.tells and not _is_predicate(name) and not isinstance(state.clean.get(name), int):
            state.partial[name] = word

    def _bits(self, state: State, facts: Term, operand: str) -> Bits:
        """Return what is known of an operand's bits."""
        operand = operand.removesuffix(".reuse")
        if operand in {"RZ", "URZ"}:
            return bits_of(0)
        if re.fullmatch(r"-?0x[0-9a-f]+", operand):
            return bits_of(int(operand, 16))
        if match := re.fullmatch(r"c\[0x0\]\[0x([0-9a-f]+)\]", operand):
            return bits_of(self.constants(int(match[1], 16)))
        if not re.fullmatch(r"U?[RP]\d+", operand):
            return NOTHING
        word, literal = state.bits(operand, facts), state.literals.get(operand)
        return word if literal is None or word.known == MASK else replace(word, tags=frozenset({(0, literal)}))

    def _check(self, n: int, access: semantics.Access, state: State, guard: Guard | None, facts: Term) -> None:
        """Raise `RefusedError` unless an access's addresses and the threads that make it are known."""
        if guard is not None and guard.condition != ALWAYS:
            raise self.refused(n, "whether it is executed depends on memory")
        if access.condition is not None:
            truth = self.truth(*access.condition, state, facts)
            if truth is False:
                return
            if truth is None or (truth is not True and truth.condition != ALWAYS):
                raise self.refused(n, "whether it touches memory depends on memory")
            if truth is not True and truth.literal is not None:
                facts = State(facts=facts, implied=state.implied).with_facts([truth.literal])
        for read in access.reads:
            constant = self._constant(read)
            value = state.value(constant, facts) if isinstance(constant, str) else constant
            if value is UNKNOWN or (isinstance(value, frozenset) and value != ALWAYS):
                raise self.refused(n, f"its address depends on memory, by {read}")

    def _results(self, plan: Plan, state: State, facts: Term, guard: Guard | None) -> Sequence[Value]:
        """Return what is known of an instruction's results, where it is executed."""
        nothing = (NEVER,) * len(plan.writes)
        step = plan.step
        if step is None:
            return nothing
        values = [state.value(read, facts) if isinstance(read, str) else read for read in plan.reads]
        if step.indexed is not None:
            loaded = self._loaded(step.indexed, values[0])
            values += loaded
        if step.source_lane is not None and (
            step.source_lane != 0 or not state.together or (guard is not None and not guard.even)
        ):
            return nothing
        condition, even, numbers = ALWAYS, True, True
        for value in values:
            if isinstance(value, frozenset):
                condition = both(condition, value)
                even = numbers = False
                if not condition:
                    return self._in_part(step, values) or nothing
            elif value is UNKNOWN:
                return self._in_part(step, values) or nothing
            elif isinstance(value, Known):
                even, numbers = even and value is EVEN, False
        if numbers and not step.estimates:
            return [_number(result) for result in step.run([v for v in values if isinstance(v, int)])]
        if step.source_lane is not None:
            return (EVEN,) * len(plan.writes) if condition == ALWAYS else nothing
        if condition != ALWAYS:
            return (condition,) * len(plan.writes)
        if partly := self._in_part(step, values):
            return partly
        return tuple(EVEN if even or is_uniform(name) else CLEAN for name in plan.writes)

    def _loaded(self, indexed: semantics.Indexed, offset: Value) -> list[Value]:
        """Return what is known of the words that an instruction loads from the constant bank at a computed offset.

        An emulator gives up where such a word lies outside of the parameters.
        """
        if not isinstance(offset, int):
            return [EVEN] * indexed.words
        at = (offset + indexed.offset) % (1 << 32) // 4 * 4
        return [self.constants(at + 4 * i) for i in range(indexed.words)]

    def _in_part(self, step: semantics.Step, values: Sequence[Value]) -> Sequence[Value] | None:
        """Return the results of a step on predicates alone, where they do not depend on all of them; else None."""
        if not step.reads or any(name.lstrip("U")[0] != "P" for name in step.reads):
            return None
        choices = [(value,) if isinstance(value, bool) else (False, True) for value in values]
        rows = [(row, step.run(row)) for row in itertools.product(*choices)]
        vague = [i for i, v in enumerate(values) if v is UNKNOWN or (isinstance(v, frozenset) and v != ALWAYS)]
        even = all(isinstance(v, bool) or v is EVEN for i, v in enumerate(values) if i not in vague)
        out: list[Value] = []
        for n, name in enumerate(step.writes):
            results = {_number(result[n]) for _, result in rows}
            if len(results) == 1:
                out.append(results.pop())
                continue
            by_rest: dict[tuple[object, ...], set[int]] = {}
            for row, result in rows:
                rest = tuple(v for i, v in enumerate(row) if i not in vague)
                by_rest.setdefault(rest, set()).add(_number(result[n]))
            clear = all(len(found) == 1 for found in by_rest.values())
            out.append((EVEN if even or is_uniform(name) else CLEAN) if clear else NEVER)
        return out

    def _write(self, name: str, result: Value, guard: Guard | None, state: State) -> None:
        """Give a register its value, where a guard (None: none) holds."""
        if isinstance(result, Known) and result is not UNKNOWN and is_uniform(name):
            result = EVEN
        if guard is None:
            state.put(name, result)
            return
        literal = guard.literal
        before = state.value(name, state.facts if literal is None else state.with_facts([literal ^ 1]))
        if isinstance(before, int) and isinstance(result, int) and same(before, result):
            return
        if is_uniform(name) and not guard.even:
            before = NEVER  # the other threads of the warp see the new value, or the old one
        if isinstance(before, frozenset):
            before = state.held(before)
        value = chosen(literal, result, before, even=guard.even)
        if guard.condition != ALWAYS:
            value = both(guard.condition, condition_of(value))
        state.put(name, value)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A literal that is equal to a predicate (or to a register being other than zero), 0: none; and literals that
    follow where the predicate is true, and where it is false.
    """

    literal: int = 0
    if_true: Term = frozenset()
    if_false: Term = frozenset()


_NO_MEANING: Final = _Meaning()


def _is_predicate(name: str) -> bool:
    return name.removeprefix("U").startswith("P")


def _number(result: semantics.Word | semantics.Flag) -> int:
    """Return a result for all lanes as a number."""
    return bool(result) if isinstance(result, bool | np.bool_) else int(result)


def _literal(operand: str, state: State) -> int:
    """Return the literal of a predicate that is an operand; 0 where it has none."""
    literal = state.literals.get(operand.lstrip("!"), 0)
    return literal ^ operand.startswith("!") if literal else 0


def _meanings(instruction: Instruction, plan: Plan, state: State) -> dict[str, _Meaning]:
    """Return what predicates that an instruction writes have to do with those that it reads."""
    name, operands = instruction.name, instruction.operands
    if name in {"ISETP", "UISETP"} and len(operands) >= 5:
        return _of_comparison(instruction, state)
    if plan.step is not None and plan.reads and all(_is_predicate(read) for read in plan.step.reads):
        return _of_table(plan.step, state)
    return {}


def _of_comparison(instruction: Instruction, state: State) -> dict[str, _Meaning]:
    """``ISETP.NE.AND P0, P1, a, b, P2``: P0 is the comparison and P2, P1 its opposite and P2."""
    first, second, a, b, other, *_ = instruction.operands
    kinds = instruction.operation.split(".")[1:]
    if b in {"RZ", "URZ"} and other in {"PT", "UPT"} and kinds[0] in {"NE", "EQ"} and "EX" not in kinds:
        word = state.partial.get(a.removesuffix(".reuse"), NOTHING)
        if literal := word.nonzero:
            literal ^= kinds[0] == "EQ"
            return {first: _Meaning(literal), second: _Meaning(literal ^ 1)}
    if literal := _literal(other, state):
        if "AND" in kinds:
            meaning = _Meaning(if_true=frozenset({literal}))
        elif "OR" in kinds:
            meaning = _Meaning(if_false=frozenset({literal ^ 1}))
        else:
            return {}
        return {first: meaning, second: meaning}
    return {}


def _of_table(step: semantics.Step, state: State) -> dict[str, _Meaning]:
    """A step on predicates alone: what follows from each result."""
    literals = [state.literals.get(name, 0) for name in step.reads]
    fixed = [state.clean.get(name) for name in step.reads]
    choices = [(value,) if isinstance(value, bool) else (False, True) for value in fixed]
    rows = [(row, step.run(row)) for row in itertools.product(*choices)]
    out = {}
    for n, name in enumerate(step.writes):
        follows: dict[bool, set[int]] = {}
        for outcome in (False, True):
            inputs = [row for row, result in rows if bool(result[n]) == outcome]
            follows[outcome] = {
                literal ^ (not inputs[0][i])
                for i, literal in enumerate(literals)
                if literal and inputs and len({row[i] for row in inputs}) == 1
            }
        equal = [literal for literal in follows[True] if literal ^ 1 in follows[False]]
        out[name] = _Meaning(equal[0] if equal else 0, frozenset(follows[True]), frozenset(follows[False]))
    return out
