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
# # Latency of the link from which a CPU schedules thread blocks on a GPU
#
# CCKS ("Cooperative Coherent Kernel Scheduling", proposed for Grace Hopper) keeps one persistent kernel on the GPU; its
# workers report finished tiles to the CPU over a coherent link, and the CPU writes back what to run next. It was shown
# only on NVLink-C2C and without a CUDA graph as baseline. This notebook shows how much of the gain remains on a slower
# link.
#
# Four programs are recorded without a GPU and simulated with the link's latency, one way, from 0.1 to 20 microseconds.
# About 0.5 is often assumed for NVLink-C2C; over PCIe, 2.5 was measured on an H200 when all its blocks use the link
# (`link_trip_ns` of its device description). **All times are modelled**, on an H200; launch gaps and the
# link were measured on one, the costs of the CPU (20 ns per tile, 100 ns per batch, four threads) are assumed.

# %%
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown

import tileprof
from tileprof.analysis import build_graph
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.devices import get

places = [Path.cwd(), *Path.cwd().parents, *Path(tileprof.__file__).parents]
sys.path[:0] = [str(place / "notebooks") for place in places if (place / "notebooks" / "studies").is_dir()][:1]

from studies.charts import curves

PROGRAMS = {
    "LSTM, 2 layers of 256, 8 steps": "lstm --layers 2 --hidden 256 --steps 8 --batch 16",
    "GPT-2, 2 layers, 128 tokens": "gpt2 --layers 2 --tokens 128 --dtype bfloat16",
    "GPT-3 MLP, 1 token": "mlp --tokens 1 --layers 2",
    "GPT-3 MLP, 64 tokens": "mlp --tokens 64 --layers 2",
}
folder = Path(tempfile.mkdtemp())


def record(name: str) -> tileprof.Trace:
    """The program on fake tensors: nothing is computed."""
    path = folder / f"{list(PROGRAMS).index(name)}.tileprof"
    program, *options = PROGRAMS[name].split()
    command = [
        "tileprof",
        "record",
        "--fake",
        "-o",
        path,
        "--",
        "python",
        "-m",
        f"tileprof.examples.{program}",
        *options,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return tileprof.load(path)


with ThreadPoolExecutor(2) as pool:
    simulators = {name: Simulator(build_graph(trace)) for name, trace in zip(PROGRAMS, pool.map(record, PROGRAMS))}
pd.DataFrame(
    {
        name: {
            "launches": len(s.graph.launches),
            "tiles": int(s.graph.tile_base[-1]),
            "work, us": s.graph.launches["duration_ns"].sum() / 1000,
        }
        for name, s in simulators.items()
    }
).T.round(1)

# %% [markdown]
# The scheduler has variants. *Speculative enqueue*: the CPU assigns tiles of the next four launches before their
# parents have ended, and the GPU starts them without the CPU. *Bypass*: a tile with a single parent starts on the GPU
# without a message to the CPU. *Batch commit*: 32 decisions share one write.

# %%
VARIANTS = {
    "all of it": "ccks",
    "no batches": "ccks:batch=1",
    "no speculation": "ccks:speculate=0",
    "no speculation, no bypass": "ccks:speculate=0,bypass=0",
}
BASELINES = {"CUDA graph": "graph", "programmatic dependent launch": "pdl"}
H200 = get("H200")
NVLINK_US, PCIE_US = 0.5, H200.link_one_way_ns(H200.sms) / 1e3
LATENCIES_US = sorted({*np.geomspace(0.1, 20, 12).round(3).tolist(), NVLINK_US, PCIE_US})


def at(variant: str, latency_us: float) -> str:
    """The variant with a link of this latency each way."""
    return f"{variant}{',' if ':' in variant else ':'}up={latency_us}us,down={latency_us}us"


stream = {name: s.run(scheduler("stream")).time_ns for name, s in simulators.items()}


def gain(name: str, text: str) -> float:
    """Share of the time in stream order that the scheduler saves."""
    return 1 - simulators[name].run(scheduler(text)).time_ns / stream[name]


table = pd.DataFrame(
    [
        (name, label, latency, gain(name, at(variant, latency)))
        for name in PROGRAMS
        for label, variant in VARIANTS.items()
        for latency in LATENCIES_US
    ],
    columns=["program", "variant", "latency_us", "gain"],
)
baselines = {name: {label: gain(name, text) for label, text in BASELINES.items()} for name in PROGRAMS}
here = table[table["latency_us"] == NVLINK_US]
here.pivot_table(index="program", columns="variant", values="gain", sort=False).join(pd.DataFrame(baselines).T).round(3)

# %% [markdown]
# The break-even is the latency at which the gain falls to that of the CUDA graph; bisection finds it.

# %%
LONGEST_US = 100.0


def break_even_us(name: str, variant: str) -> float:
    """Latency, one way, up to which the variant beats the CUDA graph; 0: never, infinite: still at the longest
    tried.
    """
    low, high, bar = 0.0, LONGEST_US, baselines[name]["CUDA graph"]
    if gain(name, at(variant, high)) >= bar:
        return np.inf
    if gain(name, at(variant, low)) < bar:
        return 0.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if gain(name, at(variant, middle)) >= bar else (low, middle)
    return low


even = pd.DataFrame(
    {label: {name: break_even_us(name, variant) for name in PROGRAMS} for label, variant in VARIANTS.items()}
)
even.round(2)


# %%
def text(latency_us: float) -> str:
    """A break-even in words; no link is faster than a tenth of a microsecond."""
    if latency_us < 0.1:
        return "nowhere"
    return f"at any latency up to {LONGEST_US:.0f} us" if np.isinf(latency_us) else f"up to {latency_us:.1f} us"


small, large = list(PROGRAMS)[:2], list(PROGRAMS)[2:]
speculative, plain = even["all of it"], even["no speculation"]
title = (
    f"CPU scheduling with speculation beats a CUDA graph {text(speculative[small].min())} one way where kernels are "
    f"small;<br>"
    f"without speculation {text(plain[small].max())}, and for the MLPs {text(speculative[large].max())}"
)
axis_ranges = {
    name: (
        -0.6 if name in small else -0.15,
        1.15 * max(table.loc[table["program"] == name, "gain"].max(), *marks.values()),
    )
    for name, marks in baselines.items()
}
curves(
    table,
    x="latency_us",
    y="gain",
    by="variant",
    panel="program",
    levels=baselines,
    guides={"NVLink-C2C": NVLINK_US, "PCIe": PCIE_US},
    ranges=axis_ranges,
    log_x=True,
    percent=True,
    title=title,
    x_title="latency of the link, one way, us",
    y_title="gain over stream order",
)

# %% [markdown]
# The link is not the only limit, because the CPU decides about every tile. The next figure varies the number of
# threads at the latency of NVLink-C2C.

# %%
crowded = small[1]
threads = pd.DataFrame(
    [
        (
            count,
            f"batches of {batch}" if batch > 1 else "no batches",
            gain(crowded, at(f"ccks:threads={count},batch={batch}", NVLINK_US)),
        )
        for batch in (1, 4, 32)
        for count in (1, 2, 4, 8, 16, 32)
    ],
    columns=["threads", "batch", "gain"],
)
enough = {
    batch: next((n for n, g in zip(rows["threads"], rows["gain"]) if g >= baselines[crowded]["CUDA graph"]), None)
    for batch, rows in threads.groupby("batch", sort=False)
}
thread_counts = {batch: f"{n} threads" if n else "more than 32 threads" for batch, n in enough.items()}
curves(
    threads,
    x="threads",
    y="gain",
    by="batch",
    levels={"": baselines[crowded]},
    ranges={"": (-0.6, 0.6)},
    log_x=True,
    percent=True,
    title=f"{crowded}: to beat a CUDA graph, {thread_counts['batches of 32']} decide in batches, "
    f"{thread_counts['no batches']} one by one",
    x_title="CPU threads that decide",
    y_title="gain over stream order",
)

# %% [markdown]
# ## Measured points
#
# The runtime has a co-pilot (`tileprof run --scheduler ccks`): a thread of the CPU that assigns tiles to a persistent
# kernel over PCIe. Its link was measured separately and is part of the device description (`link_trip_ns`).
# Eighteen chains were measured on an H200. The curves are simulated with the same tiles and use only the measured time
# of the stages one by one (`tests/benchmarks/simulator/bench_twins.py`, which writes the data). *ccks* sends tiles
# ahead of their inputs, *ccks-ready* does not.

# %%
places = [Path.cwd(), *Path.cwd().parents, *Path(tileprof.__file__).parents]
clone = next(place for place in places if (place / "notebooks" / "data").is_dir())
chains = pd.read_csv(clone / "notebooks" / "data" / "ccks_twins.csv")
some = [
    "GPT-2 MLP, 512 tokens",
    "four MLPs of GPT-2, 256 tokens",
    "LLaMA-65B MLP TP8, 64 tokens",
    "ResNet, two 3x3, 28x28x128, batch 8",
]
chosen = chains[chains["chain"].isin(some)]
there = chains[chains["latency_us"] == PCIE_US].set_index(["chain", "scheduler"])
off = (there["simulated_us"] / there["measured_us"] - 1).abs()
figure = curves(
    chosen,
    x="latency_us",
    y="simulated_us",
    by="scheduler",
    panel="chain",
    guides={"measured": PCIE_US},
    log_x=True,
    title=f"Curves simulated, diamonds measured on an H200: of {len(off)} points {int((off <= 0.15).sum())} are within "
    f"15%",
    x_title="latency of the link, one way, us",
    y_title="us",
)
for place, name in enumerate(dict.fromkeys(chosen["chain"])):
    points = there.loc[name, "measured_us"]
    figure.add_scatter(
        x=[PCIE_US] * len(points),
        y=points,
        mode="markers",
        marker={"symbol": "diamond", "size": 9, "color": "#222222"},
        name="measured",
        showlegend=place == 0,
        row=place // 2 + 1,
        col=place % 2 + 1,
    )
figure

# %%
there.assign(difference=lambda t: t["simulated_us"] / t["measured_us"] - 1)[
    ["simulated_us", "measured_us", "difference"]
].round(2)

# %% [markdown]
# The table has every simulated scheduler that also runs on a GPU, measured and simulated
# (`tests/benchmarks/simulator/bench_twins.py`):

# %%
pd.read_csv(clone / "notebooks" / "data" / "twins.csv").set_index("scheduler")

# %%
nvlink, pcie = (
    table[(table["latency_us"] == us) & (table["variant"] == "all of it")].set_index("program")["gain"]
    for us in (NVLINK_US, PCIE_US)
)
rows = [
    f"| {name} | {baselines[name]['CUDA graph']:.1%} | {nvlink[name]:.1%} | {pcie[name]:.1%} | "
    f"{text(speculative[name])} | {text(plain[name])} |"
    for name in PROGRAMS
]
lost_gain = 100 * (nvlink - pcie)[small]
near = table[table["latency_us"] <= PCIE_US].pivot_table(
    index=["program", "latency_us"], columns="variant", values="gain"
)
bypass = 100 * (near["no speculation"] - near["no speculation, no bypass"]).max()
idle = [100 * (gain(name, at("ccks:fetch=0ns", NVLINK_US)) - baselines[name]["CUDA graph"]) for name in large]
Markdown(
    f"""
**Answer.** With speculation, a link about as fast as PCIe is enough: from {NVLINK_US} to {PCIE_US} us one way the
programs of small kernels lose at most {lost_gain.max():.1f} points of gain, and they beat a CUDA graph
{text(speculative[small].min())}. Without it every chain of tiles pays the round trip, and they beat the graph only
{text(plain[small].max())}. Bypassing the CPU is worth at most {bypass:.1f} points up to {PCIE_US} us; the CPU's
throughput matters more ({crowded.split(",")[0]} needs {thread_counts["batches of 32"]} with batches,
{thread_counts["no batches"]} without). The MLPs have few and large kernels and beat the graph
{text(speculative[large].max())}; even if the workers' 100 ns per tile were free, they would be {min(idle):+.1f} to
{max(idle):+.1f} points from it. All figures are modelled.

| program | CUDA graph | CCKS at {NVLINK_US} us | CCKS at {PCIE_US} us | beats the graph | without speculation |
|---|---|---|---|---|---|
"""
    + "\n".join(rows)
)
