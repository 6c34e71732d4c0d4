"""What the measurements share: the machine's description, children with their cost, and tables."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
LIBRARIES = ("tileprof", "torch", "transformers", "numpy", "pandas", "pyarrow", "numba")


def header(title):
    """Print what was measured where, when and with which versions."""
    print(f"## {title}\n")
    print(machine())
    print(", ".join(f"{name} {_version(name)}" for name in LIBRARIES))
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.1f}\n", flush=True)


def machine():
    """Return the processor, its cores, memory, system and Python."""
    return (
        f"{_cpu()}, {os.cpu_count()} cores, {_memory_gb():.0f} GB; {platform.system()}, Python "
        f"{platform.python_version()}"
    )


def table(names, rows):
    """Print a Markdown table; numbers come formatted."""
    widths = [max(len(str(row[i])) for row in [names, *rows]) for i in range(len(names))]
    for row in [names, ["-" * w for w in widths], *rows]:
        print("| " + " | ".join(str(cell).ljust(w) for cell, w in zip(row, widths, strict=True)) + " |")
    print(flush=True)


def print_or_write(rows, path):
    """Collect rows, which print themselves; with --write, write them to a results file as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help=f"write {path.name}")
    options = parser.parse_args()
    collected = list(rows)
    if options.write:
        path.write_text(json.dumps(collected, indent=1) + "\n")


def put(page, name, lines):
    """Write lines between the comments that name a block of a page."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, rest = page.read_text().split(begin)
    page.write_text(f"{head}{begin}{chr(10).join(lines)}\n{end}{rest.split(end)[1]}")


@dataclass(frozen=True)
class Cost:
    """What one child process cost."""

    wall_s: float
    peak_bytes: int
    stdout: str


def run(*command):
    """Run a command to its end and return its `Cost`; a failure ends the measurement with what it printed."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)  # stderr is small
    out = child.stdout.read().decode()
    err = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}:\n{out}{err}")
    return Cost(wall_s, usage.ru_maxrss * 1024, out)


def tileprof(*arguments):
    """Run the command line of the interpreter's own environment."""
    return run(sys.executable, "-m", "tileprof.cli", *arguments)


def spread(values, unit=" s"):
    """Median and range of repetitions."""
    return f"{median(values):.2f}{unit} ({min(values):.2f} to {max(values):.2f})"


def folder_bytes(path):
    """Size of all files under a folder."""
    return sum(p.stat().st_size for p in Path(path).rglob("*") if p.is_file())


def _cpu():
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gb():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
