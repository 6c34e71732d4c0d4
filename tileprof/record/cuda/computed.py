"""What launches touch that ran without patches: computed from the kernel's machine code and the launch's parameters.

The recorder leaves a launch without patches only where `code.traced` shows that every address follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tileprof.record.cuda import accesses
from tileprof.record.cuda.code.proofs import Launch, Proofs
from tileprof.record.cuda.code.traces import Placed
from tileprof.record.cuda.footprints import bind
from tileprof.record.cuda.footprints.lifetimes import Lifetimes
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.records.tiles import Geometry, Times
from tileprof.record.cuda.tensor_maps.loads import Loads
from tileprof.trace import READ, WRITE

NOTE: Final = "computed from its machine code and parameters"


@dataclass(slots=True)
class Computed:
    """The launches of one process that ran without patches. ``folder`` holds its raw records."""

    folder: Path
    proofs: Proofs
    _code: dict[int, tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    _parameters: bytes | None = None

    def of(self, event: dict[str, Any], kernel: dict[str, Any]) -> Placed | str | None:
        """Return what a launch touches, by linear block; why that is unknown; or None for a launch with patches."""
        if not event.get("parameters"):
            return None
        place, size = event["parameters"]
        if self._parameters is None:
            path = self.folder / "parameters.bin"
            self._parameters = path.read_bytes() if path.is_file() else b""
        parameters = self._parameters[place : place + size]
        if len(parameters) < size:
            return "its parameters are missing"
        code, relocated = self._code_of(kernel["id"])
        if not code:
            return "its machine code is missing"
        pointers = sum(1 << word for word in event.get("pointers", ())).to_bytes(-(-size // 64), "little")
        geometry = Geometry.of(event)
        sizes = geometry.grid, geometry.block, geometry.cluster
        touched = self.proofs.touched(Launch(code, relocated, kernel["parameters"][0], parameters, pointers, *sizes))
        return touched if touched is not None else self.proofs.reason

    def _code_of(self, kernel: int) -> tuple[bytes, tuple[int, ...]]:
        if kernel not in self._code:
            code, relocated = (self.folder / f"{name}-{kernel}.bin" for name in ("code", "relocated"))
            offsets = np.fromfile(relocated, "<u4") if relocated.is_file() else np.empty(0, "<u4")
            self._code[kernel] = (code.read_bytes() if code.is_file() else b"", tuple(offsets.tolist()))
        return self._code[kernel]


def boxes(touched: Placed, geometry: Geometry, lifetimes: Lifetimes) -> list[tuple[int, Strided]]:
    """Return what the tiles of a launch touch as boxes at absolute addresses, with their modes."""
    out = []
    for mode, runs in touched.runs.items():
        if len(runs):
            of_tiles = accesses.united(geometry.tile_of(runs.tile), runs.start, runs.end, runs.first)
            out.append((mode, bind.from_runs(of_tiles, lifetimes)))
    for mode, through_map in zip((READ, WRITE), through_maps(touched, geometry), strict=True):
        out += [(mode, bind.within_buffers(loads.boxes(), lifetimes)) for loads in through_map]
    return out


def through_maps(touched: Placed, geometry: Geometry) -> tuple[list[Loads], list[Loads]]:
    """Return what the tiles of a launch load and what they store, through each tensor map."""
    of_tiles = [(mode, once(replace(loads, tile=geometry.tile_of(loads.tile)))) for mode, loads in touched.boxes]
    return [loads for mode, loads in of_tiles if mode == READ], [loads for mode, loads in of_tiles if mode != READ]


def once(loads: Loads) -> Loads:
    """Return the boxes that tiles load or store through one map, in order, each once and when it was first touched."""
    rows = np.column_stack([loads.tile, loads.offsets, loads.coordinates])
    order = np.lexsort((loads.first, *rows.T[::-1]))
    rows = rows[order]
    new = order[np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(order)]]
    columns = loads.tile[new], loads.coordinates[new], loads.first[new], loads.offsets[new]
    return replace(loads, tile=columns[0], coordinates=columns[1], first=columns[2], offsets=columns[3])


def progress(touched: Placed, geometry: Geometry) -> Times:
    """Return the instructions of each tile in place of its time: the unit in which `Placed` says when bytes are
    touched.
    """
    steps = np.zeros(geometry.tiles, np.int64)
    np.maximum.at(steps, geometry.tile_of(np.arange(len(touched.steps))), touched.steps)
    return Times(np.zeros_like(steps), steps, np.full_like(steps, -1), np.ones_like(steps))
