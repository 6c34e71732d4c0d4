"""Whether the process that writes a trace still runs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tileprof.trace import manifest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what state a process is in")


@pytest.fixture
def written_by(tmp_path: Path):
    def folder(pid: int, host: str = "") -> Path:
        first_manifest = manifest.initial(recorder="test", command=[], device={}, granule=1)
        manifest.write(tmp_path, first_manifest | {"writer": {"pid": pid, "host": host or socket.gethostname()}})
        return tmp_path

    return folder


def test_a_killed_process_that_was_not_reaped_counts_as_ended(written_by) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert manifest.live_writer(written_by(child.pid)) == child.pid
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert Path(f"/proc/{child.pid}").exists()
        assert manifest.live_writer(written_by(child.pid)) is None
    assert manifest.live_writer(written_by(child.pid)) is None


def test_a_living_process_is_alive_whatever_its_name(written_by, tmp_path: Path) -> None:
    odd = shutil.copy(shutil.which("sleep") or "", tmp_path / "a) Z (b")
    with subprocess.Popen([odd, "60"]) as child:
        assert manifest.live_writer(written_by(child.pid)) == child.pid
        child.kill()


def test_a_process_of_another_machine_is_taken_for_alive(written_by) -> None:
    assert manifest.live_writer(written_by(1, "elsewhere")) == 1
