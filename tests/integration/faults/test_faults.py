"""A program keeps its output and its exit code whatever happens around its recording; a trace is whole or says
that it is not.

TILEPROF_KILLS says how many random times are tried (default 2); the nightly run takes 200, and 20 sizes of a full disk.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.warm import Commands
from tileprof.trace import load, validate

KILLS = int(os.environ.get("TILEPROF_KILLS", "2"))
POINTS = range(1, 21) if KILLS >= 200 else (2, 9)
"""Pages of 4 KiB on a small disk."""

COMMAND = [sys.executable, "-m", "tileprof.cli"]
GOLDEN = Path(__file__).parents[2] / "golden/gemm_pair.tileprof"

PROGRAM = """
import sys, time, torch
print("begin", flush=True)
print("to stderr", file=sys.stderr, flush=True)
x = torch.randn(32, 32)
for _ in range(STEPS):
    x = (x @ x).relu() / 32
    time.sleep(0.005)
print(x.shape, flush=True)
sys.exit(3)
"""

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, {bytes}))
from tileprof.cli.entry import main
sys.exit(main())
"""

NO_TORCH = """
class Matrix:
    shape = (32, 32)
    relu = __matmul__ = __truediv__ = lambda self, *_: self
randn = lambda *_: Matrix()
"""
"""A ``torch`` that is imported at once, for a run of `PROGRAM` without a recorder."""

ENVIRONMENTS: dict[str, dict[str, str | None]] = {
    "no HOME, a dumb terminal, no colour": {"HOME": None, "TERM": "dumb", "NO_COLOR": "1"},
    "C locale, 40 columns": {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": None,
        "COLUMNS": "40",
    },
    "caches that cannot be written": {
        "XDG_CACHE_HOME": "/dev/null/x",
        "TILEPROF_CACHE": "/dev/null/x",
        "TORCHINDUCTOR_CACHE_DIR": "/dev/null/x",
    },
}
"""Variables to set; None removes a variable."""


def program(folder: Path, steps: int = 5) -> Path:
    path = folder / "infer.py"
    path.write_text(PROGRAM.replace("STEPS", str(steps)), encoding="utf-8")
    return path


def environment(variables: dict[str, str | None]) -> dict[str, str]:
    snapshot = {name: value for name, value in os.environ.items() if name not in variables}
    return snapshot | {name: value for name, value in variables.items() if value is not None}


def tileprof(
    *words: object,
    folder: Path,
    warm: Commands | None = None,
    command: Sequence[str | Path] = COMMAND,
    **options: object,
) -> subprocess.CompletedProcess[bytes]:
    """Return the finished command; with ``warm``, run in a fork that has imported the libraries, where the start does
    not matter.
    """
    return subprocess.run(
        [*map(str, command if warm is None else [warm.path / "tileprof"]), *map(str, words)],
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=250,
        **options,
    )


def of_the_program(stderr: bytes) -> list[bytes]:
    return [line for line in stderr.splitlines() if not line.startswith(b"tileprof: ")]


@pytest.mark.parametrize("variables", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_program_is_as_it_is_without_tileprof(
    tmp_path: Path, variables: dict[str, str | None], warm: Commands
) -> None:
    script, env = program(tmp_path), environment(variables)
    as_imported = variables.keys() & {"LC_ALL", "TILEPROF_CACHE"}  # variables that must be set before a fork
    plain = subprocess.run([warm.python, script], cwd=tmp_path, capture_output=True, check=False, env=env)
    recording = tileprof("record", "--", sys.executable, script, folder=tmp_path, env=env)
    assert (recording.returncode, recording.stdout) == (plain.returncode, plain.stdout)
    assert of_the_program(recording.stderr) == plain.stderr.splitlines()
    assert validate(load(tmp_path / "infer.tileprof")) == []
    result = tileprof("report", "infer.tileprof", folder=tmp_path, env=env, warm=None if as_imported else warm)
    assert (result.returncode, b"Traceback" in result.stderr) == (0, False), result.stderr


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_program_killed_at_a_random_time_leaves_a_trace_that_validates(
    tmp_path: Path, seed: int, warm: Commands
) -> None:
    dice = random.Random(seed)
    number = dice.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    words = ["record", "-o", "run", "--", sys.executable, str(program(tmp_path, 100_000))]
    command = [*COMMAND, *words] if KILLS > 2 else [str(warm.path / "tileprof"), *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"begin\n"
            time.sleep(dice.uniform(0, 1.5 if KILLS > 2 else 0.5))
            process.send_signal(number)
            rest, stderr = process.stdout.read(), process.stderr.read()
            assert process.wait(120) == -number
        finally:
            process.kill()  # after a failed check nothing else ends the program, and leaving `with` waits for it
    assert rest == b""
    assert b"bug in tileprof" not in stderr
    trace = load(tmp_path / "run.tileprof.partial")
    assert not trace.complete
    assert validate(trace) == []


@pytest.mark.parametrize("bytes_", [600, 9_000])
def test_files_that_may_not_grow_cost_the_trace_and_not_the_program(
    tmp_path: Path, bytes_: int, warm: Commands
) -> None:
    limited = tmp_path / "limited.py"
    limited.write_text(LIMITED.format(bytes=bytes_), encoding="utf-8")
    words = ("record", "--", sys.executable, program(tmp_path))
    process = tileprof(*words, folder=tmp_path, command=[warm.python, limited])
    if (tmp_path / "infer.tileprof").exists():
        assert process.returncode == 3
        assert validate(load(tmp_path / "infer.tileprof")) == []
        return
    assert process.returncode in (2, 3), "refused before the program, or the program's own"
    assert b"tileprof: " in process.stderr
    assert b"bug in tileprof" not in process.stderr
    if process.returncode == 3:
        assert process.stdout.startswith(b"begin\n")


def test_a_full_disk_costs_the_trace_and_not_the_program(tmp_path: Path, warm: Commands) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True, check=False)
    if mount.returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        words = ("record", "-o", disk / "run", "--", sys.executable, program(tmp_path))
        process = tileprof(*words, folder=tmp_path, warm=warm)
        assert (process.returncode, process.stdout.splitlines()[0]) == (3, b"begin")
        assert b"the disk is full" in process.stderr
        assert not (disk / "run.tileprof").exists()
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("output", ["/proc/run", "/dev/null/run", "file/run"])
def test_an_output_that_cannot_be_written_is_reported_before_the_program_runs(
    tmp_path: Path, output: str, warm: Commands
) -> None:
    (tmp_path / "file").write_text("")
    process = tileprof("record", "-o", output, "--", sys.executable, program(tmp_path), folder=tmp_path, warm=warm)
    assert (process.returncode, process.stdout) == (2, b"")
    assert process.stderr.count(b"\n") == 1


def test_an_output_folder_that_is_a_link_is_followed_and_a_linked_trace_is_not_replaced(
    tmp_path: Path, warm: Commands
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    words = ("--", sys.executable, program(tmp_path))
    process = tileprof("record", "-o", "link/run", *words, folder=tmp_path, warm=warm)
    assert process.returncode == 3
    assert load(tmp_path / "real" / "run.tileprof").complete
    (tmp_path / "other.tileprof").symlink_to("real/run.tileprof")
    again = tileprof("record", "--force", "-o", "other", *words, folder=tmp_path, warm=warm)
    assert (again.returncode, again.stdout) == (2, b"")
    assert load(tmp_path / "real" / "run.tileprof").complete


def test_one_of_six_recorders_on_one_output_wins_and_the_others_run_nothing(tmp_path: Path, warm: Commands) -> None:
    script = program(tmp_path)
    command = [str(warm.path / "tileprof"), "record", "-o", "run", "--", sys.executable, str(script)]
    several = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(6)
    ]
    results = [(*process.communicate(timeout=250), process.returncode) for process in several]
    assert sorted(code for _, _, code in results) == [2, 2, 2, 2, 2, 3]
    assert [out for out, _, code in results if code == 2] == [b""] * 5
    assert validate(load(tmp_path / "run.tileprof")) == []


@pytest.mark.parametrize("point", POINTS)
def test_a_disk_that_is_full_after_any_number_of_pages_costs_the_trace_and_not_the_program(
    tmp_path: Path, point: int, warm: Commands
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={4 * point}k"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        words = ("record", "-o", disk / "run", "--", sys.executable, program(tmp_path))
        process = tileprof(*words, folder=tmp_path, warm=warm)
        assert process.returncode in (2, 3), "refused before the program, or the program's own"
        assert process.stdout.startswith(b"begin\n") == (process.returncode == 3)
        assert b"Traceback" not in process.stderr
        whole, part = disk / "run.tileprof", disk / "run.tileprof.partial"
        assert whole.exists() or b"the disk is full" in process.stderr
        for path in filter(Path.exists, (whole, part)):
            assert path == part or validate(load(path)) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_another_user_reads_a_trace_and_may_not_write_beside_it(tmp_path: Path) -> None:
    """Root may write everywhere, so the user is ``nobody``, if the interpreter is not in a folder of root's own."""
    if os.getuid() or shutil.which("setpriv") is None:
        pytest.skip("needs root, to become another user")
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable]
    if subprocess.run([*user, "-c", "import tileprof"], capture_output=True, check=False).returncode:
        pytest.skip("another user cannot start this interpreter")
    shutil.copytree(GOLDEN, tmp_path / "run.tileprof")
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    view = [*user, "-m", "tileprof.cli", "export", "--format", "graphml", "-o", "out", "run.tileprof"]
    process = subprocess.run(view, cwd=tmp_path, capture_output=True, check=False)
    assert (process.returncode, process.stderr.count(b"\n")) == (2, 1), process.stderr
    assert b"permission" in process.stderr.lower()


@pytest.mark.parametrize("way", ["closed", "unread"])
def test_a_stdout_without_a_reader_is_left_to_the_program(tmp_path: Path, way: str) -> None:
    script = program(tmp_path)
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "torch.py").write_text(NO_TORCH, encoding="utf-8")
    shell = {"closed": "{} >&-", "unread": "{} | true; exit ${{PIPESTATUS[0]}}"}[way]
    plain, recording = (
        subprocess.run(["bash", "-c", shell.format(command)], cwd=tmp_path, capture_output=True, check=False, env=env)
        for command, env in (
            (f"{sys.executable} {script}", environment({"PYTHONPATH": str(tmp_path / "without")})),
            (f"{sys.executable} -m tileprof.cli record -- {sys.executable} {script}", None),
        )
    )
    assert recording.returncode == plain.returncode
    assert of_the_program(recording.stderr) == plain.stderr.splitlines()
    partial_files = [
        tmp_path / name for name in ("infer.tileprof", "infer.tileprof.partial") if (tmp_path / name).exists()
    ]
    assert [validate(load(path)) for path in partial_files] == [[]]


def test_two_processes_with_a_cold_cache_build_once_and_both_run(tmp_path: Path) -> None:
    """Code that is compiled at first use is built once; a compiler that sleeps stands for a slow build."""
    code = (
        "import sys, time, pathlib\n"
        "from tileprof import building\n"
        "def make(work):\n"
        "    time.sleep(1)\n"
        "    (work / 'made').write_text(str(time.time_ns()))\n"
        "folder = building.cached(pathlib.Path('cache/key'), ('made',), make, 'a test')\n"
        "print((folder / 'made').read_text())\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    results = [(*process.communicate(timeout=250), process.returncode) for process in both]
    assert [(code, err) for _, err, code in results] == [(0, b"")] * 2
    assert results[0][0] == results[1][0], "both use the build that came first"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"], "nothing half made is left"
