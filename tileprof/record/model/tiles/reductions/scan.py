"""Scans and selections along a dimension: cumulative sums, sorts, top-k, medians.

Source: PyTorch's ScanUtils.cuh, Sort.cu, TensorTopK.cu; launches of sorts as harvested on an H200 (PyTorch 2.11,
`tileprof.harvest.operators`). Simplified: a selected line belongs to one thread block, whatever its length (ATen cuts
lines beyond some thousand elements into several passes); a scan over a whole tensor is one pass with look-back, in
which a block's result also depends on the blocks before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import contiguous, elementwise, range_kernel, short
from tileprof.record.model.tiles.foundations.lines import inner_size, row_blocks, strips
from tileprof.record.model.tiles.foundations.regions import permute
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    is_contiguous,
    part,
    ranges,
    rate_of,
    scratch,
)
from tileprof.record.model.tiles.indexing.radix_sort import Keys, keys_of, sort_pairs
from tileprof.record.model.tiles.reductions.look_back import LOOK_BACK, look_back

_LOOK_BACK_CHUNK = 2048
"""Elements of a block of CUB's scan; 128 threads, as recorded."""
_CASTING = ("cumsum", "cumprod")
"""Scans that ATen casts the elements of first, if the result has another type."""
_STATE_BYTES, _PADDING = 16, 32
"""Bytes of a block's state, and states before the first: a warp looks back."""
_COMPARISONS = 12
"""Operations per element of a sort or selection, a rough figure for lines of some thousand elements."""


@models(
    "aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::cumprod_", "aten::cummax", "aten::cummin",
    "aten::_cummax_helper", "aten::_cummin_helper", "aten::logcumsumexp", "aten::_logcumsumexp", "aten::_cumsum",
    "aten::_cumprod",
)  # fmt: skip
def scan(call: Call, _device: Device) -> list[Kernel]:
    """A running reduction: 16 to 512 threads per line of the innermost dimension, else one, 512 per block."""
    source, name = call["self"], short(call.op)
    writes = [o for o in (*call.outputs, call.arguments.get("values"), call.arguments.get("indices")) if o is not None]
    if source.numel == 0:
        return []
    if not source.shape:
        return elementwise(name, [source], writes)
    dim = call["dim"] % len(source.shape)
    size, inner = source.shape[dim], inner_size(source, dim)
    fields: dict[str, Any] = {"flops": source.numel, "rate": rate_of(source)}
    if size == source.numel and is_contiguous(source):
        return _look_back(name, source, writes)
    copies, source = _as_results(source, writes[0]) if name.startswith(_CASTING) else contiguous(source)
    if inner == 1:
        per_block = _lines(source.numel // size, size)
        threads = (512 // per_block, per_block, 1)
        return [*copies, row_blocks(f"scan_innermost<{name}>", [source], writes, dim, per_block, threads, **fields)]
    width = min(512, inner)
    return [*copies, strips(f"scan_outer<{name}>", [source], writes, dim, width, width, **fields)]


def _as_results(source: Operand, result: Operand) -> tuple[list[Kernel], Operand]:
    """Return dense elements of the result's type, and the launch that makes them (``impl_func_cum_ops``)."""
    if source.dtype == result.dtype:
        return contiguous(source)
    cast = replace(scratch(1, *source.shape, itemsize=result.itemsize), dtype=result.dtype)
    return elementwise("copy_", [source], [cast], flops_each=0), cast


def _look_back(name: str, source: Operand, writes: list[Operand]) -> list[Kernel]:
    """A whole tensor in CUB's one pass, as recorded: cast first where types differ, prepare the blocks' states,
    scan.
    """
    kernels = []
    if source.dtype != writes[0].dtype:
        numbers = replace(writes[0], shape=source.shape, strides=source.strides)
        cast = scratch(1, source.numel, itemsize=writes[0].itemsize)
        flat = replace(source, shape=(source.numel,), strides=(1,))
        kernels += elementwise("copy_", [flat], [replace(cast, dtype=numbers.dtype)], flops_each=0)
        source = replace(cast, dtype=numbers.dtype, shape=source.shape, strides=source.strides)
    count = blocks(source.numel, _LOOK_BACK_CHUNK)
    states = scratch(0, count + _PADDING, itemsize=_STATE_BYTES)
    prepare = Sketch(blocks(count, 128))
    tile, low, high = ranges(count + _PADDING, 128, prepare.tiles)
    prepare.span(states, WRITE, tile, Span((0,), low, high))
    main = Sketch(count)
    tile, low, high = ranges(source.numel, _LOOK_BACK_CHUNK)
    every = tuple(range(len(source.shape)))
    for operand, mode in ((source, READ), *((o, WRITE) for o in writes)):
        main.span(operand, mode, tile, Span(every, low, high))
    if count > 1:
        main.whole(states, ATOMIC)
        look_back(main, [source], tile, low)
    fields: dict[str, Any] = {"flops": source.numel, "rate": rate_of(source), "note": LOOK_BACK if count > 1 else ""}
    return [
        *kernels, prepare.kernel("scan_init", threads=128), main.kernel(f"scan<{name}>", threads=128, **fields)
    ]  # fmt: skip


@models("aten::sort", "aten::argsort", "aten::msort", data_dependent=True)
def sort(call: Call, device: Device) -> list[Kernel]:
    """The input copied, numbers along the lines, the input copied again, then a block per line that sorts in place.

    Lines of more than 4096 elements: a radix sort of all lines at once, and one that puts the lines back in order.
    """
    source, name = call["self"], short(call.op)
    if source.numel == 0:
        return []
    if not source.shape:
        return elementwise(name, [source], list(call.outputs))
    rank = len(source.shape)
    dim = (0 if call.arguments.get("dim") is None else call.arguments.get("dim", -1)) % rank
    outputs = list(call.outputs)
    places = next((o for o in outputs if o.dtype == "int64" and (o is not outputs[0] or name == "argsort")), None)
    values = outputs[0] if name != "argsort" else None
    if values is None:
        values = replace(scratch(0, *source.shape, itemsize=source.itemsize), dtype=source.dtype)
    if places is None or (values is places):
        places = replace(scratch(1, *source.shape, itemsize=8), dtype="int64")
    size = source.shape[dim]
    kernels = elementwise("copy_", [source], [values], flops_each=0)
    if size > _LONGEST_SORTED:
        keys = _keys(call, source) if source.numel == size else None
        return [*kernels, *_sorted_at_once(source, values, places, dim, device, keys)]
    along = replace(scratch(2, size, itemsize=8), dtype="int64")
    kernels.append(range_kernel("arange", along))
    steps = tuple(1 if d == dim else 0 for d in range(rank))
    numbers = part(along, source.shape, steps)
    kernels += elementwise("copy_", [numbers], [places], flops_each=0)
    kernels += elementwise("copy_", [source], [values], flops_each=0)
    if size == 1:
        return kernels
    both = [values, places]
    if size <= _BITONIC:
        lines = source.numel // size
        per_block = blocks(lines, _BITONIC_BLOCKS) if lines > _BITONIC_BLOCKS else 1
        threads: tuple[int, int, int] = (16, per_block, 1)
        kind = "bitonic_sort"
    else:
        per_block, kind = 1, "radix_sort_lines"
        threads = (max(32, (1 << (size - 1).bit_length()) // 32), 1, 1)
    flops = _COMPARISONS * source.numel
    return [*kernels, row_blocks(f"{kind}<{name}>", both, both, dim, per_block, threads, flops=flops)]


_LONGEST_SORTED, _BITONIC, _BITONIC_BLOCKS = 4096, 32, 1024
"""Elements of a line that a block sorts, and sorts by comparisons; blocks before each takes several lines."""


def _keys(call: Call, source: Operand) -> Keys | None:
    """Return what is sorted, as the sort compares it; None where the program runs on fake tensors."""
    tensor = call.value(source)
    if tensor is None:
        return None
    if tensor.is_floating_point() and source.itemsize == 2:  # NumPy has no bfloat16
        tensor = tensor.contiguous().view(torch.int16)
    floating = source.dtype in {"float16", "bfloat16"}
    descending = bool(call.arguments.get("descending"))
    return keys_of(tensor.detach().cpu().numpy(), descending=descending, floating=floating)


def _sorted_at_once(
    source: Operand, values: Operand, places: Operand, dim: int, device: Device, known: Keys | None
) -> list[Kernel]:
    """Return the sorts of all lines; ``known``: the keys of a single one."""
    order = (*(d for d in range(len(source.shape)) if d != dim), dim)
    lines = source.numel // source.shape[dim]
    keys, target, out = (permute(o, order) for o in (source, values, places))
    numbers = scratch(2, source.numel, itemsize=8)
    fill = Sketch(blocks(source.numel, 1024))
    tile, lo, hi = ranges(source.numel, 1024)
    fill.span(numbers, WRITE, tile, Span((0,), lo, hi))
    kernels = [fill.kernel("sort_numbers", threads=1024)]
    kernels += sort_pairs(keys, numbers, target, out, device, bits=8 * source.itemsize, known=known)
    if lines > 1:
        again = scratch(3, source.numel, itemsize=4)
        kernels += sort_pairs(again, out, again, out, device, bits=(lines - 1).bit_length())
        last = Sketch(blocks(source.numel, 512))
        last.whole(keys, READ)
        for operand in (target, out):
            last.whole(operand, ATOMIC)
        kernels.append(last.kernel("sort_postprocess", threads=512, coverage="conservative", note="lines are put back"))
    return kernels


@models(
    "aten::topk", "aten::kthvalue", "aten::mode", "aten::median.dim", "aten::median.dim_values", "aten::nanmedian.dim",
)  # fmt: skip
def select(call: Call, _device: Device) -> list[Kernel]:
    """Values and places from a line of their dimension; one block per line. What top-k selects is sorted by another
    launch.
    """
    source, name = call["self"], short(call.op)
    if source.numel == 0 or call.outputs[0].numel == 0:
        return []
    if not source.shape:
        return elementwise(name, [source], list(call.outputs))
    dimension = call.arguments.get("dim", -1 if name == "topk" else 0)
    dim = (-1 if dimension is None else dimension) % len(source.shape)
    writes = [_with_dimension(o, dim, len(source.shape)) for o in call.outputs]
    threads = min(1024, max(32, 1 << (source.shape[dim] - 1).bit_length()))
    fields: dict[str, Any] = {
        "flops": _COMPARISONS * source.numel,
        "rate": rate_of(source),
        "shared_bytes": 16 * threads,
    }
    kernels = [row_blocks(f"lines<{name}>", [source], writes, dim, 1, threads, **fields)]
    if name == "topk" and call.arguments.get("sorted", True) and writes[0].numel > 1:
        kernels.append(
            row_blocks("lines<sort_in_place>", writes, writes, dim, 1, 32, flops=_COMPARISONS * writes[0].numel)
        )
    return kernels


def _lines(rows: int, size: int) -> int:
    """Return lines per block of 512 threads (``get_log_num_threads_x_inner_scan``): long lines get more
    threads each.
    """
    log = max(4, min(9, (9 + (size - 1).bit_length() - (rows - 1).bit_length()) // 2))
    return 1 << (9 - log)


def _with_dimension(operand: Operand, dim: int, rank: int) -> Operand:
    """A result that has lost ``dim`` gets it back with size 1."""
    if len(operand.shape) == rank:
        return operand
    shape = (*operand.shape[:dim], 1, *operand.shape[dim:])
    strides = (*operand.strides[:dim], 0, *operand.strides[dim:])
    return Operand(shape, strides, operand.dtype, operand.itemsize, operand.alignment, operand.ref)


@models("aten::multinomial")
def multinomial(call: Call, _device: Device) -> list[Kernel]:
    """Samples of a row of weights; one block per row."""
    source, out = call["self"], call.outputs[0]
    if out.numel == 0:
        return []
    fields: dict[str, Any] = {"flops": 30 * source.numel, "rate": rate_of(source), "shared_bytes": 4096}
    return [row_blocks("lines<multinomial>", [source], [out], len(source.shape) - 1, 1, 256, **fields)]


@models("aten::searchsorted", "aten::bucketize")
def search(call: Call, _device: Device) -> list[Kernel]:
    """One thread per value, searching all boundaries: they are read whole, a superset of the search path."""
    values = call["self"]
    boundaries = call.arguments.get("boundaries", call.arguments.get("sorted_sequence"))
    return _against_all(short(call.op), values, boundaries, call.outputs[0])


@models("aten::isin")
def is_in(call: Call, _device: Device) -> list[Kernel]:
    """Every element against all test elements."""
    elements, tests = (call.arguments.get(n) for n in ("elements", "test_elements"))
    if not isinstance(elements, Operand):
        elements = call["element"]
    return _against_all("isin", elements, tests, call.outputs[0])


def _against_all(name: str, values: object, everything: object, out: Operand) -> list[Kernel]:
    reads = [values] if isinstance(values, Operand) else []
    whole = [everything] if isinstance(everything, Operand) and everything.numel else []
    kernels = elementwise(name, reads, [out], whole=whole)
    if name != "isin":
        for kernel in kernels:
            kernel.coverage, kernel.note = "conservative", "every tile reads all boundaries"
    return kernels
