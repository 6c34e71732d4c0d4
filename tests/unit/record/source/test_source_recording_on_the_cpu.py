"""Recordings of kernels that the CPU runs, from the source to the tile graph."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tileprof.analysis import build_graph
from tileprof.errors import UserError
from tileprof.record.source import Recording, Settings
from tileprof.trace import ATOMIC, READ, WRITE, load, validate

KERNELS = """
#include <tileprof.cuh>
using namespace tileprof;

template <int T>
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    BlockLife life;
    __shared__ float left[T * T], right[T * T];
    const int x = blockIdx.x * T, y = blockIdx.y * T;
    float sum = 0;
    for (int at = 0; at < k; at += T) {
        load_tile(left, {T}, a + y * k + at, {k}, Box{T, T});
        load_tile(right, {T}, b + at * n + x, {n}, Box{T, T});
        __syncthreads();
        for (int i = 0; i < T; ++i) sum += left[threadIdx.y * T + i] * right[i * T + threadIdx.x];
        __syncthreads();
    }
    store(c + (y + threadIdx.y) * n + x + threadIdx.x, sum);
}

__global__ void sneaky(float* x, float* y) {
    BlockLife life;
    if (threadIdx.x == 0) store(x + blockIdx.x, 1.0f);
    y[blockIdx.x * 4 + threadIdx.x] = 2.0f;
}

__global__ void count(const int* index, int* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomic_add(bins + load(index + i), 1);
}

// A sum over each warp, then over the block through dynamic shared memory.
__global__ void total(const int* x, int* sums) {
    BlockLife life;
    TILEPROF_DYNAMIC_SHARED(int, parts);
    int value = load(x + blockIdx.x * blockDim.x + threadIdx.x);
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x != 0) return;
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) value += parts[warp];
    store(sums + blockIdx.x, value);
}

__global__ void past_the_end(const float* x, float* y) { store(y + threadIdx.x, load(x + threadIdx.x)); }

__global__ void stuck() {
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncwarp();
}

struct Link { float* next; };
__global__ void follow(const Link* link) { store(load(link).next, 3.0f); }
"""


@pytest.fixture
def record(tmp_path: Path):
    """Provide ``record(calls, **options)``, which returns the trace of what ``calls(recording)`` launches."""

    def run(calls, **options):
        with Recording(tmp_path / "out", machine="host", force=True, **options) as recording:
            calls(recording)
        trace = load(tmp_path / "out.tileprof")
        assert validate(trace) == []
        return trace

    return run


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_a_gemm_pair_depends_by_rows(record) -> None:
    m, n, k, j = 32, 24, 16, 40
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (n, j)))
    first, second = zeros(m, n), zeros(m, j)

    def calls(recording: Recording) -> None:
        kernel = recording.compile(KERNELS, "matmul<8>")
        recording.buffer(b, "w1", "parameter")
        recording.launch(kernel, (n // 8, m // 8), (8, 8), a, b, first, m, n, k, module="up", flops=2 * m * n * k)
        recording.launch(kernel, (j // 8, m // 8), (8, 8), first, c, second, m, j, n, module="down")

    trace = record(calls)
    np.testing.assert_allclose(second, a @ b @ c, rtol=1e-4, atol=1e-4)
    (pair,) = build_graph(trace).pairs.to_dict("records")
    assert (pair["pattern"], pair["tightness"]) == ("row", 1.0)
    assert pair["bytes"] == m * n * 4 * (j // 8)
    assert list(trace.launches.coverage) == ["exact", "exact"]
    assert list(trace.launches.module) == ["up", "down"]
    assert list(trace.launches.timing) == ["modelled", "modelled"]
    kinds = dict(zip(trace.buffers.base, trace.buffers.kind, strict=True))
    assert [kinds[x.ctypes.data] for x in (a, b, c)] == ["input", "parameter", "input"]
    assert [kinds[x.ctypes.data] for x in (first, second)] == ["activation", "activation"]
    assert trace.buffers.name[list(trace.buffers.base).index(b.ctypes.data)] == "w1"


def test_main_loops_are_told_apart_in_time(record) -> None:
    k = 128

    def calls(recording: Recording) -> None:
        kernel = recording.compile(KERNELS, "matmul<8>")
        recording.launch(kernel, 1, (8, 8), zeros(8, k), zeros(k, 8), zeros(8, 8), 8, 8, k)

    boxes = record(calls).footprint(0).boxes
    is_left = boxes.operand == 0
    assert (np.diff(boxes.first[is_left][np.argsort(boxes.offset[is_left])]) >= 0).all()
    assert len(set(boxes.first[is_left].tolist())) >= 6
    assert boxes.last[boxes.operand == 2] == 1.0


def test_repeated_launches_share_a_footprint(record) -> None:
    arrays = [zeros(8, 8) for _ in range(4)]

    def calls(recording: Recording) -> None:
        kernel = recording.compile(KERNELS, "matmul<8>")
        for source, to in pairwise(arrays):
            recording.launch(kernel, 1, (8, 8), source, zeros(8, 8), to, 8, 8, 8)

    trace = record(calls)
    assert list(trace.launches.footprint) == [0, 0, 0]
    assert list(build_graph(trace).pairs.pattern) == ["one_to_one"] * 2


def test_views_of_one_array_are_one_buffer(record) -> None:
    memory = zeros(3, 64)

    def calls(recording: Recording) -> None:
        kernel = recording.compile(KERNELS, "matmul<8>")
        recording.launch(kernel, 1, (8, 8), memory[0], memory[1], memory[2], 8, 8, 8)

    trace = record(calls)
    assert len(trace.buffers) == 1
    boxes = trace.footprint(0).boxes
    assert {(int(m), int(o)) for m, o in zip(boxes.mode, boxes.offset // 256, strict=True)} == {
        (READ, 0),
        (READ, 1),
        (WRITE, 2),
    }


def test_torch_tensors_are_bound_with_their_storage(record) -> None:
    torch = pytest.importorskip("torch")
    memory = torch.zeros(5, 64)

    def calls(recording: Recording) -> None:
        kernel = recording.compile(KERNELS, "matmul<8>")
        recording.launch(kernel, 1, (8, 8), memory[1], memory[2], memory[4], 8, 8, 8)

    trace = record(calls)
    assert trace.buffers.bytes.tolist() == [5 * 64 * 4]
    assert trace.operands.offset.tolist() == [256]
    assert trace.buffers["dtype"].tolist() == ["float32"]


def test_warps_barriers_and_dynamic_shared_memory_work(record) -> None:
    x, sums = np.arange(192, dtype=np.int32), np.zeros(2, np.int32)
    record(lambda r: r.launch(r.compile(KERNELS, "total"), 2, 96, x, sums, shared_bytes=12))
    assert sums.tolist() == [x[:96].sum(), x[96:].sum()]


def test_a_kernel_without_a_block_life_has_unknown_times(record) -> None:
    index, bins = np.array([1, 3, 3, 0, 1], np.int32), np.zeros(4, np.int32)
    trace = record(lambda r: r.launch(r.compile(KERNELS, "count"), 2, 4, index, bins, 5))
    assert bins.tolist() == [1, 2, 0, 2]
    boxes = trace.footprint(0).boxes
    assert np.isnan(boxes.first).all()
    assert set(boxes.mode[boxes.operand == 1].tolist()) == {ATOMIC}


def test_a_log_too_small_is_enlarged_and_the_launch_runs_again(record) -> None:
    index, bins = np.arange(256, dtype=np.int32) % 7, np.zeros(7, np.int32)

    def calls(recording: Recording) -> None:
        recording.launch(recording.compile(KERNELS, "count"), 4, 64, index, bins, 256)

    large = record(calls).accesses
    bins[:] = 0
    small = record(calls, settings=Settings(log_bytes=56))
    assert bins.sum() == 256  # as after one run
    assert small.accesses.equals(large)
    assert list(small.launches.coverage) == ["exact"]


@pytest.mark.parametrize(
    "settings", [Settings(log_bytes=560, largest_log_bytes=560), Settings(log_bytes=560, copies=False)]
)
def test_a_log_that_overflows_makes_the_launch_conservative(record, settings: Settings) -> None:
    index, bins = np.arange(256, dtype=np.int32) % 7, np.zeros(7, np.int32)
    trace = record(lambda r: r.launch(r.compile(KERNELS, "count"), 4, 64, index, bins, 256), settings=settings)
    assert bins.sum() == 256
    assert list(trace.launches.coverage) == ["conservative"]
    assert "room for 10 of 512 entries" in trace.launches.note[0]
    assert trace.tiles.bytes_written.tolist() == [1024 + 28] * 4


def test_stores_past_the_wrappers_are_caught(record) -> None:
    x, y = zeros(3), zeros(12)
    trace = record(lambda r: r.launch(r.compile(KERNELS, "sneaky"), 3, 4, x, y))
    assert list(trace.launches.coverage) == ["conservative"]
    assert "12 bytes of buffer 1 changed in no recorded write" in trace.launches.note[0]


def test_memory_behind_a_pointer_is_found_once_it_is_known(record) -> None:
    target = zeros(8)
    link = np.array([target.ctypes.data + 8], np.uint64)
    with pytest.raises(
        UserError, match=r"block \(0, 0, 0\), thread \(0, 0, 0\) touches 4 bytes at .* none of the arrays"
    ):
        record(lambda r: r.launch(r.compile(KERNELS, "follow"), 1, 1, link))

    def calls(recording: Recording) -> None:
        recording.buffer(target, "target")
        recording.launch(recording.compile(KERNELS, "follow"), 1, 1, link)

    trace = record(calls)
    assert target[2] == 3
    boxes = trace.footprint(0).boxes
    assert [(int(b), int(o)) for b, o in zip(boxes.operand, boxes.offset, strict=True)] == [(0, 0), (1, 8)]


def test_leaving_an_array_names_the_thread_and_leaves_a_partial_trace(record, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"thread \(10, 0, 0\) touches 4 bytes .* none of the arrays given"):
        record(lambda r: r.launch(r.compile(KERNELS, "past_the_end"), 1, 16, zeros(10), zeros(16)))
    assert not load(tmp_path / "out.tileprof.partial").complete


def test_a_failed_launch_that_the_program_survives_is_noted(record) -> None:
    def calls(recording: Recording) -> None:
        kernel = recording.compile(KERNELS, "past_the_end")
        with pytest.raises(UserError):
            recording.launch(kernel, 1, 16, zeros(10), zeros(16))
        recording.launch(kernel, 1, 10, zeros(10), zeros(16))

    trace = record(calls)
    assert len(trace.launches) == 1
    assert any("past_the_end is missing before launch 0" in note for note in trace.manifest["notes"])


def test_threads_at_different_barriers_are_named_instead_of_hanging(record) -> None:
    with pytest.raises(UserError, match="different barriers"):
        record(lambda r: r.launch(r.compile(KERNELS, "stuck"), 1, 32))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1,), r"count takes 3 arguments, and 1 were given"),
        ((zeros(2), zeros(2), 2.5j), r"Parameter 2 of count has 4 bytes, and 2.5j \(complex\)"),
        ((zeros(2), zeros(2), 1 << 40), r"Parameter 2 of count has 4 bytes, too few for 1099511627776"),
        ((zeros(2), zeros(2), np.int64(1)), r"has 4 bytes, and .* has 8"),
        ((zeros(2), zeros(2), zeros(2)), r"Parameter 2 of count has 4 bytes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(record, arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        record(lambda r: r.launch(r.compile(KERNELS, "count"), 1, 32, *arguments))


def test_compile_errors_show_the_users_line(record, tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    source.write_text("#include <tileprof.cuh>\n__global__ void f(float* x) {\n    tileprof::stor(x, 1);\n}\n")
    with pytest.raises(UserError, match=r"(?s)f in .*mine.cu does not compile:.*mine.cu:3.*stor"):
        record(lambda r: r.compile(source, "f"))
    with pytest.raises(UserError, match="cannot read the kernel's source"):
        record(lambda r: r.compile(tmp_path / "none.cu", "f"))


def test_an_array_that_overlaps_a_known_one_is_refused(record) -> None:
    class Described:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: object) -> object:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    whole = zeros(64)

    def calls(recording: Recording) -> None:
        recording.buffer(Described(whole[:40]), "front")
        recording.buffer(Described(whole[30:]))

    with pytest.raises(UserError, match=r"overlaps front of 160 bytes .* recording.buffer\(whole\)"):
        record(calls)


def test_released_memory_comes_back_as_another_buffer(record) -> None:
    x, y = zeros(16), zeros(16)

    def calls(recording: Recording) -> None:
        kernel = recording.compile(KERNELS, "past_the_end")
        recording.launch(kernel, 1, 16, x, y)
        recording.release(x)
        recording.launch(kernel, 1, 16, y, x)

    buffers = record(calls).buffers
    assert buffers.freed_at.tolist() == [1, -1, -1]
    assert buffers.base[0] == buffers.base[2]


def test_bad_settings_machines_and_grids_are_refused(record, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="log_bytes is 1;"):
        Settings(log_bytes=1)
    with pytest.raises(UserError, match="machine is 'cpu'"):
        Recording(tmp_path / "x", machine="cpu")
    with pytest.raises(UserError, match=r"stuck's grid is \(0, 1\)"):
        record(lambda r: r.launch(r.compile(KERNELS, "stuck"), (0, 1), 32))


def test_without_a_gpu_the_error_says_what_to_do(tmp_path: Path) -> None:
    from tileprof.record.cuda.installation import gpu

    try:
        gpu.driver()
    except UserError:
        with pytest.raises(UserError, match="Without a GPU"):
            Recording(tmp_path / "x")
