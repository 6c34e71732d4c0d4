"""``kernelslist.g``: the copies to the GPU and the kernels of a program, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tileprof.errors import UserError
from tileprof.named_file import read_named
from tileprof.record.accel_sim.instructions import MOST_ADDRESS

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES: Final = 16 << 20
_MOST_KERNELS: Final = 100_000
_ENDINGS: Final = (".traceg", ".traceg.xz")


@dataclass(frozen=True, slots=True)
class CommandList:
    """Files of kernels in the order of their launches, and ``(address, bytes)`` of copies to the GPU."""

    kernels: tuple[Path, ...]
    copies: tuple[tuple[int, int], ...]


def read_list(path: Path) -> CommandList:
    """Return the commands of a list, or of the ``kernelslist.g`` in a folder. Raises `UserError` with file and line."""
    if path.is_dir():
        path /= "kernelslist.g"
    try:
        text = read_named(path, _MOST_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    if len(text) > _MOST_BYTES:
        raise UserError(f"{path} is larger than {_MOST_BYTES >> 20} MiB: it is not a list of kernels")
    kernels, copies = [], []
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        word = line.strip()
        if word.startswith("MemcpyHtoD"):
            copies.append(_copy(word, f"{path}, line {number:,}"))
        elif word.startswith("kernel"):
            if "/" in word or not word.endswith(_ENDINGS):
                raise UserError(
                    f"{path}, line {number:,}: {word[:80]!r} is not a file kernel-N.traceg or .traceg.xz beside the "
                    "list; kernelslist.g is what post-traces-processing writes"
                )
            kernels.append(path.parent / word)
        elif word and not word.startswith("Memcpy"):
            raise UserError(f"{path}, line {number:,}: {word[:80]!r} is neither a copy nor a kernel")
    if not kernels:
        raise UserError(f"{path} names no kernel; give the kernelslist.g that post-traces-processing wrote")
    if len(kernels) > _MOST_KERNELS:
        raise UserError(f"{path} names {len(kernels):,} kernels, and at most {_MOST_KERNELS:,} are read")
    return CommandList(tuple(kernels), tuple(copies))


def _copy(line: str, where: str) -> tuple[int, int]:
    try:
        _, address, size = line.split(",")
        copy = int(address, 16), int(size)
    except ValueError:
        copy = -1, 0
    if not (0 <= copy[0] < MOST_ADDRESS and 0 <= copy[1] < MOST_ADDRESS):
        raise UserError(f"{where}: {line[:80]!r} is not MemcpyHtoD,address,bytes")
    return copy
