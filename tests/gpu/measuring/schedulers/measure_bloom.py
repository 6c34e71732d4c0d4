"""On a GPU: blocks kernel after kernel, by the exact graph and behind Bloom filters (`examples/cuda/bloom.cu`).

python tests/gpu/measuring/schedulers/measure_bloom.py OUT.json [--seeds 12] [--all-bits-of 2]

A row for each size of filters and each program (*seed*): all three schedulers' best times, the pairs that filters find
and miss, and what an insertion and a look-up cost. The programs of the first seeds run with filters of all sizes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measure_delayed import INCLUDE, SOURCES

SIZES = (2048, 512, 8192)
REPEATS = 9


def row_of(program: Path, bits: int, seed: int) -> dict[str, Any]:
    """Return a program's row."""
    words = ["2", str(seed), "2000", "24", "192", str(REPEATS)]
    result = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60)
    row: dict[str, Any] = {"bits": bits, "seed": seed, "rc": result.returncode, "runs": []}
    for line in map(json.loads, result.stdout.splitlines()):
        if "mode" in line:
            row["runs"].append(line)
        else:
            row |= line
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--all-bits-of", type=int, default=2)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:

        def built(bits: int) -> Path:
            program = Path(folder, str(bits))
            flags = ["-O3", "-std=c++17", "-arch=sm_90", f"-DBLOOM_BITS={bits}", f"-I{INCLUDE}"]
            subprocess.run(["nvcc", *flags, SOURCES / "bloom.cu", "-o", program], check=True)
            return program

        with ThreadPoolExecutor() as pool:
            programs = dict(zip(SIZES, pool.map(built, SIZES), strict=True))
        for bits in SIZES:
            for seed in range(1, 1 + (options.seeds if bits == SIZES[0] else options.all_bits_of)):
                rows.append(row_of(programs[bits], bits, seed))
                print(bits, seed, {run["mode"]: run["us"] for run in rows[-1]["runs"]}, flush=True)
                options.output.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
