"""Stores that no callback reports: what replays found out, what an equal launch tells, or everything that may be.

A kernel whose machine code stores through tensor maps writes memory that its records do not show. In order: the
owners that replays of this launch named; the owners of another launch with the same kernel, grid and maps (a node of
a CUDA graph cannot be replayed); where every place of an input of the output's very shape was loaded by one tile, that
tile (attention, whose blocks may take work from a counter: a block that loads a piece of the queries stores that piece
of the result); of a product's work items, their rows by their columns (`items`); of a convolution's tiles, their
pixels by their filters (`convolved`), or at every phase of a stride (`strided`); the whole of every tensor whose map
lies among the kernel's parameters and was not loaded through,
written by every tile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.record.cuda.footprints import bind, runs
from tileprof.record.cuda.footprints.lifetimes import Lifetimes
from tileprof.record.cuda.footprints.runs import Runs, Strided
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.tiles import Geometry
from tileprof.record.cuda.tensor_maps import contents, convolved, items, strided, tensormap
from tileprof.record.cuda.tensor_maps.items import Items, Walk
from tileprof.record.cuda.tensor_maps.loads import Loads
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap

PAGE_BYTES: Final = 4096
"""The unit that the device copies when it meets a tensor map and does not find the bounds of the parameters around it.
"""
BEGIN_BYTES: Final = 16
"""Offset of parameters behind a multiple of 64; pages have none."""
PART_BYTES: Final = 16
"""Bytes per entry of a copied page."""
_NOT_REPLAYED: Final = "its stores through tensor maps could not be replayed"


@dataclass(frozen=True, slots=True)
class Maps:
    """The tensor maps that a launch's entries hold: those it loaded through, by what identifies them in a `Walk`, and
    the others beside them.

    ``complete``: no other map is among the launch's parameters. ``unnamed``: addresses of maps that were loaded through
    without a look at what they held then.
    """

    loaded: dict[int, TensorMap]
    others: list[TensorMap]
    complete: bool = True
    unnamed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class WrittenBoxes:
    """Boxes written, how they are known (a coverage of the schema), and what there is to say.

    ``by_item``: their tiles are these work items, not blocks or clusters.
    """

    boxes: Strided
    coverage: str
    note: str
    by_item: Items | None = None


def maps(
    entries: raw.Entries,
    parameters: tuple[int, int] = (0, 0),
    *,
    graph: bool = False,
    live: Sequence[tuple[int, int]] = (),
) -> Maps:
    """Return the tensor maps among a launch's entries.

    The device copies the launch's parameters, or, where it does not find their bounds, the page of the first map that
    is loaded through. ``parameters`` is where in such a page the parameters begin and their size, 0 where that is not
    known; beyond lies what other launches left. Parameters of a graph's node may begin anywhere, and may not all be in
    the page. What was copied out of ``live`` memory was no parameters: the kernel loads through maps that lie there.
    """
    parts = entries[raw.kinds(entries) == raw.MAP]
    parts = parts[parts["block"] <= raw.MAP_LOADED]
    slots: dict[int, NDArray[np.uint32]] = {}
    loaded: set[int] = set()
    for address, block, payload in zip(raw.low(parts).tolist(), parts["block"].tolist(), parts["payload"], strict=True):
        slot = address // 64 * 64
        words = slots.setdefault(slot, np.zeros(tensormap.WORDS, np.uint32))
        words[(address - slot) // 4 : (address - slot) // 4 + 4] = payload
        if block == raw.MAP_LOADED:
            loaded.add(slot)
    maps_or_none = {slot: tensormap.decode(words, loaded=slot in loaded) for slot, words in sorted(slots.items())}
    decoded = {slot: map_ for slot, map_ in maps_or_none.items() if map_ is not None}
    copied = raw.low(parts[parts["block"] == raw.MAP_BESIDE])
    low, high = (int(copied.min()), int(copied.max()) + PART_BYTES) if len(copied) else (0, 0)
    complete = low % 64 == BEGIN_BYTES  # the parameters themselves
    begin, size = parameters
    if not complete:
        low = low // PAGE_BYTES * PAGE_BYTES
    if not complete and size and graph:
        low, high = max(low, max(loaded, default=0) + 64 - size), min(high, min(loaded, default=high) + size)
    elif not complete and size:
        low, high, complete = low + begin, low + begin + size, True
    others = [m for s, m in decoded.items() if s not in loaded and low <= s <= high - 64]
    through = {s: m for s, m in decoded.items() if s in loaded}
    for name, (_, words) in contents.map_contents(entries).items():
        if (map_ := tensormap.decode(words, loaded=True)) is not None:
            through[-1 - name] = map_
    elsewhere = any(base <= address < end for address in copied[:1].tolist() for base, end in live)
    return Maps(
        through,
        [] if elsewhere else others,
        (complete or not graph) and not elsewhere,
        frozenset(contents.unnamed(entries)),
    )


@dataclass(slots=True)
class Owners:
    """The findings of replays in one process, by launch, and those that equal launches can take from it."""

    process: raw.Process
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_launch: dict[int, dict[str, Any]] = field(default_factory=dict)
    _computed: dict[tuple[Any, ...], list[Loads]] = field(default_factory=dict)
    """What launches without patches store, by kernel, geometry and what they load."""
    _equal: dict[tuple[Any, ...], dict[int, int]] = field(default_factory=dict)
    """Results with such a region, and which region it is (-1: several), by kernel, geometry and map without its
    address.
    """
    _boxes: dict[tuple[int, int, int], tuple[Strided, bool]] = field(default_factory=dict)
    _outputs: dict[tuple[int, Geometry], frozenset[tuple[int, ...]]] = field(default_factory=dict)
    """Maps, without their addresses, that a launch may write, by kernel and geometry."""
    _loaded: dict[int, bytes] = field(default_factory=dict)
    """Digests of the loads through maps of each tile, by launch."""

    def __post_init__(self) -> None:
        for event in self.process.events:
            if event["e"] == "owners":
                whole = event["refused"] or len(self.process.owners(event["file"])) == sum(_granules(event))
                self.results[event["id"]] = (
                    event if whole else {**event, "refused": "what replays told was not written whole"}
                )
            elif event["e"] == "owned":
                self.of_launch[event["launch"]] = event

    def find(
        self,
        launch: int,
        kernel: int,
        geometry: Geometry,
        map_uses: Maps,
        loads: list[Loads],
        lifetimes: Lifetimes,
        walk: Walk | None = None,
        through: list[TensorMap] | None = None,
    ) -> WrittenBoxes:
        """Return what a launch of a kernel that stores through tensor maps wrote; ``loads`` is what it loaded through
        them.

        ``walk``: the same loads in order, which may show work items. ``through``: the maps that it stores through,
        where its machine code says so.
        """
        if through is None:
            outputs, complete = self._outputs_of(kernel, geometry, map_uses, lifetimes)
        else:
            outputs, complete = _inside(through, lifetimes), True
            map_uses = replace(map_uses, others=through)
        split, by_item = _products(outputs, walk, geometry, map_uses) if complete else (None, None)
        self._loaded[launch] = _signature(loads)
        regions, why = self._replayed_regions(launch)
        if regions:
            self._remember(kernel, geometry, map_uses, regions)
            replayed = self._from_replays(regions, geometry, "exact", "")
            if split is not None and by_item is not None and _same_bytes(replayed.boxes, by_item, split):
                return WrittenBoxes(by_item, replayed.coverage, "", split)
            return replayed
        if complete and (computed := self._as_computed(launch, kernel, geometry, outputs)) is not None:
            return WrittenBoxes(computed, "inferred", "writes as an equal launch without patches")
        regions = self._of_an_equal_launch(launch, kernel, geometry, map_uses, lifetimes)
        if regions and (complete or self._all_regions(regions)):
            return self._from_replays(regions, geometry, "inferred", "writes as in an equal launch outside the graph")
        if by_item is not None:
            return WrittenBoxes(by_item, "inferred", "each work item writes its rows by its columns", split)
        if not complete:
            return _all_tensors([], geometry, lifetimes, "not all of its parameters were seen")
        as_loaded = _as_loaded(outputs, loads)
        return as_loaded or _all_tensors(_inside(map_uses.others, lifetimes), geometry, lifetimes, why)

    def compute(self, kernel: int, geometry: Geometry, loads: list[Loads], stores: list[Loads]) -> None:
        """Remember what a launch stores whose stores were computed, for launches that load the same pieces."""
        key = kernel, geometry, _signature(loads)
        if stores and _signature(self._computed.setdefault(key, stores)) != _signature(stores):
            self._computed[key] = []  # parameters decide what is stored

    def _as_computed(self, launch: int, kernel: int, geometry: Geometry, outputs: list[TensorMap]) -> Strided | None:
        """Return what a launch writes of which an equal one was computed, if it has one tensor for each of its maps."""
        stores = self._computed.get((kernel, geometry, self._loaded[launch]))
        if not stores:
            return None
        parts = []
        for store in stores:
            alike = [output for output in outputs if output.shape_words == store.map.shape_words]
            if len(alike) != 1:
                return None
            parts.append(store.boxes(alike[0]))
        written = bind.join(parts)
        return replace(written, first=np.full(len(written), -1, np.int64))

    def _replayed_regions(self, launch: int) -> tuple[list[tuple[int, int, int]], str]:
        """Return result, region and address of each tensor that replays of this launch saw written, or why not."""
        owned = self.of_launch.get(launch)
        if owned is None:
            return [], _NOT_REPLAYED
        result = self.results[owned["id"]]
        if not self._loads_alike(launch, owned["id"]):
            return [], "it loads other pieces than the launch whose stores were replayed"
        if result["refused"] or len(result["regions"]) != len(owned["bases"]):
            return [], result["refused"] or _NOT_REPLAYED
        return [(owned["id"], i, base) for i, base in enumerate(owned["bases"])], _NOT_REPLAYED

    def _outputs_of(
        self, kernel: int, geometry: Geometry, map_uses: Maps, lifetimes: Lifetimes
    ) -> tuple[list[TensorMap], bool]:
        """Return the tensors that a launch may write, each once, and whether there are no others.

        A launch whose parameters were not all seen has no others if its maps are like those of a launch whose were.
        """
        outputs = _outputs(_inside(map_uses.others, lifetimes), map_uses)
        if map_uses.complete:
            self._outputs.setdefault((kernel, geometry), frozenset(m.shape_words for m in outputs))
            return outputs, True
        shapes = self._outputs.get((kernel, geometry), frozenset())
        alike = _outputs(_inside(map_uses.others, lifetimes, shapes), map_uses)
        return (alike, True) if shapes and {m.shape_words for m in alike} == shapes else (outputs, False)

    def _of_an_equal_launch(
        self, launch: int, kernel: int, geometry: Geometry, map_uses: Maps, lifetimes: Lifetimes
    ) -> list[tuple[int, int, int]]:
        """Return result, region and address of each tensor that it writes, as one that was replayed and loads the same
        pieces did.

        Products of different depth may share a kernel, a grid and the shape of their result: what they load differs.
        The page of the parameters may hold what is left of other launches' maps, with an address written over.
        """
        outputs = _outputs(_inside(map_uses.others, lifetimes), map_uses)
        regions = [self._equal.get((kernel, geometry, m.shape_words), {}) for m in outputs]
        for result in sorted({r for launch_regions in regions for r in launch_regions}):
            if self._loads_alike(launch, result) and all(r.get(result, 0) >= 0 for r in regions):
                return sorted(
                    {(result, r[result], m.base) for m, r in zip(outputs, regions, strict=True) if result in r}
                )
        return []

    def _all_regions(self, regions: list[tuple[int, int, int]]) -> bool:
        """Return whether these are all that the equal launch wrote."""
        ids = {result for result, _, _ in regions}
        return all(
            {i for r, i, _ in regions if r == one} == set(range(len(self.results[one]["regions"]))) for one in ids
        )

    def _loads_alike(self, launch: int, result: int) -> bool:
        """Return whether each tile loads what it did when the launch was replayed: sizes that lie in memory may have
        changed since.
        """
        replayed = self._loaded.get(self.results[result]["launch"])
        return replayed == self._loaded[launch]

    def learn(
        self, launch: int, kernel: int, geometry: Geometry, map_uses: Maps, lifetimes: Lifetimes, loads: list[Loads]
    ) -> None:
        """Remember what is known of a launch that is not in the trace, for launches that equal it."""
        self._loaded[launch] = _signature(loads)
        self._outputs_of(kernel, geometry, map_uses, lifetimes)
        owned = self.of_launch.get(launch)
        if owned is not None and not self.results[owned["id"]]["refused"]:
            regions = [(owned["id"], i, base) for i, base in enumerate(owned["bases"])]
            self._remember(kernel, geometry, map_uses, regions)

    def _remember(self, kernel: int, geometry: Geometry, map_uses: Maps, regions: list[tuple[int, int, int]]) -> None:
        for result, index, base in regions:
            for other in map_uses.others:
                if other.base == base:
                    same = self._equal.setdefault((kernel, geometry, other.shape_words), {})
                    same[result] = index if same.get(result, index) == index else -1

    def _from_replays(
        self, regions: list[tuple[int, int, int]], geometry: Geometry, coverage: str, note: str
    ) -> WrittenBoxes:
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
        return WrittenBoxes(bind.join(parts), coverage, note)

    def _relative(self, result: int, index: int, tiles: int) -> tuple[Strided, bool]:
        event = self.results[result]
        granule = event["granule"]
        sizes = _granules(event)
        first = sum(sizes[:index])
        owner = self.process.owners(event["file"])[first : first + sizes[index]].astype(np.int64)
        heads = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
        ends = np.append(heads[1:], len(owner))
        who, start, end = owner[heads], heads * granule, np.minimum(ends * granule, event["regions"][index][1])
        several = who == raw.SEVERAL_OWNERS
        tile = np.concatenate([who[who >= 0], np.repeat(np.arange(tiles), several.sum())])
        start = np.concatenate([start[who >= 0], np.tile(start[several], tiles)])
        end = np.concatenate([end[who >= 0], np.tile(end[several], tiles)])
        order = np.lexsort((start, tile))
        unknown = np.full(len(order), -1, np.int64)
        return runs.boxes(Runs(tile[order], start[order], end[order], unknown)), bool(several.any())


def _signature(loads: list[Loads]) -> bytes:
    """Return which pieces each tile loads of tensors of which shape, wherever they lie."""
    rows = [np.column_stack([load.tile, load.offsets, load.coordinates]) for load in loads]
    parts = [(repr(load.map.shape_words).encode(), row.tobytes()) for load, row in zip(loads, rows, strict=True)]
    return hashlib.blake2b(b"".join(a + b for a, b in sorted(parts)), digest_size=16).digest()


def _granules(event: dict[str, Any]) -> list[int]:
    """Return how many granules each region of a replay's result has."""
    return [-(-length // event["granule"]) for _, length in event["regions"]]


def whole(ranges: list[tuple[int, int]], tiles: int) -> Strided:
    """Return touches of every tile in all of each ``[base, end)``."""
    base = np.tile(np.array([b for b, _ in ranges], np.int64), tiles)
    length = np.tile(np.array([e - b for b, e in ranges], np.int64), tiles)
    tile = np.repeat(np.arange(tiles), len(ranges))
    ones, zeros = np.ones((len(tile), 2), np.int64), np.zeros((len(tile), 2), np.int64)
    return Strided(tile, base, length, ones, zeros, np.full(len(tile), -1, np.int64))


def _inside(
    maps_there: list[TensorMap], lifetimes: Lifetimes, shapes: frozenset[tuple[int, ...]] | None = None
) -> list[TensorMap]:
    """Return maps of tensors that lie in memory which the driver handed out, each tensor once; of those ``shapes`` if
    given.
    """
    maps_there = maps_there if shapes is None else [m for m in maps_there if m.shape_words in shapes]
    inside = {m.base: m for m in maps_there if lifetimes.holds(m.base, m.base + m.bytes)}
    return [inside[base] for base in sorted(inside)]


def _mirrored(other: TensorMap, loads: list[Loads]) -> Strided | None:
    """Return the places of ``other`` at which an input of equal sizes is loaded, if each of the input's was by one
    tile.
    """
    for load in loads:
        map_ = load.map
        if map_.sizes != other.sizes or map_.element != other.element or map_.im2col or not load.decodable:
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
    others: list[TensorMap], walk: Walk | None, geometry: Geometry, map_uses: Maps
) -> tuple[Items | None, Strided | None]:
    """Return the one way to read the loads as work items whose products are these tensors, and what the items write;
    else None.
    """
    candidates = []
    for reading in items.readings(walk, geometry, map_uses.loaded):
        assert walk is not None
        parts = [items.product(map_, walk, reading, map_uses.loaded) for map_ in others]
        whole = [part for part in parts if part is not None]
        if whole and len(whole) == len(parts):
            candidates.append((reading, bind.join(whole)))
    return candidates[0] if len(candidates) == 1 else (None, None)


def _outputs(others: list[TensorMap], map_uses: Maps) -> list[TensorMap]:
    """Return those that are not inputs: cuBLAS's parameters hold the maps of its inputs twice. All, when it
    loads them all.
    """
    inputs = {map_.base for map_ in map_uses.loaded.values()}
    return [map_ for map_ in others if map_.base not in inputs] or others


def _same_bytes(replayed: Strided, by_item: Strided, split: Items) -> bool:
    """Return whether the items of each tile together write what replays saw the tile write."""
    tile = np.repeat(np.arange(len(split.count)), split.count)[by_item.tile]
    replayed_runs, inferred_runs = (_merged(bind.expanded(boxes)) for boxes in (replayed, replace(by_item, tile=tile)))
    return all(np.array_equal(getattr(replayed_runs, c), getattr(inferred_runs, c)) for c in ("tile", "start", "end"))


def _merged(addressed: Runs) -> Runs:
    """Return runs that touch, of one tile, as one."""
    order = np.lexsort((addressed.start, addressed.tile))
    tile, start, end = addressed.tile[order], addressed.start[order], addressed.end[order]
    heads = np.flatnonzero(np.append(True, (tile[1:] != tile[:-1]) | (start[1:] != end[:-1])))
    last = np.append(heads[1:], len(tile)) - 1
    return Runs(tile[heads], start[heads], end[last], start[heads])


def _as_loaded(outputs: list[TensorMap], loads: list[Loads]) -> WrittenBoxes | None:
    """Return what a launch writes that stores where it loads: an input of the result's shape, or the pixels and filters
    of a convolution; None where neither fits.
    """
    mirrored = [_mirrored(output, loads) for output in outputs]
    boxes = [m for m in mirrored if m is not None]
    if outputs and len(boxes) == len(outputs):
        return WrittenBoxes(bind.join(boxes), "inferred", "writes where it loads an input of the result's shape")
    if len(outputs) != 1:
        return None
    several_writers = "; tiles that share some of these all stand as their writers"
    if (convolution := convolved.result(outputs[0], loads)) is not None:
        pixels, shared = convolution
        note = several_writers if shared else ""
        return WrittenBoxes(pixels, "inferred", f"writes the pixels and filters that it loads{note}")
    if (at_phases := strided.result(outputs[0], loads)) is not None:
        note = f"writes the pixels and filters that it loads, at every phase of its stride{several_writers}"
        return WrittenBoxes(at_phases, "inferred", note)
    return None


def _all_tensors(others: list[TensorMap], geometry: Geometry, lifetimes: Lifetimes, why: str) -> WrittenBoxes:
    if others:
        ranges = [(m.base, m.base + m.bytes) for m in others]
        return WrittenBoxes(whole(ranges, geometry.tiles), "conservative", f"{why}; every tile stands as writer of all")
    live = lifetimes.live()
    return WrittenBoxes(
        whole(live, geometry.tiles), "conservative", f"{why}, and where they go is unknown; they stand for all memory"
    )
