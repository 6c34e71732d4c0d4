"""Proof that the addresses which a kernel touches follow from its machine code, parameters, grid and block alone.

The code is interpreted over what is known of a thread's registers (`knowledge`): sparse conditional constant
propagation, in which whatever comes from memory, or is not understood, is unknown. Where a branch depends on something
unknown, the ways may touch no global memory until they meet again, and what they write is unknown from there on.

It is assumed that a compiler made the code: a uniform register holds what each thread that reads it would have
computed by itself, although the threads of a warp share it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tileprof.record.cuda.code import flow
from tileprof.record.cuda.code.flow import End, Kind
from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES, Instruction
from tileprof.record.cuda.code.interpret import Guard, Interpreter, RefusedError
from tileprof.record.cuda.code.knowledge import ALWAYS, CLEAN, UNKNOWN, Constant, State, merged

__all__ = ["CLEAN", "UNKNOWN", "Constant", "Proven", "prove"]

Node = tuple[int, tuple[int, ...]]
"""A block of instructions, by its first, and the calls on the way to it."""
ENTRY: Final[Node] = (0, ())
MOST_STEPS: Final = 400_000
"""Instructions that are interpreted before a kernel is given up."""
MOST_NODES: Final = 20_000
MOST_CALLS: Final = 6
"""Calls inside one another."""
MOST_ROUNDS: Final = 12


@dataclass(frozen=True, slots=True)
class Proven:
    """Machine code whose accesses follow from the launch's parameters, grid and block.

    ``needed``: indices of the instructions that addresses, guards and branches depend on. ``joins``: where threads
    continue that come to a branch whose direction is not known; in between nothing touches global memory.
    """

    code: list[Instruction]
    needed: frozenset[int]
    joins: dict[int, int]


def prove(
    code: list[Instruction], constants: Callable[[int], Constant], relocated: frozenset[int] = frozenset()
) -> Proven | str:
    """Return what an emulator needs, or in words why the accesses do not follow.

    ``constants``: the 32-bit word at an offset of constant bank 0: a number, CLEAN (known at launch) or UNKNOWN.
    ``relocated``: offsets in the code of what is changed when it is loaded.
    """
    if any(not 0 <= offset < INSTRUCTION_BYTES * len(code) for offset in relocated):
        return "which instructions are changed when it is loaded is not known"
    try:
        places = frozenset(offset // INSTRUCTION_BYTES for offset in relocated)
        return _Proof(Interpreter(code, constants, places)).run(code)
    except RefusedError as refused:
        return str(refused)


@dataclass(slots=True)
class _Proof:
    """A search for a proof.

    ``unsure``: indices of branches whose direction is not known. ``lost``: what is unknown at the beginning of a block,
    because ways meet there whose choice is not known. ``edges``: what is known on each way from a block to another.
    ``leaves``: blocks that may end the thread. ``barriers``: where threads that wait may continue.
    """

    interpreter: Interpreter
    ends: dict[int, End] = field(default_factory=dict)
    blocks: dict[int, int] = field(default_factory=dict)
    barriers: dict[str, set[int]] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    lost: dict[Node, set[str]] = field(default_factory=dict)
    edges: dict[Node, dict[Node, State]] = field(default_factory=dict)
    leaves: set[Node] = field(default_factory=set)
    steps: int = 0

    def run(self, code: list[Instruction]) -> Proven:
        """Return the proof. Raises `RefusedError`."""
        if not code:
            raise RefusedError("there are no instructions")
        self.ends = flow.ends(code)
        self.blocks = flow.blocks(code, self.ends)
        for instruction in code:
            if pair := flow.barrier_target(instruction):
                self.barriers.setdefault(pair[0], set()).add(pair[1])
        if any(instruction.name == "BMOV" for instruction in code):
            everywhere = set().union(*self.barriers.values())
            self.barriers = dict.fromkeys((f"B{n}" for n in range(16)), everywhere)
        for _ in range(MOST_ROUNDS):
            before = set(self.unsure)
            self._interpret()
            joins, lost = self._joins()
            if self.unsure == before and all(names <= self.lost.get(node, set()) for node, names in lost.items()):
                return Proven(code, frozenset(self._needed(joins)), self._places(joins))
            for node, names in lost.items():
                self.lost.setdefault(node, set()).update(names)
        raise RefusedError("the analysis did not come to an end")

    # What the code may do.

    def _interpret(self) -> None:
        """Find all ways through the code, and what is known on each."""
        self.edges, self.leaves = {}, set()
        self.interpreter.touching.clear()
        self.interpreter.useful.clear()
        before: dict[Node, dict[Node | None, State]] = {ENTRY: {None: State()}}
        work, waiting = [ENTRY], {ENTRY}
        while work:
            node = heapq.heappop(work)
            waiting.discard(node)
            states = [state.copy() for state in before[node].values()]
            state = merged(states, partial(self.interpreter.symbol, "join", node))
            for name in self.lost.get(node, ()):
                state.forget(name)
            self.edges[node] = edges = self._through(node, state)
            if len(self.edges) > MOST_NODES:
                raise RefusedError("too many ways through the code")
            for other, after in edges.items():
                known = before.setdefault(other, {})
                if known.get(node) != after:
                    known[node] = after
                    if other not in waiting:
                        waiting.add(other)
                        heapq.heappush(work, other)

    def _through(self, node: Node, state: State) -> dict[Node, State]:
        """Return where a block leads, and with what; ``state`` is changed."""
        begin, calls = node
        stop = self.blocks[begin]
        end = self.ends.get(stop - 1)
        self.steps += stop - begin
        if self.steps > MOST_STEPS:
            raise RefusedError("the analysis takes too long")
        for n in range(begin, stop if end is None else stop - 1):
            self.interpreter.execute(n, calls, state)
        return self._on((stop, calls), state) if end is None else self._leave(stop - 1, end, node, state)

    def _on(self, node: Node, state: State) -> dict[Node, State]:
        if node[0] not in self.blocks:
            raise RefusedError("the code runs over its end")
        return {node: state}

    def _leave(self, n: int, end: End, node: Node, state: State) -> dict[Node, State]:
        """Return where an instruction that ends a block leads."""
        calls, after = node[1], (n + 1, node[1])
        guards = [self.interpreter.truth(name, negated, state, state.facts) for name, negated in end.conditions]
        if any(guard is False for guard in guards) and n not in self.unsure:
            return self._on(after, state)
        if end.kind is Kind.LOST:
            raise self.interpreter.refused(n, "it may continue anywhere")
        vague = [guard for guard in guards if guard is not True]
        known = [guard for guard in vague if isinstance(guard, Guard) and guard.condition == ALWAYS]
        sure = end.decided and len(known) == len(vague) and n not in self.unsure
        if end.kind is Kind.EXIT:
            self.leaves.add(node)
            if not sure:
                raise self.interpreter.refused(n, "whether it ends the thread depends on memory")
        elif self.interpreter.is_relocated(n):
            raise self.interpreter.refused(n, "its target is filled in when the code is loaded")
        targets = self._targets(n, end, calls, state)
        if end.kind is Kind.SYNC:
            if not targets:
                return self._on(after, state)
            sure = False  # an emulator takes it that threads that wait continue behind
        if sure and not known:
            return dict.fromkeys(targets, state)
        if not sure:
            self.unsure.add(n)
        other = state.copy()
        literals = [guard.literal for guard in known if guard.literal is not None]
        if sure and targets != [after]:
            if len(vague) == 1 and literals:
                other.facts = other.with_facts([literals[0] ^ 1])
            state.facts = state.with_facts(literals)
        if not sure or not all(guard.even for guard in known):
            state.together = other.together = False
        return {target: state.copy() for target in targets} | self._on(after, other)

    def _targets(self, n: int, end: End, calls: tuple[int, ...], state: State) -> list[Node]:
        """Return where an instruction that ends a block may go, other than on."""
        if end.kind is Kind.EXIT:
            return []
        if end.kind is Kind.CALL:
            if len(calls) >= MOST_CALLS:
                raise self.interpreter.refused(n, "too many calls inside one another")
            return [(end.target, (*calls, n))]
        if end.kind is Kind.RETURN:
            number = int(end.register.removeprefix("R"))
            low, high = (state.clean.get(f"R{number + i}") for i in (0, 1))
            place = self._place(low) if isinstance(low, int) and isinstance(high, int) and high == 0 else None
            if place is None:
                raise self.interpreter.refused(n, "it returns to an unknown place")
            return [(place, calls[:-1])]
        if end.kind is Kind.SYNC:
            address = state.clean.get(end.register)
            addresses = {address} if isinstance(address, int) else self.barriers.get(end.register, set())
            places = [self._place(address) for address in sorted(addresses)]
            if None in places or not places:
                raise self.interpreter.refused(n, "it continues at an unknown place")
            return [(place, calls) for place in places if place is not None and place != n + 1]
        return [(end.target, calls)]

    def _place(self, address: int) -> int | None:
        """Return the block that begins at an address."""
        index, rest = divmod(address, INSTRUCTION_BYTES)
        return index if rest == 0 and index in self.blocks else None

    # Where ways meet again, and what has to be computed.

    def _joins(self) -> tuple[dict[Node, Node], dict[Node, set[str]]]:
        """Return where ways meet after each branch whose direction is not known, and what is unknown there.

        Raises `RefusedError` where memory is touched before.
        """
        joins: dict[Node, Node] = {}
        lost: dict[Node, set[str]] = {}
        branches = [node for node in self.edges if self.blocks[node[0]] - 1 in self.unsure]
        if not branches:
            return joins, lost
        successors = {node: list(edges) for node, edges in self.edges.items()}
        over = flow.post_dominators(successors, self.leaves)
        touching = {(n, calls) for n, calls in self.interpreter.touching}
        for node in branches:
            branch = self.blocks[node[0]] - 1
            join = over.get(node)
            if join is None:
                raise self.interpreter.refused(
                    branch, "its direction depends on memory, and the ways do not meet again"
                )
            names = lost.setdefault(join, set())
            for begin, calls in flow.region(successors, node, join):
                for n in range(begin, self.blocks[begin]):
                    if (n, calls) in touching:
                        address = self.interpreter.code[n].address
                        raise self.interpreter.refused(
                            branch, f"its direction depends on memory, and so does {address:#x}"
                        )
                    if n not in self.ends:
                        plan = self.interpreter.plan(n)
                        names.update(plan.writes)
                        if plan.barrier is not None:
                            names.add(plan.barrier[0])
            joins[node] = join
        return joins, lost

    def _places(self, joins: dict[Node, Node]) -> dict[int, int]:
        """Return the same by indices of instructions."""
        out: dict[int, int] = {}
        for node, join in joins.items():
            branch = self.blocks[node[0]] - 1
            if out.setdefault(branch, join[0]) != join[0]:
                raise self.interpreter.refused(branch, "where its ways meet depends on the caller")
        return out

    def _needed(self, joins: dict[Node, Node]) -> set[int]:
        """Return the instructions whose results decide addresses, guards of accesses, and ways through the code."""
        onward = {node: [joins[node]] if node in joins else list(edges) for node, edges in self.edges.items()}
        before: dict[Node, list[Node]] = {}
        nodes, stack = {ENTRY}, [ENTRY]
        while stack:
            node = stack.pop()
            for other in onward[node]:
                before.setdefault(other, []).append(node)
                if other not in nodes:
                    nodes.add(other)
                    stack.append(other)
        needed: set[int] = set()
        live: dict[Node, set[str]] = {}
        work, waiting = [(-begin, calls) for begin, calls in nodes], set(nodes)
        heapq.heapify(work)
        while work:
            begin, calls = heapq.heappop(work)
            node = (-begin, calls)
            if node not in waiting:
                continue
            waiting.discard(node)
            names = set().union(*(live.get(other, ()) for other in onward[node]))
            for n in range(self.blocks[node[0]] - 1, node[0] - 1, -1):
                if n not in self.ends:
                    self._backward(n, names, needed)
                elif node not in joins or n != self.blocks[node[0]] - 1:
                    end = self.ends[n]
                    names.update(name for name, _ in end.conditions)
                    if end.kind is Kind.RETURN:
                        number = int(end.register.removeprefix("R"))
                        names.update((f"R{number}", f"R{number + 1}"))
            if names != live.get(node):
                live[node] = names
                for other in before.get(node, ()):
                    if other not in waiting:
                        waiting.add(other)
                        heapq.heappush(work, (-other[0], other[1]))
        return needed

    def _backward(self, n: int, live: set[str], needed: set[int]) -> None:
        """Change what is needed after an instruction to what is needed before it."""
        instruction, plan = self.interpreter.code[n], self.interpreter.plan(n)
        guards = {instruction.guard[0]} if instruction.guard is not None else set()
        computes = plan.step is not None and n in self.interpreter.useful and not live.isdisjoint(plan.writes)
        if not guards:
            live.difference_update(plan.writes)
        if computes:
            needed.add(n)
            live.update(read for read in plan.reads if isinstance(read, str))
            live.update(guards)
        if plan.access is not None:
            live.update(read for read in plan.access.reads if not read.startswith("c["))
            live.update(guards)
            if plan.access.condition is not None:
                live.add(plan.access.condition[0])
        live.difference_update(("PT", "UPT"))
