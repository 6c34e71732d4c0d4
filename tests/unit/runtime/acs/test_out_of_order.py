"""Programs on the fake driver give the results of stream order, whatever the order of their launches."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.runtime.acs.fake_driver import Machine, compiled
from tileprof.cli.running.run_acs import _logged_runs, record_table
from tileprof.errors import UserError
from tileprof.record import cuda
from tileprof.record.cuda.settings import Settings
from tileprof.runtime import acs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

GOLDEN = Path(__file__).parents[3] / "golden" / "acs" / "inception-h200.table"
"""A table for 828 launches, written by `tileprof run --scheduler acs --table FILE -- python -m
tileprof.examples.inception --device cuda --steps 4`.
"""

KINDS = [("all", 150), ("plain", 100), ("loop", 25)]


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Provide the fake driver and its program."""
    return compiled()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("kind", "steps"), KINDS)
def test_every_mode_gives_the_bits_of_stream_order(
    machine: Machine, tmp_path: Path, kind: str, steps: int, seed: int
) -> None:
    words = (str(seed), str(steps), kind)
    expected = machine.run(*words, delay_us=0)
    _, table = machine.table(*words, folder=tmp_path / "log")
    modes = (("streams", 0), ("streams", 1), ("graph", 0), ("graph", 1), ("check", 0))
    for number, (mode, threads) in enumerate(modes):
        settings = acs.Settings(mode, tmp_path / str(number), table, lanes=4, window=16, threads=threads, delay_us=30)
        assert machine.run(*words, settings=settings, seed=seed) == expected, (mode, threads)
        (counts,) = acs.results(settings.folder)
        assert counts["differing"] == 0
        assert (counts["queued"] > 30) == bool(threads)
        assert len(counts["unknown_at"]) == counts["unknown"]
        assert counts["unknown_at"] == sorted({at for at in counts["unknown_at"] if 0 <= at < counts["launches"]})
        assert counts["spread"] > 10 or kind == "loop" or mode == "check"


def test_a_region_that_repeats_becomes_a_graph_whose_parameters_follow_the_buffers(
    machine: Machine, tmp_path: Path
) -> None:
    _, table = machine.table("4", "25", "loop", folder=tmp_path / "log")
    settings = acs.Settings("graph", tmp_path / "graph", table)
    assert machine.run("4", "25", "loop", settings=settings) == machine.run("4", "25", "loop", delay_us=0)
    (counts,) = acs.results(tmp_path / "graph")
    assert counts["graphs"] == 1
    assert counts["graph_kernels"] == 5 * 25
    assert counts["updated"] > 0


def test_delays_stand_before_the_kernels_of_a_graph_and_show_an_order_that_lacks(
    machine: Machine, tmp_path: Path
) -> None:
    words = ("4", "25", "loop")
    _, table = machine.table(*words, folder=tmp_path / "log")
    lacking = tmp_path / "lacking"
    lacking.write_text("".join(line + "\n" for line in table.read_text().splitlines() if not line.startswith("write")))
    expected = machine.run(*words, delay_us=0)
    for used, right in ((table, True), (lacking, False)):
        settings = acs.Settings("graph", tmp_path / str(right), used, delay_us=200)
        assert (machine.run(*words, settings=settings, delay_us=0) == expected) == right
        (counts,) = acs.results(settings.folder)
        assert counts["graph_kernels"] > 0


def test_a_program_that_repeats_itself_without_waiting_gets_the_same_graphs(machine: Machine, tmp_path: Path) -> None:
    words = ("5", "300", "steps")
    _, table = machine.table(*words, folder=tmp_path / "log")
    settings = acs.Settings("graph", tmp_path / "graph", table, threads=1, rest=0)
    assert machine.run(*words, settings=settings) == machine.run(*words, delay_us=0)
    (counts,) = acs.results(tmp_path / "graph")
    assert counts["graph_kernels"] > 0.6 * counts["launches"]
    assert counts["graphs"] < 30


def test_launches_that_a_program_captures_become_branches_of_its_graph(machine: Machine, tmp_path: Path) -> None:
    _, table = machine.table("2", "150", "all", folder=tmp_path / "log")
    machine.run("2", "150", "all", settings=acs.Settings("streams", tmp_path / "run", table))
    (counts,) = acs.results(tmp_path / "run")
    assert counts["captured"] > 0
    assert counts["moves"] > 0  # copies and fills too


def test_slots_that_may_hold_anything_count_where_they_hold_something(machine: Machine, tmp_path: Path) -> None:
    """Add an old pointer beside each real one of every entry: the same word, varying, with the same ranges."""
    words = ("3", "150", "all")
    _, path = machine.table(*words, folder=tmp_path / "log")
    lines: list[str] = []
    slots = 0
    for line in path.read_text().splitlines():
        word, *rest = line.split()
        if word in {"read", "write"}:
            lines += [line, " ".join([word, str(int(rest[0]) + slots), *rest[1:]])]
            continue
        slots = 0 if word == "entry" else slots + (word == "slot")
        lines.append(line)
    doubles: list[str] = []
    offsets: list[str] = []
    for line in lines:
        if line.startswith("slot"):
            offsets.append(line)
        elif offsets:
            doubles += [*offsets, *offsets, *(f"loose {len(offsets) + i}" for i in range(len(offsets)))]
            offsets = []
        if not line.startswith("slot"):
            doubles.append(line)
    loose = tmp_path / "loose"
    loose.write_text("\n".join(doubles) + "\n")
    result_words = []
    for number, table in enumerate((path, loose)):
        settings = acs.Settings("streams", tmp_path / str(number), table, lanes=4)
        assert machine.run(*words, settings=settings) == machine.run(*words, delay_us=0)
        result_words += acs.results(settings.folder)
    assert result_words[0]["unknown"] == result_words[1]["unknown"] < result_words[1]["launches"]
    assert result_words[1]["spread"] > 10


@pytest.mark.parametrize("window", [1, 2, 64])
@pytest.mark.parametrize("lanes", [1, 2, 32])
def test_windows_and_streams_of_every_size_give_the_same_bits(
    machine: Machine, tmp_path: Path, window: int, lanes: int
) -> None:
    _, table = machine.table("5", "80", "all", folder=tmp_path / "log")
    settings = acs.Settings("streams", tmp_path / "run", table, lanes=lanes, window=window)
    assert machine.run("5", "80", "all", settings=settings) == machine.run("5", "80", "all", delay_us=0)
    (counts,) = acs.results(tmp_path / "run")
    assert (counts["spread"] > 0) == (lanes > 1)


@pytest.mark.parametrize("rest", [1, 3])
def test_rests_in_stream_order_begin_and_end_anywhere(machine: Machine, tmp_path: Path, rest: int) -> None:
    rests = spread = 0
    for seed in ("1", "2", "3", "4"):
        words = (seed, "150", "all")
        _, table = machine.table(*words, folder=tmp_path / f"log-{seed}")
        settings = acs.Settings("streams", tmp_path / seed, table, lanes=4, window=16, rest=rest, delay_us=30)
        message = machine.run(*words, settings=settings, seed=int(seed), FAKE_QUERY="random")
        assert message == machine.run(*words, delay_us=0)
        (counts,) = acs.results(settings.folder)
        rests, spread = rests + counts["rested"], spread + counts["spread"]
    assert rests > 50
    assert spread > 50


def test_a_program_rests_in_stream_order_as_long_as_the_gpu_is_idle(machine: Machine, tmp_path: Path) -> None:
    words = ("4", "400", "loop")
    _, table = machine.table(*words, folder=tmp_path / "log")
    expected = machine.run(*words, delay_us=0)
    rests = {}
    for answer, rest in (("idle", 64), ("busy", 64), ("idle", 0)):
        settings = acs.Settings("streams", tmp_path / f"{answer}{rest}", table, rest=rest)
        assert machine.run(*words, settings=settings, delay_us=0, FAKE_QUERY=answer) == expected
        (counts,) = acs.results(settings.folder)
        rests[answer, rest] = counts["rested"]
        assert counts["launches"] == 2400
    assert rests == {("idle", 64): 2400 - 63, ("busy", 64): 0, ("idle", 0): 0}


def test_segments_rest_as_well_where_the_gpu_waits_for_a_slow_host(machine: Machine, tmp_path: Path) -> None:
    words = ("4", "400", "loop")
    _, table = machine.table(*words, folder=tmp_path / "log")
    expected = machine.run(*words, delay_us=0)
    rests = {}
    for answer in ("idle", "busy"):  # segments of two launches, each of which takes 20 us to issue
        settings = acs.Settings("graph", tmp_path / answer, table, segment=2)
        assert machine.run(*words, settings=settings, delay_us=0, FAKE_QUERY=answer, FAKE_ISSUE_NS="20000") == expected
        (counts,) = acs.results(settings.folder)
        rests[answer] = counts["rested"]
    assert rests == {"idle": 2400 - 1023, "busy": 0}


def ranges_of(table: Path) -> list[tuple[int, str]]:
    """Yield lines of a table that name touched ranges, except reads of what a kernel also writes, which change no
    order.
    """
    actual, writes = [], ""
    for number, line in enumerate(table.read_text().splitlines()):
        if line.startswith("write") or (line.startswith("read") and not line.startswith("read 0")):
            actual.append((number, writes + line))
    return actual


def test_check_notices_a_range_that_was_deleted(machine: Machine, tmp_path: Path) -> None:
    words = ("3", "120", "plain")
    _, table = machine.table(*words, folder=tmp_path / "log")
    expected = machine.run(*words, delay_us=0)
    lines = table.read_text().splitlines()
    misses = []
    for number, line in ranges_of(table):
        mutant = tmp_path / f"table-{number}"
        mutant.write_text("\n".join(lines[:number] + lines[number + 1 :]) + "\n")
        settings = acs.Settings("check", tmp_path / f"run-{number}", mutant, orders=12)
        outcome = machine.outcome(*words, settings=settings, delay_us=0)
        assert outcome.stdout.strip() == expected  # the program continues with the results of stream order
        (counts,) = acs.results(settings.folder)
        if not counts["differing"]:
            misses.append(line)
    assert misses == []


def test_check_notices_deleted_ranges_of_steps_that_leave_equal_bytes(machine: Machine, tmp_path: Path) -> None:
    words = ("3", "5", "still")
    _, table = machine.table(*words, folder=tmp_path / "log")
    expected = machine.run(*words, delay_us=0)
    lines = table.read_text().splitlines()
    deleted = [number for number, line in enumerate(lines) if line.startswith(("read", "write"))]
    assert len(deleted) >= 4
    misses = []
    for number in (-1, *deleted):
        mutant = tmp_path / f"table-{number}"
        mutant.write_text("\n".join(line for at, line in enumerate(lines) if at != number) + "\n")
        settings = acs.Settings("check", tmp_path / f"run-{number}", mutant)
        assert machine.run(*words, settings=settings, delay_us=0) == expected
        (counts,) = acs.results(settings.folder)
        assert counts["probed"] > 0
        if bool(counts["differing"]) == (number < 0):
            misses.append((number, counts["differences"]))
    assert misses == []


def test_a_table_of_another_program_means_stream_order_and_a_sentence(machine: Machine, tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_text("tileprof-acs 1\nprogram python other.py\nkernel another\nentry 1 1 1 1 1 1 0 0\n")
    settings = acs.Settings("streams", tmp_path / "run", table)
    outcome = machine.outcome("1", "600", "plain", settings=settings, delay_us=0)
    assert outcome.stdout.strip() == machine.run("1", "600", "plain", delay_us=0)
    assert "python other.py" in outcome.stderr
    assert "stream order" in outcome.stderr
    (counts,) = acs.results(tmp_path / "run")
    assert counts["spread"] == counts["placed"] == 0


def test_a_table_that_was_made_on_an_h200_is_read(machine: Machine, tmp_path: Path) -> None:
    settings = acs.Settings("streams", tmp_path / "run", GOLDEN)
    outcome = machine.outcome("1", "600", "plain", settings=settings, delay_us=0)
    assert "which was recorded from: python -m tileprof.examples.inception" in outcome.stderr


@pytest.mark.parametrize(
    "text", ["", "tileprof-acs 2\n", "tileprof-acs 1\nread 0 0 4\n", "tileprof-acs 1\nkernel a\nentry 1 1\n", "x"]
)
def test_a_broken_table_means_stream_order_and_a_sentence(machine: Machine, tmp_path: Path, text: str) -> None:
    table = tmp_path / "table"
    table.write_text(text)
    outcome = machine.outcome("1", "40", "plain", settings=acs.Settings("streams", tmp_path / "run", table), delay_us=0)
    assert outcome.stdout.strip() == machine.run("1", "40", "plain", delay_us=0)
    assert "stream order" in outcome.stderr


def test_plain_runs_are_logged_before_a_recording(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(machine.folder))
    monkeypatch.setenv("FAKE_DELAY", "0")
    runs = _logged_runs((str(machine.folder / "program"), "1", "40", "plain"), tmp_path, machine.library)
    assert len(runs) >= 3
    assert acs.repeats(runs)
    assert len(runs[0]) > 10


def test_tables_are_recorded_without_names_and_tell_tensors_apart(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a read would count as a whole segment of PyTorch's caching allocator, and every launch as a
    conflict.
    """
    chosen: list[Settings] = []

    def record(_options: object, settings: Settings) -> int:
        chosen.append(settings)
        return 1

    monkeypatch.setattr(cuda, "record", record)
    with pytest.raises(UserError, match="exit code 1"):
        record_table(("true",), tmp_path, machine.library)
    assert [(settings.hooks, settings.tensors) for settings in chosen] == [(False, True)]
