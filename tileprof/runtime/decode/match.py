"""A decoder like LLaMA's in an ATen graph: every node of it, backwards from the logits. What differs in any node is not
matched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN
from tileprof.runtime.decode.positions import Computed, computed, is_causal, is_counter, is_triangle

_DTYPES: Final = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_MASKED_VALUES: Final = (-65504.0, float("-inf"))


class Mismatch(Exception):  # noqa: N818 - not an error: a graph that is another model's
    """Why a graph is not matched."""


@dataclass(slots=True)
class Matched:
    """A decoder: its nodes, its tensors by role (see `launch`), and the numbers that the graph holds."""

    logits: fx.Node
    nodes: set[fx.Node] = field(default_factory=set)
    layers: list[dict[str, fx.Node]] = field(default_factory=list)
    model: dict[str, fx.Node] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    epsilon: float | None = None
    scale: float | None = None
    masked: float | None = None
    mask_nodes: dict[fx.Node, tuple[str, fx.Node, float, frozenset[fx.Node]]] = field(default_factory=dict)
    position_checks: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Results of `_once`, by the check and the structure of what is computed."""
    triangles: dict[fx.Node, frozenset[fx.Node]] = field(default_factory=dict)
    cached_pairs: list[tuple[fx.Node, fx.Node]] = field(default_factory=list)
    """Keys and values of each layer of a prefill as attention reads them, [batch, kv_heads, tokens, head_dim]."""
    dtype: torch.dtype = torch.bfloat16

    def size(self, name: str, value: int) -> None:
        """A size, which has to be the same wherever it appears."""
        _need(self.sizes.setdefault(name, value) == value, f"{name} is {self.sizes[name]} and {value}")

    def tensor(self, roles: dict[str, fx.Node], role: str, node: fx.Node, shape: tuple[int, ...]) -> None:
        """A contiguous tensor of a role."""
        value = aten.tensor(node)
        _need(value is not None, f"{role} is not a tensor of known sizes")
        assert value is not None
        _need(tuple(value.shape) == shape, f"{role} has shape {tuple(value.shape)}, not {shape}")
        _need(value.is_contiguous() and value.dtype is self.dtype, f"{role} is not contiguous, or of another dtype")
        roles[role] = node


def _need(holds: object, reason: str) -> None:
    if not holds:
        raise Mismatch(reason)


def matched(logits: fx.Node, *, prefill: bool = False) -> Matched:
    """Return the decoder whose logits a node is: of one token and a static cache, or of a ``prefill`` with no tokens
    before. Raises `Mismatch` that says what differs.
    """
    value = aten.tensor(logits)
    _need(value is not None and len(value.shape) == 3, "the logits are not of tokens")
    assert value is not None
    _need(prefill or value.shape[1] == 1, "the logits are not of one token")
    _need(
        value.dtype in _DTYPES and value.is_contiguous(),
        "the logits are neither float16 nor bfloat16, or not contiguous",
    )
    decoder = Matched(logits, dtype=value.dtype)
    decoder.size("batch", value.shape[0])
    decoder.size("tokens", value.shape[1])
    decoder.size("vocabulary", value.shape[2])
    last, weight, bias = _linear(decoder, logits)
    _need(bias is None, "the head has a bias")
    last = _same_shape(decoder, last)
    x, norm = _norm(decoder, last, "hidden")
    decoder.tensor(decoder.model, "norm", norm, (decoder.sizes["hidden"],))
    decoder.tensor(decoder.model, "head", weight, (decoder.sizes["vocabulary"], decoder.sizes["hidden"]))
    while aten.calls(x, ATEN.add.Tensor):
        layer: dict[str, fx.Node] = {}
        x = _layer(decoder, x, layer, prefill=prefill)
        decoder.layers.insert(0, layer)
    _need(decoder.layers, "no layer ends in a sum with its residual")
    _entrance(decoder, x)
    if not prefill:
        _counters(decoder)
    return decoder


def _entrance(decoder: Matched, x: fx.Node) -> None:
    batch, count, hidden = (decoder.sizes[name] for name in ("batch", "tokens", "hidden"))
    _need(
        aten.calls(x, ATEN.embedding.default) and aten.dtype(x.args[1]) is torch.int64,
        "the first layer is not of embedded tokens",
    )
    table, tokens = x.args[:2]
    shape, strides = aten.shape(table), aten.strides(tokens)
    _need(shape is not None and len(shape) == 2, "the embedding has no sizes")
    assert shape is not None
    decoder.nodes.add(x)
    decoder.tensor(decoder.model, "embedding", table, (shape[0], hidden))
    neighbours = strides is not None and (batch == 1 or strides[0] == count) and (count == 1 or strides[1] == 1)
    _need(aten.shape(tokens) == (batch, count) and neighbours, "the tokens are not in neighbouring words")
    decoder.model["tokens"] = tokens


def _counters(decoder: Matched) -> None:
    """Caches and counters are those of the graph's inputs, each in one layer only, and updated as the kernel updates
    them.
    """
    roles = [layer[role] for layer in decoder.layers for role in ("keys", "values", "counter")]
    _need(len(set(roles)) == len(roles), "layers share a cache or its counter")
    graph = decoder.logits.graph
    updates = {into: (copy, value) for copy, into, value in aten.copies_into(graph)}
    for layer in decoder.layers:
        counter = layer["counter"]
        _need(counter in updates, "a cache's counter is not counted up")
        copy, value = updates[counter]
        plus_one = aten.calls(value, ATEN.add.Tensor) and value.args == (counter, 1) and not value.kwargs
        _need(plus_one and set(value.users) == {copy}, "a cache's counter is not counted up by one")
        decoder.nodes |= {copy, value}
        for role in ("keys", "values"):
            cache = layer[role]
            copies = [user for user in cache.users if aten.calls(user, ATEN.index_copy.default)]
            _need(cache in updates and updates[cache][1] in copies, "a cache is not updated in place")
            _need(set(cache.users) == {updates[cache][0], *copies} and len(copies) == 1, "a cache is read elsewhere")
            decoder.nodes.add(updates[cache][0])


def _layer(decoder: Matched, x: fx.Node, layer: dict[str, fx.Node], *, prefill: bool) -> fx.Node:
    """Match one layer, from its end; return the node that enters it."""
    hidden = decoder.sizes["hidden"]
    middle, down_out = _residual(decoder, x)
    activated, down = _plain_linear(decoder, down_out, "down")
    decoder.size("intermediate", _width(activated))
    gate_out, up_out = _gate_and_up(decoder, activated)
    (normed, gate), (again, up) = _plain_linear(decoder, gate_out, "gate"), _plain_linear(decoder, up_out, "up")
    _need(normed is again, "gate and up read different activations")
    inner, middle_norm = _norm(decoder, normed, "hidden")
    _need(inner is middle, "the second norm is not of the residual")
    wide = decoder.sizes["intermediate"]
    decoder.tensor(layer, "middle_norm", middle_norm, (hidden,))
    decoder.tensor(layer, "gate", gate, (wide, hidden))
    decoder.tensor(layer, "up", up, (wide, hidden))
    decoder.tensor(layer, "down", down, (hidden, wide))

    enters, output_out = _residual(decoder, middle)
    attended, output = _plain_linear(decoder, output_out, "output")
    normed = _attention(decoder, attended, layer, prefill=prefill)
    decoder.tensor(layer, "output", output, (hidden, decoder.sizes["heads"] * decoder.sizes["head_dim"]))
    inner, norm = _norm(decoder, normed, "hidden")
    _need(inner is enters, "the first norm is not of the residual")
    decoder.tensor(layer, "norm", norm, (hidden,))
    return enters


def _attention(decoder: Matched, attended: fx.Node, layer: dict[str, fx.Node], *, prefill: bool) -> fx.Node:
    """Follows the input of the output product back to the normalised activations."""
    merged = _through(decoder, attended, *aten.RESHAPES, ATEN.clone.default)
    _need(
        aten.calls(merged, ATEN.transpose.int) and tuple(merged.args[1:]) == (1, 2),
        "heads are not transposed after attention",
    )
    decoder.nodes.add(merged)
    out = _same_shape(decoder, merged.args[0])
    attention = aten.attention(out.args[0] if out.args else None)
    _need(attention is not None and attention.out is out, "no fused attention without dropout")
    assert attention is not None
    decoder.nodes |= {attention.call, attention.out}
    sizes = aten.shape(attention.query)
    _need(sizes is not None and sizes[2] == decoder.sizes["tokens"], "attention is not of the tokens")
    assert sizes is not None
    decoder.size("batch", sizes[0])
    decoder.size("heads", sizes[1])
    decoder.size("head_dim", sizes[3])
    _need(decoder.scale in {None, attention.scale}, "layers differ in the scale of their scores")
    decoder.scale = attention.scale

    if prefill:
        _triangle(decoder, attention)
        inputs = [*_fresh(decoder, attention.key, attention.value), attention.query]
    else:
        _need(not attention.causal and attention.mask is not None, "attention without a mask")
        inputs = [
            _cached(decoder, attention.key, layer, "keys"),
            _cached(decoder, attention.value, layer, "values"),
            attention.query,
        ]
    head_dim, heads, kv_heads = (decoder.sizes[name] for name in ("head_dim", "heads", "kv_heads"))
    key, key_norm = _rotated_product(decoder, inputs[0], kv_heads)
    query, query_norm = _rotated_product(decoder, inputs[2], heads)
    _need((key_norm is None) == (query_norm is None), "queries are normalised and keys are not, or the other way round")
    if key_norm is not None and query_norm is not None:
        decoder.tensor(layer, "query_norm", query_norm, (head_dim,))
        decoder.tensor(layer, "key_norm", key_norm, (head_dim,))
    value = _split(decoder, inputs[1], kv_heads)
    normed: list[fx.Node] = []
    hidden = decoder.sizes["hidden"]
    for role, node, rows in (("query", query, heads), ("key", key, kv_heads), ("value", value, kv_heads)):
        x, weight, bias = _linear(decoder, node)
        normed.append(x)
        decoder.tensor(layer, role, weight, (rows * head_dim, hidden))
        if bias is not None:
            decoder.tensor(layer, f"{role}_bias", bias, (rows * head_dim,))
    _need(normed[0] is normed[1] is normed[2], "queries, keys and values read different activations")
    if not prefill:
        _mask(decoder, attention.mask)
    return normed[0]


def _triangle(decoder: Matched, attention: aten.Attention) -> None:
    """Each token attends itself and those before it."""
    mask = attention.mask
    if mask is None:
        _need(attention.causal, "attention is not causal")
        return
    _need(not attention.causal, "attention is causal and has a mask")
    if mask not in decoder.triangles:
        behind = computed(mask)
        _need(behind is not None and behind.counter is None, "a mask that is not a constant")
        assert behind is not None
        _need(is_triangle(behind, decoder.sizes["tokens"]), "a mask that is not causal")
        decoder.triangles[mask] = frozenset(behind.nodes)
    decoder.nodes |= decoder.triangles[mask]


def _fresh(decoder: Matched, *attended: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Follows keys and values as attention reads them back to those of the tokens: behind repeated heads, and caches
    that were empty.
    """
    nodes = []
    for repeated in attended:
        node = _not_repeated(decoder, repeated)
        shape = aten.shape(node)
        batch, tokens, head_dim = (decoder.sizes[name] for name in ("batch", "tokens", "head_dim"))
        _need(
            shape is not None and len(shape) == 4 and (shape[0], *shape[2:]) == (batch, tokens, head_dim),
            "keys of other tokens",
        )
        assert shape is not None
        decoder.size("kv_heads", shape[1])
        nodes.append(node)
    keys, values = nodes
    if all(aten.calls(node, ATEN.cat.default) for node in nodes) and all(_after_nothing(node) for node in nodes):
        decoder.cached_pairs.insert(0, (keys, values))
        decoder.nodes |= {keys, values}
        return keys.args[0][1], values.args[0][1]
    return keys, values


def _after_nothing(node: fx.Node) -> bool:
    """Return whether a node puts tokens behind an empty tensor."""
    parts = node.args[0]
    empty = aten.tensor(parts[0])
    return len(parts) == 2 and empty is not None and empty.numel() == 0 and aten.shape(node) == aten.shape(parts[1])


def _not_repeated(decoder: Matched, node: fx.Node) -> fx.Node:
    """Return the heads of keys or values behind a node that may repeat them for the heads of queries."""
    node = _through(decoder, node, *aten.RESHAPES, ATEN.clone.default)
    if not aten.calls(node, ATEN.expand.default):
        return node
    decoder.nodes.add(node)
    inner = node.args[0]
    _need(aten.calls(inner, ATEN.unsqueeze.default) and inner.args[1] == 2, "heads are repeated otherwise")
    decoder.nodes.add(inner)
    repeated: fx.Node = inner.args[0]
    return repeated


def _mask(decoder: Matched, mask: Any) -> None:
    """Attended positions: those up to a counter, or those of a mask of booleans."""
    if mask not in decoder.mask_nodes:
        decoder.mask_nodes[mask] = _what_mask(decoder, mask)
    role, node, value, nodes = decoder.mask_nodes[mask]
    _need(decoder.model.setdefault(role, node) is node, "layers differ in their masks")
    _need(role == "last" or decoder.masked in {None, value}, "layers differ in what their masks add")
    decoder.masked = value if role == "mask" else decoder.masked
    _need(not {"last", "mask"} <= decoder.model.keys(), "layers differ in their masks")
    decoder.nodes |= nodes


def _what_mask(decoder: Matched, mask: Any) -> tuple[str, fx.Node, float, frozenset[fx.Node]]:
    cache, batch = decoder.sizes["cache"], decoder.sizes["batch"]
    sizes = aten.shape(mask)
    _need(sizes is not None and sizes[1:] == (1, 1, cache) and sizes[0] in {1, batch}, f"a mask of shape {sizes}")
    _need(aten.dtype(mask) is decoder.dtype, "a mask of another dtype")
    behind = computed(mask)
    if behind is not None and behind.counter is not None and _once(decoder, is_causal, behind):
        return "last", behind.counter, 0.0, frozenset(behind.nodes)
    _need(aten.calls(mask, ATEN.where.self), "a mask that is not made of booleans")
    keep, zero, value = mask.args
    constants = [_constant(node) for node in (zero, value)]
    _need(aten.dtype(keep) is torch.bool and constants[0] == 0.0, "a mask that is not made of booleans")
    _need(constants[1] in _MASKED_VALUES, f"a mask that adds {constants[1]}")
    sizes, strides = aten.shape(keep), aten.strides(keep)
    _need(
        sizes is not None and sizes[1:] == (1, 1, cache) and strides is not None and strides[3] == 1,
        "a mask whose rows are not contiguous",
    )
    assert constants[1] is not None
    return "mask", keep, constants[1], frozenset((mask, zero, value))


def _once(decoder: Matched, check: Callable[[Computed, int], bool], of: Computed) -> bool:
    """Return whether a check holds for all positions of the cache: found once for layers that compute the same."""
    key = check.__name__, of.structure
    if key not in decoder.position_checks:
        decoder.position_checks[key] = check(of, decoder.sizes["cache"])
    return decoder.position_checks[key]


def _constant(node: Any) -> float | None:
    return float(node.args[0]) if aten.calls(node, ATEN.scalar_tensor.default) else None


def _cached(decoder: Matched, node: fx.Node, layer: dict[str, fx.Node], role: str) -> fx.Node:
    """Follows keys or values as attention reads them back to the new token's."""
    heads = aten.shape(node)
    node = _not_repeated(decoder, node)
    _need(aten.calls(node, ATEN.index_copy.default) and node.args[1] == 2, f"{role} do not come from a static cache")
    decoder.nodes.add(node)
    cache, _, index, new = node.args
    _need(aten.parameter(cache), f"the cache of {role} is computed")
    shape = aten.shape(cache)
    _need(
        shape is not None
        and len(shape) == 4
        and shape[0] == decoder.sizes["batch"]
        and shape[3] == decoder.sizes["head_dim"],
        f"a cache of shape {shape}",
    )
    assert shape is not None
    decoder.size("kv_heads", shape[1])
    decoder.size("cache", shape[2])
    _need(heads == (shape[0], decoder.sizes["heads"], *shape[2:]), "attention does not read all of the cache")
    decoder.tensor(layer, role, cache, shape)
    position = _index(decoder, index)
    _need(layer.setdefault("counter", position) is position, "keys and values are appended at different positions")
    _need(aten.shape(new) == (shape[0], shape[1], 1, shape[3]), "more than one token is appended")
    return new


def _index(decoder: Matched, index: fx.Node) -> fx.Node:
    position: Computed | None = computed(index)
    _need(
        position is not None and _once(decoder, is_counter, position),
        "the position that is appended is not a counter's",
    )
    assert position is not None
    assert position.counter is not None
    decoder.nodes |= set(position.nodes)
    return position.counter


def _rotated_product(decoder: Matched, node: fx.Node, heads: int) -> tuple[fx.Node, fx.Node | None]:
    """Follows a rotated head back: the product that it comes from, and the weight of its norm if it has one."""
    _need(aten.calls(node, ATEN.add.Tensor) and not node.kwargs, "heads are not rotated")
    plain, crossed = node.args
    for part in (plain, crossed):
        _need(aten.calls(part, ATEN.mul.Tensor), "heads are not rotated")
    x, cosine = plain.args
    halves, sine = crossed.args
    half = decoder.sizes["head_dim"] // 2
    _need(
        aten.calls(halves, ATEN.cat.default)
        and aten.argument(halves, 1, "dim", 0) in {-1, 3}
        and len(halves.args[0]) == 2,
        "heads are rotated otherwise",
    )
    negative, first = halves.args[0]
    _need(aten.calls(negative, ATEN.neg.default), "heads are rotated otherwise")
    second = negative.args[0]
    for part, begin, end in ((first, 0, half), (second, half, 2 * half)):
        _need(aten.calls(part, ATEN.slice.Tensor) and part.args[0] is x, "heads are rotated otherwise")
        _need(
            part.args[1] == 3
            and part.args[2] == begin
            and (part.args[3] == end or part.args[3] >= 2 * half == end)
            and len(part.args) == 4,
            "heads are rotated otherwise",
        )
    for role, table in (("cosine", cosine), ("sine", sine)):
        _need(aten.calls(table, ATEN.unsqueeze.default) and table.args[1] == 1, f"the {role} has another form")
        decoder.nodes.add(table)
        inner, shape = table.args[0], aten.shape(table.args[0])
        _need(shape is not None and shape[0] in {1, decoder.sizes["batch"]}, f"the {role} has shape {shape}")
        assert shape is not None
        decoder.tensor(
            decoder.model, role, decoder.model.get(role, inner), (shape[0], decoder.sizes["tokens"], 2 * half)
        )
        _need(decoder.model[role] is inner, f"layers differ in their {role}")
    decoder.nodes |= {node, plain, crossed, halves, negative, first, second}
    _need(aten.calls(x, ATEN.transpose.int) and tuple(x.args[1:]) == (1, 2), "heads are not transposed")
    decoder.nodes.add(x)
    inner = x.args[0]
    weight = None
    if aten.calls(inner, ATEN.mul.Tensor):
        inner, weight = _norm(decoder, inner, "head_dim")
    return _heads(decoder, inner, heads), weight


def _split(decoder: Matched, node: Any, heads: int) -> Any:
    _need(aten.calls(node, ATEN.transpose.int) and tuple(node.args[1:]) == (1, 2), "heads are not transposed")
    decoder.nodes.add(node)
    return _heads(decoder, node.args[0], heads)


def _heads(decoder: Matched, node: Any, heads: int) -> Any:
    """Return a view of a product's result as heads."""
    batch, tokens, head_dim = (decoder.sizes[name] for name in ("batch", "tokens", "head_dim"))
    _need(
        aten.calls(node, *aten.RESHAPES) and aten.shape(node) == (batch, tokens, heads, head_dim),
        "heads have another shape",
    )
    decoder.nodes.add(node)
    return node.args[0]


def _gate_and_up(decoder: Matched, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    node = _through(decoder, node, *aten.RESHAPES)
    _need(aten.calls(node, ATEN.mul.Tensor), "the MLP is not gated")
    silu, up = node.args
    _need(aten.calls(silu, ATEN.silu.default), "the gate's activation is not SiLU")
    decoder.nodes |= {node, silu}
    return silu.args[0], up


def _residual(decoder: Matched, node: Any) -> tuple[Any, Any]:
    _need(aten.calls(node, ATEN.add.Tensor) and len(node.args) == 2 and not node.kwargs, "no sum with the residual")
    before, new = node.args
    shape = tuple(decoder.sizes[name] for name in ("batch", "tokens", "hidden"))
    _need(all(aten.shape(n) == shape for n in (before, new)), "no sum with the residual")
    decoder.nodes.add(node)
    return before, new


def _norm(decoder: Matched, node: fx.Node, size: str) -> tuple[fx.Node, fx.Node]:
    """Return an RMS norm: what it normalises, and its weight."""
    _need(aten.calls(node, ATEN.mul.Tensor), "no RMS norm")
    weight, narrow = node.args
    _need(aten.parameter(weight) and aten.calls(narrow, ATEN._to_copy.default), "no RMS norm")  # noqa: SLF001
    product = narrow.args[0]
    _need(aten.calls(product, ATEN.mul.Tensor), "no RMS norm")
    wide, factor = product.args
    _need(aten.calls(wide, ATEN._to_copy.default) and aten.calls(factor, ATEN.rsqrt.default), "no RMS norm")  # noqa: SLF001
    shifted = factor.args[0]
    _need(
        aten.calls(shifted, ATEN.add.Tensor) and isinstance(shifted.args[1], float) and not shifted.kwargs,
        "no RMS norm",
    )
    mean = shifted.args[0]
    _need(aten.calls(mean, ATEN.mean.dim) and tuple(mean.args[1:]) == ([-1], True) and not mean.kwargs, "no RMS norm")
    square = mean.args[0]
    _need(aten.calls(square, ATEN.pow.Tensor_Scalar) and square.args == (wide, 2), "no RMS norm")
    x = wide.args[0]
    _need(
        _casts(wide, torch.float32) and _casts(narrow, decoder.dtype) and aten.dtype(x) is decoder.dtype,
        "a norm in other dtypes",
    )
    _need(decoder.epsilon in {None, shifted.args[1]}, "norms differ in epsilon")
    decoder.epsilon = shifted.args[1]
    decoder.size(size, _width(x))
    decoder.nodes |= {node, narrow, product, wide, factor, shifted, mean, square}
    return x, weight


def _casts(node: fx.Node, dtype: torch.dtype) -> bool:
    return dict(node.kwargs) == {"dtype": dtype}


def _plain_linear(decoder: Matched, node: fx.Node, role: str) -> tuple[fx.Node, fx.Node]:
    x, weight, bias = _linear(decoder, node)
    _need(bias is None, f"the product {role} has a bias")
    return x, weight


def _linear(decoder: Matched, node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node | None]:
    """Return a product with a weight [out, in]: activations, weight, bias."""
    product = _through(decoder, node, *aten.RESHAPES)
    _need(aten.calls(product, ATEN.mm.default, ATEN.addmm.default) and not product.kwargs, "no product with a weight")
    bias = product.args[0] if product.target is ATEN.addmm.default else None
    x, turned = product.args[-2:]
    _need(aten.calls(turned, ATEN.t.default) and aten.parameter(turned.args[0]), "no product with a weight")
    _need(bias is None or aten.parameter(bias), "a bias that is computed")
    decoder.nodes |= {product, turned}
    _need(
        aten.shape(x) == (decoder.sizes["batch"] * decoder.sizes["tokens"], _width(turned.args[0])),
        "a product of other activations than the tokens'",
    )
    before = _through(decoder, x, *aten.RESHAPES)
    return before, turned.args[0], bias


def _through(decoder: Matched, node: Any, *targets: Any) -> Any:
    """Return the node behind views, which are taken along."""
    while aten.calls(node, *targets):
        decoder.nodes.add(node)
        node = node.args[0]
    _need(isinstance(node, fx.Node), "a constant where a tensor is expected")
    return node


def _same_shape(decoder: Matched, node: Any) -> Any:
    """Return the node behind views that keep everything."""
    while aten.calls(node, ATEN.alias.default, ATEN.slice.Tensor, *aten.RESHAPES) and aten.shape(node) == aten.shape(
        node.args[0]
    ):
        decoder.nodes.add(node)
        node = node.args[0]
    return node


def _width(node: Any) -> int:
    sizes = aten.shape(node)
    _need(sizes, "a tensor without sizes")
    assert sizes
    return sizes[-1]
