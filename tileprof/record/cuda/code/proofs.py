"""Whether a kernel's accesses follow from its code and a launch's parameters: asked by recorded programs, and kept.

A recorded program asks before it launches a kernel that is not instrumented, over a Unix socket. All numbers are little
endian:

    request  4 bytes "TPP2", then words of 32 bits: architecture (90), bytes of code, number of relocated instructions,
             offset of the parameters in constant bank 0, bytes of parameters, grid x, y, z, block x, y, z,
             cluster x, y, z in blocks;
             the code; the offsets in it of relocated instructions, 32 bits each; the parameters; one bit per 8 bytes of
             parameters, least significant first: whether that word points into device memory
    answer   1 byte: 0 not proven; 1 proven, and one bit per 4 bytes of parameters, least significant first, in whole
             bytes: whether the proof depends on that word. It holds for all launches with this grid, block and
             cluster in which those words are the same, pointers but for their lowest bits
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.record.cuda.code import disassembly, traced, traces
from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES, Instruction
from tileprof.record.cuda.code.reading import Kernel
from tileprof.record.cuda.code.traces import Placed, Trace
from tileprof.record.cuda.installation import locate

MAGIC: Final = b"TPP2"
HEADER: Final = struct.Struct("<4s14I")
ARCHITECTURE: Final = 90
NOT_PROVEN, PROVEN = b"\0", b"\1"
MOST_CODE: Final = 256 << 10
"""Bytes of code beyond which a kernel is not looked at: the program waits for the answer."""
MOST_SKIPPED: Final = 64 << 20
"""Bytes of a request beyond which it is no request."""
MOST_PARAMETERS: Final = 32 << 10
MOST_FAILURES: Final = 8
"""Launches of one kernel that cannot be proven, after which the rest of them is not looked at."""
MOST_TRACES: Final = 256
"""Kinds of launches of which is kept in memory what they touch."""
MOST_SECONDS: Final = 120.0
"""Seconds of a recording that are spent on proofs: the program waits for them."""
MOST_KERNELS: Final = 128
"""Kernels whose instructions are kept in memory."""
MOST_PATH: Final = 107
"""Bytes of a socket's path."""
_ENOUGH: Final = "other launches of the kernel could not be proven"
_POINTER: Final = 1 << 40
"""Tells words of pointers from others."""

Dimensions = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Launch:
    """What decides which addresses a launch touches.

    ``relocated``: offsets in the code of instructions that are changed when it is loaded. ``offset``: of the parameters
    in constant bank 0. ``pointers``: one bit per 8 bytes of parameters, whether they point into device memory.
    ``cluster``: in blocks.
    """

    code: bytes
    relocated: tuple[int, ...]
    offset: int
    parameters: bytes
    pointers: bytes
    grid: Dimensions
    block: Dimensions
    cluster: Dimensions = (1, 1, 1)

    @property
    def kernel(self) -> bytes:
        """What all launches of a kernel share."""
        words = struct.pack(
            f"<{len(self.relocated) + 3}I", len(self.relocated), *self.relocated, self.offset, self.size
        )
        return hashlib.sha256(words + self.code).digest()

    @property
    def size(self) -> int:
        """Bytes of parameters."""
        return len(self.parameters)

    @property
    def pointing(self) -> list[int]:
        """Offsets in constant bank 0 of words of 8 bytes that point into device memory."""
        whole = range(self.size // 8)
        return [self.offset + 8 * n for n in whole if self.pointers[n // 8] >> n % 8 & 1]

    @property
    def kind(self) -> bytes:
        """What launches share that may have one proof, but for words of their parameters."""
        text = repr((self.grid, self.block, self.cluster, traces.has_high_pointers(self.traced)))
        return self.kernel + text.encode()

    @property
    def words(self) -> I64:
        """The words of constant bank 0, 4 bytes each, as a proof knows them: pointers by their lowest bits."""
        launch = self.traced
        bank = launch.bank + bytes(-len(launch.bank) % 4)
        words = np.frombuffer(bank, "<u4").astype(np.int64)
        for pointer in launch.pointers:
            words[pointer // 4 : pointer // 4 + 2] = _POINTER + traces.low_bits(launch, pointer), _POINTER
        return words

    @property
    def traced(self) -> traces.Launch:
        """The launch as `traced` follows it."""
        bank = struct.pack("<6I", *self.block, *self.grid).ljust(self.offset, b"\0") + self.parameters
        return traces.Launch(self.grid, self.block, self.cluster, bank, self.offset, frozenset(self.pointing))


@dataclass(slots=True)
class _Kernel:
    """One kernel's instructions, None before they are needed. ``failures``: launches that could not be proven, and none
    could.
    """

    code: list[Instruction] | None = None
    read: Kernel | None = None
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    """What launches touch whose words at ``used`` are ``words``; or why that is not known."""

    used: NDArray[np.bool_]
    words: I64
    trace: Trace | str

    def is_of(self, words: I64) -> bool:
        """Return whether a launch with these words is one of them."""
        return len(words) == len(self.used) and np.array_equal(words[self.used], self.words)


@dataclass(slots=True)
class Proofs:
    """What launches touch, as far as that is proven: kept in memory by kernel, and by parameters that are no pointers.

    ``tool``: an nvdisasm; without one nothing is proven. ``reason``: why there was no proof the last time.
    """

    tool: Path | None
    reason: str = ""
    _kernels: OrderedDict[bytes, _Kernel] = field(default_factory=OrderedDict)
    _traces: OrderedDict[bytes, list[_Kept]] = field(default_factory=OrderedDict)
    """By kind of launch."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def touched(self, launch: Launch) -> Placed | None:
        """Return what a launch touches; None where that is not proven, for the reason in ``reason``."""
        with self._lock:
            trace = self.here(launch, most_failures=None)
            return traces.placed(trace, launch.traced) if trace is not None else None

    def here(self, launch: Launch, most_failures: int | None = MOST_FAILURES) -> Trace | None:
        """Return what launches touch that have these parameters, pointers aside, grid, block and cluster.

        After ``most_failures`` launches of a kernel that could not be proven, others are not looked at.
        """
        with self._lock:
            kernel, kind, words = self._kernel(launch), launch.kind, launch.words
            several = self._traces.setdefault(kind, [])
            self._traces.move_to_end(kind)
            found = next((kept.trace for kept in several if kept.is_of(words)), None)
            if found is None:
                if most_failures is not None and kernel.failures >= most_failures:
                    self.reason = _ENOUGH
                    return None
                found = self._traced(kernel, launch)
                failed = isinstance(found, str)
                kernel.failures = kernel.failures + 1 if failed and kernel.failures >= 0 else -1
                used = np.ones(len(words), np.bool_) if isinstance(found, str) else found.used[: len(words)]
                several.append(_Kept(used, words[used], found))
                del several[:-MOST_TRACES]
                while len(self._traces) > MOST_TRACES:
                    self._traces.popitem(last=False)
            self.reason = found if isinstance(found, str) else ""
            return None if isinstance(found, str) else found

    def _kernel(self, launch: Launch) -> _Kernel:
        kernel = self._kernels.setdefault(launch.kernel, _Kernel())
        self._kernels.move_to_end(launch.kernel)
        while len(self._kernels) > MOST_KERNELS:
            self._kernels.popitem(last=False)
        return kernel

    def _traced(self, kernel: _Kernel, launch: Launch) -> Trace | str:
        try:
            if unread := self._read(kernel, launch):
                return unread
            if kernel.read is None:
                kernel.read = Kernel(kernel.code or [], frozenset(launch.relocated))
            return traced.trace(kernel.read, launch.traced)
        except Exception as error:  # noqa: BLE001 - a fault of the analysis must not end a recording
            return f"the analysis failed: {type(error).__name__}: {error}"

    def _read(self, kernel: _Kernel, launch: Launch) -> str:
        """Read a kernel's instructions; return why they cannot be, or nothing."""
        if len(launch.code) > MOST_CODE or len(launch.code) % INSTRUCTION_BYTES:
            return f"{len(launch.code)} bytes of code are not looked at"
        if self.tool is None:
            return "there is no nvdisasm"
        if kernel.code is None:
            kernel.code = disassembly.disassembled(self.tool, launch.code)
        return "" if kernel.code else "nvdisasm does not read its code"


class Server:
    """Answers programs, over the socket at ``path``, for as long as it is entered; None where it cannot listen."""

    def __init__(self, tool: Path | None = None) -> None:
        """``tool``: an nvdisasm; by default that of this machine."""
        self.path: str | None = None
        self._folder: str | None = None
        self._socket: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._spent = 0.0
        self.proofs = Proofs(tool)
        """What answers are made of; also for decoding, which needs the same ones."""

    def __enter__(self) -> Self:
        if self.proofs.tool is None:
            self.proofs.tool = locate.nvdisasm()
        with contextlib.suppress(OSError):
            self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            connections = [*self._connections]
        for connection in [*connections, *([self._socket] if self._socket is not None else [])]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.path = None

    def _listen(self) -> None:
        for place in (None, "/tmp"):  # noqa: S108 - where the folder of $TMPDIR has too long a path
            folder = tempfile.mkdtemp(prefix="tileprof-", dir=place)
            path = str(Path(folder) / "proofs")
            if len(os.fsencode(path)) <= MOST_PATH:
                break
            Path(folder).rmdir()
        else:
            return
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        self._socket.listen(64)
        self.path = path
        threading.Thread(target=self._accept, args=(self._socket,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer a program until it closes its connection."""
        try:
            with contextlib.suppress(OSError):
                while (answer := self._answer(connection)) is not None:
                    connection.sendall(answer)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket) -> bytes | None:
        """Return the answer to a program's next request; None where there is none that can be read."""
        header = _received(connection, HEADER.size)
        if header is None:
            return None
        magic, architecture, code_bytes, relocations, offset, size, *dimensions = HEADER.unpack(header)
        mask_bytes = (-(-size // 8) + 7) // 8
        lengths = (code_bytes, 4 * relocations, size, mask_bytes)
        if magic != MAGIC or sum(lengths) > MOST_SKIPPED:
            return None
        parts = [_received(connection, length) for length in lengths]
        code, relocated, parameters, pointers = parts
        if code is None or relocated is None or parameters is None or pointers is None:
            return None
        if architecture != ARCHITECTURE or not code or code_bytes > MOST_CODE or size > MOST_PARAMETERS:
            return NOT_PROVEN
        places = tuple(place for (place,) in struct.iter_unpack("<I", relocated))
        grid, block, cluster = ((x, y, z) for x, y, z in (dimensions[0:3], dimensions[3:6], dimensions[6:9]))
        try:
            return self.of(Launch(code, places, offset, parameters, pointers, grid, block, cluster))
        except Exception:  # noqa: BLE001 - whatever fails here, the program is instrumented as without proofs
            return NOT_PROVEN

    def of(self, launch: Launch) -> bytes:
        """Answer for one launch. What is proven is in the memory of ``proofs``; finding more takes limited time."""
        with self._lock:
            if self._spent > MOST_SECONDS:
                return NOT_PROVEN
        begin = time.monotonic()
        trace = self.proofs.here(launch)
        with self._lock:
            self._spent += time.monotonic() - begin
        if trace is None:
            return NOT_PROVEN
        first = launch.offset // 4
        used = trace.used[first : first + -(-launch.size // 4)]
        return PROVEN + np.packbits(used, bitorder="little").tobytes()


def _received(connection: socket.socket, size: int) -> bytes | None:
    """Return the next bytes of a connection; None where it ends before."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
