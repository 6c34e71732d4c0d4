"""Whether a kernel's accesses follow from its code and a launch's parameters: asked by recorded programs, and kept.

A recorded program asks before it launches a kernel that is not instrumented, over a Unix socket. All numbers are little
endian:

    request  4 bytes "TPP2", then words of 32 bits: architecture (90), bytes of code, number of relocated instructions,
             offset of the parameters in constant bank 0, bytes of parameters, grid x, y, z, block x, y, z,
             cluster x, y, z in blocks;
             the code; the offsets in it of relocated instructions, 32 bits each; the parameters; one bit per 8 bytes of
             parameters, least significant first: whether that word points into device memory
    answer   1 byte: 1 proven, for all launches with this grid, block and cluster, these words that are no pointers,
             and pointers with these lowest bits; 0 not proven
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
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tileprof import building
from tileprof.errors import UserError
from tileprof.record.cuda.code import instructions, traced
from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES, Instruction
from tileprof.record.cuda.code.reading import Kernel
from tileprof.record.cuda.code.traced import Placed, Trace
from tileprof.record.cuda.installation import locate

MAGIC: Final = b"TPP2"
HEADER: Final = struct.Struct("<4s14I")
ARCHITECTURE: Final = 90
NOT_PROVEN, PROVEN = 0, 1
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
MOST_FILES: Final = 50_000
"""Verdicts in the cache, beyond which it is emptied."""
MOST_PATH: Final = 107
"""Bytes of a socket's path."""
_ENOUGH: Final = "other launches of the kernel could not be proven"
_GEOMETRY_BYTES: Final = 24
"""Block x, y, z and grid x, y, z at the beginning of constant bank 0."""

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
    def words(self) -> list[int | None]:
        """The parameters, 8 bytes each, padded with zeros; None for pointers."""
        padded = self.parameters + bytes(-len(self.parameters) % 8)
        words = [word for (word,) in struct.iter_unpack("<Q", padded)]
        return [None if self.pointers[n // 8] >> n % 8 & 1 else word for n, word in enumerate(words)]

    @property
    def here(self) -> bytes:
        """What launches share for which a proof is the same."""
        launch = self.traced
        low = [traced.low_bits(launch, pointer) for pointer in sorted(launch.pointers)]
        text = repr((self.grid, self.block, self.cluster, self.words, low, traced.has_high_pointers(launch)))
        return hashlib.sha256(self.kernel + text.encode()).digest()

    @property
    def traced(self) -> traced.Launch:
        """The launch as `traced` follows it."""
        bank = struct.pack("<6I", *self.block, *self.grid).ljust(self.offset, b"\0") + self.parameters
        pointers = frozenset(
            self.offset + 8 * n for n, word in enumerate(self.words) if word is None and 8 * n + 8 <= self.size
        )
        return traced.Launch(self.grid, self.block, self.cluster, bank, self.offset, pointers)


@dataclass(slots=True)
class _Kernel:
    """One kernel's instructions, None before they are needed. ``failures``: launches that could not be proven, and none
    could.
    """

    code: list[Instruction] | None = None
    read: Kernel | None = None
    failures: int = 0


@dataclass(slots=True)
class Proofs:
    """What launches touch, as far as that is proven: kept in memory by kernel, and by parameters that are no pointers.

    ``tool``: an nvdisasm; without one nothing is proven. ``reason``: why there was no proof the last time.
    """

    tool: Path | None
    reason: str = ""
    _kernels: OrderedDict[bytes, _Kernel] = field(default_factory=OrderedDict)
    _traces: OrderedDict[bytes, Trace | str] = field(default_factory=OrderedDict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def touched(self, launch: Launch) -> Placed | None:
        """Return what a launch touches; None where that is not proven, for the reason in ``reason``."""
        with self._lock:
            trace = self.here(launch, most_failures=None)
            return traced.placed(trace, launch.traced) if trace is not None else None

    def here(self, launch: Launch, most_failures: int | None = MOST_FAILURES) -> Trace | None:
        """Return what launches touch that have these parameters, pointers aside, grid, block and cluster.

        After ``most_failures`` launches of a kernel that could not be proven, others are not looked at.
        """
        with self._lock:
            kernel, key = self._kernel(launch), launch.here
            if key not in self._traces:
                if most_failures is not None and kernel.failures >= most_failures:
                    self.reason = _ENOUGH
                    return None
                self._traces[key] = self._traced(kernel, launch)
                failed = isinstance(self._traces[key], str)
                kernel.failures = kernel.failures + 1 if failed and kernel.failures >= 0 else -1
                while len(self._traces) > MOST_TRACES:
                    self._traces.popitem(last=False)
            self._traces.move_to_end(key)
            found = self._traces[key]
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
            kernel.code = instructions.disassembled(self.tool, launch.code)
        return "" if kernel.code else "nvdisasm does not read its code"


@cache
def _analysis() -> bytes:
    """Return a hash of all that decides a verdict, other than the disassembler."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.digest()


@dataclass(slots=True)
class Verdicts:
    """Answers, from the cache in the user's folder where they are there. ``spent``: seconds of finding others."""

    proofs: Proofs
    folder: Path | None = None
    version: bytes = b""
    spent: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def opened(cls, proofs: Proofs) -> Verdicts:
        """Return answers by some proofs; without a cache where its folder cannot be used."""
        tool = proofs.tool
        folder = building.cache_folder("proofs")
        try:
            building.refuse_foreign(folder)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            building.refuse_foreign(folder)
            if sum(1 for _ in os.scandir(folder)) > MOST_FILES:
                for path in folder.iterdir():
                    path.unlink(missing_ok=True)
            info = tool.stat() if tool is not None else None
        except (OSError, UserError):
            return cls(proofs)
        version = f"{tool} {info.st_mtime_ns} {info.st_size}" if info is not None else ""
        return cls(proofs, folder if info is not None else None, _analysis() + version.encode())

    def of(self, launch: Launch) -> int:
        """Return the answer for a launch: the one that the cache has, or find it and put it there."""
        with self._lock:
            key = hashlib.sha256(self.version + launch.here).hexdigest()
            path = self.folder / key if self.folder is not None else None
            if path is not None:
                with contextlib.suppress(OSError):
                    content = path.read_bytes()
                    if content in {bytes([NOT_PROVEN]), bytes([PROVEN])}:
                        return content[0]
            if self.spent > MOST_SECONDS:
                return NOT_PROVEN
            begin = time.monotonic()
            answer = PROVEN if self.proofs.here(launch) is not None else NOT_PROVEN
            self.spent += time.monotonic() - begin
            if path is not None and (answer or self.proofs.reason != _ENOUGH):
                with contextlib.suppress(OSError):
                    handle, name = tempfile.mkstemp(dir=self.folder)
                    with os.fdopen(handle, "wb") as file:
                        file.write(bytes([answer]))
                    Path(name).replace(path)
            return answer


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
        self._verdicts: Verdicts | None = None
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
                    connection.sendall(bytes([answer]))
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket) -> int | None:
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
            return self._of(Launch(code, places, offset, parameters, pointers, grid, block, cluster))
        except Exception:  # noqa: BLE001 - whatever fails here, the program is instrumented as without proofs
            return NOT_PROVEN

    def _of(self, launch: Launch) -> int:
        with self._lock:
            if self._verdicts is None:
                self._verdicts = Verdicts.opened(self.proofs)
        return self._verdicts.of(launch)


def _received(connection: socket.socket, size: int) -> bytes | None:
    """Return the next bytes of a connection; None where it ends before."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
