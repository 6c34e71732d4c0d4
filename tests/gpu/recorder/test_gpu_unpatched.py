"""Launches without patches: what is computed for them is what patches record, and code is patched when it must be."""

import subprocess
import sys

import numpy as np
import pytest

from tileprof.record.cuda import computed
from tileprof.record.cuda.installation import gpu, locate
from tileprof.trace import load, validate

pytest.importorskip("torch")

PASSES = ("accesses", "blocks")
COLUMNS = ("tile", "operand", "mode", "offset", "length", "count_0", "stride_0", "count_1", "stride_1")

ELEMENTWISE = """
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    t = torch.randn(30, 131, device="cuda").to(dtype)
    t + 1; t * t; t / 3; torch.tanh(t); F.gelu(t); t.pow(3); t > 0; torch.where(t > 0, t, -t); t.float()
    t[:, 1:] + 1; t[::2].contiguous(); t.t().contiguous(); t.expand(4, 30, 131) + 1; t.fill_(1.0); t.transpose(0, 1) + 1
    torch.cat([t, t * 2], 0); torch.cat([t, t], 1); torch.stack([t, t])
torch.arange(515, device="cuda") + 1
"""
REDUCTIONS = """
for dtype in (torch.float32, torch.float16):
    t = torch.randn(30, 520, device="cuda").to(dtype)
    t.sum(); t.sum(0); t.sum(1); t.mean(1); t.amax(1); F.softmax(t, -1); F.log_softmax(t, 0); F.layer_norm(t, (520,))
    t.argmax(1); t.std(1); t.cumsum(1)
im = torch.randn(2, 8, 17, 19, device="cuda")
for t in (im, im.half(), im.to(memory_format=torch.channels_last)):
    F.max_pool2d(t, 2); F.avg_pool2d(t, 3); F.interpolate(t, scale_factor=2); F.group_norm(t, 4); F.pad(t, (1, 2))
    F.batch_norm(t, torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")); t.permute(0, 2, 3, 1).contiguous()
"""
PRODUCTS = """
for m, k, n in ((128, 96, 160), (33, 257, 65), (256, 256, 256)):
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    a @ b; a.t().contiguous().t() @ b; torch.addmm(b[0], a, b); torch.bmm(a.expand(3, m, k), b.expand(3, k, n))
F.conv2d(torch.randn(2, 16, 20, 20, device="cuda"), torch.randn(32, 16, 3, 3, device="cuda"))
torch.nn.LSTM(64, 64).cuda()(torch.randn(3, 4, 64, device="cuda"))
"""
TRITON = """
import triton, triton.language as tl
@triton.jit
def scale(x, y, n, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(y + at, 2 * tl.load(x + at, at < n, other=0.0), at < n)
x = torch.randn(1000, device="cuda"); y = torch.empty_like(x)
scale[(4,)](x, y, 1000, size=256)
"""
ATOMICS = """
x, at = torch.zeros(64, device="cuda"), torch.randint(64, (500,), device="cuda")
ones = torch.ones(500, device="cuda")
x.index_add_(0, at, ones); torch.bincount(at); x[at]; x.scatter_add_(0, at, ones)
torch.sort(x); torch.nonzero(x > 1); F.embedding(at, torch.randn(64, 16, device="cuda"))
"""
PROGRAMS = {
    "elementwise": ELEMENTWISE,
    "reductions": REDUCTIONS,
    "products": PRODUCTS,
    "triton": TRITON,
    "atomics": ATOMICS,
}
LEAST = {"elementwise": 0.9, "reductions": 0.5, "products": 0.3, "triton": 1.0, "atomics": 0.1}
"""Shares of launches that run without patches, at least."""


def script(tmp_path, text):
    path = tmp_path / "program.py"
    head = "import torch\nF = torch.nn.functional\ntorch.manual_seed(0)\nwith torch.no_grad():\n"
    path.write_text(
        head + "".join(f"    {line}\n" for line in text.strip().splitlines()) + "torch.cuda.synchronize()\n"
    )
    return path


def shares(trace):
    return trace.launches.note.str.contains(computed.NOTE).mean()


@pytest.mark.parametrize("name", PROGRAMS)
def test_computed_accesses_are_those_that_patches_record(record, tmp_path, name):
    program = script(tmp_path, PROGRAMS[name])
    patched = record(sys.executable, program, passes=PASSES, granule=1, patch="load")
    recorded = load(patched.path.rename(tmp_path / "patched.tileprof"))
    result = record(sys.executable, program, passes=PASSES, granule=1)
    trace = load(result.path)
    assert validate(trace) == []
    assert trace.launches.kernel.tolist() == recorded.launches.kernel.tolist()
    assert shares(recorded) == 0
    assert shares(trace) >= LEAST[name], result.messages
    assert (trace.launches.duration_ns > 0).all()
    timed = []
    for n, (mine, other) in enumerate(zip(trace.launches.footprint, recorded.launches.footprint, strict=True)):
        if computed.NOTE not in trace.launches.note[n]:
            continue
        boxes = [t.footprint(int(f)).boxes for t, f in ((trace, mine), (recorded, other))]
        rows = [np.unique(np.column_stack([getattr(b, c) for c in COLUMNS]), axis=0) for b in boxes]
        assert np.array_equal(*rows), trace.launches.kernel[n]
        assert trace.launches.coverage[n] == recorded.launches.coverage[n], trace.launches.kernel[n]
        timed.append(not np.isnan(boxes[0].first).any())
    assert np.mean(timed) > 0.7, "but for footprints that are shared with fills and copies"


def test_no_byte_changes_outside_of_computed_writes(record, tmp_path):
    result = record(sys.executable, script(tmp_path, ELEMENTWISE + PRODUCTS), passes=PASSES, verify=True)
    assert ", 0 of them outside every recorded write" in result.messages
    assert shares(load(result.path)) > 0.5


def test_before_a_graph_is_made_all_code_is_patched(record, tmp_path):
    text = """
x = torch.zeros(4096, device="cuda")
y = torch.tanh(x) + 1
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    y = torch.tanh(x) + 1
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.tanh(x) + 1
graph.replay(); graph.replay()
z = torch.tanh(y)
"""
    trace = load(record(sys.executable, script(tmp_path, text), passes=PASSES).path)
    of = trace.launches[trace.launches.kernel.str.contains("tanh")]
    without = of.note.str.contains(computed.NOTE).tolist()
    assert without == [True, True, False, False, False]
    assert of.graph.tolist()[2:4] != [-1, -1]
    assert set(trace.launches.coverage) == {"exact"}


STREAMS = r"""
#include <cstdio>
#include <cuda_runtime.h>
__global__ void plain(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += 1; }
__global__ void chosen(float* x, const int* at) { x[at[threadIdx.x] & 255] = 2; }
__global__ void spins(volatile int* flag) { while (*flag == 0) {} }
int main(int argc, char**) {
    float* x; int* at; int* flag;
    cudaMalloc(&x, 1 << 20); cudaMalloc(&at, 1024); cudaMemset(at, 0, 1024);
    cudaHostAlloc(&flag, 4, cudaHostAllocMapped); *flag = 0;
    cudaStream_t a, b;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking); cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    for (int i = 0; i < 50; ++i) plain<<<1024, 256, 0, a>>>(x, 1 << 18);
    cudaStreamDestroy(a);  // its launches may still run
    plain<<<1024, 256, 0, b>>>(x, 1 << 18);
    chosen<<<1, 256, 0, b>>>(x, at);  // its addresses come from memory: the module is patched here
    plain<<<1024, 256, 0, b>>>(x, 1 << 18);
    if (argc > 1) { spins<<<1, 1, 0, b>>>(flag); plain<<<1024, 256, 0, b>>>(x, 1 << 18); *(volatile int*)flag = 1; }
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
}
"""


@pytest.mark.parametrize("spins", [False, True])
def test_a_module_is_patched_when_a_kernel_without_a_proof_is_launched(record, tmp_path, spins):
    (tmp_path / "streams.cu").write_text(STREAMS)
    program = tmp_path / "streams"
    subprocess.run(
        [locate.nvcc(), f"-arch={gpu.gpus()[0].architecture}", tmp_path / "streams.cu", "-o", program], check=True
    )
    result = record("timeout", "60", program, *(["spin"] if spins else []), passes=PASSES, wait_s=2)
    assert (result.code, result.output) == (0, "cudaSuccess\n"), result.messages
    trace = load(result.path)
    plain = trace.launches[trace.launches.kernel.str.startswith("plain")]
    without = plain.note.str.contains(computed.NOTE).tolist()
    assert without == [True] * 51 + [False] * (1 + spins)
    assert set(plain.coverage) <= {"exact", "conservative"}
    assert set(plain.coverage[:52]) == {"exact"}
    assert plain.footprint[:52].nunique() == 1
    chosen = trace.launches[trace.launches.kernel.str.startswith("chosen")]
    assert chosen.coverage.tolist() == ["exact"]
