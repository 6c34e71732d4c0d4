"""Programs of `tileprof.examples` under ACS on a GPU: in stream order, over several streams, as graphs, and checked.

    python tests/gpu/measuring/acs/measure_acs.py OUT.json [--programs NAME,…]
        [--modes plain,streams,thread,graph,check] [--steps N] [--budget S]

Tables are recorded first, all programs side by side; what is timed runs alone. One row per program and mode, with the
time of a step as the program itself says it, whether it printed the same line as in stream order, and what the library
counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tileprof import examples
from tileprof.cli.running.run_acs import record_table
from tileprof.runtime import acs

CUDA = ["--device", "cuda"]
PROGRAMS = {
    "cloth": ["cloth"],
    "tree_lstm": ["tree_lstm"],
    "gated": ["dynamic", "--kind", "gated"],
    "exits": ["dynamic", "--kind", "exits"],
    "moe": ["moe"],
    "inception": ["inception"],
    "nasnet": ["inception", "--kind", "nasnet"],
    "inception-graph": ["inception", "--graph"],
    "nasnet-graph": ["inception", "--kind", "nasnet", "--graph"],
    "tree_lstm-graph": ["tree_lstm", "--graph"],
    "inception-kept": ["inception", "--graph", "--keep"],
    "nasnet-kept": ["inception", "--kind", "nasnet", "--graph", "--keep"],
    "tree_lstm-kept": ["tree_lstm", "--graph", "--keep"],
    "gpt2": ["gpt2"],
    "islands": [],
}
SOURCE = Path(examples.__file__).parent / "cuda" / "islands.cu"
ISLANDS = Path(tempfile.gettempdir()) / "tileprof-islands"
"""The program of `tileprof/examples/cuda`, compiled at the start."""


def command(name: str, steps: int) -> list[str]:
    """The program, on the GPU."""
    if name == "islands":
        return [str(ISLANDS), str(steps)]
    module, *words = PROGRAMS[name]
    return [sys.executable, "-m", f"tileprof.examples.{module}", *words, *CUDA, "--steps", str(steps)]


def run(words: list[str], variables: dict[str, str], limit: float) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    result = subprocess.run(
        words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=limit, check=False
    )
    return result.returncode, result.stdout.strip(), result.stderr


def tabulate(name: str, place: Path) -> str:
    """Record a program, keep its table in ``place``, and return a message about it.

    In a process of its own, since the recorder passes on the variables of its process.
    """
    begin = time.monotonic()
    place.mkdir(parents=True, exist_ok=True)
    if (place / "table").exists():
        return f"{name}: its table is there"
    try:
        table = record_table(tuple(command(name, 4)), place, acs.build())
    except Exception:
        return f"{name}: no table\n{traceback.format_exc()[-1500:]}"
    table.write(place / "table")
    without_entry, seconds = sum(table.without.values()), time.monotonic() - begin
    messages = [f"{name}: {table.count} entries, {table.launches} launches, {without_entry} without, {seconds:.0f} s"]
    worst = sorted(table.without.items(), key=lambda item: -item[1])[:6]
    return "\n    ".join([*messages, *(f"{count} {why[:200]}" for why, count in worst)])


def _without_a_range(table: Path, out: Path) -> Path:
    """Return a table without the writes of the kernel with most entries."""
    lines, kernel, counts = table.read_text().splitlines(), "", Counter[str]()
    for line in lines:
        kernel = line if line.startswith("kernel") else kernel
        counts[kernel] += line.startswith("write")
    most = max(counts, key=lambda name: counts[name])
    records = []
    for line in lines:
        kernel = line if line.startswith("kernel") else kernel
        if kernel != most or not line.startswith("write"):
            records.append(line)
    out.write_text("\n".join(records) + "\n")
    return out


class Measurement:
    """Runs programs in modes. `rows` has one row per run, written to the results file after each."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.library = options, folder, acs.build()
        self.rows: list[dict[str, Any]] = []
        self._begin = time.monotonic()

    def left(self) -> float:
        """Seconds of the budget that remain."""
        return self.options.budget - (time.monotonic() - self._begin)

    def one(self, name: str, mode: str, table: Path) -> None:
        """Run a program in a mode, and print its row."""
        place = self.folder / name / mode
        place.mkdir(parents=True, exist_ok=True)
        try:
            words = command(name, 6 if mode in {"check", "broken"} else self.options.steps)
            if mode in {"digest", "delayed"} and name != "islands":
                words.append("--digest")
            code, output, errors = run(words, self._variables(mode, place, table), max(5.0, self.left()))
        except subprocess.TimeoutExpired:
            code, output, errors = -1, "", "no end"
        match = re.search(r": ([0-9.]+) us per step", errors)
        counts = acs.results(place)
        row = {
            "program": name,
            "mode": mode,
            "code": code,
            "said": output,
            "us": float(match[1]) if match else None,
            "counts": counts[0] if counts else {},
        }
        self.rows.append(row)
        self.options.out.write_text(json.dumps(self.rows, indent=1))
        print_row(row)
        if code != 0:
            print(errors[-1500:], flush=True)

    def _variables(self, mode: str, place: Path, table: Path) -> dict[str, str]:
        if mode in {"plain", "digest"}:
            return {}
        if mode == "broken":
            table = _without_a_range(table, place / "table")
        settings = acs.Settings(
            {"thread": "streams", "delayed": "streams", "broken": "check"}.get(mode, mode),
            place,
            table,
            lanes=self.options.lanes,
            threads=int(mode == "thread"),
            delay_us=30 if mode == "delayed" else 0,
            rest=0 if mode == "delayed" else 1024,
            orders=8 if mode == "broken" else 2,
        )
        return acs.environment(self.library, settings)


def print_row(row: dict[str, Any]) -> None:
    """Print a run with the counts of the library that are not 0."""
    brief = {k: v for k, v in row["counts"].items() if v and not isinstance(v, dict)}
    largest = {
        k: sorted(row["counts"].get(k, {}).items(), key=lambda i: -i[1])[:4]
        for k in ("reasons", "calls", "differences")
    }
    print(
        f"{row['program']:16s} {row['mode']:8s} rc {row['code']} {row['us']} us  {row['said'][-40:]}  {brief} "
        f"{largest if row['counts'] else ''}",
        flush=True,
    )


def print_summary(names: list[str], rows: list[dict[str, Any]], steps: int) -> None:
    """Print a line per program: gains over stream order, and whether it printed the same result."""
    print("\nprogram          plain us  streams  thread  graph   same")
    timed = ("streams", "thread", "graph")
    for name in names:
        mine = {row["mode"]: row for row in rows if row["program"] == name}
        plain = mine.get("plain", {}).get("us")
        gains = [f"{plain / mine[m]['us']:.2f}x" if plain and mine.get(m, {}).get("us") else "-" for m in timed]
        same = (
            all(row["said"] == mine["plain"]["said"] for row in mine.values() if row["mode"] in timed)
            if "plain" in mine
            else None
        )
        if "digest" in mine and "delayed" in mine:
            both_succeeded = mine["digest"]["code"] == mine["delayed"]["code"] == 0
            alike = "bits of stream order" if mine["digest"]["said"] == mine["delayed"]["said"] else "OTHER BITS"
            print(f"{name:16s} {steps} steps with delays: {alike if both_succeeded else 'no end'}")
        print(f"{name:16s} {plain or 0:9.1f}  {gains[0]:7s} {gains[1]:7s} {gains[2]:6s}  {same}")


def main() -> None:
    """Measure, and print each row as soon as it exists."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--modes", default="plain,streams,thread,graph,check")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--budget", type=float, default=50)
    parser.add_argument("--together", action="store_true", help="run everything side by side: correctness alone")
    options = parser.parse_args()
    folder = options.out.resolve().parent / "acs"
    measurement = Measurement(options, folder)
    names = options.programs.split(",")
    if "islands" in names:
        subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", str(SOURCE), "-o", str(ISLANDS)], check=True)
    with ProcessPoolExecutor(len(names), mp_context=get_context("spawn")) as pool:
        for message in pool.map(tabulate, names, [folder / name for name in names]):
            print(message, flush=True)
    tables = {name: path for name in names if (path := folder / name / "table").exists()}
    jobs = [(name, mode, table) for name, table in tables.items() for mode in options.modes.split(",")]
    if options.together:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda job: measurement.one(*job), jobs))
    else:
        for job in jobs:
            if measurement.left() > 5:
                measurement.one(*job)
    print_summary(names, measurement.rows, options.steps)


if __name__ == "__main__":
    main()
