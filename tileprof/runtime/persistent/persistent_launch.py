"""Launches of the persistent kernel on torch's current stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import torch

from tileprof.errors import UserError
from tileprof.runtime.persistent.dealing import Dealer, TaskGraph
from tileprof.runtime.persistent.driver import MAP_WORDS, Arguments
from tileprof.runtime.persistent.persistent_build import KERNEL, RESIDENT
from tileprof.runtime.persistent.plan import I32, K_BLOCK, Box, Halo, Plan, StagePlan
from tileprof.runtime.persistent.source import Options, header, paired
from tileprof.runtime.stages.attention import Attention
from tileprof.runtime.stages.conv import NORM_ROLES, Conv2d
from tileprof.runtime.stages.gemm import Gemm

THREADS: Final = 384
"""Threads per block: one warpgroup of loaders, two that multiply."""

MOST_POSTS: Final = 256
"""Semaphores that a task posts, by a warp: more are more than a finer wait can gain."""

_MOST_PREPARED: Final = 256
"""Sets of addresses whose arguments are kept: instances of a graph, inputs that an allocator hands out in turn."""

_POINTERS: Final = 3 * MAP_WORDS  # of StageTensors of common.cuh
_STAGE_WORDS: Final = _POINTERS + 8
_PARTIALS: Final = _POINTERS + 3  # behind out, bias and residual
_NORM: Final = _PARTIALS + 1
_TAIL_WORDS: Final = 16  # nine pointers behind the stages, and what makes the size one that 64 divides

Shared = tuple[Any, ...]
"""seed [1], flags [`dealing.flag_words`], state [2] and record [8], int32 on the device and zero at first; where the
CPU deals, its memory.
"""


class Launcher:
    """A plan's kernel, compiled and with its task lists on the device. Raises `UserError` where it cannot be.

    ``delay_ns``: for tests, tasks sleep up to this time. ``timeout_ns``: a wait that lasts longer writes the record and
    gives up. ``options``: how shared memory is used.
    ``whole``: blocks start once there is room for all.
    """

    def __init__(
        self,
        plan: Plan,
        device: Any,
        *,
        delay_ns: int = 0,
        timeout_ns: int = 2_000_000_000,
        options: Options | None = None,
        whole: bool = False,
    ) -> None:
        if int((plan.post_ptr[1:] - plan.post_ptr[:-1]).max(initial=0)) > MOST_POSTS:
            raise UserError(
                f"a tile posts more than {MOST_POSTS} semaphores; take a coarser policy (row, strided or grid)"
            )
        self.plan, self.device, self._whole = plan, torch.device(device), whole
        self.options = replace(options or Options(), delay_ns=delay_ns, timeout_ns=timeout_ns)
        self._function = KERNEL.loaded(header(plan, self.options), self.device)
        self._tables = [
            torch.from_numpy(table.reshape(-1).copy()).to(self.device) for table in tables_of(plan, self.options.dealer)
        ]
        self._cached_arguments: dict[tuple[int, ...], Arguments] = {}

    def launch(self, tensors: Sequence[Mapping[str, Any]], shared: Shared) -> None:
        """Run the plan on the current stream; ``tensors``: of each stage, by role. May be captured into a graph."""
        key = *(t.data_ptr() for stage in tensors for t in stage.values()), *(t.data_ptr() for t in shared)
        if key not in self._cached_arguments:
            if len(self._cached_arguments) >= _MOST_PREPARED:
                del self._cached_arguments[
                    next(iter(self._cached_arguments))
                ]  # the oldest; launches have copied what they were given
            self._cached_arguments[key] = self._arguments(tensors, shared)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self._function.launch(
            self.plan.clusters * self.plan.split, THREADS, stream, self._cached_arguments[key],
            programmatic=self.options.programmatic, cooperative=self._whole,
        )  # fmt: skip

    def _arguments(self, tensors: Sequence[Mapping[str, Any]], shared: Shared) -> Arguments:
        stages = self.plan.stages
        arguments = Arguments(_STAGE_WORDS * len(stages) + _TAIL_WORDS)
        partials = shared[1].data_ptr() + self.plan.semaphore_bytes
        for number, (stage, operands) in enumerate(zip(stages, tensors, strict=True)):
            _put_stage(arguments, _STAGE_WORDS * number, stage, operands, self.plan)
            arguments.words[_STAGE_WORDS * number + _PARTIALS] = partials
            partials += stage.partial_bytes
        at = _STAGE_WORDS * len(stages)
        for offset, tensor in enumerate((*self._tables, *shared)):
            arguments.words[at + offset] = tensor.data_ptr()
        return arguments


def tables_of(plan: Plan, dealer: Dealer = Dealer.LISTS) -> tuple[I32, ...]:
    """Return heads, or what is dealt from, tasks, waits and posts, as the kernel reads them."""
    posts_end = np.where(plan.early, -1, plan.post_ptr[1:])  # as the kernel knows an early task
    tasks = np.column_stack([plan.tasks, plan.wait_ptr[:-1], plan.wait_ptr[1:], plan.post_ptr[:-1], posts_end])
    task_table = _heads(plan, tasks) if dealer is Dealer.LISTS else TaskGraph.of(plan).table
    return task_table, tasks, plan.waits, plan.posts


def _heads(plan: Plan, tasks: I32) -> I32:
    """Return head of kernel.cu for every cluster: where its tasks begin and end, and the first of them."""
    begin, end = plan.task_ptr[:-1], plan.task_ptr[1:]
    first = tasks[np.minimum(begin, len(tasks) - 1)] if len(tasks) else np.zeros((len(begin), 8), np.int32)
    return np.column_stack([begin, end, np.zeros_like(begin), np.zeros_like(begin), first])


def _put_stage(arguments: Arguments, at: int, stage: StagePlan, operands: Mapping[str, Any], plan: Plan) -> None:
    """StageTensors of common.cuh: three tensor maps, then pointers."""
    operator = stage.operator
    for role, tensor in operands.items():
        if tensor.data_ptr() % 16:
            raise UserError(f"{role} of {operator.NAME} begins at an address that is not a multiple of 16")
    match operator:
        case Gemm():
            _put_gemm(arguments, at, stage, operator, operands, paired(plan))
        case Conv2d():
            _put_conv(arguments, at, operator, operands, stage.halo(plan.split))
        case Attention():
            _put_attention(arguments, at, operator, operands)
    for offset, role in enumerate(("out", "bias", "residual")):
        arguments.words[at + _POINTERS + offset] = operands[role].data_ptr() if role in operands else 0
    for offset, role in enumerate(NORM_ROLES):
        arguments.words[at + _NORM + offset] = operands[role].data_ptr() if role in operands else 0


def _put_gemm(
    arguments: Arguments, at: int, stage: StagePlan, operator: Gemm, operands: Mapping[str, Any], pair: bool
) -> None:
    (m, k), row = operator.a.shape, 2 * operator.a.strides[0]
    n, weight_row = operator.b.shape[1], 2 * operator.b.strides[1]
    dtype, high = operator.a.dtype, min(stage.rows, operator.tile[0])
    wide = stage.columns // 2 if pair else operator.tile[1] // stage.abreast // (2 if stage.interleaved else 1)
    # As images of one row of pixels and taps of one: the same loads as a convolution's.
    arguments.put_map(
        at, operands["a"].data_ptr(), dtype, (k, m, 1, 1), (row, m * row, m * row), (K_BLOCK, high, 1, 1), (1, 1, 1, 1)
    )
    weights = operands["b"].data_ptr()
    arguments.put_map(
        at + MAP_WORDS, weights, dtype, (k, 1, n), (weight_row, weight_row), (K_BLOCK, 1, wide), (1, 1, 1)
    )


def _put_conv(arguments: Arguments, at: int, operator: Conv2d, operands: Mapping[str, Any], halo: Halo | None) -> None:
    images, height, width, channels = operator.x.shape
    image, row, column, _ = (2 * stride for stride in operator.x.strides)
    box = halo or Box.of(operator)
    assert box is not None
    step, dtype = operator.stride, operator.x.dtype
    sides = K_BLOCK, (box.columns - 1) * step + 1, (box.rows - 1) * step + 1, box.images
    sizes, strides, steps = (channels, width, height, images), (column, row, image), (1, step, step, 1)
    arguments.put_map(at, operands["x"].data_ptr(), dtype, sizes, strides, sides, steps)
    out, r, s, _ = operator.weight.shape
    taps, weights = (2 * channels, 2 * channels * r * s), operands["weight"].data_ptr()
    box_of_weights = K_BLOCK, 1, operator.tile[1]
    arguments.put_map(at + MAP_WORDS, weights, dtype, (channels, r * s, out), taps, box_of_weights, (1, 1, 1))


def _put_attention(arguments: Arguments, at: int, operator: Attention, operands: Mapping[str, Any]) -> None:
    """Put the maps of boxes of 64 rows of a head. Rows of keys that no query sees are zeros: nothing says that they
    have been computed.
    """
    for number, role in enumerate("kqv"):
        view = operator.views()[role]
        heads, rows, columns = view.shape
        head, row = 2 * view.strides[0], 2 * view.strides[1]
        sizes = columns, heads, rows if role == "q" else operator.key_rows, 1
        arguments.put_map(
            at + number * MAP_WORDS, operands[role].data_ptr(), view.dtype, sizes, (head, row, rows * row),
            (K_BLOCK, 1, K_BLOCK, 1), (1, 1, 1, 1),
        )  # fmt: skip


def max_clusters(split: int) -> int:
    """Return clusters of ``split`` blocks that the current GPU holds at a time, each block with an SM's shared memory
    to itself.
    """
    return _max_clusters(split, torch.cuda.current_device())


@cache
def _max_clusters(split: int, device: int) -> int:
    return RESIDENT.loaded("", device).clusters(split, THREADS)
