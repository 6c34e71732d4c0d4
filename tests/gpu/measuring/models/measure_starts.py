"""Seconds from ``torch.compile(model)`` to the first result, in new processes: cold caches, then the same again.

    python measure_starts.py OUT.json [--only NAME ...] [--at-once N] [--budget S]
    python measure_starts.py --table OUT.json

For Inductor, for ``backend="tileprof"`` (its race and Inductor's compile of the whole graph are a part of its first
start), and for the same with the race put off to the second call (the first compares with PyTorch). Each has caches of
its own (Inductor's, Triton's, tileprof's). Importing packages and making the model are not counted; what PyTorch and
tileprof import later is. Bytecode is compiled before, as pip does it when it installs a package: some machines have
none, which costs seconds in every process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WAYS = {
    "inductor": {},
    "tileprof": {"backend": "tileprof"},
    "tileprof, race later": {"backend": "tileprof", "options": {"later": True}},
}
CHOSEN = ("LLaMA-1B, 1 token", "GPT-2, 128 tokens", "ResNet-18", "ResNet-50")
LONGEST = 75  # seconds
IMPORTED = ("torch", "triton", "sympy", "networkx", "jinja2", "pandas", "numba", "jsonschema", "tileprof")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=CHOSEN, help="names of models of model_cases.py")
    parser.add_argument("--at-once", type=int, default=4, help="processes")
    parser.add_argument("--budget", type=float, default=240, help="seconds after which no start is begun")
    parser.add_argument("--tiny", action="store_true", help="small models, to try this program")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the table of OUT.json and measure nothing")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.out.read_text()))))
    elif options.start:
        start(*json.loads(options.start), tiny=options.tiny)
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Measure models in turn, so that processes that run at once belong to one model, or to a few."""
    end = time.monotonic() + options.budget
    actual: dict[str, Any] = {"measured": datetime.now(UTC).date().isoformat(), "rows": {}}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches,  # compilers' workers may still write there
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        compile_bytecode(Path(caches) / "bytecode")
        jobs = [(n, w, pool.submit(both, n, w, Path(caches), end, options)) for n in options.only for w in WAYS]
        for name, way, job in jobs:
            actual["rows"].setdefault(name, {})[way] = job.result()
            print(f"{name}, {way}: {job.result()}", flush=True)
            options.out.write_text(json.dumps(actual, indent=1) + "\n")
    print("\n".join(table(actual)))


def compile_bytecode(folder: Path) -> None:
    """Compile the packages that a start imports to bytecode, for the processes that this one starts."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    actual = [spec.origin for name in IMPORTED if (spec := find_spec(name)) is not None and spec.origin]
    places = [str(Path(origin).parent) for origin in actual]
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", *places], check=False, capture_output=True)


def both(name: str, way: str, caches: Path, end: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return the times of a cold start and of one with its caches; a message instead of a missing number."""
    folder = caches / f"{name}-{way}".replace(" ", "-").replace("/", "-").replace(",", "")
    variables = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TILEPROF_CACHE": "tileprof"}
    environment = os.environ | {variable: str(folder / part) for variable, part in variables.items()}
    row: dict[str, Any] = {}
    for which in ("cold", "second"):
        if time.monotonic() > end:
            row[which] = "not begun in time"
            continue
        command = [sys.executable, __file__, str(options.out), "--start", json.dumps([name, way])]
        command += ["--tiny"] * options.tiny
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=LONGEST, check=False
            )
        except subprocess.TimeoutExpired:
            row[which] = f"no result after {LONGEST} s"
            continue
        messages = [line for line in result.stdout.splitlines() if line.startswith("START ")]
        row[which] = (
            json.loads(messages[-1][6:]) if messages else (result.stderr.strip() or "no words").splitlines()[-1][:200]
        )
    return row


def start(name: str, way: str, *, tiny: bool) -> None:
    import torch
    from model_cases import HELD_OUT, TABLE

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.no_grad():
        case = (TABLE | HELD_OUT)[name](device, tiny)
        case.call(case.model)
        begin = time.monotonic()
        result = case.call(torch.compile(case.model, **WAYS[way]))
        result.float().sum().item()  # waits
        print(f"START {time.monotonic() - begin:.2f}", flush=True)
    os._exit(0)  # do not wait for the compilers' threads


def table(result: dict[str, Any]) -> list[str]:
    """Return a table in Markdown, seconds."""
    heads = (f"{way}, {which}" for way in ("Inductor", "tileprof", "race later") for which in ("first start", "again"))
    lines = [f"| model | {' | '.join(heads)} |", "|" + "---|" * 7]
    for name, row in result["rows"].items():
        cells = [row.get(way, {}).get(which, "") for way in WAYS for which in ("cold", "second")]
        lines.append(f"| {name} | {' | '.join(f'{c:.1f}' if isinstance(c, float) else str(c) for c in cells)} |")
    return lines


if __name__ == "__main__":
    main()
