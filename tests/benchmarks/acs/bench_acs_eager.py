"""What `tileprof run --scheduler acs --threads 1` would make of programs that issue their launches themselves.

python tests/benchmarks/acs/bench_acs_eager.py            no GPU; prints the table of docs/acs.md
python tests/benchmarks/acs/bench_acs_eager.py --write    puts it there, and `RESULTS`

Measured: `tests/gpu/results/acs_bounds.json`, made by `tests/gpu/measuring/acs/measure_bounds.py` on an H200: what a
launch takes the host and what it takes the GPU. A step is simulated as that many launches, each dependent on the one
before, since programs whose GPU waits for the host stay in stream order under ACS. *Modelled* is the step with a thread
that issues (`acs-sw:events=1,queued=1`): it takes the driver's part of a launch (`host_issue_ns` of the H200) from the
program's thread, and what is left is 0.15 us. *Tests*: the step in stream order, and as a captured graph, which were
measured. `graph_gap_ns` of the H200 lies between the first and last instructions of kernels; durations of the profiler
contain most of it, so that the gap in graphs is that of `tests/gpu/results/acs.json`, measured with kernels of a known
length. `measure_acs_eager.py` measures what is modelled here.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import geometric_mean, mean, median

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, put

sys.path.insert(0, str(ROOT))  # the builders of the unit tests

from tests.support.synthetic_graphs import footprint, graph, one_to_one, trace
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.devices import get

MEASURED = ROOT / "tests/gpu/results/acs_bounds.json"
GAPS = ROOT / "tests/gpu/results/acs.json"
RESULTS = Path(__file__).parents[1] / "results" / "acs_eager.json"
H200 = get("H200")
BLOCK = "eager"


def chain(launches, gpu_us):
    """Return ``n`` launches of one tile, each dependent on the one before."""
    g = graph([1] * launches, [(at, at + 1, one_to_one(1)) for at in range(launches - 1)])
    rows = [
        {"footprint": 0, "timing": "modelled", "block_x": 128, "blocks_per_sm": 1, "duration_ns": round(1e3 * gpu_us)}
        for _ in range(launches)
    ]
    g.recording = trace(rows, {0: footprint(1, duration_ns=[1e3 * gpu_us])}, device=H200)
    return Simulator(g)


def graph_gap_ns():
    """Return the mean gap between kernels of a graph's one branch beyond the durations that the profiler gives them."""
    measured = [row["graph gaps, us"] for row in json.loads(GAPS.read_text()).values() if "graph gaps, us" in row]
    return max(0.0, 1e3 * mean(row["one: per kernel"] - row["kernel"] for row in measured))


def in_graph(gap_ns):
    return f"graph:gap={gap_ns}ns"


def captured_errors():
    """Return simulated over measured time less one of the captured programs of `measure_acs_simulated.py`."""
    measured = {}
    for rows in (part["rows"] for part in json.loads(GAPS.read_text()).values() if "graph gaps, us" in part):
        for row in rows:
            if row["mode"] == "plain" and "--graph" in row["program"]:
                measured.setdefault(row["program"], []).append(row)
    text, ratios = in_graph(graph_gap_ns()), []
    for rows in measured.values():
        count, kernels_us = next((row["kernels"], row["kernels_us"]) for row in rows if "kernels_us" in row)
        time_us = chain(count, kernels_us / count).run(scheduler(text)).time_ns / 1e3
        ratios.append(time_us / median(row["us"] for row in rows) - 1)
    return ratios


def simulated():
    """A row for each program: what was measured, and the step as simulated in stream order, captured, and under ACS."""
    rows, gap_ns = [], graph_gap_ns()
    for row in json.loads(MEASURED.read_text())["rows"]:
        simulator, issue = chain(row["launches"], row["gpu_us"]), f"issue={row['host_us']}us"
        ways = {
            "stream": f"stream:{issue}",
            "graph": f"graph:gap={gap_ns}ns",
            "acs": f"acs-sw:events=1,queued=1,{issue}",
        }
        times = {f"{way}_us": round(simulator.run(scheduler(text)).time_ns / 1e3, 1) for way, text in ways.items()}
        rows.append({**row, **{f"simulated_{key}": us for key, us in times.items()}})
    return rows


def gain(row):
    """Return the gain of the thread that issues, both times simulated."""
    return row["simulated_stream_us"] / row["simulated_acs_us"]


def errors(rows, simulated_key, measured_key):
    """Simulated over measured time less one, where it was measured."""
    return [row[f"simulated_{simulated_key}_us"] / row[measured_key] - 1 for row in rows if row[measured_key]]


def table(rows):
    """Markdown."""
    columns = (
        "program",
        "launches",
        "step, ms: measured / simulated",
        "captured",
        "`--threads 1` (modelled)",
        "gain (modelled)",
    )
    yield f"| {' | '.join(columns)} |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        captured = f"{row['graph_us'] / 1e3:.2f} / {row['simulated_graph_us'] / 1e3:.2f}" if row["graph_us"] else ""
        step = f"{row['step_us'] / 1e3:.2f} / {row['simulated_stream_us'] / 1e3:.2f}"
        threads = f"{row['simulated_acs_us'] / 1e3:.2f} | {gain(row):.2f}x"
        yield f"| `{row['program']}` | {row['launches']} | {step} | {captured} | {threads} |"
    yield f"| geometric mean | | | | | {geometric_mean(map(gain, rows)):.2f}x |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = simulated()
    lines = [*table(rows)]
    print("\n".join(lines))
    if options.write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        put(ROOT / "docs/acs.md", BLOCK, lines)


if __name__ == "__main__":
    main()
