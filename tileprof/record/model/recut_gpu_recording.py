"""A recording with its operators cut into the tiles of the model's kernels.

Recordings have cuBLAS's and cuDNN's tiles; stages of the runtime have tiles of their own. Where a trace says how an
operator was called (the CUDA recorder for all of them, the model recorder for products of several launches), its
launches are replaced by those that the tile models make of the same call on the same buffers, and the time that was
recorded for the operator is dealt out to them. All other launches stay as they were recorded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tileprof.record.model.calls import launch_plans
from tileprof.record.model.calls.call_descriptions import described_calls, refusing
from tileprof.record.model.calls.overload_facts import Operator, describe
from tileprof.record.model.tile_model import Call, Operand, Scratch
from tileprof.record.model.tiles import load_all
from tileprof.record.model.tiles.foundations import overrides
from tileprof.record.model.tiles.reductions.batch_norm import evaluated
from tileprof.trace import Boxes, Footprint, Launch, TraceWriter
from tileprof.trace.schema import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from tileprof.trace import Recording

NOTE: Final = (
    "Operators are cut into the tiles of the runtime's kernels, not into those that were recorded; the time of an "
    "operator is the recorded one."
)

ROWS: Final = "rows"
"""The value in place of a tile for a pointwise launch in tiles of a row."""

_FLAT: Final = ("vectorized_elementwise", "unrolled_elementwise")
_SCRATCH_ALIGNMENT: Final = 512
_ALIGNMENT: Final = 16


@dataclass(slots=True)
class Recut:
    """``path`` is the new trace; ``launches[old]`` are the new numbers of a recorded launch's operator."""

    path: Path
    launches: dict[int, tuple[int, ...]]
    operators: int
    """Operators that were cut again."""


@dataclass(slots=True)
class _Group:
    """The launches of one operator call: their numbers in the recording, and the call with where its tensors lie."""

    launches: list[int]
    call: Call
    places: list[tuple[int, int]]
    kernel_plans: list[launch_plans.KernelPlan]
    key: str


def recut(trace: Recording, output: Path, tiles: Mapping[int, str] | None = None) -> Recut:
    """Write ``trace`` again at ``output``, with every operator whose call is known as the tile models cut it.

    ``tiles``: by any launch of an operator, the tile that it gets (a word of `overrides`, or `ROWS`); others follow a
    rule.
    """
    load_all()
    groups = _groups(trace, tiles or {})
    _deal_out_durations(trace, groups)
    by_last = {group.launches[-1]: group for group in groups}
    replaced = {launch for group in groups for launch in group.launches}
    with TraceWriter(
        output, recorder="model", command=list(trace.manifest["command"]), device=trace.device, force=True
    ) as writer:
        numbers = _Writing(trace, writer).run(by_last, replaced)
        for note in (*trace.manifest["notes"], NOTE):
            writer.note(note)
        path = writer.close(int(trace.manifest["exit_code"] or 0))
    launches = {old: new for group in groups for old in group.launches for new in [numbers[group.launches[-1]]]}
    return Recut(path, {**numbers, **launches}, len(groups))


def _groups(trace: Recording, tiles: Mapping[int, str]) -> list[_Group]:
    kernel_plans: dict[str, list[launch_plans.KernelPlan]] = {}
    groups = (_group(trace, members, kernel_plans, tiles) for members in described_calls(trace).values())
    return [group for group in groups if group is not None]


def _group(
    trace: Recording,
    members: list[tuple[int, dict[str, Any]]],
    kernel_plans: dict[str, list[launch_plans.KernelPlan]],
    tiles: Mapping[int, str],
) -> _Group | None:
    """Return the group of these launches; None where no tile model cuts the call exactly, or a tensor's memory is not
    in the trace.
    """
    launches, (_, text) = [launch for launch, _ in members], members[-1]
    if not text["tensors"]:  # the recording ends within the operator
        return None
    name = str(trace.launches["op"].iloc[launches[0]])
    operator = _operator(name)
    if operator is None or operator.entry is None or operator.entry.data_dependent:
        return None
    call = _call(name, operator, text)
    places = [(t["buffer"], t["offset"]) for t in text["tensors"]]
    tile_shapes = tuple(tiles[launch] for launch in launches if launch in tiles)
    key = repr((name, call.arguments, call.outputs, tile_shapes))
    if key not in kernel_plans:
        words = [word for word in tile_shapes if word != ROWS]
        with overrides.override(*_tiles(call, trace.device.sms), *words):
            checked = refusing(_as_epilogue(operator, call), launches[0])
            kernel_plans[key] = launch_plans.plan(checked, call, trace.device, key, set())
        if ROWS in tile_shapes:
            kernel_plans[key] = _by_rows(kernel_plans[key], call)
    kernels = kernel_plans[key]
    if not kernels or any(one.kernel.coverage != "exact" for one in kernels):
        return None
    operand_places = {places[slot][0] for one in kernels for slot in one.slots if not isinstance(slot, Scratch)}
    if not all(_is_allocated(trace, buffer, launches[-1]) for buffer in operand_places):
        return None
    return _Group(launches, call, places, kernels, key)


def _is_allocated(trace: Recording, buffer: int, launch: int) -> bool:
    """Return whether a buffer is in the trace and has memory when a launch begins."""
    if buffer < 0:
        return False
    row = trace.buffers.iloc[buffer]
    return bool(row["allocated_at"] <= launch and (row["freed_at"] == NEVER or launch < row["freed_at"]))


def _by_rows(kernel_plans: list[launch_plans.KernelPlan], call: Call) -> list[launch_plans.KernelPlan]:
    """Return one pointwise launch over operands that lie alike, with a tile per row of the innermost dimension.

    As an epilogue it then depends on no tile beyond the rows that it reads. Other launches stay as they are.
    """
    if len(kernel_plans) != 1 or any(isinstance(slot, Scratch) for slot in kernel_plans[0].slots):
        return kernel_plans
    one = kernel_plans[0]
    operands = [call.tensors[slot] for slot in one.slots if not isinstance(slot, Scratch)]
    first = operands[0]
    size = next((n for n, stride in zip(first.shape, first.strides, strict=True) if stride == 1 and n > 1), 0)
    alike = all((o.shape, o.strides, o.itemsize) == (first.shape, first.strides, first.itemsize) for o in operands)
    boxes = one.kernel.footprint.boxes
    elements = math.prod(first.shape)
    whole = all(int(boxes.offset[boxes.operand == n].min(initial=1)) == 0 for n in range(len(operands)))
    if not size or not alike or not whole or not one.kernel.name.startswith(_FLAT) or elements % size:
        return kernel_plans
    rows = elements // size
    slots = np.unique(np.stack([boxes.operand, boxes.mode]), axis=1)
    tile = np.repeat(np.arange(rows), slots.shape[1])
    block = np.zeros((rows, 3), np.int32)
    block[:, 0] = np.arange(rows)
    row_boxes = Boxes.of(
        tile=tile, operand=np.tile(slots[0], rows), mode=np.tile(slots[1], rows),
        offset=tile * size * first.itemsize, length=size * first.itemsize,
    )  # fmt: skip
    tile_ns = np.full(rows, float(one.duration.tile_ns.sum()) / rows)
    kernel = replace(one.kernel, footprint=Footprint(block, row_boxes, tile_ns), grid=(rows, 1, 1))
    return [replace(one, kernel=kernel, tiles=rows, duration=replace(one.duration, tile_ns=tile_ns))]


def _as_epilogue(operator: Operator, call: Call) -> Operator:
    """Return a batch norm in evaluation as one launch, which a stage can take as its epilogue; other operators as they
    are.
    """
    names = ("input", "running_mean", "running_var")
    evaluates = not call.arguments.get("training", "batch_norm_with_update" in call.op)
    normalises_only = all(call.arguments.get(name) is not None for name in names) and call.outputs
    if "batch_norm" in call.op and evaluates and normalises_only and operator.entry:
        return replace(operator, entry=replace(operator.entry, model=evaluated))
    return operator


def _tiles(call: Call, sms: int) -> tuple[str, str]:
    """Return tiles that the persistent kernel takes: 64 or 128 rows of a product, 16 or 64 pixels of a convolution, 64
    columns.

    A convolution whose result would give less than a tile of 64 pixels to each SM has smaller ones.
    """
    out = call.outputs[0] if call.outputs else None
    shape = out.shape if out is not None and out.shape else (1,)
    rows = 64 if math.prod(shape[:-1]) <= 64 else 128
    pixels = 64 if math.prod(shape) >= sms * 64 * 64 else 16
    return f"gemm={rows}x64x64,split=1", f"conv={pixels}x64x64,split=1"


def _operator(name: str) -> Operator | None:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        return describe(getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default"))
    except (AttributeError, RuntimeError):  # another version of PyTorch, or a library that is not here
        return None


def _call(name: str, operator: Operator, text: dict[str, Any]) -> Call:
    operands = [_operand(number, tensor) for number, tensor in enumerate(text["tensors"])]

    def value(argument: Any) -> Any:
        if isinstance(argument, dict):
            return operands[argument["tensor"]]
        return [value(one) for one in argument] if isinstance(argument, list) else argument

    by_name = text["arguments"] | text["places"]
    arguments = {a.name: value(by_name.get(a.name, a.default)) for a in operator.arguments}
    argument_names = {a.name for a in operator.arguments}
    outputs = tuple(o for o, t in zip(operands, text["tensors"], strict=True) if t["argument"] not in argument_names)
    return Call(name, arguments, outputs, tuple(operands))


def _operand(number: int, tensor: dict[str, Any]) -> Operand:
    offset = int(tensor["offset"])
    return Operand(
        tuple(tensor["shape"]), tuple(tensor["strides"]), tensor["dtype"], getattr(torch, tensor["dtype"]).itemsize,
        min(offset & -offset, _ALIGNMENT) or _ALIGNMENT, number,
    )  # fmt: skip


def _deal_out_durations(trace: Recording, groups: list[_Group]) -> None:
    """Give the launches of a plan that equal calls share the mean of what was recorded for such a call."""
    recorded: dict[str, list[int]] = defaultdict(list)
    duration = trace.launches["duration_ns"].to_numpy()
    for group in groups:
        recorded[group.key].append(int(duration[group.launches].sum()))
    for group in {group.key: group for group in groups}.values():
        modelled_ns = sum(one.duration.launch_ns for one in group.kernel_plans)
        factor = sum(recorded[group.key]) / len(recorded[group.key]) / max(modelled_ns, 1)
        for one in group.kernel_plans:
            tile_ns = one.duration.tile_ns * factor
            launch_ns = max(round(one.duration.launch_ns * factor), 1)
            one.duration = replace(one.duration, tile_ns=tile_ns, launch_ns=launch_ns)
            one.kernel = replace(one.kernel, footprint=replace(one.kernel.footprint, duration_ns=tile_ns))


class _Writing:
    """Writes the new trace launch by launch, buffers at the same moments as in the recording."""

    def __init__(self, trace: Recording, writer: TraceWriter) -> None:
        self._trace, self._writer = trace, writer
        self._rows = _rows(trace.launches)
        self._buffers: dict[int, int] = {}
        self._footprints: dict[int, int] = {}
        buffers = trace.buffers
        end = int((buffers["base"] + buffers["bytes"]).max()) if len(buffers) else 0
        self._scratch_base = -(-end // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT

    def run(self, by_last: dict[int, _Group], replaced: set[int]) -> dict[int, tuple[int, ...]]:
        """Return the new launches of every recorded one that stands for itself or ends a group."""
        allocations, freed_buffers = defaultdict(list), defaultdict(list)
        for row in _rows(self._trace.buffers):
            allocations[max(row["allocated_at"], -1)].append(row)
            if row["freed_at"] != NEVER:
                freed_buffers[row["freed_at"]].append(row["buffer"])
        self._allocate(allocations[-1])
        numbers: dict[int, tuple[int, ...]] = {}
        for launch in range(len(self._rows)):
            for buffer in freed_buffers[launch]:
                if buffer in self._buffers:  # else it begins and ends between two launches
                    self._writer.free_buffer(self._buffers[buffer])
            self._allocate(allocations[launch])
            if launch in by_last:
                numbers[launch] = tuple(self._cut(by_last[launch]))
            elif launch not in replaced:
                numbers[launch] = (self._copy(launch),)
        return numbers

    def _allocate(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._buffers[row["buffer"]] = self._writer.add_buffer(
                base=row["base"], bytes=row["bytes"], kind=row["kind"], name=row["name"], dtype=row["dtype"],
                shape=row["shape"], strides=row["strides"], before_start=row["allocated_at"] < 0,
            )  # fmt: skip
            if row["freed_at"] != NEVER and 0 <= row["freed_at"] <= row["allocated_at"]:
                self._writer.free_buffer(self._buffers[row["buffer"]])

    def _copy(self, launch: int) -> int:
        row = self._rows[launch]
        if row["footprint"] not in self._footprints:
            recorded = self._trace.footprint(row["footprint"])
            footprint = Footprint(recorded.block, recorded.boxes, recorded.duration_ns)
            self._footprints[row["footprint"]] = self._writer.add_footprint(footprint)
        buffers, offsets = self._trace.operands_of(launch)
        bound = tuple((self._buffers[b], o) for b, o in zip(buffers.tolist(), offsets.tolist(), strict=True))
        return self._writer.add_launch(
            Launch(
                footprint=self._footprints[row["footprint"]], operands=bound, kernel=row["kernel"],
                grid=_xyz(row, "grid"), block=_xyz(row, "block"), cluster=_xyz(row, "cluster"), flops=row["flops"],
                fingerprint=row["fingerprint"], registers=row["registers"], shared_bytes=row["shared_bytes"],
                blocks_per_sm=row["blocks_per_sm"], timing=row["timing"], coverage=row["coverage"], note=row["note"],
                duration_ns=row["duration_ns"], begin_ns=row["begin_ns"], shape_source=row["shape_source"],
                time_source=row["time_source"], call=_alone(row["call"]),
                **self._issued(row),
            )
        )  # fmt: skip

    def _issued(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in ("op", "module", "stream", "graph", "device")}

    def _cut(self, group: _Group) -> list[int]:
        sizes: dict[int, int] = {}
        for space in (slot for one in group.kernel_plans for slot in one.slots if isinstance(slot, Scratch)):
            sizes[space.slot] = max(sizes.get(space.slot, 0), space.bytes)
        scratch = {}
        for number, size in sizes.items():
            scratch[number] = self._writer.add_buffer(base=self._scratch_base, bytes=size, kind="workspace")
            self._scratch_base += -(-size // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        numbers, begin = [], self._rows[group.launches[0]]["begin_ns"]
        for one in group.kernel_plans:
            bound = []
            for slot in one.slots:
                if isinstance(slot, Scratch):
                    bound.append((scratch[slot.slot], 0))
                else:
                    buffer, offset = group.places[slot]
                    bound.append((self._buffers[buffer], offset))
            issued = self._issued(self._rows[group.launches[0]])
            rows = one.rows or one.launch_rows(self._writer, issued["op"])
            launch = replace(rows.launch, operands=tuple(bound), begin_ns=begin, call=one.call, **issued)
            begin += one.duration.launch_ns
            numbers.append(self._writer.add_launch(launch))
        for buffer in scratch.values():
            self._writer.free_buffer(buffer)
        return numbers


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _alone(call: Any) -> str:
    """Return the description of a launch that was not cut; "" for one of an operator that could not be."""
    return call if isinstance(call, str) and '"number":' not in call else ""


def _xyz(row: dict[str, Any], what: str) -> tuple[int, int, int]:
    return row[f"{what}_x"], row[f"{what}_y"], row[f"{what}_z"]
