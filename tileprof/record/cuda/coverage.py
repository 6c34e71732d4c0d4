"""Decides what a launch touches and how that is known: one rule per way in which its records fall short.

Every rule adds boxes, lowers the coverage and leaves a note; the worst coverage is the launch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tileprof.record.cuda import accesses, computed, launch_code, machine_code
from tileprof.record.cuda.calls import OperatorCall
from tileprof.record.cuda.code.traces import Placed
from tileprof.record.cuda.footprints import bind
from tileprof.record.cuda.footprints.lifetimes import Lifetimes
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.children import Children
from tileprof.record.cuda.records.graphs import Attribution
from tileprof.record.cuda.records.tiles import Geometry
from tileprof.record.cuda.tensor_maps import grouped, unreported_stores
from tileprof.record.cuda.tensor_maps.items import Items, Walk
from tileprof.record.cuda.tensor_maps.loads import Loads
from tileprof.trace import ATOMIC, READ, WRITE

WORST: Final = ("exact", "inferred", "conservative")
ROUNDING: Final = 511
"""Bytes behind a tensor that PyTorch's allocator adds to it, at most: no tensor holds them. kMinBlockSize,
CUDACachingAllocator.
"""
SINCE: Final = {
    "tileprof_copy_async": 80, "tileprof_bulk_load": 90, "tileprof_bulk_store": 90, "tileprof_bulk_reduce": 90,
    "tileprof_tensor_load": 90,
}  # fmt: skip
"""Architectures whose code holds instructions of such a kind."""


@dataclass(frozen=True, slots=True)
class Records:
    """The facts of one process's records about launches in general; ``architecture`` is the GPU's (sm_90 gives 90)."""

    process: raw.Process
    lifetimes: Lifetimes
    owners: unreported_stores.Owners
    code: machine_code.Kernels
    architecture: int
    spilled: Mapping[int, dict[str, Any]]
    constants: Mapping[int, list[list[int]]]
    spinning: Mapping[int, tuple[int, float]]
    im2col: bool


@dataclass(slots=True)
class Examined:
    """A launch's boxes by mode, how they are known, and its notes; ``by_item``: tiles are these work items;
    ``touched``: what it touches, where it ran without patches.
    """

    event: dict[str, Any]
    kernel: dict[str, Any]
    geometry: Geometry
    entries: raw.Entries
    attribution: Attribution
    walk: Walk | None
    call: OperatorCall | None = None
    parts: list[tuple[int, Strided]] = field(default_factory=list)
    levels: list[str] = field(default_factory=lambda: ["exact"])
    notes: list[str] = field(default_factory=list)
    by_item: Items | None = None
    touched: Placed | None = None

    @property
    def coverage(self) -> str:
        """The worst level."""
        return max(self.levels, key=WORST.index)

    @property
    def bytes_written(self) -> int:
        """Distinct bytes that its tiles write."""
        written_boxes = accesses.union([boxes for mode, boxes in self.parts if mode != READ])
        return int((written_boxes.end - written_boxes.start).sum())

    def lower(self, level: str, note: str) -> None:
        """Lower the coverage to at most ``level``; ``note`` says why."""
        self.levels.append(level)
        self.notes += [note] if note else []


def missing_reason(
    records: Records,
    event: dict[str, Any],
    kernel: dict[str, Any],
    geometry: Geometry,
    entries: raw.Entries,
    attribution: Attribution,
    children: Children | None = None,
    touched: Placed | str | None = None,
) -> str:
    """Return why a launch's records do not hold all that it writes, "" when they may.

    ``touched``: of a launch without patches, what it touches or why that is unknown.
    """
    if event.get("aside"):
        return "it is known to wait for other launches, GPUs or processes, and was left alone (--include records it)"
    if records.process.events[0].get("pass") != "accesses":
        return "accesses were not recorded, only the blocks pass ran"
    if isinstance(touched, str):
        return f"it ran without patches, and what it touches could not be computed ({touched})"
    if touched is not None:
        return ""
    if attribution is Attribution.INCOMPLETE and event["graph"] >= 0:
        return "records of this graph launch are missing"
    if attribution is Attribution.INCOMPLETE:
        return "records of this launch were copied while it was made, and some may be missing"
    spilled = event["launch"] in records.spilled
    whole = accesses.all_seen(entries, geometry) if children is None else children.whole
    if attribution is Attribution.EXACT and not spilled and not whole:
        return "not every block of it was seen, or more than once"
    if unpatched_names := [name for name in event.get("unpatched", []) if records.architecture >= SINCE.get(name, 0)]:
        return f"the library refused to patch some of its code ({', '.join(unpatched_names)})"
    if kernel.get("launches") and children is None:
        return "kernels of its module launch kernels or graphs, which no callback reports"
    return "it writes through surfaces, which no callback reports" if kernel.get("surface") else ""


def examine(records: Records, launch: Examined, reason: str) -> Examined:
    """Return the launch with all rules applied; ``reason`` is its `missing_reason`."""
    if reason:
        launch.parts += _all_live_memory(records, launch)
        launch.lower("conservative", f"{reason}: every tile stands for all memory")
        return launch
    _spinning(records, launch)
    _cover_overlapping_launches(launch)
    if launch.touched is not None:
        launch.parts += computed.boxes(launch.touched, launch.geometry, records.lifetimes)
        launch.notes.append(computed.NOTE)
        through_maps = computed.through_maps(launch.touched, launch.geometry)
        records.owners.compute(launch.event["kernel"], launch.geometry, *through_maps)
        _constants(records, launch)
        return launch
    launch.parts += accesses.plain(launch.entries, launch.geometry, records.process.granule, records.lifetimes)
    _textures(records, launch)
    _constants(records, launch)
    _tensor_maps(records, launch)
    _cover_spilled_accesses(records, launch)
    return launch


def _all_live_memory(records: Records, launch: Examined) -> list[tuple[int, Strided]]:
    live = unreported_stores.whole(records.lifetimes.live(), launch.geometry.tiles)
    whole_buffers = bind.within_buffers(live, records.lifetimes, ROUNDING)
    return [(READ, whole_buffers), (WRITE, whole_buffers)]


def _spinning(records: Records, launch: Examined) -> None:
    first, seconds = records.spinning.get(launch.event["kernel"], (None, 0.0))
    if first is not None and launch.event["launch"] >= first:
        launch.lower(
            "conservative",
            f"a launch of this kernel had not ended after {seconds:g} s: it may wait for later launches, "
            "and no dependency says so",
        )


def _cover_overlapping_launches(launch: Examined) -> None:
    if launch.attribution is Attribution.AMBIGUOUS:
        launch.lower("conservative", "nodes of this graph overlapped; this one stands for all that it may have been")


def _textures(records: Records, launch: Examined) -> None:
    if launch.kernel.get("texture"):
        launch.lower(
            "conservative",
            "it reads through textures, which no callback reports: every tile stands as reader of all memory",
        )
        launch.parts += _all_live_memory(records, launch)[:1]


def _constants(records: Records, launch: Examined) -> None:
    """Constant variables that something has touched are read by every tile; others have no producer."""
    kernel = launch.event["kernel"]
    if launch.kernel.get("constants") and kernel not in records.constants:
        launch.lower(
            "conservative",
            "it may read constant memory, and where that lies is unknown: every tile stands as reader of all memory",
        )
        launch.parts += _all_live_memory(records, launch)[:1]
        return
    live = records.lifetimes.live()
    variables = [(base, base + size) for base, size in records.constants.get(kernel, [])]
    variables = [v for v in variables if any(v[0] < end and base < v[1] for base, end in live)]
    if variables:
        boxes = unreported_stores.whole(variables, launch.geometry.tiles)
        launch.parts.append((READ, bind.within_buffers(boxes, records.lifetimes)))


def _tensor_maps(records: Records, launch: Examined) -> None:
    """Loads and stores through tensor maps: the former are reported by coordinates, the latter not at all."""
    event, kernel, lifetimes = launch.event, launch.kernel, records.lifetimes
    live = lifetimes.live()
    map_uses = unreported_stores.maps(launch.entries, tuple(kernel["parameters"]), graph=event["graph"] >= 0, live=live)
    loads, unknown = accesses.tensor_loads(launch.entries, launch.geometry, map_uses, im2col=records.im2col)
    launch.parts += [(READ, bind.within_buffers(load.boxes(), lifetimes)) for load in loads]
    if any(not load.decodable for load in loads):
        launch.lower("conservative", "loads in a mode that is not decoded stand for the whole tensor")
    if unknown:
        launch.lower("conservative", "loads through a tensor map that could not be decoded stand for all memory")
        launch.parts += _all_live_memory(records, launch)[:1]
    if any(base <= address < end for address in map_uses.unnamed for base, end in live):
        launch.lower("inferred", "a tensor map lies in memory that kernels may change; it was read once")
    if not (kernel["tensor_store"] or kernel["tensor_reduce"] or (not kernel["scanned"] and map_uses.loaded)):
        return
    stores = any(mode == WRITE for mode, _ in launch.parts)  # which work item made them is unknown
    walk = None if stores or unknown else launch.walk
    if (product := grouped.product(launch.call, walk, map_uses.loaded, launch.geometry)) is not None:
        note = "each group's work items write their rows by their columns"
        written = unreported_stores.WrittenBoxes(product[1], "inferred", note, product[0])
    else:
        written = records.owners.find(
            event["launch"], event["kernel"], launch.geometry, map_uses, loads, lifetimes, walk
        )
    if written.coverage == "conservative":
        written = _by_its_code(records, launch, map_uses, loads, walk, written)
    if (items := written.by_item) is not None:
        launch.by_item = items
        launch.parts = [(m, items.everywhere(boxes)) for m, boxes in launch.parts[: len(launch.parts) - len(loads)]]
        loads, _ = accesses.tensor_loads(launch.entries, launch.geometry, map_uses, items, im2col=records.im2col)
        launch.parts += [(READ, bind.within_buffers(load.boxes(), lifetimes)) for load in loads]
        launch.notes.append(f"{items.total} work items, distinguished by their loads")
    mode = ATOMIC if kernel["tensor_reduce"] and not kernel["tensor_store"] else WRITE
    if len(written.boxes):
        launch.parts.append((mode, bind.within_buffers(written.boxes, lifetimes)))
    launch.lower(written.coverage, written.note)


def _by_its_code(
    records: Records,
    launch: Examined,
    map_uses: unreported_stores.Maps,
    loads: list[Loads],
    walk: Walk | None,
    otherwise: unreported_stores.WrittenBoxes,
) -> unreported_stores.WrittenBoxes:
    """Return what a launch writes through the maps that its machine code stores through with its parameters."""
    event, lifetimes = launch.event, records.lifetimes
    if records.architecture != machine_code.ARCHITECTURE:
        return otherwise
    through = launch_code.stores(records.code, event, launch.kernel, launch.entries, lifetimes.live())
    if through is None or not all(lifetimes.holds(m.base, m.base + m.bytes) for m in through):
        return otherwise
    if not through:
        note = "its machine code reaches no store through tensor maps with these parameters"
        return unreported_stores.WrittenBoxes(unreported_stores.whole([], launch.geometry.tiles), "exact", note)
    written = records.owners.find(
        event["launch"], event["kernel"], launch.geometry, map_uses, loads, lifetimes, walk, through
    )
    count = "a tensor map" if len(through) == 1 else f"{len(through)} tensor maps"
    note = f"{written.note}; its machine code stores through {count}"
    return unreported_stores.WrittenBoxes(written.boxes, written.coverage, note, written.by_item)


def _cover_spilled_accesses(records: Records, launch: Examined) -> None:
    """Accesses without room in the arena count as all tiles and whole pages; loads through maps leave no page."""
    spill = records.spilled.get(launch.event["launch"])
    if spill is None:
        return
    live = records.lifetimes.live()
    tiles = launch.by_item.total if launch.by_item is not None else launch.geometry.tiles
    pages = accesses.spilled_pages(records.process.events, live)
    launch.parts += [
        (mode, bind.within_buffers(unreported_stores.whole(ranges, tiles), records.lifetimes)) for mode, ranges in pages
    ]
    if launch.kernel["tensor_load"] or not launch.kernel["scanned"]:
        launch.parts.append((READ, bind.within_buffers(unreported_stores.whole(live, tiles), records.lifetimes)))
    launch.levels.append("conservative")
    if spill["accesses"]:
        launch.notes.append(
            "the arena was full: accesses that did not fit count for all tiles and whole pages; give it more memory"
        )
    if beyond := spill.get("beyond", 0):
        launch.notes.append(f"{beyond} accesses at addresses of more than 48 bits: memory there is not in the trace")
