"""Facts about an ATen operator before it is called, computed once per overload."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.optim import optimizer
from torch.utils._pytree import tree_leaves

from tileprof.record.model.tile_model import Entry, find

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_NO_KERNEL = frozenset(
    f"aten::{name}"
    for name in (
        "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_debug_has_internal_overlap",
        "_has_compatible_shallow_copy_type", "_has_same_storage_numel",
        "_nested_tensor_size", "_nested_tensor_storage_offsets", "_nested_tensor_strides",
        "_resize_output_", "_version", "data", "empty", "empty_like", "empty_permuted",
        "empty_quantized", "empty_strided", "is_coalesced", "is_pinned", "is_same_size", "new_empty",
        "new_empty_strided",
        "record_stream", "resize_", "resize_as_", "resize", "set_", "set_data",
    )
)  # fmt: skip
"""Allocation and metadata: a GPU launches nothing for them."""

_COUNTS_STEPS = "aten::_foreach_add_.Tensor"

_NOT_COMPOSITE = frozenset({"aten::silu_backward", "aten::mish_backward", "aten::_fused_rms_norm"})
"""Operators that have kernels of their own on every device (the last one in a session, as on a GPU), and are made of
other operators only for autograd.
"""

LIFT = "aten::lift_fresh"
"""The last operator of `torch.tensor(data)`: its argument is no memory of the GPU."""

HOST_READS = frozenset({"aten::_local_scalar_dense"})
"""Operators for which the program waits for the GPU."""


def reads_a_step() -> bool:
    """Return whether an optimizer of PyTorch is reading a step counter, which it keeps on the host even for parameters
    on a GPU (unless it is capturable, and then it does not read it).
    """
    # PyTorch has no public way to ask.
    return any(frame.f_code is optimizer._get_value.__code__ for frame in _callers())  # noqa: SLF001


def counts_steps(name: str) -> bool:
    """Return whether an optimizer of PyTorch is counting its steps on the host: it adds a tensor to tensors nowhere
    else (``if device_state_steps[0].is_cpu``).
    """
    return name == _COUNTS_STEPS and any(
        frame.f_globals.get("__name__", "").startswith("torch.optim.") for frame in _callers()
    )


def _callers() -> Iterator[FrameType]:
    """Yield the frames of all callers, the nearest first."""
    frame = sys._getframe(1)  # noqa: SLF001 - what `inspect.stack` reads, without the source
    while frame.f_back is not None:
        frame = frame.f_back
        yield frame


@dataclass(frozen=True, slots=True)
class Argument:
    """One schema argument; ``written``: the operator writes to it."""

    name: str
    default: Any
    written: bool


@dataclass(slots=True)
class Operator:
    """An overload: its schema, its tile model (None: none), and how it is to be taken.

    ``silent``: launches nothing. ``composite``: made of other operators on every device, which are to be seen
    instead of it; ``explicit``: the same, but PyTorch hides it better. ``returns_given``: results are arguments.
    ``strided``: so are all tensors of this call.
    """

    overload: Any
    name: str
    arguments: tuple[Argument, ...]
    entry: Entry | None
    silent: bool
    composite: bool
    explicit: bool

    returns_given: bool = False
    strided: bool = True
    mutates: bool = False
    view: bool = False
    """Its results are other views of its first argument's memory."""
    metadata: bool = False
    """A question about a tensor's metadata."""

    def __post_init__(self) -> None:
        self.mutates = any(a.written for a in self.arguments)

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the value of every argument in schema order, defaults filled in."""
        positional = len(args)
        return [
            args[n] if n < positional else kwargs.get(argument.name, argument.default)
            for n, argument in enumerate(self.arguments)
        ]

    @property
    def foreign(self) -> bool:
        """True for operators that are not PyTorch's own: their schemas may be silent about what they write, as those of
        collectives are.
        """
        return not self.name.startswith("aten::")

    def distrusted(self) -> Operator:
        """Return the same with every argument taken to be written, whatever the schema says."""
        arguments = tuple(replace(a, written=True) for a in self.arguments)
        return replace(self, arguments=arguments, entry=None, returns_given=True)

    def opaque(self) -> Operator:
        """Return the same for a call with tensors that are not strided: tile models do not know those."""
        return replace(self, entry=None, strided=False)


def facts_of(function: Any) -> Operator:
    """Return what is known of what a dispatch mode sees: an overload, or an operator that takes functions."""
    if isinstance(function, OpOverload):
        try:
            return describe(function)
        except RuntimeError:  # not in the dispatcher's tables
            pass
    return higher_order(function)


def describe(overload: OpOverload) -> Operator:
    """Return what is known of ``overload``."""
    schema = overload._schema  # noqa: SLF001 - has no public name
    name = _name(schema)
    arguments = tuple(
        Argument(a.name, a.default_value, a.alias_info is not None and a.alias_info.is_write) for a in schema.arguments
    )
    mutates = any(a.written for a in arguments)
    tensors = any("Tensor" in str(v.type) for v in (*schema.arguments, *schema.returns))
    view = not mutates and any(r.alias_info is not None for r in schema.returns)
    entry = find(name) or _of_functional(overload)
    composite = _has(schema, "CompositeImplicitAutograd") and schema.name not in _NOT_COMPOSITE
    return Operator(
        overload=overload,
        name=name,
        arguments=arguments,
        entry=entry,
        silent=schema.name in _NO_KERNEL or not tensors or view or schema.name.startswith("prim::"),
        composite=composite,
        explicit=entry is None and not composite and _has(schema, "CompositeExplicitAutograd"),
        returns_given=mutates and any(r.alias_info is not None for r in schema.returns),
        view=view and not composite and overload.is_view and schema.name.startswith("aten::") and name != LIFT,
    )


def _of_functional(overload: OpOverload) -> Entry | None:
    """Return for an ``out=`` overload the model of the overload with the same arguments that returns a new tensor."""
    schema = overload._schema  # noqa: SLF001
    inputs = [a.name for a in schema.arguments if not a.is_out]
    if len(inputs) == len(schema.arguments):
        return None
    packet = overload.overloadpacket
    for sibling in packet.overloads():
        other = getattr(packet, sibling)._schema  # noqa: SLF001
        if [a.name for a in other.arguments] == inputs:
            return find(_name(other))
    return None


def _name(schema: Any) -> str:
    return str(schema.name) + (f".{schema.overload_name}" if schema.overload_name else "")


def higher_order(operator: Any) -> Operator:
    """Return an operator without a schema, which takes functions (`torch.cond`, flex attention): seen as one piece."""
    arguments = (Argument("args", None, written=False), Argument("kwargs", None, written=False))
    return _Pieces(
        operator, f"higher_order::{operator.name()}", arguments, None, silent=False, composite=False, explicit=False
    )


class _Pieces(Operator):
    """All tensors anywhere in its arguments, as two lists."""

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return [[v for v in tree_leaves(a) if isinstance(v, torch.Tensor)] for a in (args, kwargs)]


def _has(schema: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(_name(schema), key))  # noqa: SLF001 - has no public name
