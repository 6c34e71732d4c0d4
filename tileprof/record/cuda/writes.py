"""Stores that no callback reports: what replays found out, what an equal launch tells, or everything that may be.

A kernel whose machine code stores through tensor maps writes memory that its records do not show. In order: the
owners that replays of this launch named; the owners of another launch with the same kernel, grid and maps (a node of
a CUDA graph cannot be replayed); where every place of an input of the output's very shape was loaded by one tile, that
tile (attention, whose blocks may take work from a counter: a block that loads a piece of the queries stores that piece
of the result); of a product's work items, their rows by their columns (`items`); the whole of every tensor whose map lies among the kernel's parameters and was not loaded through,
written by every tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda import bind, im2col, items, raw, runs, tensormap
from tileprof.record.cuda.items import Items, Walk
from tileprof.record.cuda.lifetimes import Lifetimes
from tileprof.record.cuda.runs import Runs, Strided
from tileprof.record.cuda.tensormap import TensorMap
from tileprof.record.cuda.tiles import Geometry

Ints = NDArray[np.int64]

PAGE_BYTES: Final = 4096
"""Of the address space of kernel parameters: what the device copies whole when it meets a tensor map."""


@dataclass(frozen=True, slots=True)
class Maps:
    """The tensor maps that a launch's entries hold: those it loaded through, by address, and the others beside them."""

    loaded: dict[int, TensorMap]
    others: list[TensorMap]


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads through one map: tiles, coordinates ``[loads, 5]``, when they were first made, and im2col's offsets."""

    map: TensorMap
    tile: Ints
    coordinates: Ints
    first: Ints
    offsets: Ints
    known: bool = True
    """They are in a mode that is decoded; otherwise each stands for the whole tensor."""

    def boxes(self, of: TensorMap | None = None) -> Strided:
        """What they read; or the same coordinates of another tensor, with this one's boxes."""
        map_ = self.map
        if of is not None:
            map_ = replace(map_, base=of.base, strides=of.strides)
        if not self.known:
            found = tensormap.whole(map_, len(self.tile))
        elif map_.im2col:
            found = im2col.boxes(map_, self.coordinates, self.offsets)
        else:
            found = tensormap.boxes(map_, self.coordinates)
        load = found.load
        return Strided(self.tile[load], found.address, found.length, found.count, found.stride, self.first[load])


@dataclass(frozen=True, slots=True)
class Found:
    """Boxes written, how they are known (a coverage of the schema), and what there is to say.

    ``by_item``: their tiles are these work items, not blocks or clusters.
    """

    boxes: Strided
    coverage: str
    note: str
    by_item: Items | None = None


def maps(entries: raw.Entries, parameters: tuple[int, int] = (0, 0)) -> Maps:
    """The tensor maps among a launch's entries.

    ``parameters`` is where in its page the launch's parameter block begins and its size; beyond it lies what earlier
    launches left. With size 0 all of the page counts.
    """
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
    begin, size = parameters
    mine = {s for s in decoded if not size or begin <= s % PAGE_BYTES < begin + size}
    others = [m for s, m in decoded.items() if s not in loaded and s in mine]
    return Maps({s: m for s, m in decoded.items() if s in loaded}, others)


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

    def find(
        self,
        launch: int,
        kernel: int,
        geometry: Geometry,
        seen: Maps,
        loads: list[Loads],
        lifetimes: Lifetimes,
        walk: Walk | None = None,
    ) -> Found:
        """What a launch of a kernel that stores through tensor maps wrote; ``loads`` is what it loaded through them.

        ``walk``: the same loads in order, which may show work items.
        """
        split, by_item = _products(_inside(seen.others, lifetimes), walk, geometry, seen)
        why = "its stores through tensor maps could not be replayed"
        owned = self.of_launch.get(launch)
        if owned is not None:
            result = self.results[owned["id"]]
            why = result["refused"] or why
            if not result["refused"] and len(result["regions"]) == len(owned["bases"]) > 0:
                regions = [(owned["id"], i, base) for i, base in enumerate(owned["bases"])]
                self._remember(kernel, geometry, seen, regions)
                replayed = self._from_replays(regions, geometry, "exact", "")
                if split is not None and by_item is not None and _same_bytes(replayed.boxes, by_item, split):
                    return Found(by_item, replayed.coverage, "", split)
                return replayed
        equal = [(m, self._equal.get((kernel, geometry, m.shape_words))) for m in seen.others]
        known = sorted({(*result, m.base) for m, result in equal if result is not None})
        if known:
            return self._from_replays(known, geometry, "inferred", "writes as in an equal launch outside the graph")
        if by_item is not None:
            return Found(by_item, "inferred", "each work item writes its rows by its columns", split)
        others = _inside(seen.others, lifetimes)
        mirrored = [_mirrored(other, loads) for other in others]
        boxes = [m for m in mirrored if m is not None]
        if others and len(boxes) == len(others):
            return Found(bind.join(boxes), "inferred", "writes where it loads an input of the result's shape")
        return _everything(others, geometry, lifetimes, why)

    def learn(self, launch: int, kernel: int, geometry: Geometry, seen: Maps) -> None:
        """Remember what replays of a launch that is not in the trace found, for launches that equal it."""
        owned = self.of_launch.get(launch)
        if owned is not None and not self.results[owned["id"]]["refused"]:
            regions = [(owned["id"], i, base) for i, base in enumerate(owned["bases"])]
            self._remember(kernel, geometry, seen, regions)

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


def _inside(found: list[TensorMap], lifetimes: Lifetimes) -> list[TensorMap]:
    """Maps of tensors that lie in memory which the driver handed out, each tensor once."""
    live = lifetimes.live()
    inside = {m.base: m for m in found if any(base <= m.base and m.base + m.bytes <= end for base, end in live)}
    return [inside[base] for base in sorted(inside)]


def _mirrored(other: TensorMap, loads: list[Loads]) -> Strided | None:
    """The places of ``other`` at which an input of equal sizes is loaded, if each of the input's was by one tile."""
    for load in loads:
        map_ = load.map
        if map_.sizes != other.sizes or map_.element != other.element or map_.im2col or not load.known:
            continue
        places = bind.expanded(load.boxes())
        order = np.lexsort((places.tile, places.start))
        tile, start, end = places.tile[order], places.start[order], places.end[order]
        again = (start[1:] == start[:-1]) & (end[1:] == end[:-1]) & (tile[1:] == tile[:-1])
        keep = np.append(True, ~again) if len(start) else np.empty(0, bool)
        start, end = start[keep], end[keep]
        whole = int((end - start).sum()) == map_.element * int(np.prod(map_.sizes))
        if whole and not (start[1:] < end[:-1]).any():
            boxes = load.boxes(other)
            return replace(boxes, first=np.full(len(boxes), -1, np.int64))
    return None


def _products(
    others: list[TensorMap], walk: Walk | None, geometry: Geometry, seen: Maps
) -> tuple[Items | None, Strided | None]:
    """The one way to read the loads as work items whose products are these tensors, and what the items write; else None."""
    found = []
    for reading in items.readings(walk, geometry, seen.loaded):
        assert walk is not None
        parts = [items.product(map_, walk, reading, seen.loaded) for map_ in others]
        whole = [part for part in parts if part is not None]
        if whole and len(whole) == len(parts):
            found.append((reading, bind.join(whole)))
    return found[0] if len(found) == 1 else (None, None)


def _same_bytes(replayed: Strided, by_item: Strided, split: Items) -> bool:
    """The items of each tile together write what replays saw the tile write."""
    tile = np.repeat(np.arange(len(split.count)), split.count)[by_item.tile]
    seen, said = (_merged(bind.expanded(boxes)) for boxes in (replayed, replace(by_item, tile=tile)))
    return all(np.array_equal(getattr(seen, c), getattr(said, c)) for c in ("tile", "start", "end"))


def _merged(found: Runs) -> Runs:
    """Runs that touch, of one tile, as one."""
    order = np.lexsort((found.start, found.tile))
    tile, start, end = found.tile[order], found.start[order], found.end[order]
    heads = np.flatnonzero(np.append(True, (tile[1:] != tile[:-1]) | (start[1:] != end[:-1])))
    last = np.append(heads[1:], len(tile)) - 1
    return Runs(tile[heads], start[heads], end[last], start[heads])


def _everything(others: list[TensorMap], geometry: Geometry, lifetimes: Lifetimes, why: str) -> Found:
    if others:
        ranges = [(m.base, m.base + m.bytes) for m in others]
        return Found(whole(ranges, geometry.tiles), "conservative", f"{why}; every tile stands as writer of all")
    live = lifetimes.live()
    return Found(
        whole(live, geometry.tiles), "conservative", f"{why}, and where they go is unknown; they stand for all memory"
    )
