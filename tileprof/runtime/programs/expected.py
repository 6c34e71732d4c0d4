"""Predicts the time of a whole model before it runs: per stage the cost of its tiles, between stages the cost of a
boundary, and kernels that Inductor has left.

The shapes of the costs follow from each kernel's plan. Their constants are measured once per device, on one model per
family (`CALIBRATED`); all other models are predicted from these.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, prod
from typing import Any, Final

from tileprof.devices import Device
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.convnet import plan as networks
from tileprof.runtime.convnet.network import INPUT, Convolution, Network
from tileprof.runtime.convnet.tiling import microseconds, tiled
from tileprof.runtime.decode.shape import DecoderShape
from tileprof.runtime.encoder.patches import Patches
from tileprof.runtime.encoder.plan import ROWS, Finish, Plan, Tiled, cluster_for, plan_of
from tileprof.runtime.encoder.program import Attention, Program
from tileprof.runtime.prefill.shape import PrefillShape

_ITEM: Final = 2  # bytes of an element, half precision
_GAP: Final = 2.0  # microseconds between layers of a convolutional network, as its plan assumes


@dataclass(frozen=True, slots=True)
class Constants:
    """Microseconds, unless they are factors. ``origin``: which models they were measured on."""

    origin: str
    start: float
    """A graph with one launch: the time before its blocks run and after they have ended."""
    rest: float
    """A small kernel of Inductor in the same graph."""
    decoder_stall: float
    """Time per layer of a decoder in which the stream of weights stalls because blocks wait for each other."""
    decoder_sequence: float
    """The additional time per sequence."""
    prefill_stall: float
    """Time per layer of a prefill in which that stream stalls, at up to 64 rows of tokens."""
    network: float
    """Factor on the time that a convolutional network's plan gives its tiles and boundaries."""
    product: float
    """Factor on the time that a plan of transformer blocks gives a product."""
    attention: float
    """A round of attention tiles of 128 keys."""
    finish: float
    """A stage that ends rows."""


CALIBRATED: Final[Mapping[str, Constants]] = {
    "H200": Constants(
        origin="LLaMA-1B for one and eight sequences and for 64 tokens, ResNet-18, GPT-2's stages (attention, ends "
        "of rows) and GPT-2's whole time (products) on an H200, 2026-11-23",
        start=8.0,
        rest=5.0,
        decoder_stall=5.4,
        decoder_sequence=1.53,
        prefill_stall=29.0,
        network=1.128,
        product=0.91,
        attention=3.5,
        finish=2.4,
    ),
}
"""Constants by the device's name in `tileprof.devices`."""

_KERNELS: Final = frozenset(
    {
        "bmm",
        "mm",
        "addmm",
        "convolution",
        "native_layer_norm",
        "embedding",
        "cat",
        "index",
        "cumsum",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "max_pool2d_with_indices",
        "_softmax",
    }
)
"""Operators that Inductor gives a kernel of their own, more or less; those between them it fuses into these, or into
one more.
"""

_MOST_KERNELS: Final = 3
"""Embeddings, masks and positions are fused where they meet."""


def expected_us(regions: Sequence[Region], inductor_operators: Counter[str], device: Device) -> float | None:
    """Return microseconds of a program of these regions and of what is left to Inductor, in a CUDA graph.

    None for other devices, and kernels without a model.
    """
    constants = CALIBRATED.get(device.name)
    if constants is None or not regions:
        return None
    total = constants.start
    for region in regions:
        region_us = next(
            (cost(region.what, constants, device) for kind, cost in _COSTS if isinstance(region.what, kind)), None
        )
        if region_us is None:
            return None
        total += region_us
    kernels = min(
        _MOST_KERNELS,
        sum(count for name, count in inductor_operators.items() if name in _KERNELS) + (1 if inductor_operators else 0),
    )
    return total + constants.rest * kernels


def _decoder(shape: DecoderShape, constants: Constants, device: Device) -> float:
    """Return weights at the device's sustained bandwidth; per layer a stall."""
    into = shape.hidden * (shape.qkv + 3 * shape.intermediate) + shape.query * shape.hidden
    attended = 2 * shape.batch * shape.kv_heads * shape.head_dim * shape.cache // 2  # keys and values of half a cache
    per_us = device.sustained_bytes_per_s / 1e6
    layer = _ITEM * (into + attended) / per_us + constants.decoder_stall + constants.decoder_sequence * shape.batch
    return shape.layers * layer + _ITEM * shape.vocabulary * shape.hidden / per_us


def _prefill(shape: PrefillShape, constants: Constants, device: Device) -> float:
    """Return weights at the device's sustained bandwidth; per layer a longer stall than in decoding."""
    into = shape.hidden * (shape.qkv + 3 * shape.intermediate) + shape.query * shape.hidden
    per_us = device.sustained_bytes_per_s / 1e6
    head = _ITEM * shape.vocabulary * shape.hidden / per_us
    return shape.layers * (_ITEM * into / per_us + constants.prefill_stall) + head


def _network(network: Network, constants: Constants, device: Device) -> float:
    """Return the end of the plan's own schedule: tiles in order of layers, to the block that is free first, no layer
    faster than its weights come.
    """
    per_us = constants.network * device.sustained_bytes_per_s / 1e6
    tilings = [tiled(network, layer, device.sms) for layer in network.layers]
    free = [0.0] * device.sms
    ends: list[float] = []
    for layer, tiling in zip(network.layers, tilings, strict=True):
        residual = layer.residual if isinstance(layer, Convolution) else None
        sources = [source for source in (layer.source, residual) if source is not None and source != INPUT]
        ready = max((ends[source] + _GAP for source in sources), default=0.0)
        duration = microseconds(network, layer, tiling)
        end = ready + _weight_bytes(layer) / per_us
        for _ in networks.tiles_of(layer, len(ends), tiling):
            at = max(heapq.heappop(free), ready) + duration
            heapq.heappush(free, at)
            end = max(end, at)
        ends.append(end)
    return constants.network * max(ends)


def _weight_bytes(layer: Any) -> int:
    return _ITEM * layer.shape[-1] * layer.reads[-1] * prod(layer.size) if isinstance(layer, Convolution) else 0


def _blocks(program: Program, constants: Constants, device: Device) -> float:
    """Return rounds of tiles, stage after stage."""
    cluster = cluster_for(program)
    plan = plan_of(program, device.sms // cluster * cluster, cluster)
    alike = groupby(plan.stages, lambda stage: (stage.source, stage.splits) if isinstance(stage, Tiled) else id(stage))
    return sum(_stage(plan, list(stages), constants) for _, stages in alike)


def _patches(_: Patches, constants: Constants, __: Device) -> float:
    """Return a copy and a product."""
    return 2 * constants.rest


def _stage(plan: Plan, together: Sequence[Any], constants: Constants) -> float:
    """Time of products that read the same rows, which need not wait for each other, or of another stage."""
    blocks, stage = len(plan.blocks), together[0]
    match stage:
        case Tiled(product, _, width, splits):
            columns = sum(ceil(each.product.columns / width) for each in together)
            tiles = ceil(product.rows / (ROWS * plan.cluster)) * columns * splits
            passes = product.depth / splits / 768
            rounds = ceil(tiles / (blocks // plan.cluster))
            later = 0.5 * (rounds - 1)  # what a later round multiplies is there when it begins
            return float(constants.product * (1.5 + later + rounds * passes * (1.2 + 0.019 * width) + 0.1 * splits))
        case Attention():
            rounds = ceil(stage.heads * ceil(stage.length / ROWS) * (stage.rows // stage.length) / blocks)
            return constants.attention * rounds * max(1.0, stage.length / 128)
        case Finish():
            return constants.finish
    raise TypeError(f"no model for {type(stage).__name__}")


_COSTS: Final[Sequence[tuple[type, Callable[[Any, Constants, Device], float]]]] = (
    (DecoderShape, _decoder),
    (PrefillShape, _prefill),
    (Network, _network),
    (Program, _blocks),
    (Patches, _patches),
)
