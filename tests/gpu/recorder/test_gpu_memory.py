"""Memory from any source is recorded: expandable segments, memory pools of the driver, pinned memory, several GPUs."""

import sys

import pytest

from tileprof.trace import Trace, load, validate

torch = pytest.importorskip("torch")

WORK = """
import sys, torch
x = torch.randn(1 << 20, device=DEVICE)
y = (x * 2 + 1).relu()
z = y.view(1024, 1024) @ y.view(1024, 1024)
w = torch.randn(3584, 256, device=DEVICE, dtype=torch.bfloat16)
v = torch.randn(256, 3584, device=DEVICE, dtype=torch.bfloat16)
large = w @ v  # 24.5 MiB, more than an expandable segment maps at once
sys.stdout.write(f"{z.abs().sum().item():.4e} {large.sum().item():.2e}")
"""
ALLOCATORS = {
    "segments": {},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "the driver's pools": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def assert_coverage(trace: Trace) -> None:
    """Only the large product is conservative: it assigns its tiles at run time, and its loads do not show them."""
    unsure = trace.launches[
        (trace.launches.coverage == "conservative") & ~trace.launches.note.str.contains("hand out work")
    ]
    assert not len(unsure), unsure[["kernel", "note"]].to_string()


@pytest.mark.parametrize("name", list(ALLOCATORS))
def test_no_byte_is_missed_and_each_belongs_to_a_buffer(record, tmp_path, monkeypatch, name):
    for key, value in ALLOCATORS[name].items():
        monkeypatch.setenv(key, value)
    script = tmp_path / "program.py"
    script.write_text(WORK.replace("DEVICE", "'cuda'"))
    result = record(sys.executable, script, passes=("accesses",), verify=True)
    assert result.code == 0
    trace = load(result.path)
    assert validate(trace) == []
    assert ", 0 of them outside every recorded write" in result.messages
    assert (trace.buffers.kind == "unknown").mean() < 0.5, trace.buffers.kind.value_counts().to_string()
    assert_coverage(trace)


def test_pinned_memory_that_a_kernel_reads_is_a_buffer(record, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\n"
        "host = torch.ones(4096).pin_memory()\n"
        "device = host.to('cuda', non_blocking=True)\n"
        "torch.cuda.synchronize(); print((device + 1).sum().item())\n"
    )
    trace = load(record(sys.executable, script, passes=("accesses",)).path)
    assert validate(trace) == []
    assert trace.launches.kernel.str.contains("host to device").any()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_every_gpu_of_a_program_is_recorded(record, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(WORK.replace("DEVICE", "'cuda:1'") + WORK.replace("DEVICE", "'cuda:0'"))
    trace = load(record(sys.executable, script, passes=("accesses",)).path)
    assert validate(trace) == []
    kernels = [trace.launches.kernel[trace.launches.device == device].tolist() for device in "01"]
    assert kernels[0] == kernels[1] != []
    assert_coverage(trace)
