"""On a GPU: programs whose threads launch child grids (`examples/cuda/spawn/program.cu`) under each rule for launches,
in several processes.

python tests/gpu/measuring/schedulers/measure_spawn.py tests/gpu/results/spawn.json [--scales 16] [--processes 2]
python tests/gpu/measuring/schedulers/measure_spawn.py tests/gpu/results/spawn_graphs.json --graphs FILE ... --search

Each process is an entry of the file, *scale 16, process f*: the lines that the program prints, first what launches
cost there, with the date, the driver and CUDA's version, then a line for each program; *cut* says why some are missing.
Other entries stay. Costs and a bound (`--untried`) other than the usual ones are in the entry's name before the scale,
so that `tests/benchmarks/spawn/bench_spawn.py` does not join such runs with the others. With ``--graphs`` the search,
shortest paths and colouring run on each graph instead (*graph FILE, process a*). An entry is written whenever a
program of it is known. Returns 1 if a process was cut or a result differed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from measure_delayed import SOURCES, device_name, spawn_names

ASSUMED = "45706,390.6"
"""Costs in ns that the rules assume: the first child's, as a process measured it that ran before, and another's."""
UNTRIED = 1024
WINDOW_LOG2, LEAST = 16, 32
LONG = ("colouring", "colouring-citation")
"""Programs that take minutes at scale 16."""
OF_FILES, LEAST_SCALE = ("bfs-file", "sssp-file", "colouring-file"), 5
"""Programs on the graph of a file, and the scale of inputs that are generated and not used then."""


def program_in(folder: Path) -> Path:
    """Return the program, which is compiled if the folder lacks it."""
    program = folder / "spawn"
    if not program.exists():
        flags = ["-O3", "-std=c++17", "-arch=sm_90", "-rdc=true"]
        command = ["nvcc", *flags, SOURCES / "spawn/program.cu", "-lcudadevrt", "-o", program]
        subprocess.run(command, check=True)
    return program


def machine() -> dict[str, str]:
    """Return the GPU, its driver, CUDA's version and the date."""
    name, _, driver = device_name().partition(", ")
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    cuda = re.search(r"release ([\d.]+)", version)
    return {"device": name, "driver": driver, "cuda": cuda[1] if cuda else "", "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def key_of(inputs: str, process: str, options: argparse.Namespace) -> str:
    """Return the name of an entry."""
    assumption = "" if options.costs == ASSUMED else "assuming its own costs, "
    if assumption and options.costs:
        assumption = f"assuming {float(options.costs.split(',', maxsplit=1)[0]):,.0f} ns, "
    bound = "" if options.untried == UNTRIED else f"untried {options.untried}, "
    return f"{assumption}{bound}{inputs}, process {process}"


def unused(results: dict[str, Any]) -> Iterator[str]:
    """Yield names of processes that no entry has."""
    used = {match[1] for key in results if (match := re.search(r"process (\w+)$", key))}
    return (name for name in chain(ascii_lowercase, map(str, count(1))) if name not in used)


def lines_of(command: list[str | Path], limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield what the program prints, and last *cut* if it was ended after limit_s seconds or died."""
    differing = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        timer = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        for line in process.stdout or ():
            if line.startswith("{") and line.endswith("}\n"):
                row = json.loads(line)
                differing |= not row.get("right", True)
                yield row
        code = process.wait()
        timer.cancel()
    if code and not (differing and code == 1):
        yield {"cut": f"signal {-code}, at most {limit_s:g} s" if code < 0 else f"exit {code}"}


def written(results: dict[str, Any]) -> str:
    """Return the text of the file, lists of numbers on one line."""
    numbers = re.compile(r"\[\s+([\d\s.,-]+?)\s+\]")
    text = numbers.sub(lambda match: f"[{' '.join(match[1].split())}]", json.dumps(results, indent=1))
    return f"{text}\n"


def measure(
    results: dict[str, Any], key: str, command: list[str | Path], limit_s: float, here: dict[str, str], *, quiet: bool
):
    """Run a process as the entry ``key`` of results; yield whenever a line is known, whether it is as it should be.
    ``quiet``: times are not printed.
    """
    rows: list[dict[str, Any]] = []
    for row in lines_of(command, limit_s):
        if "cut" in row:
            if rows:
                rows[0] |= row
            print(key, row["cut"], flush=True)
        elif not rows:
            results[key] = rows
            rows.append({**{name: here[name] for name in ("date", "driver", "cuda")}, **row})
        else:
            rows.append(row)
            shown = (name for name in row if name in {"name", "right"} or (name.endswith("_us") and not quiet))
            print(key, *(f"{name} {row[name]}" for name in shown))
        yield row.get("right", "cut" not in row)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="results file; entries of other processes in it stay")
    parser.add_argument("--scales", type=int, nargs="+", default=[16], help="log2 of vertices or rows (16)")
    parser.add_argument("--processes", type=int, default=2, help="number of processes per scale (2)")
    parser.add_argument("--replace", nargs="+", default=[], metavar="PROCESS", help="names of entries to write anew, f")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each program and rule in a process (7)")
    parser.add_argument(
        "--costs", default=ASSUMED, metavar="FIRST,ANOTHER", help=f"ns that rules assume ({ASSUMED}); '': own"
    )
    parser.add_argument("--untried", type=int, default=UNTRIED, help=f"blocks before a child has ended ({UNTRIED})")
    parser.add_argument("--search", action="store_true", help="search the best threshold, too, which takes longer")
    parser.add_argument("--graphs", type=Path, nargs="+", default=[], metavar="FILE", help="instead of scales: graphs")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="programs; default: all but colouring")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a process is ended (60)")
    parser.add_argument("--quiet", action="store_true", help="print no times: of scales that are held out")
    parser.add_argument("--built", type=Path, help="folder for the compiled program, kept")
    options = parser.parse_args(words)
    names = options.names or (OF_FILES if options.graphs else [name for name in spawn_names() if name not in LONG])
    here = machine()
    results = json.loads(options.output.read_text()) if options.output.exists() else here.copy()
    if results["device"] != here["device"]:
        parser.error(f"{options.output} has results of {results['device']}, and this is {here['device']}")
    processes, all_right = chain(options.replace, unused(results)), True
    inputs = [(LEAST_SCALE, graph) for graph in options.graphs] or [(scale, None) for scale in options.scales]
    with tempfile.TemporaryDirectory() as folder:
        program = program_in(options.built or Path(folder))
        for _ in range(options.processes):
            for scale, graph in inputs:
                command = [program, *([f"--costs={options.costs}"] if options.costs else [])]
                command += [f"--graph={graph}"] if graph else []
                command += [] if options.search else ["--no-search"]
                command += [*map(str, (options.repeats, scale, WINDOW_LOG2, LEAST, options.untried)), *names]
                key = key_of(f"graph {graph.stem}" if graph else f"scale {scale}", next(processes), options)
                for right in measure(results, key, command, options.limit, here, quiet=options.quiet):
                    all_right &= right
                    partial = options.output.with_suffix(".partial")
                    partial.write_text(written(results))
                    partial.replace(options.output)
    return not all_right


if __name__ == "__main__":
    raise SystemExit(main())
