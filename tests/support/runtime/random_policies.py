"""Random policies with random accesses, and the tile graph of the same accesses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from tileprof.analysis import build_graph
from tileprof.devices import get
from tileprof.policy.format import Policy, from_dict
from tileprof.runtime.executor import Touches
from tileprof.trace import schema
from tileprof.trace.footprint import Boxes, Footprint

BYTES = 12


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Draw two to four stages, and edges with random semaphores, waits and values that can be reached."""
    grids = [(draw(st.integers(1, 3)), draw(st.integers(1, 2)), 1) for _ in range(draw(st.integers(2, 4)))]
    tiles = [x * y for x, y, _ in grids]
    semaphores, edges = [], []
    for consumer in range(1, len(grids)):
        for producer in range(consumer):
            if not draw(st.booleans()):
                continue
            count = draw(st.integers(1, tiles[producer]))
            of = [draw(st.integers(0, count - 1)) for _ in range(tiles[producer])]
            semaphores.append({"producer": producer, "grid": [count, 1, 1], "of": of})
            waits = [sorted(draw(st.sets(st.integers(0, count - 1)))) for _ in range(tiles[consumer])]
            flat = [s for w in waits for s in w]
            values = [max(0, of.count(s) - draw(st.sampled_from([0, 0, 0, 1]))) for s in flat]
            indptr = np.cumsum([0] + [len(w) for w in waits]).tolist()
            edges.append({
                "producer": producer, "consumer": consumer, "hazards": ["RAW"], "kind": "table",
                "semaphores": len(semaphores) - 1, "waits": {"indptr": indptr, "semaphore": flat}, "value": values,
            })  # fmt: skip
    stages = [{"name": f"s{n}", "grid": list(g), "launch": n} for n, g in enumerate(grids)]
    return from_dict(
        {"tileprof_policy": 1, "stages": stages, "semaphores": semaphores, "edges": edges, "guard": {"renamed": True}}
    )


@st.composite
def touches_of(draw: st.DrawFn, policy: Policy) -> list[Touches]:
    """Draw a few strided boxes in two small buffers for every stage, in every mode."""
    matches = []
    for stage in policy.stages:
        rows = []
        for _ in range(draw(st.integers(0, 4))):
            length, count, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(0, 4))
            offset = draw(st.integers(0, BYTES - length - (count - 1) * stride))
            tile, buffer = draw(st.integers(0, stage.tiles - 1)), draw(st.integers(0, 1))
            rows.append((tile, buffer, draw(st.integers(0, 2)), offset, length, count, stride, 1, 0))
        matches.append(Touches.of(rows))
    return matches


def traced(policy: Policy, touches: list[Touches]):
    """Return the tile graph of a trace in which the stages are launches with these accesses."""
    footprints = []
    for stage, t in zip(policy.stages, touches, strict=True):
        number = np.arange(stage.tiles)
        gx, gy, _ = stage.grid
        block = np.stack([number % gx, number // gx % gy, number // (gx * gy)], axis=1).astype(np.int32)
        boxes = Boxes.of(
            tile=t.tile, operand=t.buffer, mode=t.mode, offset=t.offset, length=t.length, count_0=t.count_0,
            stride_0=t.stride_0, count_1=t.count_1, stride_1=t.stride_1,
        )  # fmt: skip
        footprints.append(Footprint(block, boxes))
    launches = pd.DataFrame(
        {"launch": range(len(touches)), "footprint": range(len(touches)), "tiles": [f.tiles for f in footprints]}
    )
    for name, plain in {"coverage": "exact", "op": "o", "kernel": "k", "module": "m", "blocks_per_sm": 1}.items():
        launches[name] = plain
    rows = [{"launch": n, "operand": b, "buffer": b, "offset": 0} for n in range(len(touches)) for b in (0, 1)]
    buffers = pd.DataFrame({c.name: [0, 0] for c in schema.BUFFERS.columns})
    buffers = buffers.assign(buffer=[0, 1], base=[0, 100], bytes=BYTES, allocated_at=-1, freed_at=-1)
    trace = SimpleNamespace(
        launches=launches,
        footprint=footprints.__getitem__,
        operands=pd.DataFrame(rows),
        buffers=buffers,
        device=get("H200"),
        manifest={},
        path="toy",
        operands_of=lambda _: (np.array([0, 1]), np.array([0, 0])),
    )
    return build_graph(trace)
