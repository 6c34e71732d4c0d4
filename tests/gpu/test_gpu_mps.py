"""Clients of an MPS server are recorded, and it is said what that does to times."""

import shutil
import subprocess

import pytest

from tileprof.trace import load, validate

CONTROL = shutil.which("nvidia-cuda-mps-control")
pytestmark = pytest.mark.skipif(CONTROL is None, reason="needs nvidia-cuda-mps-control")


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    """A server of this test's own, which programs find by the environment."""
    folder = tmp_path_factory.mktemp("mps")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(folder))
    subprocess.run([CONTROL, "-d"], check=True, timeout=30)
    yield
    subprocess.run([CONTROL], input="quit\n", text=True, check=True, timeout=60)


@pytest.mark.parametrize("share", ["100", "25"])
@pytest.mark.usefixtures("server")
def test_a_client_is_recorded_and_told_apart_from_a_program_of_its_own(record, golden, plain, monkeypatch, share):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share)
    done = record(*golden("layer_norm"))
    assert (done.code, done.output) == (0, plain(*golden("layer_norm"))), done.said
    trace = load(done.path)
    assert validate(trace) == []
    assert set(trace.launches.coverage) == {"exact"}
    assert (trace.launches.timing == "measured").all()
    assert "clients of an MPS server" in done.said
    assert any("clients of an MPS server" in note for note in trace.manifest["notes"])
