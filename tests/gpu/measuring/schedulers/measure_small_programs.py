"""On a GPU: compile the small programs that answer one question each, run them, and write their results files.

python tests/gpu/measuring/schedulers/measure_small_programs.py SUBJECT tests/gpu/results/SUBJECT.json

SUBJECT:

    link_ways    `measuring/programs/link_ways.cu`: ways from a CPU thread to a running block
    spawn_costs  `measuring/programs/spawn_costs.cu`: launches from kernels, decisions, reads of the controller's words
    spawn_rounds `measuring/programs/spawn_rounds.cu`: rounds of few launches, items of a sort; in two processes
    launches     `measuring/programs/divergent_launches.cu`; what it costs that threads of a warp launch one at a time
                 (`times_us`); and programs whose children launch, with delays in which threads do not sleep (`awake`);
                 other entries of the file stay
    halo         `cusync/halo_race.cu` and `halo_alone.cu` with a late block; cuSync itself with CUSYNC_PATH

Each needs nvcc and the GPU alone, `launches` three minutes, the others less than one. With ``--output-of PROGRAM FILE``
what a run printed elsewhere is read, and that program is neither compiled nor run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure_delayed import COSTS, DELAYS, SCALE, SOURCES, STEPS
from measure_spawn import LEAST, LONG, UNTRIED, WINDOW_LOG2, machine, spawn_names, written

from tileprof.runtime.include_path import INCLUDE

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS = ROOT / "tests/gpu/measuring/programs"
HALO = ROOT / "tests/gpu/cusync"
FLAGS = ["-O3", "-std=c++17", f"-arch={os.environ.get('ARCH', 'sm_90')}"]
DEVICE_LAUNCHES = ["-rdc=true", "-lcudadevrt"]
REPEATS = 8
RULES = ("always", "threshold", "spawn", "warp")
WAYS = ("apart", "apart", "apart", "together", "alone", "awake")
"""Runs of `divergent_launches.cu`: a hang is looked for in three processes."""
NESTED = ("amr-nested", "mandelbrot-nested")


class Runner:
    """Compiles and runs programs, or reads what they printed elsewhere: ``texts``, by the program's name."""

    def __init__(self, folder: Path, texts: dict[str, Path]) -> None:
        self.folder, self.texts = folder, texts

    def __call__(self, name: str, flags: Iterable[str | Path], *words: str, limit_s: float = 120) -> str:
        if name in self.texts:
            return self.texts[name].read_text()
        program = self.folder / name
        if not program.exists():
            subprocess.run(["nvcc", *FLAGS, *flags, "-o", program], check=True)
        return subprocess.run([program, *words], capture_output=True, text=True, timeout=limit_s, check=False).stdout


def link_ways(output: Runner, _: dict[str, Any]) -> dict[str, Any]:
    """Return round trips by way and number of blocks, and what refuses to map the GPU's memory."""
    text = output("link_ways", [PROGRAMS / "link_ways.cu", "-lcuda"])
    number = r"([\d.]+)"
    row = re.compile(
        rf"^(\w+), (\d+): {number}, {number}, {number}; {number}; {number}; {number}; (\d+ of \d+)$", re.MULTILINE
    )
    rows = [
        {
            "way": way,
            "blocks": int(blocks),
            **dict(zip(("p10_ns", "median_ns", "p90_ns"), map(int, times), strict=True)),
            "million_answers_per_s": float(rate),
            "answers_per_batch": float(batch),
            "call_ns": int(call),
            "answered": answered,
        }
        for way, blocks, *times, rate, batch, call, answered in row.findall(text)
    ]
    return {"mapped": re.findall(r"^mapped: (.+)$", text, re.MULTILINE), "ways": rows}


def quantiles(rows: list[dict[str, Any]], name: str) -> list[int]:
    """Return the median over repeats of each quantile."""
    return [statistics.median_high(column) for column in zip(*(row[name] for row in rows), strict=True)]


def repeats_of(text: str, *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the lines of JSON that have these keys, by their values."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in map(json.loads, filter(None, text.splitlines())):
        if all(key in row for key in keys):
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def spawn_costs(output: Runner, _: dict[str, Any]) -> dict[str, Any]:
    """Return medians over repeats of launches, decisions and reads."""
    flags = [*DEVICE_LAUNCHES, "-I", SOURCES / "spawn", PROGRAMS / "spawn_costs.cu"]
    launched = output("spawn_costs", flags, str(REPEATS))
    decided = output("spawn_decisions", ["-DDECISIONS", *flags], str(REPEATS))
    launches, decisions, reads = [], [], []
    for (warps, lanes, below), rows in repeats_of(launched, "warps", "lanes", "below").items():
        times = {f"{name}_ns": quantiles(rows, name) for name in ("leave", "child", "grandchild") if name in rows[0]}
        us = round(statistics.median(row["us"] for row in rows), 1)
        launches.append({"warps": warps, "lanes": lanes, "below": below, "us": us, **times})
    for (rule, warps, items), rows in repeats_of(decided, "decisions", "warps", "items").items():
        counts = [row["launched"] for row in rows]
        row = {"rule": rule, "warps": warps, "items": items, "launched": statistics.median_high(counts)}
        decisions.append(row | {"all_launched": counts, "took_ns": quantiles(rows, "took")})
    for (count, warps, add), rows in repeats_of(decided, "reads", "warps", "add").items():
        reads.append({"warps": warps, "updates": bool(add), "reads": count, "took_ns": quantiles(rows, "took")})
    note = "medians of repeats; quantiles of nanoseconds: least, 1, 10, 25, 50, 75, 90, 99%, greatest"
    return {"note": note, "launches": launches, "decisions": decisions, "reads": reads}


def spawn_rounds(output: Runner, _: dict[str, Any]) -> dict[str, Any]:
    """Return rounds and sorts of two processes, ``spawn_rounds_1`` and ``spawn_rounds_2``."""
    flags = [*DEVICE_LAUNCHES, "-I", SOURCES / "spawn", PROGRAMS / "spawn_rounds.cu"]
    processes = []
    for number in (1, 2):
        rows = [json.loads(line) for line in output(f"spawn_rounds_{number}", flags).splitlines()]
        processes.append(
            {"rounds": [row for row in rows if "us" in row], "sorts": [row for row in rows if "item_ns" in row]}
        )
    note = "microseconds of 40 rounds: least, 10, 25, 50, 75, 90%, greatest"
    return {"note": note, "processes": processes}


def launches(output: Runner, before: dict[str, Any]) -> dict[str, Any]:
    """Return what groups of threads do that launch, and times of SPAWN's programs with and without a lock per warp."""
    flags = [*DEVICE_LAUNCHES, PROGRAMS / "divergent_launches.cu"]
    ways = [{"way": way, "said": output("divergent_launches", flags, way, "4000", limit_s=60).strip()} for way in WAYS]
    names = [name for name in spawn_names() if name not in LONG]
    words = ["--costs=2000,100", "--no-search", "--flat-once", "5", "16", *map(str, (WINDOW_LOG2, LEAST, UNTRIED))]
    runs: dict[str, dict[str, list[float]]] = {}
    for _ in range(2):
        for title, lock in (("together", "0"), ("one at a time", "1")):
            flags = [f"-DSPAWN_THREADS_SLEEP={lock}", *DEVICE_LAUNCHES, SOURCES / "spawn/program.cu"]
            text = output(f"spawn_lock_{lock}", flags, *words, *names, limit_s=200)
            for row in (json.loads(line) for line in text.splitlines() if '"name"' in line):
                for rule in RULES:
                    runs.setdefault(row["name"], {}).setdefault(f"{rule} {title}", []).extend(row["all"][f"{rule}_us"])
    programs = {
        name: {
            rule: {
                title: round(statistics.median(times[f"{rule} {title}"]), 1) for title in ("together", "one at a time")
            }
            for rule in RULES
        }
        for name, times in runs.items()
    }
    what = "programs of tileprof/examples/cuda/spawn at scale 16 without delays, medians of 10 runs in two processes "
    what += "that took turns; one at a time: SPAWN_THREADS_SLEEP=1"
    kept = {key: before[key] for key in ("options", "experiments") if key in before}
    return {**kept, "ways": ways, "times_us": {"what": what, "programs": programs}, "awake": awake(output)}


def awake(output: Runner) -> dict[str, Any]:
    """Return how many of 1,000 delayed runs differ under each rule, and their launches."""
    flags = ["-DDELAYS_AWAKE", f"-DSPAWN_MOST_STEPS={STEPS}", "-include", DELAYS, *DEVICE_LAUNCHES]
    words = [f"--costs={COSTS[0]},{COSTS[1]}", "--no-search", "--flat-once", "1000", str(SCALE)]
    words += [*map(str, (WINDOW_LOG2, LEAST, UNTRIED)), *NESTED]
    text = output("spawn_awake", [*flags, SOURCES / "spawn/program.cu"], *words, limit_s=120)
    programs = {}
    for row in (json.loads(line) for line in text.splitlines() if '"name"' in line):
        counts = {rule: row["all"][f"{rule}_launched"][1:] for rule in RULES}  # the first round is not counted
        programs[row["name"]] = {
            rule: {"runs": len(some), "wrong": row["differing"][rule], "launched": sum(some)}
            for rule, some in counts.items()
        }
    what = f"programs whose children launch, at scale {SCALE}, delays of up to 20 us in which threads poll the clock "
    what += "(tests/gpu/measuring/schedulers/delays.cuh with DELAYS_AWAKE), without SPAWN_THREADS_SLEEP"
    return {"what": what, "programs": programs}


HALO_RUNS = (
    ("cuSync", "halo_race", "race", ""),
    ("stand-in for cuSync", "halo_alone", "race", "with the halo"),
    ("stand-in for cuSync", "halo_alone", "omitted", "halo omitted"),
)
"""What synchronises, the program, the dependencies that are exported for it, and the policy where it names none."""


def halo(output: Runner, _: dict[str, Any]) -> dict[str, Any]:
    """Return rounds and pixels that are wrong, by what synchronises, policy and delay of a block."""
    cusync, rows = os.environ.get("CUSYNC_PATH", ""), []
    for runtime, program, table, policy in HALO_RUNS:
        name = f"{program}_{table}"
        if runtime == "cuSync":
            if not cusync and name not in output.texts:
                continue
            flags = ["-I", f"{cusync}/src/include", f"{cusync}/src/cusync.cu"]
        else:
            flags = ["-I", INCLUDE]
        headers = output.folder / table
        words = [
            "export",
            HALO / f"halo_{table}.dep",
            "--format",
            "cusync",
            "--several-waits",
            "--force",
            "-o",
            headers,
        ]
        if name not in output.texts:
            subprocess.run([sys.executable, "-m", "tileprof", *words], check=True, stdout=subprocess.DEVNULL)
        text = output(name, ["-I", headers, *flags, HALO / f"{program}.cu"])
        pattern = r"^(\S.*?) +late by +([\d.]+) us: +(\d+) rounds, +(\d+) wrong, +(\d+) wrong pixels$"
        for printed, late, rounds, wrong, pixels in re.findall(pattern, text, re.MULTILINE):
            row = {"synchronised_by": runtime, "policy": policy or printed, "late_us": float(late)}
            rows.append(row | {"rounds": int(rounds), "wrong_rounds": int(wrong), "wrong_pixels": int(pixels)})
    what = "two 3 x 3 convolutions of 56 x 56 pixels as integer sums, 98 tiles of 32 pixels; one block of the first "
    what += "begins late; wrong pixels of the second, summed over the rounds"
    return {"what": what, "cusync": "https://github.com/parasailteam/cusync", "rows": rows}


SUBJECTS = {measure.__name__: measure for measure in (link_ways, spawn_costs, spawn_rounds, launches, halo)}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("output", type=Path, help="results file")
    parser.add_argument(
        "--output-of", nargs=2, action="append", default=[], metavar=("PROGRAM", "FILE"), help="what a run printed"
    )
    options = parser.parse_args(words)
    before = json.loads(options.output.read_text()) if options.output.exists() else {}
    command = f"python tests/gpu/measuring/schedulers/measure_small_programs.py {options.subject} {options.output}"
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), {name: Path(file) for name, file in options.output_of})
        results = SUBJECTS[options.subject](runner, before)
    options.output.write_text(written({**machine(), "command": command, **results}))


if __name__ == "__main__":
    main()
