"""``tileprof record`` from outside: what it writes and prints, and what it leaves unchanged."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tileprof

RECORD = [str(Path(sys.executable).with_name("tileprof")), "record"]


def _run(folder, *words, environment=None, warm=None):
    """Return the finished command; with ``warm``, run in a fork that has imported the libraries, where the start does
    not matter.
    """
    command = RECORD if warm is None else [str(warm.path / "tileprof"), "record"]
    return subprocess.run(
        [*command, *words], cwd=folder, capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


def _script(folder, text, name="infer.py"):
    (folder / name).write_text(text)
    return name


MODEL = """
import sys, threading, torch
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
net(torch.ones(2, 64)).sum().backward()
print("out", sys.argv)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the folder of a recording of `MODEL` by a new interpreter, and the finished command."""
    folder = tmp_path_factory.mktemp("recorded")
    return folder, _run(folder, "--", sys.executable, _script(folder, MODEL), "-o", "x", "--fake")


def test_the_program_owns_stdout_and_the_last_lines_say_where_the_trace_is_and_what_to_type(recorded):
    folder, process = recorded
    assert (process.returncode, process.stdout) == (0, "out ['infer.py', '-o', 'x', '--fake']\n")
    message = process.stderr.splitlines()
    assert message[0].startswith("tileprof: wrote infer.tileprof: ")
    assert message[-1] == "tileprof: next: tileprof report infer.tileprof"
    trace = tileprof.load(folder / "infer.tileprof")
    assert trace.complete
    assert {"0", "1"} <= set(trace.launches.module)
    assert trace.device.name == "H200"
    assert trace.manifest["command"][1:] == ["infer.py", "-o", "x", "--fake"]


def test_a_program_that_takes_the_interpreter_apart_leaves_a_whole_trace(tmp_path):
    apart = "import builtins\nbuiltins.open = builtins.print = None\nsys.setrecursionlimit(80)\nsys.meta_path.clear()\n"
    process = _run(tmp_path, "--", sys.executable, _script(tmp_path, MODEL + apart))
    assert (process.returncode, process.stdout) == (0, "out ['infer.py']\n")
    assert tileprof.load(tmp_path / "infer.tileprof").complete


def test_json_ends_with_one_object_on_stderr(tmp_path, warm):
    """In a process of its own, since libraries report unreleased objects only when the interpreter ends."""
    process = _run(tmp_path, "--json", "--fake", "--", sys.executable, _script(tmp_path, MODEL), warm=warm)
    message = json.loads(process.stderr.splitlines()[-1])
    assert (message["trace"], message["complete"], message["exit_code"]) == ("infer.tileprof", True, 0)
    assert (
        message["launches"]
        == len(tileprof.load(tmp_path / "infer.tileprof").launches)
        == sum(message["coverage"].values())
    )
    assert message["next"] == "tileprof report infer.tileprof"
    assert "tileprof: wrote" not in process.stderr


def test_a_failing_program_keeps_its_traceback_and_leaves_a_partial_trace(tmp_path, warm):
    script = _script(tmp_path, "import torch\nx = torch.ones(3).cos()\ndef f():\n    return torch.ones(2) + x\nf()\n")
    process = _run(tmp_path, script, warm=warm)
    program, _, ours = process.stderr.partition("tileprof: ")
    assert process.returncode == 1
    place = rf'  File "(?:{tmp_path}/)?{script}", line %d, in %s\n    %s\n(?:[ ~^]+\n)?'
    outer, inner = place % (5, "<module>", r"f\(\)"), place % (4, "f", r"return torch\.ones\(2\) \+ x")
    error = r"RuntimeError: The size of tensor a \(2\) must match .*\n"
    assert re.fullmatch(rf"Traceback \(most recent call last\):\n{outer}{inner}{error}", program)
    assert "the trace is partial" in ours
    trace = tileprof.load(tmp_path / "infer.tileprof.partial")
    assert not trace.complete
    assert list(trace.launches.op) == ["aten::ones", "aten::cos", "aten::ones"]
    assert "RuntimeError" in trace.manifest["reason"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_program_that_is_stopped_dies_of_the_signal_and_leaves_a_trace_that_loads(number, tmp_path, warm):
    """In a new interpreter where it is Python that handles the signal."""
    script = _script(tmp_path, "import time, torch\ntorch.ones(3).cos()\nprint('here', flush=True)\ntime.sleep(60)\n")
    command = RECORD if number == signal.SIGINT else [str(warm.path / "tileprof"), "record"]
    process = subprocess.Popen(
        [*command, script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    _, output = process.communicate(timeout=200)
    assert process.returncode == -number
    trace = tileprof.load(tmp_path / "infer.tileprof.partial")
    assert not trace.complete
    if number == signal.SIGINT:
        assert output.startswith("Traceback (most recent call last):\n")
        assert "/tileprof/" not in output.partition("tileprof: ")[0]
    if number != signal.SIGKILL:
        assert list(trace.launches.op) == ["aten::ones", "aten::cos"]
    if number in (signal.SIGTERM, signal.SIGHUP):
        assert "Traceback" not in output
        assert f"the trace is partial, it holds what ran until then: the program was ended by {number.name}" in output


def test_a_handler_of_the_programs_own_and_its_children_are_left_alone(tmp_path, warm):
    text = """
import os, signal, torch
if (pid := os.fork()) == 0:
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
torch.ones(3).cos()
os.kill(os.getpid(), signal.SIGTERM)
"""
    process = _run(tmp_path, _script(tmp_path, text), warm=warm)
    assert (process.returncode, process.stdout) == (0, "True\nhandled\n"), process.stderr
    assert tileprof.load(tmp_path / "infer.tileprof").complete


def test_signals_wait_until_the_trace_is_written(tmp_path):
    text = """
import os, signal, torch
from tileprof.trace.writer import TraceWriter
abandon = TraceWriter.abandon
def interrupted(self, reason):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return abandon(self, reason)
TraceWriter.abandon = interrupted
torch.ones(3).cos()
os.kill(os.getpid(), signal.SIGINT)
"""
    process = _run(tmp_path, _script(tmp_path, text))
    assert process.returncode == -signal.SIGINT, process.stderr
    assert process.stderr.count("Traceback") == 1
    assert list(tileprof.load(tmp_path / "infer.tileprof.partial").launches.op) == ["aten::ones", "aten::cos"]


def test_a_program_that_leaves_at_once_keeps_what_ran_until_then(tmp_path, warm):
    process = _run(tmp_path, _script(tmp_path, "import os, torch\ntorch.ones(3).cos()\nos._exit(3)"), warm=warm)
    assert process.returncode == 3, process.stderr
    assert "the trace is partial, it holds what ran until then: the program ended by os._exit(3)" in process.stderr
    trace = tileprof.load(tmp_path / "infer.tileprof.partial")
    assert list(trace.launches.op) == ["aten::ones", "aten::cos"]


def test_children_threads_exit_handlers_and_another_folder(tmp_path):
    text = """
import atexit, os, sys, threading, torch
os.chdir("/")
sys.stderr = open(os.devnull, "w")
atexit.register(lambda: torch.ones(3).tan())
if (pid := os.fork()) == 0:
    torch.ones(3).cosh()
    os._exit(0)
os.waitpid(pid, 0)
thread = threading.Thread(target=lambda: torch.ones(3).sinh())
thread.start()
raise SystemExit(5)
"""
    process = _run(tmp_path, _script(tmp_path, text))
    assert process.returncode == 5, process.stderr
    assert "wrote infer.tileprof:" in process.stderr
    trace = tileprof.load(tmp_path / "infer.tileprof")
    assert trace.complete
    assert trace.manifest["exit_code"] == 5
    assert [op for op in trace.launches.op if op != "aten::ones"] == ["aten::sinh", "aten::tan"]
    assert any("forked" in note for note in trace.manifest["notes"])


@pytest.mark.parametrize(("closing", "is_warm"), [("sys.stdout.close()", False), ("sys.stdout = None", True)])
def test_a_program_that_closes_stdout_keeps_its_exit_code(tmp_path, closing, is_warm, warm):
    script = _script(tmp_path, f"import sys, torch\ntorch.ones(3).cos()\n{closing}\n")
    process = _run(tmp_path, script, warm=warm if is_warm else None)
    assert (process.returncode, process.stdout) == (0, "")
    assert "Traceback" not in process.stderr
    assert "wrote infer.tileprof: " in process.stderr


def test_the_next_command_can_be_pasted(tmp_path, warm):
    process = _run(tmp_path, "-o", "a b", _script(tmp_path, MODEL), warm=warm)
    assert process.stderr.splitlines()[-1] == "tileprof: next: tileprof report 'a b.tileprof'"


def test_interpreter_options_reach_the_interpreter(tmp_path):
    text = "import sys, warnings\nprint(sys.flags.quiet, sys.flags.utf8_mode)\nwarnings.warn('x')\n"
    options = ("-qW", "error::UserWarning", "-Xutf8=0")  # not -O, which would compile all of PyTorch again
    process = _run(tmp_path, "--device", "A100-80GB", sys.executable, *options, _script(tmp_path, text))
    assert (process.returncode, process.stdout) == (1, "1 0\n")
    assert "UserWarning: x" in process.stderr
    manifest = json.loads((tmp_path / "infer.tileprof.partial" / "manifest.json").read_text())
    assert manifest["device"]["name"].startswith("A100")


def test_a_module_that_hides_pytorch_is_named(tmp_path):
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "program.py").write_text("")
    words = [sys.executable, "-m", "tileprof.cli", "record", "-o", "x", "--", sys.executable, "program.py"]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.endswith("torch.py hides PyTorch, which this recorder needs: rename it, or start elsewhere\n")
    assert "Traceback" not in result.stderr


def test_a_program_without_pytorch_gets_a_hint(tmp_path, warm):
    process = _run(tmp_path, _script(tmp_path, "print('fine')"), warm=warm)
    assert (process.returncode, process.stdout) == (0, "fine\n")
    assert "no PyTorch operator was seen" in process.stderr


def test_what_cannot_run_fake_ends_in_a_sentence_and_not_in_a_traceback(tmp_path, warm):
    script = _script(tmp_path, "import torch\nx = torch.ones(1 << 17).cos()\nif x.sum() > 0:\n    print('never')\n")
    process = _run(tmp_path, "--fake", script, warm=warm)
    assert (process.returncode, process.stdout) == (2, "")
    assert "Traceback" not in process.stderr
    assert f"{tmp_path / script}, line 3 needs a value" in process.stderr
    assert "if x.sum() > 0:" in process.stderr
    assert len(tileprof.load(tmp_path / "infer.tileprof.partial").launches) >= 3


def test_progress_is_shown_on_a_terminal_and_wiped(tmp_path, warm):
    pty = pytest.importorskip("pty")
    script = _script(tmp_path, "import time, torch\nfor _ in range(8):\n    torch.ones(3).cos()\n    time.sleep(0.1)\n")
    main, other = pty.openpty()
    command = [str(warm.path / "tileprof"), "record", script]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=other)
    os.close(other)
    terminal_bytes = b""
    while True:
        try:
            piece = os.read(main, 4096)
        except OSError:
            break
        if not piece:
            break
        terminal_bytes += piece
    os.close(main)
    assert process.wait(200) == 0
    assert b"launches, " in terminal_bytes.partition(b"wrote")[0]
    assert b"\x1b[2K" in terminal_bytes


def test_a_full_disk_stops_the_recording_and_not_the_program(tmp_path, warm):
    text = """
import sys, torch
from tileprof.trace import arrow
def full(*_):
    raise OSError(28, "No space left on device")
arrow.write_part = full
torch.ones(3).cos()
print("fine")
"""
    process = _run(tmp_path, _script(tmp_path, text), warm=warm)
    assert (process.returncode, process.stdout) == (70, "fine\n"), "the program ended well, and there is no whole trace"
    assert "the disk is full" in process.stderr
    assert not (tmp_path / "infer.tileprof").exists()


def test_a_recording_that_stops_is_no_success(tmp_path, warm):
    script = """
import torch
from tileprof.record.model.session import Session
Session._launch = lambda *_: 1 / 0
torch.ones(3).cos()
print("end")
"""
    process = _run(tmp_path, _script(tmp_path, script), warm=warm)
    assert (process.returncode, process.stdout) == (70, "end\n")
    assert "recording stopped, the program continues" in process.stderr
    assert "the recording stopped: a bug in tileprof (ZeroDivisionError" in process.stderr


def test_recording_twice_gives_the_same_trace(recorded, tmp_path, warm):
    assert _run(tmp_path, _script(tmp_path, MODEL), warm=warm).returncode == 0
    one, two = (tileprof.load(folder / "infer.tileprof") for folder in (recorded[0], tmp_path))
    for table in ("launches", "operands", "tiles", "accesses", "buffers"):
        assert getattr(one, table).equals(getattr(two, table))
