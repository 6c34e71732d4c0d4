"""Watches what a verb reads and writes outside of the folders that it was given.

An audit hook sees Python's own calls. It does not see those of C and C++ libraries. For these there is a folder of bait
files that hostile names lead to; their access and change times are compared.
"""

from __future__ import annotations

import functools
import os
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

BAIT = "bait"
"""The folder of bait files beside the bases; `BAIT_MARK` in an operation stands for its path."""

BAIT_MARK = "@BAIT@"

SECRET = "a word that no verb may read"
"""Content of each bait file; no output may hold it."""

_READ = ("open", "os.listdir", "os.scandir")
_WRITTEN = {
    "os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2, "os.truncate": 1,
    "os.chmod": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1, "shutil.move": 2,
}  # fmt: skip
"""Events, and how many of their first arguments are paths."""
_IN_AN_OPEN_FOLDER = ("os.mkdir", "os.remove", "os.rmdir", "os.rename")
"""Events whose last arguments are file descriptors of folders, -1 if there is none."""
_NEVER = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect", "socket.bind")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SYSTEM = ("/usr", "/lib", "/lib64", "/proc", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom", "/etc/localtime")


class Watch:
    """Record accesses outside of folders that may be read and written, within `with`."""

    current: Watch | None = None
    is_hooked = False

    def __init__(self, readable: Sequence[Path], writable: Sequence[Path]) -> None:
        ours = Path(__file__).parents[2]
        places = [sys.prefix, sys.base_prefix, site.getusersitepackages(), sysconfig.get_path("purelib"), str(ours)]
        packages = [entry for entry in sys.path if entry]
        self.writable = tuple(os.path.realpath(path) for path in writable)
        self.readable = (
            *_SYSTEM,
            *(os.path.realpath(path) for path in (*places, *packages, *readable)),
            *self.writable,
        )
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        if not Watch.is_hooked:  # a hook stays until the process ends
            sys.addaudithook(_on_audit)
            Watch.is_hooked = True
        Watch.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Watch.current = None

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in _NEVER:
            self.faults.append(f"{event} {arguments[:2]!r}"[:300])
        elif event in _READ:
            flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
            self._take(event, arguments[0], writes=bool(flags & _WRITING))
        elif event in _WRITTEN:
            paths = arguments[: _WRITTEN[event]]
            folders = arguments[-len(paths) :] if event in _IN_AN_OPEN_FOLDER else (-1, -1)
            for path, folder in zip(paths, folders, strict=False):
                open_folder = f"/proc/self/fd/{folder}/" if isinstance(folder, int) and folder >= 0 else ""
                self._take(event, open_folder + os.fsdecode(path) if open_folder else path, writes=True)  # type: ignore[arg-type]

    def _take(self, event: str, path: object, *, writes: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # an open file
        where = os.path.realpath(os.fsdecode(path))
        allowed_roots = (*self.writable, "/dev/null") if writes else self.readable
        if not any(where == folder or where.startswith(folder.rstrip("/") + "/") for folder in allowed_roots):
            self.faults.append(f"{event} {where!r} {'written' if writes else 'read'}"[:300])


def _on_audit(event: str, arguments: tuple[object, ...]) -> None:
    watch = Watch.current
    if watch is not None and (event in _READ or event in _WRITTEN or event in _NEVER):
        Watch.current = None  # accesses of this module are not the verb's
        try:
            watch.hear(event, arguments)
        finally:
            Watch.current = watch


def make_bait(bases: Path) -> None:
    """Make copies of all bases, and files with a secret, in a folder of their own."""
    with tempfile.TemporaryDirectory() as beside:
        copy = Path(beside) / BAIT
        shutil.copytree(bases, copy)
        shutil.move(copy, bases / BAIT)
    for name in ("secret", "secret.json", "secret.cu", "secret.dep", "policy.h"):
        (bases / BAIT / name).write_text(f'{{"secret": "{SECRET}"}}\n')
    for path in [bases / BAIT, *(bases / BAIT).rglob("*")]:
        os.utime(path, (1_000_000, 2_000_000))  # with relatime, the first access after a change is recorded too


@functools.cache
def bait_of(bases: Path) -> list[Path]:
    """The folders and files of bait, as they were made."""
    return sorted([bases / BAIT, *(bases / BAIT).rglob("*")])


def bait_times(paths: Sequence[Path]) -> list[tuple[int, int, int]]:
    """Return access time, change time and size of each path, without changing them."""
    states = [os.stat(path) for path in paths]  # noqa: PTH116 - fast
    return [(state.st_atime_ns, state.st_mtime_ns, state.st_size) for state in states]
