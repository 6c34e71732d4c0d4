"""Proofs from machine code, compared with programs that are run step by step with different contents of memory."""

import random

import pytest

from tests.unit.record.cuda.code.random_code import MASK, code_of, program, run_thread
from tileprof.record.cuda.code import interpret, knowledge, proof
from tileprof.record.cuda.code.proof import CLEAN, UNKNOWN, Proven, prove


def clean(offset):
    return CLEAN if offset < 0x18 or 0x210 <= offset < 0x400 else UNKNOWN


def is_proven(lines, constants=clean, relocated=frozenset()):
    return isinstance(prove(code_of([*lines, "EXIT"]), constants, relocated), Proven)


ADDRESS = ["S2R R0, SR_TID.X", "LDC.64 R2, c[0x0][0x210]", "IMAD.WIDE R2, R0, 0x4, R2"]
LOAD, STORE = "LDG.E R4, desc[UR4][R2.64]", "STG.E desc[UR4][R2.64], R4"


def test_addresses_of_threads_and_parameters_are_proven():
    found = prove(code_of([*ADDRESS, LOAD, "FADD R4, R4, 1", STORE, "EXIT"]), clean)
    assert isinstance(found, Proven)
    assert found.needed == {0, 1, 2}
    assert not found.joins


@pytest.mark.parametrize(
    "lines",
    [
        [*ADDRESS, LOAD, "IADD3 R2, R2, R4, RZ", STORE],  # an index from memory
        [*ADDRESS, "LDS R3, [R0]", STORE],
        [*ADDRESS, LOAD, "ISETP.NE.AND P0, PT, R4, RZ, PT", "@P0 STG.E desc[UR4][R2.64], R4"],
        [*ADDRESS, LOAD, "ISETP.NE.AND P0, PT, R4, RZ, PT", "@P0 EXIT", STORE],
        [*ADDRESS, LOAD, "ISETP.NE.AND P0, PT, R4, RZ, PT", "@P0 BRA {7}", STORE, "NOP"],
        [*ADDRESS, LOAD, "ISETP.NE.AND P0, PT, R4, RZ, PT", "@P0 BRA {7}", "MOV R2, 0x0", STORE],  # implicit flow
        [*ADDRESS, LOAD, "ISETP.NE.AND P0, PT, R4, RZ, PT", "@P0 MOV R2, 0x0", STORE],
        [*ADDRESS, "SEL R2, R2, RZ, P0", STORE],  # a predicate that nothing has written
        ["LDC.64 R2, c[0x0][0x28]", STORE],
        ["LDC.64 R2, c[0x3][0x210]", STORE],
        [*ADDRESS, "UTMASTG.2D [UR4], [UR8]"],
        [*ADDRESS, "CALL.ABS.NOINC 0x0"],
        [*ADDRESS, "BRX R2 -0x40"],
        [*ADDRESS, "UNHEARDOF R9", STORE],
    ],
)
def test_what_depends_on_memory_is_not_proven(lines):
    assert not is_proven(lines)


def test_ways_that_meet_again_may_depend_on_memory():
    lines = [*ADDRESS, LOAD, "FSETP.GT.AND P0, PT, R4, RZ, PT", "@P0 BRA {7}", "MOV R9, 0x0", STORE, "EXIT"]
    found = prove(code_of(lines), clean)
    assert isinstance(found, Proven)
    assert found.joins == {5: 7}
    loop = [*ADDRESS, "LDS R4, [R0]", "ISETP.NE.AND P0, PT, R4, RZ, PT", "@P0 BRA {3}", STORE, "EXIT"]
    assert prove(code_of(loop), clean).joins == {5: 6}
    counted = [*ADDRESS, "LDS R4, [R0]", "IADD3 R2, R2, 0x4, RZ", "ISETP.NE.AND P0, PT, R4, RZ, PT", "@P0 BRA {3}"]
    assert not is_proven([*counted, STORE])


def test_a_register_is_read_where_the_predicate_holds_under_which_it_was_written():
    lines = ["S2R R0, SR_TID.X", "ISETP.LT.AND P0, PT, R0, 0x5, PT", "@P0 LDC.64 R2, c[0x0][0x210]"]
    assert is_proven([*lines, "@P0 STG.E desc[UR4][R2.64], R4"])
    assert not is_proven([*lines, "@!P0 STG.E desc[UR4][R2.64], R4"])
    assert not is_proven([*lines, STORE])
    again = "ISETP.LT.AND P0, PT, R0, 0x6, PT"
    assert not is_proven([*lines, again, "@P0 STG.E desc[UR4][R2.64], R4"])
    kept = ["P2R R8, PR, RZ, 0x1", again, "ISETP.NE.AND P3, PT, R8, RZ, PT"]
    assert is_proven([*lines, *kept, "@P3 STG.E desc[UR4][R2.64], R4"])
    assert not is_proven([*lines, again, *kept, "@P3 STG.E desc[UR4][R2.64], R4"])
    assert is_proven([*lines, "@!P0 LDC.64 R2, c[0x0][0x218]", STORE])
    assert is_proven([*lines, "@!P0 EXIT", STORE])
    assert is_proven([*lines, "ISETP.LT.AND P1, PT, R0, c[0x0][0x220], P0", "@P1 STG.E desc[UR4][R2.64], R4"])
    assert not is_proven([*lines, "ISETP.LT.OR P1, PT, R0, c[0x0][0x220], P0", "@P1 STG.E desc[UR4][R2.64], R4"])
    mixed = ["LDS R9, [RZ]", "ISETP.NE.AND P1, PT, R9, RZ, PT", "P2R R2, PR, RZ, 0x3", "MOV R3, RZ", STORE]
    assert not is_proven([*lines, *mixed])
    assert is_proven([*lines, "PLOP3.LUT P1, PT, P0, PT, PT, 0x80, 0x0", "@P1 STG.E desc[UR4][R2.64], R4"])
    assert is_proven([*lines, "PLOP3.LUT P1, PT, P0, PT, PT, 0x7f, 0x0", "@!P1 STG.E desc[UR4][R2.64], R4"])


def test_a_known_parameter_closes_the_way_on_which_pointers_are_loaded():
    lines = [
        "LDC R0, c[0x0][0x220]", "ISETP.NE.AND P0, PT, R0, RZ, PT", "LDC.64 R2, c[0x0][0x210]", "@!P0 BRA {5}",
        "LDG.E.64 R2, desc[UR4][R2.64]", STORE,
    ]  # fmt: skip
    assert not is_proven(lines)
    assert is_proven(lines, lambda at: 0 if at == 0x220 else clean(at))
    assert not is_proven(lines, lambda at: 1 if at == 0x220 else clean(at))


def test_what_the_loader_changes_is_not_known():
    lines = ["MOV R2, 0x100", "MOV R3, 0x0", STORE]
    assert is_proven(lines)
    assert not is_proven(lines, relocated=frozenset({0x18}))
    assert not is_proven(lines, relocated=frozenset({0xFFFFFFFF}))
    assert not is_proven(["BRA {1}", "NOP"], relocated=frozenset({0}))


CALLS = [
    *ADDRESS, "MOV R10, {5}", "CALL.REL.NOINC {9}", "MOV R10, {7}", "CALL.REL.NOINC {9}", STORE, "EXIT",
    "IADD3 R2, R2, 0x4, RZ", "MOV R11, 0x0", "RET.REL.NODEC R10 0x0",
]  # fmt: skip


def test_a_called_subroutine_returns_to_each_of_its_callers():
    assert isinstance(prove(code_of(CALLS), clean), Proven)
    other = [line.replace("MOV R11, 0x0", "MOV R11, R20") for line in CALLS]
    assert "unknown place" in prove(code_of(other), clean)
    slow_path = [*ADDRESS, LOAD, "FCHK P0, R4, R4", "@!P0 BRA {8}", "MOV R10, {8}", "CALL.REL.NOINC {10}", STORE,
                 "EXIT", "FADD R4, R4, 1", "MOV R11, 0x0", "RET.REL.NODEC R10 0x0"]  # fmt: skip
    assert prove(code_of(slow_path), clean).joins == {5: 8}
    overwrites = [line.replace("FADD R4", "FADD R2") for line in slow_path]
    assert not isinstance(prove(code_of(overwrites), clean), Proven)


def test_threads_that_wait_continue_behind():
    lines = ["BSSY B0, {3}", "NOP", "BSYNC B0", *ADDRESS, STORE, "EXIT"]
    assert isinstance(prove(code_of(lines), clean), Proven)
    elsewhere = ["BSSY B0, {4}", "NOP", "BSYNC B0", STORE, *ADDRESS, STORE, "EXIT"]
    assert not isinstance(prove(code_of(elsewhere), clean), Proven)


SHUFFLE = ["S2R R0, SR_TID.X", "SHFL.IDX PT, R0, R0, RZ, 0x1f", "LDC.64 R2, c[0x0][0x210]",
           "IMAD.WIDE R2, R0, 0x4, R2", STORE]  # fmt: skip


def test_values_of_other_lanes_are_known_where_no_lane_has_left():
    assert is_proven(SHUFFLE)
    assert not is_proven(["LDS R0, [RZ]", *SHUFFLE[1:]])
    divergent = ["S2R R0, SR_TID.X", "ISETP.LT.AND P0, PT, R0, 0x5, PT", "@P0 BRA {4}", "NOP"]
    assert not is_proven([*divergent, *SHUFFLE])
    uniform = [line.replace("SR_TID.X", "SR_CTAID.X") for line in divergent]
    assert is_proven([*uniform, *SHUFFLE])
    assert not is_proven([*divergent[:2], "@P0 EXIT", *SHUFFLE])


# Random programs.


PARAMETERS = {0x210 + 4 * n: kind for n, kind in enumerate(["number", "clean", "clean", "number", "unknown"])}


def _draw(seed):
    """Return a random program, its proof and launches that it must hold for."""
    rng = random.Random(seed)
    lines = program(rng)
    numbers = {at: rng.choice([0, 1, 5, 12]) for at, kind in PARAMETERS.items() if kind == "number"}
    kinds = {at: numbers.get(at, CLEAN if kind == "clean" else UNKNOWN) for at, kind in PARAMETERS.items()}
    code = code_of(lines)
    return code, prove(code, lambda at: kinds.get(at, UNKNOWN)), numbers, rng


def _refuted(seed):
    """Return whether a random program is proven, and whether runs show that it should not have been."""
    code, found, numbers, rng = _draw(seed)
    if isinstance(found, str):
        return False, False
    for _ in range(2):
        shared = {at: rng.choice([0, 1, 5, 12, 0x7F000000]) for at, kind in PARAMETERS.items() if kind == "clean"}
        for thread in (0, 1, 9):
            runs = []
            for memory in range(3):
                bank = shared | numbers | {0x220: rng.randrange(8)}
                runs.append(run_thread(code, bank, thread, thread % 3, 7 * seed + memory))
            ended = [run for run in runs if run is not None]
            if any(run != ended[0] for run in ended[1:]):
                return True, True
            emulated = run_thread(code, shared | numbers | {0x220: 3}, thread, thread % 3, 99, only=found)
            if ended and emulated != ended[0]:
                return True, True
    return True, False


def test_random_programs_that_are_proven_touch_the_same_whatever_memory_holds():
    proven = 0
    for seed in range(1000):
        is_so, refuted = _refuted(seed)
        assert not refuted, seed
        proven += is_so
    assert 250 < proven < 600


@pytest.mark.nightly
def test_many_random_programs_that_are_proven_touch_the_same_whatever_memory_holds():
    assert not [seed for seed in range(1000, 30_000) if _refuted(seed)[1]]


def _mutants():
    """Planted faults: where each is, its name there, and what stands in its place."""

    def first_way_in(states, symbol_of, merged=knowledge.merged):
        return merged(states[:1], symbol_of)

    def written_always(self, name, result, guard, state):
        state.put(name, result)

    def other_polarity(literal, where, otherwise, even, chosen=knowledge.chosen):
        return chosen(None if literal is None else literal ^ 1, where, otherwise, even=even)

    def known_guard(self, name, negated, state, facts, truth=interpret.Interpreter.truth):
        guard = truth(self, name, negated, state, facts)
        return interpret.Guard(knowledge.ALWAYS, None, even=False) if guard is None else guard

    def clean_results(self, plan, state, facts, guard):
        return [CLEAN] * len(plan.writes)

    def other_bits(self, other, literal=None, either=knowledge.Bits.either):
        return either(self, other, None if literal is None else literal ^ 1)

    return {
        "one way into a block": (proof, "merged", first_way_in),
        "partial writes": (interpret.Interpreter, "_write", written_always),
        "the other polarity": (interpret, "chosen", other_polarity),
        "what ways wrote that depend on memory": (knowledge.State, "forget", lambda self, name: None),
        "what runs before ways meet": (proof.flow, "region", lambda *_: set()),
        "conditions": (knowledge, "under", lambda condition, facts: condition and knowledge.ALWAYS),
        "bits of partial writes": (knowledge.Bits, "either", lambda self, other, literal=None: self),
        "the other polarity of bits": (knowledge.Bits, "either", other_bits),
        "bits from memory": (knowledge, "NOTHING", knowledge.Bits(MASK)),
        "numbers that differ": (knowledge, "_joined", lambda name, values, together: values[0]),
        "guards from memory": (interpret.Interpreter, "truth", known_guard),
        "results from memory": (interpret.Interpreter, "_results", clean_results),
        "what a branch needs": (proof._Proof, "_backward", lambda self, n, live, needed: None),
    }


@pytest.mark.parametrize("name", _mutants())
def test_planted_faults_are_caught(name, monkeypatch):
    where, attribute, fault = _mutants()[name]
    monkeypatch.setattr(where, attribute, fault)
    assert any(_refuted(seed)[1] for seed in range(2000))
