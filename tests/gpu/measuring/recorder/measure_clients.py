"""Record the programs of `tests/golden/clients.py` and `held_out.py` on a GPU: ``measure_clients.py OUT [NAME ...]``.

Each is recorded by a process of its own, several at once. OUT gets, per program, ``NAME.launches.parquet``,
``NAME.pairs.parquet`` and the trace ``NAME.tileprof``. ``--join OUT FOLDER TIMES`` puts the tables of OUT into those of
`tests/golden/clients`, which `tests/benchmarks/model_recorder/bench_clients.py` compares with the model recorder. With
``--times`` the programs run one after the other in one process under PyTorch's profiler, alone on the GPU:
``NAME.times.json`` has the kernels of each with their grids and the median of their durations over `REPEATS` runs.

A profiled launch is that of the recording with the same kernel, grid and block (`durations`). The sequences differ
where the recorder changes what PyTorch launches, and where kernels on several streams begin in another order.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[4]))  # helpers of the tests, after the package

from tests.support.in_order import matched_in_order

ROOT = Path(__file__).resolve().parents[4]
GOLDEN = ROOT / "tests" / "golden"
LIMIT_S, AT_ONCE, REPEATS = 150, 10, 5
GRANULE, ARENA_BYTES = 4, 4 << 30
"""Bytes that count as one address, as the tables say.

With 32, neighbouring tiles of narrow types meet in pieces of which they share no byte.
"""
LAUNCHES = ["op", "kernel", "tiles", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "coverage"]
PAIRS = ["producer", "consumer", "pattern"]
MOST_LOST, LEAST_KNOWN = 0.01, 0.9
"""A program has durations if at most this part of the profiled time belongs to launches that were not recorded, and at
least this part of the recorded launches were profiled.
"""


def programs():
    """Return names and scripts, the slowest first."""
    lists = [*sorted(GOLDEN.glob("held_out*.json")), *sorted(GOLDEN.glob("development*.json"))]
    entries = [e for path in lists for e in json.loads(path.read_text())]
    held_out = [e["name"] for e in sorted(entries, key=lambda e: e["reserve"])]
    clients = (
        "triton_products", "faster_rcnn", "t5_step", "static_decode", "flex_attention", "mamba", "whisper", "qwen3_moe",
        "convnext", "mixer", "unet", "gcn", "gat",
    )  # fmt: skip
    return dict.fromkeys(clients, "clients.py") | dict.fromkeys(held_out, "held_out.py")


def one(name, script, out):
    """Record a program. Return its launches and true pairs."""
    from tileprof.analysis import build_graph
    from tileprof.record import Options
    from tileprof.record.cuda import recording
    from tileprof.record.cuda.settings import Settings
    from tileprof.trace import load

    path = out / f"{name}.tileprof"
    program = (sys.executable, str(GOLDEN / script), name)
    settings = Settings(passes=("accesses",), capture_only=True, granule=GRANULE, arena_bytes=ARENA_BYTES)
    began = time.monotonic()
    code = recording.record(Options(program=program, output=path, force=True), settings)
    record_s = time.monotonic() - began
    save(out, name, build_graph(load(path)))
    sys.stdout.write(f"{name}: exit {code}, recorded in {record_s:.0f} s, {time.monotonic() - began:.0f} s in all\n")


def save(out, name, graph):
    """Write the part of a graph that the comparison needs."""
    launches = graph.launches
    launches = launches[[c for c in LAUNCHES if c in launches]].assign(granule=GRANULE)
    launches.to_parquet(out / f"{name}.launches.parquet", compression="zstd")
    pairs = graph.pairs
    pairs[~pairs.reuse_only][PAIRS].to_parquet(out / f"{name}.pairs.parquet", compression="zstd")


def record_all(out, names):
    """Record the programs, several at once, and print one line for each."""

    def start(item):
        name, script = item
        log = out / f"{name}.log"
        with log.open("w") as file:
            command = (sys.executable, __file__, "--one", name, script, str(out))
            try:
                subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                file.write(f"{name}: cut after {LIMIT_S} s\n")
        lines = log.read_text().strip().splitlines()
        sys.stdout.write(f"{lines[-1][:180] if lines else name + ': nothing'}\n")
        sys.stdout.flush()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(start, names.items()))


def times(out, names):
    """Run programs under PyTorch's profiler. Return kernels, grids and durations of each."""
    import torch

    sys.path.insert(0, str(GOLDEN))
    sys.argv = ["clients.py", "clients", "cuda"]
    import clients
    import held_out

    makers = {f.__name__: f for f in clients.NAMES}
    makers |= {e["name"]: held_out.program(e) for e in held_out.entries()}
    compiled = {"triton_products", "flex_attention", "static_decode"}
    for name in sorted(names, key=lambda n: n in compiled):
        began = time.monotonic()
        try:
            with torch.set_grad_enabled(name.endswith("_step")):
                run = clients.make(makers[name])
                rows = profile_of(torch, run, out)
            (out / f"{name}.times.json").write_text(json.dumps(rows))
            total = sum(r["us"] for r in rows)
            sentence = f"{len(rows)} kernels, {total:.1f} us"
        except Exception:
            sentence = traceback.format_exc()[-300:]
        sys.stdout.write(f"{name}: {sentence}, {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()


def profile_of(torch, run, out):
    """Return the kernels, copies and memsets of a run, in order of their start, each with the median of its
    durations.
    """
    from torch.profiler import ProfilerActivity, profile

    run()
    traces = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
        path = Path(tempfile.mkdtemp(dir=out)) / "t.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        path.unlink()
        path.parent.rmdir()
        kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
        traces.append(sorted((e for e in events if e.get("cat") in kinds), key=lambda e: e["ts"]))
    usual = statistics.mode(len(t) for t in traces)
    traces = [numbered(t) for t in traces if len(t) == usual]
    rows = []
    for key, event in traces[0].items():
        about = event["args"]
        rows.append({
            "kernel": event["name"], "grid": about.get("grid"), "block": about.get("block"),
            "registers": about.get("registers per thread"), "bytes": about.get("bytes"),
            "us": statistics.median(t[key]["dur"] for t in traces if key in t),
        })  # fmt: skip
    return rows


def numbered(events):
    """Return events by name, grid, and how many alike were before: on several streams the order changes."""
    before, keys = defaultdict(int), {}
    for event in events:
        key = event["name"], str(event["args"].get("grid"))
        keys[*key, before[key]] = event
        before[key] += 1
    return keys


def join(out, folder, timed):
    """Write one table of launches, with durations from the folder ``timed``, and one of pairs. Programs not in ``out``
    stay, and so do durations that ``timed`` lacks, if the launches are the same.
    """
    import pandas as pd

    for kind in ("launches", "pairs"):
        frames = {p.name.removesuffix(f".{kind}.parquet"): pd.read_parquet(p) for p in sorted(out.glob(f"*.{kind}.p*"))}
        path = folder / f"{kind}.parquet"
        before = dict(iter(pd.read_parquet(path).groupby("program"))) if path.exists() else {}
        if kind == "launches":
            for name, launches in frames.items():
                launches["duration_ns"] = durations(launches, timed / f"{name}.times.json")
                earlier = before.get(name)
                if launches.duration_ns.isna().all() and earlier is not None and alike(launches, earlier):
                    launches["duration_ns"] = earlier.duration_ns.to_numpy()
        frames = {name: rows.drop(columns="program") for name, rows in before.items()} | frames
        table = pd.concat(frames, names=["program"]).reset_index(level=0).reset_index(drop=True)
        table.to_parquet(path, compression="zstd", index=False)


def alike(launches, others):
    """Whether two recordings of a program have the same kernels with the same grids."""
    columns = ["kernel", "grid_x", "grid_y", "grid_z"]
    return launches[columns].astype(str).to_numpy().tolist() == others[columns].astype(str).to_numpy().tolist()


def durations(launches, path):
    """Return the nanoseconds of each launch; NaN for one that was not profiled, and for all of a program whose
    profile is that of other launches (`MOST_LOST`, `LEAST_KNOWN`).
    """
    rows = json.loads(path.read_text()) if path.exists() else []
    return of_profile(launches, rows)


def of_profile(launches, rows):
    """Return the same of profiled ``rows``: as many as can be matched in order, then what is left in any order."""
    ns = np.full(len(launches), np.nan)
    grids = launches[["grid_x", "grid_y", "grid_z"]].to_numpy(int).tolist()
    blocks = launches[["block_x", "block_y", "block_z"]].to_numpy(int).tolist()
    keys = [key(*of) for of in zip(launches.kernel, grids, blocks, strict=True)]
    profiled = [key(r["kernel"], r["grid"], r["block"]) for r in rows]
    numbers = {k: n for n, k in enumerate(dict.fromkeys(keys + profiled))}
    mine, theirs = (np.array([numbers[k] for k in some], int) for some in (keys, profiled))
    match = dict(matched_in_order((mine[:, None] == theirs).astype(np.int64)))
    rest = defaultdict(list)
    for j in sorted(set(range(len(rows))) - set(match.values()), reverse=True):
        rest[profiled[j]].append(j)
    match |= {i: rest[k].pop() for i, k in enumerate(keys) if i not in match and rest[k]}
    for i, j in match.items():
        ns[i] = rows[j]["us"] * 1000
    total = sum(r["us"] for r in rows) * 1000
    known = rows and np.nansum(ns) >= (1 - MOST_LOST) * total and len(match) >= LEAST_KNOWN * len(launches)
    return ns.tolist() if known else [float("nan")] * len(launches)


def key(kernel, grid, block):
    """Return what a launch is known by; the driver's copies and fills have no grid in a profile."""
    words = kernel.lower().replace(" to ", "to").split()
    if words[0] == "memset":
        return words[0]
    if words[0] == "memcpy":  # "memcpy device to host", "Memcpy DtoH (Device -> Pinned)"
        return words[0], {"devicetodevice": "dtod", "devicetohost": "dtoh", "hosttodevice": "htod"}.get(
            words[1], words[1]
        )
    return kernel, tuple(grid), tuple(block)


def main(*words):
    if words[0] == "--one":
        one(words[1], words[2], Path(words[3]))
        return
    if words[0] == "--join":
        join(*map(Path, words[1:4]))
        return
    timed = words[0] == "--times"
    out, *wishes = words[timed:]
    Path(out).mkdir(parents=True, exist_ok=True)
    scripts = programs()
    chosen = {name: scripts[name] for name in wishes or scripts}
    (times if timed else record_all)(Path(out), chosen)


if __name__ == "__main__":
    main(*sys.argv[1:])
