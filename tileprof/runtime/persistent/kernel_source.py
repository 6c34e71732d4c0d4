"""Kernels for sm_90a with the sizes of one plan or shape: compiled once per machine, loaded once per process.

    ~/.cache/tileprof/<name>/<key>/kernel.cubin
                                   compiler.txt    registers and spills, in the compiler's words

The key is a hash of the sources, the sizes, the flags and the compiler's version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from tileprof import building
from tileprof.runtime.persistent.driver import Function
from tileprof.runtime.persistent.source import SHARED_BYTES

CUBIN: Final = "kernel.cubin"
COMPILER_OUTPUT: Final = "compiler.txt"
FLAGS: Final = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-Xptxas=-v")


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The source of a kernel.

    ``name``: of its builds in the cache. ``what``: the kernel in messages. ``path``: the file that is compiled; all
    headers beside it belong to it. ``entry``: its function. ``config``: the name under
    which it includes what is compiled in. ``included``: headers of other folders.
    """

    name: str
    what: str
    path: Path
    entry: str
    config: str = "stages.h"
    included: tuple[Path, ...] = ()

    def files(self) -> tuple[Path, ...]:
        """Return the compiled file, the headers beside it, and those of other folders."""
        return (self.path, *sorted(self.path.parent.glob("*.cuh")), *self.included)

    def texts(self) -> dict[str, str]:
        """Return the texts of `files` by file name."""
        return {path.name: path.read_text(encoding="utf-8") for path in self.files()}

    def compiled(self, config: str) -> Path:
        """Return the folder that holds `CUBIN` and `COMPILER_OUTPUT`, compiled now if the cache lacks them.

        ``config``: the text of the included configuration. Raises `UserError` with the compiler's own words, or with
        the system's where the cache cannot be written.
        """
        compiler = self.compiler()
        parts = json.dumps([_version(compiler, self.what), FLAGS, self.path.name, sorted(self.texts().items()), config])
        folder = building.cache_folder(self.name) / hashlib.sha256(parts.encode()).hexdigest()[:24]

        def make(work: Path) -> None:
            (work / self.config).write_text(config, encoding="utf-8")
            _copy(self.included, work)
            includes = (f"-I{work}", f"-I{self.path.parent}")
            output = _run([str(compiler), *FLAGS, *includes, str(self.path), "-o", str(work / CUBIN)], self.what)
            (work / COMPILER_OUTPUT).write_text(output, encoding="utf-8")

        return building.cached(folder, (CUBIN,), make, self.what)

    def loaded(self, config: str, device: Any) -> Function:
        """Return the kernel on a device, compiled now if the cache lacks it. Raises `UserError` where it cannot be."""
        folder = self.compiled(config)
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes PyTorch's context the current one
            return _function(folder / CUBIN, torch.cuda.current_device(), self.entry)

    def compiler(self) -> Path:
        """Return the CUDA compiler; see `tileprof.building.nvcc`."""
        return building.nvcc(f"{self.what[0].upper()}{self.what[1:]} is compiled")


def _copy(headers: Sequence[Path], folder: Path) -> None:
    """Copy headers one by one: their folders have other headers with names that the kernel's own headers have."""
    for path in headers:
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def _run(command: Sequence[str], what: str) -> str:
    return building.run(command, what)


@cache
def _version(compiler: Path, what: str) -> str:
    return _run([str(compiler), "--version"], what)


@cache
def _function(cubin: Path, _device: int, entry: str) -> Function:
    """Load a kernel, about 100 KB, on the current device. It is never unloaded: a captured graph may replay it after
    all its users are gone.
    """
    return Function(cubin.read_bytes(), entry, SHARED_BYTES)
