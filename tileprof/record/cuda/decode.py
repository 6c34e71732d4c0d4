"""One process's raw records to a trace: events in order, launches with what their entries say."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.devices import Device, occupancy
from tileprof.record.cuda import accesses, calls, computed, machine_code
from tileprof.record.cuda.calls import OperatorCall
from tileprof.record.cuda.code.proofs import Proofs
from tileprof.record.cuda.code.traces import Placed
from tileprof.record.cuda.computed import Computed
from tileprof.record.cuda.coverage import Examined, Records, examine, missing_reason
from tileprof.record.cuda.filters import Inserted
from tileprof.record.cuda.footprints import bind
from tileprof.record.cuda.footprints.lifetimes import Lifetimes, Ranges
from tileprof.record.cuda.footprints.physical import Physical
from tileprof.record.cuda.footprints.runs import Strided
from tileprof.record.cuda.installation import locate
from tileprof.record.cuda.records import join, raw
from tileprof.record.cuda.records.children import children
from tileprof.record.cuda.records.graphs import Attribution, Graphs
from tileprof.record.cuda.records.tiles import Geometry, Times, times
from tileprof.record.cuda.tensor_maps import unreported_stores
from tileprof.record.cuda.tensor_maps.items import Walk
from tileprof.trace import READ, WRITE, Footprint, Launch, TraceWriter

MOST_ROWS: Final = 1 << 20
"""Tiles times buffers of a launch that counts as touching all memory; beyond, its tiles stand as one, or no one could
read the trace."""
ARRAY_BYTES: Final = 512
"""Size of the buffer that stands for a CUDA array; any number would do."""
OPAQUE: Final = {
    -1: "memcpy of an array", 1: "memcpy in a graph", 4: "child graph", 12: "batch memory operations",
    13: "conditional node",
}  # fmt: skip
"""Names of launches without a kernel, by CUgraphNodeType; -1 outside of graphs."""
DIRECTIONS: Final = {1: "host to host", 2: "host to device", 3: "device to host", 4: "device to device"}


@dataclass(frozen=True, slots=True)
class Timed:
    """An uninstrumented launch: when it began and how long it took, ns; its registers and shared memory."""

    begin_ns: int
    duration_ns: int
    registers: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Captured:
    """A launch that was captured into a graph: its kernel, operator, module and call, and the tensors that there
    were.
    """

    kernel: int
    marks: dict[str, str]
    tensors: Ranges
    call: OperatorCall | None = None


@dataclass(slots=True)
class Decoder:
    """Feeds a `TraceWriter` from one process.

    ``timed`` holds uninstrumented times by ordinal, the place of a launch among all of the program; ``blocks`` the
    times of tiles from a pass that records nothing else, too. Where either lacks a launch, the times of this
    pass stand in.
    """

    process: raw.Process
    writer: TraceWriter
    device: Device
    timed: dict[int, Timed] = field(default_factory=dict)
    blocks: dict[int, Times] = field(default_factory=dict)
    im2col: bool = True
    """This driver encodes maps in im2col mode as the recorder decodes them (`im2col.calibrate`)."""
    inserted: Inserted | None = None
    """Filters of the process, where blocks filled any."""
    proofs: Proofs | None = None
    """What is known of launches without patches since the program ran."""

    lifetimes: Lifetimes = field(init=False)
    owners: unreported_stores.Owners = field(init=False)
    code: machine_code.Kernels = field(init=False)
    computed: Computed = field(init=False)
    physical: Physical = field(init=False)
    graphs: Graphs = field(init=False)
    _kernels: dict[int, dict[str, Any]] = field(default_factory=dict)
    _footprints: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _streams: dict[str, int] = field(default_factory=dict)
    _spilled: dict[int, dict[str, Any]] = field(default_factory=dict)
    _constants: dict[int, list[list[int]]] = field(default_factory=dict)
    """Addresses and sizes of the constant variables that a kernel may read, by kernel."""
    _changed: dict[int, list[list[int]]] = field(default_factory=dict)
    _spinning: dict[int, tuple[int, float]] = field(default_factory=dict)
    """The first launch of a kernel that had not ended at the limit, and the limit in seconds, by kernel."""
    _several: Counter[int] = field(default_factory=Counter)
    """Launches by GPU, where there are several."""
    _marks: dict[str, str] = field(default_factory=dict)
    _calls: dict[int, OperatorCall] = field(default_factory=dict)
    _call: OperatorCall | None = None
    _latest_call: tuple[OperatorCall, int] | None = None
    """The call of the last launch in the trace that has one, and the graph launch that it was part of."""
    _call_number: int = -1
    _captured: list[Captured] = field(default_factory=list)
    _captures: list[int] = field(default_factory=list)
    _nodes: list[Captured | None] = field(default_factory=list)
    _own: frozenset[tuple[int, int]] = frozenset()
    _keeping: bool = True
    _start_ns: dict[int, int] = field(default_factory=dict)
    _last_end_ns: int = 0
    coverage: Counter[str] = field(default_factory=Counter)
    """Bytes written, by how they are known."""
    unrecorded: dict[int, int] = field(default_factory=dict)
    """Bytes, in a recording with the write check, that changed in a launch and that no tile is recorded to write."""
    checked: int = 0

    def __post_init__(self) -> None:
        tensors = any(e["e"] == "tensor" or (e["e"] == "live" and e["tensors"]) for e in self.process.events)
        self.lifetimes = Lifetimes(self.writer, tensors=tensors)
        self.owners = unreported_stores.Owners(self.process)
        self.code = machine_code.Kernels(self.process.folder, locate.nvdisasm())
        self.computed = Computed(self.process.folder, self.proofs or Proofs(locate.nvdisasm()))
        self.physical = Physical.of(self.process.events)
        self.graphs = Graphs(self.process)
        self._changed = {e["launch"]: e["ranges"] for e in self.process.events if e["e"] == "changed"}
        self._kernels = {e["id"]: e for e in self.process.events if e["e"] == "kernel"}
        self._spilled = {e["launch"]: e for e in self.process.events if e["e"] == "spill"}
        self._calls = calls.by_mark(self.process.events)
        self._constants = {e["kernel"]: e["ranges"] for e in self.process.events if e["e"] == "constants"}
        devices = Counter(e.get("device", 0) for e in self.process.events if e["e"] == "launch")
        self._several = devices if len(devices) > 1 else Counter()
        for e in self.process.events:
            if e["e"] == "spinning" and "kernel" in e:
                self._spinning.setdefault(e["kernel"], (e["launch"], e["seconds"]))

    def run(self) -> None:
        """Every event, in order."""
        self._keeping = not any(e["e"] == "capture" for e in self.process.events)
        for event in self.process.events:
            if not self._keeping and event["e"] in {"launch", "copy", "set", "opaque"}:
                self._leave_out(event)
                continue
            handler = getattr(self, f"_on_{event['e']}", None)
            if handler is not None:
                handler(event)
        ordinals = [event["ordinal"] for event in self.process.events if event["e"] == "launch"]
        if omitted := max(ordinals, default=-1) + 1 - len(set(ordinals)):
            self.writer.note(f"{omitted} launches among these were left out; what they wrote has no producer here")
        if any(event["e"] == "benchmark" for event in self.process.events):
            self.writer.note("launches with which torch.compile or Triton chose between kernels were left out")
        if self._several:
            each = ", ".join(f"{count} on GPU {device}" for device, count in sorted(self._several.items()))
            self.writer.note(
                f"the launches ran on several GPUs ({each}): dependencies between them are here, but bounds and "
                "schedules take all for one GPU's and do not hold"
            )
        if not self.process.complete:
            self.writer.note(f"{self.process.folder.name} {self.process.ended_early}")

    # ---- events

    def _on_complaint(self, event: dict[str, Any]) -> None:
        self.writer.note(f"the recorder complained: {event['text']}")

    def _on_alloc(self, event: dict[str, Any]) -> None:
        self.lifetimes.allocate(event["address"], event["bytes"], "activation" if event.get("pool") else "unknown")

    def _follow_handle(self, event: dict[str, Any]) -> None:
        self.physical.follow(event)

    _on_physical = _on_exported = _on_imported = _follow_handle

    def _on_map(self, event: dict[str, Any]) -> None:
        shared = self.physical.mapped(event)
        if shared is not None:
            self.lifetimes.share(event["address"], event["bytes"], shared[0], event["offset"], shared[1])

    def _on_unmap(self, event: dict[str, Any]) -> None:
        self.lifetimes.unshare(event["address"])

    def _on_free(self, event: dict[str, Any]) -> None:
        self.lifetimes.free(event["address"])

    def _on_tensor(self, event: dict[str, Any]) -> None:
        self.lifetimes.allocate_tensor(event["address"], event["bytes"], event["kind"])

    def _on_untensor(self, event: dict[str, Any]) -> None:
        self.lifetimes.free_tensor(event["address"])

    def _on_live(self, event: dict[str, Any]) -> None:
        self.lifetimes.keep_tensors([(base, base + size) for base, size in event["tensors"]], "activation")

    def _on_describe(self, event: dict[str, Any]) -> None:
        self.lifetimes.describe(event["address"], name=event["name"], kind=event["kind"])

    def _on_mark(self, event: dict[str, Any]) -> None:
        self._marks = {key: str(event.get(key, "")) for key in ("op", "module")}
        self._call = self._calls.get(id(event))
        self._latest_call = None

    def _on_captured(self, event: dict[str, Any]) -> None:
        self._captured.append(Captured(event["kernel"], self._marks, self.lifetimes.tensors(), self._call))

    def _on_capturing(self, _: dict[str, Any]) -> None:
        self._captures.append(len(self._captured))

    def _on_graph(self, event: dict[str, Any]) -> None:
        """Take from the last capture of the same kernels what is known of a graph's nodes."""
        kernels = [e["kernel"] for e in self.process.events if e["e"] == "launch" and e["graph"] == event["graph"]]
        places = join.captured(kernels, [c.kernel for c in self._captured], self._captures)
        self._nodes = [self._captured[at] if at >= 0 else None for at in places]
        self._own = frozenset(range_ for node in self._nodes if node is not None for range_ in node.tensors)

    def _on_capture(self, event: dict[str, Any]) -> None:
        """A program that marks any region keeps nothing else."""
        self._keeping = bool(event["on"])
        if self._keeping:
            self.writer.note("the program marked what to record; the rest of it is left out")

    def _leave_out(self, event: dict[str, Any]) -> None:
        if event["e"] == "launch" and event["launch"] in self.owners.of_launch:
            self._on_learn(event)

    def _records(self) -> Records:
        """Return what the rules of `tileprof.record.cuda.coverage` look things up in."""
        return Records(
            self.process, self.lifetimes, self.owners, self.code, int(self.device.architecture.removeprefix("sm_")),
            self._spilled, self._constants, self._spinning, self.im2col,
        )  # fmt: skip

    def _on_launch(self, event: dict[str, Any]) -> None:
        kernel, launched = self._kernels[event["kernel"]], Geometry.of(event)
        entries, attribution = self.graphs.entries(event)
        records = self._records()
        kin = children(entries, event, kernel, launched, attribution, self._kernels)
        touched = self.computed.of(event, kernel)
        reason = missing_reason(records, event, kernel, launched, entries, attribution, kin, touched)
        crowded = bool(reason) and launched.tiles * len(self.lifetimes.leaves().edges) > MOST_ROWS
        crowded |= kin is not None
        geometry = replace(launched, grid=(1, 1, 1), cluster=(1, 1, 1)) if crowded else launched
        here = times(entries if attribution is Attribution.EXACT else entries[:0], geometry)
        complete = attribution is Attribution.EXACT and event["launch"] not in self._spilled
        walk = Walk.of(entries) if complete else None
        node = self._nodes[0] if event["graph"] >= 0 and self._nodes else None
        if complete and node is not None:
            self.lifetimes.return_to(node.tensors, accesses.touched(entries, self.process.granule), self._own)
        call = self._call if event["graph"] < 0 else node.call if node is not None else None
        examined = Examined(event, kernel, geometry, entries, attribution, walk, call)
        order = here
        if isinstance(touched, Placed):
            examined.touched, order = touched, computed.progress(touched, launched)
        examine(records, examined, reason)
        if kin is not None and not reason:
            examined.lower("conservative", kin.note())
        parts, notes, by_item = examined.parts, examined.notes, examined.by_item
        self.coverage[examined.coverage] += examined.bytes_written if not reason else 0
        places, block_times = geometry.places(), here if crowded else self.blocks.get(event["ordinal"], here)
        notes += [f"its {launched.tiles:,} tiles stand as one"] if crowded else []
        if by_item is not None and walk is not None:
            here = order = block_times = by_item.times(walk, here)
            places = by_item.places(places)
        if event["launch"] in self._changed:
            self._check_writes(event, parts)
        bound = bind.bind(parts, order, self.lifetimes, call.origins() if call is not None else ())
        footprint = self._footprint(bound, places)
        timed = self.timed.get(event["ordinal"]) or self._from_blocks(block_times, notes, event.get("device", 0))
        registers = timed.registers or int(kernel["registers"])
        shared = timed.shared_bytes or int(kernel["static_shared"])
        threads = geometry.block[0] * geometry.block[1] * geometry.block[2]
        launch = self.writer.add_launch(
            Launch(
                footprint=footprint, operands=bound.operands, kernel=kernel["name"], fingerprint=kernel["fingerprint"],
                grid=launched.grid, block=launched.block, cluster=launched.cluster, stream=self._stream(event),
                graph=event["graph"], duration_ns=timed.duration_ns, begin_ns=timed.begin_ns, timing="measured",
                coverage=examined.coverage, registers=registers, shared_bytes=shared,
                blocks_per_sm=max(1, occupancy(self.device, threads, registers, shared).blocks_per_sm),
                note="; ".join(notes), op=self._name(event, "op"), module=self._name(event, "module"),
                device=str(event["device"]) if self._several else "",
                call=self._call_text(call, event["graph"], bound.operands),
            )
        )  # fmt: skip
        if self.inserted is not None:
            constants = self._constants.get(event["kernel"], []) if kernel.get("constants") else []
            self.inserted.add(launch, event, launched, by_item, constants, one_tile=crowded, coverage=examined.coverage)
        self._last_end_ns = timed.begin_ns + timed.duration_ns
        if event["graph"] >= 0:
            self._nodes = self._nodes[1:]
        if block_times.has_times.any():
            tile = np.flatnonzero(block_times.has_times)
            begin = block_times.begin[tile] - block_times.begin[tile].min()
            self.writer.add_times(
                launch, tile, block_times.sm[tile], begin, begin + block_times.end[tile] - block_times.begin[tile]
            )

    def _call_text(self, call: OperatorCall | None, graph: int, operands: tuple[tuple[int, int], ...]) -> str:
        """Return the ``call`` column; launches of one call have one number."""
        if call is None:
            return ""
        if self._latest_call != (call, graph):
            self._call_number += 1
            self._latest_call = (call, graph)
        return call.column(self._call_number, operands, self.lifetimes)

    def _on_learn(self, event: dict[str, Any]) -> None:
        kernel = self._kernels[event["kernel"]]
        entries, geometry = self.process.of(event["launch"], 0), Geometry.of(event)
        touched = self.computed.of(event, kernel)
        if touched is not None:
            if isinstance(touched, Placed):
                self.owners.compute(event["kernel"], geometry, *computed.through_maps(touched, geometry))
            return
        map_uses = unreported_stores.maps(entries, tuple(kernel["parameters"]), live=self.lifetimes.live())
        loads, _ = accesses.tensor_loads(entries, geometry, map_uses, im2col=self.im2col)
        self.owners.learn(event["launch"], event["kernel"], geometry, map_uses, self.lifetimes, loads)

    def _on_copy(self, event: dict[str, Any]) -> None:
        direction, size = event["direction"], event["bytes"] or event["width"] * event["height"] * event["depth"]
        if not size:
            # As the library says it of what a graph copies from or to arrays or memory of the host that is not pinned
            # (13.4.92).
            if event["graph"] >= 0:
                self._on_opaque({**event, "node": 1})
            return
        accesses_of_copy = []
        for mode, side, on_device in ((READ, "from", (3, 4)), (WRITE, "to", (2, 4))):
            # Kernels reach pinned and managed memory, too, and it is among what is live.
            if direction in on_device or direction not in DIRECTIONS or self._is_live(event[side]):
                accesses_of_copy.append((mode, accesses.rectangle(event[side], event, f"{side}_pitch", size)))
        defined = direction in DIRECTIONS
        name = f"memcpy {DIRECTIONS[direction] if defined else 'of unknown direction'}"
        self._single(
            event,
            name,
            accesses_of_copy,
            size * len(accesses_of_copy),
            "" if defined else "both sides stand as touched",
        )

    def _on_set(self, event: dict[str, Any]) -> None:
        event = {**event, "width": event["width"] * event["element"], "depth": 1}
        if not (size := event["width"] * event["height"]):
            return
        self._single(event, "memset", [(WRITE, accesses.rectangle(event["to"], event, "to_pitch", size))], size)

    def _on_array_copy(self, event: dict[str, Any]) -> None:
        """Decode a copy from or to a CUDA array, which has no addresses: a buffer at its handle stands for it.

        Kernels reach arrays through textures and surfaces, and then count as touching all memory, this among it.
        """
        accesses_of_copy, byte_count = [], event["width"] * event["height"] * event["depth"]
        for mode, side in ((READ, "from"), (WRITE, "to")):
            place = event[side]
            if event[f"{side}_array"]:
                if not self._is_live(place):
                    self.lifetimes.allocate(place, ARRAY_BYTES)
                accesses_of_copy.append((mode, unreported_stores.whole([(place, place + ARRAY_BYTES)], 1)))
            elif event[f"{side}_device"] or self._is_live(place):
                flat = event["depth"] == 1
                box = accesses.rectangle(place, event, f"{side}_pitch", byte_count)
                accesses_of_copy.append(
                    (mode, box if flat else unreported_stores.whole([(place, place + event[f"{side}_bytes"])], 1))
                )
        doubt = "" if event["depth"] == 1 else "what lies between its rows stands as touched"
        self._single(event, "memcpy of an array", accesses_of_copy, byte_count, doubt)

    def _on_value(self, event: dict[str, Any]) -> None:
        mode, name = (WRITE, "stream write value") if event["writes"] else (READ, "stream wait value")
        word = unreported_stores.whole([(event["to"], event["to"] + event["bytes"])], 1)
        self._single(event, name, [(mode, word)], event["bytes"])

    def _on_opaque(self, event: dict[str, Any]) -> None:
        """A node that runs other nodes, or writes memory by itself, or a copy, without a word on where."""
        name = OPAQUE[event["node"]]
        all_memory = unreported_stores.whole(self.lifetimes.live(), 1)
        self._single(event, name, [(READ, all_memory), (WRITE, all_memory)], 0, "it stands for all memory")

    # ---- parts

    def _is_live(self, address: int) -> bool:
        return any(base <= address < end for base, end in self.lifetimes.live())

    def _check_writes(self, event: dict[str, Any], parts: list[tuple[int, Strided]]) -> None:
        changed_ranges = np.array(self._changed[event["launch"]], np.int64).reshape(-1, 2)
        start = self.lifetimes.in_trace(changed_ranges[:, 0])
        changed_runs = accesses.united(
            np.zeros_like(start), start, start + changed_ranges[:, 1] - changed_ranges[:, 0], start
        )
        changed_ranges = np.column_stack([changed_runs.start, changed_runs.end])
        writing = [boxes for mode, boxes in parts if mode != READ]
        whole = accesses.union([replace(boxes, address=self.lifetimes.in_trace(boxes.address)) for boxes in writing])
        missed_bytes = accesses.outside(changed_ranges, whole)
        self.checked += int((changed_ranges[:, 1] - changed_ranges[:, 0]).sum())
        if missed_bytes:
            self.unrecorded[event["ordinal"]] = missed_bytes
            self.writer.note(
                f"{missed_bytes} bytes changed in launch {event['ordinal']} that no tile is recorded to write"
            )

    def _footprint(self, bound: bind.Bound, places: NDArray[np.int32]) -> int:
        key = (bound.signature, len(places), places[-1].tobytes())
        if key not in self._footprints:
            self._footprints[key] = self.writer.add_footprint(Footprint(block=places, boxes=bound.boxes))
        return self._footprints[key]

    def _from_blocks(self, times: Times, notes: list[str], device: int) -> Timed:
        if not times.has_times.any():
            notes.append("its time was not recorded")
            return Timed(0, 0)
        begin, end = int(times.begin[times.has_times].min()), int(times.end[times.has_times].max())
        start = self._start_ns.setdefault(device, begin)  # each GPU has its own clock
        return Timed(max(0, begin - start), max(1, end - begin))

    def _single(
        self, event: dict[str, Any], name: str, touched: list[tuple[int, Strided]], moved: int, doubt: str = ""
    ) -> None:
        touched = [(mode, bind.within_buffers(boxes, self.lifetimes)) for mode, boxes in touched]
        never = np.full(1, -1, np.int64)
        origins = self._call.origins() if self._call is not None and event["graph"] < 0 else ()
        bound = bind.bind(touched, Times(never, never, never, np.zeros(1, np.int64)), self.lifetimes, origins)
        duration = max(1, round(moved / self.device.dram_bytes_per_s * 1e9))
        footprint = self._footprint(bound, np.zeros((1, 3), np.int32))
        self._last_end_ns += duration
        self.writer.add_launch(
            Launch(
                footprint=footprint, operands=bound.operands, kernel=name, fingerprint=name, grid=(1, 1, 1),
                block=(1, 1, 1), duration_ns=duration, begin_ns=self._last_end_ns - duration, timing="modelled",
                stream=self._stream(event), coverage="conservative" if doubt else "exact", note=doubt,
                graph=event["graph"], op=self._name(event, "op"), module=self._name(event, "module"),
                call=self._call_text(self._call if event["graph"] < 0 else None, -1, bound.operands),
            )
        )  # fmt: skip

    def _name(self, event: dict[str, Any], what: str) -> str:
        """Return operator or module; what runs in a graph was issued when it was captured, not now."""
        if event["graph"] < 0:
            mark = self._marks.get(what, "")
        else:
            node = self._nodes[0] if self._nodes and event["e"] == "launch" else None
            mark = node.marks.get(what, "") if node is not None else ""
        if mark or what != "op" or event["e"] != "launch":
            return mark
        return fused_operators(self._kernels[event["kernel"]]["symbol"])

    def _stream(self, event: dict[str, Any]) -> int:
        return self._streams.setdefault(event["stream"], len(self._streams))


def fused_operators(symbol: str) -> str:
    """Return what a kernel of torch.compile is called after: its operators, run together; "" for other kernels."""
    match = re.fullmatch(r"triton_[a-z]+_fused_(\w+?)_*\d*", symbol)
    return f"fused {match[1]}" if match else ""
