"""Gates of two weights as products with one: what the persistent kernel takes, at the price of a copy of both."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tileprof.runtime.chain import Chain
from tileprof.runtime.stages.epilogues import GATE
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.view import View

LOG: Final = logging.getLogger("tileprof.runtime.compile")

Pairs = dict[str, tuple[str, str]]
"""By the name of a tensor, the two that it is made of: side by side, along their last dimension."""


def joined(chain: Chain) -> tuple[Chain, Pairs]:
    """The chain with one product for each ``silu(x @ gate) * (x @ up)`` whose weights lie as nn.Linear keeps them; which tensors are then made of which."""
    names: list[str] = []
    operators: list[Operator] = []
    pairs: Pairs = {}
    for name, operator in zip(chain.names, chain.operators, strict=True):
        made = _gate(operators, operator, pairs)
        if made is not None:
            del names[-2:], operators[-2:]
        names.append(name)
        operators.append(made or operator)
    return Chain(tuple(names), tuple(operators)), pairs


def _gate(before: list[Operator], operator: Operator, pairs: Pairs) -> Gemm | None:
    """The product of a gate and the two before it, of which ``pairs`` is told; None where these are no such three."""
    if not isinstance(operator, Pointwise) or operator.function != "silu_mul" or operator.y is None:
        return None
    made = {o.out.tensor: o for o in before[-2:] if isinstance(o, Gemm)}
    gate, up = made.get(operator.x.tensor), made.get(operator.y.tensor)
    if gate is None or up is None or gate is up or gate.a != up.a or not _as_linear(gate.b) or not _as_linear(up.b):
        return None
    if (gate.epilogue, up.epilogue) != ("none", "none") or (gate.bias is None) != (up.bias is None):
        return None
    weight, bias = _both(gate.b, up.b, pairs), None
    if gate.bias is not None and up.bias is not None:
        bias = _both(gate.bias, up.bias, pairs)
    return replace(gate, b=weight, bias=bias, out=operator.out, epilogue=GATE)


def _as_linear(weight: View) -> bool:
    return weight.strides == (1, weight.shape[0]) and weight.offset == 0


def _both(first: View, second: View, pairs: Pairs) -> View:
    name = f"{first.tensor}_{second.tensor}"
    pairs[name] = first.tensor, second.tensor
    return replace(first, tensor=name, shape=(*first.shape[:-1], first.shape[-1] + second.shape[-1]))


@dataclass(frozen=True, slots=True)
class _Copy:
    """``whole`` is ``parts`` side by side, which are kept so that no other tensor gets their addresses; ``state``: as they were."""

    parts: tuple[Any, Any]
    state: tuple[Any, ...]
    whole: Any


class Pair:
    """Two tensors as one, copied when they are first seen and again whenever one is another or has changed, as far as PyTorch counts changes.

    It counts operations in place, under whatever name, and `load_state_dict`; it does not count writes through ``.data``, or by kernels that it knows nothing of. One copy a device.
    """

    def __init__(self) -> None:
        self._copies: dict[torch.device, _Copy] = {}
        self._captured: list[Any] = []

    def of(self, first: Any, second: Any) -> Any:
        """Both, side by side along their last dimension, which lies outermost in memory. None where that cannot be had now: while a graph is captured nothing is
        copied, and tensors made in inference mode count no changes.
        """
        if first.is_inference() or second.is_inference():
            return None
        capturing = first.is_cuda and torch.cuda.is_current_stream_capturing()
        state = tuple((t.data_ptr(), t._version, tuple(t.shape), t.dtype) for t in (first, second))  # noqa: SLF001 - the counter's name
        known = self._copies.get(first.device)
        if known is None or known.state != state:
            if capturing:
                return None
            known = self._copy(first, second, state)
        if capturing and not any(known.whole is kept for kept in self._captured):
            self._captured.append(known.whole)  # a graph reads it for as long as it is replayed
        return known.whole

    def _copy(self, first: Any, second: Any, state: tuple[Any, ...]) -> _Copy:
        if first.is_cuda:
            torch.cuda.synchronize(first.device)  # another stream may still read the last copy
        self._copies.pop(first.device, None)
        whole = torch.cat(
            [first.detach().t(), second.detach().t()] if first.dim() > 1 else [first.detach(), second.detach()]
        )
        made = _Copy((first, second), state, whole.t() if first.dim() > 1 else whole)
        if first.is_cuda:
            torch.cuda.synchronize(first.device)  # and may be the next to read this one
        self._copies[first.device] = made
        LOG.info("two weights are kept as one, a copy of %.1f MB", whole.nbytes / 1e6)
        return made
