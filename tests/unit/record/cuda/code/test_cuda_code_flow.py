"""Blocks of machine code, and where ways through it meet, compared with a search of all ways."""

import itertools
import random

import pytest

from tileprof.record.cuda.code import flow
from tileprof.record.cuda.code.flow import Kind
from tileprof.record.cuda.code.instructions import parse


def code_of(*lines):
    return parse("\n".join(f"        /*{16 * n:04x}*/  {line} ;" for n, line in enumerate(lines)))


@pytest.mark.parametrize(
    ("line", "kind", "target", "conditions", "decided"),
    [
        ("BRA 0x10", Kind.BRANCH, 1, (), True),
        ("@!P0 BRA 0x10", Kind.BRANCH, 1, (("P0", True),), True),
        ("@P0 BRA !P1, 0x10", Kind.BRANCH, 1, (("P0", False), ("P1", True)), True),
        ("BRA.U UP0, 0x10", Kind.BRANCH, 1, (("UP0", False),), True),
        ("BRA.DIV UR4, 0x10", Kind.BRANCH, 1, (), False),
        ("BRA.CONV ~URZ, 0x10", Kind.BRANCH, 1, (), False),
        ("BRA 0x999990", Kind.LOST, -1, (), True),
        ("@P0 EXIT", Kind.EXIT, -1, (("P0", False),), True),
        ("EXIT.UNHEARDOF", Kind.EXIT, -1, (), False),
        ("CALL.REL.NOINC 0x10", Kind.CALL, 1, (), True),
        ("CALL.ABS.NOINC R2", Kind.LOST, -1, (), True),
        ("RET.REL.NODEC R6 0x0", Kind.RETURN, -1, (), True),
        ("RET.REL.NODEC R6 -0x1e11d0", Kind.LOST, -1, (), True),
        ("RET.ABS.NODEC R6 0x0", Kind.LOST, -1, (), True),
        ("BRX R2 -0x40", Kind.LOST, -1, (), True),
        ("JMP 0x10", Kind.LOST, -1, (), True),
        ("WARPSYNC.COLLECTIVE R4, 0x10", Kind.BRANCH, 1, (), False),
        ("BSYNC B0", Kind.SYNC, -1, (), True),
    ],
)
def test_how_instructions_end_a_block(line, kind, target, conditions, decided):
    end = flow.ends(code_of(line, "NOP"))[0]
    assert (end.kind, end.target, end.conditions, end.decided) == (kind, target, conditions, decided)


@pytest.mark.parametrize(
    "line", ["NOP", "WARPSYNC.ALL", "WARPSYNC R0", "BAR.SYNC.DEFER_BLOCKING 0x0", "BREAK B1", "YIELD"]
)
def test_what_continues_with_the_next_instruction(line):
    assert not flow.ends(code_of(line))


def test_blocks_begin_where_something_continues():
    code = code_of("BSSY B0, 0x50", "@P0 BRA 0x40", "MOV R2, 0x60", "CALL.REL.NOINC 0x70", "BSYNC B0", "NOP", "EXIT",
                   "RET.REL.NODEC R2 0x0")  # fmt: skip
    assert flow.blocks(code, flow.ends(code)) == {0: 2, 2: 4, 4: 5, 5: 6, 6: 7, 7: 8}


def test_ways_meet_where_a_search_finds_it():
    rng = random.Random(3)
    met = 0
    for _ in range(400):
        nodes = range(rng.randrange(2, 9))
        successors = {n: rng.sample(nodes, rng.randrange(1, min(3, len(nodes)) + 1)) for n in nodes}
        last = [n for n in nodes if rng.random() < 0.3]
        for n in last:
            if rng.random() < 0.7:
                successors[n] = []
        over = flow.post_dominators(successors, last)
        for node in nodes:
            expected = _first_common(successors, last, node)
            assert (node in over) == (expected is not False)
            if node in over:
                assert over[node] == expected
                met += over[node] is not None
            if over.get(node) is not None:
                between = flow.region(successors, node, over[node])
                assert between == _between(successors, node, over[node])
    assert met > 200


def _reach(successors, begin, without):
    seen, stack = set(), [n for n in begin if n != without]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [n for n in successors[node] if n != without]
    return seen


def _first_common(successors, last, node):
    """Return the first node on all ways from one to an end; None without any, False where no end is reached."""
    if not _reach(successors, [node], None) & set(last):
        return False
    if node in last:
        return None
    on_all = [n for n in successors if n != node and not _reach(successors, [node], n) & set(last)]
    for first in on_all:
        if all(other == first or not _reach(successors, [node], first) & {other} for other in on_all):
            return first
    return None


def _between(successors, node, join):
    return set(itertools.chain.from_iterable(_reach(successors, [n], join) for n in successors[node]))
