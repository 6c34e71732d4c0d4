"""Sweeps: their options, their values, and one process or several."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.simulate_command import simulate
from tests.support.synthetic_graphs import write_mlp
from tileprof.analysis.simulate import Source, Sweep, curve, scheduler, sweep_of
from tileprof.analysis.simulate.sweeps import sweep
from tileprof.errors import UserError


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return str(write_mlp(tmp_path_factory.mktemp("sweep") / "mlp.tileprof", layers=1, tokens=256, hidden=256))


def test_a_sweep_names_its_key_its_ends_and_how_many_values():
    assert sweep_of("gap_ns=0:10:3") == Sweep("gap_ns", (0.0, 5.0, 10.0))
    assert sweep_of("gap=0ns:2us:2") == Sweep("gap_ns", (0.0, 2000.0))
    assert sweep_of("sms=1:8:2") == Sweep("sms", (1.0, 8.0))


def test_values_of_whole_number_options_are_what_runs_and_each_is_there_once():
    assert sweep_of("window=1:32:6").values == (1, 7, 13, 20, 26, 32)
    assert sweep_of("window=1:3:9").values == (1, 2, 3)
    assert sweep_of("gap_ns=5:5:4").values == (5.0,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gap_ns", "is not key=a:b:n"),
        ("gap_ns=0:1", "is not key=a:b:n"),
        ("gap_ns=0:1:1", "n from 2"),
        ("gap_ns=a:1:2", "two numbers"),
        ("gap=0:1:2", "not a time with a unit"),
        ("sms=nan:10:2", "finite"),
        ("sms=1:inf:2", "finite"),
        ("gap_ns=-1e308:1e308:2", "finite"),
        ("sms=1:1000000000000:2", "from 1 to 100,000"),
        ("gaps_ns=0:1:2", "did you mean gap_ns?"),
    ],
)
def test_other_sweeps_are_refused_with_what_was_meant(text, says):
    with pytest.raises(UserError) as error:
        sweep_of(text)
    assert says in str(error.value)


def test_every_value_is_what_the_scheduler_alone_gives(mlp):
    points = curve(Source(mlp), ["stream", "graph:dependencies=1"], Sweep("gap_ns", (0.0, 500.0)))
    simulator = Source(mlp).simulator()
    for value, schedules in zip((0.0, 500.0), points, strict=True):
        for name, result in zip(("stream:gap_ns=", "graph:dependencies=1,gap_ns="), schedules, strict=True):
            alone = simulator.run(scheduler(f"{name}{value}"))
            assert (result["scheduler"], result["time_ns"]) == (f"{name}{value}", alone.time_ns)
    assert points[0][0]["time_ns"] < points[1][0]["time_ns"]


def test_processes_give_the_same_curve(mlp, monkeypatch):
    expected = ["dataflow-bloom"], Sweep("bits", (64.0, 300.4, 4096.0))
    alone = curve(Source(mlp), *expected)
    monkeypatch.setattr(sweep, "_WORTH_S", 0.0)
    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 2)
    assert curve(Source(mlp), *expected) == alone
    assert alone[1][0]["scheduler"] == "dataflow-bloom:bits=300"


def test_a_swept_option_replaces_the_one_that_was_given(mlp, capsys):
    arguments = ("--scheduler", "cusync:poll=5us,wait_ns=7", "--sweep", "poll=0us:2us:2")
    simulate(mlp, *arguments)
    head = capsys.readouterr().out.splitlines()[0]
    assert head.split() == ["poll_ns", "cusync:wait_ns=7"]
    simulate(mlp, *arguments, "--json")
    actual = [s["scheduler"] for p in json.loads(capsys.readouterr().out)["points"] for s in p["schedules"]]
    assert actual == ["cusync:wait_ns=7,poll_ns=0.0", "cusync:wait_ns=7,poll_ns=2000.0"]


def small_gpus_refused(monkeypatch, least):
    """GPUs of fewer SMs hold no block."""
    plain = sweep.Simulator

    def check(graph, machine, lives):
        if machine.sms < least:
            raise UserError(f"launch 0 does not fit on {machine.sms} SMs")
        return plain(graph, machine, lives)

    monkeypatch.setattr(sweep, "Simulator", check)
    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 1)


def test_a_gpu_that_is_too_small_leaves_a_gap_in_the_curve_with_its_reason(mlp, capsys, monkeypatch):
    small_gpus_refused(monkeypatch, least=3)
    arguments = ("--scheduler", "list", "--sweep", "sms=1:4:4")
    assert simulate(mlp, *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] == "-" for line in lines[1:5]] == [True, True, False, False]
    assert "- list at 1: launch 0 does not fit on 1 SMs" in lines[5]
    simulate(mlp, *arguments, "--json")
    points = [p["schedules"][0] for p in json.loads(capsys.readouterr().out)["points"]]
    assert [p["time_ns"] is None for p in points] == [True, True, False, False]
    assert points[1]["refused"] == "launch 0 does not fit on 2 SMs"


def test_a_curve_without_a_gpu_that_is_large_enough_is_refused(mlp, monkeypatch):
    small_gpus_refused(monkeypatch, least=3)
    with pytest.raises(UserError, match="does not fit on 1 SMs"):
        simulate(mlp, "--scheduler", "list", "--sweep", "sms=1:2:2")


_SWEEP = """
import sys
from tileprof.analysis.simulate import Source, Sweep, curve
from tileprof.analysis.simulate.sweeps import sweep
sweep._WORTH_S = 0.0
sweep.os.cpu_count = lambda: 2
curve(Source(sys.argv[1]), ["list"], Sweep("sms", tuple(range(1, 50_000))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_processes_of_a_sweep_end_with_the_one_that_asked(mlp):
    parent = subprocess.Popen([sys.executable, "-c", _SWEEP, mlp], start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: len(workers(parent.pid)) == 2)
        parent.terminate()
        assert parent.wait(120) == -signal.SIGTERM
        assert wait_until(lambda: not workers(parent.pid))
    finally:
        for worker in workers(parent.pid):
            os.kill(worker, signal.SIGKILL)
        parent.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_in_a_sweep_says_nothing_from_its_processes(mlp):
    with subprocess.Popen(
        [sys.executable, "-c", _SWEEP, mlp], start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert wait_until(lambda: len(workers(parent.pid)) == 2)
            assert wait_until(lambda: not ignores_interrupts(parent.pid))  # while it starts processes
            os.killpg(parent.pid, signal.SIGINT)
            _, output = parent.communicate(timeout=120)
        finally:
            parent.kill()
    assert output.count("Traceback") == 1  # the name of the script itself, which the command hides
    assert wait_until(lambda: not workers(parent.pid))


def workers(session):
    """Return processes of a session that a pool started."""
    matches = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(state[3]) == session and state[0] != "Z" and b"spawn_main" in (folder / "cmdline").read_bytes():
                matches.append(int(folder.name))
        except OSError:
            continue  # it has ended
    return matches


def ignores_interrupts(process):
    ignored_signals = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(ignored_signals[1], 16) >> (signal.SIGINT - 1) & 1)


def wait_until(true, most_s=120.0):
    end = time.monotonic() + most_s
    while not (message := true()) and time.monotonic() < end:
        time.sleep(0.05)
    return message


def test_fewer_sms_take_longer(mlp, capsys):
    simulate(mlp, "--scheduler", "list", "--sweep", "sms=1:80:2", "--json")
    document = json.loads(capsys.readouterr().out)
    one, many = (point["schedules"][0]["time_ns"] for point in document["points"])
    assert one > many
    simulate(mlp, "--scheduler", "list", "--sweep", "sms=1:80:2")
    assert "80" in capsys.readouterr().out


@pytest.mark.parametrize(
    "bad",
    [
        ["--sweep", "sms=1:2:2"],
        ["--scheduler", "list", "--sweep", "gap_ns=0:1:2"],
        ["--scheduler", "stream", "--sweep", "gap_ns=-1:1:2"],
        ["--scheduler", "stream", "--sweep", "sms=0:1:2"],
        ["--scheduler", "stream", "--sweep", "sms=1:2:2", "--advice"],
    ],
)
def test_a_sweep_that_makes_no_sense_is_a_user_error(mlp, bad):
    with pytest.raises(UserError):
        simulate(mlp, *bad)
