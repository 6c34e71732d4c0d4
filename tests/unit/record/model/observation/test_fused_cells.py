"""Recurrent cells inside a session: a GPU's two products and fused operator, their values and gradients."""

import pytest
import torch
from torch import nn

from tileprof.record.model.observation.fused_cells import as_on_gpu

WITHOUT_KERNEL = "aten::_thnn_fused_gru_cell"


def results(cell, x, hidden, states, *, differentiate=True):
    """Return the states of two steps and all gradients."""
    leaves = [hidden.clone().requires_grad_() for _ in range(states)]
    state = leaves[0] if states == 1 else tuple(leaves)
    for _ in range(2):
        state = cell(x, state)
    after = [state] if states == 1 else list(state)
    if not differentiate:
        return after
    loss = sum(t.float().square().sum() * n for n, t in enumerate(after, 1))
    return [*after, *torch.autograd.grad(loss, [*leaves, *cell.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "states"), [(nn.GRUCell, 1), (nn.LSTMCell, 2)])
def test_fused_cells_have_the_values_and_gradients_of_the_written_out_ones(kind, states, bias, dtype):
    torch.manual_seed(0)
    cell = kind(5, 7, bias=bias, dtype=dtype)
    x, hidden = torch.randn(3, 5, dtype=dtype), torch.randn(3, 7, dtype=dtype)

    expected = results(cell, x, hidden, states)
    with as_on_gpu():
        actual = results(cell, x, hidden, states)

    bounds = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **bounds)


def test_only_the_cells_hidden_gradient_may_be_missing():
    cell = nn.LSTMCell(5, 7)
    x, state = torch.randn(3, 5), torch.randn(3, 7)

    def gradient():
        return torch.autograd.grad(cell(x, (state, state))[1].sum(), cell.weight_ih)[0]

    expected = gradient()
    with as_on_gpu():
        torch.testing.assert_close(gradient(), expected)


def test_a_wrong_size_is_reported_as_by_pytorch():
    with as_on_gpu(), pytest.raises(RuntimeError, match="input has inconsistent input_size: got 6 expected 5"):
        nn.GRUCell(5, 7)(torch.randn(3, 6))


def test_outside_of_a_session_the_fused_operators_have_no_kernel():
    with as_on_gpu():
        pass

    assert not torch._C._dispatch_has_kernel_for_dispatch_key(WITHOUT_KERNEL, "CPU")
    assert nn.GRUCell(5, 7)(torch.randn(3, 5)).shape == (3, 7)


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_cell_is_two_products_and_one_kernel(trace_of, kind, context, fake):
    cells = {"gru": nn.GRUCell(64, 128), "lstm": nn.LSTMCell(64, 128)}
    x = torch.randn(16, 64)

    def program():
        cell = cells[kind] if not fake else type(cells[kind])(64, 128)
        with context():
            cell(x if not fake else torch.randn(16, 64))

    trace = trace_of(program, fake=fake)

    fused = f"aten::_thnn_fused_{kind}_cell"
    (launch,) = trace.launches[trace.launches.op == fused].itertuples()
    assert (launch.kernel, launch.grid_x, launch.block_x) == (f"{kind}_cell", 4, 512)
    assert not {"aten::addmm", "aten::sigmoid", "aten::sigmoid_"} & set(trace.launches.op)
    producers = [r.producer for r in trace.graph().pairs.itertuples() if r.consumer == launch.Index]
    assert trace.launches.op[producers].tolist().count("aten::mm") == 2


@pytest.mark.parametrize(
    ("kind", "backward", "sums"),
    [
        ("GRUCell", "aten::_thnn_fused_gru_cell_backward", 2),
        ("LSTMCell", "aten::_thnn_fused_lstm_cell_backward_impl", 1),
    ],
)
def test_the_backward_kernel_is_followed_by_the_sums_of_biases(trace_of, kind, backward, sums):
    cell, x = getattr(nn, kind)(64, 128), torch.randn(16, 64)

    def step():
        out = cell(x)
        (out if kind == "GRUCell" else out[0]).sum().backward()

    launches = trace_of(step).launches

    kernels = launches.kernel[launches.op == backward].tolist()
    assert kernels == [kind.replace("Cell", "_cell_backward").lower(), *["reduce<sum>"] * sums]


def test_autocast_runs_both_products_in_the_lower_type(trace_of):
    cell, x = nn.GRUCell(64, 128), torch.randn(16, 64)

    def program():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert cell(x).dtype is torch.bfloat16

    operators = trace_of(program).launches.op.tolist()

    assert operators[-2:] == ["aten::mm", "aten::_thnn_fused_gru_cell"]
    assert "aten::addmm" not in operators
