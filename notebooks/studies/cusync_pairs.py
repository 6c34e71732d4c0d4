"""Two dependent kernels as cuSync's benchmarks run them: their grids, what each policy makes a tile wait for, and the
time that takes.

A kernel is a GEMM, or a 3 x 3 convolution as an implicit GEMM, cut into tiles and, with split-k, into slices of its
inner dimension. What stands here was read in the sources of github.com/parasailteam/cusync (commit 117ae77) and of
CUTLASS that it calls:

- Tiles are handed out slice by slice, row by row: ``number = (slice * rows + row) * columns + column``. So with split-k
  no row of the producer is complete before the last slice begins. Only the last slice of a tile posts.
- A consumer tile waits for the producer's row in which its *first* line lies. Where the producer's tiles are lower than
  the consumer's (A100, 1280 and 1536 tokens) it does not wait for the other rows that it reads: published times are
  those of such waits, and so are these.
- Where the producer is wider than what the consumer sums over (LLaMA: two halves side by side), a column is waited for
  together with its like in each part (StridedSync, which stands for ``tilesync`` there).
- ``rowsync`` waits once, before the main loop, for all columns of that row.
- ``tilesync`` waits in the main loop each time the inner dimension enters a tile of the producer. The block's threads
  meet at each wait, and loads run no further ahead: a wait costs time even where the producer has long posted. (On
  Volta the loop's loads are one step ahead of its waits: the first ``tile_k`` columns of a producer's tile are read
  before the wait for it. That is not modelled.)
- A slice of a convolution has ``9 * ceil(ceil(channels / slices) / tile_k)`` steps: three slices of 128 channels do
  half as much again as the convolution asks for. Conv2DTileSync counts a slice's steps from 0 whichever channels it
  takes, so with split-k it waits for the first columns alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, lcm
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds import Durations
from tileprof.analysis.bounds.problem import Links, problem, successors
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.analysis.dependencies.relations import graph_of_relations
from tileprof.analysis.simulate.engine.clocks import FULL, Sharing, alone
from tileprof.analysis.simulate.engine.event_loop import Room, run
from tileprof.analysis.simulate.engine.plan import FREE, INSIDE, Draft
from tileprof.devices import Device
from tileprof.errors import UserError

POLICIES: Final = ("rowsync", "tilesync")
STREAM: Final = "baseline"
_TAPS: Final = 9
_OTHER_REGISTERS: Final = 96
"""Registers of a thread of CUTLASS's kernels beside the accumulators, about: addresses, fragments, predicates."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel; ``rows`` and ``columns`` are those of the product, ``inner`` is the dimension summed over.
    ``convolution``: 3 x 3, ``inner`` is 9 times the channels.
    """

    rows: int
    columns: int
    inner: int
    tile_rows: int
    tile_columns: int
    tile_inner: int
    warp_rows: int
    warp_columns: int
    stages: int
    slices: int
    convolution: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "inner", "tile_rows", "tile_columns", "tile_inner", "slices", "stages"):
            if getattr(self, name) < 1:
                raise UserError(f"a kernel of a pair has {name} {getattr(self, name)}, expected at least 1")

    @property
    def grid(self) -> tuple[int, int, int]:
        """Slices, rows and columns of tiles."""
        return self.slices, ceil(self.rows / self.tile_rows), ceil(self.columns / self.tile_columns)

    @property
    def tiles(self) -> int:
        slices, rows, columns = self.grid
        return slices * rows * columns

    @property
    def slice_inner(self) -> int:
        """How much of the inner dimension a slice goes through."""
        if self.convolution:
            return _TAPS * self.tile_inner * ceil(ceil(self.inner / _TAPS / self.slices) / self.tile_inner)
        return self.tile_inner * ceil(ceil(self.inner / self.tile_inner) / self.slices)

    @property
    def tile_work(self) -> int:
        """Multiply-adds of one tile, padding included."""
        return self.tile_rows * self.tile_columns * self.slice_inner

    @property
    def flops(self) -> float:
        """Arithmetic that the product asks for."""
        return 2.0 * self.rows * self.columns * self.inner

    def blocks_per_sm(self, device: Device) -> int:
        """Blocks that an SM holds: by shared memory, and by registers as estimated from the accumulators of a warp's
        tile.
        """
        warps = (self.tile_rows // self.warp_rows) * (self.tile_columns // self.warp_columns)
        registers = min(device.registers_per_thread, self.warp_rows * self.warp_columns // 32 + _OTHER_REGISTERS)
        shared_bytes = 2 * self.stages * (self.tile_rows + self.tile_columns) * self.tile_inner
        by_registers = device.registers_per_sm // (-(-registers // 8) * 8 * 32 * warps)
        by_shared = device.shared_bytes_per_sm // (shared_bytes + device.shared_bytes_reserved)
        return max(1, min(by_registers, by_shared, device.threads_per_sm // (32 * warps), device.blocks_per_sm))


Pair = tuple[Kernel, Kernel]
"""Producer and consumer: the product of the first is the left operand (or the image) of the second."""


@dataclass(frozen=True, slots=True)
class Interference:
    """How tiles slow each other down.

    ``sm``: share of an SM that a tile of a kernel with two blocks per SM asks for; tiles on an SM slow down once they
    ask for more than all of it. A kernel with one block asks for the whole SM, one with b blocks for ``2 * sm / b``.
    ``device``: how much longer, as a share, a tile takes with all slots of the GPU at work than alone on it; looked at
    where each kernel has an SM to itself.
    """

    sm: float = 1.0
    device: float = 0.0

    def sharing(self, device: Device, blocks: tuple[int, ...]) -> Sharing:
        """For kernels with this number of blocks per SM."""
        if max(blocks) > 1:
            shares = [1.0 if b == 1 else min(1.0, 2.0 * self.sm / b) for b in blocks]
            loads = np.floor(FULL * np.array(shares)).astype(np.int64)[:, None]
            return Sharing(device.sms, by_sm=True, base=0, loads=loads)
        if self.device == 0:
            return alone(len(blocks))
        loads = np.full((len(blocks), 1), int(FULL * self.device / device.sms), np.int64)
        return Sharing(2, by_sm=False, base=FULL, loads=loads)


def stream_ns(kernel: Kernel, tile_ns: float, device: Device, interference: Interference) -> float:
    """Time of a kernel with the GPU to itself; ``tile_ns`` is what a tile takes alone."""
    return _run((kernel,), (tile_ns,), device, interference, Draft(1, gate=[FREE]))


def overlapped_ns(
    pair: Pair, tile_ns: tuple[float, float], policy: str, device: Device, interference: Interference, poll_ns: float
) -> float:
    """Time of both kernels under a policy of `POLICIES`, the consumer's tiles behind all of the producer's.

    ``tile_ns`` is what a tile of each takes alone; ``poll_ns`` is what each wait costs a tile whether or not it has to
    wait.
    """
    _, polls = waits(pair, policy)
    draft = Draft(2, gate=[FREE, INSIDE], overhead_ns=[0.0, polls * poll_ns])
    draft.started[1] = {0}
    return _run(pair, tile_ns, device, interference, draft, policy)


@lru_cache(maxsize=512)
def waits(pair: Pair, policy: str) -> tuple[EdgeBlock, int]:
    """What the consumer's tiles wait for, and how many waits a tile goes through. Raises UserError for an unknown
    policy.
    """
    if policy not in POLICIES:
        raise UserError(f"there is no policy {policy!r} of a pair; there are {', '.join(POLICIES)}")
    producer, consumer = pair
    slices, rows, columns = consumer.grid
    needs = [_columns(producer, consumer, policy, z) for z in range(slices)]
    sets = [_parents(producer, consumer, y, needs[z]) for z in range(slices) for y in range(rows)]
    number, firsts = np.repeat(np.arange(len(sets)), columns), [first for _, first in sets]
    parents = [parent for parent, _ in sets]
    count = sum(map(len, parents))
    block = EdgeBlock(
        set_of=number.astype(np.int32),
        indptr=np.cumsum([0, *map(len, parents)]).astype(np.int64),
        parent=np.concatenate(parents).astype(np.int32),
        bytes=np.ones(count, np.int64),
        last=np.ones(count, np.float32),
        first=np.concatenate(firsts).astype(np.float32),
    )
    return block, 1 if policy == "rowsync" else _polls(producer, consumer, len(needs[0][0]))


def _columns(producer: Kernel, consumer: Kernel, policy: str, z: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Columns of the producer's grid that slice z of the consumer waits for, and when in its life."""
    all_of_them = np.arange(producer.grid[2])
    if policy == "rowsync":
        return all_of_them, np.zeros(len(all_of_them))
    length = consumer.slice_inner
    parts = _parts(producer, consumer)
    whole = all_of_them[: len(all_of_them) // parts]
    at = whole * producer.tile_columns * (_TAPS if consumer.convolution else 1) - (
        0 if consumer.convolution else z * length
    )
    inside = (at > -producer.tile_columns) & (at < length)
    columns = [whole[inside] + part * len(whole) for part in range(parts)]
    return np.concatenate(columns), np.tile(np.maximum(at[inside], 0) / length, parts)


def _parts(producer: Kernel, consumer: Kernel) -> int:
    """Products that the producer holds side by side."""
    return max(1, producer.columns // (consumer.inner // (_TAPS if consumer.convolution else 1)))


def _polls(producer: Kernel, consumer: Kernel, columns: int) -> int:
    """Waits of a tile under TileSync: one per column; in a convolution's loop one per step while the step lies in a
    column's first ninth, and one before.
    """
    if not consumer.convolution:
        return columns // _parts(producer, consumer)
    steps = np.arange(0, consumer.slice_inner, consumer.tile_inner)
    return 1 + int(np.count_nonzero(steps // producer.tile_columns % _TAPS == 0))


def _parents(
    producer: Kernel, consumer: Kernel, row: int, needs: tuple[NDArray[np.int64], NDArray[np.float64]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ascending producer tiles that a row of the consumer waits for, and when it needs each."""
    slices, rows, columns = producer.grid
    above = min(row * consumer.tile_rows // producer.tile_rows, rows - 1)
    column, first = needs
    slice_number = np.arange(slices)[:, None]
    return ((slice_number * rows + above) * columns + column).ravel(), np.tile(first, slices)


@lru_cache(maxsize=512)
def _graph(kernels: tuple[Kernel, ...], policy: str) -> tuple[TileGraph, Links]:
    """A fit simulates the same kernels with many times of a tile."""
    block = {(0, 1): waits((kernels[0], kernels[1]), policy)[0]} if policy else {}
    graph = graph_of_relations([(k.tiles, 1, 1) for k in kernels], block)
    return graph, Links.of(graph)


def _run(
    kernels: tuple[Kernel, ...], tile_ns: tuple[float, ...], device: Device, interference: Interference, draft: Draft,
    policy: str = "",
) -> float:  # fmt: skip
    tiles = np.array([k.tiles for k in kernels], np.int64)
    ends = np.cumsum(tiles)
    lives = Durations(np.repeat(tile_ns, tiles).astype(np.float64), ends - tiles, ["modelled"] * len(kernels))
    graph, links = _graph(kernels, policy)
    p = problem(graph, lives, reuse=False, links=links)
    blocks = tuple(k.blocks_per_sm(device) for k in kernels)
    parts = lcm(*blocks)
    demand = np.array([[1, parts // b] for b in blocks], np.int64)
    room = Room(
        device.sms,
        demand,
        np.ones(len(kernels), np.int64),
        np.array([device.blocks_per_sm, parts], np.int64),
        p.tile_base[1:] - p.tile_base[:-1] + 1,
    )
    outcome = run(p, successors(p), draft.plan(), room, interference.sharing(device, blocks))
    return float(outcome.end_ns.max())
