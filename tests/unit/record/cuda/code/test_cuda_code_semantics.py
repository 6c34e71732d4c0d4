"""What instructions compute, compared with an interpreter of its own, and with what compiled expressions yield."""

import random
import shutil
import struct
import subprocess

import numpy as np
import pytest

from tests.unit.record.cuda.code import cubins
from tileprof.record.cuda.code import semantics, traced, traces
from tileprof.record.cuda.code.disassembly import disassembled
from tileprof.record.cuda.code.instructions import parse, written_registers
from tileprof.record.cuda.code.reading import Kernel
from tileprof.record.cuda.installation import locate
from tileprof.trace import ATOMIC, READ, WRITE

MASK = 0xFFFFFFFF
EDGES = [0, 1, 2, 3, 31, 32, 33, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, MASK]


def instruction(line):
    (found,) = parse(f"        /*0000*/  {line} ;")
    return found


def results(line, **values):
    """Return what an instruction writes, by name, where registers and predicates have these values."""
    step = semantics.step(instruction(line))
    found = step.run([values[name] for name in step.reads])
    return dict(zip(step.writes, found, strict=True))


def signed(word):
    return word - (word >> 31 << 32)


@pytest.mark.parametrize(
    ("line", "values", "expected"),
    [
        # Carries: of a sum, of a difference (a - b carries where a >= b, also for b = 0), and two of a sum of three.
        ("IADD3 R0, P0, R1, R2, RZ", {"R1": MASK, "R2": 1}, {"R0": 0, "P0": True}),
        ("IADD3 R0, P0, R1, -R2, RZ", {"R1": 5, "R2": 0}, {"R0": 5, "P0": True}),
        ("IADD3 R0, P0, R1, -R2, RZ", {"R1": 5, "R2": 6}, {"R0": MASK, "P0": False}),
        ("IADD3 R0, P0, P1, R1, R2, R3", {"R1": MASK, "R2": MASK, "R3": MASK},
         {"R0": MASK - 2, "P0": True, "P1": True}),
        ("IADD3 R0, P0, P1, R1, R2, R3", {"R1": MASK, "R2": 1, "R3": 1}, {"R0": 1, "P0": True, "P1": False}),
        ("IADD3 RZ, P0, R1, 0x2, RZ", {"R1": MASK}, {"P0": True}),
        ("IADD3.X R0, R1, ~R2, RZ, P0, !PT", {"R1": 7, "R2": 0, "P0": True}, {"R0": 7}),
        ("IADD3.X R0, P1, R1, R2, RZ, P0, !PT", {"R1": MASK, "R2": 0, "P0": True}, {"R0": 0, "P1": True}),
        ("UIADD3.64 UR4, UR6, UR8, URZ", {"UR6": MASK, "UR7": 1, "UR8": 1, "UR9": 2}, {"UR4": 0, "UR5": 4}),
        ("VIADD R0, R1, -UR4", {"R1": 3, "UR4": 5}, {"R0": MASK - 1}),
        ("IMAD R0, R1, -0x3, R2", {"R1": 5, "R2": 20}, {"R0": 5}),
        ("IMAD.X R0, RZ, RZ, ~R2, P0", {"R2": 1, "P0": True}, {"R0": MASK}),
        ("IMAD.WIDE R0, R2, 0x4, R4", {"R2": MASK, "R4": 8, "R5": 1}, {"R0": 4, "R1": 1}),
        ("IMAD.WIDE.U32 R0, R2, 0x4, R4", {"R2": MASK, "R4": 8, "R5": 1}, {"R0": 4, "R1": 5}),
        ("IMAD.WIDE.U32 R0, P0, R2, R3, R4", {"R2": MASK, "R3": MASK, "R4": MASK, "R5": MASK},
         {"R0": 0, "R1": MASK - 1, "P0": True}),
        ("IMAD.WIDE.U32.X R0, R2, R3, R4, P0", {"R2": 2, "R3": 3, "R4": MASK, "R5": 0, "P0": True}, {"R0": 6, "R1": 1}),
        ("IMAD.HI.U32 R0, R2, R3, R4", {"R2": MASK, "R3": MASK, "R4": 0, "R5": 9}, {"R0": 7}),
        ("IMAD.HI R0, R2, R3, RZ", {"R2": MASK, "R3": 5}, {"R0": MASK}),
        ("LEA R0, P0, R1, R2, 0x2", {"R1": 0x40000001, "R2": MASK}, {"R0": 3, "P0": True}),
        ("LEA R0, P0, -R1, R2, 0x2", {"R1": 1, "R2": 4}, {"R0": 0, "P0": True}),
        ("LEA.HI R0, R1, R2, RZ, 0x3", {"R1": MASK, "R2": 10}, {"R0": 17}),
        ("LEA.HI.X R0, R1, R2, R3, 0x2, P0", {"R1": 0xC0000000, "R2": 10, "R3": 1, "P0": True}, {"R0": 18}),
        ("LEA.HI.X.SX32 R0, R1, R2, 0x1, P0", {"R1": MASK, "R2": 10, "P0": True}, {"R0": 10}),
        ("LEA.HI.SX32 R0, R1, R2, 0x1d", {"R1": MASK - 7, "R2": 10}, {"R0": 9}),
        ("SHF.R.U32.HI R0, RZ, R1, R2", {"R1": 32, "R2": MASK}, {"R0": 0}),
        ("SHF.R.S32.HI R0, RZ, R1, R2", {"R1": 99, "R2": 1 << 31}, {"R0": MASK}),
        ("SHF.L.U32 R0, R1, R2, RZ", {"R1": 1, "R2": 32}, {"R0": 0}),
        ("SHF.L.W.U32.HI R0, R1, R2, R3", {"R1": 1 << 31, "R2": 33, "R3": 4}, {"R0": 9}),
        ("SHF.L.U64.HI R0, R1, 0x2, R3", {"R1": 1 << 31, "R3": 4}, {"R0": 18}),
        ("SHF.R.U64 R0, R1, R2, R3", {"R1": 1, "R2": 40, "R3": 0x1200}, {"R0": 0x12}),
        ("SHF.R.S64 R0, RZ, 0x17, R3", {"R3": 1 << 31}, {"R0": 0}),
        ("LOP3.LUT R0, R1, R2, R3, 0xb8, !PT", {"R1": 0b0101, "R2": 0b0011, "R3": 0b1110}, {"R0": 0b0110}),
        ("LOP3.LUT P0, RZ, R1, 0x4, RZ, 0xc0, !PT", {"R1": 3}, {"P0": False}),
        ("LOP3.LUT P0, RZ, R1, 0x4, RZ, 0xc0, P1", {"R1": 3, "P1": True}, {"P0": True}),
        ("ISETP.LT.AND P0, P1, R1, R2, P2", {"R1": MASK, "R2": 0, "P2": True}, {"P0": True, "P1": False}),
        ("ISETP.LT.U32.OR P0, PT, R1, R2, P2", {"R1": MASK, "R2": 0, "P2": True}, {"P0": True}),
        ("ISETP.GE.AND.EX P0, PT, R1, R2, PT, P1", {"R1": 4, "R2": 4, "P1": False}, {"P0": False}),
        ("ISETP.GE.AND.EX P0, PT, R1, R2, PT, P1", {"R1": 4, "R2": MASK, "P1": False}, {"P0": True}),
        ("ISETP.LT.OR.EX P0, PT, R1, RZ, !P0, P1", {"R1": 0, "P0": True, "P1": True}, {"P0": True}),
        ("PLOP3.LUT P0, PT, P1, P2, PT, 0xa8, 0x0", {"P1": False, "P2": True}, {"P0": True}),
        ("SEL R0, R1, 0x7, !P0", {"R1": 1, "P0": True}, {"R0": 7}),
        ("VIMNMX R0, R1, R2, !PT", {"R1": MASK, "R2": 1}, {"R0": 1}),
        ("VIMNMX.U32 R0, R1, R2, !PT", {"R1": MASK, "R2": 1}, {"R0": MASK}),
        ("VIMNMX.RELU R0, R1, R2, PT", {"R1": MASK, "R2": 1}, {"R0": 0}),
        ("VIADDMNMX R0, R1, 0xffffffff, R2, PT", {"R1": 0, "R2": 1}, {"R0": MASK}),
        ("IABS R0, R1", {"R1": MASK}, {"R0": 1}),
        ("PRMT R0, R1, 0x7610, R2", {"R1": 0x44332211, "R2": 0x88776655}, {"R0": 0x88772211}),
        ("PRMT R0, R1, 0x9910, RZ", {"R1": 0x80FF}, {"R0": 0xFFFF80FF}),
        ("PRMT R0, R1, R2, RZ", {"R1": 0x80FF, "R2": 0x0019}, {"R0": 0xFFFFFFFF & 0xFFFF80FF | 0xFFFF0000}),
        ("SGXT R0, R1, 0x10", {"R1": 0x18000}, {"R0": 0xFFFF8000}),
        ("SGXT.U32 R0, R1, 0x20", {"R1": MASK}, {"R0": MASK}),
        ("FLO.U32 R0, R1", {"R1": 0}, {"R0": MASK}),
        ("FLO.U32.SH R0, R1", {"R1": 0x10}, {"R0": 27}),
        ("FLO.U32.SH R0, R1", {"R1": 0}, {"R0": MASK}),
        ("POPC R0, R1", {"R1": 0xF0F}, {"R0": 8}),
        ("BREV R0, R1", {"R1": 6}, {"R0": 0x60000000}),
        ("LDC.U16 R0, c[0x0][0x412]", {"c[0x410]": 0x8001FFFF}, {"R0": 0x8001}),
        ("ULDC.S8 UR4, c[0x0][0x411]", {"c[0x410]": 0x8180}, {"UR4": 0xFFFFFF81}),
        ("LDC.S8 R0, c[0x0][0x411]", {"c[0x410]": 0xFFFF7F80}, {"R0": 0x7F}),
        ("ULDC.64 UR4, c[0x0][0x218]", {"c[0x218]": 7, "c[0x21c]": 9}, {"UR4": 7, "UR5": 9}),
        ("P2R.B1 R0, PR, R1, 0x5", {"R1": MASK, "P0": False, "P2": True}, {"R0": 0xFFFFFEFF}),
        ("R2P PR, R0.B1, 0x6", {"R0": 0x400}, {"P1": False, "P2": True}),
        ("CS2R R8, SRZ", {}, {"R8": 0, "R9": 0}),
        ("HFMA2.MMA R5, -RZ, RZ, 1.875, 5.9604644775390625e-08", {}, {"R5": 0x3F800001}),
        ("I2F.U32.RP R0, R1", {"R1": 0x1000001}, {"R0": 0x4B800001}),
        ("I2F.RP R0, R1", {"R1": MASK}, {"R0": 0xBF800000}),
        ("I2F.U64.RP R0, R2", {"R2": 1, "R3": 1}, {"R0": 0x4F800001}),
        ("F2I.FTZ.U32.TRUNC.NTZ R0, R1", {"R1": 0x4F7FFFFF}, {"R0": 0xFFFFFF00}),
        ("F2I.FTZ.U32.TRUNC.NTZ R0, R1", {"R1": 0x8F7FFFFE}, {"R0": 0}),
        ("F2I.U64.TRUNC R0, R2", {"R2": 0x5F7FFFFE}, {"R0": 0, "R1": 0xFFFFFE00}),
        ("R2UR UR4, R1", {"R1": 5}, {"UR4": 5}),
    ],
)  # fmt: skip
def test_an_instruction_computes_what_the_hardware_does(line, values, expected):
    assert results(line, **values) == expected
    # The same with one value per lane, beside others that make no difference.
    columns = {name: np.array([value, 0, value], np.bool_ if name[0] in "UP" and "P" in name[:2] else np.uint32)
               for name, value in values.items()}  # fmt: skip
    found = results(line, **columns)
    for name, value in expected.items():
        lanes = np.broadcast_to(found[name], 3)
        assert lanes[[0, 2]].tolist() == [value, value]
        if columns:
            assert found[name].dtype == (np.bool_ if isinstance(value, bool) else np.uint32)


@pytest.mark.parametrize(
    "line",
    [
        "FADD R0, R1, R2", "MUFU.RCP R0, R1", "S2R R0, SR_CLOCKLO", "LDC R0, c[0x3][0x10]",
        "LDC.64 R0, c[0x0][0x212]", "VIMNMX3 R0, R1, R2, R3, PT", "VIMNMX.S16x2 R0, R1, R2, PT",
        "HFMA2.MMA R0, R1, R2, 1, 1", "SHFL.BFLY PT, R0, R1, 0x1, 0x1f", "HFMA2.MMA R0, -RZ, RZ, +QNAN , 0",
        "SHFL.IDX PT, R0, R1, R2, 0x1f", "SHFL.IDX P0, R0, R1, 0x0, 0x1f", "R2UR P0, URZ, R1",
        "IADD3 R0, P0, P0, R1, R2, R3", "PRMT.F4E R0, R1, R2, R3", "ISETP.LT.EX P0, PT, R1, R2, PT, P1",
        "MOV R0, -R1", "SEL R0, |R1|, R2, P0", "LEA R0, R1, R2, R3", "I2F.S64 R0, R2", "F2I.TRUNC.NTZ R0, R1",
        "UNHEARDOF R0, R1", "LDS R0, [R1]", "IMAD.WIDE R0, P0, R2, R3, R4", "P2R R0, PR, RZ, 0x80",
        "CS2R R0, SR_CLOCKLO", "VOTE.ANY R0, PT, P0",
    ],
)  # fmt: skip
def test_what_is_not_known_has_no_step(line):
    assert semantics.step(instruction(line)) is None


def test_constants_at_computed_places_and_other_lanes_are_marked():
    step = semantics.step(instruction("LDC.S8 R0, c[0x0][R2+0x211]"))
    assert (step.reads, step.indexed) == (("R2",), semantics.Indexed(0x211, 1))
    assert step.run([1, 0x80FF0000]) == [0xFFFFFFFF]
    assert np.array_equal(step.run([np.array([1, 2], np.uint32), 0x80FF0000])[0], [0xFFFFFFFF, 0xFFFFFF80])
    step = semantics.step(instruction("LDC.64 R0, c[0x0][R2+-0x8]"))
    assert (step.indexed.offset, step.indexed.words, step.run([0, 5, 6])) == (MASK - 7, 2, [5, 6])
    step = semantics.step(instruction("SHFL.IDX PT, R0, R1, RZ, 0x1f"))
    assert (step.source_lane, step.crosses_lanes, step.reads, step.writes) == (0, True, ("R1",), ("R0",))


def test_a_reciprocal_is_any_of_those_that_the_hardware_may_find():
    step = semantics.estimate(instruction("MUFU.RCP R0, R1"))
    words = np.array([3.0, 2.0**63, 1.0, 0.0, 0.25], np.float32).view(np.uint32)
    rows, holds = step.run([words])
    assert holds.tolist() == [True, True, True, True, False]
    for lane, value in enumerate((3.0, 2.0**63, 1.0)):
        floats = rows[:, lane].view(np.float32).astype(np.float64)
        spacing = np.spacing(np.float32(1 / value))
        within = [f for f in np.arange(-4, 5) * spacing + float(np.float32(1 / value)) if abs(f - 1 / value) <= spacing]
        assert set(within) <= set(floats.tolist()) | {1 / value - spacing}
        assert float(np.float32(1 / value)) in floats
    assert set(rows[:, 3].tolist()) == {0x7F800000}
    assert semantics.estimate(instruction("MUFU.RSQ R0, R1")) is None


@pytest.mark.parametrize(
    ("line", "mode", "size", "reads", "condition"),
    [
        ("LDG.E R0, desc[UR4][R2.64]", READ, 4, ("R2", "R3"), None),
        ("LDG.E.LTC128B.128.CONSTANT R0, desc[UR4][R2.64+0x10]", READ, 16, ("R2", "R3"), None),
        ("LDG.E.U8 R0, desc[UR4][R2.64+-0x1]", READ, 1, ("R2", "R3"), None),
        ("LD.E.S16 R0, desc[UR4][R2.64]", READ, 2, ("R2", "R3"), None),
        ("LDG.E.64 R0, [R4+0x8]", READ, 8, ("R4", "R5"), None),
        ("LDG.E.S8 R0, [R2.64+UR4+0x8]", READ, 1, ("R2", "R3", "UR4", "UR5"), None),
        ("STG.E.64 desc[UR4][R2.64], RZ", WRITE, 8, ("R2", "R3"), None),
        ("ST.E.EF.U16 desc[UR4][R2.64], R7", WRITE, 2, ("R2", "R3"), None),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R9+0x10], desc[UR4][R2.64], !P3", READ, 16, ("R2", "R3"), ("P3", True)),
        ("LDGSTS.E.LTC128B [R9], desc[UR4][R2.64], !PT", READ, 4, ("R2", "R3"), ("PT", True)),
        ("LDGSTS.E.BYPASS.128.ZFILL [R9], desc[UR4][R2.64], P1", READ, 16, ("R2", "R3"), ("P1", False)),
        ("LDGSTS.E [R9], desc[UR4][R2.64]", READ, 4, ("R2", "R3"), None),
        ("ATOMG.E.ADD.F64.RN.STRONG.GPU PT, RZ, desc[UR4][R2.64], R8", ATOMIC, 8, ("R2", "R3"), None),
        ("ATOMG.E.CAS.STRONG.GPU PT, R5, [R2], R4, R5", ATOMIC, 4, ("R2", "R3"), None),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R8", ATOMIC, 4, ("R2", "R3"), None),
        ("REDG.E.MAX.S64.STRONG.GPU desc[UR4][R2.64], R8", ATOMIC, 8, ("R2", "R3"), None),
        ("REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R8", ATOMIC, 16, ("R2", "R3"), None),
        ("RED.E.ADD.BF16x2.RN.STRONG.GPU desc[UR4][R2.64+0x4], R8", ATOMIC, 4, ("R2", "R3"), None),
    ],
)
def test_an_access_says_what_it_touches(line, mode, size, reads, condition):
    found = semantics.access(instruction(line))
    assert (found.mode, found.size, found.reads, found.condition) == (mode, size, reads, condition)
    names = {"LDG.E.LTC128B.128.CONSTANT": 16, "LDG.E.U8": -1, "LDG.E.64": 8, "RED.E.ADD.BF16x2.RN.STRONG.GPU": 4,
             "LDG.E.S8": 8 + 0x5_0000_0007}  # fmt: skip
    expected = 0x1_0000_0000 + names.get(line.split()[0], 0)
    assert found.address([0, 1, 7, 5][: len(reads)]) == expected
    assert found.address([np.zeros(3, np.uint32), 1, 7, 5][: len(reads)]).tolist() == [expected] * 3
    assert semantics.step(instruction(line)) is None
    assert not semantics.is_harmless(instruction(line))


def test_a_copy_with_zeros_says_by_its_address_how_many():
    found = semantics.access(instruction("LDGSTS.E.64.ZFILL [R9], desc[UR4][R2.64], P1"))
    assert (found.address([0x1003, 0]), found.missing([0x1003, 0])) == (0x1000, 3)
    assert found.missing([np.array([0x1003, 0x1008, 0x1001], np.uint32), 0]).tolist() == [3, 0, 1]
    assert semantics.access(instruction("LDGSTS.E.64 [R9], desc[UR4][R2.64], P1")).missing is None


@pytest.mark.parametrize(
    "line",
    [
        "LDG.E R0, desc[UR4][R2]", "LDG.E R0, [R2+UR4]", "LDG.E R0, [RZ.U32+UR4]", "LDG R0, [R2]",
        "LDG.E.UNHEARDOF R0, desc[UR4][R2.64]", "LDG.E R0, desc[UR4][R2.64], P0",
        "REDG.E.ADD.S64.STRONG.GPU desc[UR4][R2.64], R8", "UBLKCP [UR4], [UR6], UR8", "UTMALDG.2D [UR4], [UR6]",
        "LDGMC.E.ADD.F32.RN.STRONG.SYS R0, [R2.64+UR4]", "TEX R0, R1, R2", "SUST.D.BA.1D [R2], R0",
        "CALL.ABS.NOINC R2", "CALL.REL.NOINC 0x40", "RET.REL.NODEC R2 0x0", "BRX R2 -0x40", "UNHEARDOF R0",
    ],
)  # fmt: skip
def test_what_may_touch_memory_in_ways_that_are_not_known_is_neither_access_nor_harmless(line):
    assert semantics.access(instruction(line)) is None
    assert not semantics.is_harmless(instruction(line))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("LDG.E.128 R4, desc[UR4][R2.64]", {"R4", "R5", "R6", "R7"}),
        ("LDG.E R4, desc[UR4][R2.64]", {"R4"}),
        ("LDGSTS.E [R4], desc[UR4][R2.64], P0", set()),
        ("FSETP.GT.AND P0, P1, R2, R3, !P2", {"P0", "P1"}),
        ("FSEL R0, R1, R2, P3", {"R0"}),
        ("DFMA R4, R6, R8, R10", {"R4", "R5"}),
        ("F2F.F64.F32 R4, R5", {"R4", "R5"}),
        ("LDSM.16.M88.4 R8, [R2]", {"R8", "R9", "R10", "R11"}),
        ("ATOMG.E.CAS.64.STRONG.GPU PT, R4, [R18], R4, R6", {"R4", "R5"}),
        ("R2UR P0, URZ, R15", {"P0"}),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", {"P0"}),
        ("VOTEU.ANY UR4, UPT, PT", {"UR4"}),
    ],
)
def test_unknown_results_are_at_least_those_that_are_written(line, expected):
    assert set(written_registers(instruction(line))) >= expected
    assert len(set(written_registers(instruction(line))) - expected) <= 1
    assert {"R0", "R200", "UR63", "P6", "UP6"} <= set(written_registers(instruction("UNHEARDOF R9, R3")))


def interpreted(line, state):
    """Return what an instruction writes in one thread, slowly, in the order of its operands."""
    name, _, rest = line.partition(" ")
    kind, *kinds = name.split(".")
    o = rest.split(", ")

    def number(text):
        if text[0] in "-~":
            return ~number(text[1:]) + (text[0] == "-") & MASK
        return 0 if text in {"RZ", "URZ"} else int(text, 16) if text.startswith("0x") else state[text]

    def addend(text):
        """An opposite is a complement and one: that of zero carries."""
        return (number(text[1:]) ^ MASK) + 1 if text[0] == "-" and text[1] == "R" else number(text)

    def flag(text):
        return text.startswith("!") != (text.lstrip("!") == "PT" or state.get(text.lstrip("!"), False))

    def table(lut, bits):
        return lut >> (bits[0] * 4 + bits[1] * 2 + bits[2]) & 1

    order = (lambda v: v) if "U32" in kinds else signed
    if kind == "IADD3":
        total = sum(addend(t) for t in o[3:6]) + sum(flag(t) for t in o[6:])
        return [total, total >= 1 << 32, total >= 2 << 32]
    if kind == "IMAD" and kinds in ([], ["X"]):
        return [number(o[1]) * number(o[2]) + number(o[3]) + sum(flag(t) for t in o[4:])]
    if kind == "IMAD":
        product = order(number(o[1])) * order(number(o[2])) + (number(o[3]) | state[f"R{int(o[3][1:]) + 1}"] << 32)
        return [product >> 32] if "HI" in kinds else [product, product >> 32]
    if kind == "LEA" and not kinds:
        total = (number(o[2]) << int(o[4], 16) & MASK) + number(o[3])
        return [total, total >= 1 << 32]
    if kind == "LEA":
        both = signed(number(o[1])) if "SX32" in kinds else number(o[3]) << 32 | number(o[1])
        return [(both >> 32 - int(o[3 if "SX32" in kinds else 4], 16)) + number(o[2]) + ("X" in kinds and flag(o[-1]))]
    if kind == "SHF":
        bits = 64 if "U64" in kinds or "S64" in kinds else 32
        count = number(o[2]) % bits if "W" in kinds else min(number(o[2]), bits)
        both = number(o[3]) << 32 | number(o[1])
        if "S32" in kinds or "S64" in kinds:
            both -= both >> 63 << 64
        moved = both << count if "L" in kinds else both >> count
        return [moved >> 32 if "HI" in kinds else moved]
    if kind == "LOP3":
        words = [number(t) for t in o[2:5]]
        out = sum(table(int(o[5], 16), [w >> i & 1 for w in words]) << i for i in range(32))
        return [(out != 0 and flag(o[6])) if "PAND" in kinds else (out != 0 or flag(o[6])), out]
    if kind == "ISETP":
        a, b = order(number(o[2])), order(number(o[3]))
        holds = {"LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b, "EQ": a == b, "NE": a != b}[kinds[0]]
        holds = flag(o[5]) if "EX" in kinds and a == b else holds
        combine = {"AND": min, "OR": max, "XOR": lambda a, b: a != b}[
            next(k for k in kinds if k in {"AND", "OR", "XOR"})
        ]
        return [combine(holds, flag(o[4])), combine(not holds, flag(o[4]))]
    if kind == "PLOP3":
        return [bool(table(int(t, 16), [flag(f) for f in o[2:5]])) for t in o[5:]]
    if kind == "SEL":
        return [number(o[1]) if flag(o[3]) else number(o[2])]
    if kind in {"VIMNMX", "VIADDMNMX"}:
        words = [number(o[1]), number(o[2])] if kind == "VIMNMX" else [number(o[1]) + number(o[2]) & MASK, number(o[3])]
        return [(min if flag(o[-1]) else max)(words, key=order)]
    assert kind == "PRMT"
    pool = b"".join(number(t).to_bytes(4, "little") for t in (o[1], o[3]))
    digits = [number(o[2]) >> 4 * i & 15 for i in range(4)]
    return [sum((255 * (pool[n & 7] >> 7) if n & 8 else pool[n]) << 8 * i for i, n in enumerate(digits))]


def random_line(rng):
    register = lambda: f"R{rng.randrange(6)}"  # noqa: E731
    word = lambda: rng.choice([register(), register(), "UR4", "RZ", hex(rng.choice(EDGES)), "-0x7"])  # noqa: E731
    flag = lambda: rng.choice(["P0", "!P1", "P2", "!P0", "PT", "!PT"])  # noqa: E731
    one = rng.choice
    d, a, b, c, e, f, g = register(), register(), word(), register(), rng.randrange(2, 6, 2), flag(), flag()
    signs, lut, size = one(["", "-"]), hex(rng.randrange(256)), one(["U32", "S32", "U64", "S64"])
    unsigned, q, shift = one(["", ".U32"]), one(["P1", "PT"]), hex(rng.randrange(32))
    count, compare = one([register(), hex(rng.randrange(70))]), one(["LT", "LE", "GT", "GE", "EQ", "NE"])
    return one(
        [
            f"IADD3 {d}, P0, {q}, {signs}{a}, {b}, {one(['', '-'])}{c}",
            f"IADD3.X {d}, P0, {q}, {a}, {one(['', '~'])}{c}, {b}, {f}, {g}",
            f"IMAD {d}, {a}, {b}, {signs}{c}",
            f"IMAD.X {d}, {a}, {b}, {one(['', '~'])}{c}, {f}",
            f"IMAD.WIDE{unsigned} R{e}, {a}, {b}, R{rng.randrange(2, 6, 2)}",
            f"IMAD.HI{unsigned} {d}, {a}, {b}, R{e}",
            f"LEA {d}, P0, {a}, {b}, {shift}",
            f"LEA.HI.X {d}, {a}, {b}, {c}, {shift}, {f}",
            f"LEA.HI.SX32 {d}, {a}, {b}, {shift}",
            f"SHF.{one('LR')}{one(['', '.W'])}.{size}{one(['', '.HI'])} {d}, {a}, {count}, {b}",
            f"LOP3.LUT{one(['', '.PAND'])} P0, {d}, {a}, {b}, {c}, {lut}, {f}",
            f"ISETP.{compare}{unsigned}.{one(['AND', 'OR', 'XOR'])} P0, {q}, {a}, {b}, {f}",
            f"ISETP.{one(['LT', 'GE', 'EQ'])}{unsigned}.{one(['AND', 'OR'])}.EX P0, {q}, {a}, {b}, {f}, {g}",
            f"PLOP3.LUT P0, {q}, {f}, {g}, P2, {lut}, {hex(rng.randrange(256))}",
            f"SEL {d}, {a}, {b}, {f}",
            f"VIMNMX{unsigned} {d}, {a}, {b}, {f}",
            f"VIADDMNMX{unsigned} {d}, {a}, {signs}{c}, {b}, {f}",
            f"PRMT {d}, {a}, {b}, {c}",
        ]
    )


def test_random_instructions_compute_what_a_slow_interpreter_does():
    rng, kinds = random.Random(3), set()
    lanes = 24
    for _ in range(1500):
        line = random_line(rng)
        step = semantics.step(instruction(line))
        assert step is not None, line
        kinds.add(line.split()[0].split(".")[0])
        shared = {name for name in step.reads if rng.random() < 0.3}
        states = []
        for _ in range(lanes):
            state = {f"R{n}": rng.choice([*EDGES, rng.getrandbits(32), rng.getrandbits(8)]) for n in range(8)}
            state |= {f"P{n}": rng.random() < 0.5 for n in range(3)} | {"UR4": rng.choice(EDGES)}
            states.append(state | {name: states[0][name] for name in shared if states})
        kind = lambda name: np.bool_ if name[0] == "P" else np.uint32  # noqa: E731
        columns = [
            states[0][name] if name in shared else np.array([state[name] for state in states], kind(name))
            for name in step.reads
        ]
        found = dict(zip(step.writes, step.run(columns), strict=True))
        numbers = dict(zip(step.writes, step.run([states[0][name] for name in step.reads]), strict=True))
        for lane, state in enumerate(states):
            expected = dict(zip(targets(line), interpreted(line, state), strict=False))
            for name in step.writes:
                value = bool(expected[name]) if name[0] == "P" else int(expected[name]) & MASK
                assert np.broadcast_to(found[name], lanes)[lane] == value, (line, name, state)
                assert lane or (numbers[name] == value and type(numbers[name]) is type(value)), (line, name, state)
    assert len(kinds) == 11


def targets(line):
    """Return what an instruction writes, in the order of its operands."""
    operands = line.partition(" ")[2].split(", ")
    if "WIDE" in line:
        return [operands[0], f"R{int(operands[0][1:]) + 1}"]
    return operands[:3]


EXPRESSIONS = r"""
typedef unsigned u32; typedef int s32; typedef unsigned long long u64; typedef long long s64;
struct Params { u32 v[64]; };
#ifdef __CUDACC__
#define OUT(j, x) { u64 y = (x); *(char*)(base + ((u64)(2 * j) << 33) + (u32)y) = 0; \
                    *(char*)(base + ((u64)(2 * j + 1) << 33) + (u32)(y >> 32)) = 0; }
extern "C" __global__ void kernel(const Params p, u64 base) {
    u32 tid = blockIdx.x;
#else
#include <cstdio>
#define OUT(j, x) { u64 y = (x); printf("%u %u\n", (u32)y, (u32)(y >> 32)); }
static u32 __umulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
static u32 __popc(u32 a) { return __builtin_popcount(a); }
static u32 __clz(u32 a) { return a ? __builtin_clz(a) : 32; }
static u32 __ffs(u32 a) { return __builtin_ffs(a); }
static u32 __brev(u32 a) { u32 r = 0; for (int i = 0; i < 32; i++) r |= (a >> i & 1) << (31 - i); return r; }
static s32 min(s32 a, s32 b) { return a < b ? a : b; }
static s32 max(s32 a, s32 b) { return a > b ? a : b; }
static u32 __byte_perm(u32 a, u32 b, u32 s) {
    u64 t = (u64)b << 32 | a, r = 0;
    for (int i = 0; i < 4; i++) r |= (t >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
    return (u32)r;
}
static void lane(const Params& p, u32 tid) {
#endif
    u32 a = p.v[tid], b = p.v[(tid * 7 + 3) % 64], c = p.v[(tid + 9) % 64];
    s32 sa = a, sb = b, sc = c;
    u64 A = (u64)a << 32 | c, B = (u64)b << 32 | a;
    s64 SA = A, SB = B;
    OUT(0, A + B * 3 - (A ^ b)) OUT(1, A - (u64)a * b) OUT(2, A < B ? A >> (c & 63) : B << (a & 63))
    OUT(3, (SA >> (b & 63)) + (s64)sa * sb) OUT(4, (u64)__umulhi(a, b) << 32 | (a >> (c & 31)))
    OUT(5, (u64)(a / (b | 1)) << 32 | (a % (c | 1))) OUT(6, A / (B | 1)) OUT(7, A % (B >> 20 | 1))
    OUT(8, SA / (SB & 0xffffffffffffll | 1)) OUT(9, (u64)(sa / (sb & 0x7fff | 1)) << 32 | (u32)(sa % (sc & 0xff | 1)))
    OUT(10, (u64)__popc(a) << 32 | __clz(b)) OUT(11, (u64)__ffs(a) << 32 | __brev(b))
    OUT(12, (u64)(u32)min(max(sa, sb), sc) << 32 | (u32)max((s32)(a + b), sc)) OUT(13, (u64)(a / 7) << 32 | b % 1000)
    OUT(14, (SA < SB || (SB <= (s64)sc && a != c)) ? A : ~B)
    OUT(15, (u64)__byte_perm(a, b, c & 0x7777) << 32 | (u32)(signed char)a)
    OUT(16, ((u64)a + b + c) * 5 - (((u64)c << 7) | (A >> 51))) OUT(17, (u64)(sa / 10) << 32 | (u32)(sb % 7))
}
#ifndef __CUDACC__
int main() {
    Params p;
    fread(&p, sizeof p, 1, stdin);
    for (u32 tid = 0; tid < 64; tid++) lane(p, tid);
}
#endif
"""


def test_compiled_expressions_yield_what_the_host_computes(tmp_path):
    tool = locate.nvdisasm()
    if tool is None or shutil.which("nvcc") is None or shutil.which("g++") is None:
        pytest.skip("no nvdisasm, no nvcc or no g++")
    for suffix in ("cu", "cpp"):
        (tmp_path / f"k.{suffix}").write_text(EXPRESSIONS)
    nvcc = ["nvcc", "-arch=sm_90", "-cubin", "-w", "-o", tmp_path / "k.cubin", tmp_path / "k.cu"]
    host = ["g++", "-O0", "-fwrapv", "-w", "-o", tmp_path / "k", tmp_path / "k.cpp"]
    for command in (nvcc, host):
        subprocess.run(command, check=True, capture_output=True)
    rng = random.Random(11)
    words = struct.pack(
        "<64I", *[rng.choice([*EDGES, *(rng.getrandbits(b) for b in (32, 32, 16, 8))]) for _ in range(64)]
    )
    expected = np.array(
        subprocess.run([tmp_path / "k"], input=words, capture_output=True, check=True).stdout.split(), np.int64
    )

    code = disassembled(tool, cubins.section((tmp_path / "k.cubin").read_bytes(), ".text.kernel"))
    base = 1 << 40
    bank = struct.pack("<6I", 1, 1, 1, 64, 1, 1).ljust(0x210, b"\0") + words + struct.pack("<Q", base)
    launch = traces.Launch((64, 1, 1), (1, 1, 1), (1, 1, 1), bank, 0x210)
    trace = traced.trace(Kernel(code), launch)
    assert isinstance(trace, traces.Trace), trace
    found = traces.placed(trace, launch).runs[WRITE]
    values = np.full((64, 36), -1)
    values[found.tile, found.start - base >> 33] = found.start - base & (1 << 33) - 1
    assert np.array_equal(values, expected.reshape(64, 36))
