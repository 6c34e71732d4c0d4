"""What bounds a step of an example, the host or the GPU: times per launch of each, and how full kernels are.

    python tests/gpu/measuring/acs/measure_bounds.py OUT.json "cloth --batch 4" "inception --graph" …

Host: from the first call of a step to its last, the queue empty at the beginning. GPU: the sum of the kernels' own
times, of which streams can save; what a graph of the step takes when replayed, where it can be captured.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

STEPS = 5


def step_times(step: Any) -> tuple[float, float]:
    """Return median microseconds of a step until its last call returned, and until the GPU was done."""
    until_issued, until_done = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        issue_s = time.perf_counter()
        torch.cuda.synchronize()
        until_issued.append((issue_s - begin) * 1e6)
        until_done.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(until_issued), statistics.median(until_done)


def stream_time(step: Any) -> float:
    """Return microseconds per step over many steps."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(2 * STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / (2 * STEPS) * 1e6


def kernels(step: Any) -> list[dict[str, Any]]:
    """Return duration in us, blocks and name of each kernel of a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return [
        {
            "us": event["dur"],
            "blocks": event["args"]["grid"][0] * event["args"]["grid"][1] * event["args"]["grid"][2],
            "per_sm": event["args"].get("blocks per SM", 0),
            "name": event["name"],
        }
        for event in events
        if event.get("cat") == "kernel"
    ]


def replayed(step: Any) -> float | None:
    """Return microseconds of a step as a graph; None if it cannot be captured."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return stream_time(graph.replay)
    except (RuntimeError, torch.AcceleratorError):
        torch.cuda.synchronize()
        return None


def of_step(step: Any, *, capturable: bool) -> dict[str, Any]:
    """Return all numbers of a step that has run before."""
    issue_s, alone = step_times(step)
    each = stream_time(step)
    actual = kernels(step)
    times = [kernel["us"] for kernel in actual]
    return {
        "issued_us": issue_s,
        "alone_us": alone,
        "step_us": each,
        "graph_us": replayed(step) if capturable else None,
        "kernels": len(actual),
        "gpu_us": sum(times),
        "mean_us": statistics.mean(times),
        "below_20": sum(t < 20 for t in times) / len(times),
        "blocks": statistics.median(kernel["blocks"] for kernel in actual),
        "longest": sorted(actual, key=lambda k: -k["us"])[:3],
    }


def bounds(words: list[str]) -> dict[str, Any]:
    """Return a row for the example of the given command line."""
    module = importlib.import_module(f"tileprof.examples.{words[0]}")
    row: dict[str, Any] = {"program": " ".join(words)}

    def measurement(_name: str, options: Any, step: Any) -> Any:
        with torch.no_grad():
            for _ in range(3):
                result = step()
            row.update(of_step(step, capturable=hasattr(options, "graph")))
        return result

    module.stepped = measurement
    module.main([*words[1:], "--device", "cuda", "--steps", "3"])
    return row


def main() -> None:
    """Print a line for each program and keep all rows."""
    rows = []
    print("program                                  kernels host/launch gpu/launch  step us   gpu us graph us  <20us")
    for words in sys.argv[2:]:
        try:
            row = bounds(words.split())
        except Exception:
            print(f"{words}: {traceback.format_exc()[-600:]}", flush=True)
            continue
        rows.append(row)
        print(
            f"{words:40s} {row['kernels']:6d} {row['issued_us'] / row['kernels']:10.1f} {row['mean_us']:10.1f} "
            f"{row['step_us']:10.0f} {row['gpu_us']:8.0f} {row['graph_us'] or 0:8.0f} {row['below_20']:6.0%}  "
            f"blocks {row['blocks']:.0f}; "
            + ", ".join(f"{k['us']:.0f} us {k['blocks']} {k['name'][:30]}" for k in row["longest"][:2]),
            flush=True,
        )
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
