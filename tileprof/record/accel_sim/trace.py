"""Makes a trace of the logs of a program's kernels: accesses exact, durations modelled, buffers inferred."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.arrays.ragged import ragged
from tileprof.devices import Device, get, occupancy
from tileprof.errors import UserError
from tileprof.record.accel_sim.command_list import read_list
from tileprof.record.accel_sim.kernel_log import MOST_ENTRIES, KernelLog, read_kernel
from tileprof.record.accel_sim.regions import buffers
from tileprof.record.cuda.records.tiles import Geometry
from tileprof.record.model import duration
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.source import decode
from tileprof.record.source.layout import fresh_blocks
from tileprof.trace import TraceWriter
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint, Launch

if TYPE_CHECKING:
    from pathlib import Path

    from tileprof.arrays import I64

_TENSOR_RATE: Final = "fp16"


@dataclass(frozen=True, slots=True)
class Imported:
    """The trace, what it holds, and its modelled time in stream order."""

    path: Path
    launches: int
    tiles: int
    modelled_ns: int
    conservative: int


def import_logs(path: Path, output: Path, *, device: str = "H200", force: bool = False) -> Imported:
    """Write the logs that ``path``, a ``kernelslist.g`` or its folder, names to a trace at ``output``.

    Logs hold addresses and no times: durations are those of the roofline model for ``device``. All logs are read before
    the first byte is written. Raises `UserError` for logs that do not follow the format, with file and line.
    """
    described = get(device)
    commands = read_list(path)
    logs, log_bytes = [], 0
    for kernel in commands.kernels:
        logs.append(read_kernel(kernel))
        log_bytes += len(logs[-1].entries)
        if log_bytes > MOST_ENTRIES:
            raise UserError(f"{path}: up to {kernel.name} there are over {MOST_ENTRIES:,} ranges; list fewer kernels")
    regions = buffers([log.touched for log in logs], commands.copies)
    with TraceWriter(output, recorder="accel-sim", command=[str(path)], device=described, force=force) as writer:
        importer = _Importer(writer, described, regions)
        for log in logs:
            importer.add(log)
        importer.describe(commands.copies)
        writer.note("Read from Accel-Sim's logs: buffers are inferred from addresses, durations are modelled.")
    return Imported(writer.path, len(logs), importer.tiles, importer.now_ns, importer.conservative)


class _Importer:
    def __init__(self, writer: TraceWriter, device: Device, regions: tuple[I64, I64]) -> None:
        self._writer, self._device = writer, device
        self._low, self._high = regions
        self._buffers = [
            writer.add_buffer(base=low, bytes=high - low, kind="unknown", before_start=True)
            for low, high in zip(self._low.tolist(), self._high.tolist(), strict=True)
        ]
        self._kinds: dict[int, str] = {}
        self._streams: dict[int, int] = {}
        self._footprints: dict[bytes, int] = {}
        self.now_ns = self.tiles = self.conservative = 0

    def add(self, log: KernelLog) -> None:
        """Add one launch, behind all before it."""
        header = log.header
        geometry = Geometry(header.grid, header.block, (1, 1, 1))
        doubts = _doubts(log)
        if log.blocks_missing or log.unseen:
            bound = list(range(len(self._buffers)))
            boxes = self._all_buffers(header.name, geometry.tiles)
            origins = self._low
        else:
            bound, origins = self._touched(log)
            spans = [
                decode.Span(int(self._low[n]), int(self._high[n]), origin)
                for n, origin in zip(bound, origins.tolist(), strict=True)
            ]
            boxes = decode.boxes(log.entries, fresh_blocks(geometry.tiles), spans)
        self._note_use(bound, boxes)
        footprint = Footprint(geometry.places(), boxes)
        coverage = "conservative" if doubts else "exact"
        modelled = duration.model(self._modelled(log, geometry, footprint, bound, coverage), self._device)
        footprint.duration_ns = modelled.tile_ns
        threads = header.block[0] * header.block[1] * header.block[2]
        fits = occupancy(self._device, threads, header.registers, header.shared_bytes)
        self._writer.add_launch(
            Launch(
                footprint=self._footprint(footprint),
                operands=tuple(
                    (self._buffers[n], int(origin - self._low[n])) for n, origin in zip(bound, origins, strict=True)
                ),
                kernel=header.name or "kernel",
                grid=header.grid,
                block=header.block,
                duration_ns=modelled.launch_ns,
                timing="modelled",
                coverage=coverage,
                stream=self._streams.setdefault(header.stream, len(self._streams)),
                registers=header.registers,
                shared_bytes=header.shared_bytes,
                blocks_per_sm=max(fits.blocks_per_sm, 1),
                begin_ns=self.now_ns,
                flops=log.flops + log.tensor_flops,
                note="; ".join(doubts),
            )
        )
        self.now_ns += modelled.launch_ns
        self.tiles += geometry.tiles
        self.conservative += bool(doubts)

    def describe(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Kinds of the buffers: what the host copied or a launch reads first is an input."""
        copied = np.array([address for address, size in copies if size], np.int64)
        for n in (np.searchsorted(self._low, copied, side="right") - 1).tolist():
            self._kinds[n] = "input"
        for n, kind in self._kinds.items():
            self._writer.describe_buffer(self._buffers[n], kind=kind)

    def _touched(self, log: KernelLog) -> tuple[list[int], I64]:
        """Return buffers that a launch touches, by address, and the lowest address that it touches in each."""
        low, high = log.touched
        first = np.searchsorted(self._low, low, side="right") - 1
        last = np.searchsorted(self._low, high - 1, side="right") - 1
        owner, index = ragged(last - first + 1)
        region = first[owner] + index
        bound, at = np.unique(region, return_index=True)
        return bound.tolist(), np.maximum(low[owner], self._low[region])[at]

    def _all_buffers(self, name: str, tiles: int) -> Boxes:
        """Return boxes with which every tile reads and writes every buffer."""
        count = len(self._buffers)
        if 2 * count * tiles > MOST_ENTRIES:
            raise UserError(
                f"{name}: blocks or addresses are missing in its log, and {tiles:,} tiles that touch {count:,} buffers "
                "are too many; trace all of its blocks"
            )
        slot = np.tile(np.arange(count), 2 * tiles)
        return Boxes.of(
            tile=np.repeat(np.arange(tiles), 2 * count),
            operand=slot,
            mode=np.tile(np.repeat([READ, WRITE], count), tiles),
            offset=0,
            length=(self._high - self._low)[slot],
        )

    def _note_use(self, bound: list[int], boxes: Boxes) -> None:
        for slot, n in enumerate(bound):
            if n not in self._kinds:
                mine = boxes.mode[boxes.operand == slot]
                if len(mine):
                    self._kinds[n] = "input" if (mine == READ).all() else "activation"

    def _footprint(self, footprint: Footprint) -> int:
        digest = hashlib.sha256(footprint.block.tobytes())
        for column in fields(footprint.boxes):
            digest.update(getattr(footprint.boxes, column.name).tobytes())
        if footprint.duration_ns is not None:
            digest.update(footprint.duration_ns.tobytes())
        key = digest.digest()
        if key not in self._footprints:
            self._footprints[key] = self._writer.add_footprint(footprint)
        return self._footprints[key]

    def _modelled(
        self, log: KernelLog, geometry: Geometry, footprint: Footprint, bound: list[int], coverage: str
    ) -> Kernel:
        sizes = (self._high - self._low)[bound].tolist()
        return Kernel(
            log.header.name,
            footprint,
            tuple(Operand((size,), (1,), "uint8", 1, ref=slot) for slot, size in enumerate(sizes)),
            geometry.grid,
            geometry.block,
            registers=log.header.registers,
            shared_bytes=log.header.shared_bytes,
            flops=log.flops + log.tensor_flops,
            rate=_TENSOR_RATE if log.tensor_flops > log.flops else "fp32",
            coverage=coverage,
        )


def _doubts(log: KernelLog) -> list[str]:
    doubts = []
    if log.blocks_missing:
        doubts.append(
            f"{log.blocks_missing:,} blocks are not in the log, so every tile is taken to touch every buffer whole"
        )
    if log.unseen:
        names = ", ".join(sorted(log.unseen))
        doubts.append(f"the log has no addresses of {names}, so every tile is taken to touch every buffer whole")
    if log.unknown:
        names = ", ".join(sorted(log.unknown)[:8])
        doubts.append(f"what {names} does is not known: its addresses are taken as read and written")
    return doubts
