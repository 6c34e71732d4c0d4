"""What the persistent kernel is told: which cluster takes which tiles in which order, what each of them awaits and what it posts.

A cluster of ``split`` blocks shares a tile: block ``r`` sums k-blocks ``k_blocks*r//split`` to ``k_blocks*(r+1)//split``, of `K_BLOCK` elements each. Two blocks whose
tile has twice the rows that a block multiplies are a pair instead: each takes its half of the rows and all of k, and they share the weights. Every block posts: values
and posts here are ``split`` times those of the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

I32 = NDArray[np.int32]

K_BLOCK: Final = 64
"""Elements of k that one slot of the rings holds: 128 bytes of halves, the width of TMA's widest swizzle."""

SPLITS: Final = (1, 2, 4, 8)
"""Blocks of a cluster; 8 is the most that every GPU with clusters takes."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What is compiled in for a stage. ``operator`` is a `Gemm` or `Conv2d`; everything else follows from it.

    ``rows``: that a block multiplies, 64 or 128; a tile has at most so many, or, for a pair, twice as many. ``columns``: weight rows that a tile multiplies, two for each
    of its columns with a gate. ``k_blocks``: blocks of `K_BLOCK` along k, the last one perhaps ragged; those of a convolution run over taps, then channels, of which
    there are then whole blocks. All stages of a plan have the same ``rows``.
    """

    operator: Gemm | Conv2d
    rows: int
    columns: int
    k_blocks: int

    @property
    def pair(self) -> bool:
        """Whether a tile takes a pair of blocks."""
        return self.operator.tile[0] > self.rows


@dataclass(frozen=True, slots=True)
class Box:
    """The pixels of a convolution's tile: ``columns`` of ``rows`` of ``images``, and where tile 0, 1, ... begin follows by counting through them.

    More than one row: rows are whole. More than one image: images are whole. So tile ``t`` begins at pixel ``t * columns * rows * images``, and every tile is
    one box of the input, shifted by the tap.
    """

    columns: int
    rows: int
    images: int

    @classmethod
    def of(cls, operator: Conv2d) -> Box | None:
        """None where the tiles are no such boxes: a tile is a divisor of a row, whole rows that divide an image, or whole images."""
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
class Plan:
    """A chain of products for one launch of ``clusters`` x ``split`` blocks; all arrays int32.

    ``task_ptr`` ``[clusters+1]`` and ``tasks`` ``[T, 4]``: stage, row tile, column tile, tile number in the policy's grid; cluster ``c`` takes
    ``tasks[task_ptr[c]:task_ptr[c+1]]`` in order. ``wait_ptr`` ``[T+1]`` and ``waits`` ``[W, 5]``: k_from, k_to (k-blocks, half-open: what lies in them must not be
    loaded before), semaphore, value, posts a run; sorted by k_from. ``post_ptr`` ``[T+1]`` and ``posts`` ``[P]``: semaphores to which each block adds 1.
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

    @property
    def paired(self) -> bool:
        """Whether blocks share the rows of a tile instead of its k."""
        return self.stages[0].pair

    def part(self, stage: int, rank: int) -> tuple[int, int]:
        """The k-blocks that block ``rank`` of a cluster sums for a tile of a stage."""
        k_blocks = self.stages[stage].k_blocks
        if self.paired:
            return 0, k_blocks
        return k_blocks * rank // self.split, k_blocks * (rank + 1) // self.split
