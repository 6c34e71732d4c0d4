"""Whether a kernel's accesses follow from its code and a launch's parameters: asked by recorded programs, and kept.

A recorded program asks before it launches a kernel that is not instrumented, over a Unix socket. All numbers are little
endian:

    request  4 bytes "TPP1", then words of 32 bits: architecture (90), bytes of code, number of relocated instructions,
             offset of the parameters in constant bank 0, bytes of parameters, grid x, y, z, block x, y, z;
             the code; the offsets in it of relocated instructions, 32 bits each; the parameters; one bit per 8 bytes of
             parameters, least significant first: whether that word points into device memory
    answer   1 byte: 1 proven for every launch of the code; 2 proven for this grid and block and these words that are
             no pointers; 0 not proven
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
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tileprof import building
from tileprof.errors import UserError
from tileprof.record.cuda.code import instructions
from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES, Instruction
from tileprof.record.cuda.code.knowledge import CLEAN, UNKNOWN, Constant
from tileprof.record.cuda.code.proof import Proven, prove
from tileprof.record.cuda.installation import locate

MAGIC: Final = b"TPP1"
HEADER: Final = struct.Struct("<4s11I")
ARCHITECTURE: Final = 90
NOT_PROVEN, ALWAYS_PROVEN, PROVEN_HERE = 0, 1, 2
MOST_CODE: Final = 256 << 10
"""Bytes of code beyond which a kernel is not looked at: the program waits for the answer."""
MOST_SKIPPED: Final = 64 << 20
"""Bytes of a request beyond which it is no request."""
MOST_PARAMETERS: Final = 32 << 10
MOST_FAILURES: Final = 8
"""Launches of one kernel that cannot be proven, after which the rest of them is not looked at."""
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
    """

    code: bytes
    relocated: tuple[int, ...]
    offset: int
    parameters: bytes
    pointers: bytes
    grid: Dimensions
    block: Dimensions

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
        words = self.words
        text = repr((self.grid, self.block, words)).encode()
        return hashlib.sha256(self.kernel + text).digest()

    def anywhere(self) -> Callable[[int], Constant]:
        """Return the words of constant bank 0 as every launch of the kernel knows them."""
        end = self.offset + self.size

        def constant(at: int) -> Constant:
            return CLEAN if 0 <= at < _GEOMETRY_BYTES or self.offset <= at < end else UNKNOWN

        return constant

    def constants(self) -> Callable[[int], Constant]:
        """Return the words of constant bank 0 as this launch knows them, whatever its pointers are."""
        known: dict[int, Constant] = dict(zip(range(0, _GEOMETRY_BYTES, 4), (*self.block, *self.grid), strict=True))
        for n, word in enumerate(self.words):
            for half in (0, 1):
                if 8 * n + 4 * half < self.size:
                    known[self.offset + 8 * n + 4 * half] = CLEAN if word is None else word >> 32 * half & 0xFFFFFFFF
        return lambda at: known.get(at, UNKNOWN)


@dataclass(slots=True)
class _Kernel:
    """One kernel's instructions, None before they are needed, and its proofs, or why there is none."""

    code: list[Instruction] | None = None
    always: Proven | str | None = None
    here: dict[bytes, Proven | str] = field(default_factory=dict)


@dataclass(slots=True)
class Proofs:
    """Proofs for launches, kept in memory by kernel and, where they depend on them, by parameters.

    ``tool``: an nvdisasm; without one nothing is proven. ``reason``: why there was no proof the last time.
    """

    tool: Path | None
    reason: str = ""
    _kernels: OrderedDict[bytes, _Kernel] = field(default_factory=OrderedDict)

    def of(
        self,
        code: bytes,
        relocated: Sequence[int],
        parameter_offset: int,
        parameters: bytes,
        pointer_mask: bytes,
        grid: Dimensions,
        block: Dimensions,
    ) -> Proven | None:
        """Return the proof for a launch; None where there is none, for the reason in ``reason``.

        ``pointer_mask``: a bit per 8 bytes of parameters, least significant first: whether they are a pointer.
        """
        return self.proven(Launch(code, tuple(relocated), parameter_offset, parameters, pointer_mask, grid, block))

    def proven(self, launch: Launch) -> Proven | None:
        """Return the proof for a launch."""
        always = self.always(launch)
        return always if always is not None else self.here(launch)

    def always(self, launch: Launch) -> Proven | None:
        """Return the proof for all launches of a kernel."""
        kernel = self._kernel(launch)
        if kernel.always is None:
            kernel.always = self._proof(kernel, launch, launch.anywhere())
        return self._answer(kernel.always)

    def here(self, launch: Launch) -> Proven | None:
        """Return the proof for launches with these parameters that are no pointers, grid and block."""
        kernel = self._kernel(launch)
        if launch.here not in kernel.here:
            if len(kernel.here) >= MOST_FAILURES and all(isinstance(proof, str) for proof in kernel.here.values()):
                self.reason = _ENOUGH
                return None
            kernel.here[launch.here] = self._proof(kernel, launch, launch.constants())
        return self._answer(kernel.here[launch.here])

    def _answer(self, proof: Proven | str) -> Proven | None:
        self.reason = proof if isinstance(proof, str) else ""
        return None if isinstance(proof, str) else proof

    def _kernel(self, launch: Launch) -> _Kernel:
        kernel = self._kernels.setdefault(launch.kernel, _Kernel())
        self._kernels.move_to_end(launch.kernel)
        while len(self._kernels) > MOST_KERNELS:
            self._kernels.popitem(last=False)
        return kernel

    def _proof(self, kernel: _Kernel, launch: Launch, constants: Callable[[int], Constant]) -> Proven | str:
        if len(launch.code) > MOST_CODE or len(launch.code) % INSTRUCTION_BYTES:
            return f"{len(launch.code)} bytes of code are not looked at"
        if self.tool is None:
            return "there is no nvdisasm"
        try:
            if kernel.code is None:
                kernel.code = instructions.disassembled(self.tool, launch.code)
            if not kernel.code:
                return "nvdisasm does not read its code"
            return prove(kernel.code, constants, frozenset(launch.relocated))
        except Exception as error:  # noqa: BLE001 - a fault of the analysis must not end a recording
            return f"the analysis failed: {type(error).__name__}: {error}"


@cache
def _analysis() -> bytes:
    """Return a hash of all that decides a verdict, other than the disassembler."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.digest()


@dataclass(slots=True)
class Verdicts:
    """Answers, from the cache in the user's folder where they are there."""

    proofs: Proofs
    folder: Path | None = None
    version: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def opened(cls, tool: Path | None) -> Verdicts:
        """Return answers by an nvdisasm; without a cache where its folder cannot be used."""
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
            return cls(Proofs(tool))
        version = f"{tool} {info.st_mtime_ns} {info.st_size}" if info is not None else ""
        return cls(Proofs(tool), folder if info is not None else None, _analysis() + version.encode())

    def of(self, launch: Launch) -> int:
        """Return the answer for a launch."""
        with self._lock:
            always = self._kept(launch.kernel, ALWAYS_PROVEN, lambda: self.proofs.always(launch))
            return always or self._kept(launch.here, PROVEN_HERE, lambda: self.proofs.here(launch))

    def _kept(self, key: bytes, proven: int, prove_it: Callable[[], Proven | None]) -> int:
        """Return the answer that the cache has, or find it and put it there."""
        path = self.folder / hashlib.sha256(self.version + key).hexdigest() if self.folder is not None else None
        if path is not None:
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                if content in {bytes([NOT_PROVEN]), bytes([proven])}:
                    return content[0]
        answer = proven if prove_it() is not None else NOT_PROVEN
        if path is not None and self.folder is not None and (answer or self.proofs.reason != _ENOUGH):
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
        self._tool = tool
        self._folder: str | None = None
        self._socket: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._verdicts: Verdicts | None = None

    def __enter__(self) -> Self:
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
        grid, block = (dimensions[0], dimensions[1], dimensions[2]), (dimensions[3], dimensions[4], dimensions[5])
        try:
            return self._of(Launch(code, places, offset, parameters, pointers, grid, block))
        except Exception:  # noqa: BLE001 - whatever fails here, the program is instrumented as without proofs
            return NOT_PROVEN

    def _of(self, launch: Launch) -> int:
        with self._lock:
            if self._verdicts is None:
                self._verdicts = Verdicts.opened(self._tool or locate.nvdisasm())
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
