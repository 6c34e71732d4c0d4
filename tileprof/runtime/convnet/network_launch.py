"""The kernel's tables, and launches on torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from tileprof.runtime.convnet.memory import layer_bytes
from tileprof.runtime.convnet.network import INPUT, Average, Convolution, Flat, Maximum, Windows, windowed
from tileprof.runtime.convnet.network_build import KERNEL, Options, header
from tileprof.runtime.convnet.plan import Plan
from tileprof.runtime.convnet.tiling import (
    K_BLOCK,
    ROW_BYTES,
    WINDOW,
    WINDOW_PITCH,
    block_bytes,
    joined,
    k_blocks,
    slot_blocks,
    tiles,
    weight_blocks,
    weight_load,
    weight_taps,
)
from tileprof.runtime.convnet.weights import Weights
from tileprof.runtime.persistent.driver import MAP_WORDS, Arguments
from tileprof.runtime.sync.tables import FLAG_BYTES

THREADS: Final = 384
"""Threads per block: one warpgroup of loaders, two that multiply."""

STAGE_WORDS: Final = 56  # Row of common.cuh
ARGUMENT_WORDS: Final = 11
PLACES: Final = ("awaits", "awaited", "weights", "tiles", "multiplied", "stored", "posted")
"""Moments of a task in a timeline: Place of common.cuh."""

SUMS_WORD: Final = 36  # `sums` of Stage, behind its pointers
WINDOWS_WORD: Final = SUMS_WORD + 2  # `windows`, behind it
_KINDS: Final = {Convolution: 0, Maximum: 1, Average: 2, Windows: 3, Flat: 4}  # Kind of common.cuh


def stage_numbers(plan: Plan, number: int) -> list[int]:
    """Return the 32-bit words of Stage of common.cuh behind its pointers; those that are missing are 0."""
    network, layer, tiling = plan.network, plan.network.layers[number], plan.tilings[number]
    images, rows, columns, channels = layer.shape
    _, in_rows, in_columns, in_channels = layer.reads
    tile = [tiling.rows, tiling.columns, tiling.images]
    out = [rows, columns, images, channels]
    match layer:
        case Convolution() if windowed(network, layer):
            _, source_rows, source_columns, _ = network.layers[layer.source].shape
            box = 16 * (tiling.columns * layer.pool - 1) + 2 * WINDOW
            return [
                _KINDS[Convolution], tiling.width, k_blocks(network, layer), weight_blocks(network, layer, tiling),
                1, 1, slot_blocks(network, layer, tiling, plan.slot_bytes), 0,
                box, 2 * WINDOW_PITCH, 64, layer.stride * WINDOW_PITCH // ROW_BYTES,
                0, *tile, layer.stride, layer.padding,
                *out, int(layer.relu), weight_load(network, layer, tiling),
                in_rows, in_columns, in_channels, 1, *[0] * 4, tiling.parts, source_rows, source_columns, layer.pool,
            ]  # fmt: skip
        case Convolution():
            step, height = tiling.step(layer), tiling.box_rows(layer) // tiling.step(layer) // tiling.images
            blocks, box = slot_blocks(network, layer, tiling, plan.slot_bytes), tiling.box_rows(layer) * ROW_BYTES
            if joined(layer, tiling):
                box = blocks * block_bytes(layer, tiling)
            return [
                _KINDS[Convolution], tiling.width, k_blocks(network, layer) // tiling.parts,
                weight_blocks(network, layer, tiling),
                layer.size[0] * layer.size[1], layer.size[1], blocks,
                -1 if joined(layer, tiling) else int(tiling.halo), box, block_bytes(layer, tiling),
                step, height * step if tiling.images > 1 else 64,
                int(tiling.deep), *tile, layer.stride, layer.padding,
                *out, int(layer.relu), weight_load(network, layer, tiling),
                in_rows, in_columns, in_channels, 0, 0, rows * columns if layer.flat else 0, 0, 0, tiling.parts, 0, 0,
                layer.pool,
            ]  # fmt: skip
        case Maximum():
            return [
                _KINDS[Maximum], *[0] * 12, *tile, layer.stride, layer.padding, *out, 0, 0,
                in_rows, in_columns, channels, layer.size,
            ]  # fmt: skip
        case Average():
            return [_KINDS[Average], *[0] * 12, *tile, 1, 0, *out, 0, 0, in_rows, in_columns, channels]
        case Flat():
            return [_KINDS[Flat], *[0] * 12, *tile, 1, 0, *out, 0, 0, in_rows, in_columns, in_channels]
        case Windows():
            return [
                _KINDS[Windows], *[0] * 12, *tile, 1, layer.padding, *out, 0, 0,
                in_rows, in_columns, channels, in_channels, *layer.strides,
            ]  # fmt: skip


def layer_results(plan: Plan, memory: Any) -> list[Any]:
    """Return the results of all layers but the last in a launch's ``memory`` (uint8, `Plan.memory_bytes`)."""
    dtype, layers = getattr(torch, plan.network.dtype), plan.network.layers[:-1]
    return [
        memory[at : at + layer_bytes(layer)].view(dtype).view(layer.shape)
        for at, layer in zip(plan.offsets, layers, strict=False)
    ]


def stage_table(
    plan: Plan,
    results: Sequence[Any],
    weights: Sequence[Weights | None],
    sums: Any,
    arguments: type[Arguments] = Arguments,
) -> Any:
    """Return the kernel's table of layers, int64 on the CPU.

    ``results``: memory of each layer, None where the launch is given it; ``weights``: None where there are none;
    ``sums``: of parts of tiles, as many bytes as `sum_bytes` says.
    """
    network, sums_at = plan.network, sums.data_ptr()
    table = arguments(STAGE_WORDS * len(network.layers))
    for number, layer in enumerate(network.layers):
        at = STAGE_WORDS * number
        source = None if layer.source == INPUT else results[layer.source]
        if isinstance(layer, Convolution) and not windowed(network, layer):
            _put_map(table, at, plan, number, source)
        own = weights[number]
        if own is not None and not windowed(network, layer):
            _put_weight_map(table, at + MAP_WORDS, plan, number, own.weights)
        residual = getattr(layer, "residual", None)
        ends = None if own is None else own.ends
        pointers = (results[number], source, None if residual is None else results[residual], ends)
        at += 2 * MAP_WORDS
        table.words[at : at + len(pointers)] = [0 if p is None else p.data_ptr() for p in pointers]
        at += len(pointers)
        numbers = np.zeros(2 * (STAGE_WORDS - 2 * MAP_WORDS - len(pointers)), np.int32)
        stage_row = stage_numbers(plan, number)
        numbers[: len(stage_row)] = stage_row
        if bytes_here := layer_sum_bytes(plan, number):
            numbers[SUMS_WORD : SUMS_WORD + 2] = np.array([sums_at], np.uint64).view(np.int32)
            sums_at += bytes_here
        if own is not None and windowed(network, layer):
            numbers[WINDOWS_WORD : WINDOWS_WORD + 2] = np.array([own.weights.data_ptr()], np.uint64).view(np.int32)
        table.words[at : at + len(numbers) // 2] = [int(word) for word in numbers.view(np.uint64)]
    return torch.from_numpy(np.array(table.words, np.uint64).view(np.int64))


def _put_map(table: Arguments, at: int, plan: Plan, number: int, source: Any) -> None:
    network, layer, tiling = plan.network, plan.network.layers[number], plan.tilings[number]
    assert isinstance(layer, Convolution)
    step = layer.stride
    images, rows, columns, channels = layer.reads
    more = (layer.size[0] - 1, layer.size[1] - 1) if tiling.halo else (0, 0)
    sizes, strides = (
        (channels, columns, rows, images),
        (2 * channels, 2 * channels * columns, 2 * channels * columns * rows),
    )
    wide, high = tiling.columns * layer.pool, tiling.rows * layer.pool
    if joined(layer, tiling):
        blocks = slot_blocks(network, layer, tiling, plan.slot_bytes)
        high = block_bytes(layer, tiling) // ROW_BYTES // wide
        sizes, strides = (K_BLOCK, columns, rows * images, channels // K_BLOCK), (*strides[:2], 2 * K_BLOCK)
        box, steps = (K_BLOCK, (wide - 1) * step + 1, (high - 1) * step + 1, blocks), (1, step, step, 1)
        table.put_map(at, source.data_ptr(), network.dtype, sizes, strides, box, steps)
        return
    sides = ((wide - 1) * step + 1 + more[1], (high - 1) * step + 1 + more[0])
    box, steps = (K_BLOCK, *sides, tiling.images), (1, step, step, 1)
    table.put_map(at, source.data_ptr(), network.dtype, sizes, strides, box, steps)


def _put_weight_map(table: Arguments, at: int, plan: Plan, number: int, weights: Any) -> None:
    """Encode the map of weights [channels out, taps, channels in]: see Row of common.cuh."""
    network, layer, tiling = plan.network, plan.network.layers[number], plan.tilings[number]
    assert isinstance(layer, Convolution)
    (out, taps, deep), load = weights.shape, weight_load(network, layer, tiling)
    if weight_taps(network, layer) == 1:
        sizes, strides = (K_BLOCK, out, deep // K_BLOCK), (2 * deep, 2 * K_BLOCK)
    else:
        sizes, strides = (deep, out, taps), (2 * taps * deep, 2 * deep)
    box = (K_BLOCK, tiling.width, load)
    table.put_map(at, weights.data_ptr(), network.dtype, sizes, strides, box, (1, 1, 1))


def layer_sum_bytes(plan: Plan, number: int) -> int:
    """Return bytes of the sums of a layer's parts of tiles: 64 rows each."""
    layer, tiling = plan.network.layers[number], plan.tilings[number]
    return 64 * tiling.width * 4 * tiling.parts * tiles(layer, tiling) if tiling.parts > 1 else 0


def sum_bytes(plan: Plan) -> int:
    """Return bytes of the sums of all parts of tiles."""
    return sum(layer_sum_bytes(plan, number) for number in range(len(plan.tilings)))


def plan_tables(plan: Plan) -> tuple[Any, Any, Any]:
    """Return heads, tasks and waits as the kernel reads them, int32 on the CPU."""
    heads, tasks, waits = (torch.from_numpy(table.reshape(-1).copy()) for table in (plan.heads, plan.tasks, plan.waits))
    return heads, tasks, waits


def flag_words(plan: Plan) -> int:
    """Return 32-bit words of the semaphores."""
    return plan.semaphores * FLAG_BYTES // 4


class Launcher:
    """A plan's kernel with its tables on the device. Raises `UserError` where it cannot be compiled or loaded."""

    def __init__(self, plan: Plan, device: Any, options: Options) -> None:
        self.plan, self.device = plan, torch.device(device)
        self._function = KERNEL.loaded(header(options), self.device)
        self._tables = [table.to(self.device) for table in plan_tables(plan)]
        # seed, flags, state, record
        self.shared = [torch.zeros(n, dtype=torch.int32, device=self.device) for n in (1, flag_words(plan), 2, 8)]
        times = len(plan.tasks) * len(PLACES) if options.timeline else 0
        self.times = torch.zeros(times, dtype=torch.int64, device=self.device)
        self._sums = torch.empty(sum_bytes(plan) // 4, dtype=torch.float32, device=self.device)
        self._stages: Any = None

    def bind(self, results: Sequence[Any], weights: Sequence[Weights | None]) -> None:
        """Say where the layers' results and weights lie."""
        self._stages = stage_table(self.plan, results, weights, self._sums).to(self.device)

    def launch(self, x: Any, out: Any) -> None:
        """Run on the current stream; may be captured into a graph."""
        arguments = Arguments(ARGUMENT_WORDS)
        pointers = (self._stages, *self._tables, x, out, *self.shared, self.times)
        arguments.words[:] = [tensor.data_ptr() for tensor in pointers]
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self._function.launch(self.plan.blocks, THREADS, stream, arguments, programmatic=False, cooperative=True)
