"""What machine code may reach with a launch's constants, compared with programs that are run step by step."""

import random
import re
import shutil

import pytest

from tests.unit.record.cuda.code.cubins import compiled, section
from tileprof.record.cuda import machine_code
from tileprof.record.cuda.code.instructions import parse
from tileprof.record.cuda.installation import locate
from tileprof.record.cuda.machine_code import reached

PARAMETERS_AT = 0x7F0012340210


def with_addresses(lines):
    """Return text as nvdisasm prints it; ``{3}`` is the address of line 3."""
    text = "\n".join(f"        /*{16 * n:04x}*/  {line} ;" for n, line in enumerate(lines))
    return re.sub(r"\{(\d+)\}", lambda m: hex(16 * int(m[1])), text)


CHOOSES = [
    "LDC R0, c[0x0][0x300]",
    "ULDC.64 UR6, c[0x0][0x198]",
    "UIADD3 UR8, UP0, UR6, 0x70, URZ",
    "UIADD3.X UR9, URZ, UR7, URZ, UP0, !UPT",
    "LOP3.LUT P0, RZ, R0, 0x4, RZ, 0xc0, !PT",
    "@!P0 BRA {8}",
    "UTMASTG.2D [UR4], [UR8]",
    "EXIT",
    "STG.E desc[UR6][R2.64], R5",
    "EXIT",
]


def test_a_parameter_decides_whether_a_store_is_reached():
    code = parse(with_addresses(CHOOSES))
    assert reached(code, {0x300: 3}.get).maps == frozenset()
    assert reached(code, {0x300: 4}.get).maps == {0x70}
    assert reached(code, {}.get).maps == {0x70}
    assert 0x60 not in reached(code, {0x300: 3}.get).instructions


def test_what_a_loop_changes_is_not_taken_for_what_it_was_before():
    lines = [
        "MOV R0, 0x0", "IADD3 R0, R0, 0x1, RZ", "ISETP.NE.AND P0, PT, R0, 0x3, PT", "@P0 BRA {1}",
        "ULDC.64 UR8, c[0x0][0x198]", "UTMASTG.2D [UR4], [UR8]", "EXIT",
    ]  # fmt: skip
    assert reached(parse(with_addresses(lines)), {}.get).maps == {0}


def test_threads_that_wait_go_on_where_their_barrier_says():
    lines = ["BSSY B0, {4}", "BSYNC B0", "EXIT", "EXIT", "ULDC.64 UR8, c[0x0][0x198]", "UTMASTG.2D [UR4], [UR8]",
             "EXIT"]  # fmt: skip
    assert reached(parse(with_addresses(lines)), {}.get).maps == {0}


@pytest.mark.parametrize("line", ["CALL.REL.NOINC {0}", "BRX R2 -0x40", "@P3 CALL.ABS.NOINC 0x0"])
def test_nothing_is_inferred_where_code_may_go_anywhere(line):
    assert reached(parse(with_addresses([line, "EXIT"])), {}.get) is None


@pytest.mark.parametrize(
    "before",
    [
        ["ULDC.64 UR8, c[0x0][0x310]"],  # a pointer among the parameters
        ["ULDC.64 UR8, c[0x0][0x198]", "R2UR UR8, R3"],
        ["ULDC.64 UR8, c[0x0][0x198]", "UNHEARDOF R24, P0"],
        ["ULDC.64 UR8, c[0x0][0x198]", "VOTEU.ANY UP0, UR8, P0"],
        ["ULDC.64 UR8, c[0x0][0x198]", "@P1 UIADD3 UR8, UR8, 0x80, URZ"],
    ],
)
def test_a_map_at_an_unknown_address_is_not_known(before):
    assert reached(parse(with_addresses([*before, "UTMASTG.2D [UR4], [UR8]", "EXIT"])), {}.get).maps is None


def test_what_multiplies_or_loads_leaves_uniform_registers_alone():
    lines = [
        "ULDC.64 UR8, c[0x0][0x198]", "HGMMA.64x64x16.F32 R24, gdesc[UR8], R24, !UPT", "LDSM.16.M88.4 R4, [R8]",
        "SHFL.UP P6, R14, R13, R12, R11", "UTMASTG.2D [UR4], [UR8]", "EXIT",
    ]  # fmt: skip
    assert reached(parse(with_addresses(lines)), {}.get).maps == {0}


def test_a_result_behind_a_predicate_is_not_what_its_register_held():
    lines = [
        "MOV R14, 0x0", "SHFL.UP P6, R14, R13, R12, R11", "ISETP.NE.AND P0, PT, R14, RZ, PT", "@P0 EXIT",
        "UTMASTG.2D [UR4], [UR8]", "EXIT",
    ]  # fmt: skip
    assert reached(parse(with_addresses(lines)), {}.get).maps is None
    assert len(reached(parse(with_addresses(lines)), {}.get).instructions) == 6


def test_random_programs_execute_nothing_that_is_not_reached():
    rng = random.Random(7)
    stored = sharper = 0
    for _ in range(300):
        lines = [_random_line(rng, 24) for _ in range(24)] + ["EXIT"]
        code = parse(with_addresses(lines))
        constants = {0x210 + 4 * i: rng.choice([0, 1, 2, 0xFFFFFFFF]) for i in range(4)}
        known_values = {k: v for k, v in constants.items() if rng.random() < 0.7}
        analysis = reached(code, known_values.get)
        assert analysis is not None
        sharper += len(analysis.instructions) < len(code)
        for _ in range(6):
            executed_at, maps = _run(code, constants, rng)
            assert executed_at <= analysis.instructions
            assert analysis.maps is None or maps <= analysis.maps
            stored += bool(maps) and analysis.maps is not None
    assert stored > 20
    assert sharper > 60


def _random_line(rng, lines):
    register = lambda: f"R{rng.randrange(4)}"  # noqa: E731
    uniform = lambda: f"UR{rng.choice([4, 6, 8])}"  # noqa: E731
    predicate = lambda: rng.choice(["P0", "P1", "PT"])  # noqa: E731
    condition = lambda: rng.choice(["P0", "!P1", "PT", "!PT"])  # noqa: E731
    word = lambda: rng.choice([register(), "RZ", "0x1", "0x2", "-0x1", "c[0x0][0x214]"])  # noqa: E731
    guard = rng.choice(["", "", "", "@P0 ", "@!P1 "])
    comparison = f"ISETP.{rng.choice(['LT', 'EQ', 'GE', 'NE'])}{rng.choice(['', '.U32'])}.{rng.choice(['AND', 'OR'])}"
    a, table = uniform(), hex(rng.randrange(256))
    return guard + rng.choice(
        [
            f"S2R {register()}, SR_TID.X",
            f"LDC {register()}, c[0x0][{hex(0x210 + 4 * rng.randrange(4))}]",
            f"MOV {register()}, {word()}",
            f"IMAD.MOV.U32 {register()}, RZ, RZ, {word()}",
            f"IADD3 {register()}, {word()}, {word()}, {word()}",
            f"LOP3.LUT {register()}, {word()}, {word()}, {word()}, {hex(rng.randrange(256))}, !PT",
            f"LOP3.LUT {rng.choice(['P0', 'P1'])}, {register()}, {word()}, {word()}, RZ, {table}, !PT",
            f"{comparison} {predicate()}, {predicate()}, {word()}, {word()}, {condition()}",
            f"PLOP3.LUT {predicate()}, PT, {condition()}, {condition()}, {condition()}, {hex(rng.randrange(256))}, 0x0",
            f"BRA {{{rng.randrange(lines)}}}",
            f"BRA {{{rng.randrange(lines)}}}",
            f"SEL {register()}, {word()}, {word()}, {condition()}",
            f"ULDC.64 {a}, c[0x0][0x198]",
            f"ULDC.64 {a}, c[0x0][0x198]",
            f"UIADD3 {a}, UP0, {a}, {hex(0x40 * rng.randrange(4))}, URZ",
            f"UTMASTG.2D [UR4], [{a}]",
            "UTMASTG.2D [UR4], [UR8]",
            "EXIT",
        ]
    )


def _run(code, constants, rng):
    """Return the addresses that one thread executes, at most 200 steps, and offsets of the maps that it stores
    through.
    """
    state = {f"P{i}": bool(rng.randrange(2)) for i in range(2)} | {"UP0": False, "PT": True, "UPT": True}
    state |= {f"R{i}": rng.randrange(4) for i in range(4)} | {f"UR{i}": rng.randrange(1 << 32) for i in range(12)}
    state |= {"RZ": 0, "URZ": 0}
    bank = constants | {0x198: PARAMETERS_AT & 0xFFFFFFFF, 0x19C: PARAMETERS_AT >> 32}

    def word(text):
        if text.startswith("c["):
            return bank[int(text[7:-1], 16)]
        return state[text] if text in state else int(text, 16) & 0xFFFFFFFF

    def holds(text):
        return state[text.lstrip("!")] != text.startswith("!")

    def put(name, value):
        if name not in {"PT", "RZ", "URZ", "UPT"}:
            state[name] = value

    def table(lut, values):
        return lut >> (4 * values[0] + 2 * values[1] + values[2]) & 1

    place, executed_at, maps = {i.address: n for n, i in enumerate(code)}, set(), set()
    n = 0
    for _ in range(200):
        i = code[n]
        executed_at.add(i.address)
        n += 1
        if i.guard is not None and state[i.guard[0]] == i.guard[1]:
            continue
        o = list(i.operands)
        if i.name == "EXIT":
            break
        if i.name == "BRA":
            n = place[int(o[0], 16)]
        elif i.name == "UTMASTG":
            low = int(o[1][3:-1])
            maps.add((state[f"UR{low}"] | state[f"UR{low + 1}"] << 32) - PARAMETERS_AT)
        elif i.name == "S2R":
            put(o[0], rng.randrange(4))
        elif i.operation == "ULDC.64":
            put(o[0], bank[int(o[1][7:-1], 16)])
            put(f"UR{int(o[0][2:]) + 1}", bank[int(o[1][7:-1], 16) + 4])
        elif i.name in {"MOV", "LDC"} or i.operation == "IMAD.MOV.U32":
            put(o[0], word(o[-1]))
        elif i.name == "SEL":
            put(o[0], word(o[1] if holds(o[3]) else o[2]))
        elif i.name in {"IADD3", "UIADD3"}:
            put(o[0], sum(word(w) for w in o[1:] if w != "UP0") & 0xFFFFFFFF)
        elif i.name == "LOP3":
            first = o.pop(0) if o[0].startswith("P") else None
            values = [word(w) for w in o[1:4]]
            result = sum(table(int(o[4], 16), [v >> b & 1 for v in values]) << b for b in range(32))
            put(o[0], result)
            if first:
                put(first, result != 0)
        elif i.name == "ISETP":
            kinds = i.operation.split(".")
            a, b = (v if "U32" in kinds or v < 1 << 31 else v - (1 << 32) for v in (word(o[2]), word(o[3])))
            is_so = {"LT": a < b, "EQ": a == b, "GE": a >= b, "NE": a != b}[kinds[1]]
            both, other = (lambda x, y: x and y) if kinds[-1] == "AND" else (lambda x, y: x or y), holds(o[4])
            results = both(is_so, other), both(not is_so, other)
            put(o[0], results[0])
            put(o[1], results[1])
        elif i.name == "PLOP3":
            put(o[0], bool(table(int(o[5], 16), [holds(w) for w in o[2:5]])))
    return executed_at, maps


STORES_BY_MODE = r"""
#include <stdint.h>
struct alignas(64) Map { uint64_t words[16]; };
extern "C" __global__ void chooses(const __grid_constant__ Map first, const __grid_constant__ Map second, int mode,
                                   float* out) {
    __shared__ alignas(128) float tile[1024];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0 && mode != 0) {
        const Map* map = mode == 1 ? &first : &second;
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
                     "r"(blockIdx.x * 32), "r"(0), "r"((uint32_t)__cvta_generic_to_shared(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    out[blockIdx.x * 1024 + threadIdx.x] = tile[threadIdx.x ^ 1];
}
"""


def test_code_of_the_compiler_is_followed_with_its_parameters(tmp_path):
    tool = locate.nvdisasm()
    if tool is None or shutil.which("nvcc") is None:
        pytest.skip("no nvdisasm or no nvcc")
    cubin = compiled(tmp_path, "k", STORES_BY_MODE, "-arch=sm_90a")
    code = machine_code.disassembled(tool, section(cubin.read_bytes(), ".text.chooses"))
    assert len(code) > 20
    first, second, mode = 0x240 - 0x210, 0x2C0 - 0x210, 0x340  # maps are aligned to 64 bytes
    assert reached(code, {mode: 0}.get).maps == frozenset()
    assert reached(code, {mode: 1}.get).maps == {first}
    assert reached(code, {mode: 2}.get).maps == {second}
    assert reached(code, {}.get).maps is None


def test_a_kernel_that_keeps_silent_is_not_asked_for_ever(tmp_path, monkeypatch):
    (tmp_path / "code-3.bin").write_bytes(bytes(16))
    queries = []
    monkeypatch.setattr(machine_code, "disassembled", lambda *_: parse(with_addresses(["EXIT"])))
    monkeypatch.setattr(machine_code, "reached", lambda *_: queries.append(0))
    kernels = machine_code.Kernels(tmp_path, tmp_path / "nvdisasm")
    for word in [*range(10), *range(10)]:
        assert kernels.reached(3, {0x210: word}) is None
    assert len(queries) == machine_code.MOST_SILENT
    assert kernels.reached(4, {}) is None, "without code"


def test_code_that_is_completed_when_it_is_loaded_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "disassembled", lambda *_: parse(with_addresses(["EXIT"])))
    for kernel in (3, 4):
        (tmp_path / f"code-{kernel}.bin").write_bytes(bytes(16))
    (tmp_path / "relocated-3.bin").write_bytes(bytes(4))
    kernels = machine_code.Kernels(tmp_path, tmp_path / "nvdisasm")
    assert [kernels.reached(kernel, {}) is not None for kernel in (3, 4)] == [False, True]
