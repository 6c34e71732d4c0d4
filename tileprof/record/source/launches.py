"""Turns the remains of a launch into its rows in the trace."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from tileprof.devices import Device, occupancy
from tileprof.errors import UserError
from tileprof.record.cuda.records.tiles import Geometry
from tileprof.record.model import duration
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.source import decode
from tileprof.record.source.buffers import Buffer, Buffers
from tileprof.record.source.capture import Captured
from tileprof.record.source.layout import ENTRY, Blocks
from tileprof.record.source.machine import Dim, Machine, Place
from tileprof.record.source.write_check import unrecorded
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint, Launch

if TYPE_CHECKING:
    from tileprof.trace import TraceWriter

_NO_CLUSTER: Dim = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class About:
    """The facts of a launch beside its accesses; ``registers`` and ``shared_bytes`` without the header."""

    kernel: str
    fingerprint: str
    registers: int
    shared_bytes: int
    op: str
    module: str
    flops: int


class Launches:
    """Adds launches to a trace, one after the other in time; equal footprints share their rows."""

    def __init__(self, writer: TraceWriter, machine: Machine, device: Device, buffers: Buffers) -> None:
        self._writer = writer
        self._machine = machine
        self._device = device
        self._buffers = buffers
        self._footprints: dict[bytes, int] = {}
        self._now_ns = 0

    def add(self, place: Place, arguments: list[Buffer], captured: Captured, about: About) -> int:
        """Return the launch's id. Raises UserError when it touched memory that is in no known buffer."""
        bound = arguments + [b for b in self._buffers.live if b not in arguments]
        spans = [decode.Span(b.base, b.high, b.origin) for b in bound]
        outside = decode.stray(captured.entries, spans)
        if outside is not None:
            raise UserError(
                f"{about.kernel}: block {outside.block} touches {outside.bytes:,} bytes at {outside.address:#x}, "
                "which are in no array that this recording has registered. Register the array first: "
                "recording.buffer(array)."
            )
        unknown = self._unknown(captured, arguments, about)
        boxes = (
            _whole_buffers(place.blocks, bound) if unknown else decode.boxes(captured.entries, captured.blocks, spans)
        )
        # Arguments keep their slots; of the other buffers, the last that is touched ends the list.
        bound = bound[: max(len(arguments), int(boxes.operand.max(initial=-1)) + 1)]
        for slot, buffer in enumerate(bound):
            modes = boxes.mode[boxes.operand == slot]
            if len(modes):
                self._buffers.use(buffer, written=bool((modes != READ).any()))
        return self._write(place, bound, boxes, captured, about, unknown)

    def _unknown(self, captured: Captured, arguments: list[Buffer], about: About) -> str:
        """Return what is not known of a launch's accesses, as a sentence; "" when all of them are."""
        if captured.lost:
            return (
                f"the log had room for {len(captured.entries):,} of {captured.requested_entries:,} entries, so every "
                "tile is taken to touch every array whole; "
                f"Settings(largest_log_bytes={2 * captured.requested_entries * ENTRY.itemsize}) makes room"
            )
        for buffer, before in zip(arguments, captured.before or (), strict=captured.before is not None):
            after = self._machine.read(buffer.base, buffer.bytes)
            missed = unrecorded(before, after, buffer.base, captured.entries)
            if missed:
                return (
                    f"{missed:,} bytes of {buffer.name or f'buffer {buffer.id}'} changed in no recorded write, so "
                    "every tile is "
                    f"taken to touch every array whole; a store in {about.kernel} goes past tileprof.cuh"
                )
        return ""

    def _write(
        self, place: Place, bound: list[Buffer], boxes: Boxes, captured: Captured, about: About, unknown: str
    ) -> int:
        coverage = "conservative" if unknown else "exact"
        footprint = Footprint(Geometry(place.grid, place.block, _NO_CLUSTER).places(), boxes)
        notes = [unknown] if unknown else []
        if self._machine.measures:
            lived = captured.duration_ns or _lived_ns(captured.times)
            if captured.duration_ns is None:
                notes.append("its duration was taken with the recording header compiled in")
        else:
            modelled = duration.model(_kernel_of(about, place, bound, footprint, coverage), self._device)
            footprint.duration_ns, lived = modelled.tile_ns, modelled.launch_ns
        threads = place.block[0] * place.block[1] * place.block[2]
        fits = occupancy(self._device, threads, about.registers, about.shared_bytes)
        launch = self._writer.add_launch(
            Launch(
                footprint=self._footprint(footprint),
                operands=tuple((b.id, b.origin - b.base) for b in bound),
                kernel=about.kernel,
                grid=place.grid,
                block=place.block,
                duration_ns=max(round(lived), 1),
                timing="measured" if self._machine.measures else "modelled",
                coverage=coverage,
                fingerprint=about.fingerprint,
                op=about.op,
                module=about.module,
                registers=about.registers,
                shared_bytes=about.shared_bytes,
                blocks_per_sm=max(fits.blocks_per_sm, 1),
                begin_ns=self._now_ns,
                flops=about.flops,
                note="; ".join(notes),
            )
        )
        self._now_ns += max(round(lived), 1)
        if self._machine.measures:
            self._add_times(launch, captured.times)
        return launch

    def _footprint(self, footprint: Footprint) -> int:
        digest = hashlib.sha256(footprint.block.tobytes())
        for column in fields(footprint.boxes):
            digest.update(getattr(footprint.boxes, column.name).tobytes())
        key = digest.digest()
        if key not in self._footprints:
            self._footprints[key] = self._writer.add_footprint(footprint)
        return self._footprints[key]

    def _add_times(self, launch: int, blocks: Blocks) -> None:
        tile = np.flatnonzero(decode.entered(blocks))
        if not len(tile):
            self._writer.note("Kernels without a tileprof::BlockLife have no times of tiles.")
            return
        lived = blocks[tile]
        if int(lived["sm"].max()) >= self._device.sms:
            self._writer.note(f"Tiles ran on more SMs than {self._device.name} has; their times are left out.")
            return
        start = lived["begin_ns"].min()
        end = np.maximum(lived["end_ns"], lived["begin_ns"])
        self._writer.add_times(launch, tile, lived["sm"], lived["begin_ns"] - start, end - start)


def _lived_ns(blocks: Blocks) -> float:
    lived = blocks[decode.entered(blocks)]
    return float(lived["end_ns"].max() - lived["begin_ns"].min()) if len(lived) else 1.0


def _whole_buffers(tiles: int, bound: list[Buffer]) -> Boxes:
    """Return boxes with which every tile reads and writes every buffer whole."""
    modes = np.tile(np.repeat([READ, WRITE], len(bound)), tiles)
    slot = np.tile(np.arange(len(bound)), 2 * tiles)
    low = np.array([b.base - b.origin for b in bound], np.int64)
    size = np.array([b.bytes for b in bound], np.int64)
    tile = np.repeat(np.arange(tiles), 2 * len(bound))
    return Boxes.of(tile=tile, operand=slot, mode=modes, offset=low[slot], length=size[slot])


def _kernel_of(about: About, place: Place, bound: list[Buffer], footprint: Footprint, coverage: str) -> Kernel:
    operands = tuple(Operand((b.bytes,), (1,), "uint8", 1, ref=slot) for slot, b in enumerate(bound))
    return Kernel(
        about.kernel, footprint, operands, place.grid, place.block, _NO_CLUSTER, registers=about.registers,
        shared_bytes=about.shared_bytes, flops=about.flops, coverage=coverage,
    )  # fmt: skip
