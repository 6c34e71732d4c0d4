"""Building at first use: the compilers of this machine, and a cache of what they have made.

    ~/.cache/tileprof/<name>/<key>/        one build; the key is a hash of all that went in

A build happens in a temporary folder that is renamed at the end, so that two processes may build at once and a killed
one leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tileprof.errors import UserError


def nvcc(why: str) -> Path:
    """Return the CUDA compiler: $CUDA_HOME, $CUDA_PATH, $PATH, a pip package, /usr/local/cuda. Raises `UserError` where
    there is none, beginning with ``why`` it is needed.
    """
    homes = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    on_path = [Path(path)] if (path := shutil.which("nvcc")) else []
    later = [*pip_cuda_folders(), Path("/usr/local/cuda")]
    for candidate in [*(home / "bin" / "nvcc" for home in homes), *on_path, *(home / "bin" / "nvcc" for home in later)]:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise UserError(
        f"{why} at first use and found no nvcc on the PATH, in CUDA_HOME or from pip. "
        f"Type: {sys.executable} -m pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime"
    )


def host_compiler() -> Path:
    """Return the C++ compiler: $CXX, g++, c++, clang++. Raises `UserError` where there is none."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and (path := shutil.which(name)):
            return Path(path)
    raise UserError("No C++ compiler was found. Set CXX, or install g++ with the system's package manager.")


def pip_cuda_folders() -> list[Path]:
    """Return folders in which pip puts parts of the CUDA toolkit, the newest first in each place."""
    return [folder for root in map(Path, sys.path) for folder in sorted(root.glob("nvidia/cu*"), reverse=True)]


def cache_folder(name: str) -> Path:
    """Return the folder for builds of one kind: under $TILEPROF_CACHE, else in tileprof's folder in the
    user's cache.
    """
    environment_folder = os.environ.get("TILEPROF_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tileprof"
    return (Path(environment_folder) if environment_folder else base) / name


def cached(folder: Path, files: Sequence[str], make: Callable[[Path], None], what: str) -> Path:
    """Return ``folder`` with ``files`` in it: as it is, or with what ``make`` leaves in the folder that it is given.
    ``what``: in messages, what is built.

    Raises `UserError` where the folder holds something else, where the cache cannot be written, and where ``make``
    leaves a file out.
    """
    refuse_foreign(folder)
    if _holds(folder, files):
        return folder
    if folder.exists():
        raise UserError(f"The build in {folder} is broken. Delete that folder and try again.")
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
            work = Path(name) / "built"
            work.mkdir()
            make(work)
            if missing := [file for file in files if not (work / file).is_file()]:
                raise UserError(
                    f"building {what} succeeded but made no {missing[0]}; is the compiler that of the CUDA toolkit?"
                )
            _move(work, folder, files)
    except OSError as error:
        raise UserError(
            f"{what[0].upper()}{what[1:]} cannot be built in {folder.parent} ({error.strerror or error}). "
            "Set TILEPROF_CACHE to a folder that can be written."
        ) from None
    return folder


def run(command: Sequence[str], what: str) -> str:
    """Run a compiler and return its output. Raises `UserError` with the compiler's words where it fails."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"`{command[0]}` cannot be started: {error.strerror or error}") from None
    if process.returncode != 0:
        message = (process.stderr or process.stdout).strip() or "it said nothing"
        raise UserError(f"Building {what} failed in `{command[0]}` (exit code {process.returncode}):\n{message}")
    return process.stdout + process.stderr


def refuse_foreign(folder: Path) -> None:
    """Raise `UserError` where another user could put code into a build that is then loaded: another owner, or a folder
    that everyone may write.
    """
    if not hasattr(os, "geteuid"):
        return
    for place in (folder.parent, folder):
        try:
            info = place.stat()
        except OSError:
            continue  # not there yet, or it cannot be read, which is said later
        if info.st_uid not in (0, os.geteuid()) or info.st_mode & stat.S_IWOTH:
            raise UserError(
                f"{place} belongs to another user or can be written by everyone, and code is loaded from it. Make it "
                "yours alone "
                "(chown, chmod 700), or set TILEPROF_CACHE to another folder."
            )


def _holds(folder: Path, files: Sequence[str]) -> bool:
    return all((folder / file).is_file() for file in files)


def _move(work: Path, folder: Path, files: Sequence[str]) -> None:
    try:
        work.rename(folder)
    except OSError:
        if not _holds(folder, files):  # otherwise another process was first, with the same inputs
            raise
        shutil.rmtree(work)
