"""Sweeps: what is asked for, at which values, in one process or several."""

import json

import pytest

from tests.unit.analysis.fakes import write_mlp
from tests.unit.analysis.test_simulate_verb import simulate
from tileprof.analysis.simulate import Source, Sweep, curve, scheduler, sweep, sweep_of
from tileprof.errors import UserError


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return str(write_mlp(tmp_path_factory.mktemp("sweep") / "mlp.tileprof", layers=1, tokens=256, hidden=256))


def test_a_sweep_names_its_key_its_ends_and_how_many_values():
    assert sweep_of("gap_ns=0:10:3") == Sweep("gap_ns", (0.0, 5.0, 10.0))
    assert sweep_of("gap=0ns:2us:2") == Sweep("gap_ns", (0.0, 2000.0))
    assert sweep_of("sms=1:8:2") == Sweep("sms", (1.0, 8.0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gap_ns", "is not key=a:b:n"),
        ("gap_ns=0:1", "is not key=a:b:n"),
        ("gap_ns=0:1:1", "n from 2"),
        ("gap_ns=a:1:2", "two numbers"),
        ("gap=0:1:2", "no time with a unit"),
        ("gaps_ns=0:1:2", "did you mean gap_ns?"),
    ],
)
def test_other_sweeps_are_refused_with_what_was_meant(text, says):
    with pytest.raises(UserError) as raised:
        sweep_of(text)
    assert says in str(raised.value)


def test_every_value_is_what_the_scheduler_alone_gives(mlp):
    points = curve(Source(mlp), ["stream", "graph:dependencies=1"], Sweep("gap_ns", (0.0, 500.0)))
    simulator = Source(mlp).simulator()
    for value, schedules in zip((0.0, 500.0), points, strict=True):
        for name, found in zip(("stream:gap_ns=", "graph:dependencies=1,gap_ns="), schedules, strict=True):
            alone = simulator.run(scheduler(f"{name}{value}"))
            assert (found["scheduler"], found["time_ns"]) == (f"{name}{value}", alone.time_ns)
    assert points[0][0]["time_ns"] < points[1][0]["time_ns"]


def test_processes_give_the_same_curve(mlp, monkeypatch):
    wanted = ["dataflow-bloom"], Sweep("bits", (64.0, 300.4, 4096.0))
    alone = curve(Source(mlp), *wanted)
    monkeypatch.setattr(sweep, "_WORTH_S", 0.0)
    monkeypatch.setattr(sweep.os, "cpu_count", lambda: 2)
    assert curve(Source(mlp), *wanted) == alone
    assert alone[1][0]["scheduler"] == "dataflow-bloom:bits=300"


def test_fewer_sms_take_longer(mlp, capsys):
    simulate(mlp, "--scheduler", "list", "--sweep", "sms=1:80:2", "--json")
    found = json.loads(capsys.readouterr().out)
    one, many = (point["schedules"][0]["time_ns"] for point in found["points"])
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
