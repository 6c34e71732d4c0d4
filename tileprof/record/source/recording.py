"""A recording of kernels from source: compile them, launch them, and find the trace when the ``with`` block ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tileprof.devices import Device, get
from tileprof.errors import UserError
from tileprof.record.filter_settings import FilterSettings
from tileprof.record.source import arrays
from tileprof.record.source.arrays import Array
from tileprof.record.source.buffers import Buffers
from tileprof.record.source.capture import Capture, Issue
from tileprof.record.source.gpu import Gpu
from tileprof.record.source.host import Host
from tileprof.record.source.launches import About, Launches
from tileprof.record.source.layout import ENTRY, Blocks
from tileprof.record.source.machine import Built, Dim, Machine, Place, Program, scalar
from tileprof.trace import TraceWriter, filters

_HOST_DEVICE = "H200"


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits on the memory of a recording.

    ``log_bytes`` of log are kept on the machine; a launch that needs more is run again with more, up to
    ``largest_log_bytes``, and taken to touch all of its arrays beyond that. ``copies`` keeps the arrays of a launch as
    they were before it, so that it can be run again (for its duration without the header, and for a larger log) and its
    writes can be checked; without, nothing runs twice. With ``filters`` blocks also put what they touch into Bloom
    filters in the machine's memory, which `Recording.filtered` holds afterwards.
    """

    log_bytes: int = 256 << 20
    largest_log_bytes: int = 4 << 30
    copies: bool = True
    filters: FilterSettings | None = None

    def __post_init__(self) -> None:
        if not ENTRY.itemsize <= self.log_bytes <= self.largest_log_bytes:
            raise UserError(
                f"log_bytes is {self.log_bytes:,}; it must be from {ENTRY.itemsize} to largest_log_bytes, "
                f"{self.largest_log_bytes:,}"
            )


@dataclass(frozen=True, slots=True)
class Filtered:
    """A launch's Bloom filters: ``words`` ``[blocks, 2, words]`` of 32 bits, of reads, then of writes and updates.

    ``times`` and ``filtered_times`` are the lives of its blocks without and with filters to fill (None: this machine
    has no clocks, or nothing runs twice).
    """

    launch: int
    words: NDArray[np.uint32]
    times: Blocks | None
    filtered_times: Blocks | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel: with the header's recording in it, and (on a GPU) without, as users run it."""

    program: Program
    recorded: Built
    plain: Built | None


class Recording:
    """Writes the launches made through it into a trace; a context manager.

    ``machine`` is "gpu" (the first one), "host" (this CPU, through the header's emulation: exact accesses, modelled
    times) or a `machine.Machine`. ``device`` names the GPU that the trace describes: the machine's own where it is
    known. Arrays are PyTorch tensors, NumPy or CuPy arrays, or anything with ``__cuda_array_interface__`` or DLPack;
    they are kept alive until `release` or the end.

    Raises UserError when this machine cannot record, for code that does not compile, and for launches that fault.
    """

    def __init__(
        self,
        output: str | Path,
        *,
        machine: str | Machine = "gpu",
        device: str | Path | None = None,
        settings: Settings | None = None,
        force: bool = False,
    ) -> None:
        settings = settings or Settings()
        self.machine = _machine(machine, device)
        self.device = _device_of_name(str(device or self.machine.name))
        self._writer = TraceWriter(output, recorder="source", command=sys.argv, device=self.device, force=force)
        self.path = self._writer.path
        self._buffers = Buffers(self._writer)
        self._capture = Capture(
            self.machine,
            settings.log_bytes,
            settings.largest_log_bytes,
            copies=settings.copies,
            filters=settings.filters,
        )
        self._filters = settings.filters
        self.filtered: list[Filtered] = []
        self._launches = Launches(self._writer, self.machine, self.device, self._buffers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._capture.close()
            if self._filters is not None and self.filtered:
                filters.write(self._writer.partial_path, _stored_filters(self._filters, self.filtered))
            self._writer.close()
        else:
            self._writer.abandon(f"{type(error).__name__}: {error}")

    def compile(
        self, source: str | Path, kernel: str, *, options: Sequence[str] = (), include: Sequence[str | Path] = ()
    ) -> Kernel:
        """Compile CUDA C++ (text, or a file) that includes ``<tileprof.cuh>``.

        ``kernel`` is a function (``"scale"``) or an instance of a template (``"matmul<float, 16>"``); ``options`` are
        ``-DNAME=VALUE`` and the like, ``include`` folders of headers. Raises UserError with the compiler's words.
        """
        if isinstance(source, Path):
            try:
                text, file = source.read_text(), str(source)
            except OSError as error:
                raise UserError(f"cannot read the kernel's source {source}: {error.strerror}") from None
            include = (source.parent, *include)
        else:
            text, file = source, f"{kernel.split('<', maxsplit=1)[0].rsplit('::', maxsplit=1)[-1]}.cu"
        program = Program(text, file, kernel, tuple(options), tuple(map(str, include)))
        recorded = self.machine.compile(program, record=True)
        return Kernel(program, recorded, self.machine.compile(program, record=False) if self.machine.measures else None)

    def buffer(self, array: Any, name: str = "", kind: str = "") -> None:
        """Make an array known before a launch touches it: its name, and its kind as in ``schema.KINDS``."""
        described = self._array(array, "the argument of buffer()")
        if described is None:
            raise UserError(f"{type(array).__name__} is not an array that describes its memory")
        self._buffers.of(described, name, kind)

    def release(self, array: Any) -> None:
        """The array's memory is free from here on; it may come back as another buffer."""
        described = arrays.of(array)
        if described is not None:
            self._buffers.release(described)

    def launch(
        self,
        kernel: Kernel,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        shared_bytes: int = 0,
        op: str = "",
        module: str = "",
        flops: int = 0,
    ) -> int:
        """Run a kernel and write down what it did: the launch's id in the trace.

        ``arguments`` are arrays, ints, floats and NumPy scalars, one a parameter. Raises UserError for arguments that
        do not fit, and for a kernel that faults.
        """
        name = kernel.program.kernel
        place = Place(_dim(grid, f"{name}'s grid"), _dim(block, f"{name}'s block"), shared_bytes)
        if len(arguments) != len(kernel.recorded.sizes):
            raise UserError(f"{name} takes {len(kernel.recorded.sizes)} arguments, and {len(arguments)} were given")
        operands: list[Array] = []
        values: list[np.generic] = []
        for number, (value, size) in enumerate(zip(arguments, kernel.recorded.sizes, strict=True)):
            where = f"Parameter {number} of {name}"
            array = self._array(value, where)
            if array is not None:
                operands.append(array)
            values.append(scalar(np.uint64(array.address) if array is not None else value, size, where))
        plain = kernel.plain
        self._bind(operands)
        spans = [(b.base, b.high) for b in self._buffers.live]
        issue = Issue(
            place,
            kernel.recorded.attach,
            lambda: kernel.recorded.run(place, values, spans),
            (lambda: plain.run(place, values, spans)) if plain else None,
        )
        about = plain or kernel.recorded
        shared = about.shared_bytes + shared_bytes
        return self._record(issue, operands, About(name, about.fingerprint, about.registers, shared, op, module, flops))

    def watch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        used: Sequence[Any],
        *,
        attach: Callable[[bytes], None],
        go: Callable[[], object],
        op: str = "",
        module: str = "",
        flops: int = 0,
    ) -> int:
        """Record a launch that another library compiles and makes (CuPy, a PyTorch extension): its id in the trace.

        ``go()`` makes this one launch, of a kernel compiled with ``-DTILEPROF_RECORD``; ``attach(bytes)`` copies the
        bytes to its symbol ``tileprof_log``; ``used`` are its arrays. ``go`` may be called several times, on equal
        memory.
        """
        operands = [a for n, value in enumerate(used) if (a := self._array(value, f"Array {n} of {name}")) is not None]
        self._bind(operands)

        def run() -> float | None:
            go()
            self.machine.synchronise()
            return None

        place = Place(_dim(grid, f"{name}'s grid"), _dim(block, f"{name}'s block"))
        return self._record(Issue(place, attach, run), operands, About(name, "", 0, 0, op, module, flops))

    def _array(self, value: Any, where: str) -> Array | None:
        array = arrays.of(value)
        if array is not None and array.base_bytes and array.on_gpu != self.machine.measures:
            lies, wants = ("on a GPU", "the CPU's") if array.on_gpu else ("in the CPU's memory", "the GPU's")
            raise UserError(f"{where} lies {lies}; this recording runs kernels on {wants} memory")
        return array

    def _bind(self, operands: list[Array]) -> None:
        for array in operands:
            self._buffers.of(array)

    def _record(self, issue: Issue, operands: list[Array], about: About) -> int:
        bound = list({b.id: b for a in operands if (b := self._buffers.of(a)) is not None}.values())
        try:
            self.machine.synchronise()
            captured = self._capture.run(issue, [(b.base, b.bytes) for b in bound])
            launch = self._launches.add(issue.place, bound, captured, about)
        except UserError as error:
            # It may have changed memory: a program that catches this and continues has a trace that says so.
            self._writer.note(f"A launch of {about.kernel} is missing before launch {self._writer.launches}: {error}")
            raise
        if captured.filters is not None:
            measured = captured.filtered_times is not None
            times = captured.times if measured else None
            self.filtered.append(Filtered(launch, captured.filters, times, captured.filtered_times))
        return launch


def _stored_filters(how: FilterSettings, filtered: list[Filtered]) -> filters.StoredFilters:
    """Return what the trace keeps."""
    launches = []
    for f in filtered:
        lives = np.full(len(f.words), -1, np.int64)
        if f.filtered_times is not None:
            has_end = f.filtered_times["end_ns"] > 0  # a block without BlockLife does not say
            lives[has_end] = (f.filtered_times["end_ns"] - f.filtered_times["begin_ns"])[has_end].astype(np.int64)
        launches.append(filters.LaunchFilters(f.launch, f.words, lives))
    return filters.StoredFilters(how.bits, how.hashes, how.granule, launches)


def _machine(machine: str | Machine, device: str | Path | None) -> Machine:
    if machine == "gpu":
        return Gpu()
    if machine == "host":
        return Host(str(device or _HOST_DEVICE))
    if isinstance(machine, str):
        raise UserError(f"machine is {machine!r}; it is 'gpu', 'host' or a machine of tileprof.record.source")
    return machine


def _device_of_name(name: str) -> Device:
    """Return the device of a driver's name ("Tesla V100-SXM2-16GB"): as a whole, else by the first of its words that is
    one.
    """
    for word in name.replace("-", " ").split():
        if not _is_device_name(name) and _is_device_name(word):
            return get(word)
    return get(name)


def _is_device_name(name: str) -> bool:
    try:
        get(name)
    except UserError:
        return False
    return True


def _dim(value: int | Sequence[int], what: str) -> Dim:
    extents = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    if not 1 <= len(extents) <= 3 or min(extents) < 1:
        raise UserError(f"{what} is {value!r}; it has one to three dimensions of at least 1")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z
