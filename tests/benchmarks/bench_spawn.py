"""SPAWN's rule in the simulator and on an H200: the same programs, how many times as fast as flat.

python tests/benchmarks/bench_spawn.py          no GPU, g++; prints the tables of docs/spawn.md
python tests/benchmarks/bench_spawn.py --write docs/spawn.md

Measured: `tests/gpu/results/spawn.json`, made by `tileprof/examples/cuda/spawn/program`. The launch sites of each
program, with the items of each, come from the same source run flat on the CPU (`spawn_sites.cpp`). *Calibrates*: the
flat time at scale 14, by one time per item of each program; the time of a child besides its item, by its mean over the
programs at scale 14; what launches and rounds cost, which the programs measure themselves. *Tests*: every other column
at scale 14, and all of scale 16, flat, too. On the K20c items take as long in proportion; one of `bfs` 200 cycles.
"""

import argparse
import json
import subprocess
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
from measuring import ROOT

from tileprof.analysis.simulate.spawning import Spawning, spawn
from tileprof.analysis.workloads.nested import BASE_NS, CHILD_NS, ITEM_NS, spawns

RESULTS = ROOT / "tests/gpu/results/spawn.json"
SOURCES = ROOT / "tileprof/examples/cuda/spawn"
NOTING = ROOT / "tests/unit/runtime/emulated/noting.h"
RULES = ("always", "program", "spawn", "warp")
MEASURED = {"always": "always_us", "program": "threshold_us", "spawn": "spawn_us", "warp": "warp_us"}
H200 = Spawning(slots=132 * 32, resident=132 * 2048, queues=128, prior=0, untried=1024, lag_ns=700)
H200_BASE_NS = BASE_NS * 706 / 1755
"""As many cycles as on a K20c."""
PAPER = {"always": 1.69 / 1.57, "spawn": 1.69}
"""Times as fast as flat, means over 13 programs."""
BLOCKS = ("measured", "simulated and measured")
"""Generated parts of the page, between comments that name them."""


def sites(scale, names):
    """The programs as workloads whose items take a nanosecond."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "sites")
        flags = ["-std=c++17", "-w", "-O2", "-include", NOTING, f"-I{SOURCES}", "-x", "c++"]
        subprocess.run(["g++", *flags, ROOT / "tests/benchmarks/spawn_sites.cpp", "-o", program], check=True)
        result = subprocess.run([program, str(scale), *names], check=True, capture_output=True, text=True)
    matches = {}
    for line in map(json.loads, result.stdout.splitlines()):
        rounds, below = ([np.array(row, np.int64) for row in line[key]] for key in ("rounds", "below"))
        if below:
            below.append(np.zeros(int(below[-1].sum()), np.int64))
        matches[line["name"]] = spawns(line["name"], rounds, 1.0, below=below)
    return matches


def with_items(work, item_ns, base_ns, child_ns):
    return work._replace(item_ns=np.full(len(work.items), item_ns), base_ns=base_ns, child_ns=child_ns)


def calibrated(work, flat_us, options):
    """The time per item with which the flat program takes ``flat_us``."""
    low, high = 0.0, 1e3 * flat_us
    for _ in range(40):
        middle = (low + high) / 2
        time_ns = spawn(with_items(work, middle, H200_BASE_NS, 0.0), options, "flat").time_ns
        low, high = (middle, high) if time_ns < 1e3 * flat_us else (low, middle)
    return high


def gains(work, options, rules):
    flat = spawn(work, options, "flat").time_ns
    return {rule: flat / spawn(work, options, rule).time_ns for rule in rules}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", metavar="PAGE", type=Path)
    chosen = parser.parse_args()
    results = json.loads(RESULTS.read_text())
    lines, off = compared(results)
    near = [max(ratio, 1 / ratio) for rule in RULES for ratio in off[rule]]
    sentence = (
        f"The simulated gain is within a factor of 1.5 of the measured one in {sum(n <= 1.5 for n in near)} of "
        f"{len(near)} cells and within 2 in {sum(n <= 2 for n in near)}; flat at scale 16, from items timed at scale "
        f"14, is within 1.5 in {sum(max(n, 1 / n) <= 1.5 for n in off['flat'])} of {len(off['flat'])}."
    )
    lines += textwrap.wrap(sentence, 118)
    for block, text in zip(BLOCKS, ("\n".join(measured_table(results)), "\n".join(lines)), strict=True):
        print(text, end="\n\n")
        if chosen.write:
            begin, end = f"<!-- {block} -->\n", f"<!-- end of {block} -->"
            head, rest = chosen.write.read_text().split(begin)
            chosen.write.write_text(f"{head}{begin}{text}\n{end}{rest.split(end)[1]}")


def compared(results):
    """Markdown of both scales; by rule the ratios of simulated gains to measured ones, with those of flat's times."""
    lines, items, child_ns = [], {}, 0.0
    off = {rule: [] for rule in ("flat", *RULES)}
    for scale in (14, 16):
        costs, *measured = results[f"scale {scale}"]
        measured = {row["name"]: row for row in measured if "warp_us" in row}
        options = replace(
            H200, launch_ns=costs["first_ns"], another_ns=costs["another_ns"], serve_ns=costs["another_ns"],
            gap_ns=1e3 * costs["round_us"],
        )  # fmt: skip
        works = sites(scale, measured)
        if scale == 14:
            items = {name: calibrated(work, measured[name]["flat_us"], options) for name, work in works.items()}
            child_ns = max(0.0, median(row["always_child_ns"] - items[name] for name, row in measured.items()))
        shown = []
        for name, work in works.items():
            row = measured[name]
            on_h200 = with_items(work, items[name], H200_BASE_NS, child_ns)
            flat_us = spawn(on_h200, options, "flat").time_ns / 1e3
            off["flat"] += [flat_us / row["flat_us"]] if scale == 16 else []
            simulated = gains(on_h200, options, RULES)
            real = {rule: row["flat_us"] / row[key] for rule, key in MEASURED.items()}
            for rule in RULES:
                off[rule].append(simulated[rule] / real[rule])
            k20c = gains(with_items(work, ITEM_NS * items[name] / items["bfs"], BASE_NS, CHILD_NS), Spawning(), RULES)
            shown.append((name, k20c, simulated, real))
        lines += [f"Scale {scale}, times as fast as flat:", "", *table(shown), ""]
    return lines, off


def measured_table(results):
    """Markdown rows of microseconds and launches; programs at scale 14 where 16 was not run."""
    columns = "program, scale|flat|always|threshold 32|best threshold|SPAWN|by warps|launched: always / SPAWN / warps"
    yield f"| {columns.replace('|', ' | ')} |"
    yield "|---|---|---|---|---|---|---|---|"
    rows = {
        row["name"]: (scale, row) for scale in (14, 16) for row in results[f"scale {scale}"][1:] if "warp_us" in row
    }
    for name, (scale, row) in rows.items():
        times = [row[f"{key}_us"] for key in ("flat", "always", "threshold", "best", "spawn", "warp")]
        cells = [f"{us:,.0f}" for us in times]
        cells[3] += f" ({row['best_threshold']})"
        launched = " / ".join(f"{row[f'{key}_launched']:,}" for key in ("always", "spawn", "warp"))
        yield f"| {name}, {scale} | {' | '.join(cells)} | {launched} |"


def table(shown):
    """Markdown rows: per rule the K20c simulated, the H200 simulated, the H200 measured; geometric means last."""
    rules = ("always", "spawn", "warp")
    yield "| program | " + " | ".join(f"{rule}: K20c, H200 (simulated), H200 (measured)" for rule in rules) + " |"
    yield "|---|" + "---|" * len(rules)
    for name, *columns in shown:
        yield f"| {name} | " + " | ".join(cell(column[rule] for column in columns) for rule in rules) + " |"
    means = {rule: [geometric_mean(row[i][rule] for row in shown) for i in (1, 2, 3)] for rule in rules}
    yield "| geometric mean | " + " | ".join(cell(means[rule]) for rule in rules) + " |"
    yield "| the paper's mean | " + " | ".join(f"{PAPER[rule]:.2f}" if rule in PAPER else "" for rule in rules) + " |"


def cell(numbers):
    return ", ".join(f"{n:.2g}" if n < 0.1 else f"{n:.2f}" if n < 10 else f"{n:.0f}" for n in numbers)


if __name__ == "__main__":
    main()
