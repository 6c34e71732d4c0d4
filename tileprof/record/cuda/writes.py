"""Stores that no callback reports: what replays found out, what an equal launch tells, or everything that may be.

A kernel whose machine code stores through tensor maps writes memory that its records do not show. In order: the
owners that replays of this launch named; the owners of another launch with the same kernel, grid and maps (a node of
a CUDA graph cannot be replayed); the whole of every tensor whose map lies among the kernel's parameters and was not
loaded through, written by every tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda import bind, raw, runs, tensormap
from tileprof.record.cuda.lifetimes import Lifetimes
from tileprof.record.cuda.runs import Runs, Strided
from tileprof.record.cuda.tensormap import TensorMap
from tileprof.record.cuda.tiles import Geometry

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Maps:
    """The tensor maps that a launch's entries hold: those it loaded through, by address, and the others beside them."""

    loaded: dict[int, TensorMap]
    others: list[TensorMap]


@dataclass(frozen=True, slots=True)
class Found:
    """Boxes written, how they are known (a coverage of the schema), and what there is to say."""

    boxes: Strided
    coverage: str
    note: str


def maps(entries: raw.Entries) -> Maps:
    """The tensor maps among a launch's entries."""
    parts = entries[raw.kinds(entries) == raw.MAP]
    slots: dict[int, NDArray[np.uint32]] = {}
    loaded: set[int] = set()
    for address, block, payload in zip(raw.low(parts).tolist(), parts["block"].tolist(), parts["payload"], strict=True):
        slot = address // 64 * 64
        words = slots.setdefault(slot, np.zeros(tensormap.WORDS, np.uint32))
        words[(address - slot) // 4 : (address - slot) // 4 + 4] = payload
        if block == 1:
            loaded.add(slot)
    decoded = {slot: map_ for slot, words in sorted(slots.items()) if (map_ := tensormap.decode(words)) is not None}
    return Maps({s: m for s, m in decoded.items() if s in loaded}, [m for s, m in decoded.items() if s not in loaded])


@dataclass(slots=True)
class Owners:
    """What replays found in one process, by launch, and what equal launches can take from it."""

    process: raw.Process
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_launch: dict[int, dict[str, Any]] = field(default_factory=dict)
    _equal: dict[tuple[Any, ...], tuple[int, int]] = field(default_factory=dict)
    _boxes: dict[tuple[int, int, int], tuple[Strided, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for event in self.process.events:
            if event["e"] == "owners":
                self.results[event["id"]] = event
            elif event["e"] == "owned":
                self.of_launch[event["launch"]] = event

    def find(self, launch: int, kernel: int, geometry: Geometry, seen: Maps, lifetimes: Lifetimes) -> Found:
        """What a launch of a kernel that stores through tensor maps wrote."""
        why = "its stores through tensor maps could not be replayed"
        owned = self.of_launch.get(launch)
        if owned is not None:
            result = self.results[owned["id"]]
            why = result["refused"] or why
            if not result["refused"] and len(result["regions"]) == len(owned["bases"]) > 0:
                regions = [(owned["id"], i, base) for i, base in enumerate(owned["bases"])]
                self._remember(kernel, geometry, seen, regions)
                return self._from_replays(regions, geometry, "exact", "")
        equal = [(m, self._equal.get((kernel, geometry, m.shape_words))) for m in seen.others]
        known = [(*result, m.base) for m, result in equal if result is not None]
        if known:
            return self._from_replays(known, geometry, "inferred", "writes as in an equal launch outside the graph")
        return _everything(seen, geometry, lifetimes, why)

    def _remember(self, kernel: int, geometry: Geometry, seen: Maps, regions: list[tuple[int, int, int]]) -> None:
        for result, index, base in regions:
            for other in seen.others:
                if other.base == base:
                    self._equal.setdefault((kernel, geometry, other.shape_words), (result, index))

    def _from_replays(self, regions: list[tuple[int, int, int]], geometry: Geometry, coverage: str, note: str) -> Found:
        parts = []
        for result, index, base in regions:
            key = (result, index, geometry.tiles)
            if key not in self._boxes:
                self._boxes[key] = self._relative(result, index, geometry.tiles)
            relative, several = self._boxes[key]
            if several:
                coverage, note = (
                    "conservative",
                    "some bytes are written by several tiles; all of them stand as their writers",
                )
            parts.append(
                Strided(
                    relative.tile,
                    relative.address + base,
                    relative.length,
                    relative.count,
                    relative.stride,
                    relative.first,
                )
            )
        return Found(bind.join(parts), coverage, note)

    def _relative(self, result: int, index: int, tiles: int) -> tuple[Strided, bool]:
        event = self.results[result]
        granule = event["granule"]
        sizes = [-(-length // granule) for _, length in event["regions"]]
        first = sum(sizes[:index])
        owner = self.process.owners(event["file"])[first : first + sizes[index]].astype(np.int64)
        heads = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
        ends = np.append(heads[1:], len(owner))
        who, start, end = owner[heads], heads * granule, np.minimum(ends * granule, event["regions"][index][1])
        several = who == raw.SEVERAL
        tile = np.concatenate([who[who >= 0], np.repeat(np.arange(tiles), several.sum())])
        start = np.concatenate([start[who >= 0], np.tile(start[several], tiles)])
        end = np.concatenate([end[who >= 0], np.tile(end[several], tiles)])
        order = np.lexsort((start, tile))
        unknown = np.full(len(order), -1, np.int64)
        return runs.boxes(Runs(tile[order], start[order], end[order], unknown)), bool(several.any())


def whole(ranges: list[tuple[int, int]], tiles: int) -> Strided:
    """Every tile touches all of each ``[base, end)``."""
    base = np.tile(np.array([b for b, _ in ranges], np.int64), tiles)
    length = np.tile(np.array([e - b for b, e in ranges], np.int64), tiles)
    tile = np.repeat(np.arange(tiles), len(ranges))
    ones, zeros = np.ones((len(tile), 2), np.int64), np.zeros((len(tile), 2), np.int64)
    return Strided(tile, base, length, ones, zeros, np.full(len(tile), -1, np.int64))


def _everything(seen: Maps, geometry: Geometry, lifetimes: Lifetimes, why: str) -> Found:
    live = lifetimes.live()
    inside = [
        (m.base, m.base + m.bytes)
        for m in seen.others
        if any(base <= m.base and m.base + m.bytes <= end for base, end in live)
    ]
    if inside:
        return Found(
            whole(sorted(set(inside)), geometry.tiles), "conservative", f"{why}; every tile stands as writer of all"
        )
    return Found(
        whole(live, geometry.tiles), "conservative", f"{why}, and where they go is unknown; they stand for all memory"
    )
