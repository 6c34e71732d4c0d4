"""Bloom filters that the patches filled: which launches have them, and what the reader adds so that none misses a
dependency.

A block's filter holds what its own instructions touched. The host knows more: that a launch counts as touching all
memory, that its stores were inferred, that a kernel may read constant variables. Where it does, bits are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays.filter_bits import filter_bits
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.tiles import Geometry, Times
from tileprof.record.cuda.tensor_maps.items import Items
from tileprof.record.filter_settings import FilterSettings
from tileprof.trace.filters import LaunchFilters, StoredFilters

_ALL = np.uint32(0xFFFFFFFF)
READS, WRITES = 0, 1
Words = NDArray[np.uint32]


@dataclass(slots=True)
class Inserted:
    """Filters of one process by launch of the trace; ``filling`` are times of tiles, by ordinal, of the pass that did
    nothing but fill filters.
    """

    how: FilterSettings
    process: raw.Process
    filling: Mapping[int, Times] = field(default_factory=dict)
    launches: list[LaunchFilters] = field(default_factory=list)
    _events: dict[int, dict[str, Any]] = field(init=False)
    _files: dict[str, Words] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events = {e["launch"]: e for e in self.process.events if e["e"] == "filters"}

    def add(
        self,
        launch: int,
        event: dict[str, Any],
        geometry: Geometry,
        items: Items | None,
        constants: Sequence[Sequence[int]],
        *,
        one_tile: bool,
        coverage: str,
    ) -> None:
        """Add the filters of a launch of the trace. ``one_tile``: its tiles stand as one; ``constants``: addresses and
        sizes of variables that every tile may read.
        """
        words = by_tile(self._blocks(event), geometry)
        if coverage == "conservative" or event["graph"] >= 0:
            words[:] = _ALL
        elif coverage == "inferred":
            words[:, WRITES] = _ALL
        for address, size in constants:
            granules = np.arange(address // self.how.granule, (address + max(size, 1) - 1) // self.how.granule + 1)
            bits = filter_bits(granules, self.how.bits, self.how.hashes).ravel()
            extra = np.zeros(words.shape[-1], np.uint32)
            np.bitwise_or.at(extra, bits // 32, np.uint32(1) << (bits % 32).astype(np.uint32))
            words[:, READS] |= extra
        if items is not None:
            words = np.repeat(words, items.count, axis=0)
        if one_tile:
            words = np.bitwise_or.reduce(words, axis=0, keepdims=True)
        self.launches.append(LaunchFilters(launch, words, self._filling_ns(event, geometry, len(words))))

    def stored(self) -> StoredFilters:
        """Return what the trace keeps."""
        return StoredFilters(self.how.bits, self.how.hashes, self.how.granule, self.launches)

    def _blocks(self, event: dict[str, Any]) -> Words:
        """Return ``[blocks, 2, words]``; all bits where the launch had no filters."""
        blocks = int(np.prod(event["grid"]))
        shape = self.how.shape(blocks)
        source = self._events.get(event["launch"]) if event["graph"] < 0 else None
        if source is None or source["blocks"] != blocks:
            return np.full(shape, _ALL, np.uint32)
        words = self._file(source["file"])[source["first"] : source["first"] + int(np.prod(shape))]
        if len(words) < np.prod(shape):
            return np.full(shape, _ALL, np.uint32)
        return words.reshape(2, blocks, -1).transpose(1, 0, 2).copy()

    def _file(self, name: str) -> Words:
        if name not in self._files:
            path = self.process.folder / name
            self._files = {name: np.fromfile(path, "<u4") if path.is_file() else np.empty(0, np.uint32)}
        return self._files[name]

    def _filling_ns(self, event: dict[str, Any], geometry: Geometry, tiles: int) -> NDArray[np.int64]:
        times = self.filling.get(event["ordinal"])
        if times is None or len(times.begin) != tiles or geometry.tiles != tiles:
            return np.full(tiles, -1, np.int64)
        return np.where(times.has_times, times.end - times.begin, -1)


def by_tile(blocks: Words, geometry: Geometry) -> Words:
    """Return filters of tiles, which are clusters of blocks where a kernel is launched in clusters."""
    if geometry.tiles == len(blocks):
        return blocks
    tile = geometry.tile_of(np.arange(len(blocks)))
    words = np.zeros((geometry.tiles, *blocks.shape[1:]), np.uint32)
    np.bitwise_or.at(words, tile, blocks)
    return words
