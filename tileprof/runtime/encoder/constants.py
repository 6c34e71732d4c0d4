"""Values of a graph that depend on none of its inputs, as masks of transformers often do."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from tileprof.runtime.compile.regions import aten

MOST_ELEMENTS: Final = 1 << 22

_PURE: Final = frozenset({
    "arange", "add", "sub", "rsub", "mul", "unsqueeze", "squeeze", "view", "reshape", "_unsafe_view", "expand",
    "slice", "select", "cat", "ne", "eq", "le", "lt", "ge", "gt", "cumsum", "index", "bitwise_and", "bitwise_or",
    "bitwise_not", "logical_and", "logical_or", "logical_not", "new_ones", "new_zeros", "new_full", "ones", "zeros",
    "full", "ones_like", "zeros_like", "full_like", "scalar_tensor", "where", "_to_copy", "clone", "alias",
    "detach", "tril", "triu", "permute", "transpose", "t", "lift_fresh_copy",
})  # fmt: skip


def constant(node: Any) -> Tensor | None:
    """Return the value of a node on the CPU; None if it depends on an input, is too large or comes from unknown
    operators.
    """
    with torch.no_grad(), _disable_current_modes():
        return _Values().of(node)


class _Values:
    def __init__(self) -> None:
        self._values: dict[fx.Node, Tensor | None] = {}

    def of(self, node: Any) -> Tensor | None:
        if not isinstance(node, fx.Node):
            return None
        if node not in self._values:
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: fx.Node) -> Tensor | None:
        target, like = node.target, aten.tensor(node)
        name = getattr(target, "_opname", None)
        if like is None or name not in _PURE or target.namespace != "aten" or like.numel() > MOST_ELEMENTS:
            return None
        if any(self.of(before) is None for before in node.all_input_nodes):
            return None
        args, kwargs = map_arg((node.args, node.kwargs), self.of)
        kwargs = {
            name: torch.device("cpu") if name == "device" else value
            for name, value in kwargs.items()
            if name != "pin_memory"
        }
        value = target(*args, **kwargs)
        return value if isinstance(value, Tensor) else None
