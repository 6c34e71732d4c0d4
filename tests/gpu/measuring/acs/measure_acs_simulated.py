"""What `tileprof simulate` needs to predict a step under ACS, and what the step takes there.

    python tests/gpu/measuring/acs/measure_acs_simulated.py OUT [--budget S] [--only N,…] [--phase record|time]

Footprint tables are recorded side by side (``record``, which may run beside other work). Then each program runs in
stream order and with ACS, ``ROUNDS`` times each (``time``, alone on the machine); all processes of a round start first,
then one at a time measures. ``OUT`` gets ``rows.json`` (times of a step, its kernels, when they ran under ACS, costs of
launches, gaps inside graphs) and a ``.tar.xz`` for each program, with its recording and its table. Run it again to go
on: tables and rows that are there are not made again, and what has not ended after ``--budget`` seconds is done again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import traceback
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from acs_step import kernels

from tileprof.cli.running.run_acs import record_table
from tileprof.runtime import acs
from tileprof.runtime.acs import costs

STEP = Path(__file__).parent / "acs_step.py"
ROUNDS = 2
PROGRAMS = (
    "inception --graph --keep",
    "inception --kind nasnet --graph --keep",
    "tree_lstm --graph --keep",
    "inception --graph",
    "inception --kind nasnet --graph",
    "tree_lstm --graph",
    "inception --size 28 --graph --keep",
    "tree_lstm --leaves 16 --graph --keep",
    "cloth",
    "moe",
    "dynamic --kind gated",
    "dynamic --kind exits",
    "gpt2",
    "acs_models googlenet --graph --keep",
    "acs_models inception_v3 --graph --keep",
    "acs_models nasnetalarge --graph --keep",
    "acs_models hrnet --graph --keep",
    "acs_models clip --graph --keep",
    "acs_models hetero --graph --keep",
)
"""The first six programs were examined while the simulator was corrected; the others were not.

GoogLeNet and the last three were chosen on 2026-11-28, before anything of them was recorded or measured.
"""
LEAST_S = 10
"""Seconds that must remain for a round to begin."""
LANES, DEPTH, CYCLES = 8, 40, 6000
"""Graphs whose gaps are measured: branches, kernels on each, length of a kernel."""


def graph_gaps() -> dict[str, float]:
    """Return microseconds from a kernel's end to the next one's start inside graphs: of one branch, of several
    independent branches, and of several of which each kernel waits for the one before it on the next branch as well.
    """

    def time_us(lanes: int, *, crossed: bool, cycles: int) -> float:
        own = torch.cuda.Stream()
        streams = [torch.cuda.Stream() for _ in range(lanes)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=own):
            for stream in streams:
                stream.wait_stream(own)
            events: list[Any] = [None] * lanes
            for _ in range(DEPTH):
                result = []
                for lane, stream in enumerate(streams):
                    if crossed and events[(lane + 1) % lanes] is not None:
                        stream.wait_event(events[(lane + 1) % lanes])
                    with torch.cuda.stream(stream):
                        torch.cuda._sleep(cycles)
                    result.append(stream.record_event())
                events = result
            for stream in streams:
                own.wait_stream(stream)
        times = []
        for _ in range(12):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(10):
                graph.replay()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / 10 * 1e6)
        return statistics.median(times)

    kernel = statistics.median(row["us"] for row in kernels(lambda: torch.cuda._sleep(CYCLES)))
    actual = {"kernel": float(kernel)}
    for name, lanes, crossed in (
        ("one", 1, False), ("two", 2, False), ("several", LANES, False), ("two crossed", 2, True),
        ("several crossed", LANES, True),
    ):  # fmt: skip
        each = time_us(lanes, crossed=crossed, cycles=CYCLES)
        actual[f"{name}: replay"], actual[f"{name}: per kernel"] = each, each / DEPTH
    return actual


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically, so that an interrupted run leaves no half."""
    half = path.with_suffix(".half")
    half.write_text(text)
    half.replace(path)


def name_of(words: str) -> str:
    """Return a folder for a program."""
    return words.replace(" --", "-").replace(" ", "_")


def tabulate(words: str, place: Path) -> str:
    """Record a program and keep its table; in a process of its own, since the recorder changes its variables."""
    begin = time.monotonic()
    if (place / "table").exists() and (place / "recorded.tileprof").exists():
        return f"{words}: its table is there"
    shutil.rmtree(place, ignore_errors=True)  # of an interrupted run
    place.mkdir(parents=True)
    try:
        table = record_table((sys.executable, str(STEP), "--warm", "1", "--", *words.split()), place, acs.build())
    except Exception:
        return f"{words}: no table\n{traceback.format_exc()[-1500:]}"
    table.write(place / "table.half")
    (place / "table.half").replace(place / "table")
    loss_count = sum(table.without.values())
    return f"{words}: {table.launches} launches known, {loss_count} not, {time.monotonic() - begin:.0f} s"


def record(chosen: list[str], folder: Path, out: Path) -> None:
    """Record programs side by side; each archive is written as soon as its table exists."""
    with ProcessPoolExecutor(len(chosen), mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(tabulate, words, folder / name_of(words)): words for words in chosen}
        for job in as_completed(jobs):
            print(job.result(), flush=True)
            words = jobs[job]
            archive = out / f"{name_of(words)}.tar.xz"
            if archive.exists() or not (folder / name_of(words) / "table").exists():
                continue
            half = archive.with_suffix(".half")
            with tarfile.open(half, "w:xz", preset=1) as tar:
                for folder_name in ("recorded.tileprof", "table"):
                    tar.add(folder / name_of(words) / folder_name, f"{name_of(words)}/{folder_name}")
            half.replace(archive)


def ready_of(place: Path, mode: str, number: int) -> Path:
    """Return the file that a process makes when it is warm."""
    return place / f"{mode}-{number}" / "ready"


def measured(words: str, place: Path, mode: str, number: int, library: Path, limit: float) -> dict[str, Any]:
    """Run a program in stream order (``plain``; the first run also names its kernels) or with ACS."""
    own = place / f"{mode}-{number}"
    own.mkdir(parents=True, exist_ok=True)
    variables = {}
    if mode != "plain":
        kind: acs.Mode = "graph" if mode == "graph" else "streams"
        threads = int(mode in {"thread", "graph"})
        variables = acs.environment(library, acs.Settings(kind, own, place / "table", threads=threads))
    ready = ready_of(place, mode, number)
    ready.unlink(missing_ok=True)
    command = [sys.executable, str(STEP), "--lock", str(place.parent / "lock"), "--ready", str(ready)]
    command += ["--rounds", "9", "--each", "20"]
    if number == 0:
        command += ["--kernels" if mode == "plain" else "--timeline", str(own / "kernels.json")]
    try:
        result = subprocess.run(
            [*command, "--", *words.split()],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"program": words, "mode": mode, "number": number, "us": None, "said": "no end"}
    match = re.search(r"step: ([0-9.]+) us", result.stderr)
    counts = acs.results(own)
    kernels = own / "kernels.json"
    return {
        "program": words,
        "mode": mode,
        "number": number,
        "us": float(match[1]) if match else None,
        "said": result.stdout.strip()[:80] if result.returncode == 0 else result.stderr[-600:],
        "counts": counts[0] if counts else {},
        "kernels" if mode == "plain" else "timeline": json.loads(kernels.read_text()) if kernels.exists() else [],
    }


def main() -> None:
    """Record, measure, and write the results after each step."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=200)
    parser.add_argument("--only", help="numbers of programs, such as 0,3")
    parser.add_argument("--phase", choices=("record", "time"), help="this one alone; OUT is where the other one ran")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    values = parser.parse_args()
    begin = time.monotonic()
    library = acs.build()
    values.out.mkdir(parents=True, exist_ok=True)
    folder = values.out.resolve() / "acs"
    selected_programs = [PROGRAMS[int(n)] for n in values.only.split(",")] if values.only else list(PROGRAMS)
    path = values.out / "rows.json"
    actual: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}

    def keep() -> None:
        write_whole(path, json.dumps(actual))

    if values.phase != "time":
        record(selected_programs, folder, values.out)
        print(f"tables after {time.monotonic() - begin:.0f} s", flush=True)
    if values.phase == "record":
        return
    actual |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    if "costs, ns" not in actual:
        actual["graph gaps, us"] = graph_gaps()
        actual["costs, ns"] = costs.measure()
    print(json.dumps({k: actual[k] for k in ("graph gaps, us", "costs, ns")}, indent=1), flush=True)
    keep()
    with_tables = [words for words in selected_programs if (folder / name_of(words) / "table").exists()]
    for number in range(values.rounds):
        actual["rows"] = [row for row in actual["rows"] if row["us"] is not None]
        done = {(row["program"], row["mode"], row["number"]) for row in actual["rows"]}
        left_s = values.budget - (time.monotonic() - begin)
        jobs = [
            (words, folder / name_of(words), mode, number)
            for words in with_tables
            for mode in ("plain", "streams", *(() if "--graph" in words else ("thread", "graph")))
            if (words, mode, number) not in done
        ]
        if not jobs or left_s < LEAST_S:
            continue
        with ThreadPoolExecutor(len(jobs)) as pool:
            with (folder / "lock").open("a") as gate:  # until all are warm: then one measures while the others sleep
                fcntl.flock(gate, fcntl.LOCK_EX)
                running = [pool.submit(measured, *job, library, left_s) for job in jobs]
                ends = time.monotonic() + left_s / 2
                while time.monotonic() < ends and not all(
                    done.done() or ready_of(place, mode, number).exists()
                    for done, (_, place, mode, _) in zip(running, jobs, strict=True)
                ):
                    time.sleep(0.05)
            for done in as_completed(running):
                row = done.result()
                actual["rows"].append(row)
                keep()
                brief = {k: v for k, v in row.get("counts", {}).items() if v and not isinstance(v, dict | list)}
                print(f"{row['program']:55s} {row['mode']:8s} {row['us']} us  {row['said'][:16]} {brief}", flush=True)
    print(f"ended after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
