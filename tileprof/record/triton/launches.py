"""Launches of the user's own Triton kernels, from what the interpreter did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.record.model.call import Kernel, Operand
from tileprof.record.triton.interpreter import Watch, after_import, watching
from tileprof.record.triton.programs import Span
from tileprof.trace.footprint import Boxes, Footprint

if TYPE_CHECKING:
    from types import ModuleType

    import torch

_DEFAULT_WARPS = 4
"""Triton's own default, https://triton-lang.org/main/python-api/generated/triton.Config.html."""

_NOTE = "seen in Triton's interpreter: addresses exact, order of accesses stands for time, registers and shared memory unknown"

Sink = Callable[[Kernel, "list[torch.Tensor]"], None]


def install(sink: Sink, active: Callable[[], bool], outside: Callable[[], Any]) -> None:
    """From now on, hand each launch of an interpreted Triton kernel to ``sink``, after it has run.

    ``active()`` says whether launches are wanted now; ``outside()`` is a context manager under which the interpreter's own
    tensor operations are not the program's.
    """

    def patch(module: ModuleType) -> None:
        executor: Any = module.GridExecutor
        original = executor.__call__

        def run(self: Any, *arguments: Any, **named: Any) -> Any:
            if not active():
                return original(self, *arguments, **named)
            with outside(), watching(module.interpreter_builder) as watch:
                result = original(self, *arguments, **named)
            tensors = _tensors([*arguments, *named.values()])
            sink(_kernel(self.fn.__name__, watch, tensors, named), tensors)
            return result

        executor.__call__ = run

    after_import(patch)


def _tensors(values: list[Any]) -> list[torch.Tensor]:
    """Every tensor among arguments, through tuples, descriptors and dtype wrappers; empty ones left out."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, tuple | list):
            found += _tensors(list(value))
        elif hasattr(value, "untyped_storage"):
            if value.numel():
                found.append(value)
        elif hasattr(value, "base"):
            found += _tensors([value.base])
    return found


def _kernel(name: str, watch: Watch, tensors: list[torch.Tensor], named: dict[str, Any]) -> Kernel:
    """Programs in hardware order (x fastest); the interpreter runs x outermost."""
    at = np.array(watch.at, np.int32).reshape(-1, 3)
    order = np.lexsort((at[:, 0], at[:, 1], at[:, 2]))
    spans, slots = _spans(tensors)
    boxes = Boxes.concat(watch.programs[row].boxes(tile, spans) for tile, row in enumerate(order.tolist()))
    flops = np.array([watch.programs[row].flops for row in order.tolist()], np.float64)
    return Kernel(
        name=name,
        footprint=Footprint(at[order], boxes),
        operands=tuple(_operand(tensors[ref], ref) for ref in slots),
        grid=watch.grid,
        block=(32 * int(named.get("num_warps") or _DEFAULT_WARPS), 1, 1),
        flops=int(flops.sum()),
        rate=_rate(tensors),
        tile_flops=flops if flops.any() else None,
        note=_NOTE,
    )


def _spans(tensors: list[torch.Tensor]) -> tuple[list[Span], list[int]]:
    """One span a storage, bound through the first tensor in it; ``slots[operand]`` is that tensor's place."""
    spans: list[Span] = []
    slots: list[int] = []
    known: set[int] = set()
    for place, tensor in enumerate(tensors):
        storage = tensor.untyped_storage()
        low = storage.data_ptr()
        if low not in known:
            known.add(low)
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
    """The rate of the dot products: that of the narrowest floating point argument."""
    names = {"float16": "fp16", "bfloat16": "bf16", "float32": "tf32", "float64": "fp64"}
    kinds = [(t.element_size(), str(t.dtype).removeprefix("torch.")) for t in tensors if t.is_floating_point()]
    return names.get(min(kinds)[1], "fp8") if kinds else "fp32"
