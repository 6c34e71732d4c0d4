"""What is known of a thread's registers at a place in its code.

A value is a number, or *clean*: a function of thread, block and parameters that an emulator computes from the same
code. Everything else is unknown and is not kept. Some registers are clean only where a predicate holds, because a
compiler leaves old contents in the other threads and reads the register under the same predicate. For this, each
value that is given to a predicate has a symbol, of which the newest instance is meant; a *literal* is a symbol or its
negation. `Condition` is a disjunction of conjunctions of literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final


class Known(Enum):
    """How much is known of a word or a predicate that is no known number."""

    UNKNOWN = "nothing"
    CLEAN = "it follows from thread, block and parameters"
    EVEN = "so, and it is the same in all threads of a warp that hold it"


UNKNOWN: Final = Known.UNKNOWN
CLEAN: Final = Known.CLEAN
EVEN: Final = Known.EVEN

Constant = int | Known
Term = frozenset[int]
"""Literals that hold together: 2 * symbol + 1, or 2 * symbol for its negation."""
Condition = frozenset[Term]
ALWAYS: Final[Condition] = frozenset({frozenset()})
NEVER: Final[Condition] = frozenset()
Value = int | Known | Condition
"""A number (a bool for a predicate), CLEAN or EVEN; or clean where a condition holds, which is NEVER where unknown."""
MASK: Final = 0xFFFFFFFF
MOST_TERMS: Final = 4
MOST_LITERALS: Final = 4


@dataclass(frozen=True, slots=True)
class Bits:
    """A word: the bits that are clean, those of them that are known now, and what these are; literals that say of some
    bits whether they are set.
    """

    clean: int = 0
    known: int = 0
    value: int = 0
    tags: frozenset[tuple[int, int]] = frozenset()

    @property
    def whole(self) -> int | Known | None:
        """The same as a value, where all bits are clean; None otherwise."""
        if self.clean != MASK:
            return None
        return self.value if self.known == MASK else CLEAN

    @property
    def tells(self) -> bool:
        """Whether this says more than a value would."""
        return self.clean not in {0, MASK} or (self.known not in {0, MASK}) or bool(self.tags)

    @property
    def nonzero(self) -> int:
        """The literal that holds where the word is other than zero; 0 where there is none."""
        open_bits = ~(self.known & ~self.value) & MASK
        return dict(self.tags).get(open_bits.bit_length() - 1, 0) if open_bits and open_bits & open_bits - 1 == 0 else 0

    def either(self, other: Bits, literal: int | None = None) -> Bits:
        """Return what is known of a word that is this one where a literal holds, and another one where it does not; by
        a choice that is clean.
        """
        both_known = self.known & other.known
        differs = both_known & (self.value ^ other.value)
        tags = set(self.tags & other.tags)
        if literal is not None:
            tags |= {(n, literal ^ (not self.value >> n & 1)) for n in range(32) if differs >> n & 1}
        known = both_known & ~differs
        return Bits(self.clean & other.clean, known, self.value & known, frozenset(tags))


NOTHING: Final = Bits()


def bits_of(value: Value) -> Bits:
    """Return a value as bits."""
    if isinstance(value, frozenset) or value is UNKNOWN:
        return NOTHING
    return Bits(MASK) if isinstance(value, Known) else Bits(MASK, MASK, value & MASK)


@dataclass(slots=True)
class State:
    """What is known at a place.

    ``clean``: numbers, CLEAN and EVEN. ``conditional``: registers that are clean where a condition holds. ``partial``:
    what more is known of bits of registers. ``literals``: of predicates. ``facts``: literals that hold
    in each thread that comes here. ``implied``: literals that follow from one. ``together``: whether no warp's threads
    can have parted on the way.
    """

    clean: dict[str, int | Known] = field(default_factory=dict)
    conditional: dict[str, Condition] = field(default_factory=dict)
    literals: dict[str, int] = field(default_factory=dict)
    facts: Term = frozenset()
    implied: dict[int, Term] = field(default_factory=dict)
    together: bool = True
    partial: dict[str, Bits] = field(default_factory=dict)

    def copy(self) -> State:
        """Return a state that can be changed on its own."""
        return State(
            dict(self.clean),
            dict(self.conditional),
            dict(self.literals),
            self.facts,
            dict(self.implied),
            self.together,
            dict(self.partial),
        )

    def value(self, name: str, facts: Term) -> Value:
        """Return what is known of a register where ``facts`` hold."""
        value = self.clean.get(name)
        if value is not None:
            return value
        condition = self.conditional.get(name)
        return NEVER if condition is None else under(condition, facts)

    def put(self, name: str, value: Value) -> None:
        """Give a register a value; a predicate has no literal any more."""
        self.forget(name)
        if not isinstance(value, frozenset):
            self.clean[name] = value
        elif value == ALWAYS:
            self.clean[name] = CLEAN
        elif value:
            self.conditional[name] = value

    def forget(self, name: str) -> None:
        """Drop what is known of a register."""
        self.partial.pop(name, None)
        self.clean.pop(name, None)
        self.conditional.pop(name, None)
        self.literals.pop(name, None)

    def bits(self, name: str, facts: Term) -> Bits:
        """Return the bits of a register that are known where ``facts`` hold."""
        value = self.value(name, facts)
        if isinstance(value, int):
            return bits_of(value)
        return self.partial.get(name) or bits_of(value)

    @property
    def held_symbols(self) -> set[int]:
        """Symbols whose values a register still tells."""
        tags = {literal >> 1 for bits in self.partial.values() for _, literal in bits.tags}
        return tags | {literal >> 1 for literal in self.literals.values()}

    def held(self, condition: Condition) -> Condition:
        """Return a condition without what no register tells any more."""
        symbols = self.held_symbols
        return frozenset(term for term in condition if all(literal >> 1 in symbols for literal in term))

    def expire(self, symbol: int) -> None:
        """Drop what was said of a symbol, before it stands for a new value."""
        pair = {2 * symbol, 2 * symbol + 1}
        for name in [n for n, condition in self.conditional.items() if any(pair & term for term in condition)]:
            rest = frozenset(term for term in self.conditional[name] if not pair & term)
            if rest:
                self.conditional[name] = rest
            else:
                del self.conditional[name]
        for name in [n for n, literal in self.literals.items() if literal in pair]:
            del self.literals[name]
        for name, bits in self.partial.items():
            if any(literal in pair for _, literal in bits.tags):
                self.partial[name] = replace(bits, tags=frozenset(t for t in bits.tags if t[1] not in pair))
        self.facts -= pair
        for literal in pair:
            self.implied.pop(literal, None)
        for literal in [k for k, others in self.implied.items() if pair & others]:
            self.implied[literal] -= pair

    def with_facts(self, literals: Iterable[int]) -> Term:
        """Return the facts with some literals added, and with what they imply."""
        out = set(self.facts)
        work = [literal for literal in literals if literal not in out]
        while work:
            literal = work.pop()
            if literal not in out:
                out.add(literal)
                work += self.implied.get(literal, ())
        return frozenset(out)


def kept(terms: Iterable[Term]) -> Condition:
    """Return a condition without terms that say nothing; of too many, the shortest and newest."""
    out: list[Term] = []
    for term in sorted(set(terms), key=lambda t: (len(t), sorted(-literal for literal in t))):
        if len(term) > MOST_LITERALS or len(out) == MOST_TERMS:
            break
        if not any(literal ^ 1 in term for literal in term) and not any(other <= term for other in out):
            out.append(term)
    return frozenset(out)


def under(condition: Condition, facts: Term) -> Condition:
    """Return what remains of a condition where ``facts`` hold."""
    if not facts:
        return condition
    out = []
    for term in condition:
        rest = term - facts
        if not rest:
            return ALWAYS
        if not any(literal ^ 1 in facts for literal in rest):
            out.append(rest)
    return frozenset(out)


def both(a: Condition, b: Condition) -> Condition:
    """Return a condition under which two hold."""
    if a == ALWAYS:
        return b
    if b == ALWAYS:
        return a
    return kept(s | t for s in a for t in b)


def condition_of(value: Value) -> Condition:
    """Return where a value is clean."""
    return value if isinstance(value, frozenset) else ALWAYS


def chosen(literal: int | None, where: Value, otherwise: Value, *, even: bool) -> Value:
    """Return a value that is one where a literal holds, and another where it does not.

    Both are as they are known under that. ``even``: whether the choice is the same in all threads of a warp.
    """
    if not isinstance(where, frozenset) and not isinstance(otherwise, frozenset):
        if same(where, otherwise) and not isinstance(where, Known):
            return where
        return EVEN if even and where is not CLEAN and otherwise is not CLEAN else CLEAN
    yes, no = condition_of(where), condition_of(otherwise)
    terms = [s | t for s in yes for t in no]
    if literal is not None:
        terms += [term | {literal} for term in yes] + [term | {literal ^ 1} for term in no]
    return kept(terms)


def same(a: int | Known, b: int | Known) -> bool:
    """Return whether two values are the same number, or known equally well."""
    return a is b or (type(a) is type(b) and a == b)


def is_uniform(name: str) -> bool:
    """Return whether a register or predicate is one per warp."""
    return name.startswith("U")


def merged(states: Sequence[State], symbol_of: Callable[[str], int]) -> State:
    """Return what is known where threads come in any of these states; the states may be changed.

    ``symbol_of`` names the value that a predicate has here, for those that the states name differently. Symbols begin
    at 1.
    """
    if len(states) == 1:
        return states[0]
    literals = _renamed(states, symbol_of)
    common = frozenset.intersection(*(state.facts for state in states))
    out = State({}, {}, {}, common, {}, all(state.together for state in states))
    for literal in set.intersection(*(set(state.implied) for state in states)):
        if follows := frozenset.intersection(*(state.implied[literal] for state in states)):
            out.implied[literal] = follows
    partly = {name for state in states for name in (*state.conditional, *state.clean)}
    for name in set.intersection(*(set(state.clean) for state in states)):
        partly.discard(name)
        out.clean[name] = _joined(name, [state.clean[name] for state in states], out.together)
    for name in {name for state in states for name in state.partial}:
        bits = states[0].bits(name, states[0].facts)
        for state in states[1:]:
            bits = bits.either(state.bits(name, state.facts))
        if bits.tells and (out.together or not is_uniform(name)):
            out.partial[name] = bits
    held = out.held_symbols | {literal >> 1 for literal in literals.values()}
    for name, condition in _partly(states, partly, out, held).items():
        out.conditional[name] = condition
        if condition == ALWAYS:
            del out.conditional[name]
            out.clean[name] = CLEAN
    out.literals = {n: literal for n, literal in literals.items() if n in out.clean or n in out.conditional}
    return out


def _joined(name: str, values: Sequence[int | Known], together: bool) -> int | Known:
    """Return what is known of a register that has one of these values, all of them known or clean."""
    first = values[0]
    alike = all(same(first, value) for value in values[1:])
    if is_uniform(name):
        return first if alike else EVEN
    if alike and (first is not EVEN or together):
        return first
    return EVEN if together and CLEAN not in values else CLEAN


def _renamed(states: Sequence[State], symbol_of: Callable[[str], int]) -> dict[str, int]:
    """Return the literals of predicates where the states meet, and let each state name them so."""
    out: dict[str, int] = {}
    groups: dict[tuple[int | str, ...], list[str]] = {}
    for name in sorted({name for state in states for name in state.literals} | _decided(states)):
        place = [_place(name, state) for state in states]
        if all(p == place[0] for p in place):
            if place[0] > 1:
                out[name] = place[0]
        elif all(name in state.clean or name in state.conditional for state in states):
            groups.setdefault((*place, name if -1 in place else ""), []).append(name)
    unchanged = {literal >> 1 for literal in out.values()}
    names: list[dict[int, int]] = [{} for _ in states]
    held: list[set[int]] = [set() for _ in states]
    fresh = set()
    for group, members in groups.items():
        symbol = symbol_of(members[0])
        fresh.add(symbol)
        out |= dict.fromkeys(members, 2 * symbol + 1)
        for n, literal in enumerate(group[:-1]):
            if not isinstance(literal, int) or literal < 0:
                continue
            if literal < 2:
                held[n].add(2 * symbol + literal)
            elif literal >> 1 not in unchanged:
                names[n].setdefault(literal, 2 * symbol + 1)
                names[n].setdefault(literal ^ 1, 2 * symbol)
    for state, change, facts in zip(states, names, held, strict=True):
        _rename(state, change, fresh)
        state.facts |= facts
    return out


def _decided(states: Sequence[State]) -> set[str]:
    """Return predicates that are known in one state and not known so in another."""
    decided = {name for state in states for name, value in state.clean.items() if isinstance(value, bool)}
    return {name for name in decided if len({state.clean.get(name) for state in states}) > 1}


def _place(name: str, state: State) -> int:
    """Return a predicate's literal: 0 or 1 where its value is known, -1 where it has none."""
    value = state.clean.get(name)
    return int(value) if isinstance(value, bool) else state.literals.get(name, -1)


def _rename(state: State, change: dict[int, int], fresh: set[int]) -> None:
    """Rename a state's literals; those of symbols that now stand for something else are dropped."""
    if not change and not fresh:
        return

    def renamed(term: Term) -> Term | None:
        if any(literal >> 1 in fresh and literal not in change for literal in term):
            return None
        return frozenset(change.get(literal, literal) for literal in term)

    for name, condition in state.conditional.items():
        state.conditional[name] = frozenset(t for term in condition if (t := renamed(term)) is not None)
    state.facts = frozenset(t for literal in state.facts for t in renamed(frozenset({literal})) or ())
    implied = {}
    for literal, others in state.implied.items():
        if key := renamed(frozenset({literal})):
            implied[next(iter(key))] = frozenset(t for o in others for t in renamed(frozenset({o})) or ())
    state.implied = implied
    for name, bits in state.partial.items():
        if bits.tags:
            tags = frozenset((n, t) for n, literal in bits.tags for t in renamed(frozenset({literal})) or ())
            state.partial[name] = replace(bits, tags=tags)


def _partly(states: Sequence[State], names: Iterable[str], out: State, held: set[int]) -> dict[str, Condition]:
    """Return where registers are clean that are not clean in all states: where it is sure that threads with some
    literals came in a state in which they are.
    """
    excluded = [frozenset(frozenset({f ^ 1}) for f in state.facts - out.facts if f >> 1 in held) for state in states]
    result = {}
    for name in names:
        if is_uniform(name) and not out.together:
            continue
        condition = ALWAYS
        for state, terms in zip(states, excluded, strict=True):
            if name in state.clean:
                continue
            own = under(state.conditional.get(name, NEVER), state.facts)
            if own == ALWAYS:
                continue
            condition = both(condition, kept(t for t in own | terms if all(x >> 1 in held for x in t)))
            if not condition:
                break
        if condition:
            result[name] = under(condition, out.facts)
    return {name: condition for name, condition in result.items() if condition}
