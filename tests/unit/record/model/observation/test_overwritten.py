"""Copies that autograd makes of what an in-place operator overwrites belong to this operator, as on a GPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional


def _operators(trace, last):
    return trace.launches.op.tolist()[-last:]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("activation", [nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Mish, nn.ReLU6])
def test_an_activation_that_needs_its_input_copies_it_itself(trace_of, activation, fake):
    layer = activation(inplace=True)

    def program():
        x = torch.randn(64, 64, requires_grad=True)
        layer(x * 2)

    first, second = trace_of(program, fake=fake).launches.iloc[-2:].itertuples()
    assert first.op == second.op != "aten::clone"
    assert (first.kernel, first.call) == ("memcpy<device to device>", "")
    assert second.call


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.LeakyReLU])
def test_an_activation_that_needs_its_result_copies_nothing(trace_of, activation):
    layer = activation(inplace=True)
    trace = trace_of(lambda: layer(torch.randn(64, 64, requires_grad=True) * 2))
    assert len(set(_operators(trace, 2))) == 2
    assert "aten::clone" not in set(trace.launches.op)


def test_factors_are_copied_if_the_other_one_learns(trace_of):
    x = torch.randn(64, 64, requires_grad=True)
    assert _operators(trace_of(lambda: (x * 2).mul_(x)), 3) == ["aten::mul.Tensor"] + 2 * ["aten::mul_.Tensor"]
    assert _operators(trace_of(lambda: (x * 2).mul_(3)), 2) == ["aten::mul.Tensor", "aten::mul_.Tensor"]


def test_a_copy_of_the_program_keeps_its_name(trace_of):
    def program():
        x = torch.randn(64, 64, requires_grad=True) * 2
        kept = x.clone()
        functional.silu(x, inplace=True)
        other = x.clone()
        x.zero_()
        return kept, other

    operators = _operators(trace_of(program), 5)
    assert operators == ["aten::clone", "aten::silu_", "aten::silu_", "aten::clone", "aten::zero_"]


def test_a_copy_of_a_module_that_is_left_out_renames_nothing(trace_of):
    class Copy(nn.Module):
        def forward(self, x):
            return x.clone()

    model = nn.Sequential(Copy(), nn.SiLU(inplace=True))
    trace = trace_of(lambda: model(torch.randn(64, 64, requires_grad=True)), module="^0$")
    assert trace.launches.op.tolist() == ["aten::clone"]
