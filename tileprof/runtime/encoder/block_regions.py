"""Stacks of transformer blocks in an ATen graph, as regions for the transformer kernel.

Blocks that feed each other become one region. What differs from a block in anything is left alone, and the log says
why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN
from tileprof.runtime.compile.regions.region import Region, Runner
from tileprof.runtime.encoder.block import Refused, Stack, add_block, with_last_norm
from tileprof.runtime.encoder.math_attention import attended
from tileprof.runtime.encoder.patches import patches
from tileprof.runtime.encoder.plan import plan_without_tasks
from tileprof.runtime.encoder.program import Program
from tileprof.runtime.encoder.source import PARAMETERS, Options, header

if TYPE_CHECKING:
    from tileprof.runtime.programs.timeline import Timeline

LOG: Final = logging.getLogger("tileprof.runtime.compile")


def find(graph: fx.Graph) -> Iterator[Region]:
    """Yield stacks of transformer blocks, and the patches of images in front of them; see the module."""
    stacks = list(_stacks(graph))
    yield from stacks
    if stacks:
        yield from patches(graph)


def _stacks(graph: fx.Graph) -> Iterator[Region]:
    stack: Stack | None = None
    for node in graph.nodes:
        if (attention := attended(node)) is None:
            continue
        for before in (stack, Stack()):
            if before is None:
                continue
            try:
                stack = add_block(before, attention)
                break
            except Refused as refusal:
                LOG.info("transformer blocks: %s is not taken: %s", node.name, refusal)
                if before.blocks:
                    yield from _region(before)
                stack = None
    if stack is not None:
        yield from _region(stack)


def _region(stack: Stack) -> Iterator[Region]:
    try:
        yield _region_of(stack)
    except (Refused, UserError) as refusal:
        LOG.info("transformer blocks: %d blocks are not taken: %s", stack.blocks, refusal)


def _region_of(stack: Stack) -> Region:
    """Return the stack as a region. Raises `Refused` or `UserError` where it is none."""
    stack = with_last_norm(stack)
    nodes = _nodes_without_shared_constants(stack)
    outputs, read = aten.outputs_of(nodes), aten.inputs_of(nodes)
    unread = tuple(node for node in read if node in stack.unread - stack.activations)
    inputs = tuple(node for node in read if node not in unread)
    if strange := set(outputs) - {stack.end, *(node for node, _ in stack.cache_outputs)}:
        raise Refused(f"{min(strange).name} is read outside")
    if missing := (stack.parameters | stack.activations) - set(inputs):
        raise Refused(f"{min(missing).name} is not an input")
    sizes = tuple((node.name, *_rows_and_columns(node, stack)) for node in outputs)
    moving = frozenset(node.name for node in inputs if node not in stack.parameters)
    name = f"{stack.blocks} transformer blocks"
    program = Program(
        name, stack.dtype_name, tuple(stack.stages), tuple(n.name for n in inputs), moving, sizes, stack.last
    )
    if len(moving) + len(sizes) > PARAMETERS:
        raise Refused(f"it has more than {PARAMETERS} activations and results")
    header(plan_without_tasks(program, blocks=32, cluster=2), Options())
    shapes = tuple(aten.shape(node) or () for node in outputs)
    return Region(
        program.name,
        tuple(sorted(nodes)),
        inputs,
        outputs,
        (),
        partial(_runner_of, program, shapes),
        unread=unread,
        what=program,
        timed=partial(_timeline_of, program),
    )


def _rows_and_columns(node: fx.Node, stack: Stack) -> tuple[int, int]:
    sizes = aten.shape(node) or (0,)
    elements = 1
    for size in sizes:
        elements *= size
    columns = elements // stack.rows if node is stack.end else sizes[-1]
    return elements // columns, columns


def _nodes_without_shared_constants(stack: Stack) -> set[fx.Node]:
    """Return the stack's nodes less constants that others read too, which then come in from outside."""
    nodes = set(stack.nodes)
    for node in aten.outputs_of(nodes):
        if aten.calls(node, ATEN.scalar_tensor.default, ATEN.lift_fresh_copy.default):
            nodes.discard(node)
    return nodes


def _runner_of(program: Program, shapes: tuple[tuple[int, ...], ...], device: torch.device) -> Runner:
    from tileprof.runtime.encoder.encoder_launch import Runner as Launched  # noqa: PLC0415 - talks to the driver

    return Launched(program, shapes, device)


def _timeline_of(program: Program, device: torch.device, inputs: Sequence[Any]) -> Timeline:
    from tileprof.runtime.encoder.encoder_launch import timed_run  # noqa: PLC0415 - talks to the driver

    return timed_run(program, device, inputs)
