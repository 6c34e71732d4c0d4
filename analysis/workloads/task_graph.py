"""Writes task graphs: launches of tiles that read and write cells of buffers, as a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tileprof.devices import Device, occupancy
from tileprof.trace import TraceWriter
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint, Launch

CELL = 4096
"""Bytes that a tile writes."""
THREADS = 256
REGISTERS = 40
"""Registers per thread. With 256 threads six blocks fit on an SM of every GPU of the catalogue: all threads of an SM
that holds 1,536.
"""

Cells = NDArray[np.int64]


@dataclass
class Program:
    """Writes launches; a buffer has a cell for each tile of the launch that writes it."""

    path: str | PathLike[str]
    device: Device
    name: str
    force: bool
    begin_ns: int = 0
    base: int = 1 << 20
    cells: dict[int, int] = field(default_factory=dict)
    """The number of cells, by buffer."""
    footprint_numbers: dict[tuple[object, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = TraceWriter(
            self.path, recorder="model", command=["workload", self.name], device=self.device, force=self.force
        )
        self.writer.note(f"Synthetic: the workload {self.name}; durations are made up.")
        self.blocks_per_sm = occupancy(self.device, THREADS, REGISTERS, 0).blocks_per_sm

    def close(self) -> Path:
        return self.writer.close()

    def buffer(self, cells: int, kind: str = "activation") -> int:
        number = self.writer.add_buffer(base=self.base, bytes=cells * CELL, kind=kind, before_start=kind == "input")
        self.base += -(-cells * CELL // 65536) * 65536
        self.cells[number] = cells
        return number

    def footprint(self, tiles: int, boxes: Sequence[Boxes], ns: float | NDArray[np.float64]) -> int:
        places = np.zeros((tiles, 3), np.int32)
        places[:, 0] = np.arange(tiles)
        each = np.broadcast_to(np.asarray(ns, np.float64), (tiles,)).copy()
        return self.writer.add_footprint(Footprint(places, Boxes.concat(boxes), each))

    def launch(self, footprint: int, operands: Sequence[int], tiles: int, ns: float, op: str = "") -> None:
        """``ns``: of its longest tile."""
        took = int(ns) * -(-tiles // (self.device.sms * self.blocks_per_sm))
        self.writer.add_launch(
            Launch(
                footprint=footprint, operands=tuple((b, 0) for b in operands), kernel=op or self.name, grid=(tiles, 1,
                1),
                block=(THREADS, 1, 1), duration_ns=took, timing="modelled", coverage="exact",
                blocks_per_sm=self.blocks_per_sm,
                op=op or self.name, registers=REGISTERS, begin_ns=self.begin_ns,
            )
        )  # fmt: skip
        self.begin_ns += took + int(self.device.launch_gap_ns)

    def whole(self, inputs: Sequence[int], tiles: int, ns: float, op: str = "") -> int:
        """Return a launch whose tiles read all of ``inputs`` and write a cell each of a new buffer, which is
        returned.
        """
        return self._new(("whole", *(self.cells[b] for b in inputs)), inputs, tiles, ns, op)

    def same(self, inputs: Sequence[int], tiles: int, ns: float, op: str = "") -> int:
        """Return a launch whose tile reads the same share of every input as it is of its launch, and writes a cell of a
        new buffer.
        """
        return self._new(("same", *(self.cells[b] for b in inputs)), inputs, tiles, ns, op)

    def _new(self, kind: tuple[object, ...], inputs: Sequence[int], tiles: int, ns: float, op: str) -> int:
        output = self.buffer(tiles)
        key = (*kind, tiles, ns)
        if key not in self.footprint_numbers:
            tile = np.arange(tiles)
            read = [self._read(k, self.cells[b], tiles, whole=kind[0] == "whole") for k, b in enumerate(inputs)]
            write = Boxes.of(
                tile=tile, operand=len(inputs), mode=WRITE, offset=tile * CELL, length=CELL, first=0.9, last=1.0
            )
            self.footprint_numbers[key] = self.footprint(tiles, [*read, write], ns)
        self.launch(self.footprint_numbers[key], [*inputs, output], tiles, ns, op)
        return output

    def cells_of(
        self, reads: Sequence[tuple[int, Cells, Cells]], tiles: int, ns: float | NDArray[np.float64], op: str = ""
    ) -> int:
        """Return a launch that writes a new buffer, and whose tiles read single cells: of each input, (buffer, tile,
        cell of it).
        """
        output = self.buffer(tiles)
        parts = [
            Boxes.of(tile=tile, operand=k, mode=READ, offset=cell * CELL, length=CELL, first=0.0, last=0.5)
            for k, (_, tile, cell) in enumerate(reads)
        ]
        each = np.arange(tiles)
        write = Boxes.of(
            tile=each, operand=len(reads), mode=WRITE, offset=each * CELL, length=CELL, first=0.9, last=1.0
        )
        key = (
            "cells",
            tiles,
            np.asarray(ns).tobytes(),
            *(x.tobytes() for _, tile, cell in reads for x in (tile, cell)),
        )
        if key not in self.footprint_numbers:
            self.footprint_numbers[key] = self.footprint(tiles, [*parts, write], ns)
        self.launch(self.footprint_numbers[key], [*(b for b, _, _ in reads), output], tiles, float(np.max(ns)), op)
        return output

    def diagonal(self, before: int, number: int, side: int, ns: float | NDArray[np.float64], op: str = "") -> int:
        """Return one diagonal of a square of ``side`` by ``side`` tiles, which read their upper and left neighbours on
        the one before.
        """
        tiles = min(number + 1, 2 * side - 1 - number)
        each, cells = np.arange(tiles), self.cells[before]
        first = each - 1 if number < side else each
        inside = [((first + k >= 0) & (first + k < cells)) & (number > 0) for k in (0, 1)]
        tile = np.concatenate([each[i] for i in inside])
        cell = np.concatenate([first[i] + k for k, i in enumerate(inside)])
        return self.cells_of([(before, tile, cell)], tiles, ns, op)

    def near(self, inputs: Sequence[int], shifts: Sequence[int], tiles: int, ns: float, op: str = "") -> int:
        """Return a launch whose tiles read their own cell of every input of as many tiles, and those at the given
        distances, where there are any.
        """
        each = np.arange(tiles)
        reads = []
        for b in inputs:
            pairs = [
                (each[inside], at[inside])
                for at in (each + k for k in (0, *shifts))
                for inside in [(at >= 0) & (at < tiles)]
            ]
            reads.append((b, np.concatenate([t for t, _ in pairs]), np.concatenate([c for _, c in pairs])))
        return self.cells_of(reads, tiles, ns, op)

    @staticmethod
    def _read(operand: int, cells: int, tiles: int, *, whole: bool) -> Boxes:
        tile = np.arange(tiles)
        low, high = (0 * tile, 0 * tile + cells) if whole else (tile * cells // tiles, -(-(tile + 1) * cells // tiles))
        return Boxes.of(
            tile=tile, operand=operand, mode=READ, offset=low * CELL, length=(high - low) * CELL, first=0.0, last=0.5
        )
