"""Fixtures for tests of the CUDA recorder (test_gpu_*.py).

Without a GPU or the tools, the tests are skipped.
"""

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tileprof.errors import UserError
from tileprof.record.cuda.installation import gpu, locate

# As in tests/conftest.py, which pytest does not read when these tests run alone.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "golden" / "programs.py"


def missing():
    try:
        gpu.supported(gpu.gpus()[0])
        locate.sanitizer(), locate.nvcc(), locate.host_compiler()
    except UserError as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(items):
    here = [i for i in items if i.path.parent == HERE / "recorder" and i.path.name.startswith("test_gpu_")]
    why = missing() if here else ""
    for item in here:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.timeout(240))
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(autouse=True)
def no_verdicts(request, monkeypatch):
    """Run races again in each test, whatever an earlier test run has decided."""
    if request.path.parent.name == "recorder":  # other tests race nothing, and the import below takes seconds
        return
    verdicts = pytest.importorskip("tileprof.runtime.compile.racing.verdict_cache")  # imports PyTorch

    monkeypatch.setattr(verdicts, "recall", lambda _: None)


@pytest.fixture(autouse=True)
def compiled_triton(monkeypatch):
    """Let Triton compile for the GPU, in this process and in the programs that it starts; the suite interprets kernels.

    An interpreted kernel leaves no launch to record, but copies of its arguments to the host and back.
    """
    monkeypatch.setenv("TRITON_INTERPRET", "0")


@dataclass(frozen=True)
class Recorded:
    """A recording: the program's exit code and output, the recorder's messages, and the trace."""

    code: int
    output: str
    messages: str
    path: Path


@pytest.fixture
def record(tmp_path, capfd):
    """Record a command with settings; raw records stay in ``tmp_path / "raw"``."""
    from tileprof.record import Options
    from tileprof.record.cuda import recording
    from tileprof.record.cuda.settings import Settings

    def run(*command, skip=0, count=None, **settings):
        path = tmp_path / "t.tileprof"
        options = Options(program=tuple(map(str, command)), output=path, force=True, skip=skip, count=count)
        raw = tmp_path / f"raw{len(list(tmp_path.glob('raw*')))}"
        capfd.readouterr()
        code = recording.record(options, Settings(raw=raw, **settings))
        out, err = capfd.readouterr()
        return Recorded(code, out, err, path)

    return run


@pytest.fixture
def plain():
    """Return a program's output without a recorder."""

    def run(*command):
        return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout

    return run


@pytest.fixture
def golden():
    """Return the command that runs one of the golden programs."""
    return lambda name: (sys.executable, PROGRAMS, name)
