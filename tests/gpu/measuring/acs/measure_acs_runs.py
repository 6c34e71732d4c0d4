"""Compare results under ACS with those of stream order, bit for bit, while kernels begin late at random.

    python tests/gpu/measuring/acs/measure_acs_runs.py OUT.json [--folder DIR] [--seconds S] [--steps N] [--only NAME,…]
        [--ways streams,graph,workers] [--unchecked]

By program: the digest of all steps in stream order, and with delays over streams, as graphs (``acs-graph``) or by
workers; ``--check`` (not if ``--unchecked``) with the footprint table as recorded, and with tables that lack what one
kernel writes. Programs are worked on side by side, and what can be done of each as soon as its table is there.
``OUT.json`` holds what was done of each program after each stage; what is complete there is not done again. Tables are
kept in ``--folder``. No program begins or ends after ``--seconds``: run it again to continue.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any

from measure_acs_simulated import write_whole

from tileprof import examples
from tileprof.cli.running.run_acs import record_table
from tileprof.runtime import acs

MODELS = str(Path(__file__).parent / "acs_models.py")
ISLANDS = Path(examples.__file__).parent / "cuda" / "islands.cu"
EXAMPLES = {
    "cloth": "cloth",
    "tree_lstm": "tree_lstm",
    "gated": "dynamic --kind gated",
    "exits": "dynamic --kind exits",
    "moe": "moe",
    "inception": "inception",
    "nasnet": "inception --kind nasnet",
    "inception-graph": "inception --graph",
    "nasnet-kept": "inception --kind nasnet --graph --keep",
    "tree_lstm-kept": "tree_lstm --graph --keep",
}
LIBRARIES = (
    "gcn gat sage",
    "resnet18 --train",
    "sage bert mlp --train",
    "resnet18 mlp --train sgd",
    "bert llama t5 vit",
    "resnet18 googlenet shufflenet squeezenet",
)
"""Models that one process runs one after another, since starting and recording cost more than the steps."""
DELAY_US = 10
"""Mean delay: the GPU sleeps for up to twice that before each launch."""
LEAST_S = 30
"""Seconds that must remain for a program to begin."""
CHECKED_STEPS = 4
WAYS: dict[str, dict[str, Any]] = {"streams": {}, "graph": {}, "workers": {"workers": 8}}
"""How delayed steps run, with more settings of the library."""
BROKEN = 3
"""Number of kernels whose ranges are deleted, one table each, until one is noticed."""


@dataclass(frozen=True)
class Limits:
    """Number of steps, time limit (`time.time`), number of the library's issuing threads, which of `WAYS`, and whether
    tables are checked.
    """

    steps: int
    ends: float
    threads: int
    ways: tuple[str, ...] = ("streams",)
    checked: bool = True


def stage_of(way: str) -> str:
    """Return what a delayed run is called in a row and its folder."""
    return "delayed" if way == "streams" else f"delayed-{way}"


def command(name: str, steps: int, folder: Path) -> tuple[str, ...]:
    """Return a program with this number of steps, without ``--digest``, which changes what padding of parameters
    holds.
    """
    if name == "islands":
        return str(folder / "islands" / "program"), str(steps)
    words = (
        ["-m", f"tileprof.examples.{EXAMPLES[name].split()[0]}", *EXAMPLES[name].split()[1:]]
        if name in EXAMPLES
        else [MODELS, *name.split()]
    )
    return (sys.executable, *words, "--device", "cuda", "--steps", str(steps))


def lacking(table: Path, number: int, out: Path) -> str:
    """Write a table without the writes of one kernel: of those that write, the one with ``number`` more frequent ones.

    Return its name, or "" if there are fewer.
    """
    lines, kernel, counts = table.read_text().splitlines(), "", Counter[str]()
    for line in lines:
        kernel = line if line.startswith("kernel") else kernel
        counts[kernel] += line.startswith("write")
    ranking = [name for name, count in counts.most_common() if count]
    if number >= len(ranking):
        return ""
    records = []
    for line in lines:
        kernel = line if line.startswith("kernel") else kernel
        if kernel != ranking[number] or not line.startswith("write"):
            records.append(line)
    out.write_text("\n".join(records) + "\n")
    return ranking[number].removeprefix("kernel ")


def ran(words: tuple[str, ...], variables: dict[str, str], ends: float) -> tuple[int, str]:
    """Return exit code and stdout; -1 and stderr if the program did not end in time."""
    try:
        result = subprocess.run(
            words,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=max(1.0, ends - time.time()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, "no end in time"
    return result.returncode, result.stdout.strip() if result.returncode == 0 else result.stderr[-800:]


def recorded(words: tuple[str, ...], place: Path, library: Path) -> None:
    """Write the table of a program into a folder; in a process of its own, whose variables change."""
    for leftover in ("raw", "recorded.tileprof"):  # of an interrupted run
        shutil.rmtree(place / leftover, ignore_errors=True)
    record_table(words, place, library).write(place / "table.half")
    for large in ("raw", "recorded.tileprof"):
        shutil.rmtree(place / large, ignore_errors=True)
    (place / "table.half").replace(place / "table")


@dataclass(frozen=True)
class Pools:
    """Workers that make tables, and workers that run programs with one; ``report`` gets a row after each stage."""

    recordings: Executor
    runs: Executor
    report: Callable[[dict[str, Any]], None] = lambda row: None


class _Program:
    """The work on one program. Its row is kept in a file after each stage, and continues from there."""

    def __init__(self, name: str, folder: Path, library: Path, limits: Limits, pools: Pools) -> None:
        self._name, self._folder, self._library, self._limits, self._pools = name, folder, library, limits, pools
        self._place = folder / name.replace(" --", "-").replace(" ", "+")
        self._place.mkdir(parents=True, exist_ok=True)
        self._table = self._place / "table"
        self._digest = () if name == "islands" else ("--digest",)
        self.row: dict[str, Any] = {"program": name, "steps": limits.steps, "threads": limits.threads}
        row_file = self._place / "row.json"
        before = json.loads(row_file.read_text()) if row_file.exists() else {}
        if all(before.get(key) == value for key, value in self.row.items()):
            self.row = before
        self.row.pop("error", None)
        self._begin, self._spent, self._held = time.time(), self.row.get("s", 0.0), Lock()

    def work(self) -> None:
        """Do all remaining work, side by side where possible."""
        runs = self._pools.runs
        try:
            self._compile()
            running = [runs.submit(self._run_plain)] if not self._ended("plain") else []
            self._record()
            ways = [way for way in self._limits.ways if not self._ended(stage_of(way))]
            running += [runs.submit(self._run_delayed, way) for way in ways]
            if self._limits.checked and self.row.get("differing", -1) < 0:
                running.append(runs.submit(self._run_check))
            for number in range(len(self.row.setdefault("broken", [])), BROKEN * self._limits.checked):
                if not runs.submit(self._run_broken, number).result():
                    break
            for job in running:
                job.result()
        except Exception:
            self._keep(error=traceback.format_exc()[-1200:])

    def _ended(self, stage: str) -> bool:
        return bool(self.row.get(stage, [-1])[0] == 0)

    def _keep(self, **values: Any) -> None:
        with self._held:
            self.row.update(values, s=self._spent + time.time() - self._begin)
            ended = [stage_of(way) for way in WAYS if self._ended(stage_of(way))]
            if ended and self._ended("plain"):
                self.row["same"] = all(self.row[stage] == self.row["plain"] for stage in ended)
            write_whole(self._place / "row.json", json.dumps(self.row))
            self._pools.report(dict(self.row))

    def _under(
        self, mode: acs.Mode, steps: int, table: Path, label: str, **more: Any
    ) -> tuple[int, str, dict[str, Any]]:
        own = self._place / label
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        settings = acs.Settings(mode, own, table, rest=0, threads=self._limits.threads, **more)
        words = command(self._name, steps, self._folder) + (() if mode == "check" else self._digest)
        code, output = ran(words, acs.environment(self._library, settings), self._limits.ends)
        counts = acs.results(own)
        return code, output, counts[0] if counts else {}

    def _compile(self) -> None:
        program = self._place / "program"
        if self._name == "islands" and not program.exists():
            subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", ISLANDS, "-o", program], check=True)

    def _record(self) -> None:
        if self._table.exists():
            return
        began, words = time.time(), command(self._name, 3, self._folder) + self._digest
        self._pools.recordings.submit(recorded, words, self._place, self._library).result()
        self._keep(table_s=time.time() - began)

    def _run_plain(self) -> None:
        began = time.time()
        words = command(self._name, self._limits.steps, self._folder) + self._digest
        code, output = ran(words, {}, self._limits.ends)
        self._keep(plain=[code, output], plain_s=time.time() - began)

    def _run_delayed(self, way: str) -> None:
        began, stage = time.time(), stage_of(way)
        mode: acs.Mode = "graph" if way == "graph" else "streams"
        code, output, counts = self._under(mode, self._limits.steps, self._table, stage, delay_us=DELAY_US, **WAYS[way])
        counters = {key: counts.get(key, 0) for key in ("launches", "spread", "unknown", "graph_kernels")}
        numbers = counters if way == "streams" else {f"{stage}-counts": counters}
        self._keep(**{stage: [code, output], f"{stage}_s": time.time() - began}, **numbers)

    def _run_check(self) -> None:
        began = time.time()
        code, output, counts = self._under("check", CHECKED_STEPS, self._table, "check")
        self._keep(
            checked=counts.get("checked", 0),
            unchecked=counts.get("unchecked", 0),
            differing=counts.get("differing", -1),
            check=code,
            probed=counts.get("probed", 0),
            differences=counts.get("differences", {}),
            check_s=time.time() - began,
            **({} if counts else {"check_said": output}),
        )

    def _run_broken(self, number: int) -> bool:
        """Return whether another kernel is to be tried."""
        table = self._place / f"lacking-{number}"
        kernel = lacking(self._table, number, table)
        if not kernel or self.row.get("noticed") or self._limits.ends - time.time() < 1:
            return False
        _, _, counts = self._under("check", CHECKED_STEPS, table, f"broken-{number}", orders=6)
        table.unlink()
        if not counts:  # cut
            return False
        noticed = counts.get("differing", 0)
        self._keep(noticed=noticed, deleted=kernel[:120], broken=[*self.row["broken"], noticed])
        return True


def of_program(name: str, folder: Path, library: Path, limits: Limits, pools: Pools) -> dict[str, Any]:
    """The row of a program."""
    program = _Program(name, folder, library, limits, pools)
    program.work()
    return program.row


def is_complete(row: dict[str, Any], limits: Limits) -> bool:
    """Return whether all work on a program was done."""
    stages = ("plain", *map(stage_of, limits.ways))
    exited_well = "error" not in row and all(row.get(stage, [-1])[0] == 0 for stage in stages)
    return exited_well and (not limits.checked or (row.get("differing", -1) >= 0 and "noticed" in row))


def main() -> None:
    """Work on the programs that are not in ``OUT.json``, several at a time."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, help="where tables are kept; default: beside OUT.json")
    parser.add_argument("--seconds", type=float, default=190)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--threads", type=int, default=1, help="threads of the library's that issue: 0 or 1")
    parser.add_argument("--together", type=int, default=7, help="programs at a time")
    parser.add_argument("--recordings", type=int, default=5, help="tables that are made at a time")
    parser.add_argument("--runs", type=int, default=5, help="runs of programs at a time")
    parser.add_argument("--ways", default="streams", help=f"of {', '.join(WAYS)}, separated by commas")
    parser.add_argument("--unchecked", action="store_true")
    options = parser.parse_args()
    ends = time.time() + options.seconds
    folder = (options.folder or options.out.resolve().parent / "acs-runs").resolve()
    rows = {row["program"]: row for row in (json.loads(options.out.read_text()) if options.out.exists() else [])}
    names = options.only.split(",") if options.only else [*LIBRARIES, *EXAMPLES, "islands"]
    limits = Limits(options.steps, ends, options.threads, tuple(options.ways.split(",")), not options.unchecked)
    names = [name for name in names if name not in rows or not is_complete(rows[name], limits)]
    library, lock = acs.build(), Lock()

    def tell(row: dict[str, Any]) -> None:
        with lock:
            rows[row["program"]] = row
            write_whole(options.out, json.dumps(list(rows.values()), indent=1))

    def work_on(name: str) -> None:
        if time.time() < ends - LEAST_S:
            row = of_program(name, folder, library, limits, pools)
            print(_line(row) if is_complete(row, limits) and limits.checked else json.dumps(row), flush=True)

    with (
        ProcessPoolExecutor(options.recordings, mp_context=get_context("spawn")) as recordings,
        ThreadPoolExecutor(options.runs) as runs,
        ThreadPoolExecutor(options.together) as programs,
    ):
        pools = Pools(recordings, runs, tell)
        list(programs.map(work_on, names))
    complete_rows = [row for row in rows.values() if is_complete(row, limits)]
    unfinished = set(names) - {row["program"] for row in complete_rows}
    print(f"{len(complete_rows)} programs done; left: {', '.join(sorted(unfinished)) or 'none'}", flush=True)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['program']:40s} {row['steps']} steps with delays: {'same bits' if row['same'] else 'OTHER BITS'}, "
        f"{row['spread']:,} of {row['launches']:,} launches spread; check: {row['checked']:,} launches, "
        f"{row['differing']} differences; with a range deleted: {row['noticed']} ({row['s']:.0f} s: "
        + ", ".join(f"{key} {row.get(f'{key}_s', 0):.0f}" for key in ("table", "plain", "delayed", "check"))
        + ")"
    )


if __name__ == "__main__":
    main()
