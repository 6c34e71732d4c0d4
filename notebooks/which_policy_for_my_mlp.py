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
# cuSync synchronises two dependent GEMMs tile by tile, and asks its user to declare the dependency and to try all policies.
# Here the dependency is recorded, and a policy is derived from it, verified against it and predicted. The MLP is GPT-3's under
# eight-way tensor parallelism, modelled for an H200.

# %%
import subprocess
import tempfile
from pathlib import Path

import pandas as pd

import tileprof
from tileprof.analysis import build_graph
from tileprof.policy.synthesise import synthesise
from tileprof.policy.verify import verify
from tileprof.viz.figures import tile_matrix

folder = Path(tempfile.mkdtemp())


def record(tokens: int) -> tileprof.Trace:
    """One MLP for so many tokens, on fake tensors: nothing is computed."""
    path = folder / f"mlp{tokens}.tileprof"
    program = ["python", "-m", "tileprof.examples.mlp", "--tokens", str(tokens)]
    subprocess.run(["tileprof", "record", "--fake", "-o", path, "--", *program], check=True, capture_output=True)
    return tileprof.load(path)


# %%
graphs = {tokens: build_graph(record(tokens)) for tokens in (64, 256, 512, 1024, 2048)}
graphs[1024].launches[["launch", "op", "kernel", "module", "tiles", "blocks_per_sm", "duration_ns"]]

# %% [markdown]
# The dependencies at 1024 tokens, launch by launch:

# %%
graphs[1024].pairs[["producer", "consumer", "pattern", "map", "tightness", "edges"]]

# %%
pair = graphs[1024].pairs.iloc[0]
tile_matrix(graphs[1024], int(pair["producer"]), int(pair["consumer"]))

# %% [markdown]
# A policy for each size: the coarsest that loses no predicted gain. Every one is verified against the recorded tile graph
# before it is given out.

# %%
rows = []
for tokens, graph in graphs.items():
    policy = synthesise(graph, graph.launches["launch"].tolist())
    assert verify(policy, graph).sound
    kinds = " ".join(edge.kind for edge in policy.edges)
    semaphores = sum(array.count for array in policy.semaphores)
    rows.append((tokens, len(policy.stages), kinds, semaphores, *list(policy.prediction.values())[1:4]))
columns = ["tokens", "stages", "kinds", "semaphores", "stream order (modelled), us", "policy (modelled), us", "gain, %"]
table = pd.DataFrame(rows, columns=columns)
table

# %%
best = table.loc[table["gain, %"].idxmax()]
print(f"Best modelled gain: {best['gain, %']} % at {best['tokens']} tokens, with policy kinds {best['kinds']}.")

# %% [markdown]
# **Answer.** The table names the kind for each size. Where the last wave of the first GEMM is nearly full, or everything fits
# into one wave, waiting for the whole grid costs nothing and one semaphore is enough; where the last wave is partly
# empty, rows pay. All times are modelled; only a measurement says what a GPU makes of it.
