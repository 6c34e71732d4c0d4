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
# # Size of a Bloom filter that finds dependencies of thread blocks
#
# A scheduler that starts a thread block when its parents have ended must know these parents. If they are not known in
# advance, Kuper, Pati and Sinclair propose to put the addresses that a block touches into a Bloom filter; a later block
# waits for every earlier block whose filter it hits. A filter never misses a dependency, but a small one finds false
# ones, and every false one may cost time. No sizes were published. This notebook shows how large a filter must be.
#
# Two programs are recorded without a GPU for an H200. The filters hold the **recorded** addresses of the tile model.
# Times are **modelled** by simulation, with free launches and free look-ups, so that only dependencies count. A gain of
# 0% is that of a barrier after every launch, a gain of 100% that of dataflow with exact dependencies.

# %%
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

import tileprof
from tileprof.analysis import build_graph
from tileprof.analysis.simulate.scheduler import option
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.analysis.simulate.filters.bloom import count
from tileprof.analysis.simulate.schedulers.bloom import DataflowBloom

places = [Path.cwd(), *Path.cwd().parents, *Path(tileprof.__file__).parents]
sys.path[:0] = [str(place / "notebooks") for place in places if (place / "notebooks" / "studies").is_dir()][:1]

from studies.charts import curves, heat

PROGRAMS = {
    "LSTM, 2 layers of 256, 8 steps": "lstm --layers 2 --hidden 256 --steps 8 --batch 16",
    "GPT-2, 1 layer, 128 tokens": "gpt2 --layers 1 --tokens 128 --dtype bfloat16",
}
folder = Path(tempfile.mkdtemp())


def record(name: str) -> tileprof.Trace:
    """A run of the program; values matter, as an embedding reads the rows that its tokens name."""
    path = folder / f"{list(PROGRAMS).index(name)}.tileprof"
    program, *options = PROGRAMS[name].split()
    command = ["tileprof", "record", "-o", path, "--", "python", "-m", f"tileprof.examples.{program}", *options]
    subprocess.run(command, check=True, capture_output=True)
    return tileprof.load(path)


pool = ThreadPoolExecutor(2)
simulators = {name: Simulator(build_graph(trace)) for name, trace in zip(PROGRAMS, pool.map(record, PROGRAMS))}
barrier = {name: s.run(scheduler("stream:gap=0ns")).time_ns for name, s in simulators.items()}
exact = {name: s.run(scheduler("dataflow")).time_ns for name, s in simulators.items()}
ends = {
    name: (len(s.graph.launches), int(s.graph.tile_base[-1]), barrier[name] / 1000, exact[name] / 1000)
    for name, s in simulators.items()
}
pd.DataFrame(ends, index=["launches", "tiles", "barriers, us", "exact dataflow, us"]).T.round(1)


# %%
@dataclass(frozen=True)
class Counted(DataflowBloom):
    """The scheduler, and beside its schedule how many pairs of tiles it took for dependent, and how many of them
    wrongly.

    Filters cost no time here, so that only their size counts; docs/bloom.md has what they cost on an H200.
    """

    insert_ns: float = option(0.0, "ns of a tile's time to fill its filters")
    look_up_ns: float = option(0.0, "ns of a tile's time to ask filters")

    def conflicts(self, graph, launches):
        pairs, collisions = super().conflicts(graph, launches)
        counts_by_graph[self, id(graph)] = sum(count(bits) for bits in pairs.values()), collisions
        return pairs, collisions


counts_by_graph = {}


def run(job: tuple[str, Counted]) -> dict[str, object]:
    """Gain and false edges of one filter."""
    name, filters = job
    simulator = simulators[name]
    time_ns = simulator.run(filters).time_ns
    edges, collisions = counts_by_graph[filters, id(simulator.graph)]
    options = {key: getattr(filters, key) for key in ("bits", "hashes", "granule", "flush")}
    gain_share = (barrier[name] - time_ns) / (barrier[name] - exact[name])
    false = collisions / max(edges - collisions, 1)
    return (
        {"program": name} | options | {"kept": gain_share, "false edges": false, "edges": edges, "us": time_ns / 1000}
    )


# %% [markdown]
# ## Bits and hashes
#
# The filters of a block have the scheduler's defaults: a granule of 128 bytes and a flush every 4 launches.

# %%
BITS = [2**k for k in (8, 10, 12, 14, 16, 18)]
HASHES = (1, 2, 4)
jobs = [(name, Counted(bits=bits, hashes=hashes)) for name in PROGRAMS for hashes in HASHES for bits in BITS]
sizes = pd.DataFrame(list(pool.map(run, jobs)))
sizes["hashing"] = sizes["hashes"].map(lambda h: f"{h} hash" + "es" * (h > 1))
sizes.pivot_table(index=["program", "bits"], columns="hashes", values=["false edges", "kept"], sort=False).round(2)

# %%
one, two, four = (sizes[sizes["hashes"] == h] for h in HASHES)
default = sizes[(sizes["bits"] == 4096) & (sizes["hashes"] == 2)].set_index("program")
curves(
    sizes[sizes["false edges"] > 0],
    x="bits",
    y="false edges",
    by="hashing",
    panel="program",
    log_x=True,
    log_y=True,
    title="Filters of 4,096 bits and 2 hashes find "
    + " and ".join(f"{value:.1f}" for value in default["false edges"])
    + " false dependencies for each true one",
    x_title="bits of a filter",
    y_title="false answers per true one",
)

# %%
full = sizes[sizes["hashes"] == max(HASHES)].groupby("program", sort=False)["kept"].max()
curves(
    sizes,
    x="bits",
    y="kept",
    by="hashing",
    panel="program",
    levels={name: {"exact dependencies": 1.0} for name in PROGRAMS},
    log_x=True,
    percent=True,
    title="Filters of 4,096 bits and 2 hashes keep "
    + " and ".join(f"{value:.0%}" for value in default["kept"])
    + " of the gain of exact dataflow; no size keeps more than "
    + " and ".join(f"{value:.0%}" for value in full)
    + "<br>with a flush every 4 launches",
    x_title="bits of a filter",
    y_title="gain kept",
)

# %% [markdown]
# ## The flush
#
# A filter fills up unless it is flushed, and blocks after a flush wait for all blocks before it. Frequent flushes need
# fewer filters at a time and prevent overlap across the flush.

# %%
FLUSHES = (1, 2, 4, 8)
program = list(PROGRAMS)[1]
jobs = [(program, Counted(bits=bits, hashes=4, flush=flush)) for bits in BITS[1:5] for flush in FLUSHES]
flushes = pd.DataFrame(list(pool.map(run, jobs)))
small, large = (
    flushes[flushes["bits"] == bits].set_index("flush")["kept"] for bits in (min(flushes["bits"]), max(flushes["bits"]))
)
heat(
    flushes,
    x="flush",
    y="bits",
    value="kept",
    percent=True,
    unit="gain kept",
    title=f"{program}: from a flush every {FLUSHES[1]} launches to one every {FLUSHES[-1]}, filters of "
    f"{flushes['bits'].max():,} bits<br>"
    f"gain {100 * (large[FLUSHES[-1]] - large[FLUSHES[1]]):.0f} points, those of {flushes['bits'].min():,} bits "
    f"{100 * (small[FLUSHES[-1]] - small[FLUSHES[1]]):.0f}",
    x_title="launches between two flushes",
    y_title="bits of a filter, 4 hashes",
)

# %% [markdown]
# ## The granule
#
# The granule is the number of bytes that count as one address. Small granules fill the filter; large granules merge
# neighbouring writes of different blocks.

# %%
GRANULES = (32, 64, 128, 256, 512, 2048)
program = list(PROGRAMS)[0]
jobs = [
    (program, Counted(bits=bits, hashes=4, granule=granule)) for bits in (4096, 16384, 65536) for granule in GRANULES
]
granules = pd.DataFrame(list(pool.map(run, jobs)))
granules["filter"] = granules["bits"].map("{:,} bits".format)
peak = granules.loc[granules[granules["bits"] == 4096]["kept"].idxmax()]
curves(
    granules,
    x="granule",
    y="kept",
    by="filter",
    levels={"": {"exact dependencies": 1.0}},
    log_x=True,
    percent=True,
    title=f"{program}: filters of 4,096 bits do best with granules of {peak['granule']} bytes ({peak['kept']:.0%})",
    x_title="granule, bytes (4 hashes, flush every 4 launches)",
    y_title="gain kept",
)

# %% [markdown]
# The table has the smallest filter that keeps nine tenths of the gain of the largest one, at a flush every 4 launches,
# and its memory: two filters per tile of the launches between two flushes.

# %%
ENOUGH = 0.9
rows = []
for name, simulator in simulators.items():
    mine = sizes[(sizes["program"] == name) & (sizes["hashes"] == max(HASHES))].sort_values("bits")
    least = mine[mine["kept"] >= ENOUGH * mine["kept"].max()].iloc[0]
    tiles = simulator.graph.launches["tiles"].to_numpy()
    window = max(int(tiles[at : at + 4].sum()) for at in range(0, len(tiles), 4))
    memory = 2 * least["bits"] * window / 8 / 2**20
    rows.append((name, least["bits"], least["false edges"], least["kept"], mine["kept"].max(), window, memory))
need = pd.DataFrame(
    rows,
    columns=[
        "program",
        "bits",
        "false for each true",
        "gain kept",
        "kept at most",
        "tiles in a window",
        "MiB of filters",
    ],
).set_index("program")
need.round(3)

# %%
single, several = (
    sizes[(sizes["bits"] == max(BITS)) & (sizes["hashes"] == h)].set_index("program")["kept"] for h in (1, max(HASHES))
)
worse = (several - single).idxmax()


def each(values: pd.Series, form: str) -> str:
    """One value per program."""
    return " and ".join(f"{format(value, form)} ({name.split(',')[0]})" for name, value in values.items())


Markdown(
    f"""
**Answer.** {each(need["bits"], ",.0f")} bits per filter with {max(HASHES)} hashes keep nine tenths of the gain of the
largest size; that is {each(need["MiB of filters"], ".1f")} MiB of filters for the tiles between two flushes. With 4,096
bits and 2 hashes {each(default["false edges"], ".1f")} false dependencies come with each true one, and
{each(default["kept"], ".0%")} of the gain of exact dataflow remains. Hashes matter as much as bits: with a single one
the {worse.split(",")[0]} keeps {single[worse]:.0%} at {max(BITS):,} bits instead of {several[worse]:.0%}. So does the
granule: at 4,096 bits, 4 hashes and {peak["granule"]} bytes the {program.split(",")[0]} keeps {peak["kept"]:.0%}. The
flush is a separate limit: with a flush every 4 launches, no filter keeps more than {each(need["kept at most"], ".0%")}.
All times are modelled, over recorded addresses of the tile model.
"""
)
