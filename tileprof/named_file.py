"""Files that the user names, or that a stranger's archive brings: read without waiting for what may never come."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_named(path: Path, most_bytes: int) -> bytes:
    """Return the first ``most_bytes`` + 1 bytes of a file; nothing of a device or socket, nor of a pipe without a
    writer.

    A pipe with a writer, such as a shell's ``<(command)``, is read to its end. Raises `OSError`.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:  # noqa: PTH123
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, os.strerror(21), str(path))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            return b""  # a device may never end
        parts = [file.read(min(most_bytes + 1, 1 << 16))]
        if parts[0] is None:  # a pipe whose writer has yet to write
            os.set_blocking(file.fileno(), True)
            parts[0] = file.read(1 << 16)
        os.set_blocking(file.fileno(), True)
        total = len(parts[0])
        while parts[-1] and total <= most_bytes:
            parts.append(file.read(min(most_bytes + 1 - total, 1 << 24)))
            total += len(parts[-1])
        return b"".join(parts)
