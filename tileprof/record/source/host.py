"""Kernels on this CPU: the header's emulation, compiled with a C++ compiler. Exact accesses, no times, no hurry."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof import building
from tileprof.errors import UserError
from tileprof.record.cuda.installation import locate
from tileprof.record.cuda.installation.recorder_build import hash_files, key_of
from tileprof.record.source.machine import INCLUDE, Place, Program

FLAGS: Final = ("-x", "c++", "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DTILEPROF_HOST")

GPU_ONLY: Final = {"use_fast_math", "lineinfo"}

_LAUNCHER: Final = """
#line 1 "tileprof's launcher of {kernel}"
#define TILEPROF_EXPORT extern "C" __attribute__((visibility("default")))
TILEPROF_EXPORT void tileprof_run(const tileprof::host::Grid* grid, void** values, char* failure, tileprof::u64 room) {{
    tileprof::host::launch(grid, {kernel}, values, failure, room);
}}
TILEPROF_EXPORT tileprof::u64 tileprof_sizes(tileprof::u64* sizes) {{ return tileprof::host::sizes({kernel}, sizes); }}
#ifdef TILEPROF_RECORD
TILEPROF_EXPORT void tileprof_attach(const tileprof::Log* log) {{ tileprof_log = *log; }}
#endif
"""
_MOST_PARAMETERS: Final = 1024  # CUDA gives a kernel 4 KB of parameters, 32 KB of late
_FAILURE_BYTES: Final = 1024


class _Grid(ctypes.Structure):
    """``tileprof::host::Grid``."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("spans", ctypes.c_void_p),
        ("span_count", ctypes.c_uint64),
    )


class HostKernel:
    """A kernel in a shared library; see `machine.Built`."""

    registers = 0
    shared_bytes = 0

    def __init__(self, library: Path, program: Program) -> None:
        self._library = ctypes.CDLL(str(library))
        self._kernel = program.kernel
        sizes = (ctypes.c_uint64 * _MOST_PARAMETERS)()
        self._library.tileprof_sizes.restype = ctypes.c_uint64
        count = self._library.tileprof_sizes(sizes)
        self.sizes = tuple(sizes[:count])
        self.fingerprint = library.stem

    def attach(self, log: bytes) -> None:
        """Let the next run record into this log."""
        self._library.tileprof_attach(log)

    def run(self, place: Place, values: list[np.generic], spans: list[tuple[int, int]]) -> None:
        """Run the grid, block after block. Raises UserError for an access outside ``spans`` and for a deadlock."""
        memory = np.array(spans, np.uint64).reshape(-1, 2)
        grid = _Grid(place.grid, place.block, place.shared_bytes, memory.ctypes.data, len(memory))
        cells = [np.array([v]) for v in values]
        pointers = (ctypes.c_void_p * max(1, len(cells)))(*(c.ctypes.data for c in cells))
        failure = ctypes.create_string_buffer(_FAILURE_BYTES)
        self._library.tileprof_run(ctypes.byref(grid), pointers, failure, ctypes.c_uint64(_FAILURE_BYTES))
        if failure.value:
            raise UserError(f"{self._kernel} failed on the CPU: {failure.value.decode(errors='replace')}")


class Host:
    """The CPU as a `machine.Machine`; ``name`` is the GPU whose launches the trace is to describe."""

    measures = False

    def __init__(self, name: str) -> None:
        self.name = name
        self._memory: dict[int, NDArray[np.uint8]] = {}

    def compile(self, program: Program, *, record: bool) -> HostKernel:
        """Compile into the cache, unless it is there. Raises UserError with the compiler's own words."""
        compiler = locate.host_compiler()
        defines = ["-DTILEPROF_RECORD"] if record else []
        options = [option for option in program.options if option.lstrip("-") not in GPU_ONLY]
        options = [*FLAGS, *defines, *options, *(f"-I{folder}" for folder in (*program.include, str(INCLUDE)))]
        source = f'#line 1 "{program.file}"\n{program.source}{_LAUNCHER.format(kernel=program.kernel)}'
        parts: dict[str, object] = {
            "compiler": str(compiler),
            "options": options,
            "source": source,
            "header": hash_files(sorted(INCLUDE.iterdir())),
        }
        library = building.cache_folder("source") / f"{key_of(parts)}.so"
        # Headers of the user's may have changed: only our own are part of the key.
        if not library.is_file() or program.include:
            _build(compiler, options, source, library, program)
        return HostKernel(library, program)

    def synchronise(self) -> None:
        """Do nothing: this machine runs everything at once."""

    def allocate(self, size: int) -> int:
        """Return zeroed memory."""
        memory = np.zeros(max(size, 1), np.uint8)
        self._memory[memory.ctypes.data] = memory
        return memory.ctypes.data

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""
        del self._memory[address]

    def write(self, address: int, values: NDArray[Any]) -> None:
        """Copy an array to an address."""
        values = np.ascontiguousarray(values)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of the bytes at an address."""
        return np.frombuffer(ctypes.string_at(address, size), np.uint8)

    def copy(self, to: int, source: int, size: int) -> None:
        """Copy bytes from address to address."""
        ctypes.memmove(to, source, size)


def _build(compiler: Path, options: list[str], source: str, library: Path, program: Program) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="building-") as name:
        text, built_library = Path(name) / "kernel.cpp", Path(name) / library.name
        text.write_text(source)
        command = [str(compiler), *options, str(text), "-o", str(built_library)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode != 0:
            raise UserError(f"{program.kernel} in {program.file} does not compile:\n{process.stderr.strip()}")
        built_library.replace(library)
