"""A step of an example, of `acs_models.py` or of `acs_shipped.py`, while no other process measures.

    python tests/gpu/measuring/acs/acs_step.py [--lock FILE] [--ready FILE] [--kernels FILE] [--timeline FILE]
        [--rounds N] [--each N] [--warm N] [--turns] -- inception --graph

``--ready`` is made when all is warm, before the lock is taken. The median time of a step over ``--rounds`` rounds of
``--each`` steps (0: as many as take 50 ms) goes to stderr, with the time until it was issued; a digest of the last
result goes to stdout, the kernels of a step (name, mean duration in us) to ``--kernels``, when each kernel of two steps
ran, and with how many blocks, to ``--timeline``. With ``--turns`` it measures once for each line on stdin, and writes
both times as a line to stdout.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import torch

from tileprof.examples.parts import common
from tileprof.harvest.slices import own_turn

ROUND_S = 0.05

PROFILED = 8
"""Number of steps whose kernels are timed."""


def _events(step: Any, steps: int) -> list[dict[str, Any]]:
    """Return the profiler's events of kernels, in order of their start, without fills and copies."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: float(e["ts"]))


def timeline(step: Any) -> list[dict[str, Any]]:
    """Return start and duration (us), stream, blocks, threads and shared memory (bytes) of each kernel of two steps."""
    return [
        {
            "name": e["name"],
            "ts": e["ts"],
            "us": e["dur"],
            "stream": e["args"].get("stream"),
            "grid": e["args"].get("grid"),
            "block": e["args"].get("block"),
            "shared": e["args"].get("shared memory"),
            "per_sm": e["args"].get("blocks per SM"),
        }
        for e in _events(step, 2)
    ]


def kernels(step: Any) -> list[dict[str, Any]]:
    """Return name and mean duration (us) of each kernel of a step, in order of their start, without fills and
    copies.
    """
    outcome = _events(step, PROFILED)
    count, rest = divmod(len(outcome), PROFILED)
    if rest:
        return [{"name": e["name"], "us": e["dur"], "ts": e["ts"]} for e in outcome]
    steps = [outcome[i * count : (i + 1) * count] for i in range(PROFILED)]
    return [
        {"name": same[0]["name"], "us": statistics.mean(e["dur"] for e in same)} for same in zip(*steps, strict=True)
    ]


def _step_seconds(step: Any, count: int) -> tuple[float, float]:
    """Return the seconds per step over this many steps, and those until the program had issued it."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    issued = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count, (issued - begin) / count


def main() -> None:
    """Run the example that the arguments behind ``--`` name."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--lock", type=Path)
    options.add_argument("--ready", type=Path)
    options.add_argument("--kernels", type=Path)
    options.add_argument("--timeline", type=Path)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--each", type=int, default=1)
    options.add_argument("--turns", action="store_true")
    options.add_argument("--warm", type=int, default=3, help="steps before anything is measured")
    options.add_argument("words", nargs="+")
    values = options.parse_args()
    name = values.words[0]
    module = importlib.import_module(name if name.startswith("acs_") else f"tileprof.examples.{name}")

    def measurement(_name: str, request: Any, step: Any) -> Any:
        # around the capture too: otherwise autograd keeps memory that the caching allocator would recycle
        with torch.no_grad():
            if getattr(request, "keep", False):
                step = common._keeping(step)
            if getattr(request, "graph", False):
                step = common._replay_of(step)
            for _ in range(values.warm):
                result = step()
            torch.cuda.synchronize()
            if values.ready is not None:
                values.ready.touch()
            with own_turn(values.lock):
                each = values.each or max(3, round(ROUND_S / _step_seconds(step, 5)[0]))
                for _ in sys.stdin if values.turns else range(1):
                    _step_seconds(step, each)
                    times = [_step_seconds(step, each) for _ in range(values.rounds)]
                    whole, issue = (statistics.median(of) * 1e6 for of in zip(*times, strict=True))
                    line = f"step: {whole:.1f} us per step, {issue:.1f} us to issue it\n"
                    (sys.stdout if values.turns else sys.stderr).write(line)
                    sys.stdout.flush()
                result = step()
                digest_bytes = result.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
                print(hashlib.sha256(digest_bytes).hexdigest())
                if values.kernels is not None:
                    values.kernels.write_text(json.dumps(kernels(step)))
                if values.timeline is not None:
                    values.timeline.write_text(json.dumps(timeline(step)))
        return result

    module.stepped = measurement
    module.main([*values.words[1:], "--device", "cuda", "--steps", "3"])


if __name__ == "__main__":
    main()
