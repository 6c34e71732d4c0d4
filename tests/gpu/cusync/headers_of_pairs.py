"""Exported headers of recorded pairs, built against cuSync and against the bundled runtime: both print the same.

``python tests/gpu/cusync/headers_of_pairs.py OUT TRACE [TRACE ...]`` takes pairs in the order of the report, in turn
from every trace, until there are `PAIRS`; without traces the headers are those in OUT. CUSYNC_PATH names a checkout of
cuSync. Without a GPU it only compiles.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

from tileprof import load
from tileprof.analysis import build_graph
from tileprof.cli.entry import main as tileprof
from tileprof.policy.synthesis.stage_choice import ranked_pairs
from tileprof.runtime.include_path import INCLUDE

PAIRS = 12
LIMIT_S = 60


def exported(out, traces):
    """Folders with the headers of the first pairs that export, and their names."""
    matches = []
    pairs = [[(trace, pair) for pair in ranked_pairs(build_graph(load(trace)))] for trace in traces]
    for trace, pair in (one for row in zip_longest(*pairs) for one in row if one is not None):
        folder = out / f"{trace.stem}-{pair[0]}-{pair[1]}"
        words = ["export", "--format", "cusync", "--force", "--pair", f"{pair[0]}:{pair[1]}", "-o", str(folder)]
        if tileprof([*words, str(trace)]) == 0:
            matches.append(folder)
        if len(matches) == PAIRS:
            break
    return matches


def build(folder, name, *words):
    """Return the example beside a header as a program, or the compiler's messages."""
    program = folder / name
    command = ["nvcc", "-std=c++17", "-O2", "-arch=sm_90", "-I", folder, *words, folder / "example.cu", "-o", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return program if result.returncode == 0 else result.stderr


def ran(program):
    """Return what a program prints, with its exit code."""
    try:
        result = subprocess.run([program], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return "did not end"
    return f"exit {result.returncode}: {result.stdout.strip()} {result.stderr.strip()}".strip()


def main():
    out, traces = Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]]
    out.mkdir(parents=True, exist_ok=True)
    root = Path(os.environ["CUSYNC_PATH"])
    folders = exported(out, traces) if traces else sorted(path.parent for path in out.glob("*/policy.h"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ours = [pool.submit(build, folder, "ours", "-I", INCLUDE) for folder in folders]
        others = [
            pool.submit(build, folder, "cusync", "-I", root / "src" / "include", root / "src" / "cusync.cu")
            for folder in folders
        ]
    gpu, same = shutil.which("nvidia-smi") is not None, 0
    for folder, *programs in zip(folders, ours, others, strict=True):
        result = [program.result() for program in programs]
        messages = [ran(p) if gpu and isinstance(p, Path) else "compiled" if isinstance(p, Path) else p for p in result]
        agree = messages[0] == messages[1] and all(isinstance(p, Path) for p in result)
        same += agree
        print(f"{folder.name:32} {'same' if agree else 'DIFFERENT'}: {messages[0]}", flush=True)
        if not agree:
            print(f"{'':32} cuSync: {messages[1]}", flush=True)
    print(f"{same} of {len(folders)} pairs {'print the same' if gpu else 'compile against both'}", flush=True)
    return 0 if same == len(folders) == PAIRS else 1


if __name__ == "__main__":
    sys.exit(main())
