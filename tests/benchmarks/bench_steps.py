"""How soon the graph of thread blocks repeats over the steps of a loop, and what a scheduler loses that stores it.

python tests/benchmarks/bench_steps.py          no GPU, two minutes; prints the table of docs/bloom.md
python tests/benchmarks/bench_steps.py --write  puts it there

Programs under the model recorder (fake tensors, device H200); times are simulated.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import ROOT

BLOCK = "steps that repeat"
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
    """Name, what `report` says of the loop, and microseconds by scheduler."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, program) in enumerate(PROGRAMS.items()):
            path = str(Path(folder, f"{number}.tileprof"))
            tileprof("record", "--recorder", "model", "--fake", "-o", path, "--", sys.executable, *program)
            report = json.loads(tileprof("report", path, "--json"))["step_graphs"]
            chosen = [word for scheduler in SCHEDULERS for word in ("--scheduler", scheduler)]
            schedules = json.loads(tileprof("simulate", path, *chosen, "--json"))["schedules"]
            yield name, report, [schedule["time_ns"] / 1e3 for schedule in schedules]


def table():
    """Markdown."""
    yield "| program | steps | same from step | data same from step | reused | `dataflow` | `dataflow:first=1` |"
    yield "|---|---|---|---|---|---|---|"
    for name, report, (known, first) in rows():
        times = f"{known:,.0f} us | {first:,.0f} us ({first / known - 1:+.1%})"
        if report is None:
            yield f"| {name} | no loop was found | | | | {times} |"
            continue
        settled, renamed = (
            "never" if report[key] is None else f"{report[key] + 1}" for key in ("settled", "settled_renamed")
        )
        yield (
            f"| {name} | {report['steps']} of {report['launches']} launches | {settled} | {renamed} | "
            f"{report['reused_share']:.0%} | {times}, {report['first_kinds']} kinds |"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    lines = list(table())
    print("\n".join(lines))
    if chosen.write:
        page = ROOT / "docs/bloom.md"
        head, rest = page.read_text().split(f"<!-- {BLOCK} -->\n")
        tail = rest.split(f"<!-- end of {BLOCK} -->")[1]
        page.write_text(f"{head}<!-- {BLOCK} -->\n" + "\n".join(lines) + f"\n<!-- end of {BLOCK} -->{tail}")


if __name__ == "__main__":
    main()
