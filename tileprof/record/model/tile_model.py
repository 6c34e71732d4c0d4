"""The interface between the recorder and its tile models: an operator call goes in, kernels come out.

A tile model is a pure function ``model(call, device) -> list[Kernel]``. It sees tensors as `Operand` (layout
only), never as memory, so that calls of equal layout share one result: repeated layers are modelled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tileprof.trace.footprint import Footprint
from tileprof.trace.sources import ShapeSource, TimeSource

if TYPE_CHECKING:
    import torch

    from tileprof.devices import Device


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a kernel sees it: a view, relative to its own first element.

    Shapes and strides in elements (strides may be 0, negative never); ``ref`` is its place in
    ``Call.tensors``; ``alignment`` is the largest power of two up to 16 that divides its address, in bytes.
    Two operands with equal layout and different ``ref`` are equal for caching: ``ref`` counts by position only.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    alignment: int = 16
    ref: int = 0

    @property
    def numel(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Scratch:
    """Workspace of ``bytes``; kernels of one call share it by ``slot``. It lives for the call only, or it is the
    ``library``'s own, which all calls use from its first byte on.
    """

    slot: int
    bytes: int
    library: str = ""


PINNED = "pinned host memory"
"""The workspace to which a number is copied for the host: PyTorch keeps it and gives it to the next copy of a number of
that size (`pinned`).
"""


def pinned(size: int) -> str:
    """Return the name of the workspace for numbers of so many bytes."""
    return f"{PINNED} for {size} bytes"


@dataclass(slots=True)
class Call:
    """One ATen call. ``arguments`` maps every schema argument name to its value (defaults filled in), with
    each tensor replaced by its `Operand` and lists of tensors by lists; ``outputs`` are the returned tensors.
    In-place and out= calls return operands of their own that are bound to the same memory.
    """

    op: str
    """Schema name with overload, e.g. ``aten::add.Tensor`` (``aten::addmm`` for the default overload)."""
    arguments: dict[str, Any]
    outputs: tuple[Operand, ...]
    tensors: tuple[Operand, ...]
    """Every tensor of arguments, then outputs, in schema order; ``tensors[o.ref] is o``."""
    value: Callable[[Operand], torch.Tensor | None] = field(repr=False, default=lambda _: None)
    """The real tensor, for data-dependent models (indices); None when the program runs on fake tensors.
    Inputs of in-place operators are seen as they were before the call."""
    tf32: bool = False
    """Whether the program lets products of float32 run on tensor cores (``torch.backends.cuda.matmul``)."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


@dataclass(slots=True)
class Kernel:
    """One modelled launch. ``operands[slot]`` says which tensor (or scratch) the footprint's slot is.

    ``flops`` is the whole launch; ``tile_flops`` ``[tiles]`` its share per tile (None: even);
    ``rate`` names the peak the arithmetic runs at, a key of ``Device.peak_flops`` ("fp32", "fp16", "tf32", …).
    Durations are filled in later, from the roofline model, by the recorder.
    """

    name: str
    footprint: Footprint
    operands: tuple[Operand | Scratch, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int] = (128, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    registers: int = 32
    shared_bytes: int = 0
    flops: int = 0
    rate: str = "fp32"
    tile_flops: NDArray[np.float64] | None = None
    coverage: str = "exact"
    note: str = ""
    awaited: frozenset[int] = frozenset()
    """Slots whose reads stand for what a block waits for inside the launch: no bytes move."""
    shape_source: ShapeSource = ShapeSource.RULE
    launch_ns: float = 0.0
    """The duration of the whole launch according to a table; 0 where none has it, and the roofline decides."""
    time_source: TimeSource = TimeSource.ROOFLINE
    chain_ns: float = 0.0
    """For how long each block waits for accesses that follow one another, where that is known: it takes at least that
    long, however few its bytes."""


Model = Callable[[Call, "Device"], list[Kernel]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered model.

    ``data_dependent``: its result depends on values of tensors, those that it asks for. ``any_number``: it is the same
    whatever floating-point numbers the operator is called with, which may change at every step (an optimiser's bias
    corrections).
    """

    model: Model
    data_dependent: bool = False
    any_number: bool = False


REGISTRY: dict[str, Entry] = {}


def models(*ops: str, data_dependent: bool = False, any_number: bool = False) -> Callable[[Model], Model]:
    """Register a tile model for operators, by schema name with or without overload."""

    def register(model: Model) -> Model:
        for op in ops:
            if op in REGISTRY:
                raise ValueError(f"two tile models for {op}")
            REGISTRY[op] = Entry(model, data_dependent, any_number)
        return model

    return register


def find(op: str) -> Entry | None:
    """Return the model of an operator: its own overload first, then any overload."""
    return REGISTRY.get(op) or REGISTRY.get(op.split(".", 1)[0])


def distinct(operands: Iterable[Operand]) -> tuple[Operand, ...]:
    """Return operands in order, each ref once."""
    operands_by_ref: dict[int, Operand] = {}
    for operand in operands:
        operands_by_ref.setdefault(operand.ref, operand)
    return tuple(operands_by_ref.values())
