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
# # Which synchronisation policy suits my MLP?
#
# cuSync synchronises two dependent GEMMs tile by tile; its user declares the dependency and tries all policies. Here the
# dependency is recorded, and a policy is derived from it, verified against it and predicted. The MLP is GPT-3's under eight-way
# tensor parallelism on a V100, with the tile shapes that the cuSync paper prints for it (table IV).

# %%
import subprocess
import tempfile
from pathlib import Path

import pandas as pd

import tileprof
from tileprof.analysis import build_graph
from tileprof.policy.predict import Predictor
from tileprof.policy.synthesise import synthesise
from tileprof.policy.verify import verify
from tileprof.viz.figures import tile_matrix

# tokens: tile and split-k of the first and of the second GEMM
TILES = {
    128: ("128x256x32,split=3", "128x256x32,split=3"),
    256: ("256x128x32,split=4", "256x128x32,split=2"),
    512: ("256x256x32,split=2", "256x256x32,split=1"),
    1024: ("256x256x32,split=2", "256x256x32,split=1"),
    2048: ("256x256x32,split=1", "256x256x32,split=1"),
}
folder = Path(tempfile.mkdtemp())


def record(tokens: int) -> tileprof.Trace:
    """One MLP for so many tokens, on fake tensors: nothing is computed."""
    path = folder / f"mlp{tokens}.tileprof"
    up, down = TILES[tokens]
    tiles = ["--tile", f"gemm@{tokens}x6144x12288={up},stages=2", "--tile", f"gemm@{tokens}x12288x6144={down},stages=2"]
    program = ["python", "-m", "tileprof.examples.mlp", "--tokens", str(tokens)]
    command = ["tileprof", "record", "--fake", "--device", "V100", *tiles, "-o", path, "--", *program]
    subprocess.run(command, check=True, capture_output=True)
    return tileprof.load(path)


# %%
graphs = {tokens: build_graph(record(tokens)) for tokens in TILES}
columns = ["op", "kernel", "grid_x", "grid_y", "grid_z", "tiles", "blocks_per_sm", "duration_ns"]
graphs[512].launches[columns]

# %% [markdown]
# The dependencies at 512 tokens, launch by launch:

# %%
graphs[512].pairs[["producer", "consumer", "pattern", "map", "tightness", "edges"]]

# %%
last = graphs[512].pairs.iloc[-1]
tile_matrix(graphs[512], int(last["producer"]), int(last["consumer"]))

# %% [markdown]
# A policy for each size: the coarsest that loses no predicted gain, verified against the recorded tile graph.

# %%
rows = []
for tokens, graph in graphs.items():
    predict = Predictor(graph)
    policy = synthesise(graph, graph.launches["launch"].tolist(), predictor=predict)
    verdict = verify(policy, graph)
    assert verdict.sound
    kinds = " ".join(edge.kind for edge in policy.edges)
    semaphores = sum(array.count for array in policy.semaphores)
    modelled = predict(policy, graph.launches["launch"].tolist())
    times = modelled.stream_ns / 1000, modelled.policy_ns / 1000, 100 * modelled.gain
    rows.append((tokens, kinds, semaphores, verdict.covered, *(round(t, 1) for t in times)))
names = ["tokens", "kinds", "semaphores", "dependencies", "stream order, us", "policy, us", "gain, %"]
table = pd.DataFrame(rows, columns=names)
table

# %%
best = table.loc[table["gain, %"].idxmax()]
print(f"Largest modelled gain: {best['gain, %']} % at {best['tokens']} tokens, with policy kinds {best['kinds']}.")

# %% [markdown]
# **Answer.** The table names the coarsest kind that loses nothing for each size; a single semaphore for the whole grid is enough
# wherever the tiles that a finer policy would release early have no free slot to run in. All times are modelled on recorded
# dependencies; the paper's measured gains are between 1 and 20 % for these sizes, and only a measurement says what a GPU
# makes of a policy.
