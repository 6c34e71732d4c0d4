"""NVIDIA's own model of its products' kernels, where the user has it: ``pip install nvidia-matmul-heuristics``.

`nvidia-matmul-heuristics` (proprietary; never part of tileprof) runs without a GPU. One of its targets proposes what
cuBLAS launches on Hopper for 16-bit types: of the nvjet kernels of an H200 it names 97 to 99% right, tile, cluster and
split-k (`docs/harvest.md`), and it knows GPUs that were not measured. It is asked as cuBLAS sees the problem,
transposed, and with the space for partial sums that PyTorch gives. Its destructor frees a cut-off pointer, so it is
never called. It divides by zero, and ends the process, for some tall products of 24, 40, 56, 72 or 88 columns (version
0.1.0.27; 14 of 14,000 drawn at random): it is not asked about those and their like.
"""

from __future__ import annotations

import sys
from ctypes import c_int32, pointer
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products import weighing

if TYPE_CHECKING:
    from tileprof.devices import Device
    from tileprof.record.model.tiles.products.problem import Problem

_TARGET, _FLAGS = 6, 8
"""The target whose menu of kernels is cuBLAS's, and "tune with the performance model"."""
_PRECISIONS: Final = {problems.FP16: "HSH", problems.BF16: "TST"}
_GPUS: Final = {"H100": 9000, "H200": 9003, "B200": 10000}
_LAYOUTS: Final = {(0, 0): 4, (1, 0): 5, (0, 1): 6, (1, 1): 7}
"""``NN_COL_MAJOR`` and so on, by (column_a, column_b)."""
_WORKSPACE_SIZE: Final = 8
"""The number of the property."""
PROPOSALS: Final = 8
_TALL: Final = 4096


class Proposal(NamedTuple):
    """A kernel's tile and cluster, along m and along n, slices of k, and pipeline."""

    m: int
    n: int
    cluster: tuple[int, int]
    split: int
    stages: int
    k: int


def proposals(problem: Problem, device: Device) -> list[Proposal]:
    """Return what the library proposes, its best first; none without the library, or for what it does not know."""
    precision, gpu = _PRECISIONS.get(problem.dtype), _GPUS.get(device.name)
    if problem.column_b and problem.n % 16 == 8 and problem.m * problem.batch >= _TALL:
        return []
    if precision is None or gpu is None or (library := _interface(precision, gpu)) is None:
        return []
    interface, hardware, backends = library
    layout = _LAYOUTS[problem.column_a, problem.column_b]
    question = interface.makeNvMatmulHeuristicsProblem(problem.n, problem.m, problem.k, layout, problem.batch)
    backend = backends[problem.op == problems.BIAS]
    answers = [answer["kernel"] for answer in interface.getEx(question, PROPOSALS, backend, hardware)]
    return [
        Proposal(
            kernel.cta_tile_n, kernel.cta_tile_m, (kernel.cluster_n, kernel.cluster_m), kernel.split_k, kernel.stages,
            kernel.cta_tile_k,
        )
        for kernel in answers
    ]  # fmt: skip


@cache
def _interface(precision: str, gpu: int) -> tuple[Any, Any, tuple[Any, Any]] | None:
    """Return the library's interface, its description of a GPU, and its descriptions of cuBLAS for products without and
    with a bias; None where it is not installed or does not work.
    """
    try:
        import nvMatmulHeuristics as library  # noqa: N813, PLC0415 - an extra, and its own spelling
    except ImportError:
        return None
    try:
        interface = library.NvMatmulHeuristicsInterface(
            library.NvMatmulHeuristicsTarget(_TARGET),
            precision=precision,
            flags=library.NvMatmulHeuristicsFlags(_FLAGS),
        )
        interface.nvMatmulHeuristicsDestroy = _leave
        interface.nvMatmulHeuristicsEstimateRuntime = _no_time
        hardware = interface.createHardwareDescriptor()
        interface.setHardwarePredefinedGpu(hardware, library.NvMatmulHeuristicsNvidiaGpu(gpu))
        for layout in _LAYOUTS.values():
            interface.loadInternalDiscoverySet(library.NvMatmulHeuristicsMatmulLayout(layout), hardware)
        backends = tuple(interface.createBackend(interface.target) for _ in range(2))
        for backend, workspace in zip(backends, (weighing.WORKSPACE, weighing.BIAS_WORKSPACE), strict=True):
            interface.setBackendValueProperty(backend, _WORKSPACE_SIZE, pointer(c_int32(workspace)), 4)
    except (OSError, ValueError, RuntimeError, AttributeError, AssertionError) as error:
        sys.stderr.write(f"tileprof: nvidia-matmul-heuristics does not work here and is left out: {error}\n")
        return None
    return interface, hardware, (backends[0], backends[1])


def _no_time(*_: object) -> float:
    """Stand for the library's estimate of each proposal's time, which is not used and takes a third of the time."""
    return 0.0


def _leave(_handle: object) -> None:
    """Stand for the library's destructor."""
