r"""Everything that needs a GPU, in order of what it is worth: ``python tests/gpu/run.py --out DIR [--budget SECONDS]``.

Each step is a process of its own with a limit; none ends the run. Steps that measure no time run several at once
(``--jobs``). DIR gets ``summary.json`` (steps, seconds, results), what
the steps measured (``cuda.json``, ``source.json``, ``runtime.json``), ``golden.tar.gz`` (new golden traces) and
``logs.tar.gz``. A later call continues with ``--from STEP``, or repeats some with ``--only STEP,STEP``; results in DIR
are kept and joined; ``--results tests/gpu/results/tests.json`` joins the steps with those of earlier days, too. On an
H200 with 16 cores all but the last step take about 15 minutes; the last one measures for as long as is left of its
budget.

Nothing needs to be installed: tileprof is put on the path from this checkout, and wheels from ``--wheels`` (default:
.whl) beside it, unpacked. What a machine with PyTorch, Triton, pytest and nvcc lacks can be fetched elsewhere with::

    python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 -d .whl NAME==VERSION

for each of WHEELS in this file. Whole models have a budget of their own: ``python
tests/gpu/measuring/models/measure_models.py OUT.json``.
"""

import argparse
import datetime as dt
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "tests" / "gpu"
WHEELS = (
    "nvidia-cuda-sanitizer-api==13.4.92", "cupti-python==13.0.1", "cuda-core==1.2.2", "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1", "referencing==0.37.0", "rpds-py==2026.9.1", "attrs==26.1.0",
)  # fmt: skip
PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "numba",
    "networkx",
    "jsonschema",
    "plotly",
    "rich",
    "pytest",
    "hypothesis",
    "cuda-core",
    "cuda-bindings",
    "cupti-python",
    "nvidia-cuda-sanitizer-api",
)
PYTHON = (sys.executable, "-P")
"""For modules: the checkout is the working directory, and its package lacks the parts that a wheel would add."""
LEAST_S = 20
"""With less time left, no step begins."""


@dataclass(frozen=True)
class Step:
    """One step.

    ``command`` runs from the repository's root; {out} is the folder for results, {seconds} its time. ``limit_s`` ends
    it; ``likely_s`` is its time on an H200, alone. ``alone``: it measures time, or waits for a time.
    """

    name: str
    command: tuple[str, ...]
    likely_s: int
    limit_s: int
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def suite(name, *files, likely_s, limit_s, select="", alone=False):
    command = (
        *PYTHON,
        "-m",
        "pytest",
        "-c",
        "tests/gpu/gpu.ini",
        "--rootdir",
        ".",
        *(f"tests/gpu/{f}" for f in files),
    )
    return Step(name, (*command, *(("-k", select) if select else ())), likely_s, limit_s, alone)


def script(name, *words, likely_s, limit_s, alone=False):
    python = PYTHON if words[0] == "-m" else (sys.executable,)
    return Step(name, (*python, *words), likely_s, limit_s, alone)


SANITIZED = ("tests/gpu/runtime/chains/sanitize_runtime.py",)

STEPS = (
    script("doctor", "-m", "tileprof.cli", "doctor", likely_s=25, limit_s=120, alone=True),
    suite("pytorch", "recorder/test_gpu_pytorch.py", likely_s=120, limit_s=300, select="not compiled and not graph"),
    suite("compiled", "recorder/test_gpu_pytorch.py", likely_s=90, limit_s=240, select="compiled or graph"),
    suite("unpatched", "recorder/test_gpu_unpatched.py", likely_s=110, limit_s=300),
    suite("nvtx", "recorder/test_gpu_nvtx.py", likely_s=60, limit_s=240),
    suite("graphs", "recorder/test_gpu_graphs.py", likely_s=55, limit_s=180),
    suite("spinning", "recorder/test_gpu_spinning.py", likely_s=80, limit_s=240),
    suite("memory", "recorder/test_gpu_memory.py", "recorder/test_gpu_unusual.py", likely_s=60, limit_s=200),
    suite("faults", "recorder/test_gpu_faults.py", likely_s=40, limit_s=150),
    suite("company", "recorder/test_gpu_company.py", likely_s=60, limit_s=150),
    suite("programs", "recorder/test_gpu_programs.py", likely_s=70, limit_s=180),
    suite("filters", "recorder/test_gpu_filters.py", likely_s=25, limit_s=90),
    suite("regions", "recorder/test_gpu_ranges.py", likely_s=50, limit_s=180, select="not own_speed"),
    suite("products", "recorder/test_gpu_persistent.py", "recorder/test_gpu_im2col.py", likely_s=50, limit_s=180),
    suite("clients", "recorder/test_gpu_clients.py", likely_s=150, limit_s=400),
    suite("known", "recorder/test_gpu_known_accesses.py", likely_s=40, limit_s=150),
    suite("exits", "source/test_source_agrees_with_cuda_recorder.py", likely_s=15, limit_s=120),
    script("source", "tests/gpu/source/test_source_known_bytes.py", "{out}/source.json", likely_s=20, limit_s=120),
    suite("several", "recorder/test_gpu_several.py", likely_s=10, limit_s=500),  # needs two GPUs, and then 250 s
    suite("mps", "recorder/test_gpu_mps.py", likely_s=60, limit_s=180, alone=True),
    script(
        "golden",
        "tests/golden/make.py",
        "{out}/golden",
        "gpt2_graph",
        "selftest",
        "gpt2_compiled",
        likely_s=105,
        limit_s=240,
        alone=True,
    ),
    suite("ranges", "recorder/test_gpu_ranges.py", likely_s=65, limit_s=180, select="own_speed", alone=True),
    script(
        "overhead",
        "tests/gpu/measuring/recorder/measure_overhead.py",
        "{out}/cuda.json",
        likely_s=180,
        limit_s=300,
        alone=True,
    ),
    suite("halo", "cusync/test_cusync_halo_race.py", likely_s=60, limit_s=180, alone=True),
    suite(
        "runtime",
        "runtime/chains/test_runtime_synchronised.py",
        "runtime/programs/test_runtime_compiled.py",
        "runtime/programs/test_runtime_whole.py",
        likely_s=75,
        limit_s=300,
        alone=True,
    ),
    suite(
        "runtime_persistent",
        "runtime/chains/test_runtime_persistent.py",
        "runtime/chains/test_runtime_faults.py",
        likely_s=70,
        limit_s=200,
        alone=True,
    ),
    suite("launches", "runtime/programs/test_runtime_launches.py", likely_s=40, limit_s=120),
    suite("runtime_networks", "runtime/networks/test_runtime_networks.py", likely_s=30, limit_s=120, alone=True),
    suite("runtime_sizes", "runtime/chains/test_runtime_field_sizes.py", likely_s=40, limit_s=150, alone=True),
    script("sanitizer", *SANITIZED, likely_s=90, limit_s=300, alone=True),
    script(
        "races", *SANITIZED, "racecheck", "--under", "cusync", "--replays", "1", likely_s=40, limit_s=150, alone=True
    ),
    script(
        "barriers",
        *SANITIZED,
        "synccheck",
        "--under",
        "cusync",
        "--under",
        "persistent",
        "--replays",
        "1",
        likely_s=50,
        limit_s=150,
        alone=True,
    ),
    script(
        "runtime_measure",
        "-m",
        "tileprof.runtime.measuring.measure",
        "{out}/runtime.json",
        "--missing",
        "--budget",
        "{seconds}",
        likely_s=400,
        limit_s=540,
        alone=True,
    ),
)


def path_of_the_checkout(folder, wheels):
    """Return the folders for PYTHONPATH: the package as a wheel would hold it, made of links, and the unpacked
    wheels.
    """
    package, site = folder / "package" / "tileprof", folder / "site"
    package.mkdir(parents=True, exist_ok=True)
    for part in [*(ROOT / "tileprof").iterdir(), ROOT / "analysis", ROOT / "viz"]:
        if part.name != "__pycache__" and not (package / part.name).exists():
            (package / part.name).symlink_to(part)
    about = (
        package.parent / "tileprof-0.dist-info"
    )  # PyTorch finds its backends by the entry points of installed packages
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tileprof\nVersion: 0\n")
    (about / "entry_points.txt").write_text("".join(entry_points()))
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    for tool in site.glob("nvidia/*/**/*"):  # an archive does not keep the right to execute
        if tool.is_file() and tool.parent.name in {"bin", "compute-sanitizer"}:
            tool.chmod(0o755)
    return [str(package.parent), str(site)]


def entry_points():
    """Lines of entry_points.txt, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, result in (project.get("entry-points", {}) | {"console_scripts": project["scripts"]}).items():
        yield f"[{group}]\n"
        yield from (f"{name} = {place}\n" for name, place in result.items())


def run(step, out, environment, limit_s):
    """Run a step. Return its row of the summary. Its processes end with it."""
    seconds = str(int(max(1, limit_s - 60)))  # a step with its own time limit ends before it is killed
    command = [word.replace("{out}", str(out)).replace("{seconds}", seconds) for word in step.command]
    log = out / "logs" / f"{step.name}.log"
    began = time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment | step.environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code, timed_out = child.wait(limit_s), False
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            code, timed_out = child.wait(), True
    lines = log.read_text(errors="replace").splitlines()
    summary_line = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed|skipped|error)", line)), "")
    return {
        "step": step.name,
        "seconds": round(time.monotonic() - began, 1),
        "code": code,
        "timed_out": timed_out,
        "ended": dt.datetime.now(dt.UTC).date().isoformat(),
        "said": summary_line.strip("= ") or (lines[-1][:200] if lines else ""),
        "failed": [text[:200] for text in lines if text.startswith(("FAILED", "ERROR"))],
    }


def machine():
    """Return the machine's hardware and versions; "" for a missing package."""
    matches = {}
    for name in PACKAGES:
        try:
            matches[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            matches[name] = ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        gpu = str(error)
    return {"gpu": gpu, "python": sys.version.split()[0], "packages": matches}


def joined(before, summary):
    """Return a results file with the steps of a summary, each with its day; other steps of the file stay."""
    day = summary["date"][:10]
    rows = {row["step"]: row for row in before.get("steps", [])}
    for row in summary["steps"]:
        passed = row["code"] == 0 and not row["timed_out"]
        rows[row["step"]] = {
            "step": row["step"], "ended": row.get("ended", day), "seconds": row["seconds"], "passed": passed,
            "said": row["said"],
        }  # fmt: skip
    what = "the last run of each step of tests/gpu/run.py on a GPU, with its day; several at once, so seconds are of a "
    what += "busy machine"
    about = {key: value for key, value in summary.items() if key not in {"steps", "date"}}
    command = "python tests/gpu/run.py --out DIR --results tests/gpu/results/tests.json"
    return {"command": command, "what": what, "date": day, **about, "steps": list(rows.values())}


def selection(arguments):
    names = [step.name for step in STEPS]
    expected = (
        arguments.only.split(",")
        if arguments.only
        else names[names.index(arguments.begin) :]
        if arguments.begin
        else names
    )
    unknown = set(expected) - set(names)
    if unknown:
        sys.exit(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return [step for step in STEPS if step.name in expected]


def pack(out):
    """Pack many small files into two archives beside the results."""
    for name in ("golden", "logs"):
        folder = out / name
        if folder.is_dir():
            with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(folder, name)


def report(summary):
    """Print a table of the steps."""
    width = max(len(row["step"]) for row in summary["steps"]) if summary["steps"] else 0
    for row in summary["steps"]:
        state = "TIME" if row["timed_out"] else "ok" if row["code"] == 0 else f"rc {row['code']}"
        sys.stdout.write(f"{row['step']:<{width}}  {row['seconds']:>6.1f} s  {state:<6}  {row['said']}\n")
        for line in row["failed"]:
            sys.stdout.write(f"{'':<{width}}            {line}\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go")
    parser.add_argument(
        "--budget", type=float, default=1740, metavar="SECONDS", help="for all steps together (default: 1740)"
    )
    names = [step.name for step in STEPS]
    parser.add_argument("--from", dest="begin", choices=names, metavar="STEP", help="begin there: " + ", ".join(names))
    parser.add_argument("--only", metavar="STEP,STEP", help="these alone")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--jobs", type=int, default=max(1, min(6, cores // 2)), help="steps at once (default: %(default)s)"
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        default=ROOT / ".whl",
        metavar="DIR",
        help="wheels that this machine lacks (default: .whl)",
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="join the steps' results with those of this file")
    options = parser.parse_args()
    ends = time.monotonic() + options.budget
    out = options.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    folders = path_of_the_checkout(Path("/tmp/tileprof-gpu"), options.wheels)
    sys.path[:0] = folders
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*folders, str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    }
    environment |= {
        "TILEPROF_RESULTS": str(out),
        "PYTHONUNBUFFERED": "1",
        "NUMBA_CACHE_DIR": "/tmp/tileprof-gpu/numba",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    place = out / "summary.json"
    before = json.loads(place.read_text())["steps"] if place.exists() else []
    summary = {"date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), **machine(), "steps": before}
    sys.stdout.write(json.dumps({k: v for k, v in summary.items() if k != "steps"}) + "\n")
    lock, not_begun = threading.Lock(), []

    def one(step):
        left_s = ends - time.monotonic()
        if left_s < LEAST_S:
            not_begun.append(step.name)
            return
        row = run(step, out, environment, min(step.limit_s, left_s - 5))
        with lock:
            summary["steps"] = [r for r in summary["steps"] if r["step"] != step.name] + [row]
            place.write_text(json.dumps(summary, indent=1) + "\n")
            report({"steps": [row]})
            pack(out)

    for _, several in itertools.groupby(selection(options), lambda step: step.alone and step.name):
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, several))
    sys.stdout.write("\n")
    if options.results:
        before = json.loads(options.results.read_text()) if options.results.exists() else {}
        options.results.write_text(json.dumps(joined(before, summary), indent=1) + "\n")
    if not_begun:
        sys.stdout.write(f"no time was left: go on with --only {','.join(not_begun)}\n")
    report(summary)


if __name__ == "__main__":
    main()
