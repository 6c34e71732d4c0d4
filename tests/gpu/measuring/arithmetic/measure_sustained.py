"""Rates that large copies and large matrix products reach on a GPU: `sustained` of `tileprof/devices/devices.toml`.

python tests/gpu/measuring/arithmetic/measure_sustained.py OUT.json

A copy of 4 GiB counts the bytes that it reads and those that it writes; a product of square matrices, by cuBLAS, counts
two operations per multiplication. Each row has the median and the quantiles 10 and 90 of 30 runs, by events of the GPU,
after 5 that are not counted. Rows are written as they are known. A later run with the same output adds a process to
it, where device, versions and day are the same. One run takes about 10 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from measure_arithmetic import driver

WARM, RUNS = 5, 30
COPIED_BYTES, SIDES = 4 << 30, (4096, 8192, 16384)


def works(device: str, copied_bytes: int, sides: tuple[int, ...]) -> Iterator[tuple[str, str, int, Callable[[], Any]]]:
    """Yield the key of a rate, what is run, its bytes or operations, and the work."""
    source = torch.zeros(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    yield "dram_bytes_per_s", f"copy of {copied_bytes} bytes", 2 * copied_bytes, lambda: target.copy_(source)
    for key, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        for side in sides:
            a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
            yield key, f"product of {side} x {side}", 2 * side**3, lambda a=a, b=b: a @ b


def seconds(work: Callable[[], Any], *, on_gpu: bool) -> list[float]:
    """Return the time of each counted run."""
    times = []
    for i in range(WARM + RUNS):
        if on_gpu:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            elapsed_s = begin.elapsed_time(end) / 1e3
        else:
            start = time.perf_counter()
            work()
            elapsed_s = time.perf_counter() - start
        if i >= WARM:
            times.append(elapsed_s)
    return times


def earlier_processes(output: Path, about: dict[str, str]) -> list[list[dict[str, Any]]]:
    """Return the rows of earlier processes in a file that is about the same device, versions and day."""
    if not output.exists():
        return []
    results = json.loads(output.read_text())
    processes: list[list[dict[str, Any]]] = results.pop("processes")
    if results != about:
        raise SystemExit(f"{output} is about {results}, this run about {about}: name another file, or delete it")
    return processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cpu", action="store_true", help="try the script on small works, on the CPU")
    options = parser.parse_args()
    about = {
        "script": "tests/gpu/measuring/arithmetic/measure_sustained.py",
        "device": "CPU" if options.cpu else torch.cuda.get_device_name(),
        "driver": "" if options.cpu else driver().split(",")[0],
        "torch": torch.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    rows: list[dict[str, Any]] = []
    processes = [*earlier_processes(options.output, about), rows]
    sizes = ("cpu", 1 << 20, (64,)) if options.cpu else ("cuda", COPIED_BYTES, SIDES)
    for key, name, amount, work in works(*sizes):
        deciles = statistics.quantiles(seconds(work, on_gpu=not options.cpu), n=10)
        rates = {f"rate_{q}": amount / deciles[9 - q // 10] for q in (10, 50, 90)}
        rows.append({"key": key, "work": name, **{quantile: float(f"{rate:.4g}") for quantile, rate in rates.items()}})
        options.output.write_text(json.dumps(about | {"processes": processes}, indent=1) + "\n")
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
