"""Batch norm, forward and backward, in training and in evaluation.

Source: PyTorch's Normalization.cuh and Normalization.cu, the native kernels; cuDNN's, which PyTorch prefers for
some types, are closed: for dense NCHW, training is one kernel with a block per channel, as recorded on an H200.
Native kernels for dense NCHW: statistics by one block per channel, then blocks of (channel, few images). Channels
last: the transform by blocks of 32 channels that walk the rows, as recorded on an H200 (PyTorch 2.11). Otherwise:
a reduction that may be split, then an element-wise launch. The backward pass of dense NCHW is one launch with a block a
channel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise
from tileprof.record.model.tiles.foundations.sketch import (
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
)  # fmt: skip
from tileprof.record.model.tiles.reductions.reduce import reduction

_CUDNN_EPS, _CUDNN_IMAGES = 1e-5, {False: 65_535, True: 880_801}
"""``CUDNN_BN_MIN_EPSILON``, and images that cuDNN takes in evaluation and in training."""
_BLOCK_THREADS = 512
_STATISTICS_FLOPS, _TRANSFORM_FLOPS, _BACKWARD_FLOPS = 4, 3, 11


@models(
    "aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_no_training",
    "aten::cudnn_batch_norm", "aten::_batch_norm_with_update", "aten::_batch_norm_no_update",
    "aten::_native_batch_norm_legit_functional",
)  # fmt: skip
def batch_norm(call: Call, device: Device) -> list[Kernel]:
    """Training: statistics, the running averages, then the transform. Evaluation: the running averages as the transform
    takes them, then it.
    """
    source, out = call["input"], call.outputs[0]
    if source.numel == 0:
        return []
    running = [o for o in (call.arguments.get("running_mean"), call.arguments.get("running_var")) if o is not None]
    training = call.arguments.get("training", call.op.startswith("aten::_batch_norm_with_update"))
    vectors = [o for o in (call.arguments.get("weight"), call.arguments.get("bias")) if o is not None]
    if not training and _cudnn(call, source, training=False):
        return _cudnn_evaluated(source, [*running, *vectors], out)
    if not training:
        mean, invstd = (scratch(slot, source.shape[1]) for slot in (0, 1))
        kernels = elementwise("copy_", running[:1], [mean], flops_each=0)
        kernels += elementwise("batch_norm_calc_invstd", running[1:], [invstd], flops_each=3)
        return kernels + _transform(source, [mean, invstd, *vectors], out)
    saved = list(call.outputs[1:3])
    if running and all(map(is_contiguous, (source, out))) and _cudnn(call, source, training=True):
        name = "cudnn_batch_norm_training"
        results = [*saved, *running]
        return _by_channel(name, [source], [out], [*running, *vectors], results, 7, threads=_BLOCK_THREADS)
    kernels = _statistics("collect_statistics", [source], saved, [], device, _STATISTICS_FLOPS)
    # Statistics leave the variance where its inverse root is to be (`batch_norm_update_stats_and_invert`).
    if running:
        kernels += elementwise("update_running_stats", [*saved, *running], [*running, *saved[1:]], flops_each=7, each=8)
    else:
        kernels += elementwise("batch_norm_calc_invstd", saved[1:], saved[1:], flops_each=3)
    return kernels + _transform(source, [*saved, *vectors], out)


def _cudnn(call: Call, source: Operand, *, training: bool) -> bool:
    """``_batch_norm_impl_index``: whether PyTorch asks cuDNN."""
    weight = call.arguments.get("weight")
    types = {"float32", "float64", "float16"} if weight is not None and weight.dtype == "float32" else {"float64"}
    complete = all(call.arguments.get(n) is not None for n in ("bias", "running_mean", "running_var"))
    eps = call.arguments.get("eps", call.arguments.get("epsilon", 0))
    spatial = len(source.shape) >= 3 and source.shape[0] <= _CUDNN_IMAGES[training]
    return complete and source.dtype in types and eps >= _CUDNN_EPS and spatial


def _cudnn_evaluated(source: Operand, vectors: Sequence[Operand], out: Operand) -> list[Kernel]:
    """CuDNN's kernel for dense NCHW, as recorded: a block per image and channel. Else the transform alone."""
    if not (is_contiguous(source) and is_contiguous(out)):
        return _transform(source, vectors, out)
    images, channels = source.shape[:2]
    sketch = Sketch(images * channels)
    tile, lo, hi = ranges(images * channels, 1)
    for operand, mode in ((source, READ), (out, WRITE)):
        sketch.span(operand, mode, tile, Span((0, 1), lo, hi))
    channel = tile % channels
    for vector in vectors:
        sketch.span(vector, READ, tile, Span((0,), channel, channel + 1))
    flops = _TRANSFORM_FLOPS * source.numel
    return [sketch.kernel("channels<cudnn_batch_norm>", threads=512, flops=flops, rate=rate_of(source))]


def evaluated(call: Call, device: Device) -> list[Kernel]:  # noqa: ARG001 - the signature of a model
    """Evaluation in one launch that takes the running averages as they are: for a stage that has it as its epilogue."""
    vectors = [call.arguments.get(name) for name in ("running_mean", "running_var", "weight", "bias")]
    return _transform(call["input"], [o for o in vectors if o is not None], call.outputs[0])


@models("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward", "aten::batch_norm_backward")
def batch_norm_backward(call: Call, device: Device) -> list[Kernel]:
    """Gradients of the input, weight and bias; without training the saved statistics are the running ones."""
    source, gradient = call["input"], call["grad_out" if "grad_out" in call.arguments else "grad_output"]
    if source.numel == 0:
        return []
    training = call.arguments.get("train", call.arguments.get("update", True))
    names = ("save_mean", "save_invstd", "save_var") if training else ("running_mean", "running_var")
    statistics = [o for o in (call.arguments.get(n) for n in names) if o is not None and o.numel]
    weight = [o for o in (call.arguments.get("weight"),) if o is not None]
    outputs = iter(call.outputs)
    mask = call.arguments.get("output_mask", (True, True, True))
    gradients = [next(outputs, None) if on else None for on in mask]
    vectors = [w for w in gradients[1:] if w is not None]
    inputs = [gradient, source]
    if gradients[0] is not None and (training or vectors) and all(is_contiguous(o) for o in inputs):
        return _by_channel(
            "batch_norm_backward", inputs, [gradients[0]], [*statistics, *weight], vectors, _BACKWARD_FLOPS
        )
    kernels: list[Kernel] = []
    sums: list[Operand] = []
    if training or vectors:
        sums = [scratch(slot, source.shape[1]) for slot in (0, 1)]
        kernels += _statistics("backward_reduce", inputs, [*sums, *vectors], statistics, device, 6)
    if gradients[0] is not None:
        kernels += _transform(source, [*statistics, *weight, *sums], gradients[0], extra=[gradient])
    return kernels


def _statistics(
    name: str,
    reads: Sequence[Operand],
    results: Sequence[Operand],
    vectors: Sequence[Operand],
    device: Device,
    flops_each: float,
) -> list[Kernel]:
    """Numbers per channel from all its elements; ``vectors`` are read one channel at a time."""
    if all(is_contiguous(r) for r in reads) or len(reads) > 1:
        return _by_channel(name, reads, [], vectors, results, flops_each)
    dims = [d for d in range(len(reads[0].shape)) if d != 1]
    return reduction(name, reads[0], results, dims, device, flops_each=flops_each)


def _by_channel(
    name: str,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    vectors: Sequence[Operand],
    results: Sequence[Operand],
    flops_each: float,
    *,
    threads: int | tuple[int, int, int] | None = None,
) -> list[Kernel]:
    """Model one block per channel; unless ``threads`` says otherwise, a warp or more per image as the native kernels
    have it.
    """
    if threads is None:
        wide = _threads(int(np.prod(reads[0].shape[2:], dtype=np.int64)))
        threads = (wide, _BLOCK_THREADS // wide, 1)
    channels = reads[0].shape[1]
    sketch = Sketch(channels)
    tile, lo, hi = ranges(channels, 1)
    for operand, mode in [(r, READ) for r in reads] + [(w, WRITE) for w in writes]:
        sketch.span(operand, mode, tile, Span((1,), lo, hi))
    for operand, mode in [(v, READ) for v in vectors] + [(r, WRITE) for r in results]:
        sketch.span(operand, mode, tile, Span((0,), lo, hi))
    flops = flops_each * reads[0].numel
    return [sketch.kernel(f"channels<{name}>", threads=threads, flops=flops, rate=rate_of(*reads), shared_bytes=4096)]


def _transform(
    source: Operand, vectors: Sequence[Operand], out: Operand, *, extra: Sequence[Operand] = ()
) -> list[Kernel]:
    """Every element from itself and its channel's numbers."""
    name = "batch_norm_transform"
    if not extra and _channels_last(source) and _channels_last(out):
        return [_by_rows(name, source, vectors, out)]
    if not (is_contiguous(source) and is_contiguous(out)) or extra or len(source.shape) < 3:
        channel = (1, -1, *(1 for _ in source.shape[2:]))
        along = [part(v, (v.numel, *channel[2:]), (v.strides[0], *(0 for _ in channel[2:]))) for v in vectors]
        return elementwise(name, [*extra, source, *along], [out], flops_each=_TRANSFORM_FLOPS)
    images, channels = source.shape[:2]
    size = int(np.prod(source.shape[2:], dtype=np.int64))
    wide = max(_threads(size // 4), min(_threads(size), 64))
    each = max(64 // wide, 1)
    strips = max(1, min(256 * 1024 // channels, blocks(images, each)))
    sketch = Sketch(channels, strips)
    strip, lo, hi = ranges(images, each, strips)
    channel_id = np.arange(channels)
    tile = (channel_id[:, None] + strip[None, :] * channels).ravel()
    batch = Span((0,), np.tile(lo, channels), np.tile(hi, channels))
    own = np.repeat(channel_id, len(lo))
    for operand, mode in ((source, READ), (out, WRITE)):
        sketch.span(operand, mode, tile, batch, Span((1,), own, own + 1))
    every = np.arange(sketch.tiles)
    for vector in vectors:
        sketch.span(vector, READ, every, Span((0,), every % channels, every % channels + 1))
    flops = _TRANSFORM_FLOPS * source.numel
    return [sketch.kernel(f"channels<{name}>", threads=(wide, each, 1), flops=flops, rate=rate_of(source))]


def _channels_last(operand: Operand) -> bool:
    """``batch_norm_choose_impl``: rows of channels, without gaps."""
    order = (0, *range(2, len(operand.shape)), 1)
    rows = part(operand, [operand.shape[d] for d in order], [operand.strides[d] for d in order])
    return is_contiguous(rows) and len(operand.shape) in (2, 4)


def _by_rows(name: str, source: Operand, vectors: Sequence[Operand], out: Operand) -> Kernel:
    """A block has some channels of 1 to 16 neighbouring rows, and continues with rows as far away as all blocks reach.

    ``flexible_launch_configs``: 512 threads, 16 elements each.
    """
    channels = source.shape[1]
    rows = source.numel // channels
    wide = min(_power(channels), 32)
    high = min(_power(blocks(rows, 16)), 512 // wide)
    if wide * high != 512:
        wide = min(_power(channels), 512 // high)
    columns, strips = blocks(channels, wide), min(blocks(rows, 16 * high), 128)
    sketch = Sketch(columns, strips)
    strip, lo, hi = ranges(rows, high, strips)
    column = np.repeat(np.arange(columns), len(lo))
    low = column * wide
    across = Span((1,), low, np.minimum(low + wide, channels))
    down = Span((0,), np.tile(lo, columns), np.tile(hi, columns))
    tile = np.tile(strip, columns) * columns + column
    for operand, mode in ((source, READ), (out, WRITE)):
        sketch.span(part(operand, (rows, channels), (channels, 1)), mode, tile, down, across)
    every = np.arange(sketch.tiles)
    first = every % columns * wide
    for vector in vectors:
        sketch.span(vector, READ, every, Span((0,), first, np.minimum(first + wide, channels)))
    flops = _TRANSFORM_FLOPS * source.numel
    return sketch.kernel(f"rows<{name}>", threads=(wide, high, 1), flops=flops, rate=rate_of(source))


def _power(number: int) -> int:
    """Return the greatest power of two that is not greater."""
    return 1 << (number.bit_length() - 1)


def _threads(elements: int) -> int:
    """``getNumThreads``."""
    return next((n for n in (32, 64, 128, 256) if elements <= n), 512)
