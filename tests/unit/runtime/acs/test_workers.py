"""Worker threads that launch kernels and wait for their ends, as in the paper, change no result."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.runtime.acs.fake_driver import Machine, compiled
from tileprof.errors import UserError
from tileprof.runtime import acs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Provide the fake driver and its program."""
    return compiled()


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("kind", ["all", "plain", "loop", "threads", "attributes", "fork", "shared"])
def test_workers_give_the_bits_of_stream_order(machine: Machine, tmp_path: Path, kind: str, threads: int) -> None:
    words = ("3", "60", kind)
    _, table = machine.table(*words, folder=tmp_path / "log")
    expected = machine.run(*words, delay_us=0)
    settings = acs.Settings("streams", tmp_path / "run", table, threads=threads, workers=3, window=16, delay_us=30)
    assert machine.run(*words, settings=settings) == expected
    (counts,) = acs.results(settings.folder)
    assert counts["spread"] == counts["placed"] > 20 or counts["captured"] > 0


@pytest.mark.parametrize(("workers", "window"), [(1, 1), (1, 64), (8, 2), (32, 1)])
def test_any_number_of_workers_and_any_window_do(machine: Machine, tmp_path: Path, workers: int, window: int) -> None:
    words = ("7", "80", "all")
    _, table = machine.table(*words, folder=tmp_path / "log")
    settings = acs.Settings("streams", tmp_path / "run", table, workers=workers, window=window)
    assert machine.run(*words, settings=settings) == machine.run(*words, delay_us=0)


def test_a_table_without_writes_gives_other_results(machine: Machine, tmp_path: Path) -> None:
    """The workers keep the order that the table requires; without the table, launches would run at any time."""
    words = ("4", "100", "plain")
    _, path = machine.table(*words, folder=tmp_path / "log")
    lacking = tmp_path / "lacking"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("write")]
    lacking.write_text("\n".join(lines) + "\n")
    expected = machine.run(*words, delay_us=0)
    results = set()
    for seed in range(3):
        settings = acs.Settings("streams", tmp_path / str(seed), lacking, workers=8)
        results.add(machine.run(*words, settings=settings, seed=seed + 1))
    assert results != {expected}


def test_a_failing_launch_is_reported_and_nothing_hangs(machine: Machine, tmp_path: Path) -> None:
    words = ("2", "50", "plain")
    _, table = machine.table(*words, folder=tmp_path / "log")
    expected = machine.outcome(*words, code=4, FAKE_FAIL_AT="40")
    settings = acs.Settings("streams", tmp_path / "run", table, threads=1, workers=4)
    outcome = machine.outcome(*words, settings=settings, code=4, FAKE_FAIL_AT="40")
    assert outcome.returncode == expected.returncode


def test_workers_are_for_streams_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--scheduler acs, without --check"):
        acs.Settings("graph", tmp_path, workers=2)
    with pytest.raises(UserError, match="0 to 32"):
        acs.Settings("streams", tmp_path, workers=40)
