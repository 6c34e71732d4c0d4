"""Element-wise kernels: whatever ATen computes through TensorIterator, one output element at a time.

Source: PyTorch's aten/src/ATen/native/cuda/CUDALoops.cuh and thread_constants.h. A thread block has 128 threads.

| operands | kernel | elements per thread |
|---|---|---|
| dense, all alike, no cast | vectorized_elementwise | 8 (16 where one byte per element is touched in all) |
| the same, but not aligned for two elements | unrolled_elementwise | 4 |
| dense, all alike, types differ | unrolled_elementwise | 4 |
| a dense copy from float32 to 16 bits, or from either to 8 | vectorized_elementwise | 8: its own kernel (Copy.cu) |
| a range: arange, linspace and the like | elementwise_with_index | 1, in blocks of 64 threads |
| strided or broadcast | elementwise | 2 for outputs of 4 bytes and more, else 4; 4 with a cast |

Blocks take consecutive ranges of the iteration space, whose dimensions TensorIterator sorts by the output's
strides: blocks walk the output as it lies in memory. A dense copy without a change of type is one call of
``cudaMemcpyAsync`` (Copy.cu), a launch of one tile. Not modelled: splitting above 2^31 elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch, models, pinned
from tileprof.record.model.tiles.foundations.aten_overloads import overloads
from tileprof.record.model.tiles.foundations.regions import coalesce, expand, permute
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    is_contiguous,
    memory_order,
    ranges,
    rate_of,
    scratch,
)

THREADS = 128
RANGE_THREADS = 64
"""Recorded on an H200 (PyTorch 2.11): two warps per block, one number per thread."""

_FLOPS = {
    "add": 1, "sub": 1, "mul": 1, "div": 4, "addcmul": 3, "addcdiv": 6, "lerp": 3, "sqrt": 4, "rsqrt": 2,
    "reciprocal": 4,
    "exp": 8, "log": 8, "sin": 12, "cos": 12, "tanh": 12, "erf": 16, "sigmoid": 12, "silu": 13, "gelu": 16, "pow": 16,
    "tanh_backward": 3, "sigmoid_backward": 3, "silu_backward": 18, "gelu_backward": 30, "softplus": 18, "mish": 30,
}  # fmt: skip
"""Rough operations per element: special functions cost what their fp32 instruction sequences issue; others 1, copies
0."""

_OWN_RULES = {"clone", "fill", "masked_fill", "pow", "copy", "zero", "zero_", "bernoulli", "normal", "equal"}
"""Tagged element-wise, but registered by hand: they do not read all their arguments, draw random numbers, or reduce."""

_COPIES = {"copy_", "copy", "clone", "_to_copy", "to", "contiguous", "lift_fresh_copy", "_unsafe_copy", "repeat"}
_MOVES = _COPIES | {"fill", "fill_", "zero_", "zeros", "ones", "full"}

_HALVES = {"float16", "bfloat16"}

_COMPUTE_ANOTHER_TYPE = {"batch_norm_calc_invstd"}
"""Their functor takes one type and returns another: nothing is cast, and they are vectorised."""

_OTHER_POINTWISE = (
    "_prelu_kernel", "_prelu_kernel_backward", "binary_cross_entropy_backward", "celu_backward", "complex",
    "elu_backward",
    "floor_divide", "floor_divide_", "glu_backward_jvp", "hardshrink_backward", "hardsigmoid_backward", "hardswish",
    "hardswish_", "hardswish_backward", "hardtanh_backward", "isclose", "isreal", "leaky_relu_backward",
    "log_sigmoid_backward", "log_sigmoid_forward", "masked_fill_", "mish_backward", "mse_loss_backward",
    "huber_loss_backward", "smooth_l1_loss_backward", "rrelu_with_noise_backward", "softplus_backward",
    "softshrink_backward", "threshold_", "_conj_physical", "logical_not_", "real", "imag", "relu6_", "bucketize_scalar",
    "divide", "divide_", "multiply", "multiply_", "subtract", "subtract_", "greater", "less", "absolute", "negative",
    "__and__", "__or__", "__iand__", "__ior__", "square_", "eq_", "ne_", "lt_", "le_", "gt_", "ge_", "heaviside_",
    "gcd_",
    "lcm_", "copysign_", "logit_", "maximum_", "special_expit", "special_ndtr", "float_power", "hardshrink_",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "fake_quantize_per_tensor_affine_cachemask",
    "polar", "soft_margin_loss_backward", "rsub.Tensor",
    "special_multigammaln", "special_digamma", "alias_copy", "detach_copy",
)  # fmt: skip
"""Element-wise operators without `torch.Tag.pointwise`."""

_PINNED = 26
"""Scratch slot of a number on the host."""
_NUMBER_BYTES = 8
"""Of a number of Python's as a tensor."""

_OUTPUT_NAMES = frozenset({"out", "out0", "out1", "grad_input"})


def elementwise(
    name: str,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    *,
    flops_each: float | None = None,
    threads: int = THREADS,
    each: int | None = None,
    whole: Sequence[Operand] = (),
    **fields: Any,
) -> list[Kernel]:
    """Model one element-wise launch: ``writes[i] = f(reads broadcast to the output)``; none for no elements.

    Operands in ``writes`` have the same shape, ``reads`` broadcast to it. ``each`` overrides the elements per thread;
    ``whole`` operands are read whole by every tile.
    """
    shape = writes[0].shape
    total = writes[0].numel
    if total == 0:
        return []
    order = memory_order(list(writes) + [expand(r, shape) for r in reads])
    walked = [
        (mode, permute(expand(o, shape), order)) for mode, group in ((READ, reads), (WRITE, writes)) for o in group
    ]
    if name in _COPIES and len(reads) == len(writes) == 1 and _dense_alike([o for _, o in walked]):
        return [driver_copy(reads[0], writes[0])]
    kind, per_thread = _kernel_kind(name, reads, writes, [o for _, o in walked])
    per_thread = per_thread if each is None else each
    sketch = Sketch(blocks(total, threads * per_thread))
    tile, lo, hi = ranges(total, threads * per_thread)
    span = Span(tuple(range(len(shape))), lo, hi)
    for mode, operand in walked:
        sketch.span(operand, mode, tile, span)
    for operand in whole:
        sketch.whole(operand, READ)
    if flops_each is None:
        flops_each = _FLOPS.get(name.rstrip("_"), 0 if name in _MOVES else 1)
    rate = rate_of(*reads, *writes)
    fields.setdefault("loads_first", True)  # unrolled: every load of a thread is issued before its first store
    return [sketch.kernel(f"{kind}<{name}>", threads=threads, flops=flops_each * total, rate=rate, **fields)]


def driver_copy(source: Operand, target: Operand, kind: str = "memcpy<device to device>") -> Kernel:
    """Return a copy that the driver makes: one tile."""
    sketch = Sketch(1)
    sketch.whole(source, READ)
    sketch.whole(target, WRITE)
    return sketch.kernel(kind, threads=1)


def copied_in(target: Operand) -> Kernel:
    """Return a copy from the host, whose memory is not the GPU's: one tile."""
    sketch = Sketch(1)
    sketch.whole(target, WRITE)
    return sketch.kernel("memcpy<host to device>", threads=1)


def copied_out(source: Operand) -> Kernel:
    """Return a copy to the host, whose memory is not the GPU's: one tile."""
    sketch = Sketch(1)
    sketch.whole(source, READ)
    return sketch.kernel("memcpy<device to host>", threads=1)


def number_out(source: Operand) -> Kernel:
    """Return the copy of a number for the host, to pinned memory that the next such copy gets again."""
    sketch = Sketch(1)
    sketch.whole(source, READ)
    sketch.whole(scratch(_PINNED, 1, itemsize=source.itemsize), WRITE)
    kernel = sketch.kernel("memcpy<device to host>", threads=1)
    library = pinned(source.itemsize)
    kernel.operands = tuple(
        replace(o, library=library) if isinstance(o, Scratch) and o.slot == _PINNED else o for o in kernel.operands
    )
    return kernel


def memset(operand: Operand) -> Kernel:
    """Return a fill that the driver makes: one tile."""
    sketch = Sketch(1)
    sketch.whole(operand, WRITE)
    return sketch.kernel("memset", threads=1)


def _dense_alike(walked: Sequence[Operand]) -> bool:
    """Return whether operands in the order of the walk lie back to back, element for element, in one type."""
    return len({o.dtype for o in walked}) == 1 and all(_is_dense(coalesce(o)) for o in walked)


def _is_dense(flat: Operand) -> bool:
    return len(flat.shape) == 1 and (flat.strides[0] == 1 or flat.shape[0] == 1)


def _kernel_kind(
    name: str, reads: Sequence[Operand], writes: Sequence[Operand], walked: Sequence[Operand]
) -> tuple[str, int]:
    dense = all(_is_dense(coalesce(o)) for o in walked)
    # A mask beside other types is an argument of the functor, not a cast.
    types = {r.dtype for r in reads if r.dtype != "bool"}
    casts = len(types) > 1 or (len(reads) == 1 and writes[0].dtype not in {reads[0].dtype, "bool"})
    if casts and name in _COPIES and len(reads) == 1:
        casts = not _narrows(reads[0].dtype, writes[0].dtype)
    if dense and (not casts or name in _COMPUTE_ANOTHER_TYPE):
        aligned = all(o.alignment >= min(2 * o.itemsize, 16) for o in walked)
        if aligned:
            return "vectorized_elementwise", 16 if sum(o.itemsize for o in walked) == 1 else 8
    if dense:
        return "unrolled_elementwise", 4
    return "elementwise", 2 if writes[0].itemsize >= 4 and not casts else 4


def _narrows(source: str, target: str) -> bool:
    """Return whether a copy converts as it computes, not as it loads."""
    return (source == "float32" and target in _HALVES) or (
        source in {"float32", *_HALVES} and target.startswith("float8")
    )


def short(op: str) -> str:
    """``add_`` of ``aten::add_.Tensor``."""
    return op.removeprefix("aten::").split(".")[0]


def contiguous(source: Operand, workspace: int = 0) -> tuple[list[Kernel], Operand]:
    """A kernel that takes only dense operands is given a copy of others, in a workspace: the copy's launch, and what is
    read then.
    """
    if is_contiguous(source):
        return [], source
    copied = replace(scratch(workspace, *source.shape, itemsize=source.itemsize), dtype=source.dtype)
    return elementwise("contiguous", [source], [copied], flops_each=0), copied


def inputs_of(call: Call, *, without: frozenset[str] = _OUTPUT_NAMES) -> list[Operand]:
    """Tensor arguments in schema order, lists flattened, output buffers left out."""
    operands: list[Operand] = []
    for name, value in call.arguments.items():
        if name in without:
            continue
        operands += [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Operand)]
    return operands


def pointwise(call: Call, _device: Device) -> list[Kernel]:
    """Any element-wise operator: reads every tensor argument, writes every output."""
    return elementwise(short(call.op), inputs_of(call), call.outputs)


@models(
    "aten::copy_", "aten::_to_copy", "aten::lift_fresh_copy", "aten::clone", "aten::contiguous", "aten::_unsafe_copy"
)
def copy(call: Call, _device: Device) -> list[Kernel]:
    """A copy, with or without a change of type or layout; the destination's old content is not read."""
    source = call["src"] if "src" in call.arguments else call["self"]
    return elementwise(short(call.op), [source], call.outputs[:1], flops_each=0)


@models("aten::pow")
def power(call: Call, device: Device) -> list[Kernel]:
    """Return the kernels of a power: a copy for the first power, a fill for the zeroth. A number as base becomes a
    tensor on the GPU first; powers of one are a fill.
    """
    exponent = call["exponent"]
    if call.op in ("aten::pow.Scalar", "aten::pow.Scalar_out"):
        base, out = call["self"], call.outputs[0]
        if base == 1 or not out.numel:
            return elementwise("fill_", [], [out], flops_each=0)
        number = replace(scratch(0, itemsize=_NUMBER_BYTES), dtype="float64" if isinstance(base, float) else "int64")
        return [
            *elementwise("fill_", [], [number], flops_each=0), *elementwise("pow", [number, exponent], call.outputs[:1])
        ]  # fmt: skip
    if call.op != "aten::pow.Tensor_Scalar" or exponent not in (0, 1):
        return pointwise(call, device)
    reads = [call["self"]] if exponent else []
    return elementwise("copy_" if exponent else "fill_", reads, call.outputs[:1], flops_each=0)


@models("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", any_number=True)
def masked_fill(call: Call, _device: Device) -> list[Kernel]:
    """A copy, then a launch that changes it in place."""
    out = call.outputs[0]
    value = [call["value"]] if isinstance(call["value"], Operand) else []
    kernels = elementwise("clone", [call["self"]], [out], flops_each=0)
    return kernels + elementwise("masked_fill_", [out, call["mask"], *value], [out], flops_each=0)


@models("aten::copy")
def functional_copy(call: Call, _device: Device) -> list[Kernel]:
    """``copy(self, src)``: a new tensor of self's layout filled from src."""
    return elementwise("copy", [call["src"]], call.outputs[:1], flops_each=0)


@models(
    "aten::zero_", "aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::ones", "aten::ones_like",
    "aten::new_ones", "aten::full", "aten::full_like", "aten::new_full", "aten::fill_", "aten::fill",
    "aten::scalar_tensor", "aten::zero", "aten::_efficientzerotensor", "aten::hann_window", "aten::hamming_window",
)  # fmt: skip
def fill(call: Call, _device: Device) -> list[Kernel]:
    """Kernels that only write; a value, start or end that is a tensor is read."""
    numbers = (call.arguments.get(n) for n in ("value", "start", "end"))
    reads = [v for v in numbers if isinstance(v, Operand)]
    return elementwise(short(call.op), reads, call.outputs[:1], flops_each=0)


@models("aten::arange", "aten::range", "aten::linspace", "aten::logspace")
def range_(call: Call, _device: Device) -> list[Kernel]:
    """Model one number per thread, computed from its place."""
    numbers = (call.arguments.get(n) for n in ("start", "end"))
    reads = [v for v in numbers if isinstance(v, Operand)]
    return [range_kernel(short(call.op), call.outputs[0], reads)] if call.outputs[0].numel else []


def range_kernel(name: str, out: Operand, reads: Sequence[Operand] = ()) -> Kernel:
    """Return the launch that numbers the elements of ``out``."""
    (kernel,) = elementwise(name, reads, [out], flops_each=2, threads=RANGE_THREADS, each=1)
    kernel.name = f"elementwise_with_index<{name}>"
    return kernel


@models("aten::eye")
def eye(call: Call, _device: Device) -> list[Kernel]:
    """Zero the matrix, then one launch writes the diagonal."""
    out = call.outputs[0]
    rank = min(out.shape) if out.numel else 0
    diagonal = Operand((rank,), (sum(out.strides),), out.dtype, out.itemsize, out.alignment, out.ref)
    return elementwise("zero_", [], [out]) + elementwise("eye", [], [diagonal], flops_each=0)


@models("aten::glu")
def glu(call: Call, _device: Device) -> list[Kernel]:
    """``a * sigmoid(b)`` of the two halves of a dimension."""
    return _of_halves("glu", (call.outputs[0], WRITE), [(halves(call["self"], call["dim"]), READ)])


@models("aten::glu_backward")
def glu_backward(call: Call, _device: Device) -> list[Kernel]:
    """Both halves of the gradient from both halves of the input; one launch over half the elements."""
    input_halves, gradient = (halves(o, call["dim"]) for o in (call["self"], call.outputs[0]))
    return _of_halves("glu_backward", (call["grad_output"], READ), [(input_halves, READ), (gradient, WRITE)])


def halves(operand: Operand, dim: int) -> Operand:
    """Return the operand cut in two along ``dim``: a new first dimension of two."""
    dim %= len(operand.shape)
    size = operand.shape[dim] // 2
    shape = (2, *operand.shape[:dim], size, *operand.shape[dim + 1 :])
    return replace(operand, shape=shape, strides=(size * operand.strides[dim], *operand.strides))


def _of_halves(name: str, whole: tuple[Operand, int], halved: Sequence[tuple[Operand, int]]) -> list[Kernel]:
    """A launch over ``whole`` whose tiles touch the same range in both halves of the ``halved`` operands."""
    operand, mode = whole
    if operand.numel == 0:
        return []
    sketch = Sketch(blocks(operand.numel, THREADS * 4))
    tile, lo, hi = ranges(operand.numel, THREADS * 4)
    order = memory_order([operand])
    for other, other_mode in halved:
        sketch.span(other, other_mode, tile, Span(tuple(d + 1 for d in order), lo, hi))
    sketch.span(operand, mode, tile, Span(order, lo, hi))
    flops = 16 * operand.numel
    return [sketch.kernel(f"elementwise<{name}>", threads=THREADS, flops=flops, rate=rate_of(operand))]


@models("aten::_local_scalar_dense", "aten::item")
def read_scalar(call: Call, _device: Device) -> list[Kernel]:
    """A scalar goes to the host: a copy of a few bytes that the host waits for."""
    return [number_out(call["self"])]


@models(
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::empty_permuted", "aten::resize_", "aten::set_", "aten::detach", "aten::detach_", "aten::alias", "aten::lift",
    "aten::lift_fresh", "aten::_unsafe_view", "aten::_reshape_alias", "aten::sym_size", "aten::sym_numel",
    "aten::sym_stride", "aten::sym_storage_offset", "aten::is_same_size", "aten::_has_compatible_shallow_copy_type",
    "aten::record_stream", "aten::transpose_", "aten::t_", "aten::squeeze_", "aten::unsqueeze_", "aten::as_strided_",
    "aten::swapaxes_", "aten::resize_as_", "aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::unsafe_chunk",
    "aten::is_pinned", "aten::_version", "aten::retain_grad", "aten::_nested_tensor_size", "aten::_assert_async",
)  # fmt: skip
def no_kernels(_call: Call, _device: Device) -> list[Kernel]:
    """Allocation, views and metadata: no launch."""
    return []


def _elementwise_names() -> Iterator[str]:
    """Names to register: whole operators whose every overload is element-wise, else single overloads.

    Operators registered above are left out: they read or write other operands than the plain rule says.
    """
    for name, all_overloads in overloads().items():
        tagged = [o for o, pointwise_tag in all_overloads.items() if pointwise_tag]
        if name in _OWN_RULES or name.startswith("_foreach_"):
            continue
        if tagged and len(tagged) == len(all_overloads):
            yield f"aten::{name}"
        else:
            yield from (f"aten::{name}.{o}" if o else f"aten::{name}" for o in tagged)


_NAMES = list(_elementwise_names())
models(*_NAMES, any_number=True)(pointwise)
models(*(f"aten::{name}" for name in _OTHER_POINTWISE if f"aten::{name}" not in _NAMES), any_number=True)(pointwise)
