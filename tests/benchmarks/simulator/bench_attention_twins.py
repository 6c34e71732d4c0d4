"""Attention between its products under the runtime's schedulers, and under their twins in the simulator.

python tests/benchmarks/simulator/bench_attention_twins.py [--write]    no GPU; the table of docs/ccks.md,
    and rows of docs/simulator-accuracy.md and of notebooks/data/twins.csv

As `bench_twins.py`, over `tests/gpu/results/attention.json`: one factor per chain on modelled lives, from the time of
the stages one by one. Tiles of attention have a life of their own by row, as later ones see more keys.
"""

import argparse
import json
from dataclasses import replace

import bench_twins
import numpy as np
from bench_twins import (
    ATTENTION,
    DEALT,
    H200,
    ROOT,
    SMS,
    TWINS,
    WITHIN,
    attention_twins,
    csv_line,
    in_rings,
    lives_us,
    markdown,
    tile_graph,
    ways,
)
from measure_attention import measured_chains
from measuring import header, put

from tests.support.synthetic_graphs import footprint, trace
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.arrays.ragged import owners
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.persistent.cost import LAUNCH_US, clusters_on, task_us
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.stages.attention import Attention

RESULTS, ACCURACY = ROOT / "tests/gpu/results/attention.json", ROOT / "docs/simulator-accuracy.md"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    header("Twins of attention between its products: measured on an H200 / simulated, us")
    rows, off = compared(json.loads(RESULTS.read_text()))
    rows.append(
        ["within 15%", *(f"{sum(abs(e) <= WITHIN for e in errors)} of {len(errors)}" for errors in off.values())]
    )
    lines = [*markdown(["chain", *off], rows)]
    print("\n".join(lines))
    if arguments.write:
        put(ROOT / "docs/ccks.md", "attention twins", lines)
        ATTENTION.write_text(json.dumps({way: [round(e, 4) for e in errors] for way, errors in off.items()}) + "\n")
        twins = [*attention_twins()]
        for path, texts in ((ACCURACY, map(line_of, twins)), (TWINS, map(csv_line, twins))):
            path.write_text(with_rows(path.read_text(), [*texts]))


def line_of(row):
    """A row as a line of Markdown."""
    return [*markdown((), [row])][-1]


def with_rows(text, rows):
    """A page or table with rows of attention behind those of `measure_dealers.py`, instead of those that it had."""
    lines = [line for line in text.splitlines() if " chains of measure_attention.py" not in line.replace("`", "")]
    last = max(n for n, line in enumerate(lines) if " chains of measure_dealers.py" in line.replace("`", ""))
    return "\n".join([*lines[: last + 1], *rows, *lines[last + 1 :]]) + "\n"


def compared(results):
    """Rows of the table, and errors by column."""
    rows, off = [], {}
    for name, chain in measured_chains(results).items():
        us, policy, cells = results["us"][name], chain.policy(), [name]
        lists, dealt = (plan_of(policy, chain, clusters=clusters_on(SMS), cuts=cuts) for cuts in (True, False))
        factor = bench_twins.calibrated(lists, us["persistent-stages"])
        texts = [(way, way, text) for way, text in ways().items()]
        texts += [(f"{way}, rings", way, in_rings(dealt, Choices(speculate=way == "ccks"))) for way in DEALT]
        for column, way, text in texts:
            simulated_us = time_us(lists if way == "persistent" else dealt, factor, text)
            off.setdefault(column, []).append(simulated_us / us[way] - 1)
            cells.append(f"{us[way]:.1f} / {simulated_us:.1f} ({off[column][-1]:+.0%})")
        rows.append(cells)
    return rows, off


def time_us(plan, factor, text):
    """The plan's time under a scheduler, with one launch's costs."""
    lives_ns = [1e3 * factor * life for life in by_task_us(plan)]
    same = {"timing": "modelled", "block_x": 128, "blocks_per_sm": 1}
    launches = [{"footprint": n, "duration_ns": round(life.mean()), **same} for n, life in enumerate(lives_ns)]
    feet = {n: footprint(stage.tasks, duration_ns=lives_ns[n]) for n, stage in enumerate(plan.stages)}
    graph = tile_graph(plan)
    graph.recording = trace(launches, feet, device=replace(H200, sms=plan.clusters, blocks_per_sm=1))
    return Simulator(graph).run(scheduler(text)).time_ns / 1e3 + LAUNCH_US + H200.graph_gap_ns / 1e3


def by_task_us(plan):
    """Modelled times of the tasks of each stage, in the order of `tile_graph`."""
    turn = np.arange(len(plan.tasks)) - plan.task_ptr[owners(plan.task_ptr)]
    for number, (stage, life) in enumerate(zip(plan.stages, lives_us(plan), strict=True)):
        mine = np.flatnonzero(plan.tasks[:, 0] == number)
        rows = plan.tasks[mine[np.argsort(turn[mine], kind="stable")], 1]
        yield task_us(stage, plan.split)[rows] if isinstance(stage.operator, Attention) else np.full(len(mine), life)


if __name__ == "__main__":
    main()
