"""Launches of the transformer kernel on torch's current stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tileprof.errors import UserError
from tileprof.runtime.encoder.encoder_build import KERNEL
from tileprof.runtime.encoder.memory import Memory, memory_faults, memory_of
from tileprof.runtime.encoder.plan import K_CHUNK, Plan, Tiled, cluster_for, faults, plan_of
from tileprof.runtime.encoder.program import Program
from tileprof.runtime.encoder.source import (
    PARAMETER,
    PARAMETERS,
    SHARED_BYTES,
    WORKSPACE,
    Options,
    header,
    stage_table,
    stream_tables,
    task_tables,
)
from tileprof.runtime.persistent.driver import MAP_WORDS, Arguments
from tileprof.runtime.persistent.persistent_launch import max_clusters
from tileprof.runtime.programs.timeline import Timeline, of_blocks

THREADS: Final = 384
_LINE: Final = 32
"""Words of a cache line: state, seed and record have one each."""

_POINTERS: Final = 11  # words of Arguments in tables.cuh, in front of its parameters
_WORDS: Final = _POINTERS + PARAMETERS + 2
_MOST_PREPARED: Final = 8


class Launcher:
    """A plan's tables, workspace and compiled kernel on a device. Not for two streams at once. Raises `UserError` where
    the kernel cannot be made.
    """

    def __init__(
        self, plan: Plan, device: torch.device, options: Options | None = None, memory: Memory | None = None
    ) -> None:
        self.plan, self.device, self._options = plan, device, options or Options()
        program = plan.program
        self._function = KERNEL.loaded(header(plan, self._options), device)
        self.memory = memory or memory_of(plan)
        words = self.memory.bytes // 4
        self._workspace = torch.full((words,), -1, dtype=torch.int32, device=device)  # absent, says the kernel
        tasks, ends = task_tables(plan)
        self._tables = [_upload(table, device) for table in (tasks, ends, *stream_tables(plan))]
        lines = 3 + self.memory.generations[-1] + 1
        self._counts = torch.zeros(lines * _LINE, dtype=torch.int32, device=device)
        self.stamps = torch.zeros((len(tasks), 4), dtype=torch.int64, device=device)
        self._moving = (*(n for n in program.inputs if n in program.activations), *(n for n, _, _ in program.outputs))
        if len(self._moving) > PARAMETERS:
            raise UserError(f"{program.name} has more than {PARAMETERS} activations and outputs")
        self._cached_arguments: dict[tuple[int, ...], tuple[Arguments, list[Tensor]]] = {}

    def times(self) -> Tensor:
        """Return when each task of the plan began, had its activations, had its sums and ended in the last run, in
        nanoseconds; int64 [tasks, 4]. The kernel writes them block by block.
        """
        dealt = torch.tensor([task for block in self.plan.blocks for task in block], device=self.stamps.device)
        return torch.empty_like(self.stamps).index_copy_(0, dealt, self.stamps)

    @property
    def seed(self) -> Tensor:
        """The seed of delays; int32 [1]."""
        return self._counts[_LINE : _LINE + 1]

    @property
    def record(self) -> Tensor:
        """Record of the first wait that gave up: 1, stage, row, column, block; int32 [5], zeros if none did."""
        return self._counts[2 * _LINE : 2 * _LINE + 5]

    def ended(self) -> Tensor:
        """Return how many blocks have ended each generation, in all runs so far; int32 [generations]."""
        return self._counts[3 * _LINE :: _LINE]

    def buffer(self, name: str) -> Tensor:
        """Return a matrix between stages, as the last run left it: its memory may have become absent, or another
        matrix's.
        """
        rows, columns, size = self.plan.sizes[name]
        dtype = torch.float32 if size == 4 else getattr(torch, self.plan.program.dtype)
        begin = self.memory.places(int(self._counts[0]) - 1)[name] // size
        return self._workspace.view(dtype)[begin : begin + rows * columns].view(rows, columns)

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Return new outputs of one launch on the current stream."""
        program = self.plan.program
        dtype = getattr(torch, program.dtype)
        outputs = [
            torch.empty((rows, columns), dtype=dtype, device=self.device) for _, rows, columns in program.outputs
        ]
        key = tuple(tensor.data_ptr() for name, tensor in inputs.items() if name not in program.activations)
        if key not in self._cached_arguments:
            if len(self._cached_arguments) >= _MOST_PREPARED:
                del self._cached_arguments[next(iter(self._cached_arguments))]
            self._cached_arguments[key] = self._prepared(inputs)
        arguments, _ = self._cached_arguments[key]
        tensors = {**inputs, **{name: tensor for (name, _, _), tensor in zip(program.outputs, outputs, strict=True)}}
        for number, name in enumerate(self._moving):
            address = tensors[name].data_ptr()
            if address % 16:
                raise UserError(f"{name} begins at an address that is not a multiple of 16")
            arguments.words[_POINTERS + number] = address
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self._function.launch(len(self.plan.blocks), THREADS, stream, arguments, programmatic=False, cooperative=False)
        return outputs

    def _prepared(self, inputs: Mapping[str, Tensor]) -> tuple[Arguments, list[Tensor]]:
        if torch.cuda.is_current_stream_capturing():
            raise UserError(
                f"{self.plan.program.name}: parameters are at new addresses in a capture; run it once before"
            )

        places: dict[str, int] = {}
        wiped: dict[str, int] = {}
        between = int(self._workspace.data_ptr())

        def address(name: str) -> int:
            if name in self._moving:
                return PARAMETER | self._moving.index(name)
            if name in places:
                return WORKSPACE | (between + places[name])
            tensor = inputs[name]
            if tensor.data_ptr() % 16:
                raise UserError(f"{name} begins at an address that is not a multiple of 16")
            return int(tensor.data_ptr())

        def wiped_address(name: str) -> int:
            return between + wiped[name] if name in wiped else 0

        maps = Arguments(MAP_WORDS * len(self.plan.stages))
        put_maps(self.plan, maps, address)
        words = np.frombuffer(bytes(maps.words), np.int64)
        memory = self.memory
        rows = []
        for run in range(memory.runs):
            places, wiped = memory.places(run), memory.wiped(run)
            rows.append(stage_table(self.plan, memory.generations, address, wiped_address))
        tables = [_upload(words, self.device), _upload(np.concatenate(rows), self.device)]
        tasks, ends, streams, stream_ends = self._tables
        counts = [self._counts.data_ptr() + 4 * _LINE * line for line in (0, 2, 1, 3)]  # state, record, seed, fences
        pointers = [*(t.data_ptr() for t in (*tables, tasks, ends)), *counts[:3], self.stamps.data_ptr(), counts[3]]
        numbers = len(self.plan.stages), memory.runs, memory.generations[-1] + 1, 0
        arguments = Arguments(_WORDS)
        arguments.words[: len(pointers)] = pointers
        arguments.words[len(pointers) : _POINTERS] = np.array(numbers, np.int32).view(np.uint64).tolist()
        arguments.words[_WORDS - 2], arguments.words[_WORDS - 1] = streams.data_ptr(), stream_ends.data_ptr()
        return arguments, tables


class Runner:
    """Runs a region's program (a `Runner` of `compile.regions.region`): inputs in order, outputs shaped as nodes."""

    frozen = False

    def __init__(
        self, program: Program, shapes: Sequence[Sequence[int]], device: torch.device, cluster: int | None = None
    ) -> None:
        capability = torch.cuda.get_device_capability(device)
        if capability != (9, 0):
            raise UserError(f"the transformer kernel is for compute capability 9.0; this GPU has {capability}")
        cluster = cluster or cluster_for(program)
        with torch.cuda.device(device):
            plan = plan_of(program, max_clusters(cluster) * cluster, cluster)
        memory = memory_of(plan)
        if problems := (*faults(plan), *memory_faults(plan, memory)):
            raise UserError(f"{program.name}: {problems[0]}")
        self._launcher = Launcher(plan, device, memory=memory)
        self._shapes = [tuple(shape) for shape in shapes]

    def twin(self) -> Runner:
        """Return a runner of the same plan, with semaphores and memory of its own."""
        other = copy(self)
        other._launcher = Launcher(self._launcher.plan, self._launcher.device, memory=self._launcher.memory)  # noqa: SLF001
        return other

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return outputs of one launch on the current stream."""
        tensors = dict(zip(self._launcher.plan.program.inputs, inputs, strict=True))
        return tuple(out.view(shape) for out, shape in zip(self._launcher(tensors), self._shapes, strict=True))

    def check(self) -> None:
        """Synchronise; raise `RuntimeError` if a wait gave up."""
        report(self._launcher)


def timed_run(program: Program, device: torch.device, inputs: Sequence[Tensor], cluster: int = 2) -> Timeline:
    """Return what each task did in a run that is not the first, by a kernel with clocks."""
    with torch.cuda.device(device):
        plan = plan_of(program, max_clusters(cluster) * cluster, cluster)
        launcher = Launcher(plan, device, Options(stamps=True))
        for _ in range(3):
            launcher(dict(zip(program.inputs, inputs, strict=True)))
        report(launcher)
    return of_blocks(plan, launcher.times().cpu().numpy(), THREADS, SHARED_BYTES)


def report(launcher: Launcher) -> None:
    """Synchronise; raise `RuntimeError` with stage, tile and semaphore if a wait gave up."""
    gave_up, stage, row, column, block = launcher.record.tolist()
    if gave_up:
        launcher.record.zero_()
        name = launcher.plan.stages[stage].name
        raise RuntimeError(
            f"{launcher.plan.program.name}: block {block} gave up waiting for what {name} (stage {stage}) reads at "
            f"row {row}, column {column}"
        )


def put_maps(plan: Plan, maps: Arguments, address: Any) -> None:
    """The tensor map of each product's weights: K-major with 128-byte swizzle, or blocks of 32 columns with 64-byte
    swizzle.
    """
    dtype = plan.program.dtype
    for number, stage in enumerate(plan.stages):
        if not isinstance(stage, Tiled):
            continue
        product, at = stage.product, MAP_WORDS * number
        weight = address(product.weight)
        if product.k_major:
            sizes, box = (product.depth, product.columns, 1), (K_CHUNK, stage.width, 1)
            strides, swizzle = (2 * product.depth, 2 * product.depth * product.columns), 128
        else:
            sizes, box = (32, product.depth, product.columns // 32), (32, K_CHUNK, stage.width // 32)
            strides, swizzle = (2 * product.columns, 64), 64
        maps.put_map(at, weight, dtype, sizes, strides, box, (1, 1, 1), swizzle=swizzle)


def _upload(table: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(np.ascontiguousarray(table).tobytes(), np.int32).copy()).to(device)
