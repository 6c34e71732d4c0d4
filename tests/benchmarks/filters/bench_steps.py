"""How soon the graph of thread blocks repeats over the steps of a loop, and what a scheduler loses that stores it.

python tests/benchmarks/filters/bench_steps.py          no GPU, two minutes; prints rows
python tests/benchmarks/filters/bench_steps.py --write  writes results/steps.json, of which docs/bloom.md has a table

Programs under the model recorder (fake tensors, device H200); times are simulated.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, print_or_write

RESULTS = ROOT / "tests/benchmarks/results/steps.json"
ADAM = """
import tileprof, torch
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
x = torch.randn(512, 256)
with tileprof.capture():
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
PROGRAMS = {
    "`examples.gru --steps 16 --batch 32`": ("-m", "tileprof.examples.gru", "--steps", "16", "--batch", "32"),
    "`examples.deepbench --shape vanilla-1760-50 --batch 32`": (
        "-m", "tileprof.examples.deepbench", "--shape", "vanilla-1760-50", "--batch", "32",
    ),
    "`examples.gnmt`": ("-m", "tileprof.examples.gnmt"),
    "`examples.deepspeech2`": ("-m", "tileprof.examples.deepspeech2"),
    "five steps of Adam, a perceptron 512 x 256 x 1024": ("-c", ADAM),
}  # fmt: skip
SCHEDULERS = ("dataflow", "dataflow:first=1")


def tileprof(*words):
    result = subprocess.run([sys.executable, "-m", "tileprof", *words], capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr)
    return result.stdout


def rows():
    """Programs, what `report` says of their loops, and simulated microseconds by scheduler."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, program) in enumerate(PROGRAMS.items()):
            path = str(Path(folder, f"{number}.tileprof"))
            tileprof("record", "--recorder", "model", "--fake", "-o", path, "--", sys.executable, *program)
            report = json.loads(tileprof("report", path, "--json"))["step_graphs"]
            chosen = [word for scheduler in SCHEDULERS for word in ("--scheduler", scheduler)]
            schedules = json.loads(tileprof("simulate", path, *chosen, "--json"))["schedules"]
            us = {schedule["scheduler"]: schedule["time_ns"] / 1e3 for schedule in schedules}
            row = {"program": name, "step_graphs": report, "us": us}
            print(row, flush=True)
            yield row


if __name__ == "__main__":
    print_or_write(rows(), RESULTS)
