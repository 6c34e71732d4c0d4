# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Published gains of ACS, SPAWN, BlockMaestro and Wireframe, simulated
#
# Four papers, each with its own simulator, report large average gains: kernels out of order from a window (ACS), child
# grids that are launched only where they pay (SPAWN), kernels that are launched early and whose blocks wait
# (BlockMaestro), and a task graph in hardware (Wireframe). This notebook runs all of them in one simulator, on
# generated programs of the kinds that the authors used, and compares the gains with the published ones.
#
# The kinds of programs, the numbers of kernels and SMs, the cost of a launch, and how full the GPU was come from the
# papers. The duration of a block is **assumed**; where it decides the size of a gain, the notebook gives a range. No
# value is fitted to a gain.

# %%
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

import tileprof
from tileprof.analysis import build_graph
from tileprof.analysis.bounds import Machine
from tileprof.analysis.simulate import Simulator
from tileprof.analysis.simulate.spawning import Spawning, spawn, thresholds
from tileprof.analysis.workloads import SPAWNS, gated, random_wired, rigid_bodies
from tileprof.devices import get

places = [Path.cwd(), *Path.cwd().parents, *Path(tileprof.__file__).parents]
sys.path[:0] = [str(place / "notebooks") for place in places if (place / "notebooks" / "studies").is_dir()][:1]

from studies.charts import curves
from studies import published_averages as published
from studies.intervals import intervals
from studies.published_averages import gain

folder = Path(tempfile.mkdtemp())
pool = ThreadPoolExecutor(2)

# %% [markdown]
# ## ACS: the size of the window
#
# ACS looks at a window of N kernels, in software (a host thread sees each kernel end, 5 us later) or on the GPU. The
# first three run on a GPU of 46 SMs with 3.6 us per launch, from any thread. The recurrent network is recorded from
# PyTorch without a GPU, for an H200: its kernels take a microsecond or two, so that a window on the host only delays
# them. A window on the GPU gains even with a single kernel in it, because it does not query the host between two
# kernels.


# %%
def gru() -> Path:
    path = folder / "gru.tileprof"
    program = ["python", "-m", "tileprof.examples.gru", "--steps", "8", "--hidden", "256", "--batch", "16"]
    subprocess.run(["tileprof", "record", "-o", path, "--", *program], check=True, capture_output=True)
    return path


recorders = {
    "rigid bodies (ant)": lambda: rigid_bodies(folder / "ant.tileprof", "ant", steps=3, device="L4"),
    "random-wired network": lambda: random_wired(folder / "wired.tileprof", 24, stages=2, device="L4"),
    "gated network": lambda: gated(folder / "gated.tileprof", device="L4"),
    "GRU, 8 steps": gru,
}
paths = dict(zip(recorders, pool.map(lambda make: make(), recorders.values()), strict=True))
graphs = {name: build_graph(tileprof.load(path)) for name, path in paths.items()}
small = Machine(get("L4"), published.AMPERE_SMS)
simulators = {name: Simulator(g, None if name.startswith("GRU") else small) for name, g in graphs.items()}
launch = {name: "" if name.startswith("GRU") else f",gap_ns={published.LAUNCH_NS}" for name in simulators}
windows = (1, 2, 4, 8, 16, 32, 64, 128)
rows = [
    (name, acs, n, gain(s, f"stream{launch[name].replace(',', ':')}", f"{acs}:window={n}{launch[name]}"))
    for name, s in simulators.items()
    for acs in ("acs-sw", "acs-hw")
    for n in windows
]
sweep = pd.DataFrame(rows, columns=["program", "scheduler", "window", "gain"])
of_window = sweep.pivot_table(index=["program", "scheduler"], columns="window", values="gain", sort=False)
enough = (of_window.ge(0.95 * of_window.max(axis=1), axis=0)).idxmax(axis=1)
curves(
    sweep, x="window", y="gain", by="scheduler", panel="program", log_x=True,
    title=f"{int(enough.min())} to {int(enough.max())} kernels in the window give 95% of what any window gives",
    x_title="kernels in the window", y_title="times as fast as stream order",
)  # fmt: skip

# %%
of_window.round(2)

# %% [markdown]
# ## SPAWN: which work to launch as a grid
#
# Child grids run on a K20c (28 us for a warp to launch, 2.4 us more per grid, 32 grids at a time). A static threshold
# launches a grid for every thread with that many items or more: 1 means always, the right end of each line never. The
# benchmark suite's own threshold is 32.

# %%
works = {
    name: SPAWNS[name](scale=12 if name in ("bfs", "sssp") else 15)
    for name in ("bfs", "bfs-citation", "sssp", "join-gaussian", "amr", "mandelbrot")
}
options = Spawning()
rows, levels, verdicts = [], {}, []
for name, work in works.items():
    flat, rule, program = (spawn(work, options, policy) for policy in ("flat", "spawn", "program"))
    static = thresholds(work, options)
    rows += [(name, "static threshold", 2**k, flat.time_ns / s.time_ns) for k, s in enumerate(static)]
    levels[name] = {
        "SPAWN's rule": flat.time_ns / rule.time_ns,
        "as written (32 items)": flat.time_ns / program.time_ns,
    }
    best = min(s.time_ns for s in static)
    verdicts.append(
        (
            name,
            *(flat.time_ns / t for t in (program.time_ns, best, rule.time_ns)),
            best / rule.time_ns,
            rule.launched,
            rule.inlined,
        )
    )
of_static = pd.DataFrame(rows, columns=["program", "rule", "items", "gain"])
rules = pd.DataFrame(
    verdicts, columns=["program", "as written", "best static", "SPAWN", "SPAWN of best", "launched", "inline"]
).set_index("program")
rules["greatest over mean items"] = [float(work.items.max() / work.items.mean()) for work in works.values()]
near = rules.index[rules["SPAWN of best"] >= 0.9]
curves(
    of_static, x="items", y="gain", by="rule", panel="program", levels=levels, log_x=True, log_y=True, columns=3,
    title=f"SPAWN's rule comes within 10% of the best static threshold on {len(near)} of {len(rules)} programs",
    x_title="least items that are launched", y_title="times as fast as flat",
)  # fmt: skip

# %%
rules.round(2)

# %% [markdown]
# ## Published and simulated means
#
# The figure has every published average and the range of the simulated (geometric) means under these assumptions:
# blocks that are as fast beside others as alone, or half as fast on a full SM; blocks of 5 to 20 us; items of 100 to
# 400 cycles; and a rule that either launches or estimates until the first child has ended.

# %%
comparisons = [
    *published.acs(environments=("ant", "cheetah"), seeds=1),
    *published.blockmaestro(),
    *published.wireframe(),
    *published.spawn(scale=12),
]
table = pd.DataFrame(
    [
        (f"{c.scheduler}: {c.programs}", c.mean, c.best, *c.means, c.most, c.verdict, c.why)
        for c in comparisons
    ],
    columns=["row", "value", "published best", "low", "high", "simulated best", "verdict", "what differs"],
)  # fmt: skip
directed = [c for c in comparisons if c.same_direction is not None]
same = sum(bool(c.same_direction) for c in directed)
inside, near_simulated = sum(c.inside for c in comparisons), sum(c.near for c in comparisons)
intervals(
    table, log_x=True, one="no gain", x_title="times as fast",
    title=f"{same} of {len(directed)} published gains have the same direction here; of {len(comparisons)} published "
    f"values<br>"
    f"{inside} lie in the simulated range, and {near_simulated} in it or within a factor of {published.NEAR:g} of its "
    f"nearest end",
)  # fmt: skip

# %%
means = table.rename(columns={"row": "scheduler: programs", "value": "published mean"}).set_index("scheduler: programs")
means.round(2)

# %%
lines = [
    f"- **{c.scheduler}: {c.programs}**: {c.verdict}. {c.why[0].upper()}{c.why[1:]}."
    for c in comparisons
    if not c.inside
]
Markdown("Where the published value lies outside the simulated range:\n\n" + "\n".join(lines))

# %%
wide = ", ".join(f"{program}: {int(n)}" for (program, scheduler), n in enough.items() if scheduler == "acs-hw")
of_best = ", ".join(
    f"{name} {share:.0%}" for name, share in rules["SPAWN of best"].sort_values(ascending=False).items()
)


def named(rows: list[published.Comparison]) -> str:
    """Rows with their numbers: the published one, and the range of the simulated means."""
    each = (f"{c.scheduler}, {c.programs} ({c.mean:.2f}; simulated {c.means[0]:.2f} to {c.means[1]:.2f})" for c in rows)
    return "; ".join(each) or "none"


Markdown(
    f"""
**Answer.** There are three counts, since the same direction says less than the same size:

- **Direction**: {same} of {len(directed)} published gains or losses have the same direction under all assumptions. A
mean that is published as 1
  has no direction and is not counted: {named([c for c in comparisons if c.same_direction is None])}.
- **In the simulated range**: {inside} of {len(comparisons)} published values. Outside:
{named([c for c in comparisons if not c.inside])}.
- **Within a factor of {published.NEAR:g}** of the nearest end of the simulated range, or in it: {near_simulated} of
{len(comparisons)}. Farther: {named([c for c in comparisons if not c.near])}.

Windows on the GPU that reach 95% of the best gain: {wide}. SPAWN's rule over the best static threshold: {of_best}.
"""
)
