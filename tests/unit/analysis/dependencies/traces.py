"""Small traces in memory, and an oracle that computes the dependencies of a trace byte by byte."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields

import numpy as np
import pandas as pd

from tests.support.synthetic_graphs import frame
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.trace import structure
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes, Footprint


@dataclass
class MemoryTrace:
    """The part of a trace that `build_graph` reads.

    Raises TraceError for rows that the reader would refuse in a file.
    """

    launches: pd.DataFrame
    operands: pd.DataFrame
    buffers: pd.DataFrame
    distinct: list[Footprint]
    read: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, repr=False)

    path = "a trace in memory"

    def __post_init__(self) -> None:
        for table in ("launches", "buffers", "operands", "tiles", "accesses"):
            structure.check(self, table, self.columns(table))

    @property
    def footprints(self) -> int:
        return len(self.distinct)

    def footprint(self, number: int) -> Footprint:
        return self.distinct[number]

    def count(self, table: str) -> int:
        return len(getattr(self, table))

    def columns(self, table: str) -> dict[str, np.ndarray]:
        """Return a table as the reader gives it: int64 columns, boxes in the order of their tiles."""
        if table not in self.read:
            self.read[table] = self._columns(table)
        return self.read[table]

    def _columns(self, table: str) -> dict[str, np.ndarray]:
        if table == "tiles":
            tiles = [footprint.tiles for footprint in self.distinct]
            block = np.concatenate([np.empty((0, 3), np.int32), *(footprint.block for footprint in self.distinct)])
            return {
                "footprint": np.repeat(np.arange(len(tiles)), tiles),
                "tile": np.concatenate([np.empty(0, np.int64), *map(np.arange, tiles)]),
                **{f"block_{axis}": block[:, number] for number, axis in enumerate("xyz")},
                **dict.fromkeys(("duration_ns", "bytes_read", "bytes_written"), np.zeros(len(block))),
            }
        if table == "accesses":
            sorted_boxes = [f.boxes.take(np.argsort(f.boxes.tile, kind="stable")) for f in self.distinct]
            boxes = Boxes.concat(sorted_boxes)
            columns = {name.name: getattr(boxes, name.name) for name in fields(Boxes)}
            return {"footprint": np.repeat(np.arange(len(sorted_boxes)), [len(b) for b in sorted_boxes]), **columns}
        full = frame(table, getattr(self, table).to_dict("records"))  # defaults for values that the builder leaves out
        return {name: full[name].to_numpy() if full[name].dtype.kind in "biuf" else full[name] for name in full}


@dataclass
class TraceBuilder:
    """Collects footprints, buffers and launches; ``trace()`` returns a trace of them."""

    footprints: list[Footprint] = field(default_factory=list)
    buffers: list[dict] = field(default_factory=list)
    bound: list[tuple[int, tuple[tuple[int, int], ...]]] = field(default_factory=list)

    def buffer(self, base: int, size: int) -> int:
        self.buffers.append({"base": base, "bytes": size, "allocated_at": len(self.bound), "freed_at": -1})
        return len(self.buffers) - 1

    def free(self, buffer: int) -> None:
        self.buffers[buffer]["freed_at"] = len(self.bound)

    def footprint(self, tiles: int, rows: list[dict], grid: np.ndarray | None = None) -> int:
        """Add a footprint; rows are keyword arguments of `Boxes.of`."""
        block = np.zeros((tiles, 3), np.int32)
        block[:, 0] = np.arange(tiles)
        self.footprints.append(Footprint(block if grid is None else grid, Boxes.concat(Boxes.of(**r) for r in rows)))
        return len(self.footprints) - 1

    def launch(self, footprint: int, *operands: tuple[int, int]) -> int:
        self.bound.append((footprint, operands))
        return len(self.bound) - 1

    def trace(self) -> MemoryTrace:
        tiles = [self.footprints[f].tiles for f, _ in self.bound]
        launches = pd.DataFrame(
            {"launch": range(len(self.bound)), "footprint": [f for f, _ in self.bound], "tiles": tiles}
        )
        operands = [(n, slot, b, o) for n, (_, ops) in enumerate(self.bound) for slot, (b, o) in enumerate(ops)]
        operand_rows = pd.DataFrame(operands, columns=["launch", "operand", "buffer", "offset"]).astype("int64")
        columns = ["base", "bytes", "allocated_at", "freed_at"]
        buffers = pd.DataFrame(self.buffers, columns=columns).astype("int64")
        buffers.insert(0, "buffer", range(len(buffers)))
        for name, value in {
            "begin_ns": 0, "duration_ns": 1000, "kernel": "k", "op": "o", "module": "m",
        }.items():  # fmt: skip
            launches[name] = value
        return MemoryTrace(
            launches.astype({"footprint": "int64", "tiles": "int64"}), operand_rows, buffers, self.footprints
        )


def bytes_of(boxes: Boxes, row: int) -> np.ndarray:
    """Return every byte of one box, relative to the operand's byte 0."""
    i = np.arange(boxes.count_0[row]) * boxes.stride_0[row]
    j = np.arange(boxes.count_1[row]) * boxes.stride_1[row]
    run = np.arange(boxes.length[row])
    return np.unique((boxes.offset[row] + i[:, None, None] + j[None, :, None] + run[None, None, :]).ravel())


Edge = tuple[int, int, int, int, str, bool]


def oracle(trace: MemoryTrace) -> dict[Edge, tuple[int, float, float]]:
    """Return edge -> (bytes, last, first), computed byte by byte.

    Addresses stand for bytes; their owners show reuse.
    """
    writer: dict[int, set] = defaultdict(set)
    atomics: dict[int, set] = defaultdict(set)
    readers: dict[int, set] = defaultdict(set)
    edges: dict[Edge, list] = defaultdict(lambda: [0, -np.inf, np.inf])
    base = trace.buffers["base"].tolist()
    for launch, footprint in enumerate(trace.launches["footprint"]):
        bound = trace.operands[trace.operands["launch"] == launch]
        accesses: dict[int, dict] = {READ: {}, WRITE: {}, ATOMIC: {}}
        boxes = trace.footprint(footprint).boxes
        for slot, buffer, offset in zip(bound["operand"], bound["buffer"], bound["offset"], strict=True):
            for row in np.flatnonzero(boxes.operand == slot):
                tiles = accesses[int(boxes.mode[row])]
                for byte in bytes_of(boxes, row).tolist():
                    lags = tiles.setdefault(
                        (base[buffer] + offset + byte, int(boxes.tile[row]), buffer), [np.inf, -np.inf]
                    )
                    lags[0] = np.minimum(lags[0], boxes.first[row])
                    lags[1] = np.maximum(lags[1], boxes.last[row])

        def add(producers: set, consumer: int, hazard: str, *, buffer: int, first: float, launch: int = launch) -> None:
            for other, tile, last, owner in producers:
                edge = edges[other, tile, launch, consumer, hazard, owner != buffer]
                edge[:] = [edge[0] + 1, np.maximum(edge[1], last), np.minimum(edge[2], first)]

        def foreign(byte: int, buffer: int) -> set:
            updates = {w for w in atomics[byte] if w[3] != buffer}
            return updates or {w for w in writer[byte] if w[3] != buffer}

        for (byte, tile, buffer), (first, _) in accesses[READ].items():
            live = {w for w in atomics[byte] if w[3] == buffer}
            add(live or {w for w in writer[byte] if w[3] == buffer}, tile, "RAW", buffer=buffer, first=first)
        for (byte, tile, buffer), (first, _) in accesses[ATOMIC].items():
            add({w for w in writer[byte] if w[3] == buffer}, tile, "RAW", buffer=buffer, first=first)
            add(foreign(byte, buffer), tile, "WAW", buffer=buffer, first=first)
            add(readers[byte], tile, "WAR", buffer=buffer, first=first)
        for (byte, tile, buffer), (first, _) in accesses[WRITE].items():
            live = {w for w in atomics[byte] if w[3] == buffer}
            own = live or {w for w in writer[byte] if w[3] == buffer}
            add(own | foreign(byte, buffer), tile, "WAW", buffer=buffer, first=first)
            add(readers[byte], tile, "WAR", buffer=buffer, first=first)
        for byte in {b for b, _, _ in accesses[WRITE]}:
            writer[byte], atomics[byte], readers[byte] = set(), set(), set()
        own_writes = {(byte, tile) for byte, tile, _ in accesses[WRITE]}
        for mode, into in ((WRITE, writer), (ATOMIC, atomics), (READ, readers)):
            for (byte, tile, buffer), (_, last) in accesses[mode].items():
                if mode != READ or (byte, tile) not in own_writes:
                    into[byte].add((launch, tile, float(last), buffer))
    return {edge: tuple(value) for edge, value in edges.items()}


def block_of(parents: list[list[int]]) -> EdgeBlock:
    """Return a block in which consumer tile i has parents[i]; every tile with parents has its own set."""
    lists = [sorted(p) for p in parents if p]
    sizes = [len(p) for p in lists]
    set_of = np.full(len(parents), -1, np.int32)
    set_of[[i for i, p in enumerate(parents) if p]] = np.arange(len(lists))
    parent = np.concatenate(lists).astype(np.int32)
    lag = np.full(len(parent), np.nan, np.float32)
    return EdgeBlock(set_of, np.cumsum([0, *sizes]), parent, np.ones(len(parent), np.int64), lag, lag)
