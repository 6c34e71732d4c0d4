"""Gradients that autograd adds up: in place where nothing else holds the memory, as without a dispatch mode."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tileprof.record.model.observation.gradients_in_place import single_reference


def residual(x):
    y = x.relu()
    return (y + y.sin()) * y.exp()


def shared(x):
    y = x.exp()
    return y.view(2, 4, 8).sum(1) + y.view(2, 4, 8)[:, 0]


def indexed(x):
    y = x.exp()
    return y[torch.tensor([0, 0, 3])] * y[:3]


def sums(names):
    """Return the sums among operators, in order."""
    return [name for name in names if name in ("aten::add", "aten::add_")]


@pytest.mark.parametrize("function", [residual, shared, indexed])
def test_sums_are_in_place_where_pytorch_makes_them_so(trace_of, function):
    x = torch.randn(8, 8, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        function(x).square().sum().backward()
    events = [e.name for e in sorted(recorded.events(), key=lambda e: e.time_range.start)]
    gradient, x.grad = x.grad, None

    trace = trace_of(lambda: function(x).square().sum().backward())

    names = [op.partition(".")[0] for op in trace.launches.op]
    assert sums(names) == sums(events)
    assert ("aten::_index_put_impl_" in names) == ("aten::_index_put_impl_" in events)
    assert "aten::index_put" not in names
    torch.testing.assert_close(x.grad, gradient)


def test_a_sum_in_place_writes_into_the_memory_of_the_first_gradient(trace_of):
    x = torch.randn(8, 8, requires_grad=True)
    trace = trace_of(lambda: residual(x).square().sum().backward())
    launches = [i for i, op in enumerate(trace.launches.op) if op == "aten::add_.Tensor"]
    assert launches
    for i in launches:
        assert len(set(trace.operands_of(i)[0])) == 2, "two are read, and one of them is written"


def test_python_that_holds_a_gradient_keeps_it(trace_of):
    held = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            held.append(gradient)
            return gradient + gradient

    x = torch.randn(8, 8, requires_grad=True)
    trace = trace_of(lambda: Double.apply(x.exp()).square().sum().backward())
    assert "aten::add_.Tensor" not in trace.launches.op.tolist()


def test_counts_of_references_are_known():
    assert single_reference() is not None
