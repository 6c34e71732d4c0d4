"""Layers of recurrent networks (`nn.RNN`, `nn.LSTM`, `nn.GRU`) as a GPU runs them without gradients: by cuDNN.

PyTorch's own path computes a layer cell by cell. In a session a call whose result needs no gradient is one operator,
``aten::_cudnn_rnn``, which is computed here by that path. With gradients, with packed sequences, projections or dropout
between layers, cells are recorded, and a note says so.

Source: `RNN.cpp` of PyTorch 2.11 (``_cudnn_impl``).
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's numbers of the functions of `torch._VF`."""
_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


@contextmanager
def as_on_gpu(by_cells: Callable[[str], None]) -> Iterator[None]:
    """Let layers be one operator; ``by_cells`` hears of the functions of calls that are not."""
    functions = torch._VF  # noqa: SLF001 - what the modules call
    originals = {name: getattr(functions, name) for name in MODES}
    library = torch.library.Library("aten", "IMPL")
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_cudnn_rnn", "CPU"):  # noqa: SLF001 - as below
        library.impl("_cudnn_rnn", functools.partial(_layers, originals), "CPU")
    for name, original in originals.items():
        setattr(functions, name, _wrapped(name, original, by_cells))
    try:
        yield
    finally:
        for name in originals:
            delattr(functions, name)  # the originals are found by the object's __getattr__
        library._destroy()  # noqa: SLF001 - the only way to take kernels back


def _wrapped(name: str, original: Callable[..., Any], by_cells: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def layers(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args)
        if not _is_one_operator(name, args):
            by_cells(name)
            return _without_onednn(original, args)
        source, states, weights, biases, number, dropout, train, bidirectional, batch_first = args
        hx, cx = states if name == "lstm" else (states, None)
        results = torch.ops.aten._cudnn_rnn(  # noqa: SLF001 - PyTorch's own name
            source, weights, 4 if biases else 2, None, hx, cx, MODES[name], hx.shape[2], 0, number, batch_first,
            dropout, train, bidirectional, [], None,
        )  # fmt: skip
        return tuple(results[:3]) if name == "lstm" else tuple(results[:2])

    return layers


def _is_one_operator(name: str, args: Sequence[Any]) -> bool:
    if len(args) != 9 or isinstance(args[3], list | tuple):  # a packed sequence
        return False
    source, states, weights, biases, number, dropout, train, bidirectional, _ = args
    tensors = [source, *(states if name == "lstm" else [states]), *weights]
    needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    plain = len(weights) == number * (1 + bidirectional) * (4 if biases else 2)  # no projection
    alike = {t.dtype for t in tensors} <= {source.dtype} <= set(_DTYPES) and all(t.dim() == 3 for t in tensors[:2])
    sizes = states[0].shape == states[1].shape if name == "lstm" else True
    return bool(plain and alike and sizes and not needs_gradient and not (dropout and train and number > 1))


def _without_onednn(original: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Run a function as PyTorch's own cells; oneDNN has LSTMs of one operator per sequence."""
    before = torch._C._get_mkldnn_enabled()  # noqa: SLF001 - the public switch also sets, and warns of, TF32
    torch._C._set_mkldnn_enabled(False)  # noqa: SLF001
    try:
        return original(*args)
    finally:
        torch._C._set_mkldnn_enabled(before)  # noqa: SLF001


def _layers(
    originals: dict[str, Callable[..., Any]], source: torch.Tensor, weights: Sequence[torch.Tensor],
    weight_stride0: int, weight_buf: torch.Tensor | None, hx: torch.Tensor, cx: torch.Tensor | None, mode: int,
    _hidden: int, _projection: int, number: int, batch_first: bool, dropout: float, train: bool, bidirectional: bool,
    _sizes: Sequence[int], _dropout_state: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Compute the operator; its output lies by time, whatever its shape, as cuDNN's does."""
    name = next(name for name, n in MODES.items() if n == mode)
    states = hx if cx is None else (hx, cx)
    out, hy, *cy = originals[name](
        source, states, list(weights), weight_stride0 == 4, number, dropout, train, bidirectional, batch_first
    )
    if batch_first:
        out = out.transpose(0, 1).contiguous().transpose(0, 1)
    nothing = [source.new_empty(0) for _ in range(3)]
    return out, hy, cy[0] if cy else nothing[0], nothing[1], nothing[2] if weight_buf is None else weight_buf
