"""Time whole models: eager, Inductor, and ``backend="tileprof"``, each call in one CUDA graph.

    python measure_models.py OUT.json [--only NAME ...] [--held-out | --everything] [--budget S] [--autotune]
    python measure_models.py --table OUT.json [--merge MORE.json ...]

Every model is compiled in a process of its own, all of them at once; then they are measured one after the other while
the others stand still, the races of the backend included. A row holds medians, least and greatest of 30 replays in
microseconds (the variants of a model take turns, and what a call updates is put back between replays), errors against
float32 as norms, peak memory of a call, seconds to compile (many at once; `measure_starts.py` measures that), and what
the backend logged. Rows of an existing OUT.json stay, unless they are measured again. A model that fails is a row that
says why.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

REPLAYS, WARM = 30, 5
POLL = 0.2  # seconds
LONGEST_TURN = 25  # seconds: one that hangs must not cost the others their turn
VARIANTS = ("eager", "inductor", "autotuned", "tileprof")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", help="names of models of either group, or beginnings of them")
    parser.add_argument("--held-out", action="store_true", help="the models that nothing was tuned for")
    parser.add_argument("--everything", action="store_true", help="these and the others")
    parser.add_argument("--budget", type=float, default=600, help="seconds after which what is left is given up")
    parser.add_argument("--autotune", action="store_true", help="max-autotune-no-cudagraphs too, where it was chosen")
    parser.add_argument("--tiny", action="store_true", help="small models, to try this program")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the table of OUT.json and measure nothing")
    parser.add_argument("--merge", nargs="+", type=Path, help="first put the rows of other runs into OUT.json")
    options = parser.parse_args()
    if options.table:
        if options.merge:
            merge(options.out, options.merge)
        print("\n".join(table(json.loads(options.out.read_text()))))
    elif options.worker:
        work(options)
    else:
        measure(options)


def merge(out: Path, others: list[Path]) -> None:
    """Join rows of other runs, which replace rows of the same name; each row has its date."""
    actual = json.loads(out.read_text()) if out.exists() else {"rows": {}}
    for path in others:
        more = json.loads(path.read_text())
        good = {n: r for n, r in more["rows"].items() if "failed" not in r or n not in actual["rows"]}
        actual["rows"] |= {n: {"measured": more["measured"], **row} for n, row in good.items()}
        actual |= {k: v for k, v in more.items() if k != "rows"}
    out.write_text(json.dumps(actual, indent=1) + "\n")


def names(options: argparse.Namespace) -> list[str]:
    from model_cases import HELD_OUT, TABLE

    group = TABLE | HELD_OUT if options.everything or options.only else HELD_OUT if options.held_out else TABLE
    return [
        n
        for n in group
        if not options.only or any(n == o or (o not in group and n.startswith(o)) for o in options.only)
    ]


# ---- the parent: starts workers, gives turns, collects rows


class Worker:
    """A process that prepares one model, prints READY, waits for GO on its stdin, and prints its row."""

    def __init__(self, name: str, options: argparse.Namespace, threads: int) -> None:
        command = [sys.executable, __file__, str(options.out), "--worker", name]
        command += [f for f, on in (("--autotune", options.autotune), ("--tiny", options.tiny)) if on]
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads), "OMP_NUM_THREADS": "2"}
        self.name, self.row, self.ready, self.begun = name, None, threading.Event(), time.monotonic()
        self.done = threading.Event()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("READY"):
                print(f"{time.monotonic() - self.begun:6.1f} s  {self.name}: compiled", flush=True)
                self.ready.set()
            elif line.startswith("ROW "):
                self.row = json.loads(line[4:])
            else:
                print(f"  [{self.name}] {line.rstrip()}", flush=True)
        self.ready.set()
        self.done.set()

    def go(self, seconds: float) -> None:
        """Give it its turn, and wait for its row."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("GO\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return
        self.done.wait(max(0.0, seconds))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def measure(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.budget
    selection = names(options)
    workers = [Worker(n, options, max(1, (os.cpu_count() or 2) // max(1, len(selection)))) for n in selection]
    actual = json.loads(options.out.read_text()) if options.out.exists() else {"rows": {}}
    actual |= {"measured": datetime.now(UTC).date().isoformat(), "machine": machine()}
    last_start = end - min(4 * len(workers), 0.4 * options.budget)  # a turn takes 2 to 4 s
    for worker in workers:
        worker.ready.wait(max(0.0, last_start - time.monotonic()))
    while workers:
        worker = next((w for w in workers if w.ready.is_set()), workers[0])
        if worker.ready.wait(POLL):
            worker.go(min(LONGEST_TURN, end - time.monotonic()))
            row = worker.row or {"failed": "it ended without a result" if worker.done.is_set() else "out of time"}
        elif time.monotonic() < end:
            workers = [*workers[1:], workers[0]]
            continue
        else:
            row = {"failed": f"not compiled after {time.monotonic() - worker.begun:.0f} s"}
        worker.end()
        workers.remove(worker)
        actual["rows"][worker.name] = row
        print(worker.name, sentence(row), flush=True)
        options.out.write_text(json.dumps(actual, indent=1) + "\n")
    print("\n".join(table(actual)))


def machine() -> dict[str, str]:
    from importlib import metadata

    import torch

    packages = ("torch", "triton", "transformers", "timm", "torchvision")
    actual = {name: metadata.version(name) for name in packages if _is_installed(name)}
    if torch.cuda.is_available():
        output = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
        actual["device"] = output.stdout.splitlines()[0] if output.stdout else torch.cuda.get_device_name()
    return actual


def _is_installed(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# ---- a worker


class LogMessages(logging.Handler):
    """Collects the messages of the backend."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        print(record.getMessage(), flush=True)


def work(options: argparse.Namespace) -> None:
    """Prepare a model, wait for the turn, print the row; a failure is printed as a row too."""
    row: dict[str, Any] = {}
    try:
        Worked(options, row).run()
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        row["failed"] = f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:200]}"
    print("ROW " + json.dumps(row), flush=True)
    os._exit(0)  # do not wait for the compilers' threads


class Worked:
    def __init__(self, options: argparse.Namespace, row: dict[str, Any]) -> None:
        import torch
        from model_cases import AUTOTUNED, HELD_OUT, TABLE

        self.torch, self.row, self.turn = torch, row, False
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        name = options.worker
        self.case = (TABLE | HELD_OUT)[name](self.device, options.tiny)
        self.saved = [t.clone() for t in self.case.changed]
        self.variants = [v for v in VARIANTS if v != "autotuned" or (options.autotune and name in AUTOTUNED)]
        self.models: dict[str, Any] = {}
        self.log = LogMessages()

    def run(self) -> None:
        from tileprof.runtime.compile.racing.report import reports
        from tileprof.runtime.programs.compare import expected

        torch, case = self.torch, self.case
        logger = logging.getLogger("tileprof.runtime.compile")
        logger.setLevel(logging.INFO)
        logger.addHandler(self.log)
        self._race_in_turn()
        self.row["compile_seconds"], self.row["error"], self.row["peak_mb"] = {}, {}, {}
        with torch.no_grad():
            exact = case.reference()
            self.restore()
            for variant in self.variants:
                begin = time.monotonic()
                try:
                    with reports() as result:
                        self.models[variant] = self.compiled(variant)
                        out = case.call(self.models[variant]).float()
                    out = out.clone()
                    if result:
                        self.row["predicted_us"] = expected(result)
                except Exception as error:
                    traceback.print_exc(file=sys.stdout)
                    self.row.setdefault("failures", {})[variant] = (
                        f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                    )
                    self.models.pop(variant, None)
                    continue
                finally:
                    self.restore()
                waited = getattr(self, "waited", 0.0) if variant == "tileprof" else 0.0
                self.row["compile_seconds"][variant] = round(time.monotonic() - begin - waited, 2)
                self.row["error"][variant] = float((out - exact).norm() / exact.norm())
                if self.device == "cuda":
                    self.row["peak_mb"][variant] = self.peak(self.models[variant])
            del exact, out
            self.wait()
            self.row["us"] = self.timed() if self.device == "cuda" else {}
        self.row["log"] = self.log.messages

    def compiled(self, variant: str) -> Any:
        torch, model = self.torch, self.case.model
        match variant:
            case "eager":
                return model
            case "inductor":
                return torch.compile(model)
            case "autotuned":
                return torch.compile(model, mode="max-autotune-no-cudagraphs")
        return torch.compile(model, backend="tileprof")

    def peak(self, model: Any) -> float:
        """Return the highest number of megabytes of PyTorch's allocator in a call after the first: weights, caches,
        copies, and what a program keeps and needs meanwhile.

        Variants before the last have kept nothing of their own; copies of what a call changes are not counted.
        """
        import gc

        gc.collect()
        self.torch._C._cuda_clearCublasWorkspaces()  # 32 MB per stream that cuBLAS has ever seen
        self.torch.cuda.synchronize()
        self.torch.cuda.reset_peak_memory_stats()
        self.case.call(model)
        self.torch.cuda.synchronize()
        own = sum(t.nbytes for t in self.saved)
        self.restore()
        return round((self.torch.cuda.max_memory_allocated() - own) / 1e6, 1)

    def restore(self) -> None:
        for tensor, saved in zip(self.case.changed, self.saved, strict=True):
            tensor.copy_(saved)

    def wait(self) -> None:
        """Wait for the turn, once."""
        if not self.turn:
            print("READY", flush=True)
            sys.stdin.readline()
            self.turn = True

    def _race_in_turn(self) -> None:
        """Make the backend's own race wait for the turn, since its times decide."""
        from tileprof.runtime.compile.racing import race

        plain = race.times_in_turn

        def in_turn(*args: Any) -> Any:
            begin = time.monotonic()
            self.wait()
            self.waited = getattr(self, "waited", 0.0) + time.monotonic() - begin
            return plain(*args)

        race.times_in_turn = in_turn

    def timed(self) -> dict[str, list[float]]:
        """Return median, shortest and longest time of the replays of each variant."""
        torch, side, graphs = self.torch, self.torch.cuda.Stream(), {}
        side.wait_stream(torch.cuda.current_stream())
        for variant, model in self.models.items():
            try:
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self.restore()
                        self.case.call(model)
                    self.restore()
                side.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side):
                    out = self.case.call(model)
                self.restore()
                graph.replay()
                torch.cuda.synchronize()
                graphs[variant] = graph, out
            except Exception as error:
                traceback.print_exc(file=sys.stdout)
                self.row.setdefault("failures", {})[variant] = f"in a graph: {str(error).splitlines()[0][:200]}"
        first = next((out for _, out in graphs.values()), None)
        self.row["off_eager_in_graph"] = {
            v: float((out.float() - first.float()).norm() / first.float().norm()) for v, (_, out) in graphs.items()
        }
        times: dict[str, list[float]] = {variant: [] for variant in graphs}
        for number in range(REPLAYS + WARM):
            for variant, (graph, _) in graphs.items():
                self.restore()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                if number >= WARM:
                    times[variant].append(1000 * begin.elapsed_time(end))
        return {v: [round(x, 1) for x in (median(t), min(t), max(t))] for v, t in times.items()}


# ---- what was measured, in words


def sentence(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"FAILED: {row['failed']}"
    times = ", ".join(f"{v} {t[0]:.1f}" for v, t in row.get("us", {}).items())
    errors = ", ".join(f"{v} {e:.1e}" for v, e in row["error"].items())
    seconds = ", ".join(f"{v} {s:g} s" for v, s in row["compile_seconds"].items())
    failures = "".join(f"; {v} failed: {why}" for v, why in row.get("failures", {}).items())
    return f"us: {times}; errors: {errors}; to compile: {seconds}{failures}"


def table(result: dict[str, Any]) -> list[str]:
    """Return a table in Markdown, microseconds, in the order of `model_cases`."""
    from model_cases import HELD_OUT, TABLE

    rows = {name: result["rows"][name] for name in (*TABLE, *HELD_OUT) if name in result["rows"]}
    has_autotuned = any("autotuned" in row.get("us", {}) for row in rows.values())
    heads = [
        "model",
        "eager",
        "Inductor",
        *(["max-autotune"] if has_autotuned else []),
        "tileprof",
        "predicted",
        "Inductor / tileprof",
        "error, Inductor's",
        "MB, Inductor's",
        "what ran",
    ]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, row in rows.items():
        times, errors = row.get("us", {}), row.get("error", {})
        cells = [f"{times[v][0]:.0f}" if v in times else "" for v in VARIANTS if v != "autotuned" or has_autotuned]
        ratio = f"{times['inductor'][0] / times['tileprof'][0]:.2f}" if {"inductor", "tileprof"} <= set(times) else ""
        off = f"{errors['tileprof']:.1e}, {errors['inductor']:.1e}" if {"inductor", "tileprof"} <= set(errors) else ""
        peaks = row.get("peak_mb", {})
        most = f"{peaks['tileprof']:.0f}, {peaks['inductor']:.0f}" if {"inductor", "tileprof"} <= set(peaks) else ""
        us = row.get("predicted_us")
        cells.append(f"{us:.0f}" if us and what_ran(row) not in ("", "Inductor") else "")
        lines.append(f"| {' | '.join([name, *cells, ratio, off, most, row.get('failed') or what_ran(row)])} |")
    return lines


def what_ran(row: dict[str, Any]) -> str:
    """Return which program the backend kept, by its log; logs before 2026-11-28 have "ours" for tileprof's program."""
    decisions = [line for line in row.get("log", ()) if line.startswith("whole program: ")]
    if decisions and (match := re.search(r"kept (?:tileprof's|ours) \((.*)\)$", decisions[-1])):
        return match[1]
    return "Inductor" if row.get("log") else ""


if __name__ == "__main__":
    main()
