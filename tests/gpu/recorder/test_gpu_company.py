"""Recorders that are not alone: killed at random times, two at once, and programs that fork after CUDA has started."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tileprof.record.cuda import gpu, locate
from tileprof.trace import load, validate

KILLS = 8
COMMAND = (sys.executable, "-P", "-m", "tileprof.cli", "record", "--recorder", "cuda")
LONGEST_S = 120


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    made, source = tmp_path_factory.mktemp("company") / "company", Path(__file__).parent / "company.cu"
    subprocess.run([locate.nvcc(), f"-arch={gpu.gpus()[0].architecture}", source, "-o", made], check=True)
    return made


def recorder(folder, name, *command):
    words = [*COMMAND, "-o", name, "--", *map(str, command)]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def grids(path):
    trace = load(path)
    assert validate(trace) == []
    return trace.launches.grid_x[trace.launches.kernel.str.contains("add")].tolist()


def running(program):
    """Processes of the program that are still there."""
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
    with recorder(tmp_path, "run", program, "loop") as process:
        if seed % 2:
            assert process.stdout.readline() == "begin\n"
        time.sleep(dice.uniform(0, 2))
        process.send_signal(number)
        _, stderr = process.communicate(timeout=LONGEST_S)
    sys.stdout.write(f"{number.name}: {process.returncode}\n{stderr}")
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
    ended = [(*process.communicate(timeout=LONGEST_S), process.returncode) for process in both]
    assert [(out, code) for out, _, code in ended] == [("begin\n40\n", 0)] * 2, ended
    assert grids(tmp_path / "first.tileprof") == grids(tmp_path / "second.tileprof")
    assert grids(tmp_path / "first.tileprof") == [1 + i % 7 for _ in range(2) for i in range(20)]


def test_a_program_that_forks_after_cuda_has_started_is_recorded_to_its_end(program, tmp_path):
    plain = subprocess.run([program, "fork"], capture_output=True, text=True, check=True, timeout=LONGEST_S)
    process = recorder(tmp_path, "forks", program, "fork")
    out, stderr = process.communicate(timeout=LONGEST_S)
    assert (out, process.returncode) == (plain.stdout, 0), stderr
    assert "the child ended with 5" in out
    assert grids(tmp_path / "forks.tileprof") == [1 + i % 7 for _ in range(2) for i in range(20)]
