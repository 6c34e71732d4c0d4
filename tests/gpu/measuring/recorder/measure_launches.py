"""What a GPU launches for each program of `tests/golden/development.json`: ``measure_launches.py OUT [NAME ...]``.

Each program runs once to warm up and once under PyTorch's profiler, several processes at once (``shared``: durations
are those of a GPU that others use, too). OUT gets ``NAME.launches.json.gz``: kernels, copies and memsets in the order
of their start on the GPU, with grid, block, duration in microseconds, and the operators around the launch with their
shapes and types, outermost first; and the calls in which the host waits. They tell for which calls an operator launches
what, which recordings (`measure_clients.py`) do not.
"""

import gzip
import json
import subprocess
import sys
import tempfile
import time
import traceback
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[4] / "tests" / "golden"
PROCESSES, LIMIT_S = 14, 170
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def all_programs(out, names):
    """Run the programs, some per process, and print a line for each."""
    parts = [names[i::PROCESSES] for i in range(PROCESSES)]
    commands = [(sys.executable, "-P", __file__, "--some", str(out), *some) for some in parts if some]
    running = [subprocess.Popen(command) for command in commands]
    ends = time.monotonic() + LIMIT_S
    for process in running:
        try:
            process.wait(max(0.1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def some_programs(out, names):
    """Write the launches of some programs, one after the other."""
    import torch

    sys.path.insert(0, str(GOLDEN))
    sys.argv = ["held_out.py", "development", "cuda" if torch.cuda.is_available() else "cpu"]
    import clients
    import held_out

    entries = {e["name"]: e for e in held_out.entries("development")}
    for name in names:
        began = time.monotonic()
        try:
            with torch.set_grad_enabled(name.endswith("_step")):
                recordings = launches_of(torch, clients.make(held_out.program(entries[name])), out)
            (out / f"{name}.launches.json.gz").write_bytes(gzip.compress(json.dumps(recordings).encode()))
            sentence = f"{len(recordings['launches'])} launches, {len(recordings['waits'])} waits"
        except Exception:
            sentence = traceback.format_exc()[-300:]
        sys.stdout.write(f"{name}: {sentence}, {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()


def launches_of(torch, run, out):
    """Return the launches of one run, and the calls in which the host waited."""
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(1)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(dir=out) as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return from_trace(json.loads(path.read_text())["traceEvents"]) | {"shared": True, "torch": torch.__version__}


def from_trace(events):
    """Return launches and waits of a trace of PyTorch's profiler; launches name the operators around them by number."""
    operators = {}
    enclosing = Enclosing(e for e in events if e.get("cat") == "cpu_op")
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat", "").startswith("cuda_") and "correlation" in
             e.get("args", ())}  # fmt: skip

    def around(event):
        some = enclosing.at(event) or enclosing.of(event["args"].get("External id"))
        return [operators.setdefault(json.dumps(described(e)), len(operators)) for e in some]

    launches = []
    for event in sorted((e for e in events if e.get("cat") in ON_GPU), key=lambda e: e["ts"]):
        about, call = event["args"], calls.get(event["args"].get("correlation"))
        launches.append({
            "kernel": event["name"], "grid": about.get("grid"), "block": about.get("block"), "us": event["dur"],
            "bytes": about.get("bytes"), "stream": about.get("stream"), "operators": around(call) if call else [],
        })  # fmt: skip
    waits = [{"call": e["name"], "operators": around(e)} for e in calls.values() if e["name"] in WAITS]
    return {"launches": launches, "waits": waits, "operators": [json.loads(text) for text in operators]}


def described(event):
    """Return name, shapes, types, strides and other arguments of an operator."""
    about = event.get("args", {})
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    return [event["name"], *(about.get(key, []) for key in keys)]


class Enclosing:
    """The operators that run at a time, per thread."""

    def __init__(self, events):
        threads = defaultdict(list)
        self._places, self._threads = {}, {}
        for event in events:
            threads[event["tid"]].append(event)
        for thread, some in threads.items():
            some.sort(key=lambda e: (e["ts"], -e["dur"]))
            self._threads[thread] = some, [e["ts"] for e in some], self._parents(some)
            self._places |= {e["args"].get("External id"): (thread, number) for number, e in enumerate(some)}

    @staticmethod
    def _parents(events):
        """Return the number of the operator in which each one begins, or -1."""
        parents, open_ones = [], []
        for number, event in enumerate(events):
            while open_ones and end(events[open_ones[-1]]) <= event["ts"]:
                open_ones.pop()
            parents.append(open_ones[-1] if open_ones else -1)
            open_ones.append(number)
        return parents

    def at(self, event):
        """Return the operators around an event, outermost first."""
        events, starts, parents = self._threads.get(event["tid"], ((), (), ()))
        number = bisect_right(starts, event["ts"]) - 1
        around = []
        while number >= 0:
            if end(events[number]) >= event["ts"]:
                around.append(events[number])
            number = parents[number]
        return around[::-1]

    def of(self, external_id):
        """Return the operator with this number of the profiler and those around it, outermost first."""
        thread, number = self._places.get(external_id, (None, -1))
        around = []
        while number >= 0:
            around.append(self._threads[thread][0][number])
            number = self._threads[thread][2][number]
        return around[::-1]


def end(event):
    return event["ts"] + event["dur"]


def main(*words):
    part = words[0] == "--some"
    out, *names = words[part:]
    Path(out).mkdir(parents=True, exist_ok=True)
    names = names or [e["name"] for e in json.loads((GOLDEN / "development.json").read_text())]
    (some_programs if part else all_programs)(Path(out), names)


if __name__ == "__main__":
    main(*sys.argv[1:])
