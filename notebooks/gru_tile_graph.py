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
# # Which thread blocks of a GRU depend on each other?
#
# A recurrent network is a chain of small kernels. Launched one after the other, each waits for all blocks of the one
# before. This notebook records three time steps of a GRU without a GPU, and draws every thread block and every
# dependency between them.

# %%
import subprocess
import tempfile
from pathlib import Path

import tileprof
from tileprof.analysis import build_graph
from tileprof.viz.figures import tile_graph

trace_path = Path(tempfile.mkdtemp()) / "gru.tileprof"
program = ["python", "-m", "tileprof.examples.gru", "--steps", "3", "--hidden", "256", "--batch", "16"]
subprocess.run(["tileprof", "record", "-o", trace_path, "--", *program], check=True)

# %%
graph = build_graph(tileprof.load(trace_path))
graph.launches[["launch", "op", "kernel", "tiles"]].head(12)

# %% [markdown]
# The pairs of launches that depend on each other, and how:

# %%
columns = ["producer", "consumer", "pattern", "map", "edges", "bytes"]
graph.pairs.loc[~graph.pairs["reuse_only"], columns].head(15)

# %% [markdown]
# Every block of the first two time steps. Orange blocks need nothing that is computed here: they could run at
# once.

# %%
tile_graph(graph, range(min(24, len(graph.launches))))

# %% [markdown]
# How many blocks could start before everything launched before them has ended? A block is *bound* by the launch just before
# it if it needs one of its blocks.

# %%
links = graph.links[~graph.links["reuse"]]
neighbours = links[links["consumer"] == links["producer"] + 1]
bound = neighbours.groupby("consumer")["children"].max()
tiles = graph.launches.set_index("launch")["tiles"]
free = int(tiles.sum() - bound.sum())
print(f"{free} of {int(tiles.sum())} blocks ({free / tiles.sum():.0%}) need nothing from the launch just before them")

# %% [markdown]
# **Answer.** The blocks of a GRU step depend on few launches, and a good part of them on none that was launched just before: the
# input projections of a step need nothing from the step before. That share, printed above, is what a barrier
# between kernels holds back for no reason.
