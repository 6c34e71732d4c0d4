"""Settings for the whole suite: Triton interprets kernels, and the examples of property tests are the same in each
run.
"""

import gc
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support import compile_once, rewrite_once, shared, triton_interpreter

# Triton decides at import whether it interprets kernels, and any test may be the first to import it.
os.environ["TRITON_INTERPRET"] = "1"

# On a slow machine, progress lines of commands would appear in output that tests compare.
os.environ["TILEPROF_PROGRESS_S"] = "0"

# The workers share the cores. More threads for arithmetic would wait for each other busily and take twice the time.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

# Inductor compiles a few small functions here. Trying which vector instructions the machine has, and precompiling
# PyTorch's headers, takes longer than that.
os.environ |= {"TORCHINDUCTOR_VEC_ISA_OK": "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}

# Otherwise each program that a test starts, and each worker, would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Programs that a shell starts in the background ignore SIGINT (under nohup, SIGHUP), and so would programs that tests
# interrupt.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# The gate must not fail by chance: it draws from a fixed seed and has no deadline. `make search` draws at random.
_any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gate", derandomize=True, **_any)
settings.register_profile("search", derandomize=False, print_blob=True, **_any)
settings.load_profile("gate")

# Hypothesis also draws constants from loaded modules, which differ from run to run, since workers share the tests.
# Without these constants the fixed seed gives the same examples in every run.
assert callable(providers._get_local_constants), "Hypothesis has changed: see why it is replaced here"
providers._get_local_constants = lambda: providers._local_constants

MOST_EXAMPLES = 15
"""Number of examples of a property in the gate. `make search` draws as many as the test says."""

COMPILED_LATER = ("unit/record", "unit/runtime", "unit/trace", "unit/devices", "unit/arrays")
"""Tests that run first. Tests of other folders simulate, and a separate process compiles the simulator meanwhile."""

QUICK = (
    "unit/record/cuda/footprints", "unit/record/cuda/records", "unit/record/cuda/tensor_maps", "unit/record/accel_sim",
    "unit/devices", "unit/arrays",
)  # fmt: skip
"""Tests that run last: of their short files, both workers have some until the end."""

FEWER_COLLECTIONS = (50_000, 10, 10)
"""Thresholds of the garbage collector: with its own ones it takes a twelfth of the time of a test of PyTorch."""

HERE = Path(__file__).parent

_warming: list[subprocess.Popen[bytes]] = []
_FALSIFYING = re.compile(r"(?:Falsifying example|Failing test case): \w+\(\n(.*?)^\)$", re.DOTALL | re.MULTILINE)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share among the workers what each would do: rewriting assertions, and compiling the schedulers, which a separate
    process does.
    """
    compile_once.install()
    gc.disable()  # collected objects stay: scanning them again and again takes a fifth of the time
    config = session.config
    if worker := getattr(config, "workerinput", None):
        rewrite_once.rewrite_a_share(config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    elif getattr(config.option, "numprocesses", None):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        _warming.append(
            subprocess.Popen([sys.executable, "-m", "tests.support.compile_once"], cwd=HERE.parent, **quiet)
        )


@pytest.fixture(scope="session", autouse=True)
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the workers of a run share and that is removed with the run."""
    base = tmp_path_factory.getbasetemp()
    shared.PLACE.folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.PLACE.folder.mkdir(exist_ok=True)
    return shared.PLACE.folder


def pytest_collection_finish() -> None:
    triton_interpreter.install()
    gc.freeze()
    gc.set_threshold(*FEWER_COLLECTIONS)
    gc.enable()


def pytest_sessionfinish() -> None:
    for process in _warming:
        process.terminate()
        process.wait()


def _place(item: pytest.Item) -> tuple[int, int]:
    """Return where a file stands in a run.

    Files of one folder compile the same libraries, and the second worker would wait for the first. So files of folders
    that compile are mixed, the same way in each run.
    """
    file = item.path.relative_to(HERE).as_posix()
    if file.startswith(QUICK):
        return 2, 0
    return (0, zlib.crc32(file.encode())) if file.startswith(COMPILED_LATER) else (1, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    if settings.get_current_profile_name() != "gate":
        return
    for item in items:
        function = getattr(item, "obj", None)
        if getattr(function, "is_hypothesis_test", False):
            own = function._hypothesis_internal_use_settings
            fewer = min(own.max_examples, MOST_EXAMPLES)
            function._hypothesis_internal_use_settings = settings(own, max_examples=fewer)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the failing example of a property test in the form in which it is pinned."""
    report = yield
    notes = "\n".join(getattr(call.excinfo.value, "__notes__", [])) if call.excinfo else ""
    for arguments in _FALSIFYING.findall(notes):
        report.sections.append((f"paste above {item.name}", f"@example(\n{arguments})"))
    return report
