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
# # Dependencies between the thread blocks of a GRU
#
# A recurrent network is a chain of small kernels. Launched one after the other, each waits for all blocks of the one
# before. This notebook records three time steps of a GRU without a GPU, and draws every thread block and every
# dependency between them, as the literature draws the thread-block dependency graph.
#
# Dependencies come from the **recorded** accesses of the tile model for an H200; times are **modelled**. A step of the
# cell is two products and one fused kernel, as PyTorch runs it on a GPU. Products have tiles of 32 x 32 without
# split-k, so that all tiles are visible.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown

import tileprof
from tileprof.analysis import build_graph
from tileprof.analysis.simulate import Simulator, scheduler
from tileprof.viz.figures.tile_figures import tile_graph

places = [Path.cwd(), *Path.cwd().parents, *Path(tileprof.__file__).parents]
sys.path[:0] = [str(place / "notebooks") for place in places if (place / "notebooks" / "studies").is_dir()][:1]

from studies.charts import bars

trace_path = Path(tempfile.mkdtemp()) / "gru.tileprof"
program = ["python", "-m", "tileprof.examples.gru", "--steps", "3", "--hidden", "256", "--batch", "16"]
tiles = ["--tile", "gemm=32x32x16,split=1"]
subprocess.run(["tileprof", "record", *tiles, "-o", trace_path, "--", *program], check=True, capture_output=True)
graph = build_graph(tileprof.load(trace_path))
graph.launches[["launch", "op", "kernel", "tiles"]].head(12)

# %% [markdown]
# The table has the pairs of launches of the first step that depend on each other, with their patterns:

# %%
columns = ["producer", "consumer", "pattern", "map", "edges", "bytes"]
graph.pairs.loc[~graph.pairs["reuse_only"], columns].head(15)

# %% [markdown]
# The figure has every block of the first time step, and of the two products that begin the second. Orange blocks depend
# on no other block: they could run immediately. If several blocks all need the same blocks, their dependencies are
# drawn as one line between two squares.

# %%
products = graph.launches.loc[graph.launches["op"].astype(str) == "aten::mm", "launch"]
STEPS = range(int(products.iloc[len(products) // 3 + 1]) + 1)
inside = graph.links[~graph.links["reuse"] & graph.links["producer"].isin(STEPS) & graph.links["consumer"].isin(STEPS)]
tile_count = int(graph.tile_base[len(STEPS)])
bound, dependent_tiles = np.zeros(tile_count, bool), set()
for producer, consumer, block in inside[["producer", "consumer", "block"]].itertuples(index=False):
    bound[graph.tile_base[consumer] : graph.tile_base[consumer + 1]] |= graph.blocks[block].set_of >= 0
    parent, child, _ = graph.blocks[block].edges()
    dependent_tiles |= {(producer, consumer, p, c) for p, c in zip(parent.tolist(), child.tolist(), strict=True)}
tile_graph(
    graph,
    STEPS,
    title=f"A step of a GRU and the products of the next: {tile_count} blocks, {len(dependent_tiles):,} dependent "
    f"pairs of blocks; "
    f"{int((~bound).sum())} blocks (orange) could start at once",
)

# %% [markdown]
# The next figure shows how many launches back the latest launch is that a block needs. A barrier between kernels makes
# this 1 for all blocks.


# %%
def latest_parents() -> np.ndarray:
    """Return, by block, the distance in launches to the latest launch that it needs; 0 where it needs none."""
    back = np.zeros(int(graph.tile_base[-1]), np.int64)
    links = graph.links[~graph.links["reuse"]].sort_values("producer")
    for producer, consumer, block in links[["producer", "consumer", "block"]].itertuples(index=False):
        waits = graph.blocks[block].set_of >= 0
        back[graph.tile_base[consumer] : graph.tile_base[consumer + 1]][waits] = consumer - producer
    return back


back = latest_parents()
names = ["nothing", "the launch before", "2 or 3 back", "4 to 6 back", "7 and more back"]
level = np.select([back == 0, back == 1, back <= 3, back <= 6], [0, 1, 2, 3], 4)
shares = pd.DataFrame(
    {"needs": names, "blocks": np.bincount(level, minlength=5) / len(back), "program": "GRU, three steps"}
)
free = float((back != 1).mean())
bars(
    shares,
    x="needs",
    y="blocks",
    by="program",
    percent=True,
    title=f"{free:.0%} of the {len(back)} blocks need nothing from the launch just before theirs",
    x_title="latest launch that a block needs",
    y_title="share of the blocks",
)

# %%
simulator = Simulator(graph)
barrier, exact = (simulator.run(scheduler(text)).time_ns / 1000 for text in ("stream:gap=0ns", "dataflow"))
first = int((back == 0).sum())
Markdown(
    f"""
**Answer.** Each block depends on few launches, and {free:.0%} of the {len(back)} blocks do not depend on the launch
just before theirs: {first} need nothing that is computed here, since the input products of a step need nothing from the
step before. A barrier between kernels delays these blocks without need: with free launches, blocks that start when
their own parents are done take {exact:.1f} us instead of {barrier:.1f} us ({1 - exact / barrier:.0%} less, modelled on
an H200).
"""
)
