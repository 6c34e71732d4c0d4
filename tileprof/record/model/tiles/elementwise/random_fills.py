"""Random numbers: fills, dropout, Bernoulli masks.

Source: PyTorch's DistributionTemplates.h and Dropout.cu (from memory, not checked against a version). Blocks of 256
threads; a Philox call gives a thread four numbers. The grid never exceeds what is resident at once, blocks then loop
with the stride of the grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import inputs_of, short
from tileprof.record.model.tiles.foundations.regions import coalesce, expand, permute
from tileprof.record.model.tiles.foundations.sketch import READ, WRITE, Sketch, Span, blocks, memory_order, part, ranges

THREADS = 256
_FLOPS = 24
"""Integer and floating-point operations a random number, a rough figure for Philox 4x32-10."""


@models(
    "aten::uniform_", "aten::normal_", "aten::random_", "aten::exponential_", "aten::geometric_", "aten::cauchy_",
    "aten::log_normal_", "aten::rand", "aten::randn", "aten::randint", "aten::rand_like", "aten::randn_like",
    "aten::randint_like", "aten::uniform", "aten::exponential", "aten::randperm",
)  # fmt: skip
def fill(call: Call, device: Device) -> list[Kernel]:
    """A distribution with fixed parameters: writes only."""
    return looping(short(call.op), [], call.outputs[:1], 1, device)


@models("aten::rrelu_with_noise", "aten::rrelu_with_noise_")
def leaky_slopes(call: Call, device: Device) -> list[Kernel]:
    """Random slopes, kept in ``noise`` for the backward pass; without training the mean slope is used and nothing is
    kept.
    """
    noise = [call["noise"]] if call["training"] else []
    return looping("rrelu_with_noise", [call["self"]], [call.outputs[0], *noise], 1, device)


@models(
    "aten::bernoulli_", "aten::bernoulli", "aten::poisson", "aten::binomial", "aten::_standard_gamma", "aten::normal"
)
def sample(call: Call, device: Device) -> list[Kernel]:
    """A distribution whose parameter may be a tensor, which is read; in-place, self's old values are not."""
    hidden = frozenset({"self", "out"}) if short(call.op).endswith("_") else frozenset({"out"})
    if call.op == "aten::bernoulli.p":
        hidden |= {"self"}
    return looping(short(call.op), inputs_of(call, without=hidden), call.outputs[:1], 1, device)


@models("aten::native_dropout", "aten::_fused_dropout")
def dropout(call: Call, device: Device) -> list[Kernel]:
    """Masked and scaled values, and the mask; vectors of up to 16 bytes where everything is dense.

    The grid has a thread per element nevertheless: with vectors, the blocks behind the first ones do nothing.
    """
    source = call["input"] if "input" in call.arguments else call["self"]
    vector = max(16 // source.itemsize, 1)
    while vector > 1 and (source.numel % vector or source.alignment < vector * source.itemsize):
        vector //= 2
    return looping(short(call.op), [source], call.outputs, vector, device, grid=blocks(source.numel, THREADS))


def looping(
    name: str,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    vector: int,
    device: Device,
    *,
    grid: int | None = None,
) -> list[Kernel]:
    """A grid-stride loop over the output's memory: block ``b`` takes every ``grid``-th chunk of 256 vectors.

    ``grid``: blocks where these are not one per chunk; at most as many as are resident at once.
    """
    total = writes[0].numel
    if total == 0:
        return []
    shape = writes[0].shape
    order = memory_order(writes)
    walked = [(permute(expand(o, shape), order), m) for group, m in ((reads, READ), (writes, WRITE)) for o in group]
    dense = all(len(coalesce(o).shape) == 1 for o, _ in walked)
    chunk = THREADS * (vector if dense else 1)
    resident = device.sms * (device.threads_per_sm // THREADS)
    sketch = Sketch(min(grid or blocks(total, chunk), resident))
    for operand, mode in walked:
        strided_loop(sketch, operand, mode, total, chunk)
    return [sketch.kernel(f"random<{name}>", threads=THREADS, flops=_FLOPS * total, registers=40)]


def strided_loop(sketch: Sketch, operand: Operand, mode: int, total: int, chunk: int) -> None:
    """Tile ``t`` of the sketch touches chunks ``t``, ``t + tiles``, … of the operand in its row-major order."""
    tiles, turn = sketch.tiles, sketch.tiles * chunk
    flat = coalesce(operand)
    even = total // turn * turn if len(flat.shape) == 1 else 0
    if even:
        # Seen as (turn of the loop, tile, chunk), a tile is one rectangle.
        step = flat.strides[0]
        view = part(flat, (even // turn, tiles, chunk), (turn * step, chunk * step, step))
        tile = np.arange(tiles)
        sketch.span(view, mode, tile, Span((1,), tile, tile + 1))
    tile, lo, hi = ranges(total - even, chunk, tiles)
    if len(lo):
        sketch.span(operand, mode, tile, Span(tuple(range(len(operand.shape))), lo + even, hi + even))
