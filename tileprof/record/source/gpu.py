"""Kernels on a GPU: compiled by NVRTC and launched through NVIDIA's cuda.core."""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.record.cuda.installation import gpu as driver_gpus
from tileprof.record.source.layout import SYMBOL
from tileprof.record.source.machine import INCLUDE, Place, Program

PACKAGES: Final = "'cuda-core[cu13]'"
_OLDEST: Final = 70
_STATIC_SHARED_BYTES: Final = 48 << 10  # more than this a kernel must be allowed, explicitly


def modules() -> tuple[Any, Any]:
    """Return cuda.core and the driver's bindings. Raises UserError when they are not installed."""
    try:
        return import_module("cuda.core"), import_module("cuda.bindings.driver")
    except ImportError as error:
        raise UserError(
            f"Recording kernels from source on a GPU needs cuda-core, which cannot be imported ({error}). "
            f"Type: {sys.executable} -m pip install {PACKAGES}. Without a GPU, record with machine='host'."
        ) from None


def compile_cubin(program: Program, architecture: str, *, record: bool) -> Any:
    """Return the program's cubin, a ``cuda.core.ObjectCode``; needs no GPU.

    Raises UserError with the compiler's own words, and for architectures that this NVRTC does not know.
    """
    core, _ = modules()
    options = core.ProgramOptions(
        name=program.file,
        arch=architecture,
        std="c++17",
        include_path=[*program.include, str(INCLUDE)],
        **_flags((*program.options, *(["-DTILEPROF_RECORD"] if record else []))),
    )
    try:
        return core.Program(program.source, "c++", options).compile("cubin", name_expressions=(program.kernel,))
    except Exception as error:  # noqa: BLE001 - cuda.core's errors have no public type
        words = str(error).strip()
        hint = ""
        if "gpu-architecture" in words:
            hint = f"\nThis NVRTC does not know {architecture}; CUDA 13 begins at sm_75, CUDA 12 serves sm_70."
        raise UserError(
            f"{program.kernel} in {program.file} does not compile for {architecture}:\n{words}{hint}"
        ) from None


def _flags(options: tuple[str, ...]) -> dict[str, Any]:
    """Return -D and -use_fast_math as ``ProgramOptions`` wants them. Raises UserError for other options."""
    results: dict[str, Any] = {}
    for option in options:
        if option.startswith("-D"):
            name, _, value = option[2:].partition("=")
            results.setdefault("define_macro", []).append((name, value or "1"))
        elif option.lstrip("-") in {"use_fast_math", "lineinfo"}:
            results[option.lstrip("-")] = True
        else:
            raise UserError(
                f"the option {option!r} is not passed to the compiler: give -DNAME=VALUE, -use_fast_math, -lineinfo"
            )
    return results


class GpuKernel:
    """A loaded kernel; see `machine.Built`."""

    def __init__(self, gpu: Gpu, program: Program, code: Any) -> None:
        self._gpu = gpu
        self._program = program
        self._code = code
        self._kernel = gpu.checked(lambda: code.get_kernel(program.kernel), f"loading {program.kernel}")
        self.sizes = tuple(int(info.size) for info in self._kernel.arguments_info)
        attributes = self._kernel.attributes
        self.registers = int(attributes.num_regs)
        self.shared_bytes = int(attributes.shared_size_bytes)
        self.fingerprint = hashlib.sha256(bytes(code.code)).hexdigest()[:16]

    def attach(self, log: bytes) -> None:
        """Let the next run record into this log."""
        driver = self._gpu.driver
        code, address, size = driver.cuLibraryGetGlobal(self._code.handle, SYMBOL.encode())
        if int(code) != 0 or size != len(log):
            raise UserError(
                f"{self._program.kernel} in {self._program.file} holds no wrapper of tileprof.cuh, so nothing of it "
                "can be "
                "recorded. Include <tileprof.cuh> and load and store through it."
            )
        self._gpu.write(int(address), np.frombuffer(log, np.uint8))

    def run(self, place: Place, values: list[np.generic], spans: list[tuple[int, int]]) -> float:  # noqa: ARG002 - a GPU checks nothing
        """Launch, wait, and give the time between events around the launch, ns."""
        gpu = self._gpu
        shared = place.shared_bytes
        if shared + self.shared_bytes > _STATIC_SHARED_BYTES:
            attribute = gpu.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu.ask(
                gpu.driver.cuKernelSetAttribute(attribute, shared, self._kernel.handle, gpu.ordinal), "shared memory"
            )
        config = gpu.core.LaunchConfig(grid=place.grid, block=place.block, shmem_size=shared)
        timing = gpu.core.EventOptions(timing_enabled=True)
        what = f"{self._program.kernel} on grid {place.grid}, block {place.block}"

        def go() -> tuple[Any, Any]:
            before = gpu.stream.record(options=timing)
            gpu.core.launch(gpu.stream, config, self._kernel, *values)
            return before, gpu.stream.record(options=timing)

        before, after = gpu.checked(go, what)
        gpu.synchronise(what)
        return float(after - before) * 1e6


class Gpu:
    """The GPU with this ordinal as a `machine.Machine`, through its primary context, which PyTorch and CuPy share."""

    measures = True

    def __init__(self, ordinal: int = 0) -> None:
        gpus = driver_gpus.gpus()
        if not 0 <= ordinal < len(gpus):
            raise UserError(
                f"there is no GPU {ordinal}; the driver shows {len(gpus)}: {', '.join(g.name for g in gpus)}"
            )
        self.name, self.architecture = gpus[ordinal].name, gpus[ordinal].architecture
        if int(self.architecture.removeprefix("sm_")) < _OLDEST:
            raise UserError(f"{self.name} ({self.architecture}) is too old: the recording header needs sm_70")
        self.core, self.driver = modules()
        self.ordinal = ordinal
        device = self.core.Device(ordinal)
        device.set_current()
        # The legacy stream waits for what other libraries have under way in theirs, and they wait for it.
        self.stream = device.default_stream

    def compile(self, program: Program, *, record: bool) -> GpuKernel:
        """Compile for this GPU and load. Raises UserError with the compiler's own words."""
        return GpuKernel(self, program, compile_cubin(program, self.architecture, record=record))

    def synchronise(self, what: str = "earlier work") -> None:
        """Wait for the GPU. Raises UserError when ``what`` ended in a fault."""
        self.ask(self.driver.cuCtxSynchronize(), what)

    def allocate(self, size: int) -> int:
        """Return memory, not zeroed."""
        (address,) = self.ask(self.driver.cuMemAlloc(max(size, 1)), f"allocating {size:,} bytes")
        return int(address)

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""
        self.ask(self.driver.cuMemFree(address), "freeing memory")

    def write(self, address: int, values: NDArray[Any]) -> None:
        """Copy an array to an address."""
        values = np.ascontiguousarray(values)
        self.ask(self.driver.cuMemcpyHtoD(address, values.ctypes.data, values.nbytes), "copying to the GPU")

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of the bytes at an address."""
        values = np.empty(size, np.uint8)
        if size:
            self.ask(self.driver.cuMemcpyDtoH(values.ctypes.data, address, size), "copying from the GPU")
        return values

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy bytes from address to address."""
        self.ask(self.driver.cuMemcpyDtoD(to, source, size), "copying on the GPU")

    def ask(self, answer: tuple[Any, ...], what: str) -> tuple[Any, ...]:
        """Return the driver's answer without its error code. Raises UserError when it failed."""
        if int(answer[0]) != 0:
            _, name = self.driver.cuGetErrorName(answer[0])
            self._fail(what, name.decode() if name else f"CUDA error {int(answer[0])}")
        return answer[1:]

    def checked(self, call: Any, what: str) -> Any:
        """Return what ``call()`` gives. Raises UserError for an error of CUDA's."""
        try:
            return call()
        except Exception as error:
            if type(error).__name__ != "CUDAError":  # cuda.core's errors have no public type
                raise
            return self._fail(what, str(error).split(":")[0])

    def _fail(self, what: str, name: str) -> None:
        hint = ""
        if any(word in name for word in ("ADDRESS", "ILLEGAL", "LAUNCH_FAILED", "ASSERT", "TRAP")):
            hint = (
                " The kernel faulted, and nothing more runs in this process. The same launch with machine='host' "
                "names the "
                "thread that leaves its arrays; `compute-sanitizer` does on the GPU."
            )
        elif "MEMORY" in name:
            hint = (
                " Give Recording a smaller log_bytes, or check=False and timed=False, which need no copies of the "
                "arrays."
            )
        elif "PTX" in name or "IMAGE" in name or "BINARY" in name:
            hint = " The driver may be older than this NVRTC: install the cuda-core extra that matches `nvidia-smi`."
        raise UserError(f"{what}: {name}.{hint}")
