"""What launches touch that ran without patches: computed from the kernel's machine code and the launch's parameters.

The recorder leaves a launch without patches only where `code.proof` shows that every address follows from them. Here
the same proof is made again, and the addresses are computed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tileprof.record.cuda.code import emulate
from tileprof.record.cuda.code.emulate import Emulated
from tileprof.record.cuda.code.proofs import Proofs
from tileprof.record.cuda.footprints import bind
from tileprof.record.cuda.footprints.lifetimes import Lifetimes
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.records.tiles import Geometry, Times

NOTE: Final = "computed from its machine code and parameters"
MOST_KEPT: Final = 64
"""Launches whose results are kept for equal ones."""


@dataclass(slots=True)
class Computed:
    """The launches of one process that ran without patches. ``folder`` holds its raw records."""

    folder: Path
    proofs: Proofs
    _code: dict[int, tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    _kept: dict[tuple[Any, ...], Emulated | str] = field(default_factory=dict)
    _parameters: bytes | None = None

    def of(self, event: dict[str, Any], kernel: dict[str, Any]) -> Emulated | str | None:
        """Return what a launch touches; why that is unknown; or None for a launch with patches."""
        if not event.get("parameters"):
            return None
        place, size = event["parameters"]
        if self._parameters is None:
            path = self.folder / "parameters.bin"
            self._parameters = path.read_bytes() if path.is_file() else b""
        parameters = self._parameters[place : place + size]
        if len(parameters) < size:
            return "its parameters are missing"
        pointers = tuple(event.get("pointers", ()))
        key = event["kernel"], tuple(event["grid"]), tuple(event["block"]), parameters, pointers
        if key not in self._kept:
            while len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._emulated(kernel, Geometry.of(event), parameters, pointers)
        return self._kept[key]

    def _emulated(
        self, kernel: dict[str, Any], geometry: Geometry, parameters: bytes, pointers: tuple[int, ...]
    ) -> Emulated | str:
        code, relocated = self._code_of(kernel["id"])
        if not code:
            return "its machine code is missing"
        begin = kernel["parameters"][0]
        mask = sum(1 << word for word in pointers).to_bytes(-(-len(parameters) // 64), "little")
        proven = self.proofs.of(code, relocated, begin, parameters, mask, geometry.grid, geometry.block)
        if proven is None:
            return self.proofs.reason
        bank = struct.pack("<6I", *geometry.block, *geometry.grid).ljust(begin, b"\0") + parameters
        touched = emulate.run(proven, geometry.grid, geometry.block, bank)
        return touched if touched is not None else "its threads take too many steps"

    def _code_of(self, kernel: int) -> tuple[bytes, tuple[int, ...]]:
        if kernel not in self._code:
            code, relocated = (self.folder / f"{name}-{kernel}.bin" for name in ("code", "relocated"))
            offsets = np.fromfile(relocated, "<u4") if relocated.is_file() else np.empty(0, "<u4")
            self._code[kernel] = (code.read_bytes() if code.is_file() else b"", tuple(offsets.tolist()))
        return self._code[kernel]


def boxes(emulated: Emulated, lifetimes: Lifetimes) -> list[tuple[int, Strided]]:
    """Return what a launch touches as boxes at absolute addresses, with their modes."""
    return [(mode, bind.from_runs(runs, lifetimes)) for mode, runs in emulated.touched.items() if len(runs)]


def progress(emulated: Emulated) -> Times:
    """Return the steps of each block in place of its time: the unit in which `Emulated` says when bytes are touched."""
    steps = emulated.steps
    return Times(np.zeros_like(steps), steps, np.full_like(steps, -1), np.ones_like(steps))
