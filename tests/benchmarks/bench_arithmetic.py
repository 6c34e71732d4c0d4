"""Slots and arithmetic units in DeepBench's shapes: how many slots tiles fill (modelled), and which share of peak
arithmetic an H200 reaches (measured), with the cycles in which tensor cores were busy (counted by Nsight Compute).

python tests/benchmarks/bench_arithmetic.py          no GPU; prints the table of docs/bloom.md
python tests/benchmarks/bench_arithmetic.py --write docs/bloom.md

Measured: `tests/gpu/results/arithmetic.json`, made by `tests/gpu/measuring/arithmetic/measure_arithmetic.py`. Slots are
those of the model recorder's tiles on an H200, as in notebooks/utilisation_levels.py: tiles over whole waves, weighted
by time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measuring import ROOT

from tileprof.analysis.bounds import Machine
from tileprof.trace import load

RESULTS = ROOT / "tests/gpu/results/arithmetic.json"
DATA = ROOT / "notebooks/data"
BEGIN, END = "<!-- slots and arithmetic -->", "<!-- end of slots and arithmetic -->"
PROGRAM = """
import csv, sys
import tileprof, torch
from torch.nn.functional import conv2d, linear
from tileprof.examples.deepbench import PRODUCTS

torch.set_default_dtype(torch.float16)
mark = torch.zeros(32)
for m, n, k in PRODUCTS:
    a, b = torch.zeros(m, k), torch.zeros(k, n)
    with tileprof.capture():
        mark.frac()
        a @ b
for row in csv.DictReader(open(sys.argv[1])):
    hidden, batch, gates = (int(row[name]) for name in ("hidden", "batch", "gates"))
    state, weight = torch.zeros(batch, hidden), torch.zeros(gates * hidden, hidden)
    with tileprof.capture():
        mark.frac()
        linear(state, weight)
for row in csv.DictReader(open(sys.argv[2])):
    n = {name: int(value) for name, value in row.items() if name != "suite"}
    image = torch.zeros(n["batch"], n["c"], n["h"], n["w"]).contiguous(memory_format=torch.channels_last)
    filters = torch.zeros(n["filters"], n["c"], n["fh"], n["fw"]).contiguous(memory_format=torch.channels_last)
    with tileprof.capture():
        mark.frac()
        conv2d(image, filters, stride=(n["stride_h"], n["stride_w"]), padding=(n["pad_h"], n["pad_w"]))
"""


def slots_filled():
    """The share of slots per shape, in the order in which shapes are measured, of its longest launch: those that change
    layouts or add up slices of k stand beside it.
    """
    with tempfile.TemporaryDirectory() as folder:
        program, path = Path(folder, "layers.py"), Path(folder, "layers.tileprof")
        program.write_text(PROGRAM)
        words = [sys.executable, "-m", "tileprof", "record", "--fake", "--device", "H200", "-o", path, "--", "python"]
        data = [DATA / "deepbench_rnn.csv", DATA / "deepbench_conv.csv"]
        subprocess.run([*words, program, *data], check=True, capture_output=True)
        trace = load(path)
        launches = trace.launches
        waves = launches["tiles"] / Machine(trace.device).slots(launches)
    shape = launches["op"].str.endswith("frac").cumsum()
    longest = launches["duration_ns"].groupby(shape).idxmax()
    return (waves / np.ceil(waves))[longest].to_numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", metavar="PAGE", type=Path)
    arguments = parser.parse_args()
    result = json.loads(RESULTS.read_text())
    rows, counted_shapes = result["rows"], result["counted"]["shapes"]
    slot_times = slots_filled()
    if not len(slot_times) == len(rows) == len(counted_shapes):
        raise SystemExit(
            f"{len(slot_times)} launches were recorded, {len(rows)} shapes measured and {len(counted_shapes)} counted: "
            "they do not match"
        )
    tensor, warps = (np.array([row[key] / 100 for row in counted_shapes]) for key in ("tensor", "warps"))
    head = ("shapes", "number", "slots filled (modelled)", "arithmetic, of peak (measured)", "most")
    head += ("tensor cores busy (counted)", "most", "warps resident (counted)")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = np.array([row["kind"] == kind for row in rows])
        share = np.array([row["share"] for row in rows])[mine]
        slots, arithmetic, busy, resident = (
            " / ".join(f"{q:.0%}" if q >= 0.01 else f"{q:.1%}" for q in np.quantile(values, (0.25, 0.5, 0.75)))
            for values in (slot_times[mine], share, tensor[mine], warps[mine])
        )
        cells = [f"{kind}s", str(mine.sum()), slots, arithmetic, f"{share.max():.0%}", busy]
        lines.append(f"| {' | '.join([*cells, f'{tensor[mine].max():.0%}', resident])} |")
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        page = arguments.write.read_text()
        head, rest = page.split(BEGIN)
        arguments.write.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
