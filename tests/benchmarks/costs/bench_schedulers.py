"""Every scheduler on a recorded program: its simulated time under each duration model, and the processor time of one
core that simulating it as recorded takes, with compiled code warm.

Give a trace; without one, GPT-2 small (12 layers, 128 tokens) is recorded first.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tileprof.analysis import build_graph
from tileprof.analysis.simulate import MODELS, SCHEDULERS, Simulator
from tileprof.errors import UserError
from tileprof.trace import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import header, table, tileprof


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
    begin = time.process_time()
    graph = build_graph(load(path))
    simulators = [Simulator(graph, lives=model) for model in MODELS.values()]
    built_s = time.process_time() - begin
    for entry in SCHEDULERS.values():
        simulators[0].run(entry)  # compiles
    rows, total_s = [], 0.0
    for name, entry in SCHEDULERS.items():
        begin = time.process_time()
        times = [simulators[0].run(entry).time_ns]
        took_s = time.process_time() - begin
        total_s += took_s
        times += [under(simulator, entry) for simulator in simulators[1:]]
        rows.append((name, *(f"{ns / 1e3:.1f}" for ns in times), f"{took_s:.2f}"))
    launches, tiles, edges = len(graph.launches), int(graph.tile_base[-1]), int(graph.links["edges"].sum())
    print(f"{launches:,} launches, {tiles:,} tiles, {edges:,} edges; graph built in {built_s:.2f} s\n")
    table(
        ["scheduler", *(f"{name}, us" for name in MODELS), "took s"],
        [*rows, ("all", *[""] * len(MODELS), f"{total_s:.2f}")],
    )


def under(simulator, entry):
    """Time under another duration model; NaN for a scheduler that knows recorded lives alone."""
    try:
        return simulator.run(entry).time_ns
    except UserError:
        return float("nan")


if __name__ == "__main__":
    main()
