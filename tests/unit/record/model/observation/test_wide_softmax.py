"""A softmax of float16 in float32 is one kernel inside a session."""

import pytest
import torch
from torch.nn import functional


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_no_launch_converts_what_a_softmax_reads(trace_of, name, context, fake):
    def program():
        x = torch.randn(8, 300).half()
        with context():
            assert getattr(functional, name)(x, dim=-1, dtype=torch.float32).dtype is torch.float32

    launches = trace_of(program, fake=fake).launches

    assert launches.op.tolist()[-2:] == ["aten::_to_copy", f"aten::_{name}"]  # the copy is the program's


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_and_gradients_are_those_of_pytorch(trace_of, dtype):
    x = torch.randn(8, 30).to(dtype).requires_grad_()
    weight = torch.randn(8, 30)

    def results():
        out = functional.softmax(x, dim=-1, dtype=torch.float32)
        return out.detach(), torch.autograd.grad((out * weight).sum(), x)[0]

    expected, actual = results(), []
    launches = trace_of(lambda: actual.extend(results())).launches

    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)
    assert ("aten::_to_copy" in set(launches.op)) == (dtype is torch.bfloat16)
