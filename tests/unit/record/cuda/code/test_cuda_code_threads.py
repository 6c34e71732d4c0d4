"""What emulated kernels touch, compared with threads that are followed one by one, and with the host."""

import random
import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

from tests.unit.record.cuda.code import cubins
from tileprof.record.cuda.code import traced, traces
from tileprof.record.cuda.code.disassembly import disassembled
from tileprof.record.cuda.code.instructions import parse
from tileprof.record.cuda.code.reading import Kernel
from tileprof.record.cuda.installation import locate
from tileprof.trace import ATOMIC, READ, WRITE

ONE = (1, 1, 1)
BASE = 0x7F12_0000_0000
"""Of addresses, in the parameters' first 8 bytes."""


def code_of(lines):
    """Return instructions; ``{3}`` is the address of line 3."""
    text = "\n".join(f"        /*{16 * n:04x}*/  {line} ;" for n, line in enumerate(lines))
    return parse(re.sub(r"\{(\d+)\}", lambda m: hex(16 * int(m[1])), text))


def run(code, grid, block, *words):
    """Return what a launch touches whose parameters are BASE, a pointer, and words; None where that is not proven."""
    bank = struct.pack("<6I", *block, *grid).ljust(0x210, b"\xaa") + struct.pack(f"<Q{len(words)}I", BASE, *words)
    launch = traces.Launch(grid, block, ONE, bank, 0x210, frozenset({0x210}))
    found = traced.trace(Kernel(code), launch)
    return None if isinstance(found, str) else traces.placed(found, launch).runs


def as_bytes(runs):
    """Return runs as pairs of a tile and an offset from BASE; checks that they are sorted and apart."""
    order = np.lexsort((runs.start, runs.tile))
    assert np.array_equal(order, np.arange(len(runs)))
    same = runs.tile[1:] == runs.tile[:-1]
    assert (runs.start[1:] > runs.end[:-1])[same].all()
    triples = zip(runs.tile.tolist(), (runs.start - BASE).tolist(), (runs.end - BASE).tolist(), strict=True)
    return {(tile, at) for tile, start, end in triples for at in range(start, end)}


def touching(threads, size, places):
    """Return the bytes that are touched where ``places(tile, thread)`` are the offsets of one thread."""
    return {
        (tile, at + i) for tile, count in threads for t in range(count) for at in places(tile, t) for i in range(size)
    }


LINEAR = [
    "S2R R0, SR_TID.X", "S2R R1, SR_CTAID.X", "LDC R2, c[0x0][0x0]", "IMAD R0, R1, R2, R0",
    "LDC.64 R4, c[0x0][0x210]",
]  # fmt: skip
"""R0: index of the thread in the grid; R4, R5: the address."""


def test_threads_of_a_tail_leave():
    lines = [
        *LINEAR, "ISETP.GE.AND P0, PT, R0, c[0x0][0x218], PT", "@P0 EXIT", "IMAD.WIDE R6, R0, 0x4, R4",
        "LDG.E R8, desc[UR4][R6.64+0x100000]", "IMAD.WIDE R6, R0, 0x10, R4", "@!PT STG.E desc[UR4][R6.64], R8",
        "STG.E.64 desc[UR4][R6.64+-0x8], R8", "EXIT",
    ]  # fmt: skip
    found = run(code_of(lines), (7, 1, 1), (40, 1, 1), 250)
    counts = [(tile, min(40, 250 - 40 * tile)) for tile in range(7)]
    assert set(found) == {READ, WRITE}
    assert as_bytes(found[READ]) == touching(counts, 4, lambda tile, t: [0x100000 + 4 * (40 * tile + t)])
    assert as_bytes(found[WRITE]) == touching(counts, 8, lambda tile, t: [16 * (40 * tile + t) - 8])
    assert len(found[READ]) == 7


def test_blocks_and_threads_are_numbered_in_three_dimensions():
    lines = [f"{op} R{n}, SR_{kind}.{axis}" for op, kind, first in (("S2R", "TID", 0), ("S2R", "CTAID", 3))
             for n, axis in enumerate("XYZ", first)]  # fmt: skip
    lines += ["LDC.64 R8, c[0x0][0x210]", "S2R R7, SR_LANEID", "IMAD.MOV.U32 R12, RZ, RZ, RZ"]
    lines += [f"LEA R12, R{n}, R12, {hex(4 * n)}" for n in range(6)]
    lines += ["LEA R12, R7, R12, 0x18", "IADD3 R10, P0, R12, R8, RZ", "IADD3.X R11, RZ, R9, RZ, P0, !PT"]
    lines += ["STG.E.U8 desc[UR4][R10.64], RZ", "EXIT"]
    grid, block = (2, 3, 2), (5, 3, 4)

    def place(tile, t):
        parts = [t % 5, t // 5 % 3, t // 15, tile % 2, tile // 2 % 3, tile // 6]
        return [sum(v << 4 * n for n, v in enumerate(parts)) + (t % 32 << 24)]

    found = run(code_of(lines), grid, block)
    assert as_bytes(found[WRITE]) == touching([(tile, 60) for tile in range(12)], 1, place)


LOOP = [
    *LINEAR,
    "LOP3.LUT R3, R0, 0x3, RZ, 0xc0, !PT",
    "MOV R9, RZ",
    "ISETP.GE.AND P0, PT, R9, R3, PT",
    "@P0 BRA {17}",
    "IMAD R10, R0, 0x4, R9",
    "ISETP.NE.AND P1, PT, R9, 0x1, PT",
    "@P1 BRA {13}",
    "IADD3 R10, R10, 0x1000, RZ",
    "IMAD.WIDE R6, R10, 0x8, R4",
    "STG.E desc[UR4][R6.64], R8",
    "IADD3 R9, R9, 0x1, RZ",
    "BRA {7}",
    "IMAD R10, R9, 0x100, R0",
    "IMAD.WIDE R6, R10, 0x4, R4",
    "REDG.E.ADD.STRONG.GPU desc[UR4][R6.64+0x100000], R8",
    "EXIT",
]


def test_threads_that_part_in_a_loop_meet_again():
    found = run(code_of(LOOP), (3, 1, 1), (50, 1, 1))
    threads = [(tile, 50) for tile in range(3)]

    def stored(tile, t):
        g = 50 * tile + t
        return [8 * (4 * g + i + (0x1000 if i == 1 else 0)) for i in range(g % 4)]

    def added(tile, t):
        g = 50 * tile + t
        return [0x100000 + 4 * (g % 4 * 0x100 + g)]

    assert as_bytes(found[WRITE]) == touching(threads, 4, stored)
    assert as_bytes(found[ATOMIC]) == touching(threads, 4, added)


def test_a_guard_and_a_condition_choose_threads():
    lines = [
        *LINEAR, "IMAD.WIDE R6, R0, 0x10, R4", "ISETP.LT.AND P0, PT, R0, 0xa, PT", "ISETP.GT.AND P1, PT, R0, 0x4, PT",
        "@P0 IADD3 R6, P2, R6, 0x8000, RZ", "@P0 IADD3.X R7, RZ, R7, RZ, P2, !PT",
        "@!P0 LDGSTS.E.64 [R9], desc[UR4][R6.64], P1", "@P0 LDGSTS.E [R9], desc[UR4][R6.64], !P1", "EXIT",
    ]  # fmt: skip
    found = run(code_of(lines), ONE, (40, 1, 1))
    expected = {(0, 16 * t + i) for t in range(10, 40) for i in range(8)}
    expected |= {(0, 0x8000 + 16 * t + i) for t in range(5) for i in range(4)}
    assert as_bytes(found[READ]) == expected
    for unknown in ("P3", "!P3"):
        lines[-1:] = [f"@P0 LDGSTS.E [R9], desc[UR4][R6.64], {unknown}", "EXIT"]
        assert run(code_of(lines), ONE, (40, 1, 1)) is None


def test_a_copy_that_is_filled_up_reads_the_rest():
    lines = [*LINEAR, "IMAD.WIDE R6, R0, 0x10, R4", "LOP3.LUT R1, R0, 0x3, RZ, 0xc0, !PT", "IADD3 R6, P0, R6, R1, RZ",
             "IADD3.X R7, RZ, R7, RZ, P0, !PT", "ISETP.NE.AND P1, PT, R0, 0x5, PT",
             "LDGSTS.E.BYPASS.128.ZFILL [R9], desc[UR4][R6.64], P1",
             "LDGSTS.E.128 [R9], desc[UR4][R4.64+0x2000], !PT", "EXIT"]  # fmt: skip
    found = run(code_of(lines), (2, 1, 1), (40, 1, 1))
    threads = [(tile, t) for tile in range(2) for t in range(40) if (tile, t) != (0, 5)]
    assert as_bytes(found[READ]) == {
        (tile, 16 * (40 * tile + t) + i) for tile, t in threads for i in range(16 - (40 * tile + t) % 4)
    }


def test_a_branch_of_unknown_direction_goes_to_where_its_ways_meet():
    lines = [*LINEAR, "@P5 BRA {7}", "IADD3 R1, R0, 0x100, RZ", "IMAD.WIDE R6, R0, 0x4, R4",
             "STG.E desc[UR4][R6.64], R8", "EXIT"]  # fmt: skip
    threads = [(0, 9)]
    found = run(code_of(lines), ONE, (9, 1, 1))
    assert as_bytes(found[WRITE]) == touching(threads, 4, lambda _, t: [4 * t])
    assert len(found[WRITE]) == 1
    lines[6] = "IADD3 R0, R0, 0x100, RZ"
    assert run(code_of(lines), ONE, (9, 1, 1)) is None, "some threads may have changed it"


def test_calls_return_to_where_they_came_from():
    lines = [
        *LINEAR, "MOV R21, RZ", "ISETP.LT.AND P0, PT, R0, 0x5, PT", "@P0 BRA {11}", "MOV R20, {10}",
        "CALL.REL.NOINC {15}", "BRA {13}", "MOV R20, {13}", "CALL.REL.NOINC {14}", "EXIT",
        "IADD3 R0, R0, 0x20, RZ", "IMAD.WIDE R6, R0, 0x4, R4", "STG.E desc[UR4][R6.64], R8", "RET.REL.NODEC R20 0x0",
    ]  # fmt: skip
    found = run(code_of(lines), (2, 1, 1), (8, 1, 1))
    threads = [(0, 8), (1, 8)]
    assert as_bytes(found[WRITE]) == touching(
        threads, 4, lambda tile, t: [4 * (8 * tile + t + (0x20 if 8 * tile + t < 5 else 0))]
    )


def test_a_lane_hands_its_value_to_its_warp():
    lines = [*LINEAR, "SHFL.IDX PT, R1, R0, 0x3, 0x1f", "IMAD R1, R1, 0x40, R0", "IMAD.WIDE R6, R1, 0x4, R4",
             "STG.E desc[UR4][R6.64], R8", "EXIT"]  # fmt: skip
    found = run(code_of(lines), (2, 1, 1), (70, 1, 1))
    expected = touching(
        [(0, 70), (1, 70)], 4, lambda tile, t: [4 * ((70 * tile + t // 32 * 32 + 3) * 64 + 70 * tile + t)]
    )
    assert as_bytes(found[WRITE]) == expected
    lines[5:5] = ["ISETP.EQ.AND P0, PT, R0, 0x3, PT", "@P0 EXIT"]
    assert run(code_of(lines), (2, 1, 1), (70, 1, 1)) is None, "the lane has left"
    lines[5:7] = []
    assert run(code_of(lines), ONE, (3, 1, 1)) is None, "there is no such lane"


def test_a_warp_shares_a_uniform_register():
    lines = [*LINEAR, "SHF.R.U32.HI R1, RZ, 0x5, R0", "R2UR UR6, R1", "IADD3 R1, R0, UR6, RZ",
             "IMAD.WIDE R6, R1, 0x4, R4", "STG.E desc[UR4][R6.64], R8", "EXIT"]  # fmt: skip
    found = run(code_of(lines), (2, 1, 1), (64, 1, 1))
    expected = touching([(0, 64), (1, 64)], 4, lambda tile, t: [4 * (64 * tile + t + 2 * tile + t // 32)])
    assert as_bytes(found[WRITE]) == expected
    lines[5] = "SHF.R.U32.HI R1, RZ, 0x4, R0"
    assert run(code_of(lines), (2, 1, 1), (64, 1, 1)) is None, "threads of a warp do not agree"
    lines[5:7] = ["ISETP.LT.AND P0, PT, R0, 0x10, PT", "@P0 R2UR UR6, R4"]
    assert run(code_of(lines), ONE, (32, 1, 1)) is None, "nor on whether it is written"
    lines[7] = "IADD3 R1, R0, 0x0, RZ"
    assert run(code_of(lines), ONE, (32, 1, 1)) is not None, "which makes no difference here"
    lines[5:8] = ["S2UR UR6, SR_TID.Y", "IADD3 R1, R0, UR6, RZ"]
    assert run(code_of(lines), ONE, (32, 2, 1)) is not None
    assert run(code_of(lines), ONE, (16, 2, 1)) is None


def test_constants_are_loaded_from_computed_places():
    lines = [*LINEAR, "IMAD.SHL.U32 R1, R0, 0x4, RZ", "LDC R2, c[0x0][R1+0x218]", "IMAD.WIDE R6, R2, 0x4, R4",
             "STG.E desc[UR4][R6.64], R8", "EXIT"]  # fmt: skip
    words = [5, 9, 100, 7]
    found = run(code_of(lines), ONE, (4, 1, 1), *words)
    assert as_bytes(found[WRITE]) == touching([(0, 4)], 4, lambda _, t: [4 * words[t]])
    assert run(code_of(lines), ONE, (5, 1, 1), *words) is None, "beyond the parameters"
    lines[6] = "LDC R2, c[0x0][R1+0x208]"
    assert run(code_of(lines), ONE, (4, 1, 1), *words) is None, "before them"
    lines[5:7] = ["IMAD.SHL.U32 R1, R0, 0x2, RZ", "LDC R2, c[0x0][R1+0x218]"]
    assert run(code_of(lines), ONE, (4, 1, 1), *words) is None, "not aligned"


@pytest.mark.parametrize(
    "lines",
    [
        [*LINEAR, "BRA {5}"],  # for ever
        [*LINEAR, "STG.E desc[UR4][R4.64], R8"],  # past the end
        ["LDC.64 R4, c[0x0][0x28]", "STG.E desc[UR4][R4.64], R8", "EXIT"],
        ["LDC.64 R4, c[0x0][0x230]", "STG.E desc[UR4][R4.64], R8", "EXIT"],
        [*LINEAR, "BRX R4 -0x40", "EXIT"],
        [*LINEAR, "MOV R20, 0x8", "RET.REL.NODEC R20 0x0", "EXIT"],
    ],
)
def test_what_is_out_of_bounds_gives_no_answer(lines):
    assert run(code_of(lines), (2, 1, 1), (32, 1, 1)) is None
    good = [*LINEAR, "STG.E desc[UR4][R4.64], R8", "EXIT"]
    assert run(code_of(good), (2, 1, 1), (32, 1, 1)) is not None
    assert run(code_of(good), ONE, (2048, 1, 1)) is None


DIVIDES = [
    "S2R R0, SR_TID.X", "LDC.64 R4, c[0x0][0x210]", "IMAD.SHL.U32 R1, R0, 0x8, RZ", "LDC R2, c[0x0][R1+0x218]",
    "LDC R3, c[0x0][R1+0x21c]",
    "I2F.U32.RP R8, R3", "MUFU.RCP R8, R8", "VIADD R10, R8, 0xffffffe", "F2I.FTZ.U32.TRUNC.NTZ R11, R10",
    "MOV R10, RZ", "IADD3 R9, RZ, -R11, RZ", "IMAD R9, R9, R3, RZ", "IMAD.HI.U32 R11, R11, R9, R10",
    "IMAD.HI.U32 R12, R11, R2, RZ", "IADD3 R13, -R12, RZ, RZ", "IMAD R13, R3, R13, R2",
    "ISETP.GE.U32.AND P0, PT, R13, R3, PT", "@P0 IADD3 R13, R13, -R3, RZ", "@P0 VIADD R12, R12, 0x1",
    "ISETP.GE.U32.AND P1, PT, R13, R3, PT", "@P1 VIADD R12, R12, 0x1", "ISETP.NE.U32.AND P2, PT, R3, RZ, PT",
    "@!P2 LOP3.LUT R12, RZ, R3, RZ, 0x33, !PT",
    "IADD3 R6, P0, R12, R4, RZ", "IADD3.X R7, RZ, R5, RZ, P0, !PT", "STG.E.U8 desc[UR4][R6.64], RZ", "EXIT",
]  # fmt: skip
"""The compiler's division of one word by another, of which each thread has a pair."""


def test_a_quotient_does_not_depend_on_how_a_reciprocal_is_rounded():
    rng = random.Random(5)
    edges = [0, 1, 2, 3, 7, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]
    for threads in (1, 2, 2, 3, *[100] * 6):
        words = [rng.choice([rng.choice(edges), rng.getrandbits(32), rng.getrandbits(12)]) for _ in range(2 * threads)]
        found = run(code_of(DIVIDES), ONE, (threads, 1, 1), *words)
        quotients = {n // d if d else 0xFFFFFFFF for n, d in zip(words[::2], words[1::2], strict=True)}
        assert as_bytes(found[WRITE]) == {(0, q) for q in quotients}


@pytest.mark.parametrize(
    ("line", "replacements"),
    [
        (23, ["IADD3 R6, P0, R8, R4, RZ"]),  # the reciprocal itself is an address
        (12, ["NOP"]),  # it is not refined, so that a quotient may be wrong by more than is corrected
        (22, [DIVIDES[22], "LOP3.LUT P3, RZ, R8, 0x1, RZ, 0xc0, !PT", "@P3 EXIT"]),
        (25, ["LOP3.LUT P3, RZ, R8, 0x1, RZ, 0xc0, !PT", "@P3 STG.E.U8 desc[UR4][R6.64], RZ"]),
        (5, ["MOV R8, 0x3f000000"]),  # of a number whose reciprocal may have a greater error
    ],
)
def test_an_estimate_that_is_not_corrected_gives_no_answer(line, replacements):
    words = [0xFFFFFFFF, 3, 0xFFFFFFFE, 0x7FFF, 12345, 7, 0x80000000, 0x10001] * 25
    assert run(code_of(DIVIDES), ONE, (100, 1, 1), *words) is not None
    assert run(code_of([*DIVIDES[:line], *replacements, *DIVIDES[line + 1 :]]), ONE, (100, 1, 1), *words) is None


def test_two_estimates_are_not_mixed():
    mixed = ["I2F.U32.RP R20, R2", "MUFU.RCP R20, R20", "LOP3.LUT R20, R20, R8, RZ, 0x3c, !PT",
             "LOP3.LUT R20, R20, 0x0, RZ, 0xc0, !PT"]  # fmt: skip
    words = [77, 3, 9, 5]
    lines = [*DIVIDES[:7], *mixed, *DIVIDES[7:]]
    assert run(code_of(lines), ONE, (2, 1, 1), *words) is not None, "nothing depends on them"
    lines = [*DIVIDES[:7], *mixed[:3], *DIVIDES[7:23], "LOP3.LUT P3, R20, R20, R20, RZ, 0x3c, !PT", *DIVIDES[23:25]]
    lines += ["@!P3 STG.E.U8 desc[UR4][R6.64], RZ", "EXIT"]
    assert run(code_of(lines), ONE, (2, 1, 1), *words) is None, "not even where they cancel"
    lines = [
        *DIVIDES[:5], "MOV R14, RZ", "I2F.U32.RP R8, R3", "MUFU.RCP R8, R8", "LOP3.LUT R9, R8, R10, RZ, 0x3c, !PT",
        "MOV R10, R8", "IADD3 R14, R14, 0x1, RZ", "ISETP.LT.AND P0, PT, R14, 0x2, PT", "@P0 BRA {6}",
        "ISETP.NE.AND P3, PT, R9, RZ, PT", "@P3 EXIT", "STG.E.U8 desc[UR4][R4.64], RZ", "EXIT",
    ]  # fmt: skip
    assert run(code_of(lines), ONE, (2, 1, 1), *words) is None, "nor those of two turns"


@pytest.mark.parametrize(
    "lines",
    [
        # An atomic operation on vectors writes all of its registers.
        ["MOV R8, RZ", "MOV R11, RZ", "ATOMG.E.ADD.F32x4.FTZ.RN PT, R8, desc[UR4][R4.64], R12",
         "IMAD.WIDE R6, R11, 0x4, R4"],
        ["MOV R9, RZ", "ATOMG.E.ADD.F32x2.FTZ.RN PT, R8, desc[UR4][R4.64], R12", "IMAD.WIDE R6, R9, 0x4, R4"],
        # Bits of a pointer other than its lowest
        ["SHF.R.S32.HI R6, R4, 0x2, R5", "LOP3.LUT P0, RZ, R6, 0x3, RZ, 0xc0, !PT", "@P0 IADD3 R0, R0, 0x40, RZ",
         "IMAD.WIDE R6, R0, 0x4, R4"],
        ["LOP3.LUT P0, RZ, R4, R4, 0x3, 0xc0, !PT", "@P0 IADD3 R0, R0, 0x40, RZ", "IMAD.WIDE R6, R0, 0x4, R4"],
        # Carries that are not those of the sum
        ["IADD3 R6, P0, R4, 0x10, RZ", "IADD3.X R7, R5, RZ, RZ, !P0, !PT"],
        ["IADD3 R6, P0, R4, 0x10, RZ", "IADD3.X R7, R5, RZ, RZ, P0, P0"],
        ["IADD3 R6, P0, P1, R4, R0, 0x10", "IADD3.X R7, R5, RZ, RZ, P0, !PT"],
        ["IADD3 R6, P0, R4, 0x10, RZ", "IMAD.X R7, RZ, RZ, R5, !P0"],
    ],
)  # fmt: skip
def test_what_is_almost_an_address_is_none(lines):
    assert run(code_of([*LINEAR, *lines, "STG.E desc[UR4][R6.64], R1", "EXIT"]), ONE, (32, 1, 1)) is None


def test_an_address_is_one_of_its_sum_and_carry():
    lines = [*LINEAR, "IADD3 R6, P0, R4, 0x10, RZ", "IADD3.X R7, R5, RZ, RZ, P0, !PT", "STG.E desc[UR4][R6.64], R1",
             "EXIT"]  # fmt: skip
    assert as_bytes(run(code_of(lines), ONE, (32, 1, 1))[WRITE]) == {(0, 16 + i) for i in range(4)}


KERNEL = r"""
typedef unsigned u32; typedef unsigned long long u64;
struct Params { u32 limit, width, height, stride; };
#ifdef __CUDACC__
#define DEVICE __device__
#define NOINLINE __noinline__
#define LOAD(x) (*(volatile u32*)(x))
#define STORE(type, x) (*(volatile type*)(x) = (type)sum)
#define ADD(x) atomicAdd((u32*)(x), sum)
#define THREAD threadIdx.x + blockDim.x * threadIdx.y
#define BLOCK blockIdx.x + gridDim.x * blockIdx.y
#else
#include <cstdio>
#define DEVICE static
#define NOINLINE
static u32 thread, block;
#define LOAD(x) (printf("0 %u %llu 4\n", block, (u64)(x)), 0)
#define STORE(type, x) printf("1 %u %llu %zu\n", block, (u64)(x), sizeof(type))
#define ADD(x) printf("2 %u %llu 4\n", block, (u64)(x))
#define THREAD thread
#define BLOCK block
#endif
DEVICE NOINLINE u32 steps(u32 a, u32 b) {
    u32 n = 0;
    while (a > 1 && n < 20) { a = a & 1 ? 3 * a + b : a / 2; n++; }
    return n;
}
#ifdef __CUDACC__
extern "C" __global__
#endif
void kernel(u64 base, const Params p) {
    u32 t = THREAD, b = BLOCK, sum = 0;
    u32 i = b * 96 + t;
    for (u32 turn = 0; i < p.limit; i += 6 * 96, turn++) {
        u32 x = i % p.width, y = i / p.width % p.height, z = i / (p.width * p.height);
        sum += LOAD(base + 4ull * (x * p.stride + y * 7 + z));
        if ((x ^ y) & 1) {
            STORE(u32, base + 0x100000 + 4ull * i);
        } else if (z > 1) {
            u32 n = steps(i, turn);
            for (u32 k = 0; k < n; k++) {
                if (k == 5 + (t & 3)) continue;
                if (k > 11) break;
                STORE(unsigned short, base + 0x200000 + 2ull * (k * 4096 + i));
            }
        } else {
            sum = sum > 1000 ? sum * 3 : sum + 1;  // depends on memory, but touches none
        }
        if (turn == 1 && (t & 15) == 3) return;
    }
    if (t == 0) ADD(base + 0x300000 + 4ull * (b & 1));
    STORE(u64, base + 0x400000 + 8ull * (b * 96 + t));
}
#ifndef __CUDACC__
int main() {
    Params p = {3000, 13, 17, 40};
    for (block = 0; block < 6; block++)
        for (thread = 0; thread < 96; thread++) kernel(BASE, p);
}
#endif
"""


def test_a_compiled_kernel_touches_what_the_host_does(tmp_path):
    tool = locate.nvdisasm()
    if tool is None or shutil.which("nvcc") is None or shutil.which("g++") is None:
        pytest.skip("no nvdisasm, no nvcc or no g++")
    for suffix in ("cu", "cpp"):
        (tmp_path / f"k.{suffix}").write_text(KERNEL.replace("(BASE,", f"({BASE}ull,"))
    nvcc = ["nvcc", "-arch=sm_90", "-cubin", "-w", "-o", tmp_path / "k.cubin", tmp_path / "k.cu"]
    host = ["g++", "-w", "-o", tmp_path / "k", tmp_path / "k.cpp"]
    for command in (nvcc, host):
        subprocess.run(command, check=True, capture_output=True)
    lines = subprocess.run([tmp_path / "k"], capture_output=True, check=True, text=True).stdout.splitlines()
    expected = {}
    for mode, tile, address, size in (map(int, line.split()) for line in lines):
        expected.setdefault(mode, set()).update((tile, address - BASE + i) for i in range(size))

    code = disassembled(tool, cubins.section((tmp_path / "k.cubin").read_bytes(), ".text.kernel"))
    found = run(code, (3, 2, 1), (24, 4, 1), 3000, 13, 17, 40)
    assert {mode: as_bytes(runs) for mode, runs in found.items()} == expected
