"""What the launches of a matrix product say: its recipe, and durations.

A *recipe* is what products of many sizes share: the main kernel's tile, pipeline, cluster, slices of k and resources,
and what is launched beside it. `RECIPE` names its numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.harvest.products.kernel_names import KernelName, parse
from tileprof.record.model.tables.product_entries import KINDS, POSTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.harvest.slices import Harvested

_HELPERS: Final = ("memset", "memcpy", "splitKreduce", "globalKernel")
_AUXILIARY: Final = ("scal_kernel", "scal_64addr", "prepare_grouped_gemm_data")


class Entry:
    """One harvested case: its recipe, and durations in ns."""

    __slots__ = ("main_ns", "recipe", "rest_ns")

    def __init__(self, recipe: tuple[int, ...], main_ns: float, rest_ns: float) -> None:
        self.recipe = recipe
        self.main_ns = main_ns
        self.rest_ns = rest_ns


def entries(harvested: Harvested) -> list[Entry | None]:
    """Return an entry per case; None for cases that failed, or whose slices of k no name and no grid tells."""
    names = [parse(name) for name in harvested.names]
    helper = np.array(
        [
            n.family in _HELPERS or any(w in full for w in _AUXILIARY)
            for n, full in zip(names, harvested.names, strict=True)
        ]
    )
    bounds = np.searchsorted(harvested.case, np.arange(len(harvested.cases) + 1))
    return [
        _entry(harvested, names, helper, harvested.cases[i], range(int(bounds[i]), int(bounds[i + 1])))
        for i in range(len(harvested.cases))
    ]


def _entry(
    h: Harvested, names: list[KernelName], helper: NDArray[np.bool_], case: NDArray[np.int64], rows: range
) -> Entry | None:
    mains = [row for row in rows if not helper[h.name[row]]]
    if not mains:
        return None
    of_row = [names[h.name[row]] for row in rows]
    two = len(mains) == 2 and names[h.name[mains[1]]].split and names[h.name[mains[1]]].family == "xmma"
    main = mains[0] if two else max(mains, key=lambda row: h.ns[row])
    name = names[h.name[main]]
    batch, m, n = (int(case[i]) for i in (4, 5, 6))
    grid = [int(size) for size in h.grid[main]]
    cleared = any(one.family == "memset" for one in of_row)
    reduced = any(one.family == "splitKreduce" for one in of_row)
    post = "tiles" if two else "reduce" if reduced else "none"
    if any(one.family == "globalKernel" for one in of_row):
        post = "epilogue"
    tile = (name.m, name.n) if name.m else _from_grid(grid, m, n, batch)
    split = 1
    if name.family == "nvjet":
        tiles = -(-m // (name.m * name.cluster[0])) * -(-n // (name.n * name.cluster[1])) * batch
        clusters = grid[0] * grid[1] * grid[2] // (name.cluster[0] * name.cluster[1])
        if name.split:
            split = clusters // tiles
            if clusters % tiles or split < 2:
                return None
    elif (reduced or two or (cleared and "sm90" not in h.names[h.name[main]])) and grid[2] >= batch:
        split = max(1, grid[2] // batch)
    if split > 1 and post == "none":
        post = "inside"
    threads = int(np.prod(h.block[main]))
    kind = KINDS.index(name.family) if name.family in KINDS else 0
    recipe = (
        kind, *tile, name.k, name.stages, *name.cluster, split, int(cleared), POSTS.index(post), threads,
        int(h.registers[main]), int(h.shared_bytes[main]),
    )  # fmt: skip
    total = float(h.ns[rows.start : rows.stop].sum())
    return Entry(recipe, float(h.ns[main]), total - float(h.ns[main]))


def _from_grid(grid: list[int], m: int, n: int, batch: int) -> tuple[int, int]:
    """Return the tile of a kernel whose name does not tell it: x runs along n or, alone, along both."""
    x, y, z = grid
    if x * y * z == batch or not (x and y):
        return m, n
    if y == 1 and z in (1, batch):  # one axis of blocks: along the longer side
        return (m, max(1, -(-n // x))) if n >= m else (max(1, -(-m // x)), n)
    return max(1, -(-m // y)), max(1, -(-n // x))
