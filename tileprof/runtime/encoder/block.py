"""One transformer block around a call of attention: what stands where, matched node by node.

Queries, keys and values are columns of one product, or of three, of rows that may be normalised. A product of what
attention gives and the rows (before the norm or after) are added up. Their sum, normalised, goes through two products
with an activation between them, and is added again.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from math import frexp
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN
from tileprof.runtime.encoder.constants import constant
from tileprof.runtime.encoder.math_attention import Attended
from tileprof.runtime.encoder.program import HEAD, Attention, Dtype, Epilogue, Mask, Matrix, Norm, Product, Stage

MOST_ROWS: Final = 512
LEAST_ROWS: Final = 16
_COPIES: Final = (ATEN.clone.default, ATEN.alias.default, ATEN.detach.default)
_STEPS: Final = (*aten.RESHAPES, *_COPIES)
_PRODUCTS: Final = (ATEN.addmm.default, ATEN.mm.default)
_VIEWS: Final = (*aten.VIEWS, ATEN.split.Tensor, ATEN.unbind.int)
_NEVER: Final = -65504.0
"""The addend of a score that must not count, the least half: of keys that count, one has a score above it by far."""
_DTYPES: Final[dict[torch.dtype | None, Dtype]] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Refused(Exception):  # noqa: N818 - an answer
    """Why something that looks like a block is none that the kernel takes."""


@dataclass
class Stack:
    """Blocks that feed each other.

    ``matrices``: where the values of nodes are that stages compute. ``nodes``: all that a region replaces.
    """

    stages: list[Stage] = field(default_factory=list)
    matrices: dict[fx.Node, Matrix] = field(default_factory=dict)
    nodes: set[fx.Node] = field(default_factory=set)
    parameters: set[fx.Node] = field(default_factory=set)
    activations: set[fx.Node] = field(default_factory=set)
    unread: set[fx.Node] = field(default_factory=set)
    """Constants that nodes read and the kernel does not."""
    cache_outputs: list[tuple[fx.Node, str]] = field(default_factory=list)
    """Copies of keys and values that are read outside, and their names."""
    end: fx.Node | None = None
    last: tuple[Matrix, Norm] | None = None
    """Rows whose norm is the result, if any."""
    rows: int = 0
    dtype: torch.dtype | None = None
    blocks: int = 0

    def copy(self) -> Stack:
        return replace(
            self, stages=[*self.stages], matrices={**self.matrices}, nodes={*self.nodes}, parameters={*self.parameters},
            activations={*self.activations}, unread={*self.unread}, cache_outputs=[*self.cache_outputs],
        )  # fmt: skip

    @property
    def dtype_name(self) -> Dtype:
        return _DTYPES[self.dtype]


@dataclass(frozen=True)
class _Entry:
    """The left factor of a product: rows, or a norm of them, which gives ``rows``."""

    rows: fx.Node
    norm: fx.Node | None
    depth: int


def add_block(stack: Stack, attention: Attended) -> Stack:
    """Return the stack with the block around one more attention, which its last block must feed. Raises `Refused`."""
    return _Block(stack.copy(), attention).match()


def with_last_norm(stack: Stack) -> Stack:
    """Return the stack with the norm of its last rows, where one is the only reader of them; as it is elsewhere."""
    extended = stack.copy()
    return extended if _take_last_norm(extended) else stack


def _take_last_norm(stack: Stack) -> bool:
    call = None if stack.end is None else aten.only_user(stack.end)
    if stack.end is None or call is None or not aten.calls(call, ATEN.native_layer_norm.default):
        return False
    rows = aten.only_user(call)
    columns = (aten.shape(stack.end) or (0,))[-1]
    if rows is None or not aten.calls(rows, operator.getitem) or rows.args[1] != 0 or list(call.args[1]) != [columns]:
        return False
    parameters = call.args[2:4]
    if not all(_is_parameter(node, (columns,), stack.dtype) for node in parameters):
        return False
    stack.parameters |= set(parameters)
    stack.nodes |= {call, rows}
    norm = Norm(parameters[0].name, parameters[1].name, float(call.args[4]), rows.name)
    stack.last, stack.end = (stack.matrices[stack.end], norm), rows
    return True


class _Block:
    def __init__(self, stack: Stack, attention: Attended) -> None:
        self._stack, self._call, self._attended = stack, attention.call, attention.nodes
        self._kept_norms: dict[fx.Node, Matrix] = {}
        self._query_factor = 1.0

    def match(self) -> Stack:
        stack, call = self._stack, self._call
        sizes, keys, dtype = aten.shape(call.query), aten.shape(call.key), aten.dtype(call.query)
        if sizes is None or keys is None or dtype not in _DTYPES or len(sizes) != 4:
            raise Refused("it is not in float16 or bfloat16, or its sizes are not constant")
        batch, heads, length, width = sizes
        if width != HEAD or keys[2] != length or aten.shape(call.value) != keys or heads % keys[1] or keys[0] != batch:
            raise Refused(
                f"it has {keys[2]} keys of {width} columns for {length} queries; the kernel takes {HEAD} columns and "
                "as many keys as queries"
            )
        rows = batch * length
        if not LEAST_ROWS <= rows <= MOST_ROWS:
            raise Refused(f"it has {rows} rows of tokens; the kernel is for {LEAST_ROWS} to {MOST_ROWS}")
        if stack.blocks and (rows, dtype) != (stack.rows, stack.dtype):
            raise Refused("the blocks before it have other sizes")
        stack.rows, stack.dtype = rows, dtype
        attended = self._attention(batch, heads, keys[1], length)
        middle = self._with_residual(self._behind_attention(heads), attended)
        up = self._reader(middle)
        inner, epilogue = self._activation(up)
        self._product(up, self._entry_of(up), inner, epilogue)
        stack.matrices.update(self._kept_norms)
        end = self._with_residual(self._only_product(inner), inner)
        stack.end, stack.blocks = end, stack.blocks + 1
        return stack

    # Attention and what feeds it.

    def _attention(self, batch: int, heads: int, key_heads: int, length: int) -> fx.Node:
        stack, call = self._stack, self._call
        places = [self._heads(node, batch, length) for node in (call.query, call.key, call.value)]
        products = list(dict.fromkeys(product for product, _, _ in places))
        entries = {self._entry_of(product) for product in products}
        if len(entries) != 1:
            raise Refused("queries, keys and values come from different rows")
        entry = entries.pop()
        if (
            stack.blocks
            and entry.rows not in stack.matrices
            and (entry.norm is None or self._behind(entry.norm.args[0]) is not stack.end)
        ):
            raise Refused("the block before does not feed it")
        for product in products:
            self._product(product, entry)
        stack.matrices.update(self._kept_norms)
        if places[1][1] != places[2][1]:
            raise Refused("keys and values have rows of different lengths")
        query, key, value = (Matrix(product.name, pitch, column) for product, pitch, column in places)
        out, scale = Matrix(call.call.name, heads * HEAD), call.scale * self._query_factor
        mask, causal = self._mask(batch, heads, length)
        stack.stages.append(
            Attention(
                call.call.name,
                stack.rows,
                length,
                heads,
                key_heads,
                query,
                key,
                value,
                out,
                scale,
                causal or call.causal,
                mask,
                self._copies_kept(),
            )
        )
        stack.nodes |= self._attended
        stack.matrices[call.out] = out
        return call.out

    def _heads(self, node: fx.Node, batch: int, length: int) -> tuple[fx.Node, int, int]:
        """Return the product of whose columns a tensor of heads consists, its rows' pitch and the first column."""
        layout = node
        while aten.calls(layout, *_COPIES) or _appends_to_nothing(layout):
            self._stack.nodes.add(layout)
            layout = layout.args[0][-1] if _appends_to_nothing(layout) else layout.args[0]
        base = layout
        while aten.calls(base, *_VIEWS, operator.getitem):
            self._stack.nodes.add(base)
            base = base.args[0]
        if node is self._call.query:
            base = self._unscaled(base)
        value, columns = aten.tensor(layout), (aten.shape(base) or (0,))[-1]
        if not aten.calls(base, *_PRODUCTS) or value is None:
            raise Refused(f"{node.name} is not a view of a product")
        strides = (length * columns, HEAD, columns, 1)
        if any(size > 1 and a != b for size, a, b in zip(value.shape, value.stride(), strides, strict=True)):
            raise Refused(
                f"{node.name} has strides {tuple(value.stride())}; the kernel takes heads side by side in rows"
            )
        if batch * length != self._stack.rows or value.storage_offset() % 8:
            raise Refused(f"{node.name} begins in the middle of 16 bytes")
        return base, columns, int(value.storage_offset())

    def _unscaled(self, node: fx.Node) -> fx.Node:
        """Return the product that is multiplied by a power of two, as OPT's queries are; that changes no bit of a
        mantissa.
        """
        if not aten.calls(node, ATEN.mul.Tensor, ATEN.mul.Scalar) or node.kwargs or aten.only_user(node) is None:
            return node
        factor, product = node.args[1], self._behind(node.args[0])
        if not isinstance(factor, float | int) or frexp(factor)[0] != 0.5 or not aten.calls(product, *_PRODUCTS):
            return node
        self._take_steps(node, product)
        self._query_factor = float(factor)
        return product

    def _copies_kept(self) -> tuple[str, str] | None:
        """Return names of the outputs that get keys and values, where a cache takes them."""
        stack, copies = self._stack, (self._call.key, self._call.value)
        outside = [any(u not in self._attended for u in node.users) for node in copies]
        if not any(outside):
            return None
        if not all(outside) or not all(_appends_to_nothing(n) and _dense(n) for n in copies):
            raise Refused("its keys or values are read outside in a form that the kernel does not store")
        stack.cache_outputs += [(node, node.name) for node in copies]
        return copies[0].name, copies[1].name

    def _mask(self, batch: int, heads: int, length: int) -> tuple[Mask | None, bool]:
        """Return the mask that the kernel has to read, if any, and whether queries see the keys up to their own
        alone.
        """
        node = self._call.mask
        if node is None:
            return None, False
        false, source = float("-inf"), node
        if aten.calls(node, ATEN.where.self):
            source, kept_value, dropped = node.args
            if _constant(kept_value) != 0.0 or (value := _constant(dropped)) is None:
                raise Refused(f"{node.name} chooses between other things than 0 and a constant")
            false = value
            self._stack.nodes |= {node, kept_value, dropped}
        boolean = aten.dtype(source) == torch.bool
        if boolean and (mask_values := constant(source)) is not None:
            causal = false <= _NEVER and bool(
                (mask_values == torch.ones(length, length, dtype=torch.bool).tril()).all()
            )
            if causal or bool(mask_values.all()):
                self._stack.unread.add(source)
                return None, causal
        value = aten.tensor(source)
        if value is None or value.dim() != 4 or (not boolean and value.dtype != self._stack.dtype):
            raise Refused(f"the kernel does not read its mask {source.name}")
        full_shape = (batch, heads, length, length)
        if any(size not in (1, full) for size, full in zip(value.shape, full_shape, strict=True)) or (
            length > 1 and (value.shape[3] != length or value.stride(3) != 1)
        ):
            raise Refused(f"its mask {source.name} has sizes {tuple(value.shape)} and strides {tuple(value.stride())}")
        self._stack.activations.add(source)
        strides = tuple(0 if size == 1 else stride for size, stride in zip(value.shape, value.stride(), strict=True))
        return Mask(source.name, (strides[0], strides[1], strides[2]), boolean, false if boolean else 0.0), False

    def _behind_attention(self, heads: int) -> fx.Node:
        """Return the product of what attention gives, heads side by side again."""
        node = aten.only_user(self._call.out)
        while node is not None and aten.calls(node, *_STEPS) and aten.shape(node) == aten.shape(self._call.out):
            self._stack.nodes.add(node)
            node = aten.only_user(node)
        swapped = aten.calls(node, ATEN.transpose.int) and {a % 4 for a in node.args[1:3]} == {1, 2} if node else False
        if node is None or not (
            swapped or (aten.calls(node, ATEN.permute.default) and list(node.args[1]) == [0, 2, 1, 3])
        ):
            raise Refused(f"{self._call.out.name} is not put together again as rows")
        self._stack.nodes.add(node)
        return self._only_product(node, heads * HEAD)

    # Rows.

    def _behind(self, node: Any) -> Any:
        """Return the node behind reshapes and copies of rows, as far as a value that stages compute, or a copy that
        puts rows in order.
        """
        while aten.calls(node, *_STEPS) and node not in self._stack.matrices:
            if aten.calls(node, *_COPIES) and not _dense(node.args[0]):
                break
            node = node.args[0]
        return node

    def _take_steps(self, node: Any, until: fx.Node) -> None:
        while node is not until:
            self._stack.nodes.add(node)
            node = node.args[0]

    def _source(self, node: fx.Node, columns: int) -> Matrix:
        """Return rows that stages compute, or that come in from outside as one dense matrix."""
        stack, origin = self._stack, self._behind(node)
        sizes = aten.shape(origin)
        if (
            sizes is None
            or _product_of(sizes) != stack.rows * columns
            or (origin not in stack.matrices and sizes[-1] != columns)
        ):
            raise Refused(
                f"{getattr(origin, 'name', origin)} is not a matrix of {stack.rows} rows of {columns} columns"
            )
        if origin not in stack.matrices and not (_dense(origin) and aten.dtype(origin) == stack.dtype):
            raise Refused(f"{origin.name} is not dense, or of another dtype")
        self._take_steps(node, origin)
        if origin not in stack.matrices:
            stack.activations.add(origin)
        return stack.matrices.get(origin, Matrix(origin.name, columns))

    def _entry_of(self, product: fx.Node) -> _Entry:
        rows = product.args[1] if aten.calls(product, ATEN.addmm.default) else product.args[0]
        depth, origin = (aten.shape(rows) or (0,))[-1], self._behind(rows)
        normed = (
            aten.calls(origin, operator.getitem)
            and origin.args[1] == 0
            and aten.calls(origin.args[0], ATEN.native_layer_norm.default)
        )
        if origin in self._stack.matrices or not normed:
            return _Entry(origin, None, depth)
        return _Entry(origin, origin.args[0], depth)

    # Products.

    def _product(
        self,
        node: fx.Node,
        entry: _Entry,
        result: fx.Node | None = None,
        epilogue: Epilogue = "none",
        residual: Matrix | None = None,
    ) -> None:
        """A stage for a product; ``result``: the node whose value it stores, its own by default."""
        stack = self._stack
        bias, rows, weight = (None, *node.args) if aten.calls(node, ATEN.mm.default) else node.args
        sizes = aten.shape(node)
        if node.kwargs or sizes is None or sizes[0] != stack.rows or aten.dtype(node) != stack.dtype:
            raise Refused(f"{node.name} is scaled, or has other rows")
        columns, depth = sizes[1], entry.depth
        if columns % 16 or depth % 64:
            raise Refused(f"{node.name} is of {depth} by {columns}; the kernel takes multiples of 64 by 16")
        k_major = aten.calls(weight, ATEN.t.default)
        if k_major:
            stack.nodes.add(weight)
        name = self._parameter(weight.args[0] if k_major else weight, (columns, depth) if k_major else (depth, columns))
        bias_name = None if bias is None else self._parameter(bias, (columns,))
        self._take_steps(rows, entry.rows)
        source, norm = (self._source(entry.rows, depth), None) if entry.norm is None else self._norm(entry, entry.norm)
        stored = node if result is None else result
        out = Matrix(stored.name, columns)
        stack.stages.append(
            Product(
                node.name, stack.rows, columns, depth, source, name, k_major, out, bias_name, norm, epilogue, residual
            )
        )
        stack.nodes |= {node, stored}
        stack.matrices[stored] = out

    def _parameter(self, node: Any, shape: tuple[int, ...]) -> str:
        if not _is_parameter(node, shape, self._stack.dtype):
            raise Refused(f"{getattr(node, 'name', node)} is not a dense parameter of {shape}")
        self._stack.parameters.add(node)
        return str(node.name)

    def _norm(self, entry: _Entry, call: fx.Node) -> tuple[Matrix, Norm]:
        source, shape, gamma, beta, epsilon = call.args
        if list(shape) != [entry.depth] or any(
            not aten.calls(u, operator.getitem) or u is not entry.rows for u in call.users
        ):
            raise Refused(f"{call.name} is not a norm of rows")
        matrix = self._source(source, entry.depth)
        names = self._parameter(gamma, (entry.depth,)), self._parameter(beta, (entry.depth,))
        self._stack.nodes |= {call, entry.rows}
        kept_name = None
        if entry.rows not in self._kept_norms and self._is_residual(entry.rows):
            kept_name = f"{entry.rows.name} kept"
            self._kept_norms[entry.rows] = Matrix(kept_name, entry.depth)
        return matrix, Norm(*names, float(epsilon), kept_name)

    def _is_residual(self, rows: fx.Node) -> bool:
        """Return whether normalised rows are read by anything but products."""
        waiting = list(rows.users)
        while waiting:
            user = waiting.pop()
            if aten.calls(user, *_STEPS):
                waiting.extend(user.users)
            elif not aten.calls(user, *_PRODUCTS):
                return True
        return False

    def _with_residual(self, product: fx.Node, read: fx.Node) -> fx.Node:
        """Return the stage for a product and the addition behind it, which is returned."""
        node = product
        while aten.calls(node, *_PRODUCTS, *_STEPS):
            user = aten.only_user(node)
            if user is None:
                raise Refused(f"{node.name} is read by several")
            if node is not product:
                self._stack.nodes.add(node)
            before, node = node, user
        if (
            not aten.calls(node, ATEN.add.Tensor)
            or node.kwargs
            or len(node.args) != 2
            or aten.shape(node) != aten.shape(before)
        ):
            raise Refused(f"{node.name} behind {product.name} is not a residual addition")
        other = node.args[1] if node.args[0] is before else node.args[0]
        if not isinstance(other, fx.Node) or other is before:
            raise Refused(f"{node.name} adds no residual")
        columns = (aten.shape(product) or (0, 0))[1]
        entry = _Entry(read, None, (aten.shape(product.args[-2]) or (0, 0))[-1])
        self._product_behind(product, entry, node, self._source(other, columns))
        self._stack.matrices[node] = Matrix(node.name, columns)
        return node

    def _product_behind(self, product: fx.Node, entry: _Entry, result: fx.Node, residual: Matrix) -> None:
        """A product of rows that a stage has computed, whatever steps lie between."""
        rows = product.args[-2]
        origin = self._behind(rows)
        if entry.rows is self._call.out:  # heads side by side: matched in _behind_attention
            self._take_steps(rows, origin)
            alias = _Entry(origin, None, entry.depth)
            self._stack.matrices[origin] = self._stack.matrices[entry.rows]
            self._product(product, alias, result, "none", residual)
            self._stack.nodes.add(origin)
            return
        if origin is not entry.rows:
            raise Refused(f"{product.name} multiplies other rows")
        self._product(product, entry, result, "none", residual)

    def _only_product(self, node: fx.Node, columns: int | None = None) -> fx.Node:
        """Return the one product that reads a value, through reshapes and copies; ``columns``: of the rows that it
        reads.
        """
        user = aten.only_user(node)
        while user is not None and aten.calls(user, *_STEPS):
            user = aten.only_user(user)
        if user is None or not aten.calls(user, *_PRODUCTS):
            raise Refused(f"{node.name} is not read by one product alone")
        sizes = aten.shape(user.args[-2])
        if columns is not None and sizes != (self._stack.rows, columns):
            raise Refused(f"{user.name} reads rows of {sizes}")
        return user

    def _reader(self, middle: fx.Node) -> fx.Node:
        """Return the product behind the sum: of its norm, or of itself."""
        products: set[fx.Node] = set()
        waiting = list(middle.users)
        while waiting:
            user = waiting.pop()
            if aten.calls(user, *_STEPS, operator.getitem, ATEN.native_layer_norm.default):
                waiting.extend(user.users)
            elif aten.calls(user, *_PRODUCTS):
                products.add(user)
        if len(products) != 1:
            raise Refused(f"{middle.name} is read by {len(products)} products")
        return products.pop()

    def _activation(self, product: fx.Node) -> tuple[fx.Node, Epilogue]:
        """Return the activation behind a product: the node of its result, and which it is."""
        node = product
        steps = []
        while (user := aten.only_user(node)) is not None and aten.calls(user, *_STEPS):
            steps.append(user)
            node = user
        self._stack.nodes.update(steps)
        if user is None:
            chain = _tanh_chain(node)
            if chain is None:
                raise Refused(f"{node.name} is read by several")
            self._stack.nodes.update(chain)
            return chain[-1], "gelu_tanh"
        if aten.calls(user, ATEN.gelu.default):
            how = aten.argument(user, 1, "approximate", "none")
            return user, "gelu" if how == "none" else "gelu_tanh"
        if aten.calls(user, ATEN.relu.default):
            return user, "relu"
        if aten.calls(user, ATEN.silu.default):
            return user, "silu"
        raise Refused(f"{user.name} behind {product.name} is not an activation of the kernel")


def _tanh_chain(v: fx.Node) -> tuple[fx.Node, ...] | None:
    """Return nodes, the result last, of 0.5 v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) as transformers writes it
    out.
    """
    half = next((u for u in v.users if _scalar(u, ATEN.mul.Tensor, v, 0.5)), None)
    cube = next((u for u in v.users if _scalar(u, ATEN.pow.Tensor_Scalar, v, 3.0)), None)
    if half is None or cube is None or len(v.users) != 3:
        return None
    chain = [half, cube]
    for target, operand in (
        (ATEN.mul.Tensor, 0.044715),
        (ATEN.add.Tensor, v),
        (ATEN.mul.Tensor, 0.7978845608028654),
        (ATEN.tanh.default, None),
        (ATEN.add.Tensor, 1.0),
        (ATEN.mul.Tensor, half),
    ):
        user, last = aten.only_user(chain[-1]), chain[-1]
        if user is None or not aten.calls(user, target) or user.kwargs:
            return None
        others = [a for a in user.args if a is not last]
        fits = (
            others == []
            if operand is None
            else len(others) == 1 and (others[0] is operand or (isinstance(operand, float) and others[0] == operand))
        )
        if not fits:
            return None
        chain.append(user)
    return tuple(chain) if aten.only_user(half) is chain[-1] else None


def _is_parameter(node: Any, shape: tuple[int, ...], dtype: torch.dtype | None) -> bool:
    return aten.parameter(node) and aten.shape(node) == shape and aten.dtype(node) == dtype and _dense(node)


def _scalar(node: fx.Node, target: Any, tensor: fx.Node, value: float) -> bool:
    return (
        aten.calls(node, target)
        and len(node.args) == 2
        and node.args[0] is tensor
        and node.args[1] == value
        and not node.kwargs
    )


def _constant(node: Any) -> float | None:
    return float(node.args[0]) if aten.calls(node, ATEN.scalar_tensor.default) else None


def _appends_to_nothing(node: Any) -> bool:
    """Return whether a node concatenates an empty tensor and another: a cache before its first token."""
    if not aten.calls(node, ATEN.cat.default) or len(node.args[0]) != 2:
        return False
    empty = aten.shape(node.args[0][0])
    return empty is not None and 0 in empty


def _dense(node: Any) -> bool:
    sizes, strides = aten.shape(node), aten.strides(node)
    if sizes is None or strides is None:
        return False
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _product_of(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count
