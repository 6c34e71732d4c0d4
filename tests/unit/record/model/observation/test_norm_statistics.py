"""Layer norms inside a session keep their statistics in float32."""

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16, None])
def test_the_backward_pass_reads_four_bytes_per_row(trace_of, weight, fake):
    results = []

    def program():
        torch.manual_seed(0)
        norm = nn.LayerNorm(64, elementwise_affine=weight is not None, dtype=weight)
        x = torch.randn(96, 64).to(torch.bfloat16).requires_grad_()
        out = norm(x)
        out.float().square().mean().backward()
        results.append((out, x.grad))

    trace = trace_of(program, fake=fake)
    program()

    pairs = {(r.producer, r.consumer): r.pattern for r in trace.graph().pairs.itertuples()}
    forward = trace.launches.index[trace.launches.op == "aten::native_layer_norm"][-1]
    backward = trace.launches.index[trace.launches.op == "aten::native_layer_norm_backward"][0]
    assert pairs[forward, backward] == "one_to_one"
    if not fake:
        for one, other in zip(*results, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=0.02, atol=1e-4)
