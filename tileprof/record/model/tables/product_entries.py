"""Entries of the table of products: a recipe, and times in a code of 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tileprof.record.model.tables.file import Table

RECIPE: Final = (
    "kind", "m", "n", "k", "stages", "cluster_m", "cluster_n", "split", "cleared", "post", "threads", "registers",
    "shared_bytes",
)  # fmt: skip
"""Numbers of a recipe: m, n, k of a block's tile (k 0 where the kernel's name does not tell), blocks of a cluster along
m and n, slices of k, whether a counter is cleared before the kernel, and what is launched behind it (`POSTS`)."""
KINDS: Final = ("other", "nvjet", "xmma", "cutlass", "simple", "gemv", "gemmSN", "gemmk1", "dot_kernel")
POSTS: Final = ("none", "reduce", "tiles", "epilogue", "inside")
"""Nothing; cuBLASLt's splitKreduce; a sum tile by tile; an epilogue of its own; slices that add up in the kernel."""
_STEPS: Final = 2048.0
"""Steps of the code per factor of two: 0.03%."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """See `RECIPE`."""

    kind: str
    m: int
    n: int
    k: int
    stages: int
    cluster: tuple[int, int]
    split: int
    cleared: bool
    post: str
    threads: int
    registers: int
    shared_bytes: int

    @classmethod
    def of(cls, numbers: NDArray[np.int32]) -> Recipe:
        """Return the recipe of a row of ``recipes``."""
        kind, m, n, k, stages, cluster_m, cluster_n, split, cleared, post, threads, registers, shared = (
            int(number) for number in numbers
        )
        return cls(
            KINDS[kind], m, n, k, stages, (cluster_m, cluster_n), split, bool(cleared), POSTS[post], threads, registers,
            shared,
        )  # fmt: skip

    @property
    def numbers(self) -> tuple[int, ...]:
        """The row of ``recipes``."""
        return (
            KINDS.index(self.kind), self.m, self.n, self.k, self.stages, *self.cluster, self.split, int(self.cleared),
            POSTS.index(self.post), self.threads, self.registers, self.shared_bytes,
        )  # fmt: skip


def recipe_of(table: Table, row: int) -> Recipe:
    """Return the recipe of an entry."""
    return Recipe.of(table.columns["recipes"][table.columns["recipe"][row]])


def time_code(ns: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Return times as 16 bits each, 0 for none; up to 2^32 ns."""
    return np.where(ns < 1, 0, np.clip(np.round(np.log2(np.maximum(ns, 1)) * _STEPS), 1, 65535)).astype(np.uint16)


def time_ns(code: int) -> float:
    """Return the time of a code, 0 for none."""
    return float(2.0 ** (code / _STEPS)) if code else 0.0
