"""Launches of the user's own Triton kernels, from what the interpreter did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import grids
from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.triton.addresses import AddressRun, DependsOnValues, Pointer, named_arguments
from tileprof.record.triton.interpreter import Watch, after_import, watching
from tileprof.record.triton.programs import Span
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_DEFAULT_WARPS = 4
"""Triton's own default, https://triton-lang.org/main/python-api/generated/triton.Config.html."""

_NOTE = (
    "seen in Triton's interpreter: addresses exact, order of accesses stands for time, registers and shared memory "
    "unknown"
)

Sink = Callable[[Kernel, "list[torch.Tensor]"], None]

_ADDRESS_SPACE, _GAP = 1 << 40, 1 << 21
"""The first address of stand-ins for fake tensors, and the least distance between them."""


def install(sink: Sink, active: Callable[[], bool], outside: Callable[[], Any], *, fake: bool = False) -> None:
    """Hand from now on each launch of an interpreted Triton kernel to ``sink``, after it has run.

    ``active()`` says whether launches are wanted now; ``outside()`` is a context manager under which the interpreter's
    own tensor operations are not the program's. ``fake``: tensors have no values; kernels run on addresses alone.
    """

    def patch(module: ModuleType) -> None:
        executor: Any = module.GridExecutor
        original = executor.__call__

        def run(self: Any, *arguments: Any, **options: Any) -> Any:
            if not active():
                return original(self, *arguments, **options)
            tensors = _tensors([*arguments, *options.values()])
            result = None
            if fake:
                with outside():
                    kernel = _from_addresses(module, self, arguments, options, tensors)
            else:
                with outside(), watching(module.interpreter_builder) as watch:
                    result = original(self, *arguments, **options)
                kernel = _from_watch(self.fn.__name__, watch, tensors, options)
            sink(kernel, tensors)
            return result

        executor.__call__ = run

    after_import(patch)


def _from_addresses(
    module: Any, executor: Any, arguments: tuple[Any, ...], options: dict[str, Any], tensors: list[torch.Tensor]
) -> Kernel:
    spans, slots, addresses = _stand_ins(tensors)
    own = named_arguments(executor, arguments, options)
    run = AddressRun(module, executor, {name: _as_pointers(value, addresses) for name, value in own.items()})
    name = executor.fn.__name__
    try:
        places, boxes, flops = run.boxes(spans)
    except DependsOnValues:
        return _whole(name, run.grid, tensors, spans, slots, options)
    at = np.array(places, np.int32)
    return _kernel(
        name, run.grid, Footprint(at, Boxes.concat(boxes)), np.array(flops, np.float64), tensors, slots, options
    )


def _whole(
    name: str,
    grid: tuple[int, int, int],
    tensors: list[torch.Tensor],
    spans: list[Span],
    slots: list[int],
    options: dict[str, Any],
) -> Kernel:
    """Return a kernel whose addresses depend on values that are not there: every program touches every
    argument whole.
    """
    tiles = grids.size(grid)
    number = np.arange(tiles)
    at = grids.places(grid).astype(np.int32)
    parts = [
        Boxes.of(tile=number, operand=s.operand, mode=mode, offset=s.low - s.origin, length=s.high - s.low)
        for s in spans
        for mode in (READ, WRITE)
    ]
    kernel = _kernel(name, grid, Footprint(at, Boxes.concat(parts)), np.zeros(tiles), tensors, slots, options)
    kernel.coverage = "conservative"
    kernel.note = "addresses depend on values, and fake tensors have none: every program takes every argument whole"
    return kernel


def _stand_ins(tensors: list[torch.Tensor]) -> tuple[list[Span], list[int], dict[int, int]]:
    """Return spans and slots as `_spans`, at made-up addresses; and the address of each tensor by its id."""
    spans: list[Span] = []
    slots: list[int] = []
    lows: dict[int, int] = {}
    addresses: dict[int, int] = {}
    free = _ADDRESS_SPACE
    for place, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        low = lows.get(storage._cdata)  # noqa: SLF001 (a storage's identity)
        address = (free if low is None else low) + tensor.storage_offset() * tensor.element_size()
        if low is None:
            lows[storage._cdata] = free  # noqa: SLF001
            spans.append(Span(free, free + storage.nbytes(), address, len(slots)))
            slots.append(place)
            free += -(-(storage.nbytes() + _GAP) // _GAP) * _GAP
        addresses[id(tensor)] = address
    return spans, slots, addresses


def _as_pointers(value: Any, addresses: dict[int, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_pointers(v, addresses) for v in value)
    if hasattr(value, "untyped_storage"):
        return Pointer(value.dtype, addresses.get(id(value), 0))
    if hasattr(value, "base") and hasattr(value, "block_shape"):
        return replace(value, base=_as_pointers(value.base, addresses))
    return value


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    """Return every tensor among arguments, through tuples, descriptors and dtype wrappers; empty ones left out."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, tuple | list):
            tensors += _tensors(list(value))
        elif hasattr(value, "untyped_storage"):
            if value.numel():
                tensors.append(value)
        elif hasattr(value, "base"):
            tensors += _tensors([value.base])
    return tensors


def _from_watch(name: str, watch: Watch, tensors: list[torch.Tensor], options: dict[str, Any]) -> Kernel:
    """Return the kernel with its programs in hardware order (x fastest); the interpreter runs x outermost."""
    at = np.array(watch.at, np.int32).reshape(-1, 3)
    order = np.lexsort((at[:, 0], at[:, 1], at[:, 2]))
    spans, slots = _spans(tensors)
    boxes = Boxes.concat(watch.programs[row].boxes(tile, spans) for tile, row in enumerate(order.tolist()))
    flops = np.array([watch.programs[row].flops for row in order.tolist()], np.float64)
    return _kernel(name, watch.grid, Footprint(at[order], boxes), flops, tensors, slots, options)


def _kernel(
    name: str,
    grid: tuple[int, int, int],
    footprint: Footprint,
    flops: NDArray[np.float64],
    tensors: list[torch.Tensor],
    slots: list[int],
    options: dict[str, Any],
) -> Kernel:
    return Kernel(
        name=name,
        footprint=footprint,
        operands=tuple(_operand(tensors[ref], ref) for ref in slots),
        grid=grid,
        block=(32 * int(options.get("num_warps") or _DEFAULT_WARPS), 1, 1),
        flops=int(flops.sum()),
        rate=_rate(tensors),
        tile_flops=flops if flops.any() else None,
        note=_NOTE,
    )


def _spans(tensors: list[torch.Tensor]) -> tuple[list[Span], list[int]]:
    """Return one span per storage, bound through the first tensor in it; ``slots[operand]`` is that tensor's place."""
    spans: list[Span] = []
    slots: list[int] = []
    starts: set[int] = set()
    for place, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        low = storage.data_ptr()
        if low not in starts:
            starts.add(low)
            spans.append(Span(low, low + storage.nbytes(), tensor.data_ptr(), len(slots)))
            slots.append(place)
    return spans, slots


def _operand(tensor: torch.Tensor, ref: int) -> Operand:
    return Operand(
        shape=tuple(tensor.shape),
        strides=tuple(tensor.stride()),
        dtype=str(tensor.dtype).removeprefix("torch."),
        itemsize=tensor.element_size(),
        ref=ref,
    )


def _rate(tensors: list[torch.Tensor]) -> str:
    """Return the rate of the dot products: that of the narrowest floating point argument."""
    names = {"float16": "fp16", "bfloat16": "bf16", "float32": "tf32", "float64": "fp64"}
    kinds = [(t.element_size(), str(t.dtype).removeprefix("torch.")) for t in tensors if t.is_floating_point()]
    return names.get(min(kinds)[1], "fp8") if kinds else "fp32"
