"""Attention between its products under the runtime's schedulers, and under their twins in the simulator.

python tests/benchmarks/simulator/bench_attention_twins.py [--write]    no GPU; the table of docs/ccks.md

As `bench_twins.py`, over `tests/gpu/results/attention.json`: one factor per chain on modelled lives, from the time of
the stages one by one. Tiles of attention have a life of their own by row, as later ones see more keys.
"""

import argparse
import json
from dataclasses import replace

import bench_twins
import numpy as np
from bench_twins import DEALT, H200, ROOT, SMS, WITHIN, in_rings, lives_us, tile_graph, ways
from measure_attention import measured_chains
from measuring import header, put

from tests.support.synthetic_graphs import footprint, trace
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.arrays.ragged import owners
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.persistent.cost import LAUNCH_US, clusters_on, task_us
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.stages.attention import Attention

RESULTS = ROOT / "tests/gpu/results/attention.json"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    header("Twins of attention between its products: measured on an H200 / simulated, us")
    rows, off = compared(json.loads(RESULTS.read_text()))
    rows.append(
        ["within 15%", *(f"{sum(abs(e) <= WITHIN for e in errors)} of {len(errors)}" for errors in off.values())]
    )
    lines = [*bench_twins.markdown(["chain", *off], rows)]
    print("\n".join(lines))
    if arguments.write:
        put(ROOT / "docs/ccks.md", "attention twins", lines)


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
