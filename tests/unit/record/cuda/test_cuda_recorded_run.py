"""Refusals before a program runs, and their messages."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.unit.record.cuda.cuda_records import KERNEL, launch, process
from tileprof.cli.arguments import cuda_options
from tileprof.cli.verbs import record as record_verb
from tileprof.errors import UserError
from tileprof.record.cuda import doctor, recorded_run
from tileprof.record.cuda.installation import gpu, locate
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.settings import Settings


def test_a_script_runs_with_this_python_and_a_program_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "infer.py").write_text("")
    assert recorded_run.command_of(("infer.py", "--n", "3")) == [sys.executable, "infer.py", "--n", "3"]
    assert recorded_run.command_of(("sh", "-c", "x"))[0].endswith("/sh")
    with pytest.raises(UserError, match="neither a program nor a Python script"):
        recorded_run.command_of(("missing.py",))


def test_an_injection_that_is_taken_is_not_replaced(monkeypatch):
    monkeypatch.setenv(recorded_run.INJECTION, "/opt/other.so")
    with pytest.raises(UserError, match=r"/opt/other.so: another tool"):
        recorded_run.refuse_taken()


def test_hooks_load_no_code_from_a_folder_that_everyone_may_write(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path))
    assert recorded_run.hook_variables()["TILEPROF_OPERATORS"] == str(tmp_path / "operators")
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators").chmod(0o777)
    with pytest.raises(UserError, match="can be written by everyone, and code is loaded from it"):
        recorded_run.hook_variables()


def test_another_listener_to_nvtx_ranges_is_not_replaced(monkeypatch):
    monkeypatch.setenv(recorded_run.NVTX_INJECTION, "/opt/nsys.so")
    with pytest.raises(UserError, match=r"/opt/nsys.so: another tool .* record without --nvtx"):
        recorded_run.refuse_ranges_taken()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"passes": ("acesses",)}, "--passes takes some of accesses, blocks, time"),
        ({"passes": ()}, "given none"),
        ({"granule": 24}, "--granule takes a power of two"),
        ({"arena_bytes": 10}, "--arena takes at least"),
        ({"patch": "always", "capture_only": True}, "--patch takes need, load or range"),
        ({"patch": "range"}, "give --capture or --nvtx as well"),
        ({"nvtx": "("}, "--nvtx '\\(' is not a regular expression"),
        ({"kernel": "("}, "--kernel '\\(' is not a regular expression"),
    ],
)
def test_bad_settings_end_in_a_sentence(arguments, words):
    with pytest.raises(UserError, match=words):
        Settings(**arguments)


def test_the_passes_get_the_variables_that_they_need(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    recorder_files = type("Built", (), {"library": "/c/lib.so", "patches": "/c/p.fatbin"})
    sanitizer = locate.Sanitizer(tmp_path, tmp_path / "s.so", "13.4")
    settings = Settings(granule=8)

    def make(name):
        return recorded_run.environment(name, tmp_path, recorder_files, sanitizer, settings, skip=2, count=5)

    accesses, time = make("accesses"), make("time")
    assert accesses[recorded_run.INJECTION] == "/c/lib.so"
    assert (accesses["TILEPROF_GRANULE"], accesses["TILEPROF_SKIP"], accesses["TILEPROF_COUNT"]) == ("8", "2", "5")
    assert accesses["PYTHONPATH"].split(":") == [str(recorded_run.INPROCESS), "/mine"]
    assert recorded_run.INJECTION not in time
    assert time["TILEPROF_TIME"] == "1"
    assert "TILEPROF_HOOKS" not in make("blocks")
    assert accesses["TILEPROF_HOOKS"] == "1"


def test_a_socket_is_for_the_accesses_pass_alone(tmp_path):
    recorder_files = type("Built", (), {"library": "/c/lib.so", "patches": "/c/p.fatbin"})
    sanitizer = locate.Sanitizer(tmp_path, tmp_path / "s.so", "13.4")

    def make(name, proofs):
        variables = recorded_run.environment(
            name, tmp_path, recorder_files, sanitizer, Settings(), skip=0, count=None, proofs=proofs
        )
        return variables.get("TILEPROF_PROOFS")

    assert [make(name, "/s") for name in ("accesses", "blocks", "time")] == ["/s", None, None]
    assert make("accesses", None) is None


@pytest.mark.parametrize(("tensors", "expected"), [(True, "tensors"), (False, None)])
def test_without_names_tensors_are_told_apart_where_that_is_asked_for(tmp_path, tensors, expected):
    recorder_files = type("Built", (), {"library": "/c/lib.so", "patches": "/c/p.fatbin"})
    sanitizer = locate.Sanitizer(tmp_path, tmp_path / "s.so", "13.4")
    settings = Settings(hooks=False, tensors=tensors)
    variables = recorded_run.environment("accesses", tmp_path, recorder_files, sanitizer, settings, skip=0, count=None)
    assert variables.get("TILEPROF_HOOKS") == expected


def test_nvtx_ranges_reach_the_library_in_passes_that_have_it(tmp_path):
    recorder_files = type("Built", (), {"library": "/c/lib.so", "patches": "/c/p.fatbin"})
    sanitizer = locate.Sanitizer(tmp_path, tmp_path / "s.so", "13.4")

    def make(name, **settings):
        return recorded_run.environment(
            name, tmp_path, recorder_files, sanitizer, Settings(**settings), skip=0, count=None
        )

    for name in ("accesses", "blocks"):
        variables = make(name, nvtx="step", patch="range")
        assert (variables[recorded_run.NVTX_INJECTION], variables["TILEPROF_NVTX"]) == ("/c/lib.so", "step")
        assert variables["TILEPROF_CAPTURE"] == "1"
    assert make("accesses", nvtx="", capture_only=True)["TILEPROF_NVTX"] == ".*"
    for variables in (make("time", nvtx="step"), make("accesses")):
        assert recorded_run.NVTX_INJECTION not in variables
        assert "TILEPROF_NVTX" not in variables


def test_an_old_wheel_is_refused_with_both_versions(tmp_path, monkeypatch):
    folder = tmp_path / "compute-sanitizer"
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "sanitizer_patching.h").touch()
    (folder / "libsanitizer-public.so").touch()
    monkeypatch.setenv(locate.FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr(locate, "wheel_version", lambda: "13.1.80")
    with pytest.raises(UserError, match=r"13.1.80 is too old: before 13.3"):
        locate.sanitizer()
    monkeypatch.setattr(locate, "wheel_version", lambda: "13.4.92")
    assert locate.sanitizer().library == folder / "libsanitizer-public.so"


def test_a_missing_wheel_names_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(locate, "_sanitizer_folders", list)
    with pytest.raises(UserError, match=r"pip install 'nvidia-cuda-sanitizer-api>=13.3'"):
        locate.sanitizer()


def test_without_a_driver_the_other_recorder_is_named(monkeypatch):
    def missing(_):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(gpu.ctypes, "CDLL", missing)
    with pytest.raises(UserError, match="--recorder model"):
        gpu.gpus()


@pytest.mark.parametrize("architecture", ["sm_61", "sm_70"])
def test_gpus_that_cannot_be_patched_are_refused(architecture):
    with pytest.raises(UserError, match="too old for Compute Sanitizer"):
        gpu.supported(gpu.Gpu("Old", architecture, "12.0"))
    gpu.supported(gpu.Gpu("New", "sm_75", "12.0"))
    gpu.supported(gpu.Gpu("Newer", "sm_100", "13.0"))


def test_the_doctor_says_what_failed_and_skips_what_depends_on_it(monkeypatch):
    def missing(_):
        raise OSError("none")

    monkeypatch.setattr(gpu.ctypes, "CDLL", missing)
    actual = {check.name: check for check in doctor.checks()}
    assert not actual["driver and GPU"].ok
    assert "libcuda.so.1" in actual["driver and GPU"].result
    assert "self-test" not in actual


def test_a_recorder_that_never_started_is_not_an_empty_trace(tmp_path):
    with pytest.raises(UserError, match="never started"):
        raw.processes(tmp_path)


def test_a_recorder_that_failed_says_why(tmp_path):
    folder = tmp_path / "process-7"
    folder.mkdir()
    (folder / "events.jsonl").write_text('{"e":"failed","why":"the driver is too old"}\n')
    with pytest.raises(UserError, match="process-7: the driver is too old"):
        raw.processes(tmp_path)


def test_the_last_line_of_a_killed_process_may_be_cut(tmp_path):
    folder = tmp_path / "process-7"
    folder.mkdir()
    (folder / "events.jsonl").write_text('{"e":"start","version":1,"granule":32}\n{"e":"launch","la')
    processes = raw.processes(tmp_path)
    assert [len(p.events) for p in processes] == [1]
    assert not processes[0].complete
    assert process(tmp_path, [KERNEL, launch(1)], []).complete


def test_launches_after_the_last_copy_of_a_process_that_died_are_not_taken_for_idle_ones(tmp_path):
    folder = tmp_path / "process-7"
    folder.mkdir()
    events = [{"e": "start", "version": 1, "granule": 32}, KERNEL, launch(1), {"e": "drain"}, launch(2), launch(3)]
    write = (folder / "events.jsonl").write_text
    write("".join(json.dumps(e) + "\n" for e in events))
    (processes,) = raw.processes(tmp_path)
    assert [e["launch"] for e in processes.events if e["e"] == "launch"] == [1]
    assert (processes.lost, processes.complete) == (2, False)
    events[-1]["context"] = 1
    write("".join(json.dumps(e) + "\n" for e in events))
    (processes,) = raw.processes(tmp_path)
    assert (processes.lost, sum(e["e"] == "launch" for e in processes.events)) == (3, 0)


def test_the_command_lines_options_become_settings():
    parser = argparse.ArgumentParser()
    record_verb.prepare(parser)
    assert cuda_options.settings(parser.parse_args([])) == Settings()
    words = "--passes blocks,time --granule 8 --arena 64 --kernel gemm --no-replay --capture --check-writes --no-names"
    words += " --nvtx step"
    assert cuda_options.settings(parser.parse_args(words.split())) == Settings(
        passes=("blocks", "time"), granule=8, arena_bytes=64 << 20, kernel="gemm", replay=False, capture_only=True,
        verify=True, hooks=False, nvtx="step",
    )  # fmt: skip
    with pytest.raises(UserError, match="power of two"):
        cuda_options.settings(parser.parse_args(["--granule", "3"]))


@pytest.mark.parametrize(
    ("words", "patch", "unpatched", "variable"),
    [
        ("", "need", True, "load"),
        ("--patch need", "need", True, "load"),
        ("--patch need --passes accesses,time", "need", False, "load"),
        ("--patch need --passes blocks", "need", False, "load"),
        ("--patch need --filters 8192", "need", False, "load"),
        ("--patch load", "load", False, "load"),
        ("--patch range --capture", "range", False, "range"),
    ],
)
def test_when_code_is_patched(words, patch, unpatched, variable):
    parser = argparse.ArgumentParser()
    record_verb.prepare(parser)
    settings = cuda_options.settings(parser.parse_args(words.split()))
    assert (settings.patch, settings.leaves_unpatched) == (patch, unpatched)
    assert settings.environment("accesses", skip=0, count=None)["TILEPROF_PATCH"] == variable


SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(3)
signal.signal(signal.SIGINT, save)
os.write(1, b"ready\\n")  # a signal inside of print would find its buffer locked
time.sleep(200)
"""


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGHUP, False)],
)
def test_a_program_that_is_to_end_ends_in_its_own_time_and_with_its_own_code(tmp_path, visible, number, whole_group):
    """At a terminal, Ctrl-C reaches both the recorder and the program; a scheduler's signals may reach the recorder
    alone.
    """
    saves = SAVES.replace("SIGINT", number.name)
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom tileprof.record.cuda import recorded_run\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup makes its programs ignore it
        # A signal that only the recorder got does not reach the other process, neither soon nor late.
        f"recorded_run._COMPANION_S = {recorded_run._COMPANION_S if whole_group else 0.1}\n"
        f"print('code', recorded_run.run([sys.executable, '-c', {saves!r}], dict(os.environ), visible={visible}, "
        "log=Path('log')))"
    )
    recorder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    log = tmp_path / "log"
    while visible or not (log.exists() and log.read_text()):
        if visible and recorder.stdout.readline():
            break
        time.sleep(0.05)
    (os.killpg if whole_group else os.kill)(recorder.pid, number)
    output, _ = recorder.communicate(timeout=120)
    assert output.split() == [*(["saved"] if visible else []), "code", "3"]
    assert visible or log.read_text().split() == ["ready", "saved"]


def test_a_program_that_does_not_listen_dies_by_the_signal_that_the_recorder_got(tmp_path):
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom tileprof.record.cuda import recorded_run\n"
        "sleeps = 'import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(200)'\n"
        "print(recorded_run.run([sys.executable, '-c', sleeps], dict(os.environ), visible=True, log=Path('log')))\n"
        "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert result.stdout.split() == ["-15", "True"]
