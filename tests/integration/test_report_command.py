"""``tileprof report`` as a user runs it."""

import json
import subprocess
import sys

import pytest

from tests.unit.analysis.fakes import write_mlp


def report(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "tileprof.cli", "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    return write_mlp(tmp_path_factory.mktemp("report") / "mlp.tileprof", layers=3, tokens=1024, hidden=2048)


def test_the_report_names_the_pair_to_look_at_and_the_next_command(mlp):
    done = report(mlp)
    text = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert "Look first at launches 0 → 1: addmm h.*.mlp.up → addmm h.*.mlp.down, \N{MULTIPLICATION SIGN}3." in text
    assert f"Next: tileprof view {mlp.name}" in text.replace(f"{mlp.parent}/", "")
    assert "modelled" in text


@pytest.mark.parametrize(
    ("options", "where", "why"),
    [
        ("", ">/dev/full", "No space left on device"),
        ("--json", ">/dev/full", "No space left on device"),
        ("", ">&-", "it is closed"),
    ],
)
def test_a_stdout_that_cannot_be_written_is_one_sentence(mlp, options, where, why):
    line = f"{sys.executable} -m tileprof.cli report {options} '{mlp}' {where}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"tileprof: cannot write to stdout: {why}\n")


def test_json_is_for_programs(mlp):
    found = json.loads(report(mlp, "--json").stdout)
    assert found["pairs"][0]["pattern"] == "row"
    assert found["pairs"][0]["times"] == 3
    bounds = found["bounds"]
    assert bounds["bound_ns"] <= bounds["ready_gated_bound_ns"] <= bounds["list_schedule_ns"] <= bounds["recorded_ns"]
    # Weights of three layers and the input, each once; every activation stays behind, for nothing is freed.
    weights, rows = 3 * 2 * 4 * 2048 * 2048 * 2, 1024 * 2048 * 2
    assert bounds["compulsory_dram_bytes"] == weights + rows + 3 * (4 * rows + rows)


def test_another_gpu_is_asked_for_by_its_size(mlp):
    small = json.loads(report(mlp, "--json", "--sms", "40").stdout)
    large = json.loads(report(mlp, "--json", "--device", "H100").stdout)
    assert (small["device"]["sms"], small["device"]["replayed"]) == (40, True)
    assert small["program"]["waves"] > large["program"]["waves"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.tileprof"], "there is no trace"),
        (["--top", "-1", "x.tileprof"], "--top -1"),
        (["--sms", "0", "x.tileprof"], "at least one SM"),
    ],
)
def test_bad_usage_is_one_paragraph_and_code_two(arguments, says, tmp_path):
    done = report(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_gpu_is_answered_with_those_that_are_known(mlp):
    done = report(mlp, "--device", "H1000")
    assert done.returncode == 2
    assert "H100" in done.stderr
