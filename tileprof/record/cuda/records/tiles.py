"""Thread blocks to tiles: a cluster is one tile where a kernel is launched in clusters. Their places and times."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda.records import raw

Dim = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A launch's grid, blocks and clusters, in x, y, z."""

    grid: Dim
    block: Dim
    cluster: Dim

    @classmethod
    def of(cls, event: dict[str, Any]) -> Geometry:
        """Return the geometry of a launch event."""
        return cls(*(_dim(event[name]) for name in ("grid", "block", "cluster")))

    @property
    def clusters(self) -> Dim:
        x, y, z = (-(-g // c) for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    @property
    def tiles(self) -> int:
        return prod(self.clusters)

    def tile_of(self, block: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tile of each linear block id; x runs fastest in both."""
        if prod(self.cluster) == 1:
            return block
        gx, gy, _ = self.grid
        cx, cy, cz = self.cluster
        nx, ny, _ = self.clusters
        x, y, z = block % gx, block // gx % gy, block // (gx * gy)
        return x // cx + nx * (y // cy + ny * (z // cz))

    def places(self) -> NDArray[np.int32]:
        """Return grid coordinates of each tile's first block, ``[tiles, 3]``."""
        nx, ny, _ = self.clusters
        tile = np.arange(self.tiles)
        places = np.stack([tile % nx, tile // nx % ny, tile // (nx * ny)], axis=1)
        return np.asarray(places * np.array(self.cluster), np.int32)


@dataclass(frozen=True, slots=True)
class Times:
    """The begin and end of each tile, ns of the GPU's clock, and its SM; -1 in all columns where none was recorded."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    sm: NDArray[np.int64]
    blocks: NDArray[np.int64]
    """Records of block entries per tile; more than it has blocks when launches were mixed up."""

    @property
    def has_times(self) -> NDArray[np.bool_]:
        return (self.begin >= 0) & (self.end >= self.begin)


def times(entries: raw.Entries, geometry: Geometry) -> Times:
    """Return the times in a launch's entries."""
    kind = raw.kinds(entries)
    enter, leave = entries[kind == raw.BLOCK], entries[(kind == raw.BLOCK) | (kind == raw.EXIT)]
    tiles = geometry.tiles
    begin = np.full(tiles, np.iinfo(np.int64).max)
    end, sm = np.full(tiles, -1, np.int64), np.full(tiles, -1, np.int64)
    tile = _within(geometry.tile_of(enter["block"].astype(np.int64)), tiles)
    np.minimum.at(begin, tile, _clock(enter, 0))
    sm[tile] = raw.low(enter) & ((1 << raw.SM_BITS) - 1)
    np.maximum.at(end, _within(geometry.tile_of(leave["block"].astype(np.int64)), tiles), _clock(leave, 2))
    begin[begin == np.iinfo(np.int64).max] = -1
    return Times(begin, end, sm, np.bincount(tile, minlength=tiles))


def _clock(entries: raw.Entries, word: int) -> NDArray[np.int64]:
    payload = entries["payload"].astype(np.int64)
    return np.asarray(payload[:, word] | payload[:, word + 1] << 32)


def _within(tile: NDArray[np.int64], tiles: int) -> NDArray[np.int64]:
    return np.minimum(tile, tiles - 1)


def _dim(values: list[int]) -> Dim:
    x, y, z = (max(1, int(v)) for v in values)
    return x, y, z
