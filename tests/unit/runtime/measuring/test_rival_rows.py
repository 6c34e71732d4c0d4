"""Rows of PyTorch's own programs: what is timed, and the message if there is nothing to time."""

from __future__ import annotations

import signal
import time

import pytest
import torch

from tileprof.runtime.measuring import baselines as rivals
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.view import View

pytest.importorskip("triton")

from tileprof.runtime.measuring.cases import gated_mlp

CHAIN = gated_mlp(16, (16, 16), (16, 32), 64, 48)


@pytest.fixture
def plain(monkeypatch):
    """Return a chain's reference and inputs; times count calls, and torch.compile returns its argument."""
    compiled = []
    monkeypatch.setattr(rivals, "time_graph", lambda work: [float(len(work()))])
    monkeypatch.setattr(torch, "compile", lambda graph, **how: compiled.append((graph, how)) or graph)
    pipeline = Pipeline(CHAIN.policy())
    return pipeline, [pipeline.example(seed) for seed in range(3)], compiled


def test_the_compiled_function_computes_the_chain_from_operators_alone(plain) -> None:
    pipeline, inputs, compiled = plain
    assert rivals.compiled_times(pipeline.reference, inputs, 60) == [3.0]
    ((graph, how),) = compiled
    assert how == {"mode": "max-autotune-no-cudagraphs", "dynamic": False}
    assert {node.op for node in graph.graph.nodes} == {"placeholder", "call_function", "output"}
    (out,) = [value for value in [graph(*inputs[1].values())] if isinstance(value, torch.Tensor)]
    assert torch.equal(out, pipeline.reference(inputs[1])["y"])


def test_a_compiler_that_takes_too_long_is_ended_whatever_it_catches(plain, monkeypatch) -> None:
    pipeline, inputs, _ = plain

    def slow(graph, **_):
        try:
            time.sleep(200)
        except Exception:  # noqa: BLE001 - as compilers do
            return graph

    monkeypatch.setattr(torch, "compile", slow)
    start_s = time.monotonic()
    assert rivals.compiled_times(pipeline.reference, inputs, 0.5) == "not compiled in 0.5 s"
    assert time.monotonic() - start_s < 100
    with rivals.limited(100):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # nothing is left to ring


def test_a_compiler_that_fails_says_why(plain, monkeypatch) -> None:
    pipeline, inputs, _ = plain

    def fail(graph, **_):
        raise RuntimeError("no backend\nhere")

    monkeypatch.setattr(torch, "compile", fail)
    assert rivals.compiled_times(pipeline.reference, inputs, 60) == "fails: no backend"


def test_attention_is_given_to_pytorch_in_the_four_dimensions_of_its_fused_kernels(monkeypatch) -> None:
    records = []
    real = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *q, **how: records.append(q) or real(*q, **how)
    )
    q, k, v, out = (View.contiguous(name, (2, 8, 16), "float16") for name in ("q", "k", "v", "o"))
    Attention(q, k, v, out, causal=True).reference({n: torch.randn(2, 8, 16) for n in "qkv"})
    assert [[t.dim() for t in tensors] for tensors in records] == [[4, 4, 4]]
