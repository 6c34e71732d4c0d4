"""Launches without patches to traces: what they touch is computed from code and parameters, or is all memory."""

import struct
from itertools import product

import numpy as np
import pytest

from tests.unit.record.cuda.code.cubins import compiled, section
from tests.unit.record.cuda.cuda_records import KERNEL, access, block_record, launch
from tests.unit.record.cuda.optional_tools import path_or_none
from tileprof.record.cuda import computed
from tileprof.record.cuda.code import proofs
from tileprof.record.cuda.code.proofs import Proofs
from tileprof.record.cuda.installation import locate
from tileprof.record.cuda.installation.selftest import granules
from tileprof.record.cuda.records.tiles import Times
from tileprof.record.cuda.tensor_maps import tensormap
from tileprof.record.cuda.tensor_maps.loads import Loads
from tileprof.trace import ATOMIC, READ, WRITE

pytestmark = pytest.mark.skipif(
    path_or_none(locate.nvcc) is None or locate.nvdisasm() is None, reason="needs nvcc and nvdisasm"
)

CODE = r"""
#include <stdint.h>
struct alignas(64) Map { uint64_t words[16]; };
extern "C" __global__ void strips(float* out, const float* in, int pitch, int rows) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < rows) out[row * pitch + column] = in[column * rows + row] + 1;
}
extern "C" __global__ void adds(int* sum, const int* in) {
    atomicAdd(sum + blockIdx.x * blockDim.x + threadIdx.x, in[threadIdx.x]);
}
extern "C" __global__ void gather(float* out, const int* index) { out[index[threadIdx.x]] = 1; }
extern "C" __global__ void boxes(const __grid_constant__ Map from, const __grid_constant__ Map to) {
    __shared__ alignas(128) float tile[256];
    __shared__ uint64_t barrier;
    uint32_t at = (uint32_t)__cvta_generic_to_shared(tile), wait = (uint32_t)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(wait) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(wait) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(at), "l"(&from), "r"(blockIdx.x * 32), "r"(blockIdx.y * 8), "r"(wait) : "memory");
    }
    for (uint32_t done = 0; !done;)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(wait) : "memory");
    tile[threadIdx.x] *= 2;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     ::"l"(&to), "r"(blockIdx.x * 32), "r"(blockIdx.y * 8), "r"(at) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""
OUT, IN, LATER = 0x7F0000200000, 0x7F0000100000, 0x7F0000400000
"""Addresses of buffers; `LATER` and what follows it are a second pair."""
SIZE = 0x10000
PITCH, ROWS = 160, 6
GRID, BLOCK = (4, 2, 1), (32, 4, 1)
BLOCKS = GRID[0] * GRID[1]


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("kernels"), "k", CODE, "-arch=sm_90a").read_bytes()


class Raw:
    """Events of a process and the files beside them; kernels are numbered in the order in which they are launched."""

    def __init__(self, folder, image):
        self.folder, self.image, self.kernels, self.number, self.parameters = folder, image, [], 0, b"before"
        self.events = [
            {"e": "alloc", "address": address, "bytes": SIZE, "device": 0, "flags": 0}
            for address in (IN, OUT, LATER, LATER + SIZE)
        ]

    def launch(self, kernel, parameters, pointers=(0, 1), *, grid=GRID, block=BLOCK, cluster=(1, 1, 1), **fields):
        """Add a launch without patches; return its number."""
        if kernel not in self.kernels:
            number = len(self.kernels)
            self.kernels.append(kernel)
            self.folder.joinpath(f"code-{number}.bin").write_bytes(section(self.image, f".text.{kernel}"))
            self.events.append({**KERNEL, "id": number, "name": kernel, "parameters": [0x210, len(parameters)]})
        self.number += 1
        event = launch(self.number, kernel=self.kernels.index(kernel), grid=grid, block=block, cluster=cluster)
        kept = {"parameters": [len(self.parameters), len(parameters)], "pointers": list(pointers), "counted": 0}
        self.events.append(event | kept | fields)
        self.parameters += parameters
        self.folder.joinpath("parameters.bin").write_bytes(self.parameters)
        return self.number

    def strips(self, out=OUT, source=IN, **options):
        """Add a launch of the kernel ``strips``."""
        return self.launch("strips", struct.pack("<QQii", out, source, PITCH, ROWS), **options)


@pytest.fixture
def raw(tmp_path, image):
    return Raw(tmp_path, image)


@pytest.fixture(scope="module")
def shared():
    """Return proofs that tests share: what they know of a kernel does not depend on their order."""
    return Proofs(locate.nvdisasm())


@pytest.fixture
def decoded(trace_of, raw, shared):
    """Decode what a test has put into ``raw``: the trace."""

    def decode(entries=(), **options):
        return trace_of(raw.events, list(entries), whole=False, **{"proofs": shared} | options)[0]

    return decode


def bytes_of_strips(tile_of, out=OUT, source=IN):
    """Return (tile, mode, address) of each byte that ``strips`` touches, thread by thread."""
    touched = set()
    for bx, by, tx, ty in product(range(GRID[0]), range(GRID[1]), range(BLOCK[0]), range(BLOCK[1])):
        column, row = bx * BLOCK[0] + tx, by * BLOCK[1] + ty
        if row >= ROWS:
            continue
        for mode, word in ((READ, source + 4 * (column * ROWS + row)), (WRITE, out + 4 * (row * PITCH + column))):
            touched |= {(tile_of(bx, by), mode, word + byte) for byte in range(4)}
    return touched


def test_bytes_of_each_block_are_those_of_its_threads(raw, decoded):
    raw.strips()
    trace = decoded()
    assert granules(trace, 0, 1) == bytes_of_strips(lambda x, y: x + GRID[0] * y)
    assert trace.launches.coverage.tolist() == ["exact"]
    assert trace.launches.note.tolist() == [f"{computed.NOTE}; its time was not recorded"]
    assert trace.launches.tiles.tolist() == [BLOCKS]
    assert len(trace.times) == 0


@pytest.mark.parametrize(
    ("cluster", "tile_of", "tiles"),
    [
        ((2, 1, 1), lambda x, y: x // 2 + 2 * y, 4),
        ((1, 2, 1), lambda x, y: x, 4),
        ((2, 2, 1), lambda x, y: x // 2, 2),
    ],
)
def test_the_blocks_of_a_cluster_are_one_tile(raw, decoded, cluster, tile_of, tiles):
    raw.strips(cluster=cluster)
    trace = decoded()
    assert granules(trace, 0, 1) == bytes_of_strips(tile_of)
    assert trace.launches.tiles.tolist() == [tiles]
    assert trace.launches.coverage.tolist() == ["exact"]
    assert between_0_and_1(trace.accesses["first"])
    assert trace.accesses["first"].max() > 0.5, "the store is among the last instructions of blocks that run at once"


def between_0_and_1(first):
    return bool(((first > 0) & (first < 1)).all())


def test_what_is_loaded_first_comes_first(raw, decoded):
    raw.strips()
    accesses = decoded().accesses
    assert between_0_and_1(accesses["first"])
    reads, writes = (accesses[accesses["mode"] == m]["first"] for m in ("read", "write"))
    assert len(reads) > 0
    assert reads.max() < writes.min()


def test_times_of_the_blocks_pass_are_those_of_the_tiles(raw, decoded):
    """Fractions are of instructions, whatever the clock says."""
    raw.strips(cluster=(2, 1, 1))
    begin = np.arange(4) * 1000
    times = Times(begin, begin + 500, np.array([7, 8, 9, 7]), np.full(4, 2))
    trace = decoded(blocks={0: times})
    assert trace.times[["tile", "sm", "begin_ns", "end_ns"]].to_numpy().tolist() == [
        [n, sm, 1000 * n, 1000 * n + 500] for n, sm in enumerate((7, 8, 9, 7))
    ]
    assert trace.launches.duration_ns.tolist() == [3500]
    assert between_0_and_1(trace.accesses["first"])


def test_equal_launches_on_other_buffers_share_a_footprint(raw, decoded, monkeypatch):
    followed = []
    trace_of_launch = proofs.traced.trace
    monkeypatch.setattr(proofs.traced, "trace", lambda *a: followed.append(0) or trace_of_launch(*a))
    raw.strips()
    raw.strips(LATER, LATER + SIZE)
    raw.launch("adds", struct.pack("<QQ", OUT, IN), grid=(3, 1, 1))
    raw.strips(OUT, LATER)
    trace = decoded(proofs=None)
    assert trace.launches.footprint.tolist() == [0, 0, 1, 0]
    assert granules(trace, 1, 1) == bytes_of_strips(lambda x, y: x + GRID[0] * y, LATER, LATER + SIZE)
    assert granules(trace, 3, 1) == bytes_of_strips(lambda x, y: x + GRID[0] * y, OUT, LATER)
    assert trace.launches.coverage.tolist() == ["exact"] * 4
    assert len(followed) == 2, "what is known of one launch serves for equal ones"


def test_atomics_are_atomics(raw, decoded):
    raw.launch("adds", struct.pack("<QQ", OUT, IN), grid=(3, 1, 1), block=(32, 1, 1))
    adds = {(b, ATOMIC, OUT + 128 * b + i) for b in range(3) for i in range(128)}
    assert granules(decoded(), 0, 1) == adds | {(b, READ, IN + i) for b in range(3) for i in range(128)}


def map_of(base):
    """Encode a map of 64 rows of 128 floats, in boxes of 8 rows and 32 columns."""
    words = np.zeros(32, "<u4")
    words[[0, 1, 2, 3, 8, 9, 13, 14]] = base & 0xFFFFFFFF, base >> 32, 1 << 4 | 7 << 7, 512 >> 4, 127, 63, 31 << 24, 7
    return words.tobytes()


@pytest.mark.parametrize(("cluster", "columns"), [((1, 1, 1), 32), ((2, 1, 1), 64)])
def test_boxes_of_tensor_maps_are_rows_of_their_tensors(raw, decoded, cluster, columns):
    maps = bytes(48) + map_of(IN) + map_of(OUT)  # aligned to 64 bytes behind 0x210
    raw.launch("boxes", maps, (6, 22), grid=(4, 3, 1), block=(256, 1, 1), cluster=cluster)
    trace = decoded()
    assert trace.launches.coverage.tolist() == ["exact"]
    assert computed.NOTE in trace.launches.note[0]
    tiles = 128 // columns
    assert granules(trace, 0, 4) == {
        (column // columns + tiles * (row // 8), mode, (base + 512 * row) // 4 + column)
        for mode, base in ((READ, IN), (WRITE, OUT))
        for row, column in product(range(24), range(128))
    }
    first = trace.accesses.groupby("mode")["first"]
    assert between_0_and_1(trace.accesses["first"])
    assert first.max()["read"] < first.min()["write"]


def test_what_blocks_of_a_cluster_load_together_is_loaded_once_and_when_the_first_does():
    map_ = tensormap.decode(np.frombuffer(map_of(IN)[:64], "<u4"))
    tile, first = np.array([1, 0, 0, 1, 0, 0]), np.array([9, 8, 7, 6, 5, 4])
    coordinates = np.zeros((6, 5), np.int64)
    coordinates[:, 0] = [32, 32, 0, 32, 32, 0]
    coordinates[5, 1] = 8
    loads = computed.once(Loads(map_, tile, coordinates, first, np.zeros(6, np.int64)))
    rows = np.column_stack([loads.tile, loads.coordinates[:, :2], loads.first, loads.offsets])
    assert sorted(rows.tolist()) == [[0, 0, 0, 7, 0], [0, 0, 8, 4, 0], [0, 32, 0, 5, 0], [1, 32, 0, 6, 0]]
    assert loads.map == map_
    none = computed.once(Loads(map_, tile[:0], coordinates[:0], first[:0], first[:0]))
    assert len(none.tile) == len(none.first) == 0


def gone(name):
    return lambda raw: raw.folder.joinpath(name).unlink()


def cut(raw):
    raw.folder.joinpath("parameters.bin").write_bytes(raw.parameters[:-1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (gone("parameters.bin"), "its parameters are missing"),
        (cut, "its parameters are missing"),
        (gone("code-0.bin"), "its machine code is missing"),
        (lambda raw: raw.folder.joinpath("code-0.bin").write_bytes(b""), "its machine code is missing"),
        (lambda raw: raw.folder.joinpath("code-0.bin").write_bytes(b"\xff" * 64), "nvdisasm does not read its code"),
        (lambda raw: raw.folder.joinpath("relocated-0.bin").write_bytes(b"\xff" * 4), "relocat"),
        (lambda raw: raw.events[-1].update(cluster=[3, 1, 1]), "no whole clusters"),
    ],
    ids=["parameters", "cut", "code", "empty", "no code", "relocated", "clusters"],
)
def test_a_launch_of_which_something_is_missing_stands_for_all_memory(raw, decoded, change, reason):
    raw.strips()
    change(raw)
    assert_all_memory(decoded(), reason)


def assert_all_memory(trace, reason):
    assert trace.launches.coverage.tolist() == ["conservative"]
    [note] = trace.launches.note
    assert "ran without patches, and what it touches could not be computed" in note
    assert reason in note
    assert computed.NOTE not in note
    touched, tiles = granules(trace, 0, SIZE), range(trace.launches.tiles[0])
    buffers = [address // SIZE for address in (IN, OUT, LATER, LATER + SIZE)]
    assert touched == {(t, mode, b) for t in tiles for mode in (READ, WRITE) for b in buffers}


def test_a_kernel_that_cannot_be_proven_stands_for_all_memory(raw, decoded):
    raw.launch("gather", struct.pack("<QQ", OUT, IN), grid=(2, 1, 1), block=(32, 1, 1))
    assert_all_memory(decoded(), "the address of STG.E at 0x")


def test_a_pointer_that_was_none_to_the_program_is_a_number(raw, decoded):
    """Only words that were device memory when the program ran are told apart from numbers; others have one value."""
    raw.strips(pointers=(1,))
    assert granules(decoded(), 0, 1) == bytes_of_strips(lambda x, y: x + GRID[0] * y)


def test_a_launch_whose_records_are_there_is_decoded_from_them(raw, decoded):
    """The code of its kernel, which another launch has left, does not matter."""
    raw.strips()
    number = raw.number + 1
    raw.events.append(launch(number, grid=GRID, block=BLOCK) | {"counted": 1})
    entries = [block_record(number, b, 1000, 2000) for b in range(BLOCKS)]
    entries.append(access(number, 3, OUT // 1024, write=0b10, first=1500))
    trace = decoded(entries)
    assert granules(trace, 1, 32) == {(3, WRITE, OUT // 32 + 1)}
    assert trace.launches.coverage.tolist() == ["exact", "exact"]
    assert [computed.NOTE in note for note in trace.launches.note] == [True, False]
    assert trace.accesses[trace.accesses.footprint == 1]["first"].tolist() == [0.5]


def test_a_launch_without_patches_and_parameters_was_not_seen(raw, decoded):
    raw.strips()
    del raw.events[-1]["parameters"], raw.events[-1]["pointers"]
    trace = decoded()
    assert trace.launches.coverage.tolist() == ["conservative"]
    assert "not every block of it was seen" in trace.launches.note[0]


def test_proofs_of_the_recording_serve_for_decoding(raw, decoded, monkeypatch):
    raw.strips()
    kept = Proofs(locate.nvdisasm())
    first = decoded(proofs=kept)
    monkeypatch.setattr(proofs.traced, "trace", lambda *_: "asked again")
    assert granules(decoded(proofs=kept), 0, 1) == granules(first, 0, 1) != set()


def test_constants_are_read_by_computed_launches_too(raw, decoded):
    raw.strips()
    [kernel] = [e for e in raw.events if e["e"] == "kernel"]
    kernel["constants"] = 1
    raw.events.append({"e": "constants", "kernel": 0, "ranges": [[LATER, 64]]})
    reads = {(b, READ, LATER + i) for b in range(BLOCKS) for i in range(64)}
    assert granules(decoded(), 0, 1) == bytes_of_strips(lambda x, y: x + GRID[0] * y) | reads
