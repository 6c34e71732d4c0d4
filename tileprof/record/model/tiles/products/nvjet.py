"""The tiles that cuBLAS takes on Hopper for matrix products of 16-bit types that fit on the chip at once: its nvjet
kernels.

A block of 384 threads owns ``m x n`` results; the blocks of a cluster share loads by multicast and stand as one tile in
a trace. The fastest candidate whose blocks all run at once is taken, in clocks of an SM::

    launch     = max(arithmetic, loads) + epilogue
    arithmetic = depth / 16 * n / 64 * max(16, m / 2)       wgmma: 64 of n at once; reading those costs it 16 clocks
    loads      = (m / cluster n + n / cluster m) * depth * bytes / 88 B
    epilogue   = m * n * bytes of a result / 88 B

cuBLAS computes the transpose of a row-major result, so wgmma's 64 lies along n here. The 88 bytes per clock, and that
no more than fifteen clusters of eight run at once on 132 SMs (GPCs have 16 or 18, some fewer), are fitted: with them
the rule gives the blocks and clusters of all six products recorded on an H200 (driver 580, CUDA 13.0) and the area that
a cluster of a seventh, which was probed before, was seen to write
(`tests/unit/record/model/tiles/products/test_nvjet.py` lists them). Products that do not fit at once, and deep ones,
for which split-k pays, are left to `gemm_tile_rule`: none was recorded.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Final

from tileprof.record.model.tiles.products.gemm_tile_rule import Tile

if TYPE_CHECKING:
    from tileprof.devices import Device

ARCHITECTURE: Final = "sm_90"
RATES: Final = ("fp16", "bf16")
DEEPEST: Final = 4096
THREADS, REGISTERS = 384, 168
"""Two warpgroups that compute and one that loads, as recorded for every nvjet kernel so far."""
_M: Final = (*range(8, 65, 8), 128, 192, 256)
_N: Final = (64, 128, 256)
_MOST_RESULTS: Final = 128 * 256
"""The most results of a block: what the registers of two warpgroups hold."""
_CLUSTERS: Final = ((1, 1), (1, 2), (2, 1), (4, 2), (2, 4))
"""Blocks along m and along n; seen: (2, 1), (4, 2), (2, 4)."""
_SMALL: Final = 2
_STAGES, _FEWEST_STAGES, _STAGE_BYTES_OF_K = 16, 2, 128
"""The most stages of the pipeline; 16 for all recorded kernels, whose blocks are small."""
_ALIGNMENT: Final = 16
"""Rows that tensor maps can copy begin at multiples of this many bytes."""
_BYTES_PER_CLOCK: Final = 88


def choose(
    sizes: tuple[int, int, int], batch: int, *, itemsize: int, out_itemsize: int, rate: str, device: Device
) -> Tile | None:
    """Return the block and cluster for a product of ``sizes`` m, n, k; None where these kernels do not serve."""
    aligned = all(size * itemsize % _ALIGNMENT == 0 for size in sizes[1:])
    if device.architecture != ARCHITECTURE or rate not in RATES or not aligned or not 0 < sizes[2] <= DEEPEST:
        return None
    fits = [
        t
        for t in _candidates(device.shared_bytes_per_block, itemsize)
        if _clusters(t, sizes, batch) <= _at_once(t, device)
    ]
    return min(fits, key=lambda t: modelled_clocks(t, sizes[2], itemsize, out_itemsize), default=None)


def modelled_clocks(tile: Tile, depth: int, itemsize: int, out_itemsize: int) -> tuple[float, float]:
    """Return the launch in clocks of an SM and, for ties, the clocks of its loads."""
    along_m, along_n = tile.cluster
    arithmetic = depth / 16 * tile.n / 64 * max(16, tile.m / 2)
    loads = (tile.m / along_n + tile.n / along_m) * depth * itemsize / _BYTES_PER_CLOCK
    return max(arithmetic, loads) + tile.m * tile.n * out_itemsize / _BYTES_PER_CLOCK, loads


def _clusters(tile: Tile, sizes: tuple[int, int, int], batch: int) -> int:
    return -(-sizes[0] // tile.rows) * -(-sizes[1] // tile.columns) * batch


def _at_once(tile: Tile, device: Device) -> int:
    """Return clusters that run at once: small ones find a place in every GPC, of large ones the GPCs cut some off."""
    blocks = tile.cluster[0] * tile.cluster[1]
    lost_blocks = blocks if blocks > _SMALL else 0
    return (device.sms - lost_blocks) // blocks


@cache
def _candidates(shared_bytes: int, itemsize: int) -> list[Tile]:
    depth = _STAGE_BYTES_OF_K // itemsize
    candidates = []
    for m, n, cluster in product(_M, _N, _CLUSTERS):
        stage_bytes, out_bytes = (m + n) * _STAGE_BYTES_OF_K, m * n * itemsize
        stages = min(_STAGES, (shared_bytes - out_bytes) // stage_bytes)
        if m * n <= _MOST_RESULTS and stages >= _FEWEST_STAGES:
            shared = stages * stage_bytes + out_bytes
            candidates.append(Tile(m, n, depth, 1, stages, THREADS, REGISTERS, shared, cluster))
    return candidates
