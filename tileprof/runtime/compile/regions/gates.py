"""Gates of two weights as products with one: what the persistent kernel takes, at the price of a copy of both."""

from __future__ import annotations

from dataclasses import replace

from tileprof.runtime.chain import Chain
from tileprof.runtime.stages.epilogues import GATE
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.view import View

Pairs = dict[str, tuple[str, str]]
"""The two tensors that a tensor is made of, by its name: side by side, along their last dimension."""


def joined(chain: Chain) -> tuple[Chain, Pairs]:
    """Return the chain with one product for each ``silu(x @ gate) * (x @ up)`` whose weights lie as nn.Linear keeps
    them; which tensors are then made of which.
    """
    names: list[str] = []
    operators: list[Operator] = []
    pairs: Pairs = {}
    for name, operator in zip(chain.names, chain.operators, strict=True):
        gate = _gate(operators, operator, pairs)
        if gate is not None:
            del names[-2:], operators[-2:]
        names.append(name)
        operators.append(gate or operator)
    return Chain(tuple(names), tuple(operators)), pairs


def _gate(before: list[Operator], operator: Operator, pairs: Pairs) -> Gemm | None:
    """Return the product of a gate and the two before it, of which ``pairs`` is told; None where these are no such
    three.
    """
    if not isinstance(operator, Pointwise) or operator.function != "silu_mul" or operator.y is None:
        return None
    producers = {o.out.tensor: o for o in before[-2:] if isinstance(o, Gemm)}
    gate, up = producers.get(operator.x.tensor), producers.get(operator.y.tensor)
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
