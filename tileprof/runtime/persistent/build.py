"""Compiling the persistent kernel for a plan, once a machine, into a cache.

    ~/.cache/tileprof/persistent/<key>/persistent.cubin
                                       stages.h          what was compiled in
                                       compiler.txt      registers and spills, in the compiler's words

The key is a hash of the sources, the header, the flags and the compiler's version. A build happens in a temporary folder that is renamed at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tileprof.errors import UserError
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.source import Options, header

SOURCES: Final = Path(__file__).parent
KERNEL: Final = "kernel.cu"
ENTRY: Final = "persistent"
RESIDENT: Final = "resident.cu"
CUBIN: Final = "persistent.cubin"
FLAGS: Final = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-Xptxas=-v")


def compiled(plan: Plan, options: Options) -> Path:
    """The folder that holds the cubin of a plan, compiled now if it is not in the cache. Raises `UserError` with the compiler's own words, or the system's
    where the cache cannot be written.
    """
    return build(SOURCES / KERNEL, header(plan, options))


def build(source: Path, stages: str = "") -> Path:
    """The folder that holds the cubin of a source that includes ``stages`` as stages.h; see `compiled`."""
    compiler = nvcc()
    sources = {path.name: path.read_text(encoding="utf-8") for path in (*SOURCES.glob("*.cuh"), source)}
    parts = json.dumps([_version(compiler), FLAGS, sorted(sources.items()), source.name, stages])
    folder = cache_folder() / hashlib.sha256(parts.encode()).hexdigest()[:24]
    if (folder / CUBIN).is_file():
        return folder
    if folder.exists():
        raise UserError(f"The build in {folder} is broken. Delete that folder and try again.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as name:
            work = Path(name) / "built"
            work.mkdir()
            (work / "stages.h").write_text(stages, encoding="utf-8")
            said = _run([str(compiler), *FLAGS, f"-I{work}", f"-I{SOURCES}", str(source), "-o", str(work / CUBIN)])
            if not (work / CUBIN).is_file():
                raise UserError(f"`{compiler}` ended well and made no {CUBIN}; is it the compiler of the CUDA toolkit?")
            (work / "compiler.txt").write_text(said, encoding="utf-8")
            _move(work, folder)
    except OSError as error:
        raise UserError(
            f"The persistent kernel cannot be built in {folder.parent} ({error.strerror or error}). Set TILEPROF_CACHE to a folder that can be written."
        ) from None
    return folder


def cache_folder() -> Path:
    """Where builds are kept: $TILEPROF_CACHE, else tileprof's folder in the user's cache."""
    given = os.environ.get("TILEPROF_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tileprof"
    return (Path(given) if given else base) / "persistent"


def nvcc() -> Path:
    """The CUDA compiler: $CUDA_HOME, $PATH, a pip package, /usr/local/cuda. Raises `UserError` where there is none."""
    homes = [Path(home) for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    packages = [folder for root in map(Path, sys.path) for folder in sorted(root.glob("nvidia/cu*"), reverse=True)]
    on_path = [Path(found)] if (found := shutil.which("nvcc")) else []
    candidates = [home / "bin" / "nvcc" for home in homes] + on_path
    candidates += [home / "bin" / "nvcc" for home in (*packages, Path("/usr/local/cuda"))]
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise UserError(
        "The persistent kernel is compiled at first use, and there is no nvcc on the PATH, in CUDA_HOME or from pip. "
        f"Type: {sys.executable} -m pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime"
    )


def _move(work: Path, folder: Path) -> None:
    try:
        work.rename(folder)
    except OSError:
        if not (folder / CUBIN).is_file():  # otherwise another process was first, with the same inputs
            raise
        shutil.rmtree(work)


@cache
def _version(compiler: Path) -> str:
    return _run([str(compiler), "--version"])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"`{command[0]}` cannot be started: {error.strerror or error}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or "it said nothing"
        raise UserError(
            f"Building the persistent kernel failed in `{command[0]}` (exit code {done.returncode}):\n{said}"
        )
    return done.stdout + done.stderr
