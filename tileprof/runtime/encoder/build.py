"""Compiling the transformer kernel for a plan into the cache; see `tileprof.building`."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Final

from tileprof import building
from tileprof.runtime.persistent.build import SOURCES as PERSISTENT

SOURCES: Final = Path(__file__).parent
KERNEL: Final = "kernel.cu"
ENTRY: Final = "transformer"
CUBIN: Final = "transformer.cubin"
WHAT: Final = "the transformer kernel"
FLAGS: Final = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-Xptxas=-v")


def compiled(header: str) -> Path:
    """The folder that holds the cubin for a header, and compiler.txt, what the compiler said. Raises `UserError` with
    the compiler's own words.
    """
    compiler = building.nvcc("The transformer kernel is compiled")
    sources = {path.name: path.read_text(encoding="utf-8") for path in (*sources_of(), SOURCES / KERNEL)}
    parts = json.dumps([_version(compiler), FLAGS, sorted(sources.items()), header])
    folder = building.cache_folder("transformer") / hashlib.sha256(parts.encode()).hexdigest()[:24]

    def make(work: Path) -> None:
        (work / "stages.h").write_text(header, encoding="utf-8")
        command = [
            str(compiler),
            *FLAGS,
            f"-I{work}",
            f"-I{SOURCES}",
            f"-I{PERSISTENT}",
            str(SOURCES / KERNEL),
            "-o",
            str(work / CUBIN),
        ]
        (work / "compiler.txt").write_text(building.run(command, WHAT), encoding="utf-8")

    return building.kept(folder, (CUBIN,), make, WHAT)


def sources_of() -> tuple[Path, ...]:
    """What the kernel includes."""
    return (*sorted(SOURCES.glob("*.cuh")), PERSISTENT / "ptx.cuh", PERSISTENT / "waits.cuh")


@cache
def _version(compiler: Path) -> str:
    return building.run([str(compiler), "--version"], WHAT)
