"""What cuSync's optimisations are worth under the bundled runtime: ``python
tests/gpu/cusync/measure_exported_headers.py OUT.json``, and ``… --table OUT.json`` for the table of
docs/exported-headers.md.

The two programs of tileprof/examples/cuda at the sizes of cuSync's evaluation (Jangda et al., CGO 2024, tables IV and
V): GPT-3's MLP divided over eight GPUs, and pairs of ResNet's 3 x 3 convolutions. Each schedule is checked bit by bit
under random delays. The kernels are plain (64 x 64 tiles, wmma, no asynchronous copies): what is measured is schedules
beside each other, not products beside cuBLAS.
"""

import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tileprof.cli.entry import main
from tileprof.runtime.include_path import INCLUDE

EXAMPLES = INCLUDE.parents[1] / "examples" / "cuda"
REPLAYS = 20
TILE = 64
MLP_TOKENS = (64, 256, 512, 1024, 2048)
IN, HIDDEN = 12288, 6144
CONVOLUTIONS = ((56, 64), (28, 128), (14, 256))  # pixels on a side, channels
IMAGES = (16, 32)  # their pixels fill every tile
ROW = re.compile(r"^\s*(\S.*?)\s+([\d.]+) us\s+(\d+) of (\d+) delayed replays wrong$", re.MULTILINE)


def cases():
    """(name, source, macros, dependencies)."""
    for tokens in MLP_TOKENS:
        up, down, rows = HIDDEN // TILE, IN // TILE, tokens // TILE
        text = f"grid up {up} x {rows}\ngrid down {down} x {rows}\ndep down on up(0..{up - 1}, y)\n"
        macros = {"TOKENS": tokens, "IN": IN, "HIDDEN": HIDDEN, "OUT": IN}
        yield f"GPT-3 MLP TP8, {tokens} tokens", "products", macros, text
    for side, channels in CONVOLUTIONS:
        for images in IMAGES:
            columns, rows = channels // TILE, images * side * side // TILE
            reach = -(-(side + 1) // TILE)  # tiles of pixels that a filter reaches before and after its own
            text = (
                f"grid first {columns} x {rows}\ngrid second {columns} x {rows}\n"
                f"dep second on first(0..{columns - 1}, max(0, y - {reach})..min({rows - 1}, y + {reach}))\n"
            )
            macros = {"IMAGES": images, "SIDE": side, "CHANNELS": channels}
            yield f"two 3x3 convolutions, {side}x{side}x{channels}, batch {images}", "convolutions", macros, text


def export(text, folder):
    folder.mkdir()
    (folder / "chain.dep").write_text("tileprof dependencies 1\n" + text)
    if main(["export", "--format", "cusync", "--several-waits", "-o", str(folder), str(folder / "chain.dep")]) != 0:
        raise SystemExit(f"no header for {text}")
    return folder


def build(case, folder):
    name, source, macros, _ = case
    words = ["nvcc", "-O3", "-std=c++17", "-arch=native", "-I", INCLUDE, "-I", folder, "-I", EXAMPLES]
    words += [f"-D{key}={value}" for key, value in macros.items()]
    subprocess.run([*words, EXAMPLES / f"{source}.cu", "-o", folder / "program"], check=True)
    return name, folder / "program"


def measure(out):
    device = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    rows = {}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(8) as pool:
        folders = [export(case[3], Path(name) / str(number)) for number, case in enumerate(cases())]
        programs = pool.map(build, cases(), folders)
        for case, program in list(programs):
            result = subprocess.run([program, str(REPLAYS)], capture_output=True, text=True, timeout=120, check=False)
            rows[case] = {
                "exit": result.returncode,
                "schedules": {
                    schedule: {"us": float(us), "wrong": int(wrong), "replays": int(replays)}
                    for schedule, us, wrong, replays in ROW.findall(result.stdout)
                },
            }
            times = {k: v["us"] for k, v in rows[case]["schedules"].items()}
            sys.stdout.write(f"{case}: exit {rows[case]['exit']} {times} {result.stderr}\n")
            sys.stdout.flush()
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    Path(out).write_text(json.dumps({"device": device, "date": today, "rows": rows}, indent=1) + "\n")


def table(path):
    """Return the rows of a result as Markdown: microseconds, and the gain of each schedule over stream order."""
    result = json.loads(Path(path).read_text())
    names = list(next(iter(result["rows"].values()))["schedules"])
    lines = ["| chain | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for chain, row in result["rows"].items():
        times = {name: row["schedules"][name]["us"] for name in names}
        first = times[names[0]]
        cells = [f"{first:.1f}"] + [f"{us:.1f} ({100 * (1 - us / first):+.1f}%)" for us in list(times.values())[1:]]
        lines.append(f"| {chain} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "--table":
        sys.stdout.write(table(sys.argv[2]))
    else:
        measure(sys.argv[1])
