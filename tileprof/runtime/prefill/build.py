"""Compiling the prefill kernel for a shape, once per machine, into a cache; see `tileprof.building`."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Final

from tileprof import building

ENTRY: Final = "prefill"
CUBIN: Final = "prefill.cubin"
WHAT: Final = "the prefill"
FLAGS: Final = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-Xptxas=-v")

SOURCES: Final = Path(__file__).parent
INCLUDED: Final = (SOURCES.parent / "encoder" / "warp.cuh", SOURCES.parent / "persistent" / "ptx.cuh")


def build(header: str) -> Path:
    """The folder that holds the cubin for a config.h, compiled now if it is not in the cache.

    Raises `UserError` with the compiler's words.
    """
    compiler = building.nvcc("The prefill is compiled")
    sources = [path.read_text(encoding="utf-8") for path in (*sorted(SOURCES.glob("*.cu*")), *INCLUDED)]
    parts = json.dumps([_version(compiler), FLAGS, sources, header])
    folder = building.cache_folder("prefill") / hashlib.sha256(parts.encode()).hexdigest()[:24]

    def make(work: Path) -> None:
        (work / "config.h").write_text(header, encoding="utf-8")
        for path in INCLUDED:  # alone: other files of their folders have the names of this one's
            (work / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        command = [
            str(compiler),
            *FLAGS,
            f"-I{work}",
            f"-I{SOURCES}",
            str(SOURCES / "kernel.cu"),
            "-o",
            str(work / CUBIN),
        ]
        (work / "compiler.txt").write_text(building.run(command, WHAT), encoding="utf-8")

    return building.kept(folder, (CUBIN,), make, WHAT)


@cache
def _version(compiler: Path) -> str:
    return building.run([str(compiler), "--version"], WHAT)
