"""Chooses the tile shape that a library would take for a matrix product: one rule, from the device's numbers alone.

Every candidate shape and split-k is timed by a small model, and the fastest is taken:

    launch = rounds * tile + reduction              rounds = ceil(blocks / SMs), since resident blocks share their SM
    tile   = max(arithmetic, loads) + epilogue + fill / resident blocks
    arithmetic = 2 * m * n * k / (what large products reach on one SM * shape * issue)
    shape  = 1.375 / (1 + 32 * (m + n) / (m * n))   1 for 256 x 128       issue = min(1, resident warps / 8)
    loads  = (m + n) * k * itemsize / (64 B a clock)

(m, n: the tile's, k: its share of the depth.) ``shape`` is what feeding operands costs a smaller tile: 0.91 for
128 x 128, 0.69 for 64 x 64, 0.46 for 32 x 32, about how libraries' kernels compare; without tensor cores 16 stands for
32. ``64 B a clock`` is what an SM takes from L2; eight warps is about
what keeps its units busy; ``fill`` is the time until the first loads arrive. Wave quantisation is in ``rounds``, small
problems pick small tiles and split-k because of it. A reduction costs a launch and its traffic.
The rule is a model of a library's heuristics, not a copy; on Hopper `nvjet` has one of its own for what fits on the
chip at once. `tileprof.record.model.tiles.foundations.overrides` dictates what really ran.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tileprof.devices import occupancy
from tileprof.record.model.tiles.foundations.overrides import Override, dictated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tileprof.devices import Device

CANDIDATES = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)),
    *((32, 128), (128, 32), (32, 64), (64, 32), (32, 32), (16, 128), (128, 16), (16, 64), (64, 16)),
)
"""Tile shapes m x n that CUTLASS and cuBLAS have on every architecture since sm_70. Those with a side of 16 are for
problems with a side of at most `NARROW`: a few tokens."""
NARROW = 32
SIMT = ("fp32", "fp64")
"""Rates of the vector units (fp64 tensor cores feed alike)."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
MIN_DEPTH_OF_A_SPLIT = 256
"""A slice of k shorter than this costs more in the reduction than it gains, on tensor cores."""
MIN_DEPTH_SIMT = 64
"""The same without: cuBLAS was recorded to cut 256 x 256 x 256 of fp32 into four slices (H200, driver 580)."""

SMALLEST_CONV = 64
"""Recorded for a convolution that 32 x 32 would spread over more SMs: 64 x 64, 25 blocks (H200, cuDNN of PyTorch
2.11)."""

_FEED, _FEED_SIMT = 32, 16
"""Multiply-adds that fit into the time in which one operand element comes to the registers."""
_SM_BYTES_PER_CLOCK = 64
_BUSY_WARPS = 8
_FILL_NS = 700.0
"""Two trips to DRAM before the pipeline runs, as measured latencies of about 350 ns a trip suggest."""

_RATES = {
    "float64": "fp64", "complex128": "fp64", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile shape and what its kernel asks of an SM. ``split`` blocks share one output tile along k.

    ``m`` and ``n`` are a block's; ``cluster`` is how many blocks along m and n are launched as one.
    """

    m: int
    n: int
    k: int
    split: int
    stages: int
    threads: int
    registers: int
    shared_bytes: int
    cluster: tuple[int, int] = (1, 1)

    @property
    def rows(self) -> int:
        """Along m, of the whole cluster."""
        return self.m * self.cluster[0]

    @property
    def columns(self) -> int:
        """Along n, of the whole cluster."""
        return self.n * self.cluster[1]


def rate_of(dtype: str, device: Device, *, tf32: bool = False) -> str:
    """Return the peak that a product of this type runs at on the device; fp32 where it has no unit for the type.

    PyTorch's defaults are fp32 for matrix products of float32 and, with ``tf32``, tensor cores for convolutions.
    """
    rate = "fp8" if dtype.startswith("float8") else _RATES.get(dtype, "fp32")
    if dtype == "float32" and tf32:
        rate = "tf32"
    return rate if rate in device.peak_flops else "fp32"


def choose(
    family: str, sizes: tuple[int, int, int], batch: int, *, itemsize: int, out_itemsize: int, rate: str, device: Device
) -> Tile:
    """Return the tile for a product of ``sizes`` m, n, k, ``batch`` times: as dictated, else the fastest by the
    rule.
    """
    override = dictated(family, sizes)
    if override is not None:
        return _dictated_tile(override, sizes, batch, itemsize, out_itemsize, rate, device)
    depth = _depth(itemsize, rate, device)
    shapes = [
        make_tile(m, n, depth, itemsize=itemsize, rate=rate, device=device, tensor_maps=family != "conv")
        for m, n in _shapes(family, sizes, rate)
    ]
    tiles = [split for tile in shapes for split in _splits(tile, sizes, batch, rate, device)]
    fits = [t for t in tiles if t.shared_bytes <= device.shared_bytes_per_block]
    return min(fits, key=lambda t: modelled_ns(t, sizes, batch, itemsize, out_itemsize, rate, device))


def _shapes(family: str, sizes: tuple[int, int, int], rate: str) -> Iterator[tuple[int, int]]:
    """Yield candidates for a problem; convolutions on tensor cores have pixel tiles of 64 and more, and as many
    channels if there are.
    """
    narrow = min(sizes[:2]) <= NARROW
    for m, n in CANDIDATES:
        small = family == "conv" and rate not in SIMT and (m < SMALLEST_CONV or n < min(SMALLEST_CONV, sizes[1]))
        if not small and (narrow or min(m, n) > 16):
            yield m, n


def make_tile(
    m: int, n: int, k: int, *, itemsize: int, rate: str, device: Device, split: int = 1, tensor_maps: bool = True,
    stages: int | None = None, threads: int | None = None, registers: int | None = None,
) -> Tile:  # fmt: skip
    """Return a tile with the threads, registers and pipeline that a library's kernel of this shape has.

    A warp owns at most 64 x 64 results on tensor cores (sm_90, with ``tensor_maps``: a warpgroup 64 x 256, and one
    warpgroup that only loads; cuDNN's convolutions were recorded to use none), a thread 8 x 8 of them without.
    Registers are the accumulators and about 90 for addresses and fragments.
    The pipeline is as deep as four stages (two before cp.async, sm_80) and shared memory allow.
    """
    major = int(device.architecture.removeprefix("sm_")) // 10
    if rate in SIMT:
        workers = max(64, min(256, m * n // 64))
        loaders, overhead = 0, 60
    elif major >= 9 and tensor_maps:
        workers, loaders, overhead = (256 if m * n >= 128 * 128 else 128), 128, 90
    else:
        workers, loaders, overhead = 32 * max(4, min(8, m * n // 4096)), 0, 90
    threads = threads or workers + loaders
    accumulators = m * n * (2 if rate == "fp64" else 1) // min(workers, threads)
    limit = min(device.registers_per_thread, device.registers_per_block // threads // 8 * 8)
    stage_bytes = (m + n) * k * itemsize
    if stages is None:
        most_stages = 4 if major >= 8 else 2
        stages = max(1, min(most_stages, device.shared_bytes_per_block // stage_bytes))
    return Tile(
        m, n, k, split, stages, threads,
        registers or min(limit, (accumulators + overhead + 7) // 8 * 8),
        stages * stage_bytes,
    )  # fmt: skip


def modelled_ns(
    tile: Tile, sizes: tuple[int, int, int], batch: int, itemsize: int, out_itemsize: int, rate: str, device: Device
) -> float:
    """Modelled duration of the launch, and of its reduction, in ns; see the module for the formula."""
    m, n, k = sizes
    blocks = -(-m // tile.m) * -(-n // tile.n) * batch * tile.split
    resident = max(
        1,
        min(occupancy(device, tile.threads, tile.registers, tile.shared_bytes).blocks_per_sm, -(-blocks // device.sms)),
    )
    issue = min(1.0, resident * tile.threads / 32 / _BUSY_WARPS)
    depth = -(-k // tile.split)
    feed = _FEED_SIMT if rate in SIMT else _FEED
    arithmetic = (
        2
        * (tile.m * tile.n + feed * (tile.m + tile.n))
        * depth
        / (device.sustained_flops(rate) / device.sms * issue)
        * 1e9
    )
    link = _SM_BYTES_PER_CLOCK * device.clock_mhz * 1e-3
    loads = (tile.m + tile.n) * depth * itemsize / link
    partial = 4 if tile.split > 1 else out_itemsize
    epilogue = tile.m * tile.n * partial / link
    launch = -(-blocks // device.sms) * (max(arithmetic, loads) + epilogue + _FILL_NS / resident)
    if tile.split == 1:
        return launch
    traffic = m * n * batch * (tile.split * partial + out_itemsize) / device.sustained_bytes_per_s * 1e9
    return launch + device.launch_gap_ns + _FILL_NS + traffic


def _splits(tile: Tile, sizes: tuple[int, int, int], batch: int, rate: str, device: Device) -> Iterator[Tile]:
    """Yield the tile with every split-k worth trying: none but 1 when the tiles of d fill the SMs, k is short, or
    products are batched.
    """
    m, n, depth = sizes
    starved = batch == 1 and -(-m // tile.m) * -(-n // tile.n) < device.sms
    shortest = max(MIN_DEPTH_SIMT if rate in SIMT else MIN_DEPTH_OF_A_SPLIT, 4 * tile.k)
    for split in SPLITS:
        if split == 1 or (starved and depth >= split * shortest):
            yield replace(tile, split=split)


def _depth(itemsize: int, rate: str, device: Device) -> int:
    """Depth of a pipeline stage: one 128-byte swizzle row on sm_90 and later, 64 bytes before; 8 floats without tensor
    cores.
    """
    major = int(device.architecture.removeprefix("sm_")) // 10
    return (32 if rate in SIMT else 128 if major >= 9 else 64) // itemsize


def _dictated_tile(
    override: Override,
    sizes: tuple[int, int, int],
    batch: int,
    itemsize: int,
    out_itemsize: int,
    rate: str,
    device: Device,
) -> Tile:
    m, n, k = override.tile
    tile = make_tile(
        m, n, k, itemsize=itemsize, rate=rate, device=device, split=override.split or 1,
        stages=override.stages, threads=override.threads, registers=override.registers,
    )  # fmt: skip
    if override.split is not None:
        return tile
    return min(
        _splits(tile, sizes, batch, rate, device),
        key=lambda t: modelled_ns(t, sizes, batch, itemsize, out_itemsize, rate, device),
    )
