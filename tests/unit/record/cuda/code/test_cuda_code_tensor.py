"""Launches that use tensor maps, clusters, barriers and warps, followed through their machine code."""

import shutil
import struct
import subprocess

import numpy as np
import pytest

from tests.unit.record.cuda.code.random_code import code_of
from tileprof.record.cuda.code import lanes, reading, slots, traced
from tileprof.record.cuda.code.disassembly import disassembled
from tileprof.record.cuda.code.reading import Kernel
from tileprof.record.cuda.code.traced import trace
from tileprof.record.cuda.code.traces import Launch, Trace, placed
from tileprof.record.cuda.installation import locate
from tileprof.trace import READ, WRITE

BEGIN, FIRST, SECOND, WORDS = 0x210, 0x240, 0x280, 0x2C0
"""Places of the parameters, of two tensor maps and of other words."""
BASE = 0x7F00_1234_0000
HALF, SINGLE = (2, 6), (4, 7)
"""Element types: bytes and the map's own number."""


def tensor_map(base, sizes, box, element=HALF, pitch=None):
    """Return the 64 bytes of a tiled map; rows lie ``pitch`` bytes apart."""
    words = np.zeros(16, np.uint32)
    words[:3] = base & 0xFFFFFFFF, base >> 32, len(sizes) - 1 << 4 | element[1] << 7
    stride = pitch or sizes[0] * element[0]
    for d, size in enumerate(sizes[1:]):
        words[3 + d], stride = stride >> 4, stride * size
    words[8 : 8 + len(sizes)] = np.array(sizes) - 1
    words[13] = box[0] - 1 << 24
    words[14] = sum(b - 1 << 8 * d for d, b in enumerate(box[1:]))
    return words.tobytes()


def launch(*words, grid=(4, 1, 1), block=(64, 1, 1), cluster=(1, 1, 1), pointers=()):
    """Return a launch with two maps and some words of 32 bits among its parameters."""
    maps = tensor_map(BASE, (64, 64), (16, 8)) + tensor_map(BASE + (1 << 30), (64, 64), (32, 4))
    parameters = bytes(FIRST - BEGIN) + maps + struct.pack(f"<{len(words)}I", *words)
    bank = struct.pack("<6I", *block, *grid).ljust(BEGIN, b"\0") + parameters
    return Launch(grid, block, cluster, bank, BEGIN, frozenset({FIRST, SECOND, *pointers}))


def boxes(found):
    """Return (map, mode, block, first two coordinates) of each box."""
    assert isinstance(found, Trace), found
    return {
        (t.map, t.mode, tile, *at[:2])
        for t in found.tensors
        for tile, at in zip(t.tile.tolist(), t.coordinates.tolist(), strict=True)
    }


LOADS = ["UMOV UR8, 0x400", "UMOV UR9, 0x8000"]
MAP = ["ULDC.64 UR4, c[0x0][0x198]", "UIADD3 UR4, UP0, UR4, 0x30, URZ", "UIADD3.X UR5, URZ, UR5, URZ, UP0, !UPT"]
"""To FIRST: 0x30 behind the first parameter."""
BOX = [*LOADS, *MAP, "S2UR UR10, SR_CTAID.X", "UMOV UR11, 0x8", "UTMALDG.2D [UR8], [UR4]", "EXIT"]


def followed(lines, *words, **options):
    return trace(Kernel(code_of(lines)), launch(*words, **options))


def test_a_load_through_a_map_is_a_box_for_each_block():
    found = followed(BOX)
    assert boxes(found) == {(FIRST, READ, block, block, 8) for block in range(4)}
    assert found.rows == {}
    ((mode, loads),) = placed(found, launch()).boxes
    assert (mode, loads.map.base) == (READ, BASE)
    strided = loads.boxes()
    assert strided.address.tolist() == [BASE + 2 * (block + 8 * 64) for block in range(4)]
    assert strided.length.tolist() == [32] * 4


def test_a_store_names_its_coordinates_behind_its_place():
    lines = ["UMOV UR8, 0x400", "S2UR UR9, SR_CTAID.X", "UMOV UR10, -0x4", "ULDC.64 UR4, c[0x0][0xc0]",
             "UIADD3.64 UR4, UR4, 0x280, URZ", "UTMASTG.2D [UR8], [UR4]", "EXIT"]  # fmt: skip
    expected = {(SECOND, WRITE, block, block, -4) for block in range(4)}
    assert boxes(followed(lines)) == expected
    low_half = [*lines[:4], "UIADD3.64 UR4, UR4, 0x240, URZ", "UIADD3 UR4, UR4, 0x40, URZ", *lines[5:]]
    assert boxes(followed(low_half)) == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({5: "LDG.E R3, desc[UR6][R2.64]", 6: "R2UR UR10, R3"}, "unknown"),
        ({5: "S2R R3, SR_TID.X", 6: "R2UR UR10, R3"}, "unknown"),
        ({3: "UIADD3 UR4, UP0, UR4, 0xb0, URZ"}, "not among the parameters"),
        ({3: "UIADD3 UR4, UP0, UR4, 0x34, URZ"}, "pointers in it"),
        ({3: "ULOP3.LUT UR4, UR4, 0x30, URZ, 0xfc, !UPT"}, "unknown"),
        ({4: "UMOV UR5, URZ"}, "unknown"),
        ({7: "UTMALDG.1D [UR8], [UR4]"}, "dimensions"),
        ({7: "UTMALDG.3D [UR8], [UR4]"}, "UR12"),
        ({7: "UTMALDG.2D.IM2COL [UR8], [UR4], UR12"}, "not known"),
        ({7: "@P3 UTMALDG.2D [UR8], [UR4]"}, "whether"),
        ({7: "UBLKCP [UR8], [UR4], UR6"}, "not known"),
    ],
)
def test_a_box_that_depends_on_more_is_not_known(change, why):
    lines = [change.get(n, line) for n, line in enumerate(BOX)]
    found = followed(lines)
    assert isinstance(found, str)
    assert why in found


def test_a_map_with_a_pointer_in_it_is_not_known():
    assert "pointers in it" in followed(BOX, pointers={FIRST + 16})


SLOT = [
    "S2R R0, SR_TID.X",
    "S2UR UR12, SR_CTAID.X",
    "ULDC UR13, c[0x0][0x2c0]",
    "UIADD3 UR12, UR12, UR13, URZ",
    "MOV R4, UR12",
    "ISETP.NE.AND P0, PT, R0, 0x20, PT",
    "@!P0 STS [UR14+0x9000], R4",
    "BAR.SYNC 0x0",
    *LOADS,
    *MAP,
    "LDS R5, [UR14+0x9000]",
    "R2UR UR10, R5",
    "UMOV UR11, URZ",
    "UTMALDG.2D [UR8], [UR4]",
    "NOP",
    "EXIT",
]
"""One thread hands a coordinate to all through shared memory."""


def with_ranks(lines):
    """Return lines that keep the block's rank in its cluster above its places in shared memory, in UR14."""
    return ["S2UR UR14, SR_CgaCtaId", "UPRMT UR14, URZ, 0x4210, UR14", *lines]


def test_a_word_of_shared_memory_is_what_all_stored_there():
    assert boxes(followed(with_ranks(SLOT), 5)) == {(FIRST, READ, block, block + 5, 0) for block in range(4)}


def test_blocks_of_a_cluster_have_their_own_words():
    found = followed(with_ranks(SLOT), 5, cluster=(2, 1, 1))
    assert boxes(found) == {(FIRST, READ, block, block + 5, 0) for block in range(4)}


REFUTATIONS = {
    "two values": {6: "STS [UR14+0x9000], R0"},
    "nothing stored": {6: "NOP"},
    "what was stored is not known": {4: "LDS.64 R4, [UR14+0x100]"},
    "another word overlaps": {7: "STS.64 [UR14+0x8ffc], R0"},
    "matrices overlap": {7: "STSM.16.M88.4 [R0+UR14+0x8ff8], R8"},
    "a barrier overlaps": {7: "SYNCS.EXCH.64 URZ, [UR14+0x8ffc], UR10"},
    "it is stored at a place that is not known": {7: "STS [R9], R0"},
    "a copy overlaps": {7: "LDGSTS.E.128 [UR14+0x8ff4], desc[UR6][R2.64]"},
    "an atomic": {7: "ATOMS.ADD RZ, [UR14+0x9000], R0"},
    "a box overlaps": {8: "UMOV UR8, 0x8f80"},
    "its barrier overlaps": {9: "UMOV UR9, 0x8ffc"},
    "it is stored later": {17: "STS [UR14+0x9000], RZ"},
}


@pytest.mark.parametrize("change", REFUTATIONS.values(), ids=REFUTATIONS)
def test_a_word_of_shared_memory_that_may_be_another_is_not_known(change):
    lines = [change.get(n, line) for n, line in enumerate(SLOT)]
    if 7 in change and "R2.64" in change[7]:
        lines.insert(0, "LDC.64 R2, c[0x0][0x240]")
    assert isinstance(followed(with_ranks(lines), 5), str)


def test_a_block_that_stores_in_all_of_its_cluster():
    remote = [*SLOT[:6], "@!P0 STS [0x9000], R4", *SLOT[7:]]  # without a rank: of the first block, or of its own
    assert isinstance(followed(with_ranks(remote), 5, cluster=(2, 1, 1)), str)
    assert boxes(followed(with_ranks(remote), 5))
    lines = ["UMOV UR8, 0x8f80", *SLOT[9:-1]]
    multicast = [*SLOT[:8], *lines, "EXIT"]
    of_all = "UTMALDG.2D.MULTICAST [UR8], [UR4], UR20"
    multicast = [line.replace("UTMALDG.2D [UR8], [UR4]", of_all) for line in multicast]
    assert isinstance(followed(with_ranks(multicast), 5, cluster=(2, 1, 1)), str)


def test_a_wait_for_a_barrier_decides_nothing():
    wait = ["SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR14], R9", "@!P1 BRA {0}"]
    assert boxes(followed([*wait, *BOX])) == boxes(followed(BOX))
    stores = ["SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR14], R9", "STG.E desc[UR6][R2.64], R0", "@!P1 BRA {0}"]
    assert isinstance(followed([*stores, *BOX]), str)


def test_what_a_wait_may_change_is_not_known_behind_it():
    wait = ["UMOV UR10, URZ", "UIADD3 UR10, UR10, 0x1, URZ", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR14], R9",
            "@!P1 BRA {1}"]  # fmt: skip
    lines = [*wait, *(line for line in BOX if "UR10, SR" not in line)]
    assert "UR10" in followed(lines)


def test_a_warp_chooses_the_values_of_any_of_its_threads_where_they_are_equal():
    even = ["S2R R0, SR_TID.X", "SHF.R.U32.HI R1, RZ, 0x5, R0", "R2UR UR10, R1", *LOADS, *MAP, "UMOV UR11, URZ",
            "UTMALDG.2D [UR8], [UR4]", "EXIT"]  # fmt: skip
    assert boxes(followed(even, grid=(1, 1, 1))) == {(FIRST, READ, 0, warp, 0) for warp in range(2)}
    late = ["S2R R0, SR_TID.X", "R2UR UR10, R0", "USHF.R.U32.HI UR10, URZ, 0x5, UR10", *even[3:]]
    assert boxes(followed(late, grid=(1, 1, 1))) == {(FIRST, READ, 0, warp, 0) for warp in range(2)}
    mixed = ["S2R R0, SR_TID.X", "R2UR UR10, R0", "IADD3 R1, R0, UR10, RZ", "SHF.R.U32.HI R1, RZ, 0x8, R1",
             "R2UR UR10, R1", *even[3:]]  # fmt: skip
    assert "UR10" in followed(mixed, grid=(1, 1, 1))


ELECTED = ["ELECT P0, URZ, PT", "S2R R0, SR_TID.X", "ISETP.LT.AND P0, PT, R0, 0x20, P0", "VOTEU.ANY UP1, P0"]


def test_one_thread_of_each_warp_is_elected():
    lines = [*ELECTED, *BOX[:7], "@UP1 UTMALDG.2D [UR8], [UR4]", "EXIT"]
    found = followed(lines)
    assert boxes(found) == {(FIRST, READ, block, block, 8) for block in range(4)}
    never = [line.replace("ANY", "ALL") for line in lines]
    assert boxes(followed(never)) == set()


@pytest.mark.parametrize("condition", ["R0, 0x1", "R0, 0x3"])
def test_what_depends_on_which_thread_is_elected_is_not_known(condition):
    lines = [*ELECTED[:2], f"ISETP.LT.AND P0, PT, {condition}, P0", ELECTED[3], *BOX[:7],
             "@UP1 UTMALDG.2D [UR8], [UR4]", "EXIT"]  # fmt: skip
    assert "whether" in followed(lines)
    to_uniform = ["ELECT P0, URZ, PT", "S2R R0, SR_TID.X", *BOX[:5], "@P0 R2UR UR10, R0", *BOX[6:]]
    assert "UR10" in followed(to_uniform)


def test_a_vote_of_threads_that_are_elsewhere_is_not_known():
    lines = ["S2R R0, SR_TID.X", "ISETP.LT.AND P0, PT, R0, 0x8, PT", "@P0 BRA {5}", "VOTEU.ANY UP1, PT", "NOP",
             *BOX[:7], "@UP1 UTMALDG.2D [UR8], [UR4]", "EXIT"]  # fmt: skip
    assert "whether" in followed(lines)


def test_what_is_done_for_each_thread_in_turn_is_done_the_same():
    loop = ["PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0", *BOX[:7], "@P0 ELECT P3, URZ, PT", "UTMALDG.2D [UR8], [UR4]",
            "@P3 PLOP3.LUT P0, PT, P3, PT, PT, 0x8, 0x0", "@P0 BRA.U.ANY {8}", "EXIT"]  # fmt: skip
    assert boxes(followed(loop)) == boxes(followed(BOX))
    changes = [*loop[:10], "UIADD3 UR10, UR10, 0x1, URZ", *loop[11:]]
    assert isinstance(followed(changes), str)


def test_all_faults_that_are_planted_are_found(monkeypatch):
    def outcome(lines, *words, **options):
        found = followed(lines, *words, **options)
        return found if isinstance(found, str) else boxes(found)

    slot_lines = with_ranks(SLOT)
    changed = [with_ranks([c.get(n, x) for n, x in enumerate(SLOT)]) for c in REFUTATIONS.values()]
    shifted = ["S2R R0, SR_TID.X", "R2UR UR10, R0", *LOADS, *MAP, "UMOV UR11, URZ", "UTMALDG.2D [UR8], [UR4]", "EXIT"]
    elected = ["ELECT P0, URZ, PT", "S2R R0, SR_TID.X", *BOX[:5], "@P0 R2UR UR10, R0", *BOX[6:]]
    stores = ["LDC.64 R2, c[0x0][0x240]", "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR14], R9", "@P1 BRA {4}",
              "STG.E desc[UR6][R2.64], R0", *BOX]  # fmt: skip
    first = "ISETP.LT.AND P0, PT, R0, 0x1, P0"
    votes = [*ELECTED[:2], first, ELECTED[3], *BOX[:7], "@UP1 UTMALDG.2D [UR8], [UR4]", "EXIT"]
    cases = [(slot_lines, {}), (slot_lines, {"cluster": (2, 1, 1)}), *((lines, {}) for lines in changed),
             (shifted, {}), (elected, {}), (stores, {}), (votes, {})]  # fmt: skip

    def outcomes():
        return [isinstance(outcome(lines, 5, **options), str) for lines, options in cases]

    right = outcomes()
    assert sum(right) == len(REFUTATIONS) + 4
    faults = [
        (slots.Slots, "hold", lambda _: True),
        (slots.Slots, "store_unknown", lambda *_: None),
        (lanes.Layout, "is_even", lambda *_: True),
        (lanes.Warps, "some", lanes.Warps.any),
        (reading.Kernel, "_is_quiet", lambda *_: True),
    ]
    for owner, name, wrong in faults:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, wrong)
            if name == "is_even":
                patch.setattr(traced, "UNEVEN", 0)
            assert outcomes() != right, name


MOVES = r"""
#include <stdint.h>
struct alignas(64) Map { uint64_t words[8]; };
__device__ inline uint32_t place(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
extern "C" __global__ __cluster_dims__(2, 1, 1) void moves(const __grid_constant__ Map from,
                                                            const __grid_constant__ Map to, int steps, int tiles,
                                                            float* sums) {
    __shared__ alignas(128) float box[2][8 * 32];
    __shared__ alignas(8) uint64_t full;
    __shared__ int chosen;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place(&full)));
    if (threadIdx.x == 33) chosen = (blockIdx.x * 5 + 3) % tiles;
    __syncthreads();
    int tile = chosen;
    float sum = 0;
    for (int k = 0; k < steps; ++k) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(place(&full)) : "memory");
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                " [%0], [%1, {%2, %3}], [%4];" ::"r"(place(box[k & 1])), "l"(&from), "r"(32 * k - 32), "r"(8 * tile),
                "r"(place(&full)) : "memory");
        }
        uint32_t done = 0;
        while (!done)
            asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                         : "=r"(done) : "r"(place(&full)), "r"(k & 1) : "memory");
        sum += box[k & 1][threadIdx.x];
        __syncthreads();
    }
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    box[0][threadIdx.x] = sum;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     ::"l"(&to), "r"(8 * rank), "r"(4 * tile), "r"(place(box[0])) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the kernel above as the compiler makes it."""
    tool = locate.nvdisasm()
    if tool is None or shutil.which("nvcc") is None:
        pytest.skip("no nvdisasm or no nvcc")
    folder = tmp_path_factory.mktemp("moves")
    (folder / "k.cu").write_text(MOVES)
    command = ["nvcc", "-arch=sm_90a", "-cubin", "-o", folder / "k.cubin", folder / "k.cu"]
    subprocess.run(command, check=True, capture_output=True)
    code = disassembled(tool, _section((folder / "k.cubin").read_bytes(), ".text.moves"))
    return Kernel(code)


def _section(image, name):
    (table,) = struct.unpack_from("<Q", image, 40)
    size, number, names = struct.unpack_from("<HHH", image, 58)
    rows = [struct.unpack_from("<IIQQQQ", image, table + n * size) for n in range(number)]
    at = rows[names][4]
    for title, _, _, _, offset, length in rows:
        if image[at + title :].split(b"\0", 1)[0].decode() == name:
            return image[offset : offset + length]
    raise AssertionError(name)


@pytest.mark.parametrize(("steps", "tiles"), [(0, 3), (1, 7), (4, 11)])
def test_a_kernel_of_the_compiler_loads_and_stores_the_boxes_that_its_source_says(compiled, steps, tiles):
    sums = 0x7F55_0000_1000
    maps = tensor_map(BASE, (200, 160), (32, 8), SINGLE) + tensor_map(BASE + (1 << 30), (64, 64), (16, 4), SINGLE)
    parameters = bytes(FIRST - BEGIN) + maps + struct.pack("<IIQ", steps, tiles, sums)
    grid, block = (6, 1, 1), (256, 1, 1)
    bank = struct.pack("<6I", *block, *grid).ljust(BEGIN, b"\0") + parameters
    at = Launch(grid, block, (2, 1, 1), bank, BEGIN, frozenset({FIRST, SECOND, WORDS + 8}))
    found = trace(compiled, at)
    chosen = [(b * 5 + 3) % tiles for b in range(6)]
    loads = {(FIRST, READ, b, 32 * k - 32, 8 * chosen[b]) for b in range(6) for k in range(steps)}
    stores = {(SECOND, WRITE, b, 8 * (b % 2), 4 * chosen[b]) for b in range(6)}
    assert boxes(found) == loads | stores
    (mode,) = found.rows
    runs = placed(found, at).runs[mode]
    assert mode == WRITE
    assert runs.tile.tolist() == list(range(6))
    assert runs.start.tolist() == [sums + 1024 * b for b in range(6)]
    assert runs.end.tolist() == [sums + 1024 * b + 1024 for b in range(6)]
