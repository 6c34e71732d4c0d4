"""Dependencies by Bloom filter in the simulator and on an H200: the same blocks, the same filters.

python tests/benchmarks/filters/bench_bloom.py          no GPU, g++; prints the table of docs/bloom.md
python tests/benchmarks/filters/bench_bloom.py --write  puts it there

Measured: `tests/gpu/results/bloom.json`, made by `tileprof/examples/cuda/bloom.cu`, two workers for each SM. Its blocks
come from the same source on the CPU (`bloom_blocks.cpp`). *Calibrates*: the time kernel after kernel of each program,
by one factor on lives of blocks, whose ratio is 8 loads of 340 ns and 8 words of 14 ns for each round of arithmetic;
and the time with filters of 2,048 bits of program 1, by one factor on look-ups: the program measured these from one
block, and 264 blocks ask at a time. A look-up alone takes 1.8 to 4.0 us in twelve programs with equal filters, by the
64 ranges that are asked; the median of a size's programs stands for all. *Tests*: the exact graph, and the other times
with filters. Signals take two accesses of L2.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, put

sys.path.insert(0, str(ROOT))  # the builders of the unit tests

from tests.support.synthetic_graphs import block, footprint, graph, trace
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.devices import get
from tileprof.trace.footprint import Boxes

RESULTS = ROOT / "tests/gpu/results/bloom.json"
EMULATED = ROOT / "tests/support/emulated/bloom_threads.h"
INCLUDE = ROOT / "tileprof/runtime/include"
SOURCE = ROOT / "tileprof/examples/cuda"
PAGE = 4096
SIGNAL_NS = 700
LOADS_NS, ROUND_NS = 8 * 340, 8 * 14
KERNELS = f"graph:gap={SIGNAL_NS}ns,issue=0ns"
"""Kernel after kernel."""
WINDOW = 512
BASE = 0x7F0000000000
"""The lowest address that the program declares; filters hash addresses."""
WORKERS = 2
"""For each SM."""
CLOSE = 4e-3
CALIBRATED = 2048, 1
"""Bits and program with which the factor on look-ups is found."""
BLOCK = "bloom twins"


def blocks_of(seed):
    """Kernel, written page, rounds, and read pages of each block."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "blocks")
        flags = ["-std=c++17", "-w", "-pthread", "-include", EMULATED, f"-I{INCLUDE}", f"-I{SOURCE}", "-x", "c++"]
        subprocess.run(["g++", *flags, ROOT / "tests/benchmarks/filters/bloom_blocks.cpp", "-o", program], check=True)
        result = subprocess.run([program, str(seed)], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def tile_graph(works, factor):
    """Kernels as launches, blocks as tiles, every conflict an edge."""
    kernels = np.array([work[0] for work in works])
    begins = [*np.flatnonzero(np.diff(kernels, prepend=-1)).tolist(), len(works)]
    feet, links = {}, []
    device = replace(get("H200"), blocks_per_sm=WORKERS)
    for number, (begin, end) in enumerate(pairwise(begins)):
        boxes = []
        for tile, (_, to, _, reads) in enumerate(works[begin:end]):
            for page, mode in (*((page, 0) for page in reads), (to, 1)):
                boxes.append(Boxes.of(tile=tile, operand=0, mode=mode, offset=page * PAGE, length=PAGE))
        lives = [factor * (LOADS_NS + ROUND_NS * work[2]) for work in works[begin:end]]
        feet[number] = footprint(end - begin, Boxes.concat(boxes), duration_ns=lives)
    for consumer, (begin, end) in enumerate(pairwise(begins)):
        for producer, (first, last) in enumerate(pairwise(begins[: consumer + 1])):
            sets = [
                [(at, 1.0, 0.0) for at, before in enumerate(works[first:last]) if conflicts(before, after)]
                for after in works[begin:end]
            ]
            if any(sets):
                parent_sets = [parents for parents in sets if parents]
                places = np.cumsum([bool(parents) for parents in sets]) - 1
                of = [int(place) if parents else -1 for place, parents in zip(places, sets, strict=True)]
                links.append((producer, consumer, block(parent_sets, of)))
    rows = [
        {"footprint": n, "timing": "modelled", "block_x": 128, "blocks_per_sm": WORKERS,
         "duration_ns": round(float(feet[n].duration_ns.max()))}
        for n in feet
    ]  # fmt: skip
    g = graph([feet[n].tiles for n in feet], links)
    operands = [{"launch": n, "buffer": 0, "offset": 0} for n in feet]
    buffers = [{"buffer": 0, "base": BASE, "bytes": 5 * 192 * PAGE}]
    g.recording = trace(rows, feet, operands=operands, buffers=buffers, device=device)
    return g


def conflicts(before, after):
    """Whether two blocks touch a page that one of them writes."""
    return before[1] == after[1] or before[1] in after[3] or after[1] in before[3]


def reached(us, most, time_of):
    """The number, of at most ``most``, with which time_of(it) is ``us``."""
    low, high = 0.0, most
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if time_of(middle) < us else (low, middle)
    return high


def time_us(simulator, text):
    return simulator.run(scheduler(text)).time_ns / 1e3


def with_filters(simulator, row, look_up_factor):
    """Microseconds with the filters of a row of the results."""
    look_up = f"look_up={look_up_factor * row['look_up_ns']}ns"
    filters = (
        f"bits={row['bits']},hashes=2,granule=512,insert={row['insert_ns']}ns,signal={SIGNAL_NS}ns,window={WINDOW}"
    )
    return time_us(simulator, f"dataflow-bloom:{filters},{look_up}")


def with_median_look_ups(rows):
    """The rows, each with the median time of a look-up of all with filters of its size."""
    times_by_bits = {}
    for row in rows:
        times_by_bits.setdefault(row["bits"], []).append(row["look_up_ns"])
    return [row | {"look_up_ns": median(times_by_bits[row["bits"]])} for row in rows]


def comparison():
    """Rows of the table: bits, program, measured times by mode, simulated ones, and whether they were calibrated with;
    the factor on look-ups.
    """
    results = with_median_look_ups(json.loads(RESULTS.read_text())["rows"])
    measured = [{run["mode"]: run["us"] for run in row["runs"]} for row in results]
    simulators = {}
    for row, us in zip(results, measured, strict=True):
        if row["seed"] not in simulators:
            works = blocks_of(row["seed"])
            assert len(works) == row["runs"][0]["blocks"], "the source makes other blocks than were measured"
            factor = reached(us["kernels"], 16.0, lambda f, w=works: time_us(Simulator(tile_graph(w, f)), KERNELS))
            simulators[row["seed"]] = Simulator(tile_graph(works, factor))
    at = next(n for n, row in enumerate(results) if (row["bits"], row["seed"]) == CALIBRATED)
    simulator = simulators[results[at]["seed"]]
    look_ups = reached(measured[at]["filters"], 64.0, lambda f: with_filters(simulator, results[at], f))
    rows = []
    for number, (row, us) in enumerate(zip(results, measured, strict=True)):
        simulator = simulators[row["seed"]]
        exact_us = time_us(simulator, f"dataflow:signal={SIGNAL_NS}ns")
        simulated = {"exact": exact_us, "filters": with_filters(simulator, row, look_ups)}
        rows.append((row["bits"], row["seed"], us, simulated, number == at))
    return rows, look_ups


def errors(rows, mode):
    """Simulated over measured time less one, of those that nothing was calibrated with; each program's exact graph
    once.
    """
    test_rows = [row for row in rows if (not row[4] if mode == "filters" else row[0] == CALIBRATED[0])]
    return [simulated[mode] / us[mode] - 1 for _, _, us, simulated, _ in test_rows]


def table(rows):
    """Markdown."""
    yield "| bits per filter | program | exact graph: measured / simulated | filters: measured / simulated |"
    yield "|---|---|---|---|"
    for bits, seed, us, simulated, is_calibrated in rows:
        cells = [f"{us[m]:,.0f} / {simulated[m]:,.0f} ({simulated[m] / us[m] - 1:+.0%})" for m in ("exact", "filters")]
        cells[1] += ", calibrated" if is_calibrated else ""
        yield f"| {bits:,} | {seed} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows, look_ups = comparison()
    lines = [*table(rows), "", f"Look-ups take {look_ups:.1f} times as long as from one block."]
    print("\n".join(lines))
    if options.write:
        put(ROOT / "docs/bloom.md", BLOCK, lines)


if __name__ == "__main__":
    main()
