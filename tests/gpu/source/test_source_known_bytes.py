"""Kernels whose every access is known: what the source recorder writes down equals it, byte for byte.

The same kernels run on the CPU, through the header's emulation, and on a GPU. As a script it writes the results of a
run on a GPU: ``python tests/gpu/source/test_source_known_bytes.py tests/gpu/results/source.json``.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.source.known_kernels import (
    CASES,
    GPU_CASES,
    SOURCE,
    Case,
    matmul,
    need_a_gpu,
    on_the_gpu,
    true_sets,
)
from tileprof.record.source import Recording, Settings
from tileprof.trace import READ, WRITE, load, validate


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
    """Return the trace of one launch; on a GPU its arrays are PyTorch's."""
    if machine == "gpu":
        need_a_gpu()
    arguments = [_on(machine, a) for a in case.arguments]
    with Recording(folder / "known", machine=machine, settings=settings, force=True) as recording:
        options = ("-O0",) if machine == "host" else ()  # takes half the time to compile
        recording.launch(recording.compile(SOURCE, case.kernel, options=options), case.grid, case.block, *arguments)
    return load(folder / "known.tileprof")


def _on(machine: str, argument: object) -> object:
    if not isinstance(argument, np.ndarray):
        return argument
    return argument.copy() if machine == "host" else on_the_gpu(argument)


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
    """Return the cost of recording a matrix product of 1024 x 1024 floats in blocks of 32 x 32: the kernel's time, and
    the log.
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
    """Return the results of a run on this machine's GPU."""
    from tileprof import __version__
    from tileprof.record.cuda.installation.gpu import gpus
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
        "what": "source recorder: recorded bytes against true ones, kernels of tests/gpu/source/source_kernels.cu",
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
        result_words = results(Path(name))
    Path(sys.argv[1]).write_text(json.dumps(result_words, indent=1) + "\n")
    sys.exit(0 if result_words["all_bytes_right"] else 1)
