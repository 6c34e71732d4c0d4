"""Multi-tensor kernels: foreach operators and fused optimisers.

Source: PyTorch's MultiTensorApply.cuh and the Foreach*.cu, fused_adam_*.cu files (from memory, not checked against a
version). A thread block of 512 threads takes a chunk of 65,536 elements of one tensor; a launch holds at most 320
chunks, and, since the tensor addresses travel as kernel arguments, at most 110, 64, 48, 36 or 30 tensors for 1 to 5
lists. Tensors walk in memory order. Lists whose layouts differ from tensor to tensor take ATen's slow path: an ordinary
launch a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations.aten_overloads import overloads
from tileprof.record.model.tiles.foundations.regions import coalesce, permute
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    memory_order,
    ranges,
    rate_of,
    scratch,
)  # fmt: skip
from tileprof.record.model.tiles.reductions.reduce import reduce_all

CHUNK = 65_536
"""Elements of a block (``kChunkSize``)."""
THREADS = 512
MAX_BLOCKS = 320
MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""``depth_to_max_tensors``: kernel arguments end at 4 KB."""
MAX_WITH_SCALARS = 96
"""``depth_to_max_tensors_scalarlist`` of one list, each tensor of which has a number of its own."""


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor's worth of work: tensors read and written element by element, and small ones read whole."""

    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    whole: tuple[Operand, ...] = field(default=())

    @property
    def walked(self) -> tuple[Operand, ...]:
        return self.reads + self.writes


def multi_tensor(
    name: str, items: Sequence[Item], flops_each: float, depth: int, *, scalars: bool = False
) -> list[Kernel]:
    """Launches for all items, packed as ``multi_tensor_apply`` packs them; ``scalars``: each has its own number."""
    items = [i for i in items if i.walked[0].numel]
    if not all(_walks_alike(i.walked) for i in items):
        return [k for i in items for k in elementwise(name, [*i.reads, *i.whole], i.writes, flops_each=flops_each)]
    most = min(MAX_TENSORS[min(depth, 5)], MAX_WITH_SCALARS if scalars else MAX_TENSORS[1])
    return [_launch(name, group, flops_each) for group in _launch_groups(items, most)]


def _launch(name: str, group: Sequence[tuple[Item, int, int]], flops_each: float) -> Kernel:
    sketch = Sketch(sum(last - first for _, first, last in group))
    at = elements = 0
    for item, first, last in group:
        total = item.walked[0].numel
        _, lo, hi = ranges(total, CHUNK)
        lo, hi, tile = lo[first:last], hi[first:last], at + np.arange(last - first)
        at, elements = at + last - first, elements + int((hi - lo).sum())
        order = memory_order([item.walked[0]])
        for operands, mode in ((item.reads, READ), (item.writes, WRITE)):
            for operand in operands:
                sketch.span(operand, mode, tile, Span(order, lo, hi))
        for operand in item.whole:
            sketch.whole(operand, READ, tile)
    rate = rate_of(*group[0][0].walked)
    return sketch.kernel(f"multi_tensor<{name}>", threads=THREADS, flops=flops_each * elements, rate=rate)


def _launch_groups(items: Sequence[Item], most_tensors: int) -> Iterator[list[tuple[Item, int, int]]]:
    """Groups of (item, first chunk, last chunk): a launch ends when it is full of tensors or of chunks."""
    group: list[tuple[Item, int, int]] = []
    room = MAX_BLOCKS
    for item in items:
        first, end = 0, blocks(item.walked[0].numel, CHUNK)
        while first < end:
            last = min(end, first + room)
            group.append((item, first, last))
            room -= last - first
            if room == 0 or (last == end and len(group) == most_tensors):
                yield group
                group, room = [], MAX_BLOCKS
            first = last
    if group:
        yield group


def _walks_alike(operands: Sequence[Operand]) -> bool:
    """Dense and of equal strides, so that one range is the same elements in all of them."""
    order = memory_order(operands[:1])
    flat = [coalesce(permute(o, order)) for o in operands]
    return all(len(f.shape) == 1 and f.shape == flat[0].shape and (f.strides[0] == 1 or f.shape[0] == 1) for f in flat)


_KEEP_OLD = {"_foreach_zero_", "_foreach_copy_", "_foreach_clone"}
"""Foreach operators that do not read what they overwrite."""

_FLOPS = {
    "addcmul": 3,
    "addcdiv": 6,
    "lerp": 3,
    "sqrt": 4,
    "div": 4,
    "reciprocal": 4,
    "exp": 8,
    "pow": 16,
    "copy": 0,
    "zero": 0,
}


def foreach(call: Call, _device: Device) -> list[Kernel]:
    """An element-wise operator over lists of tensors."""
    name = short(call.op)
    lists = {
        n: v
        for n, v in call.arguments.items()
        if isinstance(v, list | tuple) and any(isinstance(x, Operand) for x in v)
    }
    singles = tuple(v for v in call.arguments.values() if isinstance(v, Operand))
    targets = list(call.arguments["self"]) if name.endswith("_") else list(call.outputs)
    items = []
    for i, target in enumerate(targets):
        reads = tuple(v[i] for n, v in lists.items() if i < len(v) and not (n == "self" and name in _KEEP_OLD))
        small = tuple(r for r in reads if r.numel == 1 and target.numel != 1)
        items.append(Item(tuple(r for r in reads if r not in small), (target,), singles + small))
    base = name.removeprefix("_foreach_").rstrip("_")
    scalars = call.op.endswith(".ScalarList")
    return multi_tensor(name, items, _FLOPS.get(base, 1), len(lists) + (not name.endswith("_")), scalars=scalars)


@models("aten::_foreach_norm", "aten::_foreach_max")
def foreach_reduce(call: Call, device: Device) -> list[Kernel]:
    """One number per tensor: each chunk's part into a workspace, then one block per tensor adds its parts up."""
    name, tensors = short(call.op), call["self"]
    if not all(_walks_alike([t]) for t in tensors):
        return [k for t, o in zip(tensors, call.outputs, strict=True) for k in reduce_all(name, t, o, device)]
    width = max((blocks(t.numel, CHUNK) for t in tensors), default=0)
    if width == 0:
        return []
    parts = scratch(0, len(tensors), width)
    row = {t.ref: i for i, t in enumerate(tensors)}
    kernels = []
    for group in _launch_groups([Item((t,), ()) for t in tensors if t.numel], MAX_TENSORS[1]):
        sketch = Sketch(sum(last - first for _, first, last in group))
        at = 0
        for item, first, last in group:
            _, lo, hi = ranges(item.walked[0].numel, CHUNK)
            tile = at + np.arange(last - first)
            at += last - first
            sketch.span(item.reads[0], READ, tile, Span(memory_order(item.reads), lo[first:last], hi[first:last]))
            own = np.full(len(tile), row[item.reads[0].ref]) * width + np.arange(first, last)
            sketch.span(parts, WRITE, tile, Span((0, 1), own, own + 1))
        flops = 2 * sum(item.reads[0].numel for item, _, _ in group)
        kernels.append(sketch.kernel(f"multi_tensor<{name}>", threads=THREADS, flops=flops, rate=rate_of(*tensors)))
    cleanup = Sketch(len(tensors))
    tile = np.arange(len(tensors))
    chunks = np.array([blocks(t.numel, CHUNK) for t in tensors])
    cleanup.span(parts, READ, tile, Span((0, 1), tile * width, tile * width + chunks))
    for i, out in enumerate(call.outputs):
        cleanup.whole(out, WRITE, [i])
    kernels.append(cleanup.kernel(f"cleanup<{name}>", threads=THREADS, flops=int(chunks.sum())))
    return kernels


_FUSED = {
    "_fused_adam_": (("self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"), 18),
    "_fused_adamw_": (("self", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"), 18),
    "_fused_sgd_": (("self", "momentum_buffer_list"), 5),
    "_fused_adagrad_": (("self", "state_sums"), 9),
}
"""Tensor lists that the operator reads and writes, and operations per element."""


@models(*(f"aten::{name}" for name in _FUSED), any_number=True)
def fused_step(call: Call, _device: Device) -> list[Kernel]:
    """An optimiser's whole step. Gradients are read, and rescaled in place where a gradient scaler asks for it."""
    name = short(call.op)
    states, flops = _FUSED[name]
    lists = [list(call.arguments.get(n) or []) for n in states]
    lists = [v for v in lists if v]
    scale = call.arguments.get("grad_scale")
    common = tuple(
        o for o in (scale, call.arguments.get("found_inf"), call.arguments.get("lr")) if isinstance(o, Operand)
    )
    steps = list(call.arguments.get("state_steps") or [])
    items = []
    for i, gradient in enumerate(call["grads"]):
        own = tuple(v[i] for v in lists)
        writes = (*own, gradient) if scale is not None else own
        items.append(Item((*own, gradient), writes, (*common, *steps[i : i + 1])))
    return multi_tensor(name, items, flops, len(lists) + 1)


@models("aten::_amp_foreach_non_finite_check_and_unscale_")
def unscale(call: Call, _device: Device) -> list[Kernel]:
    """Gradients divided by the scale; a block that meets a value that is not finite raises the flag."""
    items = [Item((g,), (g,), (call["inv_scale"],)) for g in call["self"]]
    kernels = multi_tensor("unscale", items, 2, 1)
    for kernel in kernels:
        _raise_flag(kernel, call["found_inf"])
    return kernels


def _raise_flag(kernel: Kernel, flag: Operand) -> None:
    extra = Sketch(*kernel.grid)
    extra.whole(flag, ATOMIC)
    boxes = extra.kernel("", threads=1).footprint.boxes
    boxes.operand = boxes.operand + np.int32(len(kernel.operands))
    kernel.footprint.boxes = type(boxes).concat([kernel.footprint.boxes, boxes])
    kernel.operands = (*kernel.operands, flag)


_REDUCING = {"_foreach_norm", "_foreach_max", "_foreach_powsum"}
_LISTS = [f"aten::{name}" for name in overloads() if name.startswith("_foreach_") and name not in _REDUCING]
models(*_LISTS, any_number=True)(foreach)
