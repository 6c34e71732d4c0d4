"""Cuts a layer into tiles, and models the cost of a tile from shared memory and the steps around products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Final

from tileprof.errors import UserError
from tileprof.runtime.convnet.network import Average, Convolution, Flat, Layer, Maximum, Network, Windows, windowed

WIDTHS: Final = (8, 16, 32, 64)
"""Columns of a tile: the kernel has code for each."""

DEEP_WIDTHS: Final = (8, 16, 32)
"""Columns where both warpgroups take the same rows: shared memory holds their sums."""

LEAST_POOLED: Final = 16
"""Columns of a tile that pools where the warpgroups have rows of their own."""

ROW_BYTES: Final = 128
"""Bytes of a row of shared memory: 64 channels of a pixel."""

K_BLOCK: Final = 64

WINDOW: Final = 32
"""Elements along k of a tap's row, where a convolution reads windows: two rows are a block of k."""

WINDOW_PITCH: Final = 1024
"""Bytes from a row of the padded input to the next, in a slot."""

SLOT_BYTES: Final = 16 * 1024
"""Bytes of a slot of activations, where all loads fit."""

MOST_SLOT_BYTES: Final = 29 * 1024
"""Bytes of a slot of activations where they do not: four rows of 58 pixels."""

WEIGHT_BYTES: Final = 24 * 1024
"""Bytes of a slot of weights."""

PARTS: Final = (1, 2, 4, 8)
"""Parts of k. Powers of two, as a tile's parts are counted by a word that overflows."""

_MOST_BLOCKS: Final = 16

# Microseconds on an H200, from timelines of the four networks of docs/convolutional-networks.md.
_BOUNDARY_US: Final = 2.0
"""Microseconds from the end of a layer's last tile to the first product of the next layer: a post, a wait, a load."""
_PARTS_US: Final = 1.7
"""Microseconds from a part's sums to the word that says whether it is the last, and the first of the others' sums."""
_LOAD_US: Final = 0.12
"""Microseconds per load of a box, whatever its size."""
_LOAD_ROW_US: Final = 0.0013
"""Microseconds per row of a box, 128 bytes."""
_BYTES_PER_US: Final = 65_000
"""Bytes per microsecond that a block loads at most."""


def block_us(width: int, *, deep: bool) -> float:
    """Return a block of k of 64 rows (``deep``) or 128, by what it takes through shared memory."""
    return 0.07 + 0.0005 * width if deep else 0.08 + 0.0014 * width


def end_us(tiling: Tiling) -> float:
    """Return microseconds of a tile's sums on their way to memory; the last of its parts loads those of all."""
    if not tiling.deep:
        return 0.2 + 0.0125 * tiling.width
    added = _PARTS_US + tiling.parts * 64 * tiling.width * 4 / _BYTES_PER_US
    return 0.25 + 0.005 * tiling.width + (0.0 if tiling.parts == 1 else added)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of ``images`` x ``rows`` x ``columns`` pixels of the result and ``width`` channels.

    ``deep``: the warpgroups take the same rows and share k; else half of the rows each. ``halo``: all taps of 64
    channels are loaded as one box. ``parts``: of k, each a task; the last to end adds their sums up.
    """

    width: int
    rows: int
    columns: int
    images: int = 1
    deep: bool = False
    halo: bool = False
    parts: int = 1

    def step(self, layer: Layer) -> int:
        """Return rows of shared memory from a row of pixels to the next."""
        if not isinstance(layer, Convolution):
            return self.columns
        return self.columns * layer.pool + (layer.size[1] - 1 if self.halo else 0)

    def box_rows(self, layer: Layer) -> int:
        """Return rows of shared memory that one load fills."""
        if not isinstance(layer, Convolution):
            return self.images * self.rows * self.columns
        return self.images * (self.rows * layer.pool + (layer.size[0] - 1 if self.halo else 0)) * self.step(layer)


def k_blocks(network: Network, layer: Convolution) -> int:
    """Return blocks of 64 along k."""
    if windowed(network, layer):
        return ceil(layer.size[0] / 2)
    return layer.size[0] * layer.size[1] * (layer.reads[3] // K_BLOCK)


def tiles(layer: Layer, tiling: Tiling) -> int:
    """Return tiles of a layer, whatever their parts."""
    sides = (tiling.images, tiling.rows, tiling.columns, tiling.width)
    return prod(ceil(whole / side) for whole, side in zip(layer.shape, sides, strict=True))


def microseconds(network: Network, layer: Layer, tiling: Tiling) -> float:
    """Modelled microseconds of one task among others in a row."""
    if not isinstance(layer, Convolution):
        return 1.0
    blocks = k_blocks(network, layer) // tiling.parts
    taps = layer.size[0] * layer.size[1] if tiling.halo else 1
    rows, together = tiling.box_rows(layer), taps
    if joined(layer, tiling):
        together = slot_blocks(network, layer, tiling, SLOT_BYTES)
    loaded = max(
        _LOAD_US / together + _LOAD_ROW_US * rows / taps, (rows / taps + tiling.width) * ROW_BYTES / _BYTES_PER_US
    )  # fmt: skip
    multiplied = block_us(tiling.width, deep=tiling.deep)
    return blocks * max(multiplied, 0.0 if windowed(network, layer) else loaded) + end_us(tiling)


def tiled(network: Network, layer: Layer, blocks: int) -> Tiling:
    """Return the tiling that ends first on ``blocks`` blocks, by the model. Raises `UserError` where there is none."""
    images, rows, columns, channels = layer.shape
    match layer:
        case Windows():
            return Tiling(channels, max(1, ceil(rows * images / blocks)), columns)
        case Average():
            return Tiling(K_BLOCK, 1, 1)
        case Flat():
            return Tiling(K_BLOCK * layer.reads[1] * layer.reads[2], 1, 1)
        case Maximum():
            across = next(n for n in (4, 2, 1) if columns % n == 0 and (images * rows * n <= blocks or n == 1))
            return Tiling(channels, 1, columns // across)
    choices = list(candidates(network, layer))
    if not choices:
        raise UserError(f"no tile holds a convolution of {layer.reads} to {layer.shape}")

    def cost(tiling: Tiling) -> float:
        rounds = ceil(tiles(layer, tiling) * tiling.parts / blocks)
        return rounds * microseconds(network, layer, tiling) + _BOUNDARY_US

    return min(choices, key=lambda t: (cost(t), tiles(layer, t) * t.parts))


def candidates(network: Network, layer: Convolution) -> Iterator[Tiling]:
    """Yield tilings that the kernel can run."""
    images, rows, columns, channels = layer.shape
    pool = layer.pool
    widths = [width for width in WIDTHS if width < 2 * channels]
    apart = [width for width in widths if pool == 1 or width >= LEAST_POOLED]
    if windowed(network, layer):
        wide = next(n for n in range(64 // pool, 0, -1) if columns % n == 0)
        yield from (Tiling(width, 2 // pool, wide) for width in apart)
        return
    halo = layer.size == (3, 3) and layer.stride == 1
    for deep in (False, True):
        room = 64 if deep else 128
        for across in (n for n in range(1, columns + 1) if columns % n == 0):
            wide = columns // across * pool
            step = wide + (layer.size[1] - 1 if halo else 0)
            high = min((room - wide) // step + 1, rows * pool) // pool * pool
            if wide > room or high < 1 or wide < min(7, columns * pool):
                continue
            shapes = [(high, 1)] if deep or (high - 1) * step + wide > 64 else []
            if not deep and across == 1 and images > 1 and (rows * pool - 1) * step + wide <= 64:
                shapes.append((rows * pool, 2))
            for high, together in shapes:
                for width in (width for width in widths if width in DEEP_WIDTHS) if deep else apart:
                    tiling = Tiling(width, high // pool, wide // pool, together, deep, halo)
                    if tiling.box_rows(layer) * ROW_BYTES <= MOST_SLOT_BYTES:
                        yield from (replace(tiling, parts=parts) for parts in PARTS if divisible(layer, tiling, parts))


def divisible(layer: Convolution, tiling: Tiling, parts: int) -> bool:
    """Return whether k can be cut: where a part is a whole number of loads, and sums of a tile are few."""
    taps = layer.size[0] * layer.size[1]
    blocks = taps * (layer.reads[3] // K_BLOCK)
    unit = taps if tiling.halo else 1
    return parts == 1 or (tiling.deep and layer.pool == 1 and blocks % (parts * unit) == 0)


def load_bytes(network: Network, layer: Layer, tiling: Tiling) -> int:
    """Return the least that a slot of activations must hold."""
    if windowed(network, layer):
        assert isinstance(layer, Convolution)
        return (layer.stride + 2 * k_blocks(network, layer)) * WINDOW_PITCH
    return block_bytes(layer, tiling) if isinstance(layer, Convolution) else 0


def slot_blocks(network: Network, layer: Convolution, tiling: Tiling, slot_bytes: int) -> int:
    """Return blocks of k in a slot of activations of ``slot_bytes``."""
    if windowed(network, layer):
        return k_blocks(network, layer)
    if tiling.halo:
        return layer.size[0] * layer.size[1]
    return max(1, min(_MOST_BLOCKS, slot_bytes // block_bytes(layer, tiling), k_blocks(network, layer) // tiling.parts))


def joined(layer: Convolution, tiling: Tiling) -> bool:
    """Return whether a load is a box with all blocks of a slot: one tap, and rows that fill blocks without a gap."""
    rows, wide = block_bytes(layer, tiling) // ROW_BYTES, tiling.columns * layer.pool
    return layer.size == (1, 1) and layer.padding == 0 and tiling.images == 1 and rows % wide == 0


def block_bytes(layer: Layer, tiling: Tiling) -> int:
    """Return bytes from a block of k in a slot to the next, where each is a load of its own."""
    return ceil(tiling.box_rows(layer) * ROW_BYTES / 1024) * 1024


def weight_load(network: Network, layer: Convolution, tiling: Tiling) -> int:
    """Return blocks of k per load of weights: taps of 64 channels, as many as divide all taps; where there is one tap,
    as many blocks as a slot holds.
    """
    room, taps = WEIGHT_BYTES // (tiling.width * ROW_BYTES), weight_taps(network, layer)
    if taps == 1:
        return min(room, k_blocks(network, layer))
    return max(n for n in range(1, room + 1) if taps % n == 0)


def weight_blocks(network: Network, layer: Convolution, tiling: Tiling) -> int:
    """Return blocks of k in a slot of weights: whole loads, three taps or a multiple of a window of 3 x 3."""
    load = weight_load(network, layer, tiling)
    return load if weight_taps(network, layer) == 1 else WEIGHT_BYTES // (tiling.width * ROW_BYTES) // load * load


def weight_taps(network: Network, layer: Convolution) -> int:
    """Return taps as the kernel sees them: windows are rows of channels of one tap."""
    return 1 if windowed(network, layer) else layer.size[0] * layer.size[1]
