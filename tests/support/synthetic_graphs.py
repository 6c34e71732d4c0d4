"""Builders of tile graphs and traces for tests, and slow oracles over expanded edges."""

from __future__ import annotations

import heapq
from types import SimpleNamespace

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from tileprof.analysis.bounds import Durations
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.pairs import pair_frame
from tileprof.trace import schema
from tileprof.trace.footprint import Boxes, Footprint

DEVICE = {
    "name": "toy", "architecture": "sm_80", "sms": 2, "threads_per_sm": 256, "threads_per_block": 256,
    "blocks_per_sm": 4,
    "warp_size": 32, "registers_per_sm": 65536, "registers_per_block": 65536, "registers_per_thread": 255,
    "register_allocation_unit": 256, "shared_bytes_per_sm": 65536, "shared_bytes_per_block": 65536,
    "shared_bytes_reserved": 0, "shared_allocation_bytes": 128, "clock_mhz": 1000.0, "l2_bytes": 1,
    "dram_bytes": 1 << 30,
    "dram_bytes_per_s": 1e12, "peak_flops": {"fp32": 1e12, "fp16": 4e12}, "launch_gap_ns": 100, "graph_gap_ns": 50,
    "host_issue_ns": 0.0, "host_issue_shared_ns": 0.0, "graph_issue_ns": 0.0,
}  # fmt: skip


def block(sets, set_of):
    """Return an EdgeBlock from sets of (parent, last, first) and the set of each consumer tile (-1: none)."""
    entries = [e for s in sets for e in s]
    parent, last, first = zip(*entries, strict=True) if entries else ((), (), ())
    return EdgeBlock(
        set_of=np.array(set_of, np.int32),
        indptr=np.cumsum([0, *(len(s) for s in sets)]).astype(np.int64),
        parent=np.array(parent, np.int32),
        bytes=np.ones(len(entries), np.int64),
        last=np.array(last, np.float32),
        first=np.array(first, np.float32),
    )


def all_to_all(producers, consumers, last=1.0, first=0.0):
    return block([[(p, last, first) for p in range(producers)]], [0] * consumers)


def one_to_one(tiles, last=1.0, first=0.0):
    return block([[(t, last, first)] for t in range(tiles)], range(tiles))


class _Graph(SimpleNamespace):
    """The part of a `TileGraph` that the analysis uses."""

    def __getattr__(self, name):
        if name in ("launches", "device", "footprint"):
            return None if self.recording is None else getattr(self.recording, name)
        if name == "pairs":
            links = self.links[self.links["edges"] > 0]  # a recorded link has edges, a random one may have none
            return pair_frame(_Graph(**{**vars(self), "links": links}))
        raise AttributeError(name)


def graph(tiles, links, trace=None):
    """Return a graph of launches with these numbers of tiles; links are (producer, consumer, EdgeBlock[, reuse])."""
    rows = [
        {"producer": p, "consumer": c, "hazard": "RAW", "reuse": bool(rest and rest[0]), "block": i,
         "edges": b.count, "bytes": b.total_bytes, "parents": b.parents, "children": b.children}
        for i, (p, c, b, *rest) in enumerate(links)
    ]  # fmt: skip
    columns = ["producer", "consumer", "hazard", "reuse", "block", "edges", "bytes", "parents", "children"]
    return _Graph(
        tile_base=np.cumsum([0, *tiles]).astype(np.int64),
        links=pd.DataFrame(rows, columns=columns),
        blocks=[b for _, _, b, *_ in links],
        recording=trace,
    )


def durations(lives):
    """Return the durations of launches from lists of tile durations."""
    at = np.cumsum([0, *(len(x) for x in lives)])[:-1].astype(np.int64)
    return Durations(np.array([x for life in lives for x in life], np.float64), at, ["measured"] * len(lives))


@st.composite
def random_graphs(draw):
    """Draw (graph, durations): up to six launches of up to seven tiles; equal times are common."""
    tiles = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    lives = [draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.5, 7.0]), min_size=n, max_size=n)) for n in tiles]
    fraction = st.sampled_from([0.0, 0.25, 0.5, 1.0, float("nan")])
    links = []
    for c in range(1, len(tiles)):
        for p in draw(st.lists(st.integers(0, c - 1), unique=True, max_size=3)):
            parents = st.lists(st.integers(0, tiles[p] - 1), min_size=1, max_size=4, unique=True)
            sets = [
                [(q, draw(fraction), draw(fraction)) for q in sorted(s)]
                for s in draw(st.lists(parents, min_size=1, max_size=3))
            ]
            set_of = draw(st.lists(st.integers(-1, len(sets) - 1), min_size=tiles[c], max_size=tiles[c]))
            links.append((p, c, block(sets, set_of), draw(st.booleans())))
    return graph(tiles, links), lives


def edges_of(g, *, reuse):
    """Return every edge as (parent node, child node, last, first), with unknown times as a lower bound must take
    them.
    """
    for row in g.links.itertuples():
        if row.reuse and not reuse:
            continue
        b = g.blocks[row.block]
        for tile, s in enumerate(b.set_of):
            if s >= 0:
                for e in range(b.indptr[s], b.indptr[s + 1]):
                    last = 0.0 if np.isnan(b.last[e]) else float(b.last[e])
                    first = 1.0 if np.isnan(b.first[e]) else float(b.first[e])
                    parent = int(g.tile_base[row.producer]) + int(b.parent[e])
                    yield parent, int(g.tile_base[row.consumer]) + tile, last, first


def list_oracle(g, lives, sizes, capacity, *, reuse):
    """Return the ends of tiles under greedy list scheduling, computed tile by tile over expanded edges."""
    ns = [x for life in lives for x in life]
    size = [sizes[i] for i, life in enumerate(lives) for _ in life]
    parents = {t: set() for t in range(len(ns))}
    for p, c, *_ in edges_of(g, reuse=reuse):
        parents[c].add(p)
    ends, running, now, free = [None] * len(ns), [], 0.0, capacity
    while None in ends or running:
        busy = {t for _, t in running}
        for t in range(len(ns)):
            is_ready = all(ends[p] is not None and p not in busy for p in parents[t])
            if ends[t] is None and is_ready and size[t] <= free:
                ends[t] = now + ns[t]
                free -= size[t]
                busy.add(t)
                heapq.heappush(running, (ends[t], t))
        now = running[0][0]
        while running and running[0][0] == now:
            _, t = heapq.heappop(running)
            free += size[t]
    return ends


def trace(launches, footprints, *, operands=(), buffers=(), times=(), manifest=None, complete=True, device=None):
    """Return an object with the interface of a Trace. Rows are dicts; missing values get defaults."""
    from tileprof.devices import Device

    device = device or Device.from_dict(DEVICE)
    launches = [{"grid_x": footprints[row["footprint"]].tiles, **row} for row in launches]
    frames = {
        name: frame(name, rows)
        for name, rows in (("launches", launches), ("operands", operands), ("buffers", buffers), ("times", times))
    }
    frames["launches"]["launch"] = np.arange(len(launches))
    frames["launches"]["tiles"] = [footprints[f].tiles for f in frames["launches"]["footprint"]]
    bound = frames["operands"]

    def operands_of(launch):
        rows = bound[bound["launch"] == launch]
        return rows["buffer"].to_numpy(np.int64), rows["offset"].to_numpy(np.int64)

    return SimpleNamespace(
        **frames, path="toy.tileprof", device=device, complete=complete, manifest=manifest or {},
        footprint=lambda i: footprints[i], operands_of=operands_of,
    )  # fmt: skip


def frame(name, rows):
    plain = {"string": "", "enum": None, "list<int64>": [], "float32": np.nan, "float64": np.nan}
    columns = {}
    for column in schema.TABLES[name].columns:
        default = 1 if column.name[-2:] in ("_x", "_y", "_z") or column.name == "blocks_per_sm" else 0
        default = -1 if column.name in ("freed_at", "graph") else default
        default = plain.get(column.type, default)
        default = column.values[0] if column.values else default
        values = [row.get(column.name, default) for row in rows]
        if column.values:
            columns[column.name] = pd.Categorical(values, categories=list(column.values))
        elif column.type in ("string", "list<int64>"):
            columns[column.name] = pd.Series(values, dtype=object)
        else:
            columns[column.name] = pd.Series(values, dtype=column.type)
    return pd.DataFrame(columns)


def footprint(tiles, boxes=None, duration_ns=None):
    """Return a footprint of tiles in one row of the grid."""
    places = np.zeros((tiles, 3), np.int32)
    places[:, 0] = np.arange(tiles)
    life = None if duration_ns is None else np.broadcast_to(np.asarray(duration_ns, np.float64), (tiles,)).copy()
    return Footprint(places, boxes if boxes is not None else Boxes.concat([]), life)


def gemm_boxes(rows, inner, columns, tile=128, itemsize=2):
    """Return the tiles of a row-major GEMM, x over columns: A is operand 0, B operand 1, C operand 2."""
    parts, places = [], []
    for y in range(rows // tile):
        for x in range(columns // tile):
            t = len(places)
            places.append((x, y, 0))
            a = {"offset": y * tile * inner * itemsize, "length": inner * itemsize, "count_0": tile,
                 "stride_0": inner * itemsize, "first": 0.0, "last": 1.0}  # fmt: skip
            b = {"offset": x * tile * itemsize, "length": tile * itemsize, "count_0": inner,
                 "stride_0": columns * itemsize, "first": 0.0, "last": 1.0}  # fmt: skip
            c = {"offset": (y * tile * columns + x * tile) * itemsize, "length": tile * itemsize, "count_0": tile,
                 "stride_0": columns * itemsize, "first": 0.95, "last": 1.0}  # fmt: skip
            parts += [Boxes.of(tile=t, operand=o, mode=m, **box) for o, m, box in ((0, 0, a), (1, 0, b), (2, 1, c))]
    return np.array(places, np.int32), Boxes.concat(parts)


def write_mlp(path, layers=2, tokens=256, hidden=512, device="V100", tile_ns=None, **names):
    """Write a trace of layers of two dependent GEMMs to a folder; ``names`` change at every launch."""
    from tileprof.devices import get
    from tileprof.trace import Launch, TraceWriter

    gpu = get(device)
    writer = TraceWriter(path, recorder="model", command=["mlp.py", "--layers", str(layers)], device=gpu)
    shapes = ((tokens, hidden, 4 * hidden), (tokens, 4 * hidden, hidden))
    prints = []
    a_slot = 0.6 * gpu.peak_flops["fp16"] / gpu.sms / 2 / 1e9  # FLOP/ns at 60% of the peak, two blocks per SM
    tile_ns = tile_ns or [float(round(2 * 128 * 128 * inner / a_slot)) for _, inner, _ in shapes]
    for (rows, inner, columns), ns in zip(shapes, tile_ns, strict=True):
        places, boxes = gemm_boxes(rows, inner, columns)
        prints.append((writer.add_footprint(Footprint(places, boxes, np.full(len(places), ns))), len(places), ns))
    base = 1 << 20

    def buffer(elements, kind):
        nonlocal base
        base += 1 << 28
        return writer.add_buffer(
            base=base, bytes=2 * elements, kind=kind, dtype="float16", before_start=kind == "parameter"
        )

    weights = [[buffer(hidden * 4 * hidden, "parameter") for _ in shapes] for _ in range(layers)]
    x, begin = buffer(tokens * hidden, "input"), 0
    for layer in range(layers):
        for i, (rows, inner, columns) in enumerate(shapes):
            y = buffer(rows * columns, "activation")
            number, tiles, ns = prints[i]
            took = int(ns * -(-tiles // (2 * gpu.sms)))
            values = {
                "kernel": f"gemm_{columns}x{inner}",
                "op": "aten::addmm",
                "module": f"h.{layer}.mlp.{'up' if i == 0 else 'down'}",
            }
            writer.add_launch(
                Launch(
                    footprint=number, operands=((x, 0), (weights[layer][i], 0), (y, 0)),
                    grid=(columns // 128, rows // 128, 1),
                    block=(256, 1, 1), duration_ns=took, timing="modelled", coverage="exact", blocks_per_sm=2,
                    registers=100,
                    shared_bytes=32768, begin_ns=begin, flops=2 * rows * inner * columns, **{**values, **names},
                )
            )  # fmt: skip
            begin += took + 2000
            x = y
    writer.close()
    return path
