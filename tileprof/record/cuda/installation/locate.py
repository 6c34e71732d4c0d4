"""Finding what the recorder needs on this machine: the Compute Sanitizer wheel, nvcc, cuda.h, a C++ compiler.

NVIDIA's licence forbids shipping its library, so it is found where pip put it, or where a variable says. Each
function raises `UserError` with what was looked for, where, and the command that repairs it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.errors import UserError

WHEEL: Final = "nvidia-cuda-sanitizer-api"
OLDEST: Final = (13, 3)
"""The oldest version that reports loads through tensor maps, which are most of what a Hopper GEMM reads."""

FOLDER_VARIABLE: Final = "TILEPROF_SANITIZER_FOLDER"


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """The installed Compute Sanitizer API: the folder of its headers, its library, its version ("" unknown)."""

    include: Path
    library: Path
    version: str


def sanitizer() -> Sanitizer:
    """Return the installed Compute Sanitizer API.

    Raises `UserError` where it is missing or too old.
    """
    version = wheel_version()
    for folder in _sanitizer_folders():
        include, library = folder / "include", folder / "libsanitizer-public.so"
        if (include / "sanitizer_patching.h").is_file() and library.is_file():
            if version and _numbers(version) < OLDEST:
                raise UserError(
                    f"{WHEEL} {version} is too old: before {OLDEST[0]}.{OLDEST[1]} it does not see tensor-map loads. "
                    f"Type: {_pip()} '{WHEEL}>={OLDEST[0]}.{OLDEST[1]}'"
                )
            return Sanitizer(include, library, version)
    raise UserError(
        f"Recording real kernels needs NVIDIA's Compute Sanitizer API, which was not found on Python's path "
        f"(nor in {FOLDER_VARIABLE}). Type: {_pip()} '{WHEEL}>={OLDEST[0]}.{OLDEST[1]}'"
    )


def wheel_version() -> str:
    """Return the wheel's version, "" when it is not installed as one."""
    try:
        return metadata.version(WHEEL)
    except metadata.PackageNotFoundError:
        return ""


def nvcc() -> Path:
    """Return the CUDA compiler; see `tileprof.building.nvcc`."""
    return building.nvcc("Recording real kernels compiles device code")


def nvdisasm() -> Path | None:
    """Return NVIDIA's disassembler: on the PATH, in a toolkit, or as Triton brings it along; None without any."""
    homes = [Path(h) for h in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if h]
    on_path = shutil.which("nvdisasm")
    places = [Path(on_path)] if on_path else []
    places += [home / "bin" / "nvdisasm" for home in [*homes, *building.pip_cuda_folders()]]
    places += [Path(root) / "triton" / "backends" / "nvidia" / "bin" / "nvdisasm" for root in sys.path]
    return next((place for place in places if os.access(place, os.X_OK)), None)


def cuda_include() -> Path:
    """Return the folder of cuda.h.

    Raises `UserError` where it is not found beside the compiler.
    """
    compiler = nvcc()
    homes = [compiler.resolve().parent.parent]
    if text := _script_target(compiler):
        homes.append(Path(text).resolve().parent.parent)
    homes += [Path(h) for h in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if h]
    for home in [*homes, *building.pip_cuda_folders()]:
        for include in (home / "include", home / "targets" / "x86_64-linux" / "include"):
            if (include / "cuda.h").is_file():
                return include
    raise UserError(f"No cuda.h was found beside {compiler}. Type: {_pip()} nvidia-cuda-runtime")


def host_compiler() -> Path:
    """Return the C++ compiler; see `tileprof.building.host_compiler`."""
    return building.host_compiler()


def _sanitizer_folders() -> list[Path]:
    folder = os.environ.get(FOLDER_VARIABLE)
    folders = [Path(folder)] if folder else []
    for root in map(Path, sys.path):
        folders += sorted(root.glob("nvidia/cu*/compute-sanitizer"), reverse=True)
        folders += [root / "nvidia" / "cuda_sanitizer_api" / "compute-sanitizer"]
    return folders


def _script_target(path: Path) -> str:
    """Return the absolute path that a small shell wrapper executes; some systems put one in the place of nvcc."""
    if path.stat().st_size > 4096:
        return ""
    match = re.search(r"exec\s+\"?(/[^\s\"]+)", path.read_text(errors="replace"))
    return match[1] if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


def _pip() -> str:
    return f"{sys.executable} -m pip install"
