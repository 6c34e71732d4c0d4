"""Schedulers of the runtime and their twins in the simulator: measured and simulated times of the same plans.

python tests/benchmarks/bench_twins.py          no GPU; prints the table of docs/ccks.md

Measured: `tests/gpu/results/dealers.json`, made by `tests/gpu/measuring/measure_dealers.py` on an H200. The tile graph
of each chain is read off the plan that the runtime made: one task per tile, edges from the tasks that post a semaphore
to those that wait for it. *Calibrates*: the time of the stages one by one, by one factor per chain on the lives that
`tileprof.runtime.persistent.cost` models. *Tests*: every other column; none of them has been used for a constant.

Constants of the schedulers were measured apart from the chains. An access of L2 takes 0.35 us (arXiv:2402.13499).
In `persistent-dynamic` a completion counts an event up, counts the waiting tile's events, draws a place in the queue
and is seen there; a worker draws its ticket. The link (docs/ccks.md, `link_times.cu`): round trips by the number of
blocks that use it, of which each worker spends a read and a release of its own time per tile.

The co-pilot's columns are simulated by its own dealing (`dealt_plans.py`). A tile's life there leaves out what a
boundary of stages costs (`predict.BOUNDARY_US`, from 50 other gains), and a loader that waits fetches weights
meanwhile.
"""

import json
import sys
from dataclasses import replace

import numpy as np
from dealt_plans import Dealt
from measuring import ROOT, header, table

sys.path.insert(0, str(ROOT / "tests/gpu/measuring"))  # the chains
sys.path.insert(0, str(ROOT))  # the builders of the unit tests

from measure_dealers import SMS, timed

from tests.unit.analysis.fakes import block, footprint, graph, trace
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.arrays.ragged import owners
from tileprof.devices import get
from tileprof.runtime.copilot.choices import Choices
from tileprof.runtime.persistent.cost import LAUNCH_US, clusters_on, stage_us
from tileprof.runtime.persistent.lower import plan_of
from tileprof.runtime.persistent.predict import BOUNDARY_US

RESULTS = ROOT / "tests/gpu/results/dealers.json"
H200 = get("H200")
L2_NS = 350
READ_NS, RELEASE_NS = 1060, 520
"""A word of the CPU's memory, from the GPU."""
ROUND_TRIP_NS = {1: 3000, 8: 3200, 32: 4100, 132: 5000}
"""Completion, answer and pick-up, by the number of blocks that use the link."""
DECIDE_NS = 40
WITHIN = 0.15
DEALT = {
    "ccks": Choices(),
    "ccks-ready": Choices(speculate=False),
    "ccks, depth 3": Choices(depth=3),
    "ccks-ready, stage order": Choices(speculate=False, order="stages"),
}


def main():
    header("Twins: measured on an H200 and simulated, us")
    measured = json.loads(RESULTS.read_text())["us"]
    rows, off = [], {}
    for name, chain in timed().items():
        if name not in measured:
            continue
        policy = chain.policy()
        dealt = []
        whole = {cuts: plan_of(policy, chain, clusters=clusters_on(SMS), cuts=cuts) for cuts in (True, False)}
        life_factor = calibrated(whole[True], measured[name]["persistent-stages"])
        cells = [name, f"{measured[name]['persistent-stages']:.1f}"]
        for way, text in ways().items():
            plan = whole[way == "persistent"]
            actual = time_us(plan, life_factor, text)
            off.setdefault(way, []).append(actual / measured[name][way] - 1)
            cells.append(f"{measured[name][way]:.1f} / {actual:.1f} ({off[way][-1]:+.0%})")
        for way, choices in DEALT.items():
            measured_us = measured[name].get(way)
            if measured_us is None:
                continue
            actual = dealt_us(whole[False], whole[True], measured[name]["persistent-stages"], choices)
            off.setdefault(way, []).append(actual / measured_us - 1)
            dealt.append(f"{measured_us:.1f} / {actual:.1f} ({off[way][-1]:+.0%})")
        rows.append([*cells, *dealt])
    table(["chain", "stages (calibrates)", "persistent", "persistent-dynamic", *DEALT], rows)
    near = {way: int((np.abs(errors) <= WITHIN).sum()) for way, errors in off.items()}
    table(
        ["scheduler", f"within {WITHIN:.0%}", "mean difference", "worst"],
        [(way, f"{near[way]} of {len(e)}", f"{np.mean(e):+.0%}", f"{max(e, key=abs):+.0%}") for way, e in off.items()],
    )


def dealt_us(plan, cut, stages_us, choices):
    """A plan under the co-pilot; ``cut`` is the plan whose stages one by one took ``stages_us``."""
    gap = H200.graph_gap_ns / 1e3
    alone = [stage_us(stage, cut.split, min(cut.clusters, stage.tasks)) for stage in cut.stages]
    factor = (stages_us - (gap + BOUNDARY_US) * len(alone)) / sum(alone)
    link = {"read": READ_NS / 1e3, "release": RELEASE_NS / 1e3, "decide": DECIDE_NS / 1e3}
    trip = float(np.interp(plan.clusters, list(ROUND_TRIP_NS), list(ROUND_TRIP_NS.values()))) / 1e3
    lives = [factor * us for us in lives_us(plan)]
    return Dealt(plan, lives, choices, trip=trip, **link).run() + BOUNDARY_US + gap


def ways():
    """Schedulers of the simulator by the names of their twins."""
    return {
        "persistent": "persistent",
        "persistent-dynamic": f"persistent-dynamic:scheduler_sms=0,decide=0ns,signal={2 * L2_NS}ns,"
        f"deliver={2 * L2_NS}ns,fetch={L2_NS}ns",
    }


def modelled_stage_us(plan, gap_us):
    """Every stage alone, by the runtime's model of tiles."""
    busiest = [stage_us(stage, plan.split, min(plan.clusters, stage.tasks)) for stage in plan.stages]
    return [us + gap_us + LAUNCH_US for us in busiest]


def calibrated(plan, measured_us):
    """The factor on modelled lives with which the stages, one launch each, take the time that was measured."""
    gap = H200.graph_gap_ns / 1e3
    fixed = (gap + LAUNCH_US) * len(plan.stages)
    return (measured_us - fixed) / (sum(modelled_stage_us(plan, gap)) - fixed)


def lives_us(plan):
    """Modelled time of a task of each stage: of the stage alone, over its rounds."""
    alone = modelled_stage_us(plan, 0.0)
    return [
        (us - LAUNCH_US) / -(-stage.tasks // min(plan.clusters, stage.tasks))
        for us, stage in zip(alone, plan.stages, strict=True)
    ]


def time_us(plan, factor, text):
    """The plan on a machine whose SMs are the plan's clusters, under a scheduler, with one launch's costs."""
    g = tile_graph(plan)
    lives = [1e3 * factor * us for us in lives_us(plan)]
    launches = [
        {"footprint": number, "timing": "modelled", "block_x": 128, "blocks_per_sm": 1, "duration_ns": round(life)}
        for number, life in enumerate(lives)
    ]
    feet = {n: footprint(stage.tasks, duration_ns=lives[n]) for n, stage in enumerate(plan.stages)}
    g.recording = trace(launches, feet, device=replace(H200, sms=plan.clusters, blocks_per_sm=1))
    return Simulator(g).run(scheduler(text)).time_ns / 1e3 + LAUNCH_US + H200.graph_gap_ns / 1e3


def tile_graph(plan):
    """Tasks as tiles, in the order of the plan's lists within a stage; edges by semaphores."""
    stage = plan.tasks[:, 0]
    turn = np.arange(len(stage)) - plan.task_ptr[owners(plan.task_ptr)]
    order = np.lexsort((turn, stage))
    place = np.empty(len(stage), int)
    counts = np.bincount(stage, minlength=len(plan.stages))
    place[order] = np.arange(len(stage)) - np.repeat(np.cumsum(counts) - counts, counts)
    posters = [[] for _ in range(plan.semaphores)]
    for task, semaphore in zip(owners(plan.post_ptr), plan.posts, strict=True):
        posters[semaphore].append(int(task))
    parents = {}
    for task, (begin, _, semaphore, _, _) in zip(owners(plan.wait_ptr), plan.waits, strict=True):
        needs = begin / plan.stages[stage[task]].k_blocks
        for poster in posters[semaphore]:
            link = parents.setdefault((int(stage[poster]), int(stage[task])), {})
            mine = link.setdefault(int(place[task]), {})
            mine[int(place[poster])] = min(mine.get(int(place[poster]), 1.0), needs)
    links = []
    for (producer, consumer), by_tile in sorted(parents.items()):
        sets = [[(parent, 1.0, first) for parent, first in sorted(by_tile[tile].items())] for tile in sorted(by_tile)]
        of = [-1] * int(counts[consumer])
        for number, tile in enumerate(sorted(by_tile)):
            of[tile] = number
        links.append((producer, consumer, block(sets, of)))
    return graph([int(n) for n in counts], links)


if __name__ == "__main__":
    main()
