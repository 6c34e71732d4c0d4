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
# # Utilisation of a GPU by recurrent networks and convolutions
#
# The thread blocks of a kernel that a GPU holds at a time are its *slots*: SMs times resident blocks per SM. A kernel
# with fewer blocks leaves slots empty, and the last wave of a kernel with more is seldom full. Kuper, Pati and Sinclair
# start from that observation: kernels of recurrent networks and convolutions leave much of a GPU empty, and blocks of
# the next kernel could fill it if their dependencies were known.
#
# The notebook has three kinds of data, and every figure names its kind:
#
# * **recorded**: the kernels that ran on an H200, from the traces in `tests/golden`, an LSTM and a GRU among them.
#   Grids, resident blocks and times are the GPU's.
# * **modelled**: every layer size of DeepBench, the product of one step of its recurrent layers and its forward
#   convolutions, in fp16, recorded without a GPU. Tile shapes, split-k and times follow tileprof's rules for the
#   device, which a library need not share.
# * **measured**: how much of its peak arithmetic an H200 reaches for these layers
#   (`tests/gpu/measuring/arithmetic/measure_arithmetic.py`).

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Markdown

import tileprof
from tileprof.analysis.bounds import Machine

places = [Path.cwd(), *Path.cwd().parents, *Path(tileprof.__file__).parents]
sys.path[:0] = [str(place / "notebooks") for place in places if (place / "notebooks" / "studies").is_dir()][:1]

from studies.charts import level_bars, share_points, wave_points

clone = next(place for place in places if (place / "notebooks" / "data").is_dir())
data = clone / "notebooks" / "data"

# %% [markdown]
# The recorded program runs each layer of DeepBench once.

# %%
folder = Path(tempfile.mkdtemp())
program = folder / "layers.py"
program.write_text(
    """
import sys
import pandas as pd, tileprof, torch
from torch.nn.functional import conv2d, linear

recurrent, convolutions = (pd.read_csv(path) for path in sys.argv[1:])
torch.set_default_dtype(torch.float16)
for layer in recurrent.itertuples():
    state, weight = torch.zeros(layer.batch, layer.hidden), torch.zeros(layer.gates * layer.hidden, layer.hidden)
    with tileprof.capture():
        linear(state, weight)
for layer in convolutions.itertuples():
    image = torch.zeros(layer.batch, layer.c, layer.h, layer.w).contiguous(memory_format=torch.channels_last)
    filters = torch.zeros(layer.filters, layer.c, layer.fh, layer.fw).contiguous(memory_format=torch.channels_last)
    with tileprof.capture():
        conv2d(image, filters, stride=(layer.stride_h, layer.stride_w), padding=(layer.pad_h, layer.pad_w))
"""
)
layers = [data / "deepbench_rnn.csv", data / "deepbench_conv.csv"]
devices = ["V100", "H200"]
commands = {
    device: ["tileprof", "record", "--fake", "--device", device, "-o", folder / f"{device}.tileprof", "--"]
    + ["python", program, *layers]
    for device in devices
}
running = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands.values()]
outputs = [process.communicate()[1].decode() for process in running]
assert not any(process.returncode for process in running), outputs

# %% [markdown]
# Each launch becomes a row: `waves` is tiles over slots, `share` is the share of slots that its tiles fill on average
# over whole waves. Launches that a library makes around its kernel are left out: the short reduction that ends a
# split-k product, fills, and copies to another layout.


# %%
def kernels(trace: tileprof.Trace, source: str) -> pd.DataFrame:
    """One row per launch: waves, share of the slots filled, share of the SMs that get a block, resident blocks per SM,
    and time.
    """
    launches = trace.launches
    waves = launches["tiles"] / Machine(trace.device).slots(launches)
    blocks = launches[["grid_x", "grid_y", "grid_z"]].prod(axis=1)
    columns = {"waves": waves, "share": waves / np.ceil(waves), "sms": np.minimum(blocks / trace.device.sms, 1.0)}
    columns["resident"] = launches["blocks_per_sm"]
    table = pd.DataFrame(columns | {"time_ns": launches["duration_ns"], "source": source})
    return table.assign(kernel=launches["kernel"].astype(str), op=launches["op"].astype(str), timing=launches["timing"])


def sizes(path: Path, columns: list[str]) -> pd.Series:
    """What a layer is called."""
    return pd.read_csv(path)[columns].astype(str).agg(" x ".join, axis=1)


suites = pd.concat([pd.read_csv(path)["suite"] for path in layers], ignore_index=True)
names = pd.concat(
    [sizes(layers[0], ["cell", "hidden", "batch"]), sizes(layers[1], ["batch", "c", "h", "w", "filters", "fh", "fw"])],
    ignore_index=True,
)
around = "splitk_reduce|memset|nchwToNhwc|nhwcToNchw|AddPadding|init_device|convertTensor|olded|SliceC|kern_precompute"
modelled = []
for device in devices:
    table = kernels(tileprof.load(folder / f"{device}.tileprof"), "modelled")
    table = table[~table["kernel"].str.contains(around)].reset_index(drop=True)
    assert len(table) == len(suites)
    family = np.where(table["op"].str.contains("conv"), "convolution", "RNN product")
    table = table.assign(family=family, suite=suites, name=names, device=device)
    modelled.append(table.assign(group=table["family"] + ", " + suites + f", {device} (modelled)"))
modelled = pd.concat(modelled, ignore_index=True)
modelled.groupby("group", sort=False)[["waves", "share", "sms"]].median().round(2)

# %% [markdown]
# The next cell reads the traces of the H200. Copies and fills without a kernel have no blocks and are left out.

# %%
recorded = []
golden = clone / "tests" / "golden"
for path in [*sorted(golden.glob("*.tileprof")), golden / "later" / "lstm.tileprof", golden / "later" / "gru.tileprof"]:
    trace = tileprof.load(path)
    table = kernels(trace, "recorded")
    recorded.append(table[table["timing"] == "measured"].assign(program=path.stem, device=trace.device.name))
recorded = pd.concat(recorded, ignore_index=True)
recorded["group"] = recorded["program"] + ", " + recorded["device"] + " (recorded)"
recorded["name"] = recorded["kernel"].str.slice(0, 60)
recorded.groupby("program")[["waves", "share", "sms"]].median().round(2).assign(
    kernels=recorded.groupby("program").size()
)

# %%
recorded_programs = recorded[recorded["program"].isin(["convolution", "gpt2", "gpt2_compiled", "lstm", "gru"])]
order = ["RNN product, training", "RNN product, inference", "convolution, training", "convolution, inference"]
bars = pd.concat(
    [*(modelled[modelled["group"].str.startswith(name)] for name in order), recorded_programs], ignore_index=True
)


def below(rows: pd.DataFrame, bound: float = 0.5) -> float:
    """Share of the kernels that fill less than ``bound`` of their slots."""
    return float((rows["share"] < bound).mean())


half = {key: below(rows) for key, rows in modelled.groupby(["family", "device"])}
of = {f: " and ".join(f"{half[f, d]:.0%} on the {d}" for d in devices) for f in ("RNN product", "convolution")}
title = (
    f"Below half full, modelled: recurrent products {of['RNN product']},<br>convolutions {of['convolution']}; "
    f"recorded on an H200: {below(recorded):.0%} of all kernels"
)
level_bars(bars, title=title, what="slots filled")

# %% [markdown]
# The reason is the number of waves: a kernel of less than a wave fills as many slots as it has blocks, and a kernel of
# a little more than a wave leaves most slots of its second wave empty.

# %%
points = pd.concat([modelled[modelled["device"] == "H200"], recorded.assign(family="any kernel")], ignore_index=True)
under = float((points["waves"] < 1).mean())
wave_points(points, title=f"On an H200, {under:.0%} of these kernels have less than one wave of blocks")

# %% [markdown]
# A slot that holds a block does not imply a busy arithmetic unit. The share of peak arithmetic is the number of
# operations of a layer over its measured time times the peak of the tensor cores.

# %%
of_h200 = modelled[modelled["device"] == "H200"].reset_index(drop=True)
cells = names.str.replace(" x ", ", batch ").str.replace(", batch ", " ", n=1)
shape = names.where(of_h200["family"] == "convolution", cells) + " (" + suites + ")"
counters = pd.DataFrame(json.loads((clone / "tests" / "gpu" / "results" / "arithmetic.json").read_text())["rows"])
counters = counters.drop_duplicates("shape").set_index("shape")["share"]
units = of_h200.assign(arithmetic=shape.map(counters).to_numpy())
full, busy = (float(units[column].median()) for column in ("share", "arithmetic"))
share_points(
    units,
    title=f"Half of the layers fill more than {full:.0%} of the slots (modelled) and reach more than {busy:.0%} of the "
    f"arithmetic (measured)",
)

# %% [markdown]
# Slots count resident blocks. A kernel of small blocks may reach every SM and still leave most slots empty, as
# pointwise kernels do; the share of SMs that have a block is a weaker measure.


# %%
def line(name: str, rows: pd.DataFrame) -> str:
    """A row of the answer: kernels below half of their slots, their share of the time, the mean share of SMs without a
    block, resident blocks per SM.
    """
    time = rows.loc[rows["share"] < 0.5, "time_ns"].sum() / rows["time_ns"].sum()
    empty, resident = (1 - rows["sms"]).mean(), rows["resident"].median()
    return f"| {name} | {len(rows)} | {below(rows):.0%} | {time:.0%} | {empty:.0%} | {resident:.0f} |"


lines = [
    "| kernels | number | below half of their slots | their share of the time | SMs without a block, mean | resident "
    "blocks per SM, median |",
    "|---|---|---|---|---|---|",
    *(
        line(f"{family}, {device} (modelled)", rows)
        for (family, device), rows in modelled.groupby(["family", "device"])
    ),
    *(line(f"{program}, H200 (recorded)", rows) for program, rows in recorded_programs.groupby("program")),
]
time = recorded.loc[recorded["share"] < 0.5, "time_ns"].sum() / recorded["time_ns"].sum()
fits = modelled.groupby(["family", "device"])["resident"].median()
sentences = [
    f"on the {device} {half['RNN product', device]:.0%} of the recurrent products (resident blocks per SM: "
    f"{fits['RNN product', device]:.0f}) and "
    f"{half['convolution', device]:.0%} of the convolutions ({fits['convolution', device]:.0f})"
    for device in devices
]
Markdown(
    f"""
**Answer.** Of the {len(recorded)} kernels recorded on an H200, {below(recorded):.0%} fill less than half of their
slots, and they take {time:.0%} of the time. Of DeepBench's layers, modelled, these fill less than half of their slots:
{"; ".join(sentences)}. How full a product is depends on how many of its blocks fit on an SM, which the library's tiles
decide. {(modelled["waves"] < 1).mean():.0%} of the modelled kernels and {(recorded["waves"] < 1).mean():.0%} of the
recorded ones have less than one wave of blocks. Measured, half of DeepBench's layers reach less than {busy:.0%} of an
H200's peak arithmetic. Empty slots are room for blocks of later kernels, if these do not have to wait for all blocks of
the one before.

"""
    + "\n".join(lines)
)
