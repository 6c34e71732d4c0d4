"""The thread that issues instead of the program: its cost, what it must not change, and how it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runtime.acs.fake_driver import SOURCES, Machine, compiled
from tileprof.runtime import acs
from tileprof.runtime.acs.acs_build import SOURCES as NATIVE
from tileprof.runtime.acs.acs_build import as_one_unit, units_of_the_library

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

MODES: list[acs.Mode] = ["streams", "graph"]


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Provide the fake driver and its program."""
    return compiled()


def settings_of(machine: Machine, place: Path, mode: acs.Mode, *words: str) -> acs.Settings:
    """Provide settings for a run of a program with an issuing thread, and its table."""
    _, table = machine.table(*words, folder=place / "log")
    return acs.Settings(mode, place / "run", table, threads=1, lanes=4)


@pytest.mark.parametrize("mode", MODES)
def test_the_programs_thread_makes_only_the_first_launch_of_a_kernel_itself(
    machine: Machine, tmp_path: Path, mode: acs.Mode
) -> None:
    words = ("1", "200", "time")
    settings = settings_of(machine, tmp_path, mode, *words)
    assert machine.run(*words, settings=settings, delay_us=0, FAKE_ISSUE_NS="3400") == machine.run(*words, delay_us=0)
    (counts,) = acs.results(settings.folder)
    assert counts["queued"] == 20 * 200 - 1
    assert counts["awaited_ns"]["cuStreamSynchronize"] > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["threads", "attributes", "fork", "shared"])
def test_threads_attributes_forks_and_shared_events_see_no_difference(
    machine: Machine, tmp_path: Path, kind: str, mode: acs.Mode
) -> None:
    words = ("2", "40", kind)
    settings = settings_of(machine, tmp_path, mode, *words)
    assert machine.run(*words, settings=settings, FAKE_ISSUE_NS="1000") == machine.run(*words, delay_us=0)
    (counts,) = acs.results(settings.folder)
    assert counts["queued"] > 20


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_leaves_without_waiting_ends(machine: Machine, tmp_path: Path, mode: acs.Mode) -> None:
    words = ("2", "200", "plain")
    settings = settings_of(machine, tmp_path, mode, *words)
    assert machine.outcome("2", "200", "leave", settings=settings, code=6).stdout == "left\n"


@pytest.mark.parametrize("threads", [0, 1])
def test_a_launch_that_no_driver_takes_fails_in_its_own_call(machine: Machine, tmp_path: Path, threads: int) -> None:
    words = ("2", "30", "invalid")
    _, table = machine.table("2", "30", "plain", folder=tmp_path / "log")
    settings = acs.Settings("streams", tmp_path / "run", table, threads=threads)
    assert machine.run(*words, settings=settings) == machine.run(*words, delay_us=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("launch", ["1", "60", "119"])
def test_an_error_of_a_queued_launch_is_returned_by_a_later_call(
    machine: Machine, tmp_path: Path, launch: str, mode: acs.Mode
) -> None:
    words = ("2", "120", "plain")
    settings = settings_of(machine, tmp_path, mode, *words)
    outcome = machine.outcome(*words, settings=settings, code=4, FAKE_FAIL_AT=launch)
    assert "error 700" in outcome.stderr


def test_the_thread_sleeps_while_the_program_does(machine: Machine, tmp_path: Path) -> None:
    words = ("2", "50", "idle")
    settings = settings_of(machine, tmp_path, "streams", *words)
    outcome = machine.outcome(*words, settings=settings)
    assert int(outcome.stderr.split()[0]) < 100
    assert outcome.stdout.strip() == machine.run(*words, delay_us=0)


@pytest.mark.parametrize("mode", MODES)
def test_launches_begin_although_nothing_asks_for_their_results(
    machine: Machine, tmp_path: Path, mode: acs.Mode
) -> None:
    words = ("2", "8", "pause")
    settings = settings_of(machine, tmp_path, mode, *words)
    assert machine.run(*words, settings=settings) == machine.run(*words, delay_us=0)
    (counts,) = acs.results(settings.folder)
    assert counts["queued"] == 7


@pytest.mark.parametrize("mode", MODES)
def test_launches_begin_although_another_thread_is_inside_of_a_call(
    machine: Machine, tmp_path: Path, mode: acs.Mode
) -> None:
    words = ("2", "12", "busy")
    settings = settings_of(machine, tmp_path, mode, *words)
    assert machine.run(*words, settings=settings, FAKE_SET_US="2000") == machine.run(*words, delay_us=0)
    (counts,) = acs.results(settings.folder)
    assert counts["queued"] == 11


def test_a_program_that_is_faster_than_the_driver_waits_for_room(machine: Machine, tmp_path: Path) -> None:
    _, table = machine.table("2", "100", "time", folder=tmp_path / "log")
    settings = acs.Settings("streams", tmp_path / "run", table, threads=1)
    words = ("2", "4000", "time")
    outcome = machine.outcome(*words, settings=settings, delay_us=0, FAKE_ISSUE_NS="1000")
    assert int(outcome.stderr.split()[0]) > 300  # room for a third of a round's launches
    assert outcome.stdout.strip() == machine.run(*words, delay_us=0)
    (counts,) = acs.results(settings.folder)
    assert counts["queued"] == 20 * 4000 - 1


def test_on_one_cpu_the_programs_own_thread_issues(machine: Machine, tmp_path: Path) -> None:
    words = ("2", "50", "plain")
    settings = settings_of(machine, tmp_path, "streams", *words)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.run(*words, settings=settings) == machine.run(*words, delay_us=0)
    finally:
        os.sched_setaffinity(0, before)
    (counts,) = acs.results(settings.folder)
    assert counts["queued"] == 0 < counts["placed"]


def test_no_data_is_raced_for(machine: Machine, tmp_path: Path) -> None:
    """Run under ThreadSanitizer, which cannot be preloaded, so library and program are one file here."""
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() { return 0; }\n")
    command = ["g++", "-fsanitize=thread", str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs ThreadSanitizer")
    shim = tmp_path / "shim.cpp"
    shim.write_text(
        'extern "C" int cuGetProcAddress_v2(const char*, void**, int, unsigned long, int*);\n'
        'extern "C" void* dlsym_of_the_program(void*, const char*) noexcept {\n'
        "    return reinterpret_cast<void*>(cuGetProcAddress_v2);\n}\n"
    )
    flags = ["-std=c++17", "-pthread", "-fno-toplevel-reorder", "-Og", "-fsanitize=thread", f"-I{NATIVE}"]
    program = tmp_path / "program.o"
    command = ["g++", *flags, "-Ddlsym=dlsym_of_the_program", "-c", str(SOURCES / "program.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    units = sorted(units_of_the_library(), key=lambda path: path.name == "interpose.cpp")
    assert units[-1].name == "interpose.cpp"
    not_taken_over = "#define dlsym dlsym_not_taken_over\n"  # in the last unit, after all headers
    rest = tmp_path / "rest.cpp"
    rest.write_text(as_one_unit(units[:-1]) + not_taken_over + as_one_unit(units[-1:]))
    whole = tmp_path / "whole"
    command = ["g++", *flags, str(program), str(shim), str(rest), "-ldl", "-o", str(whole)]
    subprocess.run(command, check=True)
    for mode, workers in (*((mode, 0) for mode in MODES), ("streams", 3)):
        for words in (("1", "100", "all"), ("2", "40", "threads")):
            place = tmp_path / f"{mode}-{workers}-{words[2]}"
            settings = replace(settings_of(machine, place, mode, *words), workers=workers)
            settings.folder.mkdir()
            variables = acs.environment(machine.library, settings)
            del variables["LD_PRELOAD"]
            variables |= {"LD_LIBRARY_PATH": str(machine.folder), "FAKE_DELAY": "20", "PATH": os.environ["PATH"]}
            outcome = subprocess.run(
                [str(whole), *words], env=variables, capture_output=True, text=True, check=False, timeout=200
            )
            if "unexpected memory mapping" in outcome.stderr:
                pytest.skip("ThreadSanitizer does not know this kernel's memory layout")
            assert outcome.returncode == 0, outcome.stderr
            assert outcome.stdout.strip() == machine.run(*words, delay_us=0)
            (counts,) = acs.results(settings.folder)
            assert counts["queued"] > 20
