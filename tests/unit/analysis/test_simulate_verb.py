"""``tileprof simulate`` from its options to its table."""

import json
from argparse import ArgumentParser

import pytest

from tests.unit.analysis.fakes import write_mlp
from tileprof.analysis.simulate import bloom
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
        "acs-hw",
        "cusync",
        "persistent",
        "ccks",
        "blockmaestro",
        "wireframe",
        "dataflow-bloom",
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


def test_a_scheduler_that_cannot_run_is_left_out_unless_it_was_asked_for(mlp, capsys, monkeypatch):
    monkeypatch.setattr(bloom, "_MOST_BYTES", 1)
    assert simulate(mlp) == 0
    out, err = capsys.readouterr()
    assert "dataflow-bloom is left out" in err
    assert "dataflow-bloom" not in out
    with pytest.raises(UserError, match="too many pairs"):
        simulate(mlp, "--scheduler", "dataflow-bloom")


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


def test_rules_for_child_grids_are_compared_on_a_workload(capsys):
    assert simulate("workload:bfs:scale=8,seed=1", "--scheduler", "spawn:launch=1us,queues=4") == 0
    text = capsys.readouterr().out
    for rule in ("flat", "always", "threshold ", "spawn"):
        assert rule in text
    assert max(map(len, text.splitlines())) <= 80
    simulate("workload:join:scale=8", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "tileprof spawns"
    assert [r["policy"].split()[0] for r in found["rules"]] == ["flat", "always", "threshold", "spawn"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["workload:bsf"], "did you mean bfs?"),
        (["workload:bfs:size=3"], "takes scale and seed"),
        (["workload:bfs:scale=99"], "scale is 4 to 22"),
        (["workload:bfs:scale=x"], "is not a whole number"),
        (["workload:bfs", "--scheduler", "list"], "record a program"),
        (["workload:bfs", "--scheduler", "spawn:launchns=1"], "did you mean launch_ns?"),
        (["workload:bfs", "--scheduler", "spawn:launch=1"], "no time with a unit"),
        (["workload:bfs", "--scheduler", "spawn:queues=0"], "at least 1"),
        (["workload:bfs", "--sms", "3"], "needs a trace"),
        (["anything", "--scheduler", "spawn"], "no spawn events"),
    ],
)
def test_workloads_that_do_not_exist_are_answered_with_what_there_is(arguments, says):
    with pytest.raises(UserError) as raised:
        simulate(*arguments)
    assert says in str(raised.value)


@pytest.mark.parametrize("bad", [["--scheduler", "lits"], ["--sms", "0"], ["--device", "H1000"]])
def test_bad_usage_is_a_user_error(mlp, bad):
    with pytest.raises(UserError):
        simulate(mlp, *bad)
