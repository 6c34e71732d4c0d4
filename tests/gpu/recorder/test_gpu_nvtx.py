"""Only what runs inside matching NVTX ranges is recorded, however the program marks them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tileprof.errors import UserError
from tileprof.record.cuda.installation import gpu, locate
from tileprof.trace import load, validate

SCRIPT = """
import sys, threading, torch
nvtx = torch.cuda.nvtx
x = torch.rand(4096, device="cuda")
x.sigmoid()
with nvtx.range("keep eager"):
    y = x.tanh()
    with nvtx.range("inner"):
        y = y.exp()
with nvtx.range("other"):
    x.sqrt()
started = nvtx.range_start("keep started")
x.log1p()
thread = threading.Thread(target=nvtx.range_end, args=(started,)); thread.start(); thread.join()
x.cos()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    with nvtx.range("keep nothing runs here"):
        z = x.abs()
graph.replay()
with nvtx.range("keep replay"):
    graph.replay()
with torch.autograd.profiler.emit_nvtx():
    x.neg(); x.floor(); x.ceil()
compiled = torch.compile(lambda x: (x * 3).sin() + 1)
compiled(x)
with nvtx.range("keep compiled"):
    w = compiled(x)
torch.cuda.synchronize()
sys.stdout.write(f"{y.sum().item():.4f} {z.sum().item():.4f} {w.sum().item():.4f}")
"""
PATTERN = "^keep |^aten::floor"
KERNELS = ("tanh", "exp", "log1p", "abs", "floor", "triton_")
REPLAYED = KERNELS.index("abs")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("patch", ["load", "range"])
def test_launches_of_a_pytorch_program_inside_matching_ranges_are_recorded(record, script, patch):
    passes = ("accesses", "blocks", "time") if patch == "load" else ("accesses",)
    result = record(sys.executable, script, nvtx=PATTERN, patch=patch, passes=passes)
    assert result.code == 0
    sys.stdout.write(result.messages)
    assert "Requested callback is not found" not in result.messages  # one range ends in another thread
    trace = load(result.path)
    assert validate(trace) == []
    kernels = trace.launches.kernel.str.lower().tolist()
    assert len(kernels) == len(KERNELS), kernels
    assert all(word in kernel for word, kernel in zip(KERNELS, kernels, strict=True)), kernels
    ops = dict(zip(KERNELS, trace.launches.op, strict=True))
    assert all(ops[kernel] == f"aten::{kernel}" for kernel in ("tanh", "exp", "log1p", "floor")), ops
    coverage = trace.launches.coverage.tolist()
    made_before = coverage.pop(REPLAYED)
    assert set(coverage) == {"exact"}
    assert made_before == ("exact" if patch == "load" else "conservative")
    assert patch == "range" or (trace.launches.duration_ns > 0).all()


def test_a_program_without_a_matching_range_gets_the_names_of_its_ranges(record, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT.partition("graph =")[0])
    with pytest.raises(
        UserError, match=r"matches --nvtx 'kept'. It opened 'inner', 'keep eager', 'keep started', 'other'\."
    ):
        record(sys.executable, script, nvtx="kept", passes=("accesses",))


@pytest.mark.parametrize(
    ("pattern", "grids"),
    [("stage@mine|étage", [3, 4, 7]), ("^step", [4, 5]), ("stage", [1, 3, 4, 6]), ("^stage$", [6])],
)
def test_a_program_in_cxx_marks_ranges_through_the_headers(record, tmp_path, pattern, grids):
    if not (locate.cuda_include() / "nvtx3" / "nvtx3.hpp").is_file():
        pytest.skip("needs nvtx3/nvtx3.hpp")
    program, source = tmp_path / "marks", Path(__file__).parent / "programs" / "nvtx_marks.cu"
    architecture = f"-arch={gpu.gpus()[0].architecture}"
    subprocess.run([locate.nvcc(), "-std=c++17", architecture, source, "-ldl", "-o", program], check=True)
    result = record(program, nvtx=pattern, passes=("accesses",))
    assert result.code == 0
    assert load(result.path).launches.grid_x.tolist() == grids
