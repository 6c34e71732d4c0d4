"""Scripts that measure ACS on a GPU go on where they were cut: what is there is not done again, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tileprof.runtime import acs

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3] / "gpu" / "measuring"))

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
    """Runs of programs as they would end, of which some are cut."""

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
    made = Machine([])
    monkeypatch.setattr(runs, "record_table", made.record)
    monkeypatch.setattr(runs, "ran", made.ran)
    monkeypatch.setattr(acs, "results", made.results)
    monkeypatch.setattr(acs, "environment", lambda library, settings: {"folder": str(settings.folder)})
    return made


def of_program(folder):
    return runs.of_program("cloth", folder, Path("library"), runs.Limits(1000, time.time() + 1000, 1))


def test_a_program_that_was_cut_goes_on_with_the_stage_that_did_not_end(machine, tmp_path):
    machine.cut = {"delayed", "check", "broken-0"}
    assert not runs.is_complete(of_program(tmp_path))
    machine.cut = {"check"}
    row = of_program(tmp_path)
    assert (row["same"], row["spread"]) == (True, 5)
    assert not runs.is_complete(row)
    machine.cut = set()
    row = of_program(tmp_path)
    assert runs.is_complete(row)
    assert (row["differing"], row["noticed"], row["deleted"]) == (0, 1, "a")
    assert machine.recorded == 1
    assert machine.started == ["plain", "delayed", "check", "broken-0", "delayed", "check", "broken-0", "check"]
    assert of_program(tmp_path) == row
    assert len(machine.started) == 8


def test_stages_of_another_number_of_steps_do_not_count(machine, tmp_path):
    of_program(tmp_path)
    runs.of_program("cloth", tmp_path, Path("library"), runs.Limits(10, time.time() + 1000, 1))
    assert machine.started.count("plain") == 2
    assert machine.recorded == 1


def test_pairs_of_runs_that_have_measured_are_not_measured_again():
    jobs = [(words, mode) for words in ("cloth", "moe") for mode in ("plain", "thread")]
    rows = [
        {"program": "cloth", "mode": "plain", "pair": 0, "us": 1.0},
        {"program": "cloth", "mode": "thread", "pair": 0, "us": None},  # was cut
        {"program": "moe", "mode": "plain", "pair": 1, "us": 1.0},
    ]
    assert eager.left(jobs, 0, rows) == jobs[1:]
    assert eager.left(jobs, 1, rows) == [jobs[0], jobs[1], jobs[3]]


def test_a_turn_ends_at_its_limit_and_keeps_what_has_measured(monkeypatch, tmp_path):
    quick = "import sys; print('digest'); print('x: 12.5 us per step', file=sys.stderr)"
    programs = {"quick": quick, "endless": "import time; time.sleep(600)"}
    processes, limit = [], 60.0

    class Process(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            processes.append(self)

    def monotonic():
        """The limit passes as soon as the first program has ended, on a slow machine as on a fast one."""
        return limit + 1 if processes and processes[0].returncode is not None else 0.0

    monkeypatch.setattr(eager, "command", lambda words, *_: (sys.executable, "-IS", "-c", programs[words]))
    monkeypatch.setattr(eager.subprocess, "Popen", Process)
    monkeypatch.setattr(eager, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    jobs = [("quick", "plain"), ("endless", "plain")]
    rows = list(eager.turn(jobs, 0, tmp_path, Path("library"), limit))
    assert [(row["program"], row["us"]) for row in rows] == [("quick", 12.5), ("endless", None)]
    assert all(process.returncode is not None for process in processes)
    assert eager.left(jobs, 0, rows) == [("endless", "plain")]


def test_a_recorded_program_is_not_recorded_again(monkeypatch, tmp_path):
    machine = Machine([])
    monkeypatch.setattr(simulated, "record_table", machine.record)
    monkeypatch.setattr(acs, "build", lambda: Path("library"))
    place = tmp_path / "moe"
    assert "2 launches known" in simulated.tabulate("moe", place)
    assert "2 launches known" in simulated.tabulate("moe", place)  # without a recording: it was cut
    (place / "recorded.tileprof").mkdir()
    assert simulated.tabulate("moe", place) == "moe: its table is there"
    assert machine.recorded == 2
