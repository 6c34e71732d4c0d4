"""Programs that do more than launch kernels: several processes, a profiler of their own, exhausted memory, a kernel
that faults.
"""

import sys

import pytest

from tileprof.trace import load, validate

pytest.importorskip("torch")

WORK = """
import sys, torch
def work(n):
    x = torch.randn(n, n, device="cuda")
    return ((x @ x).relu() + 1).sum().item()
"""


def script_file(tmp_path, text):
    script = tmp_path / "program.py"
    script.write_text(WORK + text)
    return script


def test_each_process_that_uses_the_gpu_gets_a_trace(record, tmp_path):
    script = script_file(
        tmp_path,
        """
import subprocess
if len(sys.argv) > 1:
    work(64)
else:
    work(64); work(128)
    subprocess.run([sys.executable, __file__, "child"], check=True)
    torch.cuda.synchronize()
""",
    )
    result = record(sys.executable, script, passes=("accesses",))
    assert result.code == 0
    traces = sorted(tmp_path.glob("t*.tileprof"))
    assert len(traces) == 2, result.messages
    assert [validate(load(path)) for path in traces] == [[], []]
    assert min(len(load(path).launches) for path in traces) >= 4


def test_a_program_that_profiles_itself_runs_as_without_and_is_recorded(record, tmp_path):
    script = script_file(
        tmp_path,
        """
work(64)
kinds = torch.profiler.ProfilerActivity
with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
    work(128)
    torch.cuda.synchronize()
print("profiled", any(e.key == "aten::mm" for e in profile.key_averages()))
""",
    )
    result = record(sys.executable, script)
    assert (result.code, result.output) == (0, "profiled True\n")
    trace = load(result.path)
    assert validate(trace) == []
    assert "conservative" not in set(trace.launches.coverage)
    assert (trace.launches.duration_ns > 0).all()


def test_a_program_whose_memory_runs_out_ends_as_without(record, tmp_path):
    text = "work(64)\ntry:\n    torch.empty(1 << 50, device='cuda')\n"
    text += "except torch.OutOfMemoryError:\n    print('out of memory')\n    sys.exit(3)\n"
    result = record(sys.executable, script_file(tmp_path, text), passes=("accesses",))
    assert (result.code, result.output) == (3, "out of memory\n")
    assert validate(load(result.path)) == []


def test_a_kernel_that_faults_leaves_the_programs_own_exit_code_and_a_partial_trace(record, tmp_path):
    text = """
work(64); torch.cuda.synchronize()
torch._assert_async(torch.zeros(1, device="cuda"))
torch.cuda.synchronize()
"""
    result = record(sys.executable, script_file(tmp_path, text), passes=("accesses",))
    assert result.code == 1
    assert "partial" in result.messages or "ended early" in result.messages
