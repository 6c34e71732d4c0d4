"""Cells of recurrent networks as PyTorch dispatches them on a GPU: two products and one fused operator.

A CPU computes `nn.GRUCell` and `nn.LSTMCell` operator by operator and has no kernels of the fused ones. In a session
the cells take a GPU's path, and the fused operators are computed here. Layers (`nn.GRU`, `nn.LSTM`) are cuDNN's on a
GPU and do not come here.

Source: `RNN.cpp` and `RNN.cu` of PyTorch 2.11.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tileprof.record.model.observation.composites import replaced, written_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Let cells run as on a GPU, in eager programs and in those that are traced."""
    operators: Any = torch.ops.aten
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in (
        ("_thnn_fused_gru_cell", _gru), ("_thnn_fused_gru_cell_backward", _gru_backward),
        ("_thnn_fused_lstm_cell", _lstm), ("_thnn_fused_lstm_cell_backward_impl", _lstm_backward),
    ):  # fmt: skip
        for key in ("CPU", "Meta"):
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):  # noqa: SLF001 - as below
                library.impl(name, kernel, key)
    with ExitStack() as stack:
        stack.callback(library._destroy)  # noqa: SLF001 - the only way to take kernels back
        for operator, cell in ((operators.gru_cell.default, _gru_cell), (operators.lstm_cell.default, _lstm_cell)):
            stack.enter_context(replaced(operator, cell))
        yield


def _gru_cell(
    source: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    operators: Any = torch.ops.aten
    if not _fits(3, source, (hx,), w_ih, w_hh, b_ih, b_hh):
        return written_out(operators.gru_cell.default, source, hx, w_ih, w_hh, b_ih, b_hh)
    gates = source @ w_ih.t(), hx @ w_hh.t()
    return operators._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]  # noqa: SLF001 - PyTorch's own name


def _lstm_cell(
    source: torch.Tensor, states: Sequence[torch.Tensor], w_ih: torch.Tensor, w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    operators: Any = torch.ops.aten
    if len(states) != 2 or not _fits(4, source, states, w_ih, w_hh, b_ih, b_hh):
        return written_out(operators.lstm_cell.default, source, states, w_ih, w_hh, b_ih, b_hh)
    hx, cx = states
    gates = source @ w_ih.t(), hx @ w_hh.t()
    return tuple(operators._thnn_fused_lstm_cell(*gates, cx, b_ih, b_hh)[:2])  # noqa: SLF001 - PyTorch's own name


def _fits(
    gates: int, source: torch.Tensor, states: Sequence[torch.Tensor], w_ih: torch.Tensor, w_hh: torch.Tensor,
    *biases: torch.Tensor | None,
) -> bool:  # fmt: skip
    """Return whether shapes are as the fused operators need them; PyTorch's own cell says what is wrong otherwise."""
    if any(t.dim() != 2 for t in (source, *states, w_ih, w_hh)) or not source.is_floating_point():
        return False
    hidden = w_hh.shape[1]
    wide = gates * hidden
    sizes = all(s.shape == (source.shape[0], hidden) for s in states) and w_ih.shape == (wide, source.shape[1])
    given = [b for b in biases if b is not None]
    return bool(sizes and w_hh.shape[0] == wide and len(given) in {0, 2} and all(b.shape == (wide,) for b in given))


# ---- the operators' values: kernels of a CPU that has none


def _sums(
    number: int, input_gates: torch.Tensor, hidden_gates: torch.Tensor, input_bias: torch.Tensor | None,
    hidden_bias: torch.Tensor | None,
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:  # fmt: skip
    """Return the gates of the input and of the hidden state, each with its bias, in the type of the arithmetic."""
    both = []
    for gates, bias in ((input_gates, input_bias), (hidden_gates, hidden_bias)):
        wide = _wide(gates)
        both.append((wide if bias is None else wide + bias).chunk(number, 1))
    return both[0], both[1]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _gru(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the state and, for the gradient, both gates, the new state's candidate, the old state and its product."""
    of_input, of_hidden = _sums(3, input_gates, hidden_gates, input_bias, hidden_bias)
    reset, update = (torch.sigmoid(a + b) for a, b in zip(of_input[:2], of_hidden[:2], strict=True))
    candidate = torch.tanh(of_input[2] + reset * of_hidden[2])
    hy = candidate + update * (_wide(hx) - candidate)
    workspace = torch.cat([reset, update, candidate, _wide(hx), of_hidden[2]], 1)
    return hy.to(hx.dtype), workspace.to(hx.dtype)


def _gru_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[Any, ...]:
    reset, update, candidate, hx, product = _wide(workspace).chunk(5, 1)
    grad = _wide(grad_hy)
    of_update = grad * (hx - candidate) * (1 - update) * update
    of_candidate = grad * (1 - update) * (1 - candidate * candidate)
    of_reset = of_candidate * product * (1 - reset) * reset
    of_input = torch.cat([of_reset, of_update, of_candidate], 1)
    of_hidden = torch.cat([of_reset, of_update, of_candidate * reset], 1)
    results = [t.to(workspace.dtype) for t in (of_input, of_hidden, grad * update)]
    biases = [t.sum(0) for t in results[:2]] if has_bias else [_none(workspace), _none(workspace)]
    return (*results, *biases)


def _lstm(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    of_input, of_hidden = _sums(4, input_gates, hidden_gates, input_bias, hidden_bias)
    take, forget, candidate, show = (a + b for a, b in zip(of_input, of_hidden, strict=True))
    take, forget, candidate, show = take.sigmoid(), forget.sigmoid(), candidate.tanh(), show.sigmoid()
    cy = forget * _wide(cx) + take * candidate
    hy = show * cy.tanh()
    workspace = torch.cat([take, forget, candidate, show], 1)
    return hy.to(cx.dtype), cy.to(cx.dtype), workspace.to(cx.dtype)


def _lstm_backward(
    grad_hy: torch.Tensor | None, grad_cy: torch.Tensor | None, cx: torch.Tensor, cy: torch.Tensor,
    workspace: torch.Tensor, has_bias: bool,
) -> tuple[Any, ...]:  # fmt: skip
    take, forget, candidate, show = _wide(workspace).chunk(4, 1)
    of_hidden, of_cell = (torch.zeros_like(take) if g is None else _wide(g) for g in (grad_hy, grad_cy))
    shown = torch.tanh(_wide(cy))
    of_cell = of_cell + of_hidden * show * (1 - shown * shown)
    of_gates = torch.cat(
        [
            of_cell * candidate * (1 - take) * take, of_cell * _wide(cx) * (1 - forget) * forget,
            of_cell * take * (1 - candidate * candidate), of_hidden * shown * (1 - show) * show,
        ], 1
    ).to(workspace.dtype)  # fmt: skip
    return of_gates, (of_cell * forget).to(cx.dtype), of_gates.sum(0) if has_bias else _none(workspace)


def _none(like: torch.Tensor) -> Any:
    """Return what stands for an undefined tensor."""
    return like.new_empty(0)
