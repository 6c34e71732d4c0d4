"""SPAWN's programs on the CPU, many times under each rule, children at random times and launches refused at random.

python tests/benchmarks/spawn/spawn_soak.py 1000 [name ...]     no GPU, g++; a line for each program

Every result of every rule is compared with that of flat, and flat's first one with a second algorithm.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT

SOURCES = ROOT / "tileprof/examples/cuda/spawn"
EMULATED = ROOT / "tests/support/emulated/spawning.h"
PER_PROCESS = 100
SCALE = 4
REFUSE_ONE_IN = 5
RULES = 5


def soaked(program, name, runs):
    """How many launches were made, and what was wrong."""
    launched, complaints = 0, []
    for seed in range(1, runs // PER_PROCESS + 1):
        environment = os.environ | {"SPAWN_SEED": str(seed), "SPAWN_REFUSE": str(REFUSE_ONE_IN * (seed % 2))}
        command = [program, "--no-search", str(PER_PROCESS - 1), str(SCALE), "16", "32", "1024", name]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        _, row = map(json.loads, result.stdout.splitlines())
        launched += sum(sum(numbers) for key, numbers in row["all"].items() if key.endswith("launched"))
        if not row["right"]:
            complaints.append(f"seed {seed}: {row['said']}")
    return launched, complaints


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=int)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        flags = ["-std=c++17", "-O2", "-w", "-include", EMULATED, "-x", "c++"]
        subprocess.run(["g++", *flags, SOURCES / "program.cu", "-o", program], check=True)
        names = options.names or [
            json.loads(line)["name"]
            for line in subprocess.run(
                [program, "--no-search", "1", str(SCALE)], capture_output=True, text=True, check=True
            ).stdout.splitlines()[1:]
        ]
        for name in names:
            launched, complaints = soaked(program, name, options.runs)
            ran = options.runs // PER_PROCESS * PER_PROCESS
            print(
                f"{name:22s} {RULES} rules, {ran:,} runs each, {launched:,} launches, wrong: {len(complaints)}",
                *complaints,
            )


if __name__ == "__main__":
    main()
