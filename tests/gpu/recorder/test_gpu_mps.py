"""Clients of an MPS server are recorded, with a note about times."""

import shutil
import subprocess
import sys

import pytest

from tileprof.trace import load, validate

LONGEST_S = 120
PROGRAM = """
import sys, torch
x = torch.ones(4096, 4096, device="cuda")
sms = torch.cuda.get_device_properties(0).multi_processor_count
sys.stdout.write(f"{sms} {bool(((x + 1) == 2).all())}")
"""
CONTROL = shutil.which("nvidia-cuda-mps-control")
pytestmark = pytest.mark.skipif(CONTROL is None, reason="needs nvidia-cuda-mps-control")


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    """Start a server of this test's own, which programs find by the environment."""
    folder = tmp_path_factory.mktemp("mps")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(folder))
    subprocess.run([CONTROL, "-d"], check=True, timeout=30)
    yield
    subprocess.run([CONTROL], input="quit\n", text=True, check=True, timeout=60)


@pytest.mark.parametrize("share", ["100", "25"])
@pytest.mark.usefixtures("server")
def test_a_client_is_recorded_on_its_share_with_a_note_about_times(tmp_path, monkeypatch, share):
    """In processes of their own, since this one has loaded the driver before there was a server."""
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = tmp_path / "t.tileprof"
    record = [
        sys.executable,
        "-P",
        "-m",
        "tileprof.cli",
        "record",
        "--recorder",
        "cuda",
        "-o",
        path,
        "--",
        sys.executable,
        program,
    ]
    result = subprocess.run(record, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    assert result.returncode == 0, result.stderr
    sms, right = result.stdout.split()
    assert right == "True"
    trace = load(path)
    assert validate(trace) == []
    assert set(trace.launches.coverage) == {"exact"}
    kernels = trace.launches[trace.launches.kernel.str.startswith("void")]
    assert (kernels.timing == "measured").all()
    assert trace.device.sms == int(sms) == trace.times[trace.times.launch == kernels.index[0]].sm.nunique()
    assert "clients of an MPS server" in result.stderr
    assert any("clients of an MPS server" in note for note in trace.manifest["notes"])
