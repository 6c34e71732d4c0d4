"""Group norm (and instance norm through it), forward and backward.

Source: PyTorch's group_norm_kernel.cu (from memory, not checked against a version). Forward: moments by one block per
group, per-channel scale and shift, an element-wise launch. Backward: sums per channel, per-group terms, an element-wise
launch, and the weight's and bias's sums.
"""

from __future__ import annotations

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
    part,
    ranges,
    rate_of,
    scratch,
)


@models("aten::native_group_norm")
def group_norm(call: Call, _device: Device) -> list[Kernel]:
    """Output, mean and reciprocal deviation of every group."""
    source, groups = call["input"], call["group"]
    out, mean, rstd = call.outputs
    if source.numel == 0:
        return []
    images, channels = source.shape[:2]
    grouped = _grouped(source, groups)
    moments = Sketch(images * groups)
    tile, lo, hi = ranges(images * groups, 1)
    moments.span(grouped, READ, tile, Span((0, 1), lo, hi))
    for statistic in (mean, rstd):
        moments.span(statistic, WRITE, tile, Span((0, 1), lo, hi))
    kernels = [
        moments.kernel("group_moments", threads=512, flops=4 * source.numel, rate=rate_of(source), shared_bytes=4096)
    ]
    scale, shift = (scratch(slot, images, groups, channels // groups) for slot in (0, 1))
    vectors = [_grouped_vector(v, groups) for v in (call["weight"], call["bias"]) if v is not None]
    statistics = [_along(s) for s in (mean, rstd)]
    kernels += elementwise("group_scale_shift", [*statistics, *vectors], [scale, shift], flops_each=4)
    per_channel = [_stretched(o, source) for o in (scale, shift)]
    return kernels + elementwise("group_transform", [grouped, *per_channel], [_grouped(out, groups)], flops_each=2)


@models("aten::native_group_norm_backward")
def group_norm_backward(call: Call, _device: Device) -> list[Kernel]:
    """Gradients of input, weight and bias, as far as ``output_mask`` asks for them."""
    gradient, source, mean, rstd, weight = (call[n] for n in ("grad_out", "input", "mean", "rstd", "weight"))
    groups = call["group"]
    if source.numel == 0:
        return []
    images, channels = source.shape[:2]
    each = channels // groups
    outputs = iter(call.outputs)
    gradients = [next(outputs, None) if on else None for on in call["output_mask"]]
    products, sums = (scratch(slot, images, groups, each) for slot in (0, 1))
    kernels = [_channel_sums(gradient, source, products, sums)]
    if gradients[0] is not None:
        first = scratch(2, images, groups, each)
        second, third = (scratch(slot, images, groups) for slot in (3, 4))
        vector = [_grouped_vector(weight, groups)] if weight is not None else []
        kernels += elementwise("mul", [_along(rstd), *vector], [first], flops_each=1)
        kernels.append(_group_terms([mean, rstd], vector, [products, sums], [second, third]))
        terms = [_stretched(first, source)] + [_stretched(_along(o), source) for o in (second, third)]
        inputs = [_grouped(o, groups) for o in (gradient, source)]
        target = _grouped(gradients[0], groups)
        kernels += elementwise("group_input_gradient", [*inputs, *terms], [target], flops_each=4)
    vectors = [o for o in gradients[1:] if o is not None]
    if vectors:
        kernels.append(_vector_gradients([mean, rstd], [products, sums], vectors, groups))
    return kernels


def _channel_sums(gradient: Operand, source: Operand, products: Operand, sums: Operand) -> Kernel:
    """Model one block per channel of an image."""
    count = products.numel
    sketch = Sketch(count)
    tile, lo, hi = ranges(count, 1)
    for operand in (gradient, source):
        sketch.span(operand, READ, tile, Span((0, 1), lo, hi))
    for operand in (products, sums):
        sketch.span(operand, WRITE, tile, Span((0, 1, 2), lo, hi))
    return sketch.kernel("group_channel_sums", threads=512, flops=3 * source.numel, rate=rate_of(source))


def _group_terms(
    statistics: list[Operand], vectors: list[Operand], channel_sums: list[Operand], terms: list[Operand]
) -> Kernel:
    """Model one block per group."""
    images, groups = terms[0].shape
    sketch = Sketch(images, groups)
    tile = np.arange(images * groups)
    image, group = tile % images, tile // images
    spans = (Span((0,), image, image + 1), Span((1,), group, group + 1))
    for operand in (*statistics, *channel_sums):
        sketch.span(operand, READ, tile, *spans)
    for operand in vectors:
        sketch.span(operand, READ, tile, Span((0,), group, group + 1))
    for operand in terms:
        sketch.span(operand, WRITE, tile, *spans)
    return sketch.kernel("group_terms", threads=128, flops=4 * channel_sums[0].numel)


def _vector_gradients(
    statistics: list[Operand], channel_sums: list[Operand], vectors: list[Operand], groups: int
) -> Kernel:
    """One block per 256 channels: sums over the images."""
    channels = vectors[0].numel
    each = channels // groups
    sketch = Sketch(blocks(channels, 256))
    tile, lo, hi = ranges(channels, 256)
    for operand in channel_sums:
        sketch.span(operand, READ, tile, Span((1, 2), lo, hi))
    for operand in statistics:
        sketch.span(operand, READ, tile, Span((1,), lo // each, (hi - 1) // each + 1))
    for operand in vectors:
        sketch.span(operand, WRITE, tile, Span((0,), lo, hi))
    return sketch.kernel("group_vector_gradients", threads=256, flops=4 * channel_sums[0].numel)


def _grouped(operand: Operand, groups: int) -> Operand:
    """(images, channels, …) as (images, groups, channels per group, …)."""
    shape = (operand.shape[0], groups, operand.shape[1] // groups, *operand.shape[2:])
    step = operand.strides[1]
    return part(operand, shape, (operand.strides[0], step * shape[2], step, *operand.strides[2:]))


def _grouped_vector(vector: Operand, groups: int) -> Operand:
    each = vector.numel // groups
    return part(vector, (groups, each), (vector.strides[0] * each, vector.strides[0]))


def _along(operand: Operand) -> Operand:
    """(images, groups) with a last dimension for the channels of a group, to broadcast."""
    return part(operand, (*operand.shape, 1), (*operand.strides, 0))


def _stretched(operand: Operand, source: Operand) -> Operand:
    """(images, groups, channels) with the source's further dimensions, to broadcast."""
    more = len(source.shape) - 2
    return part(operand, (*operand.shape, *(1,) * more), (*operand.strides, *(0,) * more))
