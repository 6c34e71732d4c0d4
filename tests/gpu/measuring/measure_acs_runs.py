"""Compare results under ACS with those of stream order, bit for bit, while kernels begin late at random.

    python tests/gpu/measuring/measure_acs_runs.py OUT.json [--folder DIR] [--seconds S] [--steps N] [--only NAME,…]

By program: the digest of all steps in stream order, and over streams with delays; ``--check`` with the footprint table
as recorded, and with tables that lack what one kernel writes. Programs are worked on side by side. What is in
``OUT.json`` is not done again, tables and what each program has done are kept in ``--folder``, and no program begins or
ends after ``--seconds``: run it again to go on.
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
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
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
    "bert", "llama", "t5", "vit", "resnet18", "googlenet", "shufflenet", "squeezenet", "gcn", "gat", "sage",
    "bert --train", "resnet18 --train", "resnet18 --train sgd", "mlp --train", "mlp --train sgd", "sage --train",
)  # fmt: skip
DELAY_US = 20
CHECKED_STEPS = 4
BROKEN = 3
"""Kernels whose ranges are deleted, one table each, until one is noticed."""


@dataclass(frozen=True)
class Limits:
    """How many steps, until when (`time.time`), and how many threads of the library's issue."""

    steps: int
    ends: float
    threads: int


def command(name: str, steps: int, folder: Path) -> tuple[str, ...]:
    """A program with so many steps, without ``--digest``."""
    if name == "islands":
        return str(folder / "islands" / "program"), str(steps)
    words = (
        ["-m", f"tileprof.examples.{EXAMPLES[name].split()[0]}", *EXAMPLES[name].split()[1:]]
        if name in EXAMPLES
        else [MODELS, *name.split()]
    )
    return (sys.executable, *words, "--device", "cuda", "--steps", str(steps))


def lacking(table: Path, number: int, out: Path) -> str:
    """Write a table without what one kernel writes: of those that write, the one with ``number`` more frequent ones;
    its name, "" where there are not that many.
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
    """Exit code and stdout; -1 and what it said on stderr where it did not end in time."""
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


def of_program(name: str, folder: Path, library: Path, limits: Limits) -> dict[str, Any]:
    """The row of a program."""
    place = folder / name.replace(" --", "-")
    place.mkdir(parents=True, exist_ok=True)
    row: dict[str, Any] = {"program": name, "steps": limits.steps, "threads": limits.threads}
    kept = place / "row.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    if all(before.get(key) == value for key, value in row.items()):
        row = before
    begin, spent = time.time(), row.get("s", 0.0)

    def keep(**values: Any) -> None:
        row.update(values, s=spent + time.time() - begin)
        write_whole(kept, json.dumps(row))

    row.pop("error", None)
    digest = () if name == "islands" else ("--digest",)

    def under(mode: acs.Mode, steps: int, table: Path, label: str, **more: Any) -> tuple[int, str, dict[str, Any]]:
        own = place / label
        own.mkdir(exist_ok=True)
        settings = acs.Settings(mode, own, table, rest=0, threads=limits.threads, **more)
        words = command(name, steps, folder) + (digest if mode == "streams" else ())
        code, output = ran(words, acs.environment(library, settings), limits.ends)
        counts = acs.results(own)
        return code, output, counts[0] if counts else {}

    try:
        if name == "islands" and not (place / "program").exists():
            subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", ISLANDS, "-o", place / "program"], check=True)
        table = place / "table"
        if not table.exists():
            for left in ("raw", "recorded.tileprof"):  # of a run that was ended
                shutil.rmtree(place / left, ignore_errors=True)
            record_table(command(name, 3, folder), place, library).write(place / "table.half")
            (place / "table.half").replace(table)
        if "table_s" not in row:
            keep(table_s=time.time() - begin)
        if row.get("plain", [-1])[0] != 0:
            code, expected = ran(command(name, limits.steps, folder) + digest, {}, limits.ends)
            keep(plain=[code, expected])
        if row["plain"][0] == 0 and row.get("delayed", [-1])[0] != 0:
            code, output, counts = under("streams", limits.steps, table, "delayed", delay_us=DELAY_US)
            same = code == 0 and output == row["plain"][1]
            keep(delayed=[code, output], same=same, launches=counts.get("launches", 0), spread=counts.get("spread", 0))
        if row.get("differing", -1) < 0:
            code, _, counts = under("check", CHECKED_STEPS, table, "check")
            keep(
                checked=counts.get("checked", 0),
                differing=counts.get("differing", -1),
                check=code,
                probed=counts.get("probed", 0),
                differences=counts.get("differences", {}),
            )
        for number in range(len(row.setdefault("broken", [])), BROKEN):
            kernel = lacking(table, number, place / f"lacking-{number}")
            if not kernel or row.get("noticed") or limits.ends - time.time() < 1:
                break
            _, _, counts = under("check", CHECKED_STEPS, place / f"lacking-{number}", f"broken-{number}", orders=6)
            if not counts:  # cut
                break
            noticed = counts.get("differing", 0)
            keep(noticed=noticed, deleted=kernel[:120], broken=[*row["broken"], noticed])
    except Exception:
        row["error"] = traceback.format_exc()[-1200:]
    return row


def is_complete(row: dict[str, Any]) -> bool:
    """Whether all that a program has to do was done."""
    ended = all(row.get(key, [-1])[0] == 0 for key in ("plain", "delayed"))
    return ended and row.get("differing", -1) >= 0 and "noticed" in row


def main() -> None:
    """Go through the programs that are not in ``OUT.json``, several at a time."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--folder", type=Path, help="where tables are kept; default: beside OUT.json")
    parser.add_argument("--seconds", type=float, default=190)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--threads", type=int, default=1, help="threads of the library's that issue: 0 or 1")
    parser.add_argument("--together", type=int, default=6, help="programs at a time")
    options = parser.parse_args()
    ends = time.time() + options.seconds
    folder = (options.folder or options.out.resolve().parent / "acs-runs").resolve()
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    finished_programs = {row["program"] for row in rows}
    names = options.only.split(",") if options.only else ["islands", *EXAMPLES, *LIBRARIES]
    names = [name for name in names if name not in finished_programs]
    library = acs.build()
    limits = Limits(options.steps, ends, options.threads)
    with ProcessPoolExecutor(options.together, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = list(names)
        running = {pool.submit(of_program, waiting.pop(0), folder, library, limits) for _ in names[: options.together]}
        while running:
            first = next(as_completed(running))
            running.remove(first)
            row = first.result()
            complete = "error" not in row and is_complete(row)
            print(json.dumps(row) if not complete else _line(row), flush=True)
            if complete:
                rows.append(row)
                write_whole(options.out, json.dumps(rows, indent=1))
            if waiting and time.time() < ends - 40:
                running.add(pool.submit(of_program, waiting.pop(0), folder, library, limits))
    left = set(names) - {row["program"] for row in rows}
    print(f"{len(rows)} programs done; left: {', '.join(sorted(left)) or 'none'}", flush=True)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['program']:20s} {row['steps']} steps with delays: {'same bits' if row['same'] else 'OTHER BITS'}, "
        f"{row['spread']:,} of {row['launches']:,} launches spread; check: {row['checked']:,} launches, "
        f"{row['differing']} differences; with a range deleted: {row['noticed']} ({row['s']:.0f} s, "
        f"table {row['table_s']:.0f} s)"
    )


if __name__ == "__main__":
    main()
