"""The timeline of the blocks of a whole-model kernel in one replay: when each tile began and ended, on which block, and
what it touched.

The kernels write clocks on request (the GPU's nanosecond timer). Tiles are tasks of transformer blocks, and a block's
share of a decoder's stage. A kernel has one block per SM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.arrays import I64
from tileprof.runtime.executor import Touches

if TYPE_CHECKING:
    from tileprof.runtime.convnet.plan import Plan as NetworkPlan
    from tileprof.runtime.decode.shape import DecoderShape
    from tileprof.runtime.encoder.plan import Box, Plan, StagePlan, Task, Tiled

READ, WRITE = 0, 1
DECODER_STAGES: Final = ("qkv", "attention", "output", "gate", "down", "head")
_HALF: Final = 2  # bytes of an element
_GROUP: Final = 8  # rows of a product that a block computes together


@dataclass(frozen=True, slots=True)
class StageRun:
    """Tiles of a stage that ran: ``block``, ``begin_ns`` (its inputs were there) and ``end_ns`` of each, what they
    touch, and floating point operations of all.
    """

    name: str
    block: I64
    begin_ns: I64
    end_ns: I64
    touches: Touches
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """One replay. ``buffers``: name, bytes and kind (``parameter``, ``input``, ``activation``) by the number that
    touches give; times count from the first tile's begin.
    """

    name: str
    buffers: tuple[tuple[str, int, str], ...]
    stages: tuple[StageRun, ...]
    threads: int
    shared_bytes: int

    @property
    def span_ns(self) -> int:
        """Nanoseconds from the first begin to the last end."""
        return max(int(stage.end_ns.max()) for stage in self.stages)


Observer = Callable[[Any, Any, list[Any]], None]
"""Gets each region that runs, its device and inputs, before it runs."""

_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Show regions that this thread runs meanwhile to ``observer`` first."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def observer() -> Observer | None:
    """Return who wants to see regions that this thread runs."""
    return _OBSERVER.get()


class _Buffers:
    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, int, str]] = {}

    def number(self, name: str, size: int, kind: str) -> int:
        """Return the number of a buffer, which grows to the largest size that is asked for."""
        at, earlier_size, kind = self.rows.get(name, (len(self.rows), 0, kind))
        self.rows[name] = at, max(size, earlier_size), kind
        return at

    @property
    def all(self) -> tuple[tuple[str, int, str], ...]:
        return tuple((name, size, kind) for name, (_, size, kind) in self.rows.items())


def of_blocks(plan: Plan, stamps: Any, threads: int, shared_bytes: int) -> Timeline:
    """Return a run of transformer blocks.

    ``stamps`` [tasks, 4]: when a task was taken, its first activations were there, its sums were complete, it had
    ended.
    """
    from tileprof.runtime.encoder.plan import Finish, Tiled  # noqa: PLC0415 - beside its use

    stamps = np.asarray(stamps, np.int64)
    block_of = np.zeros(len(plan.tasks), np.int64)
    for number, tasks in enumerate(plan.blocks):
        block_of[list(tasks)] = number
    start = int(stamps[stamps > 0].min())
    buffers, program = _Buffers(), plan.program
    task_touches = _TaskTouches(plan, buffers)
    by_stage: dict[int, list[int]] = {}
    for number, task in enumerate(plan.tasks):
        by_stage.setdefault(task.stage, []).append(number)
    runs = []
    for at, stage in enumerate(plan.stages):
        numbers = by_stage[at]
        rows = [
            (tile, *row)
            for tile, number in enumerate(numbers)
            for row in task_touches.touches(stage, plan.tasks[number])
        ]
        arrived = np.where(stamps[numbers, 1] > 0, stamps[numbers, 1], stamps[numbers, 0])
        flops = 2 * stage.product.rows * stage.product.columns * stage.product.depth if isinstance(stage, Tiled) else 0
        name = f"{stage.name} (end)" if isinstance(stage, Finish) else stage.name
        runs.append(
            StageRun(name, block_of[numbers], arrived - start, stamps[numbers, 3] - start, Touches.of(rows), flops)
        )
    return Timeline(program.name, buffers.all, tuple(runs), threads, shared_bytes)


class _TaskTouches:
    """What tasks of transformer blocks read and write, as rows of `Touches` without their tile."""

    def __init__(self, plan: Plan, buffers: _Buffers) -> None:
        program = plan.program
        self._plan, self._buffers = plan, buffers
        self._outside = {name: (rows, columns, 2) for name, rows, columns in program.outputs} | {
            name: (max(s.rows for s in program.stages), 0, 2) for name in program.activations
        }
        """Rows, columns (0: as many as are touched) and bytes per element of inputs and outputs."""

    def touches(self, stage: StagePlan, task: Task) -> Iterator[tuple[int, ...]]:
        from tileprof.runtime.encoder.plan import Tiled, touches  # noqa: PLC0415 - beside its use

        task_touches = touches(stage, task)
        for mode, boxes in ((READ, task_touches.reads), (WRITE, task_touches.writes)):
            for box in boxes:
                yield from self._matrix(mode, box)
        if isinstance(stage, Tiled) and task_touches.reads[0][2] > task_touches.reads[0][1]:
            yield self._weights(stage, task)

    def _matrix(self, mode: int, box: Box) -> Iterator[tuple[int, ...]]:
        name, row, row_end, column, column_end = box
        if row_end <= row or column_end <= column:  # a cluster's last tiles may lie behind the last row
            return
        sizes = self._plan.sizes
        height, pitch, size = sizes.get(name) or self._outside.get(name, (row_end, 0, 2))
        kind = "activation" if name in sizes or mode == WRITE else "input"
        pitch = pitch or column_end
        buffer = self._buffers.number(name, max(height, row_end) * pitch * size, kind)
        offset, length = (row * pitch + column) * size, (column_end - column) * size
        yield buffer, mode, offset, length, row_end - row, pitch * size, 1, 0

    def _weights(self, stage: Tiled, task: Task) -> tuple[int, ...]:
        product = stage.product
        wide, deep = min(stage.width, product.columns - task.column), product.depth // stage.splits
        buffer = self._buffers.number(product.weight, 2 * product.depth * product.columns, "parameter")
        if product.k_major:
            box = 2 * (task.column * product.depth + task.part), 2 * deep, wide, 2 * product.depth
        else:
            box = 2 * (task.part * product.columns + task.column), 2 * wide, deep, 2 * product.columns
        return buffer, READ, *box, 1, 0


def of_decoder(shape: DecoderShape, blocks: int, cached: int, clocks: Any, threads: int, shared_bytes: int) -> Timeline:
    """Return a run of a decoder with ``cached`` positions attended.

    ``clocks`` [blocks, layers + 1, stages, 4]: a stage begins, its activations are there, it computes, it has ended.

    Sums of chunks that blocks add up within the attention stage are not among the touches.
    """
    clocks = np.asarray(clocks, np.int64).reshape(blocks, shape.layers + 1, len(DECODER_STAGES), 4)
    start = int(clocks[clocks > 0].min())
    shares = _Shares(shape, blocks, cached)
    runs = []
    for layer in range(shape.layers + 1):
        for number, kind in enumerate(DECODER_STAGES):
            if (kind == "head") != (layer == shape.layers):
                continue
            here = clocks[:, layer, number]
            active = np.flatnonzero(here.max(axis=1) > 0)
            begin = np.where(here[active, 1] > 0, here[active, 1], here[active, 0])
            end = here[active].max(axis=1)
            rows = [
                (tile, *row) for tile, block in enumerate(active) for row in shares.touches(layer, kind, int(block))
            ]
            runs.append(
                StageRun(
                    f"{kind} {layer}" if kind != "head" else kind,
                    active,
                    begin - start,
                    end - start,
                    Touches.of(rows),
                    shares.flops(kind),
                )
            )
    return Timeline(f"decoder, {shape.layers} layers", shares.buffers.all, tuple(runs), threads, shared_bytes)


def of_network(plan: NetworkPlan, times: Any, threads: int, shared_bytes: int) -> Timeline:
    """Return a run of a convolutional network.

    ``times`` [tasks, moments]: a task begins to wait, has what it awaits, ..., has stored, has posted; 0 where it has
    no such moment.
    """
    times = np.asarray(times, np.int64)
    block_of = np.repeat(np.arange(plan.blocks), np.diff(plan.heads, axis=1)[:, 0])
    start = int(times[times > 0].min())
    tiles = _NetworkTouches(plan)
    runs = []
    for layer in range(len(plan.network.layers)):
        here = np.flatnonzero(plan.tasks[:, 0] == layer)
        rows = [
            (number, *row)
            for number, (_, image, y, x, column) in enumerate(plan.tasks[here, :5].tolist())
            for row in tiles.touches(layer, image, y, x, column)
        ]
        begin = np.where(times[here, 1] > 0, times[here, 1], times[here, 0])
        name, end = plan.network.name(layer), times[here].max(axis=1)
        runs.append(StageRun(name, block_of[here], begin - start, end - start, Touches.of(rows), tiles.flops(layer)))
    return Timeline("convolutional network", tiles.buffers.all, tuple(runs), threads, shared_bytes)


class _NetworkTouches:
    """What tiles of a convolutional network read and write, as rows of `Touches` without their tile."""

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan, self._layers, self.buffers = plan, plan.network.layers, _Buffers()
        self._outputs = [
            self.buffers.number(plan.network.name(n), _HALF * int(np.prod(layer.shape)), "activation")
            for n, layer in enumerate(self._layers)
        ]

    def flops(self, number: int) -> int:
        """Return floating point operations of a layer."""
        from tileprof.runtime.convnet.network import Convolution  # noqa: PLC0415 - beside its use

        layer = self._layers[number]
        if not isinstance(layer, Convolution):
            return 0
        return 2 * int(np.prod(layer.shape)) * layer.reads[3] * layer.size[0] * layer.size[1]

    def touches(self, number: int, image: int, y: int, x: int, column: int) -> Iterator[tuple[int, ...]]:
        from tileprof.runtime.convnet.network import INPUT, Convolution  # noqa: PLC0415 - beside its use
        from tileprof.runtime.convnet.plan import Tile, reads  # noqa: PLC0415

        layer, tiling, network = self._layers[number], self._plan.tilings[number], self._plan.network
        yield from self._writes(number, image, y, x, column)
        for read in reads(network, tiling, Tile(number, image, y, x, column)):
            _, height, width, channels = self._layers[read.layer].shape
            row, source = _HALF * width * channels, self._outputs[read.layer]
            first, end = read.rows
            for one in range(*read.images):
                yield source, READ, (one * height + first) * row, (end - first) * row, 1, 0, 1, 0
        if layer.source == INPUT:
            size = _HALF * int(np.prod(layer.reads))
            yield self.buffers.number("image", size, "input"), READ, 0, size, 1, 0, 1, 0
        if isinstance(layer, Convolution):
            channels, first = layer.shape[3], column * tiling.width
            deep, wide = layer.reads[3] * layer.size[0] * layer.size[1], min(tiling.width, channels - first)
            weights = self.buffers.number(f"weights of {network.name(number)}", _HALF * deep * channels, "parameter")
            yield weights, READ, _HALF * deep * first, _HALF * deep * wide, 1, 0, 1, 0

    def _writes(self, number: int, image: int, y: int, x: int, column: int) -> Iterator[tuple[int, ...]]:
        tiling = self._plan.tilings[number]
        images, height, width, channels = self._layers[number].shape
        first, pitch = column * tiling.width, _HALF * channels
        wide, across, down = (
            min(tiling.width, channels - first), min(tiling.columns, width - x), min(tiling.rows, height - y)
        )  # fmt: skip
        for one in range(image, min(images, image + tiling.images)):
            offset = _HALF * (((one * height + y) * width + x) * channels + first)
            yield self._outputs[number], WRITE, offset, _HALF * wide, across, pitch, down, pitch * width


class _Shares:
    """The work of a decoder's block in a stage, as common.cuh deals it out: groups of eight rows, the first of which
    moves on from stage to stage.
    """

    def __init__(self, shape: DecoderShape, blocks: int, cached: int) -> None:
        from tileprof.runtime.decode.handover import Handover  # noqa: PLC0415 - beside its use

        self._shape, self._blocks, self._cached, self.buffers = shape, blocks, cached, _Buffers()
        self._chunks = Handover(shape, blocks, cached).chunks
        qkv, hidden, gate = (n // _GROUP for n in (shape.qkv, shape.hidden, shape.intermediate))
        self._groups = {"qkv": qkv, "output": hidden, "gate": gate, "down": hidden, "head": shape.vocabulary // _GROUP}
        self._before = {"qkv": 0, "output": qkv, "gate": qkv + hidden, "down": qkv + hidden + 2 * gate, "head": 0}
        self._of_layer = qkv + 2 * hidden + 2 * gate

    def flops(self, kind: str) -> int:
        shape = self._shape
        if kind == "attention":
            return 4 * shape.batch * shape.heads * shape.head_dim * self._cached
        into = {"output": shape.query, "down": shape.intermediate}.get(kind, shape.hidden)
        return 2 * shape.batch * into * self._groups[kind] * _GROUP * (2 if kind == "gate" else 1)

    def touches(self, layer: int, kind: str, block: int) -> Iterator[tuple[int, ...]]:
        """Yield rows of `Touches` without their tile."""
        shape = self._shape
        if kind == "attention":
            yield from self._attention(layer, block)
            return
        source, width, into = {
            "qkv": (f"out {layer - 1}" if layer else "embedded", shape.hidden, f"qkv {layer}"),
            "output": (f"attended {layer}", shape.query, f"middle {layer}"),
            "gate": (f"middle {layer}", shape.hidden, f"activated {layer}"),
            "down": (f"activated {layer}", shape.intermediate, f"out {layer}"),
            "head": (f"out {layer - 1}", shape.hidden, "logits"),
        }[kind]
        size = 2 * shape.batch * width
        yield self._number(source, size, "activation"), READ, 0, size, 1, 0, 1, 0
        groups = self._groups[kind]
        first = (block - (layer * self._of_layer + self._before[kind])) % self._blocks
        count = max(0, -(-(groups - first) // self._blocks))
        if count == 0:
            return
        rows, step = groups * _GROUP, self._blocks * _GROUP
        for part in range(2 if kind == "gate" else 1):
            weight = self._number(f"{kind} weight {layer}.{part}", 2 * rows * width, "parameter")
            yield weight, READ, 2 * first * _GROUP * width, 2 * _GROUP * width, count, 2 * step * width, 1, 0
        out = self._number(into, 2 * shape.batch * rows, "activation")
        yield out, WRITE, 2 * first * _GROUP, 2 * _GROUP, count, 2 * step, shape.batch, 2 * rows

    def _attention(self, layer: int, block: int) -> Iterator[tuple[int, ...]]:
        shape, chunks = self._shape, self._chunks
        qkv = self._number(f"qkv {layer}", 2 * shape.batch * shape.qkv, "activation")
        attended = self._number(f"attended {layer}", 2 * shape.batch * shape.query, "activation")
        cache = 2 * shape.batch * shape.kv_heads * shape.cache * shape.head_dim
        for task in range(block, shape.batch * shape.kv_heads * chunks, self._blocks):
            pair, chunk = divmod(task, chunks)
            sequence, head = divmod(pair, shape.kv_heads)
            at, width = 2 * sequence * shape.qkv, 2 * shape.head_dim
            yield qkv, READ, at + head * shape.sharers * width, shape.sharers * width, 1, 0, 1, 0
            if chunk == chunks - 1:
                yield qkv, READ, at + 2 * shape.query + head * width, width, 2, shape.kv_heads * width, 1, 0
            positions = -(-self._cached // chunks)
            for name in ("keys", "values"):
                where = (pair * shape.cache + chunk * positions) * width
                yield (
                    self._number(f"{name} {layer}", cache, "input"), READ, where,
                    max(1, min(positions, self._cached - chunk * positions)) * width, 1, 0, 1, 0,
                )  # fmt: skip
            for sharer in range(chunk, shape.sharers, chunks):
                to = 2 * sequence * shape.query + (head * shape.sharers + sharer) * width
                yield attended, WRITE, to, width, 1, 0, 1, 0

    def _number(self, name: str, size: int, kind: str) -> int:
        return self.buffers.number(name, size, "input" if name == "embedded" else kind)
