"""Schedulers of the runtime and their twins in the simulator: measured and simulated times of the same plans.

python tests/benchmarks/simulator/bench_twins.py          no GPU; prints tables of docs/ccks.md, simulator-accuracy.md
python tests/benchmarks/simulator/bench_twins.py --write          puts them there, and in notebooks/data
python tests/benchmarks/simulator/bench_twins.py --held-out FILE  with what `measure_deadlines.py --held-out` wrote
python tests/benchmarks/simulator/bench_twins.py --progress FILE   keeps each simulated part in FILE, and takes what an
                                                  earlier call with it has simulated; delete it after a change of the
                                                  simulator or of measured times. `--seconds` ends the call early.

Measured: `tests/gpu/results/dealers.json`, made by `tests/gpu/measuring/schedulers/measure_dealers.py` on an H200. The
tile graph of each chain is read off the plan that the runtime made: one task per tile, edges from the tasks that post a
semaphore to those that wait for it. *Calibrates*: the time of the stages one by one, by one factor per chain on the
lives that `tileprof.runtime.persistent.cost` models. *Tests*: every other column; none of them has been used for a
constant.

Constants of the schedulers were measured apart from the chains. An access of L2 takes 0.35 us (arXiv:2402.13499).
In `persistent-dynamic` a completion counts an event up, counts the waiting tile's events, draws a place in the queue
and is seen there; a worker draws its ticket. The link is the
device's: half the round trip of 132 blocks each way.

The co-pilot's columns are the simulator's `ccks`; those behind *rings* have a `depth`, as the co-pilot: tiles that are
sent to a cluster stay there, a worker reads each command over the link, and the round trip is that of as many blocks as
there are clusters. Two programs: ends, from the first end of a tile on, as the co-pilot counts them, from the time of
each stage alone; pairs of `HELD_OUT` were drawn before they were measured, and their times stay in a file that is read
only with ``--held-out``, once the model is final.

Launches from kernels and attention are not simulated here: `bench_spawn.py --write` leaves times of the first, which
take minutes, and `bench_attention_twins.py --write` errors of the second.

Other rows of the table of docs/simulator-accuracy.md: chains of `tests/gpu/results/runtime.json`, predicted from the
time of each stage alone when they were measured; steps of PyTorch programs from what a launch takes the host and the
GPU (`bench_acs_eager.py`); blocks of `bloom.cu` from the time kernel after kernel (`bench_bloom.py`).
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, put

sys.path.insert(0, str(ROOT / "tests/gpu/measuring/schedulers"))  # the chains
sys.path.insert(0, str(ROOT))  # the builders of the unit tests

from measure_deadlines import HELD_OUT, ORDERS, PAIRS
from measure_deadlines import cases as cases_of_deadlines
from measure_dealers import SMS, timed_chains

from tests.benchmarks.acs import bench_acs_eager
from tests.benchmarks.filters import bench_bloom
from tests.benchmarks.spawn import bench_spawn
from tests.integration.docs import acs_results
from tests.support.synthetic_graphs import block, footprint, graph, trace
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.arrays.ragged import owners
from tileprof.devices import get
from tileprof.runtime.copilot.choices import Choices, programs
from tileprof.runtime.persistent.cost import FINISH_US, LAUNCH_US, clusters_on, stage_us
from tileprof.runtime.persistent.source import Options, k_blocks_under_way
from tileprof.runtime.persistent.task_lists import plan_of

RESULTS = ROOT / "tests/gpu/results/dealers.json"
H200 = get("H200")
L2_NS = 350
ONE_WAY_US = H200.link_one_way_ns(H200.sms) / 1e3
DECIDE_NS = 40
WITHIN = 0.15
DEALT = ("ccks", "ccks-ready")
TWO_PROGRAMS = {
    "deadline, depth 1": "1 tile",
    "deadline": "2 tiles",
    "deadline, depth 5": "5 tiles",
    "deadline, overwrite": "2 tiles, overwritten",
    "deadline, overwrite, depth 5": "5 tiles, overwritten",
}
LATENCIES_US = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.5, 5.0, 7.0, 10.0, 20.0)
"""Latencies of the link, one way, in the notebook's curves."""
CURVES, TWINS = (ROOT / f"notebooks/data/{name}.csv" for name in ("ccks_twins", "twins"))
ATTENTION = ROOT / "tests/benchmarks/results/attention_twins.json"
"""Errors of chains with attention by scheduler, which `bench_attention_twins.py --write` leaves."""
SCHEDULERS = {
    "persistent": "`persistent`, static lists",
    "persistent-dynamic": "`persistent-dynamic`, a queue on the GPU",
    "ccks": "`ccks`, tiles sent ahead",
    "ccks-ready": "`ccks`, tiles that are ready",
    "ccks, rings": "`ccks:depth=2`, tiles sent ahead",
    "ccks-ready, rings": "`ccks:depth=2`, tiles that are ready",
}
TWIN_COLUMNS = "scheduler", "workloads", "within 15%", "or in the GPU's range", "median error", "worst"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--held-out", metavar="FILE", type=Path)
    parser.add_argument("--progress", metavar="FILE", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    once = Progress(arguments.progress, arguments.seconds)
    header("Twins: measured on an H200 and simulated, us")
    rows, off, curves = chains_compared(once)
    columns = ["chain", "stages one by one", *ways(), *(f"{way}, rings" for way in DEALT)]
    pairs = json.loads(RESULTS.read_text())["deadlines"]
    pairs += json.loads(arguments.held_out.read_text()) if arguments.held_out else []
    two, two_off = programs_compared(pairs, once)
    near = ["within 15%", "", *(f"{sum(abs(e) <= WITHIN for e in errors)} of {len(errors)}" for errors in off.values())]
    by_chain = [*markdown(columns, [*rows, near])]
    twins = [*all_twins(off | two_off, once)]
    summary = [*markdown(TWIN_COLUMNS, twins)]
    tables = ("ccks", "twins", by_chain), ("ccks", "two programs", two), ("simulator-accuracy", "all twins", summary)
    for page, name, lines in tables:
        print("\n".join(lines), end="\n\n")
        if arguments.write:
            put(ROOT / f"docs/{page}.md", name, lines)
    if arguments.write:
        TWINS.write_text("\n".join(map(csv_line, (TWIN_COLUMNS, *twins))) + "\n")
        CURVES.write_text("chain,scheduler,latency_us,simulated_us,measured_us\n" + "".join(curves))


class Progress:
    """Parts of the comparison that were simulated already, in a file; `SystemExit` where the time is over."""

    def __init__(self, path, seconds):
        self._path, self._ends = path, time.monotonic() + seconds
        self._parts = json.loads(path.read_text()) if path and path.exists() else {}

    def __call__(self, part, simulate):
        """Return what ``simulate`` returns, JSON types, from the file if it is there."""
        if part not in self._parts:
            if time.monotonic() > self._ends:
                sys.exit(f"the time is over before {part}; call again with the same --progress")
            self._parts[part] = json.loads(json.dumps(simulate()))
            if self._path:
                self._path.write_text(json.dumps(self._parts, indent=1) + "\n")
        return self._parts[part]


def chains_compared(once):
    """Rows of the table, errors by scheduler, and lines of the notebook's curves."""
    us_by_name = json.loads(RESULTS.read_text())["us"]
    rows, off, curves = [], {}, []
    for name, chain in timed_chains().items():
        if name not in us_by_name:
            continue  # not measured yet
        cells, errors, lines = once(f"chain {name}", partial(chain_compared, name, chain, us_by_name[name]))
        rows.append(cells)
        curves += lines
        for row, error in errors.items():
            off.setdefault(row, []).append(error)
    return rows, off, curves


def chain_compared(name, chain, us):
    """A row of the table, errors by scheduler, and lines of the notebook's curves."""
    policy = chain.policy()
    whole = {cuts: plan_of(policy, chain, clusters=clusters_on(SMS), cuts=cuts) for cuts in (True, False)}
    life_factor = calibrated(whole[True], us["persistent-stages"])
    cells, errors, curves = [name, f"{us['persistent-stages']:.1f}"], {}, []

    def compare(row, way, simulated_us):
        errors[row] = simulated_us / us[way] - 1
        cells.append(f"{us[way]:.1f} / {simulated_us:.1f} ({errors[row]:+.0%})")

    for way, text in ways().items():
        compare(way, way, time_us(whole[way == "persistent"], life_factor, text))
    for way in DEALT:
        compare(
            f"{way}, rings",
            way,
            time_us(whole[False], life_factor, in_rings(whole[False], Choices(speculate=way == "ccks"))),
        )
        for latency_us in LATENCIES_US:
            simulated = time_us(whole[False], life_factor, ccks(way, latency_us))
            curves.append(f'"{name}",{way},{latency_us},{simulated:.2f},{us[way]:.2f}\n')
    return cells, errors, curves


def all_twins(off, once):
    """Rows of the table of all schedulers."""
    names = SCHEDULERS.copy()
    workloads = dict.fromkeys(off, "chains of `measure_dealers.py`")
    for row in off.keys() - names.keys():
        kind, _, held_out = row.partition(", ")
        names[row] = f"`ccks:depth=1` to `5`, two programs, commands that are {kind}"
        workloads[row] = f"ends in `measure_deadlines.py`{', ' * bool(held_out)}{held_out}"
    results = json.loads((ROOT / "tests/gpu/results/runtime.json").read_text())["rows"]
    for way, name in (("graph", "`graph`"), ("pdl", "`pdl`"), ("cusync", "`cusync`")):
        errors = [r["predicted_us"] / r["us"] - 1 for r in results if r["row"] == way and "predicted_us" in r]
        yield twin(f"{name}, Triton's kernels", "chains", errors)
    errors = [r["predicted_us"] / r["us"] - 1 for r in results if r["row"] == "persistent" and "predicted_us" in r]
    yield twin("`persistent`, as `export` predicts it", "chains", errors)
    for way, errors in off.items():
        yield twin(names[way], workloads[way], errors)
        if way == [*SCHEDULERS][-1]:
            yield from attention_twins()
    steps = once("steps", step_errors)
    for way in ("stream", "graph"):
        errors = steps[way]
        programs = "programs of `measure_bounds.py`"
        if way == "graph":
            programs += " and `measure_acs_simulated.py`"
        yield twin(f"`{way}`, steps of PyTorch", programs, errors)
    predicted = json.loads((ROOT / "tests/gpu/results/acs_simulated.json").read_text())["rows"]
    errors = [row["acs"] / row["acs_us"] - 1 for row in predicted]
    yield twin("`acs-sw:captured=1`, graphs over streams", "programs of `measure_acs_simulated.py`", errors)
    eager = json.loads((ROOT / "tests/gpu/results/acs_eager.json").read_text())
    steps = [program.fastest for program in acs_results.eager(eager) if program.fastest]
    errors = [predicted / measured - 1 for _, measured, predicted in steps]
    yield twin("ACS in eager mode, predicted from stream order", "programs of `measure_acs_eager.py`", errors)
    blooms = once("blooms", bloom_errors)
    for name, mode in (("`dataflow`, the exact graph", "exact"), ("`dataflow-bloom`, filters in software", "filters")):
        yield twin(name, "times of `bloom.cu`", blooms[mode])
    for scale, by_rule in bench_spawn.simulated_before().items():
        for rule, some in by_rule.items():
            errors = [us / real.us - 1 for us, real in some.values()]
            held_out = ", held out" if scale in bench_spawn.HELD_OUT else ""
            text = f"programs at scale {scale}{held_out}"
            yield twin(f"launches from kernels, {rule}", text, errors, bench_spawn.in_range(some.values()))


def step_errors():
    """Errors of simulated steps of PyTorch programs, by schedule."""
    steps = bench_acs_eager.simulated()
    errors = {
        way: bench_acs_eager.errors(steps, way, key) for way, key in (("stream", "step_us"), ("graph", "graph_us"))
    }
    errors["graph"] += bench_acs_eager.captured_errors()
    return errors


def bloom_errors():
    """Errors of simulated times of blocks behind filters, by mode."""
    blooms, _ = bench_bloom.comparison()
    return {mode: bench_bloom.errors(blooms, mode) for mode in ("exact", "filters")}


def attention_twins():
    """Rows of chains with attention."""
    for way, errors in json.loads(ATTENTION.read_text()).items():
        yield twin(SCHEDULERS[way], "chains of `measure_attention.py`", errors)


def twin(name, workloads, errors, in_range=None):
    """A row; ``in_range``: how many are within 15% or within what the GPU took, if that is known."""
    within = sum(abs(e) <= WITHIN for e in errors)
    worst = max(errors, key=abs)
    return (
        name,
        f"{len(errors)} {workloads}",
        f"{within} ({within / len(errors):.0%})",
        "" if in_range is None else f"{in_range}",
        f"{np.median(np.abs(errors)):.1%}",
        f"{worst:+.0%}",
    )


def csv_line(row):
    """A row of the notebook's table."""
    return ",".join(f'"{cell.replace("`", "")}"' for cell in row)


def markdown(columns, rows):
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def programs_compared(pairs, once):
    """Lines of the table of two programs that share the GPU, and errors of their ends, by whether commands are
    overwritten, and pairs held out.
    """
    off, rows = {}, []
    chains = cases_of_deadlines(PAIRS | HELD_OUT)
    for row in pairs:
        if not row.keys() >= TWO_PROGRAMS.keys():
            continue  # measured before commands could be overwritten
        cells, errors = once(f"programs {row['program']}", partial(pair_compared, row, chains[row["program"]]))
        rows.append(cells)
        for kind, some in errors.items():
            off.setdefault(kind, []).extend(some)
    return [*markdown(["large program", *TWO_PROGRAMS.values()], rows)], off


def pair_compared(row, chain):
    """A row of the table, and errors of both programs' ends by kind."""
    policy = chain.policy()
    whole = {cuts: plan_of(policy, chain, clusters=clusters_on(SMS), cuts=cuts) for cuts in (True, False)}
    cells, errors = [row["program"]], {}
    lives = lives_alone_us(whole[True], row["stages one by one"]["stage_us"])
    for name in TWO_PROGRAMS:
        simulated_us = ends_us(whole[False], lives, ORDERS[name])
        kind = "overwritten" if ORDERS[name].overwrite else "kept"
        kind += ", held out" if row["program"] in HELD_OUT else ""
        ends = [*zip(row[name]["ends_us"], simulated_us, strict=True)]
        errors.setdefault(kind, []).extend(simulated / measured - 1 for measured, simulated in ends)
        cells.append(", ".join(cell(measured, simulated) for measured, simulated in ends))
    return cells, errors


def cell(measured, simulated):
    """Both times, with the error where it is too large."""
    error = simulated / measured - 1
    return f"{measured:.0f} / {simulated:.0f}" + (f" (**{error:+.0%}**)" if abs(error) > WITHIN else "")


def lives_alone_us(plan, stage_us):
    """Time of a task of each stage, from the time of that stage alone, in several launches."""
    own = np.array(stage_us) - LAUNCH_US - H200.graph_gap_ns / 1e3
    return own / [-(-stage.tasks // min(plan.clusters, stage.tasks)) for stage in plan.stages]


def lead_us(plan, lives):
    """How long before its tile's end a loader takes the next command, in the mean of tiles: when the tile's last
    k-blocks are in its rings.
    """
    under_way = k_blocks_under_way(plan.stages, plan.split, Options())
    shares = [min(1.0, blocks / stage.k_blocks) for blocks, stage in zip(under_way, plan.stages, strict=True)]
    return np.average(np.array(shares) * lives, weights=[stage.tasks for stage in plan.stages]) + FINISH_US


def ends_us(plan, lives, choices):
    """When each of two programs ends, the second of which is urgent, from the first end of a tile on."""
    program_of = programs(plan)
    text = in_rings(plan, choices) + f",urgent={int(program_of.argmax())},lead={lead_us(plan, lives)}us"
    end_ns = simulated(plan, lives, text).end_ns
    tiles = np.repeat(program_of, np.bincount(plan.tasks[:, 0], minlength=len(plan.stages)))
    return [(end_ns[tiles == number].max() - end_ns.min()) / 1e3 for number in (0, 1)]


def in_rings(plan, choices):
    """The simulator's `ccks` with a depth, over the link of as many blocks as there are clusters."""
    one_way_ns, read_ns = H200.link_one_way_ns(plan.clusters), H200.link_read_ns
    return (
        f"ccks:depth={choices.depth},overwrite={int(choices.overwrite)},speculate={int(choices.speculate)},"
        f"up={one_way_ns}ns,down={one_way_ns - read_ns}ns,decide={DECIDE_NS}ns"
    )


def ways():
    """Schedulers of the simulator by the names of their twins."""
    return {
        "persistent": "persistent",
        "persistent-dynamic": f"persistent-dynamic:scheduler_sms=0,decide=0ns,signal={2 * L2_NS}ns,"
        f"deliver={2 * L2_NS}ns,fetch={L2_NS}ns",
        "ccks": ccks("ccks", ONE_WAY_US),
        "ccks-ready": ccks("ccks-ready", ONE_WAY_US),
    }


def ccks(way, latency_us):
    """The runtime's `ccks` or `ccks-ready` by the simulator's, with a link of a latency, one way."""
    return f"ccks:up={latency_us}us,down={latency_us}us,speculate={int(way == 'ccks')}"


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
    """The plan's time under a scheduler, with one launch's costs."""
    return simulated(plan, factor * np.array(lives_us(plan)), text).time_ns / 1e3 + LAUNCH_US + H200.graph_gap_ns / 1e3


def simulated(plan, lives, text):
    """The plan on a machine whose SMs are the plan's clusters, under a scheduler. ``lives``: microseconds of a task of
    each stage.
    """
    g = tile_graph(plan)
    lives = [1e3 * float(us) for us in lives]
    launches = [
        {"footprint": number, "timing": "modelled", "block_x": 128, "blocks_per_sm": 1, "duration_ns": round(life)}
        for number, life in enumerate(lives)
    ]
    feet = {n: footprint(stage.tasks, duration_ns=lives[n]) for n, stage in enumerate(plan.stages)}
    g.recording = trace(launches, feet, device=replace(H200, sms=plan.clusters, blocks_per_sm=1))
    return Simulator(g).run(scheduler(text))


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
