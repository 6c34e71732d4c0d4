"""Programs that issue their launches themselves, under ACS with a thread that issues, each alone on the machine.

    python tests/gpu/measuring/acs/measure_acs_eager.py OUT [--phase record|time] [--only N,…]
        [--modes plain,thread,spread,workers,graph] [--pairs N] [--rounds N] [--folder DIR]

Tables are recorded side by side (``record``). Processes of all programs and modes then start, and when all of them are
warm, one after another measures its steps while the others sleep; they do so ``--pairs`` times in turn (``time``).
``OUT/eager.json`` gets the rows of a turn when all have measured. Run it again to continue: tables that are there are
not made again, and more turns follow. No turn begins after ``--seconds``. Programs from number 9 on are some of the
first ones as frozen TorchScript and from AOTInductor.
"""

from __future__ import annotations

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
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from select import select
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
"""Each of these makes its package at its first run."""
ISLANDS = Path(examples.__file__).parent / "cuda" / "islands.cu"
START_S, TURN_S = 90, 30
"""Seconds until all processes have to be warm, and until one has to have measured."""
EACH = 8
"""Steps per round."""
WORKERS = 8


def command(words: str, folder: Path, *step: str) -> tuple[str, ...]:
    """A program, with options of `acs_step.py` if it is a Python program."""
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
    shutil.rmtree(place)  # of an interrupted run
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
    """Return the variables with which the library runs a program; None in stream order.

    ``spread``: a thread issues and never rests; ``workers``: the same with workers, as in the paper.
    """
    if mode == "plain":
        return None
    own = folder / name_of(words) / f"{mode}-{pair}"
    own.mkdir(parents=True, exist_ok=True)
    kind: acs.Mode = "graph" if mode == "graph" else "streams"
    library_settings = acs.Settings(kind, own, folder / name_of(words) / "table", threads=int(mode != "streams"))
    if mode == "workers":
        return replace(library_settings, rest=0, workers=WORKERS)
    return replace(library_settings, rest=0) if mode == "spread" else library_settings


class Running:
    """A program in a mode, whose process measures ``rounds`` when it is told to; the program "islands" is started each
    time.
    """

    def __init__(
        self, words: str, mode: str, folder: Path, library: Path, first: int, rounds: int, *, profiles: bool
    ) -> None:
        self.words, self.mode, self.folder = words, mode, folder
        self.chosen = settings(words, mode, folder, first)
        self.variables = {**os.environ, **(acs.environment(library, self.chosen) if self.chosen else {})}
        self.printed, self.profiles = "", False
        self.process: subprocess.Popen[str] | None = None
        if words == "islands":
            return
        self.ready = folder / name_of(words) / f"ready-{mode}-{first}"
        self.ready.unlink(missing_ok=True)
        self.errors = folder / name_of(words) / f"errors-{mode}-{first}"
        step = ["--ready", str(self.ready), "--rounds", str(rounds), "--each", str(EACH), "--turns"]
        self.profiles = mode == "plain" and profiles and not kernels_of(words, folder).exists()
        if self.profiles:
            step += ["--kernels", str(kernels_of(words, folder))]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command(words, folder, *step),
                env=self.variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def is_warm(self) -> bool:
        """Return whether it waits for its turn, or has ended."""
        return self.process is None or self.ready.exists() or self.process.poll() is not None

    def measure(self, pair: int, limit: float) -> dict[str, Any]:
        """Return the row of a turn, without times if it did not end before ``limit`` (`time.monotonic`)."""
        line = self._line(max(0.1, limit - time.monotonic()))
        times = re.search(r": ([0-9.]+) us per step(?:, ([0-9.]+) us to issue)?", line)
        row = {"program": self.words, "mode": self.mode, "pair": pair, "us": None, "issue_us": None}
        return row | ({"us": float(times[1]), "issue_us": float(times[2]) if times[2] else None} if times else {})

    def _line(self, seconds: float) -> str:
        if self.process is None:
            try:
                result = subprocess.run(
                    command(self.words, self.folder),
                    env=self.variables,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=seconds,
                )
            except subprocess.TimeoutExpired:
                return ""
            self.printed = result.stdout.strip()
            return result.stderr
        orders, answers = self.process.stdin, self.process.stdout
        try:
            print("go", file=orders, flush=True)
        except BrokenPipeError:
            return ""
        if select([answers], [], [], seconds)[0]:
            return answers.readline() if answers else ""
        self.process.kill()
        return ""

    def close(self) -> None:
        """Tell the process that there are no more turns."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            self.process.stdin = None

    def end(self, limit: float) -> dict[str, Any]:
        """Let it end, and return its output and the library's counts."""
        if self.process is not None:
            self.close()
            try:
                self.printed, _ = self.process.communicate(timeout=max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()
            if self.process.returncode != 0:
                print(f"{self.words} {self.mode}: {self.errors.read_text()[-600:]}", flush=True)
        counts = acs.results(self.chosen.folder) if self.chosen else []
        return {
            "said": self.printed.strip()[:64],
            "counts": {k: v for k, v in counts[0].items() if k != "unknown_at"} if counts else {},
        }


def measured(
    jobs: list[tuple[str, str]],
    pairs: range,
    folder: Path,
    library: Path,
    limit: float,
    rounds: int,
    *,
    profiles: bool = True,
) -> Iterator[list[dict[str, Any]]]:
    """Start all jobs (program, mode), yield the rows of each turn, and at last all rows again with the programs'
    output.

    No turn begins after ``limit`` (`time.monotonic`).
    """
    running = [Running(words, mode, folder, library, pairs.start, rounds, profiles=profiles) for words, mode in jobs]
    ends = min(time.monotonic() + START_S, limit)
    while time.monotonic() < ends and not all(each.is_warm() for each in running):
        time.sleep(0.05)
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        if time.monotonic() > limit:
            break
        turn = [each.measure(pair, time.monotonic() + TURN_S) for each in running if each.is_warm()]
        rows += turn
        yield turn
    for each in running:
        if not each.profiles:  # kernels are timed alone
            each.close()
    for each in running:
        report = each.end(time.monotonic() + TURN_S)
        kernel_file = kernels_of(each.words, folder)
        for row in rows:
            if (row["program"], row["mode"]) == (each.words, each.mode):
                row.update(report)
                if each.mode == "plain" and row["pair"] == pairs.start and kernel_file.exists():
                    row["kernels"] = [kernel["us"] for kernel in json.loads(kernel_file.read_text())]
    yield rows


def kernels_of(words: str, folder: Path) -> Path:
    """Return the file that keeps the kernels of a step, as they run in stream order."""
    return folder / name_of(words) / "kernels.json"


def table(rows: list[dict[str, Any]], modes: list[str]) -> str:
    """Return medians of a step's time, gains by pair, and geometric means of the medians' gains."""
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
        results = {r["said"] for r in rows if r["program"] == words and r["us"]}
        for mode in modes:
            if mode == "plain" or not times[mode]:
                continue
            gain = plain / statistics.median(times[mode].values())
            gains.setdefault(mode, []).append(gain)
            each = " ".join(f"{times['plain'][p] / us:.2f}" for p, us in times[mode].items() if p in times["plain"])
            line += f"  {gain:6.2f}x ({each:>15s})"
        lines.append(line + ("" if len(results) == 1 else "  OTHER RESULTS"))
    lines += [f"{mode}: {statistics.geometric_mean(of):.3f}x over {len(of)}" for mode, of in gains.items()]
    return "\n".join(lines)


def main() -> None:
    """Record, measure, and write the results after each turn."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, help="where tables and packages are; default: acs in OUT")
    parser.add_argument("--phase", choices=("record", "time"))
    parser.add_argument("--only", help="numbers of programs, such as 0,3; default: the first nine")
    parser.add_argument("--modes", default="plain,thread")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=11, help="of a turn, whose median counts")
    parser.add_argument("--no-kernels", dest="profiles", action="store_false", help="do not time kernels at the end")
    parser.add_argument("--seconds", type=float, default=180, help="no turn begins later")
    options = parser.parse_args()
    begin = time.monotonic()
    programs = PROGRAMS + SHIPPED
    selected_programs = [programs[int(n)] for n in options.only.split(",")] if options.only else list(PROGRAMS)
    modes = options.modes.split(",")
    library, folder = acs.build(), (options.folder or options.out / "acs").resolve()
    for place in (options.out, folder):
        place.mkdir(parents=True, exist_ok=True)
    if options.phase != "time":
        with ProcessPoolExecutor(len(selected_programs), mp_context=get_context("spawn")) as pool:
            for job in as_completed([pool.submit(tabulate, words, folder) for words in selected_programs]):
                print(job.result(), flush=True)
    if options.phase == "record":
        return
    path = options.out / "eager.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    with_tables = [words for words in selected_programs if (folder / name_of(words) / "table").exists()]
    first = max((row["pair"] for row in rows), default=-1) + 1
    jobs = [(words, mode) for words in with_tables for mode in modes]
    turns = range(first, first + options.pairs)
    for some in measured(
        jobs, turns, folder, library, begin + options.seconds, options.rounds, profiles=options.profiles
    ):
        keys = {(row["program"], row["mode"], row["pair"]) for row in some}
        rows = [row for row in rows if (row["program"], row["mode"], row["pair"]) not in keys] + some
        write_whole(path, json.dumps(rows))
        print(f"{len(rows)} rows after {time.monotonic() - begin:.0f} s", flush=True)
    print(
        table([r for r in rows if r["program"] in selected_programs], list(dict.fromkeys(["plain", *modes]))),
        flush=True,
    )


if __name__ == "__main__":
    main()
