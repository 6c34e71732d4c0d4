"""Models the durations of tiles and launches: a roofline of the device, the same for every kernel, where tables have no
measured time.

If ``c`` blocks share an SM, each gets 1/c of its arithmetic rate and of its path to L2. If ``r`` tiles run at once,
each gets 1/r of the DRAM bandwidth. A tile takes ::

    max(flops / arithmetic share,  bytes / L2 share,  its part of the launch's DRAM bytes / DRAM share,
        chain of accesses) + BLOCK_NS

where ``c`` and ``r`` are means over the launch's waves, so that the busiest SM does all its work at its full rate
however full the last wave is: ``c = ceil(blocks / SMs) / waves``, ``r = tiles / waves``.

Assumptions, all optimistic but one: every distinct byte of a launch crosses DRAM once (L2 holds what the launch reads
again, and nothing from earlier launches: for small activations that is pessimistic), and arithmetic runs at the
device's sustained rate. A launch takes as long as list scheduling its tiles, in dispatch order, over all slots.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.devices import occupancy
from tileprof.errors import UserError
from tileprof.record.model import among_others, operator_times
from tileprof.record.model.tile_model import Scratch
from tileprof.trace.footprint import READ
from tileprof.trace.sources import TimeSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tile_model import Kernel, Operand

BLOCK_NS: Final = 1000.0
"""The cost of a block beside its work: start, one unhidden load and one store of some 500 ns each, the latency of
global memory that microbenchmarks of Volta to Hopper report (Jia et al. 2018, arXiv:1804.06826; Luo et al. 2024,
arXiv:2402.13499).
"""

IDLE_NS: Final = 1.0
"""Duration of a block without work beside blocks that have some: without the load and store of `BLOCK_NS`."""

L2_BYTES_PER_CLOCK_PER_SM: Final = 64
"""Width of an SM's port to L2 (Jia et al. 2018, section 3)."""

COPY_ENGINES: Final = ("memcpy", "memset")
"""Names of launches that are calls of the driver, not kernels."""

_HEAP_LIMIT: Final = 1 << 20
"""Beyond this many tiles of unequal length, area plus the longest tile stands for list scheduling (exact
within one tile)."""


@dataclass(frozen=True, slots=True)
class Duration:
    """``tile_ns`` is ``[tiles]``; ``launch_ns`` the whole launch; ``blocks_per_sm`` the occupancy."""

    tile_ns: NDArray[np.float64]
    launch_ns: int
    blocks_per_sm: int
    source: TimeSource = TimeSource.ROOFLINE


def model(kernel: Kernel, device: Device, *, weight_bytes: int = 0) -> Duration:
    """Return the modelled life of each tile and of the launch, in a program with so many bytes of weights.

    Raises UserError when one block does not fit on an SM of ``device``.
    """
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    fits = occupancy(device, threads, kernel.registers, kernel.shared_bytes)
    if not fits.blocks_per_sm:
        limiter = "shared memory" if fits.limiter == "shared" else fits.limiter
        raise UserError(
            f"{kernel.name} does not fit on {device.name}: {threads} threads, {kernel.registers} registers per thread "
            f"and {kernel.shared_bytes} bytes of shared memory exceed its {limiter}"
        )
    tiles = kernel.footprint.tiles
    cluster = max(kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2], 1)
    slots = max(device.sms * fits.blocks_per_sm // cluster, 1)
    waves = max(-(-tiles // slots), 1)
    running = tiles / waves
    resident = max(-(-tiles * cluster // device.sms) / waves, 1.0)
    tile_bytes, distinct_bytes = traffic(kernel)
    of = operator_times.features(kernel, float(tile_bytes.sum()), distinct_bytes)
    if kernel.launch_ns > 0:
        ratio = among_others.ratio(device, kernel.name, of, kernel.launch_ns, weight_bytes)
        measured: tuple[float, TimeSource] | None = (kernel.launch_ns * ratio, kernel.time_source)
    else:
        measured = operator_times.time_ns(device, kernel.name, of)
    if kernel.chain_ns and measured is not None and measured[1] is TimeSource.INTERPOLATED:
        measured = None  # entries do not know how many accesses follow one another
    if kernel.name.startswith(COPY_ENGINES):  # the driver's own kernel or engine takes the whole GPU
        ns = distinct_bytes / device.sustained_bytes_per_s * 1e9 + BLOCK_NS
        if measured is not None:
            return Duration(np.full(tiles, measured[0]), max(round(measured[0]), 1), fits.blocks_per_sm, measured[1])
        return Duration(np.full(tiles, ns), max(round(ns), 1), fits.blocks_per_sm)
    flops = kernel.tile_flops if kernel.tile_flops is not None else np.full(tiles, kernel.flops / max(tiles, 1))
    arithmetic_s = flops / cluster * resident * device.sms / device.sustained_flops(kernel.rate)
    port_s = tile_bytes / cluster * resident / (L2_BYTES_PER_CLOCK_PER_SM * device.clock_mhz * 1e6)
    part = tile_bytes / max(tile_bytes.sum(), 1.0) * distinct_bytes
    dram_s = part * running / device.sustained_bytes_per_s
    tile_ns = np.maximum(np.maximum(np.maximum(arithmetic_s, port_s), dram_s) * 1e9, kernel.chain_ns) + BLOCK_NS
    if tile_bytes.any():
        tile_ns[tile_bytes == 0.0] = IDLE_NS
    launch_ns = _makespan(tile_ns, slots)
    if measured is not None:  # tiles share what was measured as the roofline shares what it says
        tile_ns = tile_ns * (measured[0] / max(launch_ns, 1.0))
        return Duration(tile_ns, max(round(measured[0]), 1), fits.blocks_per_sm, measured[1])
    return Duration(tile_ns, max(round(launch_ns), 1), fits.blocks_per_sm)


def traffic(kernel: Kernel) -> tuple[NDArray[np.float64], float]:
    """Return bytes each tile moves ``[tiles]``, and distinct bytes of the launch (at most an operand's size).

    A conservative footprint says that every tile may touch an operand whole; the kernel moves it once nevertheless.
    """
    boxes = kernel.footprint.boxes
    volume = (boxes.length * boxes.count_0.astype(np.int64) * boxes.count_1).astype(np.float64)
    volume[np.isin(boxes.operand, list(kernel.awaited))] = 0.0
    slot = boxes.operand * 2 + (boxes.mode != READ)
    by_slot = np.bincount(slot, weights=volume, minlength=2 * len(kernel.operands))
    sizes = np.repeat([float(o.bytes if isinstance(o, Scratch) else _bytes(o)) for o in kernel.operands], 2)
    distinct = np.minimum(by_slot[: len(sizes)], sizes)
    if kernel.coverage == "conservative":
        volume *= (distinct / np.maximum(by_slot[: len(sizes)], 1.0))[slot]
    tile_bytes = np.bincount(boxes.tile, weights=volume, minlength=kernel.footprint.tiles)
    return tile_bytes.astype(np.float64), float(distinct.sum())


def _bytes(operand: Operand) -> int:
    """Return distinct bytes of a view, at most: repeated dimensions (stride 0) and overlapping windows count once."""
    dimensions = [(n, s) for n, s in zip(operand.shape, operand.strides, strict=True) if s]
    elements = math.prod(n for n, _ in dimensions)
    return min(elements, 1 + sum((n - 1) * s for n, s in dimensions)) * operand.itemsize


def _makespan(tile_ns: NDArray[np.float64], slots: int) -> float:
    """Return when the last tile ends, each dispatched to the slot that is free first."""
    if not len(tile_ns):
        return 0.0
    longest = float(tile_ns.max())
    if len(tile_ns) <= slots:
        return longest
    if longest - float(tile_ns.min()) <= 1e-9 * longest:
        return -(-len(tile_ns) // slots) * longest
    if len(tile_ns) > _HEAP_LIMIT:
        return float(tile_ns.sum()) / slots + longest
    ends = [float(t) for t in tile_ns[:slots]]
    heapq.heapify(ends)
    for life in tile_ns[slots:].tolist():
        heapq.heapreplace(ends, ends[0] + life)
    return max(ends)
