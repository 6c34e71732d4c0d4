"""Every scheduler on a recorded program: its simulated time, and what simulating it takes with compiled code warm.

Give a trace; without one, GPT-2 small (12 layers, 128 tokens) is recorded first.
"""

import argparse
import tempfile
import time
from pathlib import Path

from measuring import header, table, tileprof

from tileprof.analysis import build_graph
from tileprof.analysis.simulate import SCHEDULERS, Simulator
from tileprof.trace import load


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.trace or str(Path(folder) / "gpt2.tileprof")
        if not options.trace:
            tileprof("record", "-o", path, "--", "python", "-m", "tileprof.examples.gpt2")
        measure(path)


def measure(path):
    header("simulate, every scheduler")
    begin = time.perf_counter()
    graph = build_graph(load(path))
    simulator = Simulator(graph)
    built_s = time.perf_counter() - begin
    for chosen in SCHEDULERS.values():
        simulator.run(chosen)  # compiles
    rows, total_s = [], 0.0
    for name, chosen in SCHEDULERS.items():
        begin = time.perf_counter()
        found = simulator.run(chosen)
        took_s = time.perf_counter() - begin
        total_s += took_s
        rows.append((name, f"{found.time_ns / 1e3:.1f}", f"{took_s:.2f}"))
    launches, tiles, edges = len(graph.launches), int(graph.tile_base[-1]), int(graph.links["edges"].sum())
    print(f"{launches:,} launches, {tiles:,} tiles, {edges:,} edges; graph built in {built_s:.2f} s\n")
    table(["scheduler", "simulated us", "took s"], [*rows, ("all", "", f"{total_s:.2f}")])


if __name__ == "__main__":
    main()
