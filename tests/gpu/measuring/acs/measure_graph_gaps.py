"""On a GPU: what lies between the kernels of a replayed CUDA graph beyond their profiled durations, by blocks.

python tests/gpu/measuring/acs/measure_graph_gaps.py OUT.json

A chain of element-wise kernels on one tensor, each dependent on the one before, of sizes from one block to several
waves. *gap_us*: the time of a replay over its kernels, less the mean duration that PyTorch's profiler gives the same
kernels in a stream (`stream`) and in the graph (`graph`).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure_bounds import kernels

LAUNCHES, REPLAYS = 200, 20
ELEMENTS = (512, 8_192, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
KINDS = ("add", "sum", "product")


def chain(kind: str, elements: int) -> Any:
    """Return a step of `LAUNCHES` kernels, each dependent on the one before."""
    if kind == "product":
        side = max(32, round(elements**0.5 / 32) * 32)
        a, b, c = (torch.zeros(side, side, device="cuda", dtype=torch.float16) for _ in range(3))

        def step() -> None:
            for _ in range(LAUNCHES // 2):
                torch.mm(a, b, out=c)
                torch.mm(c, b, out=a)

        return step
    x = torch.zeros(elements, device="cuda")
    total = torch.zeros((), device="cuda")

    def step() -> None:
        for _ in range(LAUNCHES if kind == "add" else LAUNCHES // 2):
            x.add_(total)
            if kind == "sum":
                torch.sum(x, dim=0, out=total)

    return step


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Return the median time of a replay."""
    times = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / 4 * 1e6)
    return statistics.median(times)


def row_of(kind: str, elements: int) -> dict[str, Any]:
    """Return the gaps of a chain."""
    step = chain(kind, elements)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    us = replay_us(graph)
    row: dict[str, Any] = {"kind": kind, "elements": elements, "replay_us": us}
    for way, run in (("stream", step), ("graph", graph.replay)):
        actual = kernels(run)
        durations = [kernel["us"] for kernel in actual]
        row[way] = {
            "kernels": len(actual),
            "blocks": sorted({int(kernel["blocks"]) for kernel in actual}),
            "mean_us": statistics.mean(durations),
            "gap_us": (us - sum(durations)) / len(actual),
        }
    return row


def main() -> None:
    out = Path(sys.argv[1])
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "rows": []}
    for case in [partial(row_of, kind, elements) for kind in KINDS for elements in ELEMENTS]:
        results["rows"].append(case())
        row = results["rows"][-1]
        gaps = "  ".join(f"{way} {row[way]['mean_us']:.2f} + {row[way]['gap_us']:.2f}" for way in ("stream", "graph"))
        print(row["kind"], row["elements"], row["graph"]["blocks"], gaps, flush=True)
        out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
