"""The plan of the persistent kernel: which cluster takes which tiles in which order, and what each tile awaits and
posts.

A cluster of ``split`` blocks shares a tile: block ``r`` sums k-blocks ``k_blocks*r//split`` to
``k_blocks*(r+1)//split`` (`StagePlan.share` of them at a time), of `K_BLOCK` elements each. Two blocks whose
tile has twice the rows that a block multiplies are a pair instead: each takes its half of the rows and all of k, and
they share the weights. Or the blocks stand abreast in a stage: each takes some of a tile's columns and all of k, so
that nothing is added up. Every block posts: values and posts here are ``split`` times those of the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.epilogues import GATE
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.sync.tables import FLAG_BYTES

I32 = NDArray[np.int32]
Tiled = Gemm | Conv2d | Attention
"""The operators of the persistent kernel."""

K_BLOCK: Final = 64
"""Elements of k that one slot of the rings holds: 128 bytes of halves, the width of TMA's widest swizzle."""

_MIN_K_BLOCKS_TO_CUT: Final = 32
"""K-blocks of a stage below which dividing its tiles into two tasks costs more than it gains."""

_MAX_COLUMNS_TO_CUT: Final = 192
"""Weight rows per tile above which adding up the sums of two tasks takes more registers than there are."""

_LATE_TASK_SHARE: Final = 96
"""1/96 of the k-blocks moves from the early task to the late one, since the early sums take time to arrive."""

_MAX_HALO_PIXELS: Final = 400
"""Pixels of a halo, 50 KB: two of them fit shared memory beside three slots of the widest weights."""

_WIDE_TILE_COLUMNS: Final = 192
"""Columns from which one k-block keeps the tensor cores busy until the next is found; narrower tiles multiply a row of
taps at a time.
"""

_RINGS_BYTES: Final = 207 * 1024, 194 * 1024, 162 * 1024
"""Shared memory for the rings of a block: alone, and where sums pass through one buffer or two."""

_BUFFER_BYTES: Final = 32 * 1024
"""Bytes of sums that a block receives at a time."""

_MAX_BOX_SIDE: Final = 256
"""Elements along one side of a TMA box."""

MOST_COLUMNS: Final = 256
"""Weight rows that a block multiplies: the widest wgmma, and the largest box of TMA."""

LEAST_ABREAST: Final = 4
"""Blocks of a cluster from which on it may pay that they stand abreast, in products of one row of tiles: two gained 1%
or lost as much.
"""

SPLITS: Final = (1, 2, 4, 8)
"""Blocks of a cluster; 8 is the most that every GPU with clusters takes."""


@dataclass(frozen=True, slots=True)
class Box:
    """The pixels of a convolution's tile: ``columns`` of ``rows`` of ``images``, and where tile 0, 1, ... begin follows
    by counting through them.

    More than one row: rows are whole. More than one image: images are whole. So tile ``t`` begins at pixel ``t *
    columns * rows * images``, and every tile is one box of the input, shifted by the tap.
    """

    columns: int
    rows: int
    images: int

    @classmethod
    def of(cls, operator: Conv2d) -> Box | None:
        """Return the boxes of tiles; None where they are no such boxes: a tile is a divisor of a row, whole rows that
        divide an image, or whole images.
        """
        images, p, q, _ = operator.out.shape
        pixels = operator.tile[0]
        if q % pixels == 0:
            return cls(pixels, 1, 1)
        if pixels % q == 0 and p % (pixels // q) == 0:
            return cls(q, pixels // q, 1)
        if pixels % (p * q) == 0:
            return cls(q, p, min(images, pixels // (p * q)))
        return None


@dataclass(frozen=True, slots=True)
class Halo:
    """Input that a convolution's tile reads of `K_BLOCK` channels, loaded at once for ``taps``, all of them or those of
    a row: ``images`` of ``rows`` of ``columns`` pixels.

    The product of a tap begins as many rows into it as the tap is pixels from the first. A row of the result is as long
    as one of the input then; what stands between two rows of its ``out_columns`` pixels is not stored. A second image
    begins at row 64, with the second warpgroup.
    """

    columns: int
    rows: int
    images: int
    out_columns: int
    out_rows: int
    taps: int

    @classmethod
    def of(cls, operator: Conv2d, rows: int) -> Halo | None:
        """Return the halo for all taps; None where a tile takes its input tap by tap: at strides, and where it
        does not fit ``rows`` of a product or the memory.
        """
        box, (_, r, s, _) = Box.of(operator), operator.weight.shape
        if box is None or operator.stride > 1 or r * s == 1:
            return None
        halo = cls(box.columns + s - 1, box.rows + r - 1, box.images, box.columns, box.rows, r * s)
        fits = halo.height <= rows if halo.images == 1 else halo.images == 2 and rows == 128 and halo.height <= 128
        return halo if fits and halo.pixels <= _MAX_HALO_PIXELS and halo.columns <= _MAX_BOX_SIDE else None

    @property
    def of_a_row(self) -> Halo:
        """The halo of one row of taps, which are `columns` - `out_columns` + 1."""
        return replace(self, rows=self.out_rows, taps=self.columns - self.out_columns + 1)

    @property
    def pixels(self) -> int:
        """Pixels that are loaded at once."""
        return self.columns * self.rows * self.images

    @property
    def height(self) -> int:
        """Rows of the product, with those that are not stored."""
        one = (self.out_rows - 1) * self.columns + self.out_columns
        return one if self.images == 1 else 64 + one if one <= 64 else self.images * one


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The constants that are compiled in for a stage. ``operator`` is a `Gemm`, `Conv2d` or `Attention`; everything
    else follows from it.

    ``rows``: that a block multiplies, 64 or 128; a tile has at most this number, or twice as many for a pair.
    ``columns``: weight rows that a tile multiplies, two for each of its columns with a gate. ``k_blocks``: blocks of
    `K_BLOCK` along k, the last one perhaps ragged; those of a convolution run over channels, for each of these over
    taps, and of channels there are then whole blocks. All stages of a plan have the same ``rows``.
    ``cut``: of a pair's stage, the block of k at which a tile is divided into two tasks: the early one hands its sums
    to the late one through memory, which finishes the tile; 0 where it is not. Then half as many tiles, twice as wide,
    read less into shared memory for the same products.
    ``abreast``: blocks that take ``columns`` weight rows of a tile each, and all of k; 1 where they share k instead,
    and in pairs. Attention has no weights: its ``columns`` are 0, and its ``k_blocks`` are the slots of activations
    that its longest tile takes (`query_slots`, and `block_slots` for every `K_BLOCK` keys).
    """

    operator: Tiled
    rows: int
    columns: int
    k_blocks: int
    cut: int = 0
    abreast: int = 1

    def parts(self, split: int) -> int:
        """Return blocks of a cluster of ``split`` that share k of a tile."""
        return 1 if self.pair or self.abreast > 1 else split

    @property
    def interleaved(self) -> bool:
        """True if weights lie in a slot so that each of two warpgroups, which share the columns, has both halves of a
        gate.
        """
        return self.abreast > 1 and self.rows == 64 and gated(self.operator)

    @property
    def least_columns(self) -> int:
        """The divisor of `columns` that the warpgroups require."""
        return 32 if self.interleaved else 16 if self.rows == 64 or self.pair else 8

    @property
    def is_supported(self) -> bool:
        """True if the kernel takes tiles so wide, and blocks abreast."""
        if isinstance(self.operator, Attention):
            return not self.pair and self.abreast == 1
        alike = isinstance(self.operator, Gemm) and not self.pair and self.operator.tile[1] % (8 * self.abreast) == 0
        return self.columns <= MOST_COLUMNS and self.columns % self.least_columns == 0 and (self.abreast == 1 or alike)

    @property
    def tasks(self) -> int:
        """Tasks of all tiles."""
        return self.operator.tiles * (2 if self.cut else 1)

    @property
    def longest(self) -> int:
        """Blocks of k of a tile's longest task, before the blocks of a cluster share them."""
        return self.k_blocks - self.cut

    @property
    def partial_bytes(self) -> int:
        """Bytes through which early tasks hand over sums: per block of each tile one cache line for the flag, then
        float32 sums.
        """
        return self.operator.tiles * 2 * (FLAG_BYTES + 4 * self.rows * self.columns) if self.cut else 0

    @property
    def query_slots(self) -> int:
        """Slots for the queries of a tile of attention, of 64 columns each."""
        return self.operator.tile[1] // K_BLOCK

    @property
    def block_slots(self) -> int:
        """Slots for the keys and the values of `K_BLOCK` rows: one or two boxes of 64 columns in each."""
        return 2 * self.query_slots // (self.rows // K_BLOCK)

    def key_blocks(self, row: int) -> int:
        """Return blocks of `K_BLOCK` keys that a tile in row ``row`` of attention reads."""
        assert isinstance(self.operator, Attention)
        visible_rows = self.operator.key_rows
        if self.operator.causal:
            visible_rows = min(visible_rows, (row + 1) * self.operator.rows)
        return -(-visible_rows // K_BLOCK)

    @property
    def pair(self) -> bool:
        """True if a tile takes a pair of blocks."""
        return self.operator.tile[0] > self.rows

    def halo(self, split: int) -> Halo | None:
        """Return what is loaded at once for all taps of a convolution, or for a row of them where that does not fit
        beside enough weights, if that is how its tiles are best loaded by clusters of ``split`` blocks.
        """
        if not isinstance(self.operator, Conv2d):
            return None
        halo = Halo.of(self.operator, self.rows)
        if halo is None or self.k_blocks < split * self.operator.weight.shape[2]:
            return None  # no row of taps for every block
        # Slots of weights beside these: of narrow tiles for three rows of taps, two of which are multiplied while one
        # comes.
        slots = 3 if self.columns >= _WIDE_TILE_COLUMNS else 3 * self.operator.weight.shape[2]
        for each, count in ((halo, 2), (halo.of_a_row, 3)):
            if 2 * K_BLOCK * (slots * self.columns + count * each.pixels) <= self._rings_bytes(split, each):
                return each
        return None

    def _rings_bytes(self, split: int, halo: Halo) -> int:
        if split == 1:
            return _RINGS_BYTES[0]
        sent_bytes = 4 * -(-halo.height // 16) * 16 * self.columns * (split - 1) // split
        return _RINGS_BYTES[1 if sent_bytes <= _BUFFER_BYTES else 2]

    def share(self, split: int) -> int:
        """Return blocks of k that are not shared out to several blocks: with a halo, the taps of a row."""
        return self.operator.weight.shape[2] if isinstance(self.operator, Conv2d) and self.halo(split) else 1


def with_cuts(stages: Sequence[StagePlan], clusters: int) -> tuple[StagePlan, ...]:
    """Return the stages, k cut in two where the tiles of pairs would leave half of the clusters idle.

    The late task gets a little more: the early one's sums take time to arrive.
    """
    if max(stage.columns for stage in stages) > _MAX_COLUMNS_TO_CUT:
        return tuple(replace(stage, cut=0) for stage in stages)
    return tuple(
        replace(stage, cut=stage.k_blocks // 2 - stage.k_blocks // _LATE_TASK_SHARE)
        if stage.pair and 2 * stage.operator.tiles <= clusters and stage.k_blocks >= _MIN_K_BLOCKS_TO_CUT
        else replace(stage, cut=0)
        for stage in stages
    )


def arranged(stages: Sequence[StagePlan], abreast: Sequence[bool], split: int) -> tuple[StagePlan, ...] | None:
    """Return the stages of clusters of ``split`` blocks, which stand abreast in some; None where the kernel does not
    support that.
    """
    arrangement = tuple(_with_abreast(stage, split if wide else 1) for stage, wide in zip(stages, abreast, strict=True))
    return arrangement if all(stage.is_supported for stage in arrangement) else None


def _with_abreast(stage: StagePlan, count: int) -> StagePlan:
    return replace(stage, abreast=count, columns=stage.columns * stage.abreast // count)


def arrangements(stages: Sequence[StagePlan], split: int) -> Iterator[tuple[StagePlan, ...]]:
    """Return the ways in which clusters of ``split`` blocks may take these tiles: with blocks abreast where
    tiles are too wide for one, and where that has been seen to gain.
    """
    choices: list[tuple[bool, ...]] = [(stage.abreast > 1,) for stage in stages]
    if split >= LEAST_ABREAST and all(may_stand_abreast(stage.operator, stage.rows) for stage in stages):
        choices = [(False, True)] * len(stages)
    for abreast in product(*choices):
        if arrangement := arranged(stages, abreast, split):
            yield arrangement


def gated(operator: Tiled) -> bool:
    """Return whether a product gates half of its columns by the other half."""
    return isinstance(operator, Gemm) and operator.epilogue == GATE


def may_stand_abreast(operator: Tiled, rows: int) -> bool:
    """Return whether blocks abreast may pay: in products with a single row of tiles of ``rows`` rows."""
    return isinstance(operator, Gemm) and operator.out.shape[0] <= rows


def taps_of(stage: StagePlan) -> int:
    """Return taps of a convolution; 1 for a product."""
    return stage.operator.weight.shape[1] * stage.operator.weight.shape[2] if isinstance(stage.operator, Conv2d) else 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A chain of products for one launch of ``clusters`` x ``split`` blocks; all arrays int32.

    ``task_ptr`` ``[clusters+1]`` and ``tasks`` ``[T, 4]``: stage, row tile, column tile, tile number in the policy's
    grid; cluster ``c`` takes ``tasks[task_ptr[c]:task_ptr[c+1]]`` in order. ``wait_ptr`` ``[T+1]`` and ``waits`` ``[W,
    5]``: k_from, k_to (k-blocks, half-open: what lies in them must not be loaded before), semaphore, value, posts a
    run; sorted by k_from. ``post_ptr`` ``[T+1]`` and ``posts`` ``[P]``: semaphores to which each block adds 1.
    ``early`` ``[T]``: 1 for the early task of a tile whose k is cut.
    """

    split: int
    clusters: int
    stages: tuple[StagePlan, ...]
    task_ptr: I32
    tasks: I32
    wait_ptr: I32
    waits: I32
    post_ptr: I32
    posts: I32
    semaphores: int
    early: I32

    @property
    def semaphore_bytes(self) -> int:
        """Bytes of the semaphores in device memory, one cache line each."""
        return max(1, self.semaphores) * FLAG_BYTES

    @property
    def flag_words(self) -> int:
        """32-bit words of the semaphores and of the memory behind them, through which tasks hand over sums."""
        return (self.semaphore_bytes + sum(stage.partial_bytes for stage in self.stages)) // 4

    @property
    def paired(self) -> bool:
        """True if blocks share the rows of a tile instead of its k."""
        return self.stages[0].pair

    def part(self, task: int, rank: int) -> tuple[int, int]:
        """Return the k-blocks that block ``rank`` of a cluster sums for a task."""
        stage = self.stages[int(self.tasks[task, 0])]
        k_blocks, share = stage.k_blocks, stage.share(self.split)
        if self.paired:
            return (0, stage.cut) if self.early[task] else (stage.cut, k_blocks)
        parts = stage.parts(self.split)
        first_part = rank * parts // self.split
        begin, end = (k_blocks // share * number // parts * share for number in (first_part, first_part + 1))
        return begin, end
