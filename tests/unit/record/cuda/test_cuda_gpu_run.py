"""The one command for a GPU: its steps exist, no failing step ends the run, and their output is kept."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PLACE = ROOT / "tests" / "gpu" / "run.py"


@pytest.fixture
def runner():
    spec = importlib.util.spec_from_file_location("gpu_run", PLACE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_run"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_run"]


def test_every_file_that_a_step_names_is_there(runner):
    script_names = [word for step in runner.STEPS for word in step.command if word.endswith(".py")]
    assert script_names
    assert [word for word in script_names if not (ROOT / word).is_file()] == []
    assert sum(step.likely_s for step in runner.STEPS if step.alone) < 1740 * 0.75, "the budget by default"


def test_steps_that_measure_nothing_run_together_and_the_others_by_themselves(runner, tmp_path, monkeypatch, capsys):
    code = (
        "import pathlib, sys, time\n"
        "me, other = map(pathlib.Path, sys.argv[1:])\n"
        "print(time.monotonic(), flush=True)\n"
        "me.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
        "print(time.monotonic())\n"
    )  # a step ends only once the step that it waits for has begun
    waits_for = {"a": "b", "b": "a", "alone1": "alone1", "alone2": "alone2"}
    steps = [
        runner.Step(
            n, (sys.executable, "-c", code, *(str(tmp_path / f"{m}.begun") for m in (n, other))), 1, 100, n == other
        )
        for n, other in waits_for.items()
    ]
    monkeypatch.setattr(runner, "STEPS", steps)
    monkeypatch.setattr(runner, "path_of_the_checkout", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), "--jobs", "2"])
    runner.main()
    capsys.readouterr()
    outcome = {
        n: list(map(float, (tmp_path / "logs" / f"{n}.log").read_text().split()))
        for n in ("a", "b", "alone1", "alone2")
    }
    assert max(outcome["a"][0], outcome["b"][0]) < min(outcome["a"][1], outcome["b"][1])
    assert max(outcome["a"][1], outcome["b"][1]) < outcome["alone1"][0]
    assert outcome["alone1"][1] < outcome["alone2"][0]


def test_a_step_that_hangs_is_ended_with_all_it_started(runner, tmp_path):
    (tmp_path / "logs").mkdir()
    code = "echo started; sleep 200 & wait"  # the shell's own, which exists at once on any machine
    row = runner.run(runner.Step("hangs", ("bash", "-c", code), 1, 1), tmp_path, dict(os.environ), 1)
    assert (row["timed_out"], row["said"]) == (True, "started")
    assert row["seconds"] < 100


def test_failures_are_counted_and_later_calls_add_to_the_summary(runner, tmp_path, monkeypatch, capsys):
    good = runner.Step("good", (sys.executable, "-c", "print('3 passed in 1s')"), 1, 30)
    bad = runner.Step(
        "bad",
        (sys.executable, "-c", "print('FAILED x::y - no'); print('= 1 failed in 1s ='); raise SystemExit(1)"),
        1,
        30,
    )
    monkeypatch.setattr(runner, "STEPS", (good, bad))
    monkeypatch.setattr(runner, "path_of_the_checkout", lambda *_: [])
    for words in (["--only", "bad"], ["--only", "good"]):
        monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), *words])
        runner.main()
    rows = {row["step"]: row for row in json.loads((tmp_path / "summary.json").read_text())["steps"]}
    assert (rows["good"]["code"], rows["good"]["said"]) == (0, "3 passed in 1s")
    assert (rows["bad"]["code"], rows["bad"]["said"], rows["bad"]["failed"]) == (
        1,
        "1 failed in 1s",
        ["FAILED x::y - no"],
    )
    assert "rc 1" in capsys.readouterr().out
    assert (tmp_path / "logs.tar.gz").is_file()


def test_without_time_nothing_is_begun(runner, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "path_of_the_checkout", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), "--budget", "5"])
    runner.main()
    assert f"go on with --only {','.join(step.name for step in runner.STEPS)}\n" in capsys.readouterr().out


def test_results_of_steps_join_those_of_earlier_days(runner):
    row = {"step": "known", "ended": "2026-11-29", "seconds": 3.0, "code": 0, "timed_out": False, "said": "10 passed"}
    rows = [row, row | {"step": "graphs", "code": 1}, row | {"step": "faults", "timed_out": True}]
    before = {"steps": [{"step": "known", "ended": "2026-11-22"}, {"step": "exits", "ended": "2026-11-22"}]}
    results = runner.joined(before, {"date": "2026-11-29T08:00:00", "gpu": "NVIDIA H200", "steps": rows})
    assert {row["step"]: (row["ended"], row.get("passed")) for row in results["steps"]} == {
        "known": ("2026-11-29", True),
        "exits": ("2026-11-22", None),
        "graphs": ("2026-11-29", False),
        "faults": ("2026-11-29", False),
    }
    assert (results["date"], results["gpu"]) == ("2026-11-29", "NVIDIA H200")


def test_the_readme_names_a_script_for_each_results_file():
    gpu = ROOT / "tests" / "gpu"
    table = (gpu / "README.md").read_text().partition("## Who writes the results files")[2]
    rows = [line.split("|")[1:3] for line in table.splitlines() if ".json`" in line]
    files = [word for cell, _ in rows for word in re.findall(r"`(\w+\.json)`", cell)]
    assert {path.name for path in (gpu / "results").glob("*.json")} - set(files) == set()
    scripts = [word for _, cell in rows for word in re.findall(r"`([\w/]+\.py)", cell)]
    assert len(scripts) >= len(rows)
    assert [word for word in scripts if not (gpu / word).is_file()] == []
