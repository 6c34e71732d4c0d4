"""Disassembly of kernels, kept on disk: recorded programs wait while nvdisasm starts for each kernel.

    ~/.cache/tileprof/disassembly/<key>    SHA-256 of the key and of what follows, then lines of instructions (zlib)

The key is a hash of the code, of how the tool is called and of the tool's content. The content tells tools apart that
an installer gave the same size and date, and is the same after an installation of the same version elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.errors import UserError
from tileprof.record.cuda.code.instructions import INSTRUCTION_BYTES, Instruction, instruction_lines, parse

FOLDER: Final = "disassembly"
MOST_FILES: Final = 4096
"""Kernels that are kept on disk. Beyond these, the ones that were not used for the longest time are removed."""
_OPTIONS: Final = ("--binary", "SM90a")
_FORMAT: Final = b"1"
"""Changes with what is kept of the tool's output."""
_CHECKSUM_BYTES: Final = 32


def disassembled(tool: Path, code: bytes) -> list[Instruction]:
    """Return the instructions of a kernel for sm_90; none where ``tool``, an nvdisasm, cannot read them.

    The tool is not started for code that it has read before, in any process of this user.
    """
    path = _file(tool, code)
    if path is not None and (instructions := _whole(_recalled(path), code)):
        return instructions
    lines = _output(tool, code)
    instructions = _whole(lines, code)
    if path is not None and instructions:
        _keep(path, lines)
    return instructions


def _output(tool: Path, code: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.bin"
        path.write_bytes(code)
        process = subprocess.run([tool, *_OPTIONS, path], capture_output=True, text=True, check=False)
    return instruction_lines(process.stdout) if process.returncode == 0 else ""


def _whole(lines: str, code: bytes) -> list[Instruction]:
    """Return the instructions in these lines; none where they are not all of the code's."""
    instructions = parse(lines)
    return instructions if [i.address for i in instructions] == [*range(0, len(code), INSTRUCTION_BYTES)] else []


def _file(tool: Path, code: bytes) -> Path | None:
    """Return the file for a kernel's disassembly; None where no folder or tool can be relied on."""
    try:
        info = tool.stat()
        tool_hash = _content_hash(tool, info.st_size, info.st_mtime_ns)
        folder = building.cache_folder(FOLDER)
        building.refuse_foreign(folder)
    except (OSError, UserError, RuntimeError):  # RuntimeError: the user has no home
        return None
    parts = (_FORMAT, " ".join(_OPTIONS).encode(), tool_hash, hashlib.sha256(code).digest())
    return folder / hashlib.sha256(b"\0".join(parts)).hexdigest()


@lru_cache(maxsize=8)
def _content_hash(tool: Path, _size: int, _modified_ns: int) -> bytes:
    with tool.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _checksum(path: Path, compressed: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + compressed).digest()


def _recalled(path: Path) -> str:
    """Return the lines that an earlier call kept. A file that is damaged counts as absent."""
    try:
        content = path.read_bytes()
        compressed = content[_CHECKSUM_BYTES:]
        if content[:_CHECKSUM_BYTES] != _checksum(path, compressed):
            return ""
        lines = zlib.decompress(compressed).decode()
    except (OSError, ValueError, zlib.error):
        return ""
    with contextlib.suppress(OSError):
        os.utime(path)  # the least recently used files are removed first
    return lines


def _keep(path: Path, lines: str) -> None:
    """Write lines for later calls. Where that fails, they start the tool again."""
    compressed = zlib.compress(lines.encode())
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix="writing-")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_checksum(path, compressed) + compressed)
            temporary.replace(path)  # whole or not at all, even if another process writes
        finally:
            temporary.unlink(missing_ok=True)
        _prune(path.parent)


def _prune(folder: Path) -> None:
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    if len(files) > MOST_FILES:
        files.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in files[:-MOST_FILES]:
            Path(entry).unlink(missing_ok=True)
