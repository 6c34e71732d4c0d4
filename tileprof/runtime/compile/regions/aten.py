"""Strict matching of ATen graphs: values, users, constants, and what stands behind views."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

ATEN: Final = torch.ops.aten

RESHAPES: Final = frozenset({
    ATEN.view.default, ATEN.reshape.default, ATEN._unsafe_view.default,  # noqa: SLF001 - ATen's own name
})  # fmt: skip
"""Views that change the shape of a tensor and keep the order of its elements."""

VIEWS: Final = RESHAPES | {
    ATEN.t.default,
    ATEN.transpose.int,
    ATEN.permute.default,
    ATEN.expand.default,
    ATEN.unsqueeze.default,
    ATEN.squeeze.dim,
    ATEN.squeeze.dims,
    ATEN.slice.Tensor,
    ATEN.select.int,
    ATEN.alias.default,
    ATEN.detach.default,
}
"""Operations whose result shares the memory of their first argument."""


def tensor(node: Any) -> torch.Tensor | None:
    """Return the fake tensor that a node stands for; None for anything else, a tuple, or a tensor with symbolic sizes
    or strides.
    """
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value if all(isinstance(n, int) for n in (*value.shape, *value.stride())) else None


def shape(node: Any) -> tuple[int, ...] | None:
    """Return sizes of the node's tensor; None where it is none."""
    value = tensor(node)
    return None if value is None else tuple(value.shape)


def strides(node: Any) -> tuple[int, ...] | None:
    """Return strides of the node's tensor, in elements; None where it is none."""
    value = tensor(node)
    return None if value is None else tuple(value.stride())


def dtype(node: Any) -> torch.dtype | None:
    """Return the dtype of the node's tensor; None where it is none."""
    value = tensor(node)
    return None if value is None else value.dtype


def calls(node: Any, *targets: Any) -> bool:
    """Return whether a node calls one of some operators (overloads, as ``ATEN.mm.default``)."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a call by its position or, where it is not given so, by its name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def users(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return who reads a node's value, the graph's output node included."""
    return tuple(node.users)


def only_user(node: fx.Node) -> fx.Node | None:
    """Return the only operation that reads a value; None for no reader, for several, and for a result of the graph."""
    readers = users(node)
    return readers[0] if len(readers) == 1 and readers[0].op == "call_function" else None


def source(node: Any, through: frozenset[Any] = RESHAPES) -> Any:
    """Return the node behind the views ``through``."""
    while isinstance(node, fx.Node) and node.op == "call_function" and node.target in through:
        node = node.args[0]
    return node


def item(node: Any, index: int) -> fx.Node | None:
    """Return the node that takes item ``index`` of an operation with several results; None if no node or several nodes
    do.
    """
    items = [u for u in users(node) if calls(u, operator.getitem) and u.args[1] == index]
    return items[0] if len(items) == 1 else None


def parameter(node: Any) -> bool:
    """Return whether a value comes into the graph as it is: a parameter, a buffer or an input."""
    return isinstance(node, fx.Node) and node.op == "placeholder"


def outputs_of(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the nodes of a set whose values are used outside of it, in order of the graph."""
    inside = dict.fromkeys(nodes)
    return tuple(sorted(n for n in inside if any(u not in inside for u in n.users)))


def inputs_of(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the nodes that a set reads and does not hold, in order of the graph."""
    inside = dict.fromkeys(nodes)
    return tuple(sorted({a for n in inside for a in n.all_input_nodes if a not in inside}))


def convex(nodes: Iterable[fx.Node]) -> bool:
    """Return whether no path leaves a set of nodes and comes back into it: then one call can take their place."""
    inside = set(nodes)
    if not inside:
        return True
    last = max(inside)
    waiting = [u for n in inside for u in n.users if u not in inside]
    visited: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in inside:
            return False
        if node not in visited and node < last:
            visited.add(node)
            waiting.extend(node.users)
    return True


def copies_into(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node, fx.Node]]:
    """Yield the updates of a graph's inputs: (``copy_`` node, placeholder, new value)."""
    for node in graph.nodes:
        if calls(node, ATEN.copy_.default) and parameter(node.args[0]):
            yield node, node.args[0], node.args[1]


@dataclass(frozen=True, slots=True)
class Attention:
    """A call of PyTorch's fused attention, whichever of its operators it is. ``out`` is the node that takes the result
    from the operator's tuple.

    Tensors are (batch, heads, tokens, width). ``mask`` is added to the scores or, as booleans, says what is kept;
    ``scale`` multiplies them. Key and value may have fewer heads (``grouped``).
    """

    out: fx.Node
    call: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    mask: fx.Node | None
    causal: bool
    scale: float

    @property
    def grouped(self) -> int:
        """Query heads per head of the keys."""
        heads, key_heads = shape(self.query), shape(self.key)
        return heads[1] // key_heads[1] if heads and key_heads and key_heads[1] else 0


def attention(node: Any) -> Attention | None:
    """Return the attention that a node calls, on a CPU or a GPU; None for other nodes, for dropout, and where anything
    but the result is read.
    """
    name = getattr(getattr(node, "target", None), "_opname", None) if isinstance(node, fx.Node) else None
    if name not in _MASK_AT:
        return None
    query, key, value = node.args[:3]
    sizes = shape(query)
    if sizes is None or len(sizes) != 4:
        return None
    at, causal_at, dropout_at = _MASK_AT[name], *_CAUSAL_AND_DROPOUT[name]
    mask = None if at is None else argument(node, at, "attn_mask" if "cpu" in name else "attn_bias")
    scale = node.kwargs.get("scale")
    out = item(node, 0)
    if argument(node, dropout_at, "dropout_p", 0.0) != 0.0 or out is None or len(node.users) != 1:
        return None
    causal = bool(argument(node, causal_at, "is_causal", default=False))
    return Attention(out, node, query, key, value, mask, causal, sizes[3] ** -0.5 if scale is None else float(scale))


_MASK_AT: Final = {
    "_scaled_dot_product_flash_attention": None,
    "_scaled_dot_product_flash_attention_for_cpu": 5,
    "_scaled_dot_product_efficient_attention": 3,
    "_scaled_dot_product_cudnn_attention": 3,
}
"""The position of the mask among the arguments of each operator, as `native_functions.yaml` declares them (PyTorch 2.11
and 2.13).
"""

_CAUSAL_AND_DROPOUT: Final = {
    "_scaled_dot_product_flash_attention": (4, 3),
    "_scaled_dot_product_flash_attention_for_cpu": (4, 3),
    "_scaled_dot_product_efficient_attention": (6, 5),
    "_scaled_dot_product_cudnn_attention": (6, 5),
}
