"""Compiling the decoder for a shape, once per machine, into a cache; see `tileprof.building`."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Final

from tileprof import building

ENTRY: Final = "decoder"
CUBIN: Final = "decoder.cubin"
COMPILER_WORDS: Final = "compiler.txt"
WHAT: Final = "the decoder"
FLAGS: Final = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-Xptxas=-v")

_FOLDER: Final = Path(__file__).parent
_INCLUDED: Final = _FOLDER.parent / "persistent"


def build(header: str) -> Path:
    """The folder that holds the cubin for a config.h, compiled now if it is not in the cache. Raises `UserError` with
    the compiler's words.
    """
    compiler = building.nvcc("The decoder is compiled")
    files = [*sorted(_FOLDER.glob("*.cu*")), _INCLUDED / "ptx.cuh"]
    sources = [path.read_text(encoding="utf-8") for path in files]
    parts = json.dumps([_version(compiler), FLAGS, sources, header])
    folder = building.cache_folder("decoder") / hashlib.sha256(parts.encode()).hexdigest()[:24]

    def make(work: Path) -> None:
        (work / "config.h").write_text(header, encoding="utf-8")
        includes = [f"-I{path}" for path in (work, _FOLDER, _INCLUDED)]
        command = [str(compiler), *FLAGS, *includes, str(_FOLDER / "kernel.cu"), "-o", str(work / CUBIN)]
        (work / COMPILER_WORDS).write_text(building.run(command, WHAT), encoding="utf-8")

    return building.kept(folder, (CUBIN,), make, WHAT)


@cache
def _version(compiler: Path) -> str:
    return building.run([str(compiler), "--version"], WHAT)
