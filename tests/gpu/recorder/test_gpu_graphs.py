"""CUDA graphs on a real GPU: replays in one stream and in several, kernels whose warps end early, updates."""

import sys

import pytest

from tileprof.trace import load, validate

HEAD = """
import sys, torch
x = torch.zeros(1 << 14, device="cuda")
w = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
def work():
    y = x + 1          # a grid that covers more elements than there are: warps end early
    z = (y[:10000] * 2).relu()
    m = w @ w
    return z.sum() + m.float().sum()
def graphed():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out
work()
"""
PROGRAMS = {
    "once": "g, out = graphed(); start(); g.replay(); stop()",
    "three times without waiting": "g, out = graphed(); start(); [g.replay() for _ in range(3)]; stop()",
    "with eager launches of the same kernels between": (
        "g, out = graphed(); start(); g.replay(); a = x + 1; g.replay(); b = work(); stop()"
    ),
    "two graphs in two streams": (
        "g, out = graphed(); h, o2 = graphed(); s = torch.cuda.Stream(); start(); g.replay()\n"
        "with torch.cuda.stream(s):\n    h.replay()\n"
        "g.replay(); stop()"
    ),
    "with parallel branches": (
        "s1, s2 = torch.cuda.Stream(), torch.cuda.Stream()\n"
        "work(); torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g, stream=s1):\n"
        "    s2.wait_stream(s1)\n    a = x + 1\n"
        "    with torch.cuda.stream(s2):\n        b = torch.sigmoid(w)\n"
        "    s1.wait_stream(s2)\n    out = a.sum() + b.float().sum()\n"
        "start(); g.replay(); stop()"
    ),
}
NOT_TOLD_APART = {"with parallel branches"}
MARKS = """
def start():
    torch.cuda.synchronize(); torch.cuda.profiler.start()
def stop():
    torch.cuda.synchronize(); torch.cuda.profiler.stop()
"""


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_nodes_are_distinguished_or_marked_and_no_changed_byte_is_missed(record, tmp_path, name):
    script = tmp_path / "program.py"
    script.write_text(HEAD + MARKS + PROGRAMS[name] + "\nsys.stdout.write(f'{out.item():.3e}')\n")
    result = record(sys.executable, script, capture_only=True, passes=("accesses",))
    assert result.code == 0
    trace = load(result.path)
    assert validate(trace) == []
    nodes = trace.launches[trace.launches.graph >= 0]
    assert len(nodes) > 3
    if name in NOT_TOLD_APART:
        assert set(nodes.coverage) <= {"exact", "inferred", "conservative"}
    else:
        assert "conservative" not in set(nodes.coverage), nodes[["kernel", "coverage", "note"]].to_string()
    sums = trace.launches[trace.launches.kernel.str.contains("reduce_kernel")]
    assert len(sums)


def test_replays_touch_what_the_same_work_touches_eagerly(record, tmp_path):
    script = tmp_path / "program.py"
    body = "g, out = graphed(); start(); e = work(); g.replay(); stop()"
    script.write_text(HEAD + MARKS + body + "\nsys.stdout.write(f'{out.item():.3e}')\n")
    trace = load(record(sys.executable, script, capture_only=True, passes=("accesses",)).path)
    kernels = trace.launches[~trace.launches.kernel.str.contains("memset|memcpy")]
    eager, graph = kernels[kernels.graph < 0], kernels[kernels.graph >= 0]
    assert eager.kernel.tolist() == graph.kernel.tolist()
    assert eager.footprint.tolist() == graph.footprint.tolist()
