"""The program that measures launches runs to its end on the fake driver, and its numbers become a device file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.runtime.acs.fake_driver import compiled
from tileprof import devices
from tileprof.errors import UserError
from tileprof.runtime.acs import costs

MEASURED = {"name": "NVIDIA H200", "host_issue_ns": 3000.0, "host_issue_shared_ns": 1000.0, "graph_issue_ns": 100.0}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_costs_are_measured_through_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled().folder))
    monkeypatch.setenv("FAKE_DELAY", "0")
    monkeypatch.setattr(costs, "_PATIENCE_S", 250)
    out = tmp_path / "here.json"
    assert costs.main(["-o", str(out)]) == 0
    assert {"launch_and_wait_ns", "launch_and_wait_shared_ns"} < json.loads(capsys.readouterr().out).keys()
    device = devices.get(out)
    assert device.sms == devices.get("H200").sms
    assert device.host_issue_ns > 0
    assert "measured" in device.sources["host_issue_ns"]


def test_a_device_file_keeps_what_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    path.write_text(json.dumps(costs.device_file(MEASURED)))
    device, h200 = devices.get(path), devices.get("H200")
    assert (device.host_issue_ns, device.graph_issue_ns) == (3000, 100)
    assert device.launch_gap_ns == h200.launch_gap_ns


def test_a_missing_driver_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(UserError, match="cannot be measured here"):
        costs.measure()
