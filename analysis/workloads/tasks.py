"""Task graphs, written as traces: tiles with addresses and modelled durations, which every command reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np

from tileprof.devices import Device, get
from tileprof.trace import TraceWriter
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint, Launch

CELL = 4096
"""Bytes that a tile writes."""


@dataclass
class _Program:
    """Writes launches of tiles that read and write cells of one buffer each."""

    path: str | PathLike[str]
    device: Device
    name: str
    force: bool
    begin_ns: int = 0
    base: int = 1 << 20
    footprints: dict[tuple[int, int, float], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = TraceWriter(
            self.path, recorder="model", command=["workload", self.name], device=self.device, force=self.force
        )
        self.writer.note(f"Synthetic: the workload {self.name}; durations are made up.")

    def buffer(self, cells: int, kind: str = "activation") -> int:
        number = self.writer.add_buffer(base=self.base, bytes=cells * CELL, kind=kind, before_start=kind == "input")
        self.base += -(-cells * CELL // 65536) * 65536
        return number

    def launch(self, footprint: int, operands: Sequence[int], tiles: int, ns: float) -> None:
        resident = self.device.sms * 4
        took = int(ns) * -(-tiles // resident)
        self.writer.add_launch(
            Launch(
                footprint=footprint, operands=tuple((b, 0) for b in operands), kernel=self.name, grid=(tiles, 1, 1),
                block=(256, 1, 1), duration_ns=took, timing="modelled", coverage="exact", blocks_per_sm=4, op=self.name,
                registers=64, begin_ns=self.begin_ns,
            )
        )  # fmt: skip
        self.begin_ns += took + int(self.device.launch_gap_ns)

    def whole(self, inputs: int, tiles: int, ns: float) -> int:
        """A footprint whose tiles read all of ``inputs`` buffers of as many cells and write a cell each of the operand after these."""
        key = (inputs, tiles, ns)
        if key not in self.footprints:
            tile = np.arange(tiles)
            reads = [
                Boxes.of(tile=tile, operand=k, mode=READ, offset=0, length=tiles * CELL, first=0.0, last=0.5)
                for k in range(inputs)
            ]
            writes = Boxes.of(
                tile=tile, operand=inputs, mode=WRITE, offset=tile * CELL, length=CELL, first=0.9, last=1.0
            )
            self.footprints[key] = self.writer.add_footprint(_footprint([*reads, writes], tiles, ns))
        return self.footprints[key]


def _footprint(boxes: Sequence[Boxes], tiles: int, ns: float) -> Footprint:
    places = np.zeros((tiles, 3), np.int32)
    places[:, 0] = np.arange(tiles)
    return Footprint(places, Boxes.concat(boxes), np.full(tiles, ns))


def wavefront(
    path: str | PathLike[str], side: int = 32, *, tile_ns: float = 5000.0, spread: float = 0.5, seed: int = 0, device: str = "H200",
    force: bool = False,
) -> Path:  # fmt: skip
    """A square of cells, each after its upper and its left neighbour (Smith-Waterman, SOR, Wireframe's running example): a launch a diagonal.

    Tiles last ``tile_ns``, more or less by up to that share.
    """
    program = _Program(path, get(device), f"wavefront {side}", force)
    random = np.random.default_rng(seed)
    cells = program.buffer(side * side)
    for d in range(2 * side - 1):
        y = np.arange(max(0, d - side + 1), min(side, d + 1))
        x = d - y
        tile = np.arange(len(y))
        parts = [
            Boxes.of(tile=tile, operand=0, mode=WRITE, offset=(y * side + x) * CELL, length=CELL, first=0.9, last=1.0)
        ]
        for up, left in ((1, 0), (0, 1)):
            has = (y >= up) & (x >= left)
            at = ((y - up) * side + x - left)[has]
            parts.append(
                Boxes.of(tile=tile[has], operand=0, mode=READ, offset=at * CELL, length=CELL, first=0.0, last=0.1)
            )
        footprint = _footprint(parts, len(y), tile_ns)
        footprint.duration_ns = np.rint(tile_ns * (1 + spread * random.uniform(-1, 1, len(y))))
        longest = float(footprint.duration_ns.max())
        program.launch(program.writer.add_footprint(footprint), [cells], len(y), longest)
    return program.writer.close()


def random_wired(
    path: str | PathLike[str], nodes: int = 64, *, tiles: int = 24, tile_ns: float = 6000.0, seed: int = 0, device: str = "H200",
    force: bool = False,
) -> Path:  # fmt: skip
    """A network wired at random (Xie et al., "Exploring Randomly Wired Neural Networks for Image Recognition", 2019): a ring
    of nodes with its four nearest, three quarters of the links moved at random, each directed from the earlier node to the later. A node is a launch that
    reads all its inputs.
    """
    program = _Program(path, get(device), f"random-wired {nodes}", force)
    random = np.random.default_rng(seed)
    inputs: list[set[int]] = [set() for _ in range(nodes)]
    for v in range(nodes):
        for step in (1, 2):
            u = (v + step) % nodes if random.random() >= 0.75 else int(random.integers(nodes))
            if u != v:
                inputs[max(u, v)].add(min(u, v))
    source = program.buffer(tiles, "input")
    outputs: list[int] = []
    for v in range(nodes):
        read = [outputs[u] for u in sorted(inputs[v])] or [source]
        outputs.append(program.buffer(tiles))
        program.launch(program.whole(len(read), tiles, tile_ns), [*read, outputs[v]], tiles, tile_ns)
    return program.writer.close()


def rigid_bodies(
    path: str | PathLike[str], worlds: int = 16, *, steps: int = 2, iterations: int = 4, tiles: int = 4, tile_ns: float = 4000.0,
    seed: int = 0, device: str = "H200", force: bool = False,
) -> Path:  # fmt: skip
    """A batched rigid-body step, the kind of program that ACS was made for: every world is its own chain of small launches (collide,
    some solver iterations between half and all of ``iterations``, integrate), issued phase by phase.
    """
    program = _Program(path, get(device), f"rigid-bodies {worlds}", force)
    random = np.random.default_rng(seed)
    state = [program.buffer(tiles, "input") for _ in range(worlds)]
    for _ in range(steps):
        solves = random.integers(max(1, iterations // 2), iterations + 1, worlds)
        for phase in range(iterations + 2):
            for w in range(worlds):
                if 1 <= phase <= iterations and phase > solves[w]:
                    continue
                after = program.buffer(tiles)
                program.launch(program.whole(1, tiles, tile_ns), [state[w], after], tiles, tile_ns)
                state[w] = after
    return program.writer.close()
