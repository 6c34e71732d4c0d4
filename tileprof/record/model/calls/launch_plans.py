"""Turns an operator call into launches ready to be bound; modelled once for all calls of equal layout."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.errors import UserError
from tileprof.record.model import duration
from tileprof.record.model.calls.call_text import call_description
from tileprof.record.model.fallback import conservative
from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch
from tileprof.trace.footprint import READ, Boxes, Footprint, Launch

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tileprof.devices import Device
    from tileprof.record.model.calls.overload_facts import Operator
    from tileprof.trace.values import LaunchRows
    from tileprof.trace.writer import TraceWriter


@dataclass(slots=True)
class KernelPlan:
    """A kernel of an operator, with what is the same for each of its launches.

    ``slots`` binds each operand slot: a place in ``Call.tensors``, or a `Scratch`. ``rows`` is what its launches share
    in the trace, None until the first one; ``kernel`` holds the footprint's arrays until then.
    """

    kernel: Kernel
    slots: tuple[int | Scratch, ...]
    fingerprint: str
    tiles: int
    duration: duration.Duration
    rows: LaunchRows | None = None
    call: str = ""
    """The arguments of the operator, as in the trace."""
    workspaces: tuple[Scratch, ...] = ()
    written_slots: tuple[int, ...] = ()
    """Places in ``Call.tensors`` that the kernel writes to."""

    def __post_init__(self) -> None:
        boxes = self.kernel.footprint.boxes
        if len(boxes):
            output_operands = np.unique(boxes.operand[boxes.mode != READ]).tolist()
            slots = (self.slots[operand] for operand in output_operands)
            self.written_slots = tuple(slot for slot in slots if not isinstance(slot, Scratch))
        self.workspaces = tuple(slot for slot in self.slots if isinstance(slot, Scratch))

    def launch_rows(self, writer: TraceWriter, op: str) -> LaunchRows:
        """Write the footprint and forget its arrays; what all launches of the kernel share."""
        kernel = self.kernel
        launch = Launch(
            footprint=writer.add_footprint(kernel.footprint),
            operands=(),
            kernel=kernel.name,
            grid=kernel.grid,
            block=kernel.block,
            duration_ns=self.duration.launch_ns,
            timing="modelled",
            coverage=kernel.coverage,
            fingerprint=self.fingerprint,
            op=op,
            cluster=kernel.cluster,
            registers=kernel.registers,
            shared_bytes=kernel.shared_bytes,
            blocks_per_sm=self.duration.blocks_per_sm,
            flops=kernel.flops,
            note=kernel.note,
            shape_source=kernel.shape_source,
            time_source=self.duration.source,
        )
        self.kernel = replace(kernel, footprint=_EMPTY)
        self.rows = writer.alike(launch)
        return self.rows


_EMPTY = Footprint(np.zeros((0, 3), np.int32), Boxes.concat(()))


def plan(
    operator: Operator, call: Call, device: Device, key: Hashable, notes: set[str], *, weight_bytes: int = 0
) -> list[KernelPlan]:
    """Return the launches of ``call`` on ``device``, in a program with so many bytes of weights; ``key`` is its layout.

    Adds to ``notes`` what the trace has to mention.

    An operator without a model becomes conservative; so does one whose model fails, after its traceback.
    """
    output_operands = tuple(o for a in operator.arguments if a.written for o in _operands(call.arguments[a.name]))
    by_value = (
        operator.entry is not None and operator.entry.data_dependent
    )  # reads before it knows that nothing is to do
    if (
        not any(o.numel for o in (*output_operands, *call.outputs))
        and (output_operands or call.outputs)
        and not by_value
    ):
        return []  # nothing to compute: PyTorch returns before it launches
    kernels = [_without_empty(k) for k in _kernels(operator, call, device, output_operands, notes) if k.footprint.tiles]
    return [
        replace(own(kernel, call.op, device, key, weight_bytes=weight_bytes), call=call_description(call, kernel))
        for kernel in kernels
    ]


def _kernels(
    operator: Operator, call: Call, device: Device, output_operands: tuple[Operand, ...], notes: set[str]
) -> list[Kernel]:
    refs = {o.ref for o in output_operands}
    if operator.returns_given:  # the same memory twice would only double the boxes
        operands_once = replace(call, outputs=(), tensors=tuple(o for o in call.tensors if o not in call.outputs))
    else:
        operands_once = call
    if operator.entry is None:
        why = "has no tile model" if operator.strided else "was called on tensors that are not strided"
        notes.add(f"{call.op} {why}: every tile is taken to touch every operand whole.")
        return conservative(operands_once, device, refs, why)
    try:
        return operator.entry.model(call, device)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of a tile model is shown, and costs exactness only
        traceback.print_exc()
        notes.add(
            f"The tile model of {call.op} failed ({type(error).__name__}: {error}): its launches are conservative."
        )
        return conservative(operands_once, device, refs, f"tile model failed: {error}")


def _operands(value: Any) -> list[Operand]:
    if isinstance(value, list):
        return [operand for part in value for operand in _operands(part)]
    return [value] if isinstance(value, Operand) else []


def own(kernel: Kernel, op: str, device: Device, key: Hashable, *, weight_bytes: int = 0) -> KernelPlan:
    """Return a kernel ready to be bound, in a program with so many bytes of weights; ``key`` is its layout, or
    `content`.
    """
    lives = duration.model(kernel, device, weight_bytes=weight_bytes)
    identity = repr((op, key, kernel.name, kernel.grid, kernel.block, kernel.cluster))
    footprint = replace(kernel.footprint, duration_ns=lives.tile_ns)
    return KernelPlan(
        kernel=replace(kernel, footprint=footprint),
        slots=tuple(o if isinstance(o, Scratch) else o.ref for o in kernel.operands),
        fingerprint=blake2b(identity.encode(), digest_size=8).hexdigest(),
        tiles=footprint.tiles,
        duration=lives,
    )


def content(kernel: Kernel) -> tuple[str, bytes]:
    """Return a key that is equal for kernels that touch the same bytes of their operands: what is not modelled from a
    layout alone.
    """
    total = blake2b(repr((kernel.name, kernel.grid, kernel.block, kernel.flops)).encode(), digest_size=16)
    total.update(np.ascontiguousarray(kernel.footprint.block).data)
    for column in fields(Boxes):
        total.update(np.ascontiguousarray(getattr(kernel.footprint.boxes, column.name)).data)
    return kernel.name, total.digest()


def _without_empty(kernel: Kernel) -> Kernel:
    """Return the kernel without operands of no size: they lie in no buffer, and no box can touch them."""
    has_bytes = [bool(o.bytes if isinstance(o, Scratch) else o.numel) for o in kernel.operands]
    if all(has_bytes):
        return kernel
    boxes = kernel.footprint.boxes
    renumbered = (np.cumsum(has_bytes) - 1).astype(np.int32)
    boxes = replace(boxes, operand=renumbered[boxes.operand])
    operands = tuple(o for o, u in zip(kernel.operands, has_bytes, strict=True) if u)
    awaited_slots = frozenset(int(renumbered[slot]) for slot in kernel.awaited if has_bytes[slot])
    footprint = Footprint(kernel.footprint.block, boxes)
    return replace(kernel, operands=operands, footprint=footprint, awaited=awaited_slots)
