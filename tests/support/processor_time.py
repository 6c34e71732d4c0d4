"""A pytest plugin that writes the processor time of each test, that of all processes which it starts included.

`python -m pytest -n 0 -p tests.support.processor_time PATHS` appends a line per test to the file that
TILEPROF_PROCESSOR_TIME names: seconds of processor time, seconds of wall time, the test. It needs root and a
control group of the kernel's first version (`cpuacct`), because programs that a fork server or a browser starts are in
no `os.times()`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

GROUP: Final = Path(f"/sys/fs/cgroup/cpuacct/tileprof-{os.getpid()}")


def pytest_configure() -> None:
    GROUP.mkdir()
    (GROUP / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    _append("start of this process", time.process_time(), time.process_time())


def pytest_unconfigure() -> None:
    """Leave the group, which ends with its last process."""
    (GROUP.parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    if not (GROUP / "cgroup.procs").read_text(encoding="ascii"):
        GROUP.rmdir()


def _usage() -> float:
    return int((GROUP / "cpuacct.usage").read_text(encoding="ascii")) / 1e9


def _append(name: str, processor: float, wall: float) -> None:
    with Path(os.environ["TILEPROF_PROCESSOR_TIME"]).open("a", encoding="utf-8") as file:
        file.write(f"{processor:8.3f} {wall:8.3f} {name}\n")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    usage, clock = _usage(), time.monotonic()
    result = yield
    _append("collection", _usage() - usage, time.monotonic() - clock)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    usage, clock = _usage(), time.monotonic()
    result = yield
    _append(item.nodeid, _usage() - usage, time.monotonic() - clock)
    return result
