"""``tileprof simulate`` from its options to its table."""

import json
from argparse import ArgumentParser

import pytest

from tests.unit.analysis.fakes import write_mlp
from tileprof.cli.simulate import VERB
from tileprof.errors import UserError


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return write_mlp(tmp_path_factory.mktemp("simulate") / "mlp.tileprof", layers=2, tokens=1024, hidden=1024)


def simulate(*arguments):
    parser = ArgumentParser()
    VERB.prepare(parser)
    return VERB.run(parser.parse_args(list(map(str, arguments))))


def test_every_scheduler_is_compared_with_stream_order_and_the_bounds(mlp, capsys):
    assert simulate(mlp) == 0
    text = capsys.readouterr().out
    for name in (
        "stream",
        "graph",
        "pdl",
        "streams",
        "acs-sw",
        "cusync",
        "dataflow",
        "list",
        "bound: ",
        "recorded were",
    ):
        assert name in text
    assert max(map(len, text.splitlines())) <= 80


def test_schedulers_are_chosen_by_name_and_options(mlp, capsys):
    simulate(mlp, "--scheduler", "stream:gap_ns=0", "--scheduler", "list", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["version"]) == ("tileprof simulation", 1)
    assert [s["scheduler"] for s in found["schedules"]] == ["stream:gap_ns=0", "list"]
    times = [s["time_ns"] for s in found["schedules"]]
    assert found["bounds"]["bound_ns"] <= times[1] <= times[0] < found["stream_ns"]


def test_another_gpu_may_be_asked_for(mlp, capsys):
    simulate(mlp, "--scheduler", "list", "--sms", "8", "--json")
    small = json.loads(capsys.readouterr().out)["stream_ns"]
    simulate(mlp, "--scheduler", "list", "--device", "H100", "--json")
    assert json.loads(capsys.readouterr().out)["stream_ns"] < small


def test_advice_comes_with_its_reasons(mlp, capsys):
    simulate(mlp, "--scheduler", "list", "--advice")
    text = " ".join(capsys.readouterr().out.split())
    assert "What to do first" in text
    assert "because" in text
    assert "held back" in text


@pytest.mark.parametrize("bad", [["--scheduler", "lits"], ["--sms", "0"], ["--device", "H1000"]])
def test_bad_usage_is_a_user_error(mlp, bad):
    with pytest.raises(UserError):
        simulate(mlp, *bad)
