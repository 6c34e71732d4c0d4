"""Programs that use several GPUs: by copies, by each other's memory, by NCCL in one process and in two; and the second
GPU alone.
"""

import sys

import pytest

from tileprof.analysis import build_graph
from tileprof.trace import load, validate

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

LONGEST_S = "80"
HEAD = """
import os, sys, torch
torch.manual_seed(0)
a, b = torch.device("cuda:0"), torch.device("cuda:1")
def say(*values):
    torch.cuda.synchronize(a); torch.cuda.synchronize(b)
    sys.stdout.write(" ".join(f"{v:.5e}" for v in values))
"""
PIPELINE = """
first = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()).to(a)
second = torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.GELU()).to(b)
with torch.no_grad():
    for _ in range(2):
        y = second(first(torch.ones(256, 512, device=a)).to(b))
say(y.sum().item())
"""
PEER = """
import triton, triton.language as tl
@triton.jit
def adds(x, y, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)
x, y, out = torch.randn(1 << 16, device=a), torch.randn(1 << 16, device=b), torch.zeros(1 << 16, device=b)
back = torch.empty(1 << 16, device=a)
back.copy_(y); y.copy_(back)                               # which lets each reach the other's memory
x.view(256, 256).t().copy_(y.view(256, 256))               # a kernel, where the layouts differ
torch.cuda.synchronize(a); torch.cuda.synchronize(b)
with torch.cuda.device(a):
    adds[(64,)](x, y, out, 1 << 16, SIZE=1024)             # on GPU 0, reads and writes memory of GPU 1
torch.cuda.synchronize(a)
more = out * 2                                             # on GPU 1
say(more.sum().item())
"""
NCCL = """
import torch.cuda.nccl as nccl
x, y = torch.full((1 << 16,), 1.5, device=a), torch.full((1 << 16,), 2.0, device=b)
for _ in range(3):
    nccl.all_reduce([x, y])
nccl.broadcast([x, y])
z, w = x + 1, y + 2
say(z.sum().item(), w.sum().item())
"""
PARALLEL = """
model = torch.nn.DataParallel(torch.nn.Linear(256, 256).to(a), [0, 1])
with torch.no_grad():
    y = model(torch.ones(64, 256, device=a))
say(y.sum().item())
"""
RANKS = """
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.full((1 << 16,), float(rank + 1), device="cuda")
w = torch.ones(256, 256, device="cuda")
for _ in range(3):
    y = w @ x.view(256, 256)
    dist.all_reduce(y)
    x = (y / 1024).view(-1)
torch.cuda.synchronize()
open(os.path.join(os.path.dirname(__file__), f"rank{rank}"), "w").write(f"{x.sum().item():.5e}")
dist.destroy_process_group()
"""
WORK = """
import sys, torch
x = torch.arange(1 << 20, device="cuda").float()
y = (x * 2 + 1).relu()
sys.stdout.write(f"{(y.view(1024, 1024) @ y.view(1024, 1024)).abs().sum().item():.3e} {torch.cuda.current_device()}")
"""


@pytest.fixture
def recording(record, plain, tmp_path):
    """Record a program, whose output must be that of the program alone. Return its trace, which must be valid."""

    def run(text, *, words=(), **settings):
        script = tmp_path / "program.py"
        script.write_text(text)
        command = ("timeout", "-k", "5", LONGEST_S, sys.executable, *words, script)
        alone = plain(*command)
        result = record(*command, **{"passes": ("accesses",), **settings})
        assert (result.code, result.output) == (0, alone), result.messages
        trace = load(result.path)
        assert validate(trace) == []
        return result, trace

    return run


def raw_pairs(trace):
    """Return pairs of launches of which the second reads what the first wrote."""
    pairs = build_graph(trace).pairs
    return set(map(tuple, pairs[pairs.raw > 0][["producer", "consumer"]].to_numpy().tolist()))


def test_a_model_on_two_gpus_is_one_graph(recording):
    _, trace = recording(HEAD + PIPELINE, passes=("accesses", "blocks", "time"))
    launches = trace.launches
    assert set(launches.device) == {"", "0", "1"}  # copies have no device
    assert "conservative" not in set(launches.coverage), launches[launches.coverage == "conservative"].note.unique()
    assert any("on several GPUs" in note for note in trace.manifest["notes"])
    device, actual = launches.set_index("launch").device, raw_pairs(trace)
    copies = launches[launches.kernel.str.startswith("memcpy device to device")].launch
    across = [c for c in copies if any(p == c and device[q] == "1" for p, q in actual)]
    assert any(device[p] == "0" for p, q in actual if q in across), launches[["kernel", "device", "note"]].to_string()
    with_times = launches[launches.device != ""]
    assert (with_times.duration_ns > 0).all()
    assert (with_times.groupby("device").begin_ns.max() < 60e9).all()


def test_a_kernel_that_reads_and_writes_memory_of_another_gpu_is_exact(recording):
    result, trace = recording(HEAD + PEER, verify=True)
    launches = trace.launches
    assert ", 0 of them outside every recorded write" in result.messages
    [adds] = launches[launches.kernel.str.startswith("adds")].launch
    assert launches.device[adds] == "0"
    assert launches.coverage[adds] == "exact"
    after = [q for p, q in raw_pairs(trace) if p == adds]
    assert any(launches.device[q] == "1" for q in after), launches[["kernel", "device"]].to_string()


@pytest.mark.parametrize("text", [NCCL, PARALLEL], ids=["nccl", "data parallel"])
def test_collectives_in_one_process_are_left_alone_and_stand_for_all_memory(recording, text):
    result, trace = recording(HEAD + text)
    launches = trace.launches
    spinning = launches[launches.kernel.str.contains("nccl")]
    assert len(spinning) >= 2, launches.kernel.to_string()
    assert set(spinning.coverage) == {"conservative"}
    assert spinning.note.str.contains("left alone").all()
    others = launches[~launches.kernel.str.contains("nccl")]
    if text is NCCL:  # launches of several threads at once may be conservative
        assert set(others.coverage) == {"exact"}, others[others.coverage != "exact"].note.unique()
    assert "has not ended" not in result.messages


def test_collectives_in_one_process_end_even_where_they_are_recorded(recording):
    """The first wait times out, and then the second kernel can be launched."""
    _, trace = recording(HEAD + NCCL, include="nccl", wait_s=2)
    spinning = trace.launches[trace.launches.kernel.str.contains("nccl")]
    assert len(spinning) >= 2
    assert "exact" not in set(spinning.coverage) or not spinning.note.str.contains("left alone").any()


@pytest.mark.parametrize("include", [None, "nccl"])
def test_collectives_of_two_processes_leave_a_trace_each(recording, tmp_path, include):
    port = "29511" if include else "29512"
    words = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}")
    recording(HEAD.partition("a, b")[0] + RANKS, words=words, include=include)
    assert (tmp_path / "rank0").read_text() == (tmp_path / "rank1").read_text()
    traces = [load(path) for path in tmp_path.glob("*.tileprof")]
    assert len(traces) == 2
    for trace in traces:
        assert validate(trace) == []
        spinning = trace.launches[trace.launches.kernel.str.contains("ncclDevKernel_AllReduce")]
        assert len(spinning) == 3
        assert set(spinning.coverage) == ({"exact"} if include else {"conservative"})


def test_the_second_gpu_alone_is_the_only_one(recording, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    result, trace = recording(WORK, passes=("accesses", "blocks", "time"), verify=False)
    assert result.output.endswith(" 0")
    assert set(trace.launches.device) == {""}
    assert "conservative" not in set(trace.launches.coverage)
