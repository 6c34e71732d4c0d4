"""Programs that issue their launches themselves, under ACS with a thread that issues, each alone on the machine.

    python tests/gpu/measuring/measure_acs_eager.py OUT [--phase record|time] [--only N,…] [--modes plain,thread,graph]
        [--pairs N]

Tables are recorded side by side (``record``). Processes of all programs and modes then start, and when all of them are
warm, one after another measures its steps while the others sleep; that is done ``--pairs`` times (``time``).
``OUT/eager.json`` gets a row for each as soon as it has measured. Run it again to go on: tables and rows that are there
are not made again, and what has not ended after ``--seconds`` is killed and done again then. Programs from number 9 on
are some of the first ones as frozen TorchScript and from AOTInductor.
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
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from measure_acs_simulated import STEP, name_of, write_whole

from tileprof import examples
from tileprof.cli.running.run_acs import record_table
from tileprof.runtime import acs

PROGRAMS = (
    "cloth",
    "tree_lstm",
    "inception",
    "inception --kind nasnet",
    "dynamic --kind gated",
    "dynamic --kind exits",
    "moe",
    "gpt2",
    "islands",
)
"""The last one is a program of CUDA alone."""
SHIPPED = tuple(
    f"acs_shipped {name}-{kind}.package {name} --kind {kind}"
    for kind in ("script", "inductor")
    for name in ("inception", "nasnet", "tree_lstm")
)
"""Each makes its package at its first run."""
ISLANDS = Path(examples.__file__).parent / "cuda" / "islands.cu"
START_S = 90
"""Until all processes of a turn have to be warm."""
ROUNDS, EACH = 11, 8
"""As many steps in every run: the result of a simulation depends on their number."""


def command(words: str, folder: Path, *step: str) -> tuple[str, ...]:
    """A program, with options of `acs_step.py` where it is one of Python's."""
    if words == "islands":
        return str(folder / "islands-program"), "300"
    module, *rest = words.split()
    rest = [str(folder / word) if word.endswith(".package") else word for word in rest]
    return (sys.executable, str(STEP), *step, "--", module, *rest)


def tabulate(words: str, folder: Path) -> str:
    """Make what the program needs, record it and keep its table; in a process of its own, whose variables change."""
    begin, place = time.monotonic(), folder / name_of(words)
    place.mkdir(parents=True, exist_ok=True)
    if (place / "table").exists():
        return f"{words}: its table is there"
    shutil.rmtree(place)  # of a run that was ended
    place.mkdir()
    try:
        if words == "islands":
            program = folder / "islands-program"
            subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", str(ISLANDS), "-o", str(program)], check=True)
            recorded_command: tuple[str, ...] = (str(program), "4")
        else:
            recorded_command = command(words, folder, "--each", "1")
        if ".package" in words:  # made by a plain run
            subprocess.run(recorded_command, check=True, capture_output=True)
        table_s = time.monotonic() - begin
        table = record_table(recorded_command, place, acs.build())
    except Exception:
        return f"{words}: no table\n{traceback.format_exc()[-1500:]}"
    table.write(place / "table.half")
    (place / "table.half").replace(place / "table")
    loss_count = sum(table.without.values())
    took = time.monotonic() - begin
    return (
        f"{words}: {table.launches} launches known, {loss_count} not, {took:.0f} s, {table_s:.0f} s of them to make it"
    )


def settings(words: str, mode: str, folder: Path, pair: int) -> acs.Settings | None:
    """How the library is told to run a program; None in stream order."""
    if mode == "plain":
        return None
    own = folder / name_of(words) / f"{mode}-{pair}"
    own.mkdir(parents=True, exist_ok=True)
    kind: acs.Mode = "graph" if mode == "graph" else "streams"
    return acs.Settings(kind, own, folder / name_of(words) / "table", threads=int(mode != "streams"))


def turn(jobs: list[tuple[str, str]], pair: int, folder: Path, library: Path, limit: float) -> Iterator[dict[str, Any]]:
    """Start all jobs (program, mode), let them measure one after another when all are warm, and yield each one's row;
    what has not ended at ``limit`` (`time.monotonic`) is killed.
    """
    lock, running = folder / "lock", []
    with lock.open("a") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        for number, (words, mode) in enumerate(jobs):
            chosen = settings(words, mode, folder, pair)
            variables = acs.environment(library, chosen) if chosen else {}
            ready = folder / f"ready-{pair}-{number}"
            ready.unlink(missing_ok=True)
            step = ["--lock", str(lock), "--ready", str(ready), "--rounds", str(ROUNDS), "--each", str(EACH)]
            if mode == "plain" and pair == 0:
                step += ["--kernels", str(kernels_of(words, folder))]
            if words == "islands":
                continue
            process = subprocess.Popen(
                command(words, folder, *step),
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.append((words, mode, chosen, process, ready))
        ends = min(time.monotonic() + START_S, limit)
        while time.monotonic() < ends and any(p.poll() is None and not r.exists() for *_, p, r in running):
            time.sleep(0.05)
    for words, mode, chosen, process, _ in running:
        try:
            output, errors = process.communicate(timeout=max(0.1, min(START_S, limit - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        yield row(words, mode, pair, chosen, (process.returncode, output, errors))
    for words, mode in jobs:
        if words != "islands" or time.monotonic() > limit:
            continue
        chosen = settings(words, mode, folder, pair)
        try:
            result = subprocess.run(
                command(words, folder),
                env={**os.environ, **(acs.environment(library, chosen) if chosen else {})},
                capture_output=True,
                text=True,
                check=False,
                timeout=max(0.1, min(START_S, limit - time.monotonic())),
            )
        except subprocess.TimeoutExpired:
            continue
        yield row(words, mode, pair, chosen, (result.returncode, result.stdout, result.stderr))


def left(jobs: list[tuple[str, str]], pair: int, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Jobs of a pair that have not measured yet."""
    done = {(r["program"], r["mode"]) for r in rows if r["pair"] == pair and r["us"] is not None}
    return [job for job in jobs if job not in done]


def row(words: str, mode: str, pair: int, chosen: acs.Settings | None, outcome: tuple[int, str, str]) -> dict[str, Any]:
    """Return what a run of a program said, and what the library counted."""
    code, output, errors = outcome
    match = re.search(r": ([0-9.]+) us per step", errors)
    issue = re.search(r"([0-9.]+) us to issue", errors)
    counts = acs.results(chosen.folder) if chosen else []
    return {
        "program": words,
        "mode": mode,
        "pair": pair,
        "code": code,
        "us": float(match[1]) if match and code == 0 else None,
        "issue_us": float(issue[1]) if issue and code == 0 else None,
        "said": output.strip()[:64] if code == 0 else errors[-600:],
        "counts": {k: v for k, v in counts[0].items() if k != "unknown_at"} if counts else {},
    }


def kernels_of(words: str, folder: Path) -> Path:
    """Where the kernels of a step are kept, as they are in stream order."""
    return folder / name_of(words) / "kernels.json"


def table(rows: list[dict[str, Any]], modes: list[str]) -> str:
    """Medians of a step's time, gains by pair, and geometric means of the medians' gains."""
    lines = [f"{'program':50s} {'plain us':>9s}  " + "  ".join(f"{mode:>24s}" for mode in modes if mode != "plain")]
    gains: dict[str, list[float]] = {}
    for words in dict.fromkeys(r["program"] for r in rows):
        times = {
            mode: {r["pair"]: r["us"] for r in rows if r["program"] == words and r["mode"] == mode and r["us"]}
            for mode in modes
        }
        if not times.get("plain"):
            continue
        plain = statistics.median(times["plain"].values())
        line = f"{words:50s} {plain:9.0f}  "
        said = {r["said"] for r in rows if r["program"] == words and r["code"] == 0}
        for mode in modes:
            if mode == "plain" or not times[mode]:
                continue
            gain = plain / statistics.median(times[mode].values())
            gains.setdefault(mode, []).append(gain)
            each = " ".join(f"{times['plain'][p] / us:.2f}" for p, us in times[mode].items() if p in times["plain"])
            line += f"  {gain:6.2f}x ({each:>15s})"
        lines.append(line + ("" if len(said) == 1 else "  OTHER RESULTS"))
    lines += [f"{mode}: {statistics.geometric_mean(of):.3f}x over {len(of)}" for mode, of in gains.items()]
    return "\n".join(lines)


def main() -> None:
    """Record, measure, and write what is there after each turn."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--phase", choices=("record", "time"))
    parser.add_argument("--only", help="numbers of programs, such as 0,3; default: the first nine")
    parser.add_argument("--modes", default="plain,thread")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=180, help="no turn begins later, and none ends later")
    options = parser.parse_args()
    begin = time.monotonic()
    programs = PROGRAMS + SHIPPED
    chosen = [programs[int(n)] for n in options.only.split(",")] if options.only else list(PROGRAMS)
    modes = options.modes.split(",")
    library, folder = acs.build(), (options.out / "acs").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if options.phase != "time":
        with ProcessPoolExecutor(len(chosen), mp_context=get_context("spawn")) as pool:
            for job in as_completed([pool.submit(tabulate, words, folder) for words in chosen]):
                print(job.result(), flush=True)
    if options.phase == "record":
        return
    path = options.out / "eager.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    with_tables = [words for words in chosen if (folder / name_of(words) / "table").exists()]
    for pair in range(options.pairs):
        jobs = left([(words, mode) for words in with_tables for mode in modes], pair, rows)
        if not jobs or time.monotonic() - begin > options.seconds:
            continue
        for each in turn(jobs, pair, folder, library, begin + options.seconds):
            rows = [r for r in rows if (r["program"], r["mode"], r["pair"]) != (each["program"], each["mode"], pair)]
            kept = kernels_of(each["program"], folder)
            if each["mode"] == "plain" and pair == 0 and kept.exists():
                each["kernels"] = [kernel["us"] for kernel in json.loads(kept.read_text())]
            rows.append(each)
            write_whole(path, json.dumps(rows))
        print(f"pair {pair} after {time.monotonic() - begin:.0f} s", flush=True)
    for each in rows:
        if each["us"] is None:
            print(f"{each['program']} {each['mode']}: {each['said']}", flush=True)
    print(table([r for r in rows if r["program"] in chosen], list(dict.fromkeys(["plain", *modes]))), flush=True)


if __name__ == "__main__":
    main()
