"""Times each stage of a chain by itself, in a CUDA graph: predictions start from these times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tileprof.devices import Device, occupancy
from tileprof.policy.format import Policy, Stage
from tileprof.runtime.chain import Chain
from tileprof.runtime.measuring.timing import time_graph
from tileprof.runtime.policy_on_gpu import GpuPipeline

_ROTATED_BYTES: Final = 200 * 2**20
"""Bytes that the instances of a graph touch together: far above an L2 of 60 MB."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage's kernel alone: microseconds in a graph, one after the other, and what a block takes."""

    us: float
    blocks_per_sm: int
    threads: int
    registers: int
    shared_bytes: int


def stage_times(chain: Chain, device: Device) -> list[StageTime]:
    """Return every stage of a chain by itself on the GPU here, weights rotated out of L2."""
    times = []
    for name, operator in zip(chain.names, chain.operators, strict=True):
        alone = Chain((name,), (operator,))
        policy = Policy(
            (Stage(name, operator.grid, op=operator.NAME, operator=operator.describe()),),
            (),
            (),
            guard={"renamed": True},
        )
        count = instances(alone)
        pipelines = pipelines_of(policy, "graph", count)
        input_sets = rotated(pipelines[0], count)
        us = statistics.median(time_graph(partial(launch_all, pipelines, input_sets))) / count
        (kernel,) = pipelines[0].compiled(input_sets[0])
        threads, registers, shared = 32 * kernel.metadata.num_warps, int(kernel.n_regs), int(kernel.metadata.shared)
        blocks = occupancy(device, threads, registers, shared).blocks_per_sm
        times.append(StageTime(us, max(1, blocks), threads, registers, shared))
    return times


def persistent_stage_us(policy: Policy) -> list[float]:
    """Return every stage of the persistent kernel alone, in a graph, one launch after the other: what `predicted_us`
    starts from.
    """
    chain = Chain.of_policy(policy)
    count = instances(chain)
    pipelines = pipelines_of(policy, "persistent-stages", count)
    input_sets = rotated(pipelines[0], count)
    launch_all(pipelines, input_sets)  # stages then read numbers, not poison: arithmetic on these takes less power
    times = []
    for number in range(len(chain.operators)):
        work = partial(launch_all, pipelines, input_sets, number)
        times.append(statistics.median(time_graph(work)) / count)
    return times


def instances(chain: Chain) -> int:
    """Return copies of the chain in one graph, so that what they touch together is far above L2."""
    bytes_ = sum(max(v.elements for v in views) * views[0].item_bytes for views in chain.tensors().values())
    return max(2, -(-_ROTATED_BYTES // bytes_))


def pipelines_of(policy: Policy, schedule: str, count: int, *, ahead: bool = False) -> list[GpuPipeline]:
    """Return ``count`` pipelines, each with memory and semaphores of its own."""
    first = GpuPipeline(policy, schedule=schedule, ahead=ahead, unchecked=True)
    return [first, *(first.twin() for _ in range(count - 1))]


def rotated(pipeline: GpuPipeline, count: int) -> list[dict[str, Any]]:
    """Return inputs for ``count`` pipelines, each in memory of its own."""
    input_sets = [pipeline.example()]
    return input_sets + [{name: tensor.clone() for name, tensor in input_sets[0].items()} for _ in range(count - 1)]


def launch_all(
    pipelines: Sequence[GpuPipeline], input_sets: Sequence[Mapping[str, Any]], stage: int | None = None
) -> None:
    """Every pipeline on its inputs, one after the other; with ``stage`` only that one."""
    for pipeline, tensors in zip(pipelines, input_sets, strict=True):
        if stage is None:
            pipeline.launch(tensors)
        else:
            pipeline.launch_stage(stage, tensors)
