"""RMS norms inside a session: a GPU's fused operator, its values and gradients."""

import pytest
import torch
from torch import nn

from tileprof.record.model.observation.fused_norms import as_on_gpu

FUSED = "aten::_fused_rms_norm"


def results(norm, x):
    """Return the norm of ``x`` and all gradients."""
    leaf = x.clone().requires_grad_()
    out = norm(leaf)
    return [out, *torch.autograd.grad((out.float() * torch.arange(out.shape[-1])).sum(), [leaf, *norm.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(8,), (3, 8)])
@pytest.mark.parametrize("affine", [True, False])
def test_the_fused_norm_has_the_values_and_gradients_of_the_written_out_one(shape, affine, dtype):
    torch.manual_seed(0)
    norm = nn.RMSNorm(shape, elementwise_affine=affine, dtype=dtype)
    x = torch.randn(4, 3, 8, dtype=dtype)
    expected = results(norm, x)
    with as_on_gpu():
        actual = results(norm, x)
    bounds = {"rtol": 0.05, "atol": 0.1} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **bounds)


def test_outside_of_a_session_the_fused_operators_have_no_kernel():
    with as_on_gpu():
        pass
    for name in (FUSED, f"{FUSED}_backward"):
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    assert nn.RMSNorm(8)(torch.randn(3, 8)).shape == (3, 8)


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_norm_is_one_launch(trace_of, context, fake):
    def program():
        x, norm = torch.randn(4, 64), nn.RMSNorm(64)
        with context():
            norm(x)

    launches = trace_of(program, fake=fake).launches
    assert launches.op.tolist().count(FUSED) == 1
    assert not any("rsqrt" in op for op in launches.op)


def test_its_gradients_are_two_launches(trace_of):
    norm = nn.RMSNorm(64)
    x = torch.randn(4, 64, requires_grad=True)
    launches = trace_of(lambda: norm(x).square().sum().backward()).launches
    kernels = launches.kernel[launches.op == f"{FUSED}_backward"].tolist()
    assert kernels == ["rows<_fused_rms_norm_backward>", "columns<_fused_rms_norm_backward>"]
