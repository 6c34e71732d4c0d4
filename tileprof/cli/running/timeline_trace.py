"""A run of a whole-model kernel as a trace, which `view`, `report` and `simulate` read: a launch per stage, with the
measured times of its tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.cli.running.touched_boxes import ALIGNED_BYTES, boxes_by_slot
from tileprof.trace import Footprint, Launch, TraceWriter

if TYPE_CHECKING:
    from tileprof.devices import Device
    from tileprof.runtime.programs.timeline import StageRun, Timeline

NOTE: Final = "a stage of one launch: its tiles wait for tiles of other stages, not for launches"
_FIRST_ADDRESS: Final = 1 << 20


def write_trace(timeline: Timeline, path: Path, device: Device, command: Sequence[str], *, force: bool = False) -> Path:
    """Return the folder of the trace. Raises `UserError` where it cannot be written, or exists and ``force`` is not
    given.
    """
    with TraceWriter(path, recorder="cuda", command=list(command), device=device, force=force) as writer:
        at = _FIRST_ADDRESS
        for name, size, kind in timeline.buffers:
            writer.add_buffer(base=at, bytes=size, kind=kind, name=name, before_start=kind != "activation")
            at += -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
        for stage in timeline.stages:
            _add(writer, stage, timeline)
    return writer.path


def _add(writer: TraceWriter, stage: StageRun, timeline: Timeline) -> None:
    touches, tiles = stage.touches, len(stage.block)
    operands, boxes = boxes_by_slot(touches)
    lives = np.maximum(stage.end_ns - stage.begin_ns, 1)
    places = np.zeros((tiles, 3), np.int32)
    places[:, 0] = np.arange(tiles)
    begin = int(stage.begin_ns.min())
    number = writer.add_launch(
        Launch(
            footprint=writer.add_footprint(Footprint(places, boxes, lives.astype(np.float64))),
            operands=operands,
            kernel=stage.name,
            grid=(tiles, 1, 1),
            block=(timeline.threads, 1, 1),
            duration_ns=max(1, int(stage.end_ns.max()) - begin),
            timing="measured",
            coverage="exact",
            begin_ns=begin,
            flops=stage.flops,
            shared_bytes=timeline.shared_bytes,
            module=timeline.name,
            note=NOTE,
        )
    )
    writer.add_times(number, np.arange(tiles), stage.block, stage.begin_ns - begin, stage.begin_ns - begin + lives)
