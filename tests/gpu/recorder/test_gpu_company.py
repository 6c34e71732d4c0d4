"""Recorders beside other processes: killed at random times, two at once, and programs that fork after CUDA has
started.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tileprof.record.cuda.installation import gpu, locate
from tileprof.trace import load, validate

KILLS = 8
START = "import sys; from tileprof.__main__ import main; print('up', flush=True); sys.exit(main())"
"""A signal before the first line meets Python's own handler, which prints a traceback."""

COMMAND = (sys.executable, "-P", "-c", START, "record", "--recorder", "cuda")
LONGEST_S = 60


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    result, source = tmp_path_factory.mktemp("company") / "company", Path(__file__).parent / "programs" / "company.cu"
    subprocess.run([locate.nvcc(), f"-arch={gpu.gpus()[0].architecture}", source, "-o", result], check=True)
    return result


def recorder(folder, name, *command):
    words = [*COMMAND, "-o", name, "--", *map(str, command)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=folder, start_new_session=True, **pipes)
    assert process.stdout.readline() == "up\n"
    return process


def outcome(process):
    """Return what a recorder wrote until its end; after `LONGEST_S` it is killed with its program."""
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\nnot ended after {LONGEST_S} s"
    say(f"exit code {process.returncode} after {time.monotonic() - began:.1f} s; {err}")
    return out, err


def say(text):
    """Under -s, this also appears if pytest is interrupted before it reports."""
    sys.stdout.write(text.rstrip() + "\n")
    sys.stdout.flush()


def grids(path):
    trace = load(path)
    assert validate(trace) == []
    return trace.launches.grid_x[trace.launches.kernel.str.contains("add")].tolist()


def running(program):
    """Return the processes of the program that still exist."""
    names = (path.joinpath("cmdline") for path in Path("/proc").iterdir() if path.name.isdigit())
    return [name for name in names if str(program) in read(name)]


def read(path):
    try:
        return path.read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_recorder_killed_at_a_random_time_leaves_no_process_and_a_trace_that_validates(program, tmp_path, seed):
    dice = random.Random(seed)
    number = dice.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    process = recorder(tmp_path, "run", program, "loop")
    if seed % 2:
        assert process.stdout.readline() == "begin\n"
    time.sleep(dice.uniform(0, 2))
    say(f"{number.name}{' of a program that runs' if seed % 2 else ''}")
    process.send_signal(number)
    _, stderr = outcome(process)
    assert process.returncode in (-number, 128 + number)
    assert "Traceback" not in stderr
    assert "bug in tileprof" not in stderr
    assert not (tmp_path / "run.tileprof").exists()
    if (tmp_path / "run.tileprof.partial").exists():
        assert not load(tmp_path / "run.tileprof.partial").complete
        grids(tmp_path / "run.tileprof.partial")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and running(f"{program} loop"):
        time.sleep(0.1)
    assert not running(f"{program} loop"), "the program outlives its recorder"


def test_two_recorders_at_once_record_what_one_does(program, tmp_path):
    both = [recorder(tmp_path, name, program, "run") for name in ("first", "second")]
    outputs = [outcome(process)[0] for process in both]
    assert outputs == ["begin\n40\n"] * 2
    assert [process.returncode for process in both] == [0, 0]
    assert grids(tmp_path / "first.tileprof") == grids(tmp_path / "second.tileprof")
    assert grids(tmp_path / "first.tileprof") == [1 + i % 7 for _ in range(2) for i in range(20)]


def test_a_program_that_forks_after_cuda_has_started_is_recorded_to_its_end(program, tmp_path):
    plain = subprocess.run([program, "fork"], capture_output=True, text=True, check=True, timeout=LONGEST_S)
    say(plain.stdout)
    process = recorder(tmp_path, "forks", program, "fork")
    out, stderr = outcome(process)
    assert (out, process.returncode) == (plain.stdout, 0), stderr
    assert "the child ended with 5" in out
    assert grids(tmp_path / "forks.tileprof") == [1 + i % 7 for _ in range(2) for i in range(20)]
