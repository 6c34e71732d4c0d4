"""Chains of matrix products in a graph of ATen operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.chain import Chain
from tileprof.runtime.stages.gemm import Gemm
from tileprof.runtime.stages.operator import Operator
from tileprof.runtime.stages.pointwise import Pointwise
from tileprof.runtime.stages.view import ITEM_BYTES, View

_ATEN: Final = torch.ops.aten
_VIEWS: Final = {_ATEN.view.default, _ATEN.reshape.default, _ATEN._unsafe_view.default}  # noqa: SLF001
_PRODUCTS: Final = {_ATEN.mm.default: 0, _ATEN.addmm.default: 1}
"""The position of a product's first factor among its arguments."""

MOST_STAGES: Final = 12
"""Longest chain: stages of one policy are verified together."""

_SMALLEST_SIDE: Final = 16


@dataclass(slots=True)
class ChainMatch:
    """A chain in a graph: ``inputs`` by the name of its tensor, and the node whose value it computes."""

    inputs: dict[str, fx.Node] = field(default_factory=dict)
    stages: list[tuple[str, Operator]] = field(default_factory=list)
    products: list[fx.Node] = field(default_factory=list)

    @property
    def chain(self) -> Chain:
        return Chain(tuple(name for name, _ in self.stages), tuple(operator for _, operator in self.stages))

    @property
    def last(self) -> fx.Node:
        return self.products[-1]


def chains(graph: fx.Graph) -> Iterator[ChainMatch]:
    """Yield the chains of a graph in order; no node is in two of them."""
    used_products: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target in _PRODUCTS and node not in used_products and _fits(node):
            match = _longest(node, used_products)
            if match is not None:
                used_products.update(match.products)
                yield match


def _longest(first: fx.Node, used_products: set[fx.Node]) -> ChainMatch | None:
    match = ChainMatch()
    value = _input(match, "x", _factor(first))
    at = first
    while len(match.stages) < MOST_STAGES:
        step = _gate(at) or _activation(at)
        if step is None or step.product in used_products or not _fits(step.product):
            break
        value = _gated_stages(match, value, step) if step.gate else _product(match, value, at, step.function)
        at = step.product
    if not match.stages:
        return None
    _product(match, value, at, "none")
    return match


@dataclass(frozen=True, slots=True)
class _Step:
    """The step between two products: ``function``, and for a gate the two products that are multiplied."""

    product: fx.Node
    function: str
    gate: fx.Node | None = None
    up: fx.Node | None = None


def _activation(product: fx.Node) -> _Step | None:
    """Return the next product behind at most one activation."""
    value, node, function = product, _only_user(product), "none"
    if node is not None and (name := _function(node)) is not None:
        value, node, function = node, _only_user(node), name
    return _Step(node, function) if node is not None and _takes(node, value, product) else None


def _gate(product: fx.Node) -> _Step | None:
    """Return the product behind ``silu(gate) * up``, where ``product`` is the first of the two in the graph."""
    for gate, multiply in _gates(product):
        others = [_source(a) for a in multiply.args if _source(a) is not gate]
        if len(others) != 1 or not isinstance(others[0], fx.Node):
            continue
        silu = gate if gate.target is _ATEN.silu.default else others[0]
        up = others[0] if silu is gate else gate
        made_by = _source(silu.args[0]) if silu.target is _ATEN.silu.default else None
        following = _only_user(multiply)
        if (
            made_by is not None
            and made_by.target in _PRODUCTS
            and up.target in _PRODUCTS
            and product in (made_by, up)
            and _fits(made_by)
            and _fits(up)
            and _source(_factor(made_by)) is _source(_factor(up))
            and _factor(made_by).meta["val"].shape == _factor(up).meta["val"].shape
            and _only_user(made_by) is silu
            and _only_user(up) is multiply
            and _only_user(silu) is multiply
            and following is not None
            and _takes(following, multiply, product)
        ):
            return _Step(following, "silu_mul", made_by, up)
    return None


def _gates(product: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield the value that may be multiplied, the product itself or its silu, and the multiplication."""
    user = _only_user(product)
    if user is not None and user.target is _ATEN.mul.Tensor:
        yield product, user
    elif user is not None and user.target is _ATEN.silu.default:
        multiply = _only_user(user)
        if multiply is not None and multiply.target is _ATEN.mul.Tensor:
            yield user, multiply


def _function(node: fx.Node) -> str | None:
    match node.target:
        case _ATEN.relu.default:
            return "relu"
        case _ATEN.silu.default:
            return "silu"
        case _ATEN.gelu.default:
            return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
    return None


def _product(match: ChainMatch, value: View, node: fx.Node, function: str) -> View:
    """Add a product as a stage; its result."""
    number = len(match.products)
    a_at = _PRODUCTS[node.target]
    weight = _input(match, f"w{number}", node.args[a_at + 1])
    bias = _input(match, f"b{number}", node.args[0]) if a_at else None
    rows, columns = node.meta["val"].shape
    out = View.contiguous(f"t{len(match.stages)}", (int(rows), int(columns)), value.dtype)
    match.stages.append(
        (f"product {number}", Gemm(value, weight, out, bias, tile=_tile(int(rows), int(columns)), epilogue=function))
    )
    match.products.append(node)
    return out


def _gated_stages(match: ChainMatch, value: View, step: _Step) -> View:
    assert step.gate is not None
    assert step.up is not None
    gate, up = _product(match, value, step.gate, "none"), _product(match, value, step.up, "none")
    out = View.contiguous(f"t{len(match.stages)}", gate.shape, gate.dtype)
    height, width = _tile(*gate.shape)
    match.stages.append((
        f"gate {len(match.products) - 2}",
        Pointwise(gate, out, up, function="silu_mul", tile=(min(height, 16), width)),
    ))  # fmt: skip
    return out


def _tile(rows: int, columns: int) -> tuple[int, int]:
    """Return a tile of up to 128 x 128, not higher than the matrix is."""
    height, width = (min(128, max(_SMALLEST_SIDE, 1 << (side - 1).bit_length())) for side in (rows, columns))
    return height, width


def _input(match: ChainMatch, name: str, node: Any) -> View:
    value = node.meta["val"]
    match.inputs[name] = node
    shape, strides = (tuple(int(n) for n in numbers) for numbers in (value.shape, value.stride()))
    return View(name, shape, strides, str(value.dtype).removeprefix("torch."))


def _factor(product: fx.Node) -> Any:
    return product.args[_PRODUCTS[product.target]]


def _source(value: Any) -> Any:
    """Return the node behind views that change nothing but the shape."""
    while isinstance(value, fx.Node) and value.target in _VIEWS:
        value = value.args[0]
    return value


def _only_user(node: fx.Node) -> fx.Node | None:
    """Return the one operation that reads a value, seen through reshapes; None where there are several or none, or
    where it is a result.
    """
    users = list(node.users)
    if len(users) != 1 or users[0].op != "call_function":
        return None
    return _only_user(users[0]) if users[0].target in _VIEWS else users[0]


def _takes(node: fx.Node, value: fx.Node, product: fx.Node) -> bool:
    """Return whether a node is a product with ``value`` as its first factor and nowhere else, in rows as long as those
    of ``product``, from which it comes.
    """
    if node.target not in _PRODUCTS:
        return False
    at = _PRODUCTS[node.target]
    only_factor = all((_source(a) is value) == (i == at) for i, a in enumerate(node.args))
    return only_factor and _factor(node).meta["val"].shape == product.meta["val"].shape


def _fits(product: fx.Node) -> bool:
    """Return whether a product is one that the runtime's kernel takes: known sizes, one dtype of its own, rows of unit
    stride, no scaling.
    """
    if set(product.kwargs.values()) - {1}:
        return False
    values: list[Any] = [a.meta.get("val") if isinstance(a, fx.Node) else None for a in product.args]
    if any(not isinstance(v, torch.Tensor) for v in values):
        return False
    if any(not isinstance(n, int) for v in values for n in (*v.shape, *v.stride())):
        return False
    a = values[_PRODUCTS[product.target]]
    kinds = {v.dtype for v in values}
    return (
        len(kinds) == 1
        and str(a.dtype).removeprefix("torch.") in ITEM_BYTES
        and len({v.device for v in values}) == 1
        and a.stride(1) == 1
        and all(v.dim() == 2 for v in values[-2:])
        and (product.target is not _ATEN.addmm.default or _is_bias(values[0], values[-1]))
        and min(*a.shape[1:], values[-1].shape[1]) >= _SMALLEST_SIDE
        and a.shape[0] > 0
    )


def _is_bias(added: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether what is added to a product is a row of its own numbers: one number for all columns would be
    stretched, which no epilogue does.
    """
    return bool(added.dim() == 1 and added.stride(0) == 1 and added.shape[0] == weight.shape[1])
