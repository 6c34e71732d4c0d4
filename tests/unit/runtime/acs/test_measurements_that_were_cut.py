"""Scripts that measure ACS on a GPU continue after an interruption: finished work is not repeated, and nothing is
lost.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tileprof.runtime import acs

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3] / "gpu" / "measuring" / "acs"))

import measure_acs_eager as eager
import measure_acs_runs as runs
import measure_acs_simulated as simulated

TABLE = "kernel a\nwrite 0 4\nkernel b\nwrite 4 8\n"


class Table:
    """The part of a footprint table that the scripts use."""

    launches, without = 2, {}

    def write(self, path):
        path.write_text(TABLE)


class Machine:
    """Simulates runs of programs, some of which are cut."""

    def __init__(self, cut):
        self.cut, self.started, self.recorded = set(cut), [], 0

    def record(self, *_):
        self.recorded += 1
        return Table()

    def ran(self, words, variables, ends):
        kind = "plain" if not variables else Path(variables["folder"]).name
        self.started.append(kind)
        return (-1, "no end in time") if kind in self.cut else (0, "digest")

    def results(self, folder):
        if folder.name in self.cut:
            return []
        noticed = int(folder.name.startswith("broken"))
        return [{"launches": 10, "spread": 5, "checked": 10, "differing": noticed}]


@pytest.fixture
def machine(monkeypatch):
    gpu_machine = Machine([])
    monkeypatch.setattr(runs, "record_table", gpu_machine.record)
    monkeypatch.setattr(runs, "ran", gpu_machine.ran)
    monkeypatch.setattr(acs, "results", gpu_machine.results)
    monkeypatch.setattr(acs, "environment", lambda library, settings: {"folder": str(settings.folder)})
    return gpu_machine


LIMITS = runs.Limits(1000, time.time() + 10**6, 1)


def of_program(folder, limits=LIMITS):
    with ThreadPoolExecutor(1) as recordings, ThreadPoolExecutor(1) as runs_in_turn:
        pools = runs.Pools(recordings, runs_in_turn)
        return runs.of_program("cloth", folder, Path("library"), limits, pools)


def test_an_interrupted_program_continues_with_the_unfinished_stage(machine, tmp_path):
    machine.cut = {"delayed", "check", "broken-0"}
    assert not runs.is_complete(of_program(tmp_path), LIMITS)
    machine.cut = {"check"}
    row = of_program(tmp_path)
    assert (row["same"], row["spread"]) == (True, 5)
    assert not runs.is_complete(row, LIMITS)
    machine.cut = set()
    row = of_program(tmp_path)
    assert runs.is_complete(row, LIMITS)
    assert (row["differing"], row["noticed"], row["deleted"]) == (0, 1, "a")
    assert machine.recorded == 1
    assert machine.started == ["plain", "delayed", "check", "broken-0", "delayed", "check", "broken-0", "check"]
    assert of_program(tmp_path) == row
    assert len(machine.started) == 8


def test_stages_of_another_number_of_steps_do_not_count(machine, tmp_path):
    of_program(tmp_path)
    of_program(tmp_path, replace(LIMITS, steps=10))
    assert machine.started.count("plain") == 2
    assert machine.recorded == 1


def test_delayed_steps_run_in_further_ways_and_without_checks(machine, tmp_path):
    limits = replace(LIMITS, ways=("graph", "workers"), checked=False)
    row = of_program(tmp_path, limits)
    assert machine.started == ["plain", "delayed-graph", "delayed-workers"]
    assert runs.is_complete(row, limits)
    assert not runs.is_complete(row, LIMITS)
    assert row["same"]
    assert row["delayed-workers-counts"]["spread"] == 5


def test_programs_measure_in_turn_and_one_that_does_not_answer_is_left_out(monkeypatch, tmp_path):
    ready = "import sys, pathlib; pathlib.Path(sys.argv[sys.argv.index('--ready') + 1]).touch(); "
    programs = {
        "quick": ready + "[print('step: 12.5 us per step, 11.0 us to issue it', flush=True) for _ in sys.stdin]; "
        "print('digest')",
        "dead": "raise SystemExit(3)",
        "silent": ready + "sys.stdin.read()",
    }
    monkeypatch.setattr(eager, "command", lambda words, _, *step: (sys.executable, "-c", programs[words], *step))
    monkeypatch.setattr(eager, "TURN_S", 20)
    for words in programs:
        (tmp_path / words).mkdir()
    limit = time.monotonic() + 60
    first, second, whole = eager.measured(
        [("quick", "plain"), ("dead", "plain")], range(3, 5), tmp_path, Path(), limit, 11
    )
    assert [(row["program"], row["pair"], row["us"], row["issue_us"]) for row in [*first, *second]] == [
        ("quick", 3, 12.5, 11.0), ("dead", 3, None, None), ("quick", 4, 12.5, 11.0), ("dead", 4, None, None),
    ]  # fmt: skip
    assert [row["said"] for row in whole] == ["digest", "", "digest", ""]
    monkeypatch.setattr(eager, "TURN_S", 0.2)
    *_, rows = eager.measured([("silent", "plain")], range(2), tmp_path, Path(), limit, 1)
    assert [row["us"] for row in rows] == [None, None]


def test_a_recorded_program_is_not_recorded_again(monkeypatch, tmp_path):
    machine = Machine([])
    monkeypatch.setattr(simulated, "record_table", machine.record)
    monkeypatch.setattr(acs, "build", lambda: Path("library"))
    place = tmp_path / "moe"
    assert "2 launches known" in simulated.tabulate("moe", place)
    assert "2 launches known" in simulated.tabulate("moe", place)  # without a recording, which was cut
    (place / "recorded.tileprof").mkdir()
    assert simulated.tabulate("moe", place) == "moe: its table is there"
    assert machine.recorded == 2
