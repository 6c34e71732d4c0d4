"""Kernels that compute a whole model in one launch: compiled per shape, once per machine, and loaded per process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import torch

from tileprof import building
from tileprof.errors import UserError
from tileprof.runtime.persistent.driver import Function

CUBIN: Final = "kernel.cubin"
COMPILER_WORDS: Final = "compiler.txt"
FLAGS: Final = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O3", "-Xptxas=-v")


class Shape(Protocol):
    """Sizes of a model that are compiled in."""

    def check(self) -> None:
        """Raise `UserError` where the kernel does not support the shape."""

    def header(self, blocks: int, *, delay_ns: int, timeout_ns: int, profile: bool, in_flight: int) -> str:
        """The text of config.h, for a launch of ``blocks``."""
        ...


@dataclass(frozen=True, slots=True)
class ModelKernel:
    """The source of a kernel.

    ``entry``: its function, and its name in messages and in the cache. ``folder``: of kernel.cu, with all headers
    beside it. ``included``: headers from other folders. ``shared_bytes``: shared memory per block.
    """

    entry: str
    folder: Path
    included: Sequence[Path]
    shared_bytes: int

    def sources(self) -> tuple[Path, ...]:
        """Files of the kernel: its folder's, then those of other folders."""
        return (*sorted(self.folder.glob("*.cu*")), *self.included)

    def build(self, header: str) -> Path:
        """The folder that holds the cubin for a config.h, compiled now if it is not in the cache.

        Raises `UserError` with the compiler's words.
        """
        what = f"the {self.entry}"
        compiler = building.nvcc(f"The {self.entry} is compiled")
        sources = [path.read_text(encoding="utf-8") for path in self.sources()]
        parts = json.dumps([_version(compiler, what), FLAGS, sources, header])
        folder = building.cache_folder(self.entry) / hashlib.sha256(parts.encode()).hexdigest()[:24]

        def make(work: Path) -> None:
            (work / "config.h").write_text(header, encoding="utf-8")
            for path in self.included:  # copied: other headers of their folders have names that this one has, too
                (work / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            includes = (f"-I{work}", f"-I{self.folder}")
            command = [str(compiler), *FLAGS, *includes, str(self.folder / "kernel.cu"), "-o", str(work / CUBIN)]
            (work / COMPILER_WORDS).write_text(building.run(command, what), encoding="utf-8")

        return building.kept(folder, (CUBIN,), make, what)

    def loaded(
        self,
        shape: Shape,
        device: torch.device,
        blocks: int | None,
        *,
        delay_ns: int,
        timeout_ns: int,
        profile: bool,
        in_flight: int,
    ) -> tuple[Function, int]:
        """The kernel for a shape on a device, and its blocks: ``blocks``, or one per SM.

        Raises `UserError` for a shape or a device that the kernel does not support, and where it does not compile.
        """
        shape.check()
        properties = torch.cuda.get_device_properties(device)
        if (properties.major, properties.minor) != (9, 0):
            raise UserError(f"the {self.entry}'s kernel is for sm_90, and {properties.name} is not")
        count: int = blocks or properties.multi_processor_count
        folder = self.build(
            shape.header(count, delay_ns=delay_ns, timeout_ns=timeout_ns, profile=profile, in_flight=in_flight)
        )
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes PyTorch's context the current one
            return _function(folder / CUBIN, torch.cuda.current_device(), self.entry, self.shared_bytes), count


@cache
def _function(cubin: Path, _device: int, entry: str, shared_bytes: int) -> Function:
    """A kernel on the current device. It is never unloaded, since a captured graph may hold it."""
    return Function(cubin.read_bytes(), entry, shared_bytes)


@cache
def _version(compiler: Path, what: str) -> str:
    return building.run([str(compiler), "--version"], what)
