"""Kernels that wait for a later launch, for the host or for each other: the program ends with its result, and the trace
says so.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tileprof.record.cuda.installation import gpu, locate
from tileprof.trace import load, validate

SOURCE = Path(__file__).parent / "programs" / "spinning.cu"
LONGEST_S = "60"
OURS = 70


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return the program's command, which `timeout` ends if it hangs."""
    path = tmp_path_factory.mktemp("spinning") / "spinning"
    flags = ["-std=c++17", f"-arch={gpu.gpus()[0].architecture}"]
    subprocess.run([locate.nvcc(), *flags, SOURCE, "-o", path], check=True)
    return lambda way: ("timeout", "-k", "5", LONGEST_S, path, way)


def of(trace, kernel):
    return trace.launches[trace.launches.kernel.str.startswith(f"{kernel}(")]


@pytest.mark.parametrize("way", ["streams", "plain", "host"])
def test_a_kernel_that_a_later_launch_or_the_host_releases_is_set_aside_and_continues(record, program, way):
    result = record(*program(way), passes=("accesses",), wait_s=1)
    assert (result.code, result.output) == (0, "42 cudaSuccess\n"), result.messages
    assert "spins has not ended in 1 s: it may wait for a later launch" in result.messages
    trace = load(result.path)
    assert validate(trace) == []
    spins, others = of(trace, "spins"), trace.launches[~trace.launches.kernel.str.startswith("spins")]
    assert spins.coverage.iloc[-1] == "conservative"
    assert "had not ended after 1 s" in spins.note.iloc[-1]
    assert set(others.coverage) == {"exact"}


def test_it_is_waited_for_once_however_often_it_is_launched(record, program):
    begin = time.monotonic()
    result = record(*program("often"), passes=("accesses",), wait_s=8)
    assert (result.code, result.output) == (0, "42 cudaSuccess\n"), result.messages
    assert time.monotonic() - begin < 3 * 8  # five times would be 40 s
    assert len(of(load(result.path), "spins")) == 6


def test_all_passes_of_it_make_one_trace(record, program):
    result = record(*program("streams"), wait_s=1)
    assert (result.code, result.output) == (0, "42 cudaSuccess\n"), result.messages
    trace = load(result.path)
    assert validate(trace) == []
    assert set(trace.times.launch) == set(of(trace, "spins").launch) | set(of(trace, "lets_go").launch) | set(
        of(trace, "counts").launch
    )


def test_left_out_by_name_it_is_not_waited_for(record, program):
    result = record(*program("streams"), passes=("accesses",), exclude="spins")
    assert (result.code, result.output) == (0, "42 cudaSuccess\n"), result.messages
    assert "has not ended" not in result.messages
    assert len(of(load(result.path), "spins")) == 0


@pytest.mark.parametrize("way", ["late", "never"])
def test_a_program_that_stands_still_is_ended_with_the_name_to_leave_out(record, program, way):
    from tileprof.errors import UserError

    try:
        result = record(*program(way), passes=("accesses", "blocks"), wait_s=1)
        assert result.code == OURS, result.messages
        message = result.messages
    except UserError:
        message = ""  # no data had left the GPU, and the library said why on the program's stderr
    assert "--exclude 'spins'" in message or not message


THREADS = """
import sys, threading, torch
def work(which, sums):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        x = torch.full((256, 256), 0.5 + which, device="cuda")
        ways = [torch.sin, torch.exp, torch.tanh, lambda t: t @ t, lambda t: t.half() @ t.half(),
                lambda t: t.bfloat16() @ t.bfloat16(),
                lambda t: t.sum(0), lambda t: t.cumsum(0), lambda t: torch.softmax(t, 1), lambda t: torch.sort(t)[0]]
        for round in range(20):
            for way in ways if which else reversed(ways):
                y = way(x)
                stream.synchronize()
        sums[which] = y.double().sum().item()
sums = [0, 0]
threads = [threading.Thread(target=work, args=(which, sums)) for which in (0, 1)]
[t.start() for t in threads]
[t.join() for t in threads]
sys.stdout.write(" ".join(f"{s:.5e}" for s in sums))
"""


def test_threads_that_launch_at_once_do_not_wait_for_each_other_for_ever(record, plain, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "program.py"
    script.write_text(THREADS)
    result = record("timeout", "-k", "5", LONGEST_S, sys.executable, script, passes=("accesses", "time"))
    assert (result.code, result.output) == (0, plain(sys.executable, script)), result.messages
    assert validate(load(result.path)) == []
    assert "have no time" not in result.messages


def test_blocks_that_wait_for_each_other_are_recorded_where_they_all_fit(record, program):
    result = record(*program("cooperative"), passes=("accesses",), verify=True)
    assert (result.code, result.output) == (0, "4 cudaSuccess\n"), result.messages
    trace = load(result.path)
    assert validate(trace) == []
    assert set(of(trace, "in_rounds").coverage) == {"exact"}
    assert ", 0 of them outside every recorded write" in result.messages
