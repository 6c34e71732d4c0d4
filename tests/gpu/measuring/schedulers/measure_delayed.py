"""On a GPU: every scheduler of the runtime, and the examples with schedulers of their own, under random delays: in how
many of 1,000 runs some bit differs from stream order.

python tests/gpu/measuring/schedulers/measure_delayed.py OUT.json [--runs 1000] [--budget 180] [--jobs 8] [--examples 2]
    [--only KIND,…] [--names NAME …] [--built DIR] [--chunk 250]

Kinds of cases: ``synchronised`` (chains of Triton's kernels under `SYNCHRONISED`), ``persistent`` (chains of the
persistent kernel under `PERSISTENT`), ``bloom`` (blocks by the exact graph, ``dataflow``, and behind Bloom filters,
``dataflow-bloom``) and ``spawn`` (programs whose threads launch child grids, under each rule for launches; ``flat``,
whose result the others must have, runs once per process). Each case is a process. No times are measured: chains run
``--jobs`` at a time, and other work may run beside. The examples wait for the GPU between many short kernels, which
takes long where several processes share it; they come last, ``--examples`` at a time. Those that ``--built`` holds are
not compiled again. A row is written when it is known; runs of a process that have not ended after `CHUNK_S` are an
error; nothing begins after ``--budget`` seconds, and what still runs ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
SOURCES, INCLUDE = ROOT / "tileprof/examples/cuda", ROOT / "tileprof/runtime/include"
DELAYS = Path(__file__).with_name("delays.cuh")
SYNCHRONISED = ("graph", "pdl", "streams", "cusync", "cusync-streams", "hooks")
PERSISTENT = ("persistent", "persistent-pdl", "persistent-dynamic", "ccks", "ccks-ready", "ccks-overwrite")
RULES = ("flat", "always", "threshold", "spawn", "warp")
MODES = {"kernels": "stream", "exact": "dataflow", "filters": "dataflow-bloom"}
SCALE, COSTS, STEPS = 6, (2000, 100), 32
"""Options of the programs with child grids: costs of a launch in ns with which controllers decide both ways, and the
most steps per point of Mandelbrot's set, which flat does one after the other.
"""
CHUNK_S = 60
"""Seconds after which the runs of a process count as hanging."""
BLOOMS = tuple((seed, bits) for bits in (512, 2048) for seed in (1, 2))
LIMIT_MS = 20_000
"""Time limit of a wait behind filters; other processes use the GPU too."""


def rows_of(kind: str, name: str, runs: int, chunk: int, program: Path | None) -> Iterator[dict[str, Any]]:
    """Yield rows: scheduler, runs, and how many differ. ``chunk``: runs per process of an example, so that an
    interruption keeps some.
    """
    if kind in {"synchronised", "persistent"}:
        yield from replayed(kind, name, runs)
        return
    assert program is not None
    totals: dict[str, dict[str, Any]] = {}
    for first_run in range(0, runs, chunk):
        count = min(chunk, runs - first_run)
        if kind == "spawn":
            words = ["--costs={},{}".format(*COSTS), "--no-search", "--flat-once", str(count - 1), str(SCALE)]
            words += ["16", "32", "1024", name]
        else:
            words = ["2", name.split()[1], str(LIMIT_MS), "24", "192", str(count)]
        try:
            result = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=CHUNK_S)
        except subprocess.TimeoutExpired as late:
            yield {"scheduler": "all", "error": f"{count} runs after {first_run} did not end in {late.timeout} s"}
            return
        lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        row_by_scheduler = spawn_rows(lines) if kind == "spawn" else bloom_rows(lines)
        if not row_by_scheduler:
            yield {"scheduler": "all", "error": (result.stdout + result.stderr)[-400:], "rc": result.returncode}
            return
        for scheduler, row in row_by_scheduler.items():
            total = totals.setdefault(scheduler, dict.fromkeys(row, 0))
            for key, number in row.items():
                total[key] += number
            yield {"scheduler": scheduler, **total}


def spawn_rows(lines: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return, by rule: runs, those that differ from the first flat one (all, if that is wrong), and launched
    children.
    """
    return {
        rule: {
            "runs": len(launched := line["all"][f"{rule}_launched"]),
            "wrong": len(launched) if "flat:" in line["said"] else line["differing"][rule],
            "launched": sum(launched),
        }
        for line in lines
        if "differing" in line
        for rule in RULES
    }


def bloom_rows(lines: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return, by scheduler: runs, those with other memory, a missed dependency or a late wait, and the number of
    queries.
    """
    last = {line["mode"]: line for line in lines if "mode" in line}
    return {MODES[mode]: {key: line[key] for key in ("runs", "wrong", "asked", "found")} for mode, line in last.items()}


def replayed(kind: str, name: str, runs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each scheduler of the runtime."""
    sys.path += [str(ROOT), str(ROOT / "tests/gpu/runtime/chains"), str(Path(__file__).parent)]
    import replays

    policy = chains(kind)[name].policy()
    schedulers, order = (SYNCHRONISED, "stream") if kind == "synchronised" else (PERSISTENT, "persistent-stages")
    for schedule in schedulers:
        for ahead in (False, True) if schedule == "cusync" else (False,):
            text = f"{schedule}, operands ahead" if ahead else schedule
            try:
                wrong = replays.wrong_replays(policy, replays=runs, schedule=schedule, order=order, ahead=ahead)
                yield {"scheduler": text, "runs": runs, "wrong": wrong}
            except Exception as error:  # the results of the others still count
                yield {"scheduler": text, "error": f"{type(error).__name__}: {error}"[:400]}


def chains(kind: str) -> dict[str, Any]:
    """Return the chains of a kind by name."""
    if kind == "synchronised":
        from tests.gpu.runtime.chains.synchronised_chains import CHAINS

        return CHAINS
    from measure_dealers import RIGHT

    return RIGHT


def cases(only: list[str]) -> list[tuple[str, str]]:
    """Return kinds and names."""
    sys.path += [str(ROOT), str(Path(__file__).parent)]
    lists = {
        "synchronised": list(chains("synchronised")),
        "persistent": list(chains("persistent")),
        "bloom": [f"program {seed}, {bits} bits" for seed, bits in BLOOMS],
        "spawn": spawn_names(),
    }
    return [(kind, name) for kind in lists if kind in only for name in lists[kind]]


def spawn_names() -> list[str]:
    """Return programs with child grids, the longest last."""
    return [
        "join", "join-gaussian", "bezier", "regular-expressions", "bfs", "bfs-citation", "sssp", "sssp-citation",
        "mandelbrot", "quick-sort", "mandelbrot-nested", "amr", "amr-nested", "colouring-citation", "colouring",
    ]  # fmt: skip


def built(folder: Path, only: list[str]) -> dict[str, Path]:
    """Compile the examples with delays that the folder lacks. Return their programs by name of a case's program."""
    common = ["nvcc", "-O3", "-std=c++17", "-arch=sm_90", "-include", DELAYS, f"-I{INCLUDE}"]
    commands = {}
    if "spawn" in only:
        flags = ["-rdc=true", f"-DSPAWN_MOST_STEPS={STEPS}"]
        commands["spawn"] = [*common, *flags, SOURCES / "spawn/program.cu", "-lcudadevrt"]
    if "bloom" in only:
        commands |= {f"{bits} bits": [*common, f"-DBLOOM_BITS={bits}", SOURCES / "bloom.cu"] for _, bits in BLOOMS}
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(subprocess.run, [*command, "-o", folder / name], check=True, capture_output=True)
                for name, command in commands.items() if not (folder / name).exists()]  # fmt: skip
        for job in jobs:
            job.result()
    return {name: folder / name for name in commands}


def compile_chains(names: list[str] | None) -> None:
    """Compile the persistent kernel for all chains, or those with ``names``, several at a time."""
    sys.path += [str(ROOT), str(ROOT / "tests/gpu/runtime/chains"), str(Path(__file__).parent)]
    from measure_dealers import SMS
    from replays import DELAY_NS

    from tileprof.runtime.persistent.cost import clusters_on
    from tileprof.runtime.persistent.dealing import Dealer
    from tileprof.runtime.persistent.persistent_build import compiled
    from tileprof.runtime.persistent.source import Options
    from tileprof.runtime.persistent.task_lists import plan_of, plans_by_stage

    clusters, kernels = clusters_on(SMS), []
    for chain in (chain for name, chain in chains("persistent").items() if not names or name in names):
        plans = {cuts: plan_of(chain.policy(), chain, clusters=clusters, cuts=cuts) for cuts in (True, False)}
        stages = plans_by_stage(plans[True], clusters(plans[True].split))
        kernels += [(part, Options(programmatic=on, delay_ns=on * DELAY_NS)) for part in stages for on in (False, True)]
        kernels += [
            (plans[dealer is Dealer.LISTS], Options(dealer=dealer, claims=claims, delay_ns=DELAY_NS))
            for dealer in Dealer
            for claims in (False, True)
            if dealer is Dealer.PILOT or not claims
        ]
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda kernel: compiled(*kernel), kernels):
            pass


def device_name() -> str:
    """Return the GPU and its driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def program_of(kind: str, name: str, programs: dict[str, Path]) -> Path | None:
    """Return the program of a case, if it has one."""
    return programs.get("spawn" if kind == "spawn" else name.partition(", ")[2])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=180)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--examples", type=int, default=2)
    parser.add_argument("--only", default="spawn,bloom,persistent,synchronised")
    parser.add_argument("--names", nargs="+", help="of the cases, those alone")
    parser.add_argument("--chunk", type=int, default=250, help="runs per process of an example")
    parser.add_argument("--built", type=Path, help="folder for the compiled examples, kept")
    parser.add_argument("--case", nargs=3, help="one case in this process: kind, name, program")
    options = parser.parse_args()
    if options.case:
        kind, name, program = options.case
        for row in rows_of(kind, name, options.runs, options.chunk, Path(program) if program else None):
            print(json.dumps(row), flush=True)
        return
    start_s, lock = time.time(), threading.Lock()
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}

    def run(kind: str, name: str, program: Path | None) -> None:
        left_s = start_s + options.budget - time.time()
        if left_s < 5:
            return
        command = [sys.executable, __file__, options.output, "--runs", str(options.runs), "--chunk", str(options.chunk)]
        command += ["--case", kind, name, str(program or "")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            timer = threading.Timer(left_s, os.killpg, (process.pid, signal.SIGKILL))
            timer.start()
            for line in process.stdout or ():
                row = {"kind": kind, "case": name, **json.loads(line)}
                with lock:
                    rows[kind, name, row["scheduler"]] = row
                    print(f"{time.time() - start_s:.0f} s", row, flush=True)
                    options.output.write_text(json.dumps({"device": device, "rows": [*rows.values()]}, indent=1))
            timer.cancel()

    only = options.only.split(",")
    all_cases = [case for case in cases(only) if not options.names or case[1] in options.names]
    device = device_name()
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(options.jobs) as pool,
        ThreadPoolExecutor(options.examples) as few,
    ):
        building = pool.submit(built, options.built or Path(folder), only)
        if "persistent" in only:
            compiling = pool.submit(compile_chains, options.names)
        jobs = [pool.submit(run, kind, name, None) for kind, name in all_cases if kind == "synchronised"]
        if "persistent" in only:
            compiling.result()
        jobs += [pool.submit(run, kind, name, None) for kind, name in all_cases if kind == "persistent"]
        for job in jobs:
            job.result()
        programs = building.result()
        print(f"chains done after {time.time() - start_s:.0f} s", flush=True)
        jobs = [few.submit(run, kind, name, program_of(kind, name, programs)) for kind, name in all_cases
                if kind in {"spawn", "bloom"}]  # fmt: skip
        for job in jobs:
            job.result()
    complete_rows = [row for row in rows.values() if "wrong" in row]
    run_count, wrong_count = (sum(row[key] for row in complete_rows) for key in ("runs", "wrong"))
    errors = sum("error" in row for row in rows.values())
    print(f"{len(complete_rows)} rows, {run_count:,} runs, wrong: {wrong_count}, errors: {errors}")


if __name__ == "__main__":
    main()
