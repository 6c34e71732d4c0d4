"""Compiling the persistent kernel for a plan, once per machine, into a cache.

    ~/.cache/tileprof/persistent/<key>/persistent.cubin
                                       stages.h          what was compiled in
                                       compiler.txt      registers and spills, in the compiler's words

The key is a hash of the sources, the header, the flags and the compiler's version.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.persistent.source import Options, header

SOURCES: Final = Path(__file__).parent
KERNEL: Final = "kernel.cu"
ENTRY: Final = "persistent"
RESIDENT: Final = "resident.cu"
CUBIN: Final = "persistent.cubin"
WHAT: Final = "the persistent kernel"
FLAGS: Final = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-Xptxas=-v")


def compiled(plan: Plan, options: Options) -> Path:
    """The folder that holds the cubin of a plan, compiled now if it is not in the cache. Raises `UserError` with the
    compiler's own words, or the system's where the cache cannot be written.
    """
    return build(SOURCES / KERNEL, header(plan, options))


def build(source: Path, stages: str = "") -> Path:
    """The folder that holds the cubin of a source that includes ``stages`` as stages.h; see `compiled`."""
    compiler = nvcc()
    sources = {path.name: path.read_text(encoding="utf-8") for path in (*SOURCES.glob("*.cuh"), source)}
    parts = json.dumps([version(compiler), FLAGS, sorted(sources.items()), source.name, stages])
    folder = building.cache_folder("persistent") / hashlib.sha256(parts.encode()).hexdigest()[:24]

    def make(work: Path) -> None:
        (work / "stages.h").write_text(stages, encoding="utf-8")
        compiler_output = _run(
            [str(compiler), *FLAGS, f"-I{work}", f"-I{SOURCES}", str(source), "-o", str(work / CUBIN)]
        )
        (work / "compiler.txt").write_text(compiler_output, encoding="utf-8")

    return building.kept(folder, (CUBIN,), make, WHAT)


def nvcc() -> Path:
    """The CUDA compiler; see `tileprof.building.nvcc`."""
    return building.nvcc("The persistent kernel is compiled")


@cache
def version(compiler: Path) -> str:
    """The compiler's version text."""
    return _run([str(compiler), "--version"])


def _run(command: list[str]) -> str:
    return building.run(command, WHAT)
