"""The simulator on synthetic graphs with ten edges per tile: seconds of one core, compiled code warm.

Twenty launches; groups of ten tiles share the same ten parents; 132 SMs with one slot each.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, table

sys.path.insert(0, str(ROOT))  # the builders of the unit tests

from tests.support.synthetic_graphs import block, durations, graph
from tileprof.analysis.bounds.list_schedule import list_schedule
from tileprof.analysis.bounds.paths import paths
from tileprof.analysis.bounds.problem import problem, successors
from tileprof.analysis.simulate.engine.clocks import FULL, Sharing
from tileprof.analysis.simulate.engine.event_loop import Room, run
from tileprof.analysis.simulate.engine.plan import INSIDE, READY, Draft

LAUNCHES, PARENTS = 20, 10


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = parser.parse_args()
    header(f"simulate, {PARENTS} edges per tile")
    measure(1000)  # compiles
    table(
        [
            "tiles",
            "dataflow s",
            "cusync s",
            "stream s",
            "dataflow, roofline s",
            "dataflow, co-residency s",
            "list schedule s",
            "critical paths s",
        ],
        list(map(measure, options.tiles)),
    )


def measure(tiles):
    each = tiles // LAUNCHES
    parents = [[((PARENTS * g + j) % each, 1.0, 0.0) for j in range(PARENTS)] for g in range(each // PARENTS)]
    relation = block(parents, [t // PARENTS for t in range(each)])
    g = graph([each] * LAUNCHES, [(i, i + 1, relation) for i in range(LAUNCHES - 1)])
    p = problem(g, durations([[1.0 + t % 7 for t in range(each)]] * LAUNCHES), reuse=True)
    ones = np.ones(LAUNCHES, np.int64)
    room = Room(132, ones[:, None], ones, np.array([1], np.int64), each * ones)
    before = [set(), *({i} for i in range(LAUNCHES - 1))]
    plans = (
        Draft(LAUNCHES, gate=[READY] * LAUNCHES),
        Draft(LAUNCHES, gate=[INSIDE] * LAUNCHES, started=before),
        Draft(LAUNCHES, after=before),
    )
    links = successors(p)
    costs = [seconds(lambda draft=draft: run(p, links, draft.plan(), room)) for draft in plans]
    loads = np.full((LAUNCHES, 2), FULL // 100)
    models = Sharing(4, False, 0, loads), Sharing(room.sms, True, FULL, loads[:, :1].copy())
    costs += [seconds(lambda model=model: run(p, links, plans[0].plan(), room, model)) for model in models]
    costs += [seconds(lambda: list_schedule(p, ones, 132)), seconds(lambda: paths(p))]
    return [f"{tiles:,}", *(f"{cost:.2f}" for cost in costs)]


def seconds(work):
    begin = time.process_time()
    work()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
