"""Kernels whose every access is known: what the source recorder writes down equals it, byte for byte.

The same kernels run on the CPU, through the header's emulation, and on a GPU. As a script it writes the results of a
run on a GPU: ``python tests/gpu/recorder/test_source_known_bytes.py tests/gpu/results/source.json``.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tileprof.errors import UserError
from tileprof.record.source import Recording, Settings
from tileprof.trace import ATOMIC, READ, WRITE, load, validate

SOURCE = Path(__file__).with_name("source_kernels.cu")


@dataclass(frozen=True)
class Case:
    """``touches(block, thread)`` yields (array, mode, first byte, end) of one thread, both given as (x, y, z)."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[object, ...]
    touches: object


def copy(type_: str, dtype: np.dtype, n: int) -> Case:
    size = dtype.itemsize

    def touches(block, thread):
        i = block[0] * 96 + thread[0]
        if i < n:
            yield 0, READ, i * size, (i + 1) * size
            yield 1, WRITE, i * size, (i + 1) * size

    values = np.arange(n * size, dtype=np.uint8)
    return Case(f"copy<{type_}>", (-(-n // 96),), (96,), (values, np.zeros_like(values), n), touches)


def strided() -> Case:
    n = 200

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            yield 0, READ, 12 * i, 12 * i + 4
            yield 1, WRITE, 4 * (n - 1 - i), 4 * (n - i)

    return Case("strided", (4,), (64,), (np.arange(3 * n, dtype=np.float32), np.zeros(n, np.float32), n), touches)


def gather() -> Case:
    n = 150
    index = (np.arange(n, dtype=np.int32) ** 2 * 11) % 97

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n and i % 2 == 0:
            yield 0, READ, 4 * i, 4 * i + 4
            yield 1, READ, 4 * int(index[i]), 4 * int(index[i]) + 4
            yield 2, WRITE, 4 * i, 4 * i + 4

    arguments = (index.astype(np.int32), np.arange(97, dtype=np.float32), np.ones(n, np.float32), n)
    return Case("gather", (3,), (64,), arguments, touches)


def diverge() -> Case:
    n = 100

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            yield 0, READ if i % 2 else WRITE, 4 * i, 4 * i + 4
            if i % 2:
                yield 1, WRITE, 4 * i, 4 * i + 4

    return Case("diverge", (2,), (64,), (np.ones(n, np.int32), np.zeros(n, np.int32), n), touches)


def atomics() -> Case:
    n = 90

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            for array, at in [(0, i * 7 % 13), (1, i % 5), (0, 16), (0, 17), *((2, w) for w in (0, 2, 4, 6, 8))]:
                yield array, ATOMIC, 4 * at, 4 * at + 4

    arguments = (np.zeros(18, np.int32), np.zeros(5, np.float32), np.zeros(9, np.uint32), n)
    return Case("atomics", (2,), (64,), arguments, touches)


def tile_2d(*, asynchronous: bool) -> Case:
    columns, rows, from_pitch, to_pitch = 60, 20, 64, 100

    def touches(block, thread):
        if any(thread):
            return
        for y in range(block[1] * 8, min(rows, block[1] * 8 + 8)):
            for x in range(block[0] * 24, min(columns, block[0] * 24 + 24)):
                yield 0, READ, 4 * (y * from_pitch + x), 4 * (y * from_pitch + x) + 4
                yield 1, WRITE, 4 * (y * to_pitch + x), 4 * (y * to_pitch + x) + 4

    arguments = (np.arange(rows * from_pitch, dtype=np.float32), np.zeros(rows * to_pitch, np.float32))
    sizes = (columns, rows, from_pitch, to_pitch)
    return Case(f"tile_2d<{str(asynchronous).lower()}>", (3, 3), (32, 2), arguments + sizes, touches)


def tile_3d() -> Case:
    width, height = 32, 5

    def touches(block, thread):
        if thread[0] % 32:
            return
        box = 4 * (block[0] * 2 + thread[0] // 32)
        for z, y, x in product(range(2), range(3), range(4)):
            at = 8 * (z * width * height + y * width + x + box)
            yield 0, READ, at, at + 8
            yield 1, WRITE, at, at + 8

    values = np.arange(2 * width * height, dtype=np.float64)
    return Case("tile_3d", (4,), (64,), (values, np.zeros_like(values), width, height), touches)


def element_async() -> Case:
    n = 100

    def touches(block, thread):
        i = block[0] * 64 + thread[0]
        if i < n:
            yield 0, READ, 16 * i, 16 * i + 16
            yield 1, WRITE, 16 * i, 16 * i + 16

    values = np.arange(16 * n, dtype=np.uint8)
    return Case("element_async", (2,), (64,), (values, np.zeros_like(values), n), touches)


def named() -> Case:
    def touches(block, thread):
        at = 256 * (block[0] + 2 * (block[1] + 3 * block[2]))
        row = 64 * (thread[1] // 2)
        if thread[0] == 0 and thread[1] % 2 == 0:
            yield 0, READ, at + row, at + row + 16
        yield 1, WRITE, at + 4 * (thread[0] + 8 * thread[1]), at + 4 * (thread[0] + 8 * thread[1]) + 4

    values = np.arange(64 * 12, dtype=np.int32)
    return Case("named", (2, 3, 2), (8, 8), (values, np.zeros_like(values)), touches)


def matmul() -> Case:
    m, n, k = 36, 20, 24

    def touches(block, thread):
        x, y = block[0] * 16 + thread[0], block[1] * 16 + thread[1]
        for at in range(0, k, 16):
            if y < m and at + thread[0] < k:
                yield 0, READ, 4 * (y * k + at + thread[0]), 4 * (y * k + at + thread[0]) + 4
            if x < n and at + thread[1] < k:
                yield 1, READ, 4 * ((at + thread[1]) * n + x), 4 * ((at + thread[1]) * n + x) + 4
        if y < m and x < n:
            yield 2, WRITE, 4 * (y * n + x), 4 * (y * n + x) + 4

    arrays = (np.ones((m, k), np.float32), np.ones((k, n), np.float32), np.zeros((m, n), np.float32))
    return Case("matmul<16>", (2, 3), (16, 16), (*arrays, m, n, k), touches)


def private_memory() -> Case:
    def touches(block, thread):
        at = 4 * (block[0] * 64 + thread[0])
        yield 0, READ, at, at + 4
        yield 1, WRITE, at, at + 4

    return Case("private_memory", (2,), (64,), (np.arange(128, dtype=np.int32), np.zeros(128, np.int32)), touches)


def bulk() -> Case:
    def touches(block, thread):
        if thread[0] == 0:
            yield 0, READ, 1024 * block[0], 1024 * block[0] + 528
            yield 1, WRITE, 1024 * block[0], 1024 * block[0] + 528

    values = np.arange(4096, dtype=np.uint16).view(np.uint8)[:4096]
    return Case("bulk", (4,), (32,), (values, np.zeros_like(values), 528), touches)


CASES = [
    copy("unsigned char", np.dtype("u1"), 301),
    copy("unsigned short", np.dtype("u2"), 300),
    copy("float", np.dtype("f4"), 250),
    copy("uint2", np.dtype("u8"), 200),
    copy("uint4", np.dtype("V16"), 123),
    strided(),
    gather(),
    diverge(),
    atomics(),
    tile_2d(asynchronous=False),
    tile_2d(asynchronous=True),
    tile_3d(),
    element_async(),
    named(),
    matmul(),
]
GPU_CASES = [private_memory(), bulk()]


def true_sets(case: Case) -> dict[tuple[int, int, int], set[int]]:
    """Bytes by (tile, array, mode), thread by thread."""
    matches = defaultdict(set)
    grid, block = ((*d, 1, 1)[:3] for d in (case.grid, case.block))
    for tile, (bz, by, bx) in enumerate(product(*(range(n) for n in grid[::-1]))):
        for tz, ty, tx in product(*(range(n) for n in block[::-1])):
            for array, mode, begin, end in case.touches((bx, by, bz), (tx, ty, tz)):
                matches[tile, array, mode].update(range(begin, end))
    return dict(matches)


def recorded_sets(trace, launch: int = 0) -> dict[tuple[int, int, int], set[int]]:
    matches = defaultdict(set)
    boxes = trace.footprint(int(trace.launches.footprint[launch])).boxes
    for row in range(len(boxes)):
        for i, j in product(range(boxes.count_0[row]), range(boxes.count_1[row])):
            begin = int(boxes.offset[row] + i * boxes.stride_0[row] + j * boxes.stride_1[row])
            key = int(boxes.tile[row]), int(boxes.operand[row]), int(boxes.mode[row])
            matches[key].update(range(begin, begin + int(boxes.length[row])))
    return dict(matches)


def record(case: Case, machine: str, folder: Path, settings: Settings | None = None):
    """The trace of one launch; on a GPU its arrays are PyTorch's."""
    if machine == "gpu":
        need_a_gpu()
    arguments = [_on(machine, a) for a in case.arguments]
    with Recording(folder / "known", machine=machine, settings=settings, force=True) as recording:
        recording.launch(recording.compile(SOURCE, case.kernel), case.grid, case.block, *arguments)
    return load(folder / "known.tileprof")


def need_a_gpu() -> None:
    """Skip the test, with the reason, where kernels cannot be recorded on a GPU."""
    from tileprof.record.source.gpu import Gpu

    try:
        Gpu()
    except UserError as error:
        pytest.skip(str(error))


def _on(machine: str, argument: object) -> object:
    if not isinstance(argument, np.ndarray):
        return argument
    return argument.copy() if machine == "host" else on_the_gpu(argument)


def on_the_gpu(argument: np.ndarray) -> object:
    """The array's bytes as a PyTorch tensor."""
    import torch

    return torch.from_numpy(argument.view(np.uint8).reshape(-1).copy()).cuda()


@pytest.mark.parametrize(
    ("machine", "case"),
    [("host", c) for c in CASES] + [pytest.param("gpu", c, marks=pytest.mark.gpu) for c in CASES + GPU_CASES],
    ids=lambda value: value if isinstance(value, str) else value.kernel,
)
def test_a_kernels_recorded_bytes_are_the_true_ones(machine: str, case: Case, tmp_path: Path) -> None:
    trace = record(case, machine, tmp_path)
    assert recorded_sets(trace) == true_sets(case)
    assert trace.launches.coverage[0] == "exact"
    assert validate(trace) == []


@pytest.mark.gpu
def test_a_log_too_small_is_enlarged_on_the_gpu(tmp_path: Path) -> None:
    trace = record(matmul(), "gpu", tmp_path, Settings(log_bytes=1024))
    assert recorded_sets(trace) == true_sets(matmul())


@pytest.mark.gpu
def test_tiles_have_times_and_sms(tmp_path: Path) -> None:
    trace = record(matmul(), "gpu", tmp_path)
    times = trace.times
    assert len(times) == 6
    assert (times.end_ns > times.begin_ns).all()
    assert trace.launches.timing[0] == "measured"


CUPY_USE = """
#include <tileprof.cuh>
extern "C" __global__ void twice(const float* x, float* y, int n) {
    tileprof::BlockLife life;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) tileprof::store(y + i, 2 * tileprof::load(x + i));
}
"""


@pytest.mark.gpu
def test_a_cupy_kernel_is_recorded_where_cupy_launches_it(tmp_path: Path) -> None:
    assert cupy_sets(tmp_path) == {
        (t, a, m): set(range(256 * t, 256 * t + 256)) for t in range(4) for a, m in ((0, READ), (1, WRITE))
    }


def cupy_sets(folder: Path) -> dict[tuple[int, int, int], set[int]]:
    need_a_gpu()
    cupy = pytest.importorskip("cupy")
    from tileprof.record.source import INCLUDE

    module = cupy.RawModule(code=CUPY_USE, options=("-std=c++17", "-DTILEPROF_RECORD", f"-I{INCLUDE}"))
    kernel = module.get_function("twice")
    x, y = cupy.arange(256, dtype=cupy.float32), cupy.zeros(256, cupy.float32)

    def attach(log: bytes) -> None:
        symbol = module.get_global("tileprof_log")
        cupy.ndarray(len(log), cupy.uint8, symbol).set(np.frombuffer(log, np.uint8))

    with Recording(folder / "cupy", force=True) as recording:
        recording.watch("twice", 4, 64, [x, y], attach=attach, go=lambda: kernel((4,), (64,), (x, y, np.int32(256))))
    assert (y.get() == 2 * np.arange(256)).all()
    return recorded_sets(load(folder / "cupy.tileprof"))


def cost() -> dict[str, float]:
    """What recording costs a matrix product of 1024 x 1024 floats, in blocks of 32 x 32: the kernel's time, and the
    log.
    """
    from tileprof.record.source import layout
    from tileprof.record.source.gpu import Gpu
    from tileprof.record.source.machine import Place, Program

    gpu, n, room = Gpu(), 1024, 1 << 22
    program = Program(SOURCE.read_text(), SOURCE.name, "matmul<32>")
    matrices = [gpu.allocate(4 * n * n) for _ in range(3)]
    values = [*map(np.uint64, matrices), *[np.int32(n)] * 3]
    place = Place((32, 32, 1), (32, 32, 1))
    plain, recorded = gpu.compile(program, record=False), gpu.compile(program, record=True)
    plain_ns = [plain.run(place, values, []) for _ in range(7)]
    blocks, log = gpu.allocate(layout.BLOCK.itemsize * place.blocks + 8), gpu.allocate(room * layout.ENTRY.itemsize)
    count = blocks + layout.BLOCK.itemsize * place.blocks
    recorded.attach(layout.log(log, blocks, count, room))
    recorded_ns = []
    for _ in range(7):
        gpu.write(count, np.zeros(1, np.uint64))
        recorded_ns.append(recorded.run(place, values, []))
    entries = int(gpu.read(count, 8).view("<u8")[0])
    for address in (*matrices, blocks, log):
        gpu.free(address)
    return {
        "plain_us_median_of_7": float(np.median(plain_ns)) / 1e3,
        "recorded_us_median_of_7": float(np.median(recorded_ns)) / 1e3,
        "log_entries": entries,
        "log_bytes": entries * layout.ENTRY.itemsize,
    }


def results(folder: Path) -> dict[str, object]:
    """What a run on this machine's GPU shows."""
    from tileprof import __version__
    from tileprof.record.cuda.gpu import gpus
    from tileprof.record.source.gpu import modules

    core, driver = modules()
    kernels = {}
    for case in CASES + GPU_CASES:
        trace = record(case, "gpu", folder)
        expected, actual = true_sets(case), recorded_sets(trace)
        wrong = sum(len(expected.get(k, set()) ^ actual.get(k, set())) for k in expected | actual)
        kernels[case.kernel] = {
            "tiles": int(trace.launches.tiles[0]),
            "bytes_touched_by_tiles": sum(map(len, expected.values())),
            "bytes_wrong": wrong,
            "boxes": len(trace.accesses),
            "coverage": str(trace.launches.coverage[0]),
            "rules_broken": len(validate(trace)),
            "tiles_with_times": len(trace.times),
        }
    small = recorded_sets(record(matmul(), "gpu", folder, Settings(log_bytes=1024)))
    least = record(matmul(), "gpu", folder, Settings(log_bytes=1024, largest_log_bytes=1024))
    return {
        "what": "source recorder: recorded bytes against true ones, kernels of tests/gpu/recorder/source_kernels.cu",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "device": gpus()[0].name,
        "driver_cuda": gpus()[0].driver,
        "tileprof": __version__,
        "cuda_core": core.__version__,
        "cuda_driver": int(driver.cuDriverGetVersion()[1]),
        "kernels": kernels,
        "all_bytes_right": all(not k["bytes_wrong"] for k in kernels.values()),
        "a_log_too_small_is_enlarged": small == true_sets(matmul()),
        "a_log_that_may_not_grow": str(least.launches.coverage[0]),
        "cupy_kernel_seen": len(cupy_sets(folder)),
        "cost_of_recording_matmul_1024_tile_32": cost(),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        found = results(Path(name))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if found["all_bytes_right"] else 1)
