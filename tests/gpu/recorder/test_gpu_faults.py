"""Programs that fault, die, run out of memory or profile themselves end in one sentence and leave all data that was
recorded.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tileprof.errors import UserError
from tileprof.record.cuda.installation import gpu, locate, selftest
from tileprof.trace import load, validate

SELFISH = """
import sys, torch
x = torch.ones(4096, device="cuda")
try:
    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    sys.stdout.write("out of memory, ")
with torch.profiler.profile() as profile:
    x.sin()
    torch.cuda.synchronize()
x.cos()
sys.stdout.write(f"{sum(e.key == 'aten::sin' for e in profile.key_averages())}")
"""


def compiled(tmp_path):
    program, source = tmp_path / "faulty", Path(__file__).parent / "programs" / "faulty.cu"
    subprocess.run([locate.nvcc(), f"-arch={gpu.gpus()[0].architecture}", source, "-o", program], check=True)
    return program


def partial(path):
    trace = load(path.with_name(path.name + ".partial"))
    assert not trace.complete
    assert validate(trace) == []
    return trace


def test_a_faulting_kernel_is_reported_and_earlier_launches_are_kept(record, tmp_path):
    result = record(compiled(tmp_path), passes=("accesses",))
    assert (result.code, result.output) == (3, "cudaErrorIllegalAddress\n")
    assert "one of its kernels faulted" in result.messages
    trace = partial(result.path)
    assert trace.launches.grid_x.tolist() in ([4, 5], [4], []), "as far as it had been copied"


def test_a_program_that_kills_itself_leaves_a_partial_trace_and_is_not_run_again(record, tmp_path):
    try:
        result = record(compiled(tmp_path), "now")
    except UserError as error:
        assert "before the records of its 2 launches had left the GPU" in str(error)  # noqa: PT017 - either is right
        return
    assert result.code == 137
    assert "died by signal 9" in result.messages
    assert partial(result.path).launches.grid_x.tolist() == [4, 5]


def test_a_program_that_runs_out_of_memory_and_profiles_itself_gets_a_message(record, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SELFISH)
    result = record(sys.executable, script)
    sys.stdout.write(result.messages)
    assert (result.code, result.output) == (0, "out of memory, 1")
    assert "the GPU was out of memory" in result.messages
    assert "the program profiles itself" in result.messages
    trace = load(result.path)
    assert validate(trace) == []
    assert trace.launches.kernel.str.contains("sin|cos").sum() == 2
    assert set(trace.launches.coverage) == {"exact"}


def test_the_self_test_of_older_gpus_is_seen_as_expected(record, tmp_path):
    """Compiled for sm_80, it leaves out instructions of sm_90; a newer GPU runs it too."""
    program = selftest.program(tmp_path, "sm_80")
    result = record(program, passes=("accesses",), verify=True)
    different, comparisons = selftest.compare(load(result.path), selftest.buffers(result.output))
    assert different == []
    assert len(comparisons) == selftest.launches("sm_80")
    assert ", 0 of them outside every recorded write" in result.messages


@pytest.mark.parametrize("visible", ["", "-1"])
def test_without_a_visible_gpu_the_doctor_says_who_hides_it(visible):
    command = (sys.executable, "-P", "-m", "tileprof.cli", "doctor")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"it shows no GPU, and CUDA_VISIBLE_DEVICES is {visible!r}" in result.stdout
